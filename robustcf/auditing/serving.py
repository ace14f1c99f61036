"""Ways to serve embeddings: fewer bits, other searches; the loss, size and time of each.

A way is ``exact``, ``bfloat16``, ``int8``, ``int4``, ``pq`` (product quantization), ``cosine``,
``hnsw`` or ``ivf``. ``hnsw:links=16,ef=64`` sets the parameters of an index, and ``int8+hnsw``
searches vectors of fewer bits by an index.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf._checks import check_choice, check_integer, unknown_setting
from robustcf.auditing.findings import Found, Skip
from robustcf.auditing.subject import CUTOFF, Subject
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.groups import overlap
from robustcf.metrics.topk import TopItems, top_items
from robustcf.robustness.quantization import quantized

#: Bytes per number, and per row besides.
_BITS: Mapping[str, tuple[float, int]] = {
    "float32": (4.0, 0),
    "bfloat16": (2.0, 0),
    "int8": (1.0, 4),
    "int4": (0.5, 4),
}
# The parameters of an index; None: chosen by the size of the catalogue.
_INDEXES: Mapping[str, Mapping[str, int | None]] = {
    "pq": {"codes": None, "bits": 8, "ask": 210},
    "hnsw": {"links": 32, "ef": 64, "build": 40, "ask": 210},
    "ivf": {"cells": None, "probes": None, "ask": 210},
}
WAYS = ("exact", "bfloat16", "int8", "int4", "pq", "cosine", "hnsw", "ivf")
# Scalar quantizers of faiss that are timed in place of the precisions above.
_FAISS = {"bfloat16": "QT_bf16", "int8": "QT_8bit", "int4": "QT_4bit"}
_QUERIES, _TIMED, _MOST = 2_000, 50, 1 << 20
_ROUNDS = 8  # of k-means for the codes of pq: more gain nothing that shows


@dataclass(frozen=True)
class Way:
    """A way to serve, read from its words.

    Example:
        >>> Way.parse("int8+hnsw:links=16,ef=64").base
        'int8+hnsw'
        >>> Way.parse("hnsw:link=16")
        Traceback (most recent call last):
        robustcf.errors.InputError: hnsw: unknown setting 'link'; did you mean 'links'?
    """

    spec: str
    bits: str = "float32"
    search: str = "exact"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """Its words without parameters."""
        return self.spec.partition(":")[0]

    @classmethod
    def parse(cls, spec: str) -> Way:
        """Read a way such as ``int8``, ``hnsw:links=16,ef=64`` or ``int8+ivf``."""
        base, _, given = spec.partition(":")
        names = base.split("+")
        for name in names:
            check_choice("a way to serve", name, WAYS)
        bits = [name for name in names if name in _BITS]
        searches = [name for name in names if name not in _BITS]
        if len(bits) > 1 or len(searches) > 1:
            raise InputError(f"expected one precision and one search joined by +, got {base!r}")
        search = searches[0] if searches else "exact"
        settings: dict[str, Any] = dict(_INDEXES.get(search, {}))
        for entry in filter(None, given.split(",")):
            name, _, value = entry.partition("=")
            if name not in settings:
                words = unknown_setting(name, settings) if settings else "it has no parameters"
                raise InputError(f"{base}: {words}")
            number = int(value) if value.isdecimal() and len(value) < 10 else value
            settings[name] = check_integer(f"{base}:{name}", number, 1, _MOST)
        return cls(spec, bits[0] if bits else "float32", search, settings)

    def found(self, subject: Subject) -> Found:
        """Measure what this way leaves of the exact top lists, its size and its time."""
        try:
            return self._found(subject)
        except RuntimeError as error:  # of faiss, for sizes that it does not take
            raise Skip(f"faiss refuses ({str(error).rpartition('Error: ')[2]})") from error

    def _found(self, subject: Subject) -> Found:
        model = subject.model
        try:
            factors = quantized(model, self.bits)
        except InputError as error:
            raise Skip(str(error)) from error
        if self.search == "cosine":
            lengths = factors.items.norm(dim=1, keepdim=True)
            items = factors.items / torch.where(lengths > 0, lengths, 1.0)
            factors = Factors(factors.users, items)
        queries, looked_at = subject.few(_QUERIES, "audit queries")
        raw = subject.raw(_QUERIES)
        width, more = _BITS[self.bits]
        bytes_per_row = np.ceil(width * len(model.free)) + more + 4.0 * len(model.fixed)
        if self.search in _INDEXES:
            index = self._index(_floats(factors.items))
            users = _floats(factors.users)[queries]
            found = self._search(index, users, CUTOFF)
            asked = min(index.ntotal, max(CUTOFF, self.settings["ask"] or CUTOFF))
            lists = _unseen(self._search(index, users, asked), subject, queries)
            bytes_per_row = _size(index) / index.ntotal - 4.0 * factors.dim + bytes_per_row
            if self.search == "pq":
                bytes_per_row = _size(index) / index.ntotal
        else:
            found = top_items(factors, queries, CUTOFF, None)
            lists, queries, looked_at = subject.ranked(factors), np.arange(len(subject.users)), ""
            index, asked = self._timed(_floats(factors.items)), CUTOFF
        kept = overlap(subject.top[queries], lists)
        subject.served[self.spec] = queries, lists
        mean, recall = float(kept.mean()), float(overlap(raw, found).mean())
        details = {
            "overlap@10": mean,
            "recall@10": recall,
            "bytes per item row": float(bytes_per_row),
            "microseconds per query": _microseconds(index, _floats(factors.users), asked),
            "users with the same set": float((kept == 1.0).mean()),
            "worst twentieth": float(np.quantile(kept, 0.05)),
            **{name: value for name, value in self._used(index).items() if value is not None},
        }
        biases = " Biases are kept in full precision." if model.fixed and width < 4 else ""
        return Found(
            mean,
            f"{mean:.1%} of the exact top {CUTOFF} stay; {(kept == 1.0).mean():.0%} of the users "
            f"keep all of it{looked_at}.{biases}",
            details,
            error=float(kept.std() / len(kept) ** 0.5),
        )

    def _used(self, index: Any) -> dict[str, int | None]:
        """Return the parameters with those that were chosen here."""
        if self.search == "ivf":
            return {**self.settings, "cells": index.nlist, "probes": index.nprobe}
        if self.search == "pq":
            return {**self.settings, "codes": index.pq.M, "bits": index.pq.nbits}
        return dict(self.settings)

    def _index(self, items: npt.NDArray[np.float32]) -> Any:
        if importlib.util.find_spec("faiss") is None:
            raise Skip("faiss is not installed: pip install 'robustcf[serving]'")
        import faiss  # an extra

        index: Any
        count, dim = items.shape
        given = self.settings
        if self.search == "hnsw":
            index = faiss.IndexHNSWFlat(dim, given["links"], faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efSearch, index.hnsw.efConstruction = given["ef"], given["build"]
        elif self.search == "ivf":
            cells = given["cells"] or max(1, min(4 * int(count**0.5), count // 39 or 1))
            if cells > count:
                raise Skip(f"{cells:,} cells are more than {count:,} items")
            quantizer = faiss.IndexFlatIP(dim)
            index = faiss.IndexIVFFlat(quantizer, dim, cells, faiss.METRIC_INNER_PRODUCT)
            index.cp.min_points_per_centroid = 1
            index.nprobe = given["probes"] or max(1, cells // 8)
        else:
            codes = given["codes"] or max(m for m in range(1, dim // 4 + 2) if dim % m == 0)
            if dim % codes:
                raise Skip(f"pq:codes must divide the {dim} columns, got {codes}")
            bits = min(given["bits"] or 8, max(1, int(np.log2(count))))
            index = faiss.IndexPQ(dim, codes, bits, faiss.METRIC_INNER_PRODUCT)
            index.pq.cp.min_points_per_centroid = 1
            index.pq.cp.niter = _ROUNDS
        index.train(items)
        index.add(items)
        return index

    def _timed(self, items: npt.NDArray[np.float32]) -> Any:
        """Return faiss's scan of vectors of this width, for the time alone; None without it."""
        if importlib.util.find_spec("faiss") is None:
            return None
        import faiss  # an extra

        kind = getattr(faiss.ScalarQuantizer, _FAISS.get(self.bits, ""), None)
        dim, inner = items.shape[1], faiss.METRIC_INNER_PRODUCT
        index: Any = faiss.IndexFlatIP(dim)
        if kind is not None:
            index = faiss.IndexScalarQuantizer(dim, kind, inner)
            index.train(items)
        index.add(items)
        return index

    def _search(self, index: Any, users: npt.NDArray[np.float32], k: int) -> TopItems:
        return np.asarray(index.search(users, min(k, index.ntotal))[1], dtype=np.int64)


