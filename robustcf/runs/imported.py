"""Runs of factors that were not trained here: written whole, with their pairs in the folder.

An imported run has the files of a trained one, so that every command opens it. Its pairs lie in
``pairs.npz``, by rows of its factors: there is no file elsewhere that would number users and items
as another library did.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustcf.data.interactions import Interactions
from robustcf.data.split import EvaluationProtocol, Split
from robustcf.errors import DataError
from robustcf.factors import Factors
from robustcf.robustness.target import Target
from robustcf.runs.base import CONFIG, DATA, ENVIRONMENT, HISTORY, METRICS
from robustcf.runs.config import RunConfig
from robustcf.runs.recommender import PER_USER, parquet_bytes
from robustcf.runs.run import FACTORS, FORMAT, PAIRS, RunDir
from robustcf.support import files
from robustcf.support.files import json_bytes
from robustcf.support.runtime import environment
from robustcf.training.config import Chosen, TrainConfig
from robustcf.training.loop import two_to_inf

_PAIRS_FORMAT = "robustcf pairs 1"
_PARTS = ("train", "valid", "test")


def write_imported(
    path: str | Path,
    factors: Factors,
    split: Split,
    *,
    label: str,
    fixed: Sequence[int] = (),
    fit_on: str = "train",
    facts: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> RunDir:
    """Make a run directory of factors from elsewhere; it is there whole or not at all.

    Args:
        path: must not exist yet, or be an empty directory.
        factors: embeddings with the ids of the split.
        split: the pairs they were fit on, and those they are judged by.
        label: what to call it in tables and pictures.
        fixed: columns that no attack, budget or certificate may move: biases.
        fit_on: the parts of the split that they were fit on, ``train`` or ``train and valid``.
        facts: what else is worth keeping: where the factors come from, notes; ready for JSON.
        progress: whether the evaluation shows a bar.

    Raises:
        InputError: the factors do not fit the split, or there is something at the path.

    Example:
        >>> import tempfile, torch
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     factors = Factors(parity[:20], parity)
        ...     run = write_imported(Path(folder) / "r", factors, checkerboard(), label="parity")
        ...     run.complete, run.label, run.split().n_items
        (True, 'parity', 30)
    """
    # What does not fit is said before anything is written.
    target = Target(factors.users, factors.items, split, fixed=fixed, fit_on=fit_on)
    report = target.evaluate(progress=progress)
    known = dict(facts or {})
    told = {key: value for key, value in known.items() if key != "notes"}
    settings = {"label": label, "dim": factors.dim, "fixed": list(target.fixed), **told}
    base = TrainConfig.of(model="bpr-mf", objective="softmax", reg="none", epochs=0)
    train = dataclasses.replace(base, model=Chosen("imported", tuple(settings.items())))
    config = RunConfig(split.name, {}, train)
    stored = {
        "format": FORMAT,
        "dataset": split.name,
        "fingerprint": split.fingerprint,
        "learnt_from": fit_on,
        "fixed": json.dumps(list(target.fixed)),
    }
    tensors = {
        name: part.detach().cpu().clone() for name, part in zip(_NAMES, factors, strict=True)
    }
    metrics = {
        "run": str(path),
        "dataset": split.name,
        "label": label,
        "model": "imported",
        "reg": "none",
        "test": report.as_dict() if target.part == "test" else None,
        "valid": None,
        "epochs": 0,
        "train_seconds": 0.0,
        "two_to_inf": two_to_inf(factors),
        "learnt_from": fit_on,
        "interrupted": False,
        "preset": None,
        "imported": known,
    }
    if target.part == "train":
        metrics["train"] = report.as_dict()
    files.create_folder(
        Path(path),
        {
            CONFIG: config.to_json().encode(),
            ENVIRONMENT: json_bytes({**environment(), "seed": train.seed}),
            DATA: json_bytes(RunDir.data_facts(split)),
            FACTORS: files.tensor_bytes(tensors, stored),
            PAIRS: pairs_bytes(split),
            HISTORY: b"",
            PER_USER: parquet_bytes(report, split),
            METRICS: json_bytes(metrics),
        },
    )
    return RunDir(path)


_NAMES = ("users", "items")


def pairs_bytes(split: Split) -> bytes:
    """A split as one compressed ``.npz`` without pickle."""
    meta = {
        "format": _PAIRS_FORMAT,
        "name": split.name,
        "n_users": split.n_users,
        "n_items": split.n_items,
        "valid_source": split.valid_source,
        "protocol": dataclasses.asdict(split.protocol) if split.protocol else None,
        "notes": list(split.notes),
        "sources": dict(split.sources),
    }
    arrays: dict[str, Any] = {"meta": np.array(json.dumps(meta))}
    for name in ("user_labels", "item_labels"):
        if getattr(split, name) is not None:
            arrays[name] = getattr(split, name)
    for part in _PARTS:
        pairs: Interactions = getattr(split, part)
        arrays |= {f"{part}.users": pairs.users, f"{part}.items": pairs.items}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def read_pairs(path: Path) -> Split:
    """The split that :func:`pairs_bytes` wrote.

    Raises:
        DataError: the file is damaged.
    """
    arrays = files.read_arrays(path)
    try:
        meta = json.loads(str(arrays["meta"]))
        if meta["format"] != _PAIRS_FORMAT:
            raise ValueError(f"format {meta['format']!r}")
        labels = {name: arrays.get(name) for name in ("user_labels", "item_labels")}
        train, valid, test = (
            Interactions(
                arrays[f"{part}.users"],
                arrays[f"{part}.items"],
                meta["n_users"],
                meta["n_items"],
                **labels,
            )
            for part in _PARTS
        )
        return Split(
            meta["name"],
            train,
            valid,
            test,
            valid_source=meta["valid_source"],
            notes=tuple(meta["notes"]),
            sources=meta["sources"],
            # Absent from runs of the first version.
            protocol=EvaluationProtocol(**meta["protocol"]) if meta.get("protocol") else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no readable pairs of an imported run ({error})") from error
