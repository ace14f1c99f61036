"""A recommender on disk: a folder that serves on another machine, without the source data.

``recommender.json`` says what it is and has the checksums of the other files; it is written last,
so a folder that has it is whole. ``factors.safetensors`` holds the arrays of the scorer,
``interactions.npz`` the labels, the pairs and the protocol. A run of ``robustcf train`` holds the
same files next to those of its training. Opening reads, and imports and runs nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._io import files
from robustcf._io.limits import Limits
from robustcf._io.reading import open_plain, parse_json
from robustcf._io.schema import (
    TEXT,
    check_kind,
    choice,
    list_of,
    nullable,
    record,
    whole,
)
from robustcf._registry import SCORERS
from robustcf.data.interactions import Interactions, Labels, checked_labels
from robustcf.data.split import EvaluationProtocol, Split
from robustcf.errors import DataError, InputError, UnfinishedError
from robustcf.models.factorized import FactorScorer
from robustcf.recommender.recommender import Recommender
from robustcf.recommender.record import FACTORS, FORMAT, INTERACTIONS, RECOMMENDER, read_recommender

if TYPE_CHECKING:
    from robustcf.models.scorer import Scorer

_PARTS = ("train", "valid", "test")
_META = record(
    {
        "name": nullable(TEXT),
        "valid_source": choice("published", "carved", "none"),
        "protocol": nullable(
            record(
                {
                    **{part: list_of(choice(*_PARTS)) for part in _PARTS},
                    "users": nullable(whole(1)),
                    "seed": whole(),
                }
            )
        ),
        "notes": list_of(TEXT),
        "sources": record({}, others=TEXT),
    }
)


def save(
    model: Recommender,
    path: str | os.PathLike[str],
    *,
    include_interactions: bool = True,
    include_test: bool = True,
) -> Path:
    """Write a recommender, see :meth:`Recommender.save`."""
    if not os.fspath(path):
        raise InputError("the folder must have a name, got an empty one")
    check_savable(model, include_interactions=include_interactions)

    def fill(folder: Path) -> None:
        write_into(
            folder, model, include_interactions=include_interactions, include_test=include_test
        )

    files.create_folder(Path(path), fill)
    return Path(path)


def check_savable(model: Recommender, *, include_interactions: bool) -> None:
    """Raise for a recommender that could not be opened again without its interactions."""
    if include_interactions and not model.has_interactions:
        raise InputError(
            "this recommender has no interactions to write: pass include_interactions=False"
        )
    if not include_interactions and model.scorer.stored().needs_interactions:
        raise InputError(
            f"a recommender of the kind {model.kind!r} scores by its interactions: it cannot be "
            "saved without them"
        )


def write_into(
    folder: Path,
    model: Recommender,
    *,
    include_interactions: bool = True,
    include_test: bool = True,
    interrupted: bool = False,
) -> None:
    """Write the files of a recommender into a folder, ``recommender.json`` last."""
    stored = model.scorer.stored()
    split = model.split if include_interactions else None
    held_out = split is not None and (include_test or model.part != "test")
    written = []
    if stored.tensors:
        facts = {"format": FORMAT, "fixed": json.dumps(stored.facts.get("fixed", []))}
        files.write_tensors(folder / FACTORS, dict(stored.tensors), facts)
        written.append(FACTORS)
    files.write_bytes(folder / INTERACTIONS, _pairs_bytes(model, split, include_test))
    written.append(INTERACTIONS)
    files.write_json(
        folder / RECOMMENDER,
        {
            "format": FORMAT,
            "kind": model.kind,
            "label": model.label,
            "fit_on": model.fit_on,
            "part": model.part if held_out else None,
            "mask": list(model.mask) if held_out else [],
            "scorer": dict(stored.facts),
            "n_users": model.n_users,
            "n_items": model.n_items,
            "dataset": model.split.name if model.has_interactions else None,
            # Of all pairs, whichever are included.
            "fingerprint": model.split.fingerprint if model.has_interactions else None,
            "interrupted": interrupted,
            "training": None if model.training is None else dict(model.training),
            "versions": files.versions(),
            "files": {name: _stamp(folder / name) for name in written},
        },
    )


def open_recommender(
    path: str | os.PathLike[str],
    *,
    interactions: Any = None,
    allow_unfinished: bool = False,
    allow_code: bool = False,
) -> Recommender:
    """Open a recommender that ``save`` or ``robustcf train`` wrote; it may come from anybody.

    Args:
        path: the folder.
        interactions: the pairs that it was fit on, a :class:`robustcf.data.Split` or a matrix by
            its rows, where it was saved without them.
        allow_unfinished: whether an interrupted training may be used as it is.
        allow_code: whether a new user may be folded in by code from outside of the package
            (``module:Class``), if it was trained with such.

    Raises:
        UnfinishedError: the training has not finished, and this was not allowed.
        InputError: the path holds another thing, a recommender of another version, or a file of it
            is missing or was changed.

    Cost: reading its files, and one checksum of each.
    """
    folder = Path(path)
    facts = read_recommender(folder, allow_unfinished=allow_unfinished)
    if facts["kind"] not in SCORERS:
        raise InputError(
            f"{folder / RECOMMENDER}: kind must be one of {', '.join(SCORERS)}, got "
            f"{facts['kind']!r}: it was written by a newer version, update robustcf"
        )
    for name, stamp in facts["files"].items():
        _check_file(folder / name, stamp, facts)
    with _named(folder / INTERACTIONS):
        split, labels, counts = _read_pairs(folder / INTERACTIONS)
    if interactions is not None:
        split = _given(folder, interactions, facts, split, labels)
    pairs = None if split is None else split.fit_pairs(facts["fit_on"])
    tensors: dict[str, Any] = {}
    if FACTORS in facts["files"]:
        tensors, _ = files.read_tensors(folder / FACTORS)
    with _named(folder):
        scorer = SCORERS[facts["kind"]].restored(tensors, facts["scorer"], pairs)
        _allow(scorer, allow_code=allow_code)
        if len(counts) != scorer.n_items or counts.max(initial=0) > scorer.n_users:
            raise InputError(
                f"{INTERACTIONS} must count the pairs of {scorer.n_items:,} items, at most "
                f"{scorer.n_users:,} each, got {len(counts):,} items and at most "
                f"{counts.max(initial=0):,}"
            )
        kept = split is not None and interactions is None
        return Recommender.of(
            scorer,
            split,
            part=facts["part"] if kept else None,
            mask=facts["mask"] if kept and facts["part"] else None,
            fit_on=facts["fit_on"],
            label=facts["label"],
            user_labels=_fitting("user", labels[0], scorer.n_users),
            item_labels=_fitting("item", labels[1], scorer.n_items),
            item_counts=counts.astype(np.int64),
            training=facts["training"],
        )


def _check_file(path: Path, stamp: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Raise unless a file has the length and the checksum that were written down."""
    with os.fdopen(open_plain(path), "rb") as file:
        # The length first: whatever lies there now may have no end.
        same = os.fstat(file.fileno()).st_size == stamp["bytes"]
        if same and _digest(file) == stamp["sha256"]:
            return
    if facts["interrupted"]:
        raise UnfinishedError(
            f"{path} was being replaced when the training was interrupted again: finish it with "
            f"'robustcf train --resume {path.parent}'"
        )
    raise InputError(
        f"{path} was changed since it was written (its checksum is another): restore it, or train "
        "again"
    )