def _floats(part: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(part.detach().float().cpu().numpy())


def _unseen(found: TopItems, subject: Subject, queries: npt.NDArray[np.int64]) -> TopItems:
    """Return the first items that a user does not have, from lists of candidates."""
    if subject.seen is None:
        return found[:, :CUTOFF]
    rows, items = subject.seen.rows(queries)
    stride = subject.whole.n_items + 1
    wanted = np.arange(len(found))[:, None] * stride + found + 1
    have = np.isin(wanted, rows * stride + items + 1) | (found < 0)
    # A stable sort puts known items last.
    order = np.argsort(have, axis=1, kind="stable")[:, :CUTOFF]
    lists: TopItems = np.where(
        np.take_along_axis(have, order, 1), -1, np.take_along_axis(found, order, 1)
    )
    return lists


def _size(index: Any) -> int:
    import faiss  # an extra

    return int(faiss.serialize_index(index).nbytes)


def _microseconds(index: Any, users: npt.NDArray[np.float32], asked: int) -> float | None:
    """Return the CPU time of one query, measured one query at a time."""
    if index is None:
        return None
    rows = np.linspace(0, len(users) - 1, min(_TIMED, len(users))).astype(int)
    index.search(users[rows[:1]], min(asked, index.ntotal))
    start = time.process_time()
    for row in rows:
        index.search(users[row : row + 1], min(asked, index.ntotal))
    return (time.process_time() - start) / len(rows) * 1e6
