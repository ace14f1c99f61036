"""Checks of serving: fewer bits, cosine, approximate indexes, against the exact top lists."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from robustcf.attacks.quantization import quantize
from robustcf.auditing.outcome import Found, Skip
from robustcf.auditing.subject import CUTOFF, Subject, overlap
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.topk import TopItems

# An index is asked for this many items more than needed, because seen ones are left out after it.
_ASKED = 200
_QUERIES = 5_000


def in_bits(kind: str) -> Callable[[Subject], Found]:
    """A check of factors rounded to ``kind``."""

    def check(subject: Subject) -> Found:
        try:
            rounded = quantize(subject.model.factors, kind, subject.model.fixed)
        except InputError as error:
            raise Skip(str(error)) from error
        kept = " Biases are kept in full precision." if subject.model.fixed else ""
        return _changed(subject, rounded, kept)

    return check


def by_cosine(subject: Subject) -> Found:
    """Items' rows scaled to length 1: what an index of cosines ranks by."""
    users, items = subject.model.factors
    lengths = items.norm(dim=1, keepdim=True)
    return _changed(subject, Factors(users, items / torch.where(lengths > 0, lengths, 1.0)))


def by_index(kind: str) -> Callable[[Subject], Found]:
    """A check of an approximate index of faiss."""

    def check(subject: Subject) -> Found:
        if importlib.util.find_spec("faiss") is None:
            raise Skip("faiss is not installed: pip install 'robustcf[serving]'")
        users, items = (part.float().cpu().numpy() for part in subject.model.factors)
        queries = subject.few(_QUERIES, "audit queries")
        index = _index(kind, items)
        asked = min(len(items), _ASKED + CUTOFF)
        _, found = index.search(np.ascontiguousarray(users[queries]), asked)
        exact = subject.top[queries]
        kept = overlap(exact, unseen(found, subject, queries))
        recall = float(kept.mean())
        return Found(
            recall,
            f"It finds {recall:.1%} of the exact top {CUTOFF}{subject.out_of(queries)}.",
            {"users": len(queries), "worst twentieth": float(np.quantile(kept, 0.05))},
        )

    return check


def unseen(found: Any, subject: Subject, users: Any) -> TopItems:
    """The first items of each list that the user does not have yet."""
    lists = np.full((len(found), CUTOFF), -1, dtype=np.int64)
    for row, user in enumerate(users):
        have = set(subject.seen.items_of(int(user)).tolist())
        kept = [item for item in found[row].tolist() if item >= 0 and item not in have]
        lists[row, : min(CUTOFF, len(kept))] = kept[:CUTOFF]
    return lists


def _index(kind: str, items: Any) -> Any:
    import faiss

    dim = items.shape[1]
    index: Any
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = 64
    else:
        cells = max(1, min(4 * int(len(items) ** 0.5), len(items) // 39 or 1))
        quantizer = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFFlat(quantizer, dim, cells, faiss.METRIC_INNER_PRODUCT)
        index.train(items)
        index.nprobe = max(1, cells // 8)
    index.add(items)
    return index


def _changed(subject: Subject, factors: Factors, more: str = "") -> Found:
    kept = overlap(subject.top, subject.ranked(factors))
    same = float((kept == 1.0).mean())
    mean = float(kept.mean())
    return Found(
        mean,
        f"{mean:.1%} of the exact top {CUTOFF} stay; {same:.0%} of the users keep all of it.{more}",
        {"users with the same set": same, "worst twentieth": float(np.quantile(kept, 0.05))},
    )