def _stamp(path: Path) -> dict[str, Any]:
    """Return the length and the checksum of a file."""
    with os.fdopen(open_plain(path), "rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": _digest(file)}


def _digest(file: io.BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


class _named:
    """Name the file in whatever goes wrong within."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, InputError) and str(self.path) not in str(error):
            raise type(error)(f"{self.path}: {error}") from error
        if isinstance(error, KeyError | TypeError | ValueError | OverflowError) and not isinstance(
            error, InputError
        ):
            raise InputError(
                f"{self.path} is damaged ({type(error).__name__}: {error}): restore it"
            ) from error


def _allow(scorer: Scorer, *, allow_code: bool) -> None:
    if isinstance(scorer, FactorScorer):
        scorer.allow_code = allow_code


def _fitting(kind: str, labels: Labels | None, rows: int) -> Labels | None:
    return None if labels is None else checked_labels(kind, labels, rows)


def _given(
    folder: Path,
    data: Any,
    facts: Mapping[str, Any],
    kept: Split | None,
    labels: tuple[Labels | None, Labels | None],
) -> Split:
    """Return the interactions that the caller gave, if they are the ones it was made from."""
    if kept is not None:
        raise InputError(f"{folder} has its interactions with it: leave interactions out")
    if not isinstance(data, Split):
        own = dict(zip(("user_labels", "item_labels"), labels, strict=True))
        if not isinstance(data, Interactions):
            pairs = Interactions.from_csr(data, **own)
        elif data.user_labels is None and data.item_labels is None:
            pairs = Interactions(data.users, data.items, data.n_users, data.n_items, **own)
        else:
            pairs = data
        none = pairs.take(pairs.users < 0)
        return Split("own data", pairs, none, none, valid_source="none")
    expected = facts["fingerprint"]
    if expected is not None and data.fingerprint != expected:
        raise DataError(
            f"{folder} was made from other data: its {facts.get('dataset')} has the fingerprint "
            f"{expected[:12]}, {data.name} has {data.fingerprint[:12]}"
        )
    return data


# --- interactions.npz -------------------------------------------------------------------------


def _pairs_bytes(model: Recommender, split: Split | None, include_test: bool) -> bytes:
    """Return labels, pairs and protocol as one compressed ``.npz`` without pickle."""
    meta: dict[str, Any] = {"name": None, "valid_source": "none", "protocol": None}
    meta |= {"notes": [], "sources": {}}
    arrays: dict[str, Any] = {"item_counts": np.asarray(model.item_counts, dtype=np.int64)}
    labels = {"user_labels": model.user_labels, "item_labels": model.item_labels}
    arrays |= {name: values for name, values in labels.items() if values is not None}
    if split is not None:
        meta = {
            "name": split.name,
            "valid_source": split.valid_source,
            "protocol": dataclasses.asdict(split.protocol) if split.protocol else None,
            "notes": list(split.notes),
            "sources": dict(split.sources),
        }
        for part in _PARTS:
            pairs: Interactions = getattr(split, part)
            if part == "test" and not include_test:
                pairs = pairs.take(np.zeros(len(pairs), dtype=bool))
            arrays[f"{part}.counts"] = pairs.user_degrees.astype(np.int32)
            arrays[f"{part}.items"] = np.asarray(pairs.items, dtype=np.int32)
    arrays["meta"] = np.array(json.dumps(meta))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    if sum(np.asarray(each).nbytes for each in arrays.values()) > Limits().allowance(buffer.tell()):
        # Packed as tightly, it would be refused as one that grows without bound.
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _read_pairs(
    path: Path,
) -> tuple[Split | None, tuple[Labels | None, Labels | None], npt.NDArray[np.int64]]:
    """Return the split, the labels of users and items, and the number of pairs per item."""
    arrays = files.read_arrays(path)
    meta = parse_json(str(arrays["meta"]))
    check_kind("", meta, _META, "meta")
    labels = (arrays.get("user_labels"), arrays.get("item_labels"))
    counts = _whole_numbers("item_counts", arrays["item_counts"])
    if meta["name"] is None:
        return None, labels, counts
    parts = {part: _part(arrays, part, len(counts), labels) for part in _PARTS}
    protocol = meta["protocol"]
    split = Split(
        meta["name"],
        parts["train"],
        parts["valid"],
        parts["test"],
        valid_source=meta["valid_source"],
        notes=tuple(meta["notes"]),
        sources=meta["sources"],
        protocol=None if protocol is None else EvaluationProtocol(**protocol),
    )
    return split, labels, counts


def _part(
    arrays: Mapping[str, npt.NDArray[Any]],
    part: str,
    n_items: int,
    labels: tuple[Labels | None, Labels | None],
) -> Interactions:
    degrees = _whole_numbers(f"{part}.counts", arrays[f"{part}.counts"])
    items = _whole_numbers(f"{part}.items", arrays[f"{part}.items"])
    if int(degrees.sum(dtype=np.float64)) != len(items):
        raise InputError(f"{part}.counts must add up to the {len(items):,} pairs of {part}")
    users = np.repeat(np.arange(len(degrees)), degrees)
    return Interactions(
        users, items, len(degrees), n_items, user_labels=labels[0], item_labels=labels[1]
    )


def _whole_numbers(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.ndim != 1 or values.dtype.kind not in "iu" or (values.size and values.min() < 0):
        raise InputError(
            f"{name} must be a list of integers of at least 0, got {values.dtype} of shape "
            f"{values.shape}"
        )
    return values


# --- the embeddings alone ---------------------------------------------------------------------


def export(model: Recommender, path: Path) -> Path:
    """Write the embeddings alone, see :meth:`Recommender.export`."""
    factors = model.factors
    if path.exists():
        raise InputError(f"{path} exists already: choose another name")
    if model.origin is not None:
        model.origin.write_back(factors, path)
        return path
    if path.suffix != ".safetensors":
        raise InputError(
            f"embeddings that came from no other library are written as a .safetensors file, got "
            f"{path.name}"
        )
    users, items = (part.detach().cpu().contiguous() for part in factors)
    facts = {"format": "robustcf factors 1", "fixed": json.dumps(list(model.fixed))}
    files.write_tensors(path, {"users": users, "items": items}, facts)
    return path
