"""A recommender on disk: a folder that serves on another machine, without the source data.

``recommender.json`` describes it and has the checksums of the other files; it is written last, so
that a folder with it is complete. ``factors.safetensors`` holds the arrays of the scorer,
``interactions.npz`` the labels, the pairs and the protocol. A run of ``robustcf train`` holds the
same files next to those of its training. Opening imports and runs nothing of the folder;
:func:`read_recommender` does not load torch either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._io import files, schema
from robustcf._io.limits import Limits
from robustcf._io.reading import open_plain, parse_json, read_json
from robustcf._io.text import counted
from robustcf._registry import SCORERS
from robustcf.data.interactions import Interactions, Labels, checked_labels
from robustcf.data.split import FIT_ON, EvaluationProtocol, Split
from robustcf.errors import DataError, InputError, UnfinishedError

if TYPE_CHECKING:
    from robustcf.factors import Factors
    from robustcf.recommender.recommender import Recommender

FORMAT = "robustcf recommender 1"
RECOMMENDER = "recommender.json"
#: Files of two matrices.
PLAIN = (".safetensors", ".npz")
_FACTORS, _INTERACTIONS = "factors.safetensors", "interactions.npz"
_PARTS = ("train", "valid", "test")
_PART = schema.choice(*_PARTS)
_MAIN = schema.record(
    {
        "kind": schema.NAME,
        "label": schema.TEXT,
        "fit_on": schema.choice(*FIT_ON),
        "part": schema.nullable(_PART),
        "mask": schema.list_of(_PART),
        "scorer": schema.OBJECT,
        "fingerprint": schema.nullable(schema.TEXT),
        "interrupted": schema.FLAG,
        "training": schema.nullable(schema.OBJECT),
        "files": schema.record(
            {}, others=schema.record({"bytes": schema.whole(), "sha256": schema.TEXT})
        ),
    }
)
_PROTOCOL = schema.record(
    {
        **dict.fromkeys(_PARTS, schema.list_of(_PART)),
        "users": schema.nullable(schema.whole(1)),
        "seed": schema.whole(),
    }
)
_META = schema.record(
    {
        "name": schema.nullable(schema.TEXT),
        "valid_source": schema.choice("published", "carved", "none"),
        "protocol": schema.nullable(_PROTOCOL),
        "notes": schema.list_of(schema.TEXT),
        "sources": schema.record({}, others=schema.TEXT),
    }
)


def save(
    model: Recommender,
    path: str | os.PathLike[str],
    include_interactions: bool,
    include_test: bool,
) -> Path:
    """Write a new folder, see :meth:`Recommender.save`."""
    if not os.fspath(path):
        raise InputError("the folder must have a name, got an empty one")
    if include_interactions and not model.has_interactions:
        raise InputError("there are no interactions to write: pass include_interactions=False")
    if not include_interactions and model.scorer.stored().needs_interactions:
        raise InputError(f"a {model.kind} scores by its interactions and is saved with them")
    how = {"include_interactions": include_interactions, "include_test": include_test}
    files.create_folder(Path(path), lambda folder: write_into(folder, model, **how))
    return Path(path)


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
    judged = split is not None and (include_test or model.part != "test")
    if stored.tensors:
        facts = {"format": FORMAT, "fixed": json.dumps(stored.facts.get("fixed", []))}
        files.write_tensors(folder / _FACTORS, dict(stored.tensors), facts)
    files.write_bytes(folder / _INTERACTIONS, _pairs_bytes(model, split, include_test))
    written = [_FACTORS, _INTERACTIONS] if stored.tensors else [_INTERACTIONS]
    files.write_json(
        folder / RECOMMENDER,
        {
            "format": FORMAT,
            "kind": model.kind,
            "label": model.label,
            "fit_on": model.fit_on,
            "part": model.part if judged else None,
            "mask": list(model.mask) if judged else [],
            "scorer": dict(stored.facts),
            "n_users": model.n_users,
            "n_items": model.n_items,
            "dataset": model.split.name if model.has_interactions else None,
            # Of all pairs, included or not.
            "fingerprint": model.split.fingerprint if model.has_interactions else None,
            "interrupted": interrupted,
            "training": None if model.training is None else dict(model.training),
            "versions": files.versions(),
            "files": {name: _stamp(folder / name) for name in written},
        },
    )


def _pairs_bytes(model: Recommender, split: Split | None, include_test: bool) -> bytes:
    """Return labels, pairs and protocol as one compressed ``.npz`` without pickle."""
    arrays: dict[str, Any] = {"item_counts": np.asarray(model.item_counts, dtype=np.int64)}
    labels = {"user_labels": model.user_labels, "item_labels": model.item_labels}
    arrays |= {name: values for name, values in labels.items() if values is not None}
    meta: dict[str, Any] = {"name": None, "valid_source": "none", "protocol": None}
    meta |= {"notes": [], "sources": {}}
    if split is not None:
        protocol = split.protocol and dataclasses.asdict(split.protocol)
        meta = {"name": split.name, "valid_source": split.valid_source, "protocol": protocol}
        meta |= {"notes": list(split.notes), "sources": dict(split.sources)}
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
        # Compressed as tightly, it would be refused as a decompression bomb.
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def export(model: Recommender, path: Path) -> Path:
    """Write the embeddings alone, see :meth:`Recommender.export`."""
    factors = model.factors
    if path.exists():
        raise InputError(f"{path} exists already: choose another name")
    if model.origin is not None:
        model.origin.write_back(factors, path)
        return path
    if path.suffix not in PLAIN:
        expected = " or ".join(PLAIN)
        raise InputError(f"embeddings are written to a {expected} file, got {path.name}")
    write_plain(factors, model.fixed, path)
    return path


def write_plain(factors: Factors, fixed: Sequence[int], path: Path) -> None:
    """Write two matrices, ``users`` and ``items``, to a ``.safetensors`` or ``.npz`` file."""
    users, items = (part.detach().cpu().contiguous() for part in factors)
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, users=users.numpy(), items=items.numpy())
        files.write_bytes(path, buffer.getvalue())
        return
    facts = {"format": "robustcf factors 1", "fixed": json.dumps(list(fixed))}
    files.write_tensors(path, {"users": users, "items": items}, facts)


def read_recommender(folder: Path, *, allow_unfinished: bool = False) -> dict[str, Any]:
    """Read and check ``recommender.json`` alone; errors are those of :func:`open_recommender`."""
    path = folder / RECOMMENDER
    resume = f"finish it with 'robustcf train --resume {folder}'"
    if not os.path.lexists(path):
        if (folder / "config.json").exists():
            raise UnfinishedError(f"{folder} has no result yet: {resume}")
        raise InputError(
            f"{folder} is not a saved recommender (no {RECOMMENDER} in it): give the folder that "
            "Recommender.save or 'robustcf train' wrote"
        )
    facts = read_json(path)
    if facts.get("format") != FORMAT:
        raise InputError(
            f"{path}: expected the format {FORMAT!r}, got {schema.shown(facts.get('format'))}: use "
            "the version of robustcf that wrote it, or train again"
        )
    schema.check_kind(path, facts, _MAIN)
    if not {_INTERACTIONS} <= set(facts["files"]) <= {_INTERACTIONS, _FACTORS}:
        raise InputError(f"{path}: files must be {_INTERACTIONS} and optionally {_FACTORS}")
    if facts["interrupted"] and not allow_unfinished:
        epochs = (facts["training"] or {}).get("epochs")
        after = f" (interrupted after {counted(epochs, 'epoch')})" if type(epochs) is int else ""
        raise UnfinishedError(
            f"{folder} is not finished{after}: {resume}, or pass allow_unfinished=True "
            "(--allow-unfinished)"
        )
    return facts


def open_recommender(
    path: str | os.PathLike[str],
    *,
    interactions: Any = None,
    allow_unfinished: bool = False,
    allow_code: bool = False,
) -> Recommender:
    """Open a recommender that ``save`` or ``robustcf train`` wrote; it need not be trusted.

    Args:
        path: the folder.
        interactions: the pairs that it was fit on, a :class:`robustcf.data.Split` or a matrix by
            its rows, where it was saved without them.
        allow_unfinished: use the state of an interrupted training.
        allow_code: let new users be folded in by code from outside of the package
            (``module:Class``), if it was trained with such code.

    Raises:
        UnfinishedError: the training is unfinished and ``allow_unfinished`` is False.
        InputError: the folder is not a recommender, is of another version, or was changed.

    Cost: reading its files, and one checksum of each.
    """
    from robustcf.recommender.recommender import Recommender  # loads torch

    folder = Path(path)
    facts = read_recommender(folder, allow_unfinished=allow_unfinished)
    if facts["kind"] not in SCORERS:
        raise InputError(
            f"{folder / RECOMMENDER}: kind must be one of {', '.join(SCORERS)}, got "
            f"{facts['kind']!r}; update robustcf if a newer version wrote it"
        )
    for name, stamp in facts["files"].items():
        _check_file(folder / name, stamp, interrupted=facts["interrupted"])
    with _named(folder / _INTERACTIONS):
        split, labels, counts = _read_pairs(folder / _INTERACTIONS)
    if interactions is not None:
        if split is not None:
            raise InputError(f"{folder} has its interactions with it: leave interactions out")
        split = _given(folder, interactions, facts, labels)
    saved_part = None if split is None or interactions is not None else facts["part"]
    pairs = None if split is None else split.fit_pairs(facts["fit_on"])
    tensors: dict[str, Any] = {}
    if _FACTORS in facts["files"]:
        tensors, _ = files.read_tensors(folder / _FACTORS)
    with _named(folder):
        scorer = SCORERS[facts["kind"]].restored(tensors, facts["scorer"], pairs)
        if hasattr(scorer, "allow_code"):
            scorer.allow_code = allow_code
        most = counts.max(initial=0)
        if len(counts) != scorer.n_items or most > scorer.n_users:
            raise InputError(
                f"{_INTERACTIONS} must count the pairs of {scorer.n_items:,} items, at most "
                f"{scorer.n_users:,} each, got {len(counts):,} items and at most {most:,}"
            )
        rows = {"user_labels": scorer.n_users, "item_labels": scorer.n_items}
        fitting: dict[str, Any] = {
            name: checked_labels(name[:4], own, rows[name]) for name, own in labels.items()
        }
        return Recommender.of(
            scorer,
            split,
            part=saved_part,
            mask=facts["mask"] if saved_part else None,
            fit_on=facts["fit_on"],
            label=facts["label"],
            item_counts=counts.astype(np.int64),
            training=facts["training"],
            **fitting,
        )


def _check_file(path: Path, stamp: Mapping[str, Any], *, interrupted: bool) -> None:
    if _stamp(path, stamp["bytes"]) == stamp:
        return
    if interrupted:
        raise UnfinishedError(
            f"{path} is incomplete, since the training was interrupted again: finish it with "
            f"'robustcf train --resume {path.parent}'"
        )
    raise InputError(f"{path} was changed (its checksum differs): restore it, or train again")


def _stamp(path: Path, length: int | None = None) -> dict[str, Any] | None:
    """Return length and checksum of a file; None, without reading it, for another length."""
    with os.fdopen(open_plain(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if length is not None and size != length:
            return None
        return {"bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in all errors raised within."""
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        words = f"{path} is damaged ({type(error).__name__}: {error}): restore it"
        raise InputError(words) from error


def _given(
    folder: Path, data: Any, facts: Mapping[str, Any], labels: Mapping[str, Labels]
) -> Split:
    """Return the caller's interactions; a split must be the one that it was made from."""
    if isinstance(data, Split):
        expected = facts["fingerprint"]
        if expected is not None and data.fingerprint != expected:
            raise DataError(
                f"{folder} was made from other data: its {facts.get('dataset')} has the "
                f"fingerprint {expected[:12]}, {data.name} has {data.fingerprint[:12]}"
            )
        return data
    if not isinstance(data, Interactions):
        data = Interactions.from_csr(data, **labels)
    elif data.user_labels is None and data.item_labels is None:
        data = Interactions(data.users, data.items, data.n_users, data.n_items, **labels)
    none = data.take(np.zeros(len(data), dtype=bool))
    return Split("own data", data, none, none, valid_source="none")


def _read_pairs(path: Path) -> tuple[Split | None, dict[str, Labels], npt.NDArray[np.int64]]:
    """Return the split, the labels of users and items, and the number of pairs per item."""
    arrays = files.read_arrays(path)
    meta = parse_json(str(arrays["meta"]))
    schema.check_kind("", meta, _META, "meta")
    labels = {name: own for name, own in arrays.items() if name in ("user_labels", "item_labels")}
    counts = _whole_numbers("item_counts", arrays)
    if meta["name"] is None:
        return None, labels, counts
    parts = {}
    for part in _PARTS:
        degrees, items = (_whole_numbers(f"{part}.{name}", arrays) for name in ("counts", "items"))
        if int(degrees.sum(dtype=np.float64)) != len(items):
            raise InputError(f"{part}.counts must add up to the {len(items):,} pairs of {part}")
        users = np.repeat(np.arange(len(degrees)), degrees)
        parts[part] = Interactions(users, items, len(degrees), len(counts), **labels)
    split = Split(
        meta["name"],
        **parts,
        valid_source=meta["valid_source"],
        notes=tuple(meta["notes"]),
        sources=meta["sources"],
        protocol=None if meta["protocol"] is None else EvaluationProtocol(**meta["protocol"]),
    )
    return split, labels, counts


def _whole_numbers(name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    values = arrays[name]
    if values.ndim != 1 or values.dtype.kind not in "iu" or (values.size and values.min() < 0):
        found = f"{values.dtype} of shape {values.shape}"
        raise InputError(f"{name} must be a list of integers of at least 0, got {found}")
    return values
