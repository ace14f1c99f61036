"""``recommender.json``: what a saved recommender is, read without loading torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from robustcf._io.reading import read_json
from robustcf._io.schema import (
    FLAG,
    NAME,
    OBJECT,
    TEXT,
    check_kind,
    choice,
    list_of,
    nullable,
    record,
    shown,
    whole,
)
from robustcf._io.text import counted
from robustcf.data.split import FIT_ON
from robustcf.errors import InputError, UnfinishedError

FORMAT = "robustcf recommender 1"
RECOMMENDER, FACTORS, INTERACTIONS = (
    "recommender.json",
    "factors.safetensors",
    "interactions.npz",
)
_PARTS = ("train", "valid", "test")
_MAIN = record(
    {
        "kind": NAME,
        "label": TEXT,
        "fit_on": choice(*FIT_ON),
        "part": nullable(choice(*_PARTS)),
        "mask": list_of(choice(*_PARTS)),
        "scorer": OBJECT,
        "fingerprint": nullable(TEXT),
        "interrupted": FLAG,
        "training": nullable(OBJECT),
        "files": record({}, others=record({"bytes": whole(), "sha256": TEXT})),
    }
)


def read_recommender(folder: Path, *, allow_unfinished: bool = False) -> dict[str, Any]:
    """Read and check ``recommender.json`` alone.

    Raises:
        UnfinishedError: the training has not finished, and this was not allowed.
        InputError: it is missing, of another version, or damaged.
    """
    path = folder / RECOMMENDER
    if not os.path.lexists(path):
        raise _missing(folder)
    facts = read_json(path)
    found = facts.get("format")
    if found != FORMAT:
        raise InputError(
            f"{path}: expected the format {FORMAT!r}, got {shown(found)}: it was written by "
            "another version of robustcf; use that one, or train again"
        )
    check_kind(path, facts, _MAIN)
    unknown = sorted(set(facts["files"]) - {FACTORS, INTERACTIONS})
    if unknown or INTERACTIONS not in facts["files"]:
        raise InputError(f"{path}: files must be {INTERACTIONS} and, perhaps, {FACTORS}")
    if facts["interrupted"] and not allow_unfinished:
        epochs = (facts["training"] or {}).get("epochs")
        after = f" (interrupted after {counted(epochs, 'epoch')})" if type(epochs) is int else ""
        raise UnfinishedError(
            f"{folder} is not finished{after}: finish it with 'robustcf train --resume {folder}', "
            "or pass allow_unfinished=True (--allow-unfinished)"
        )
    return facts


def _missing(folder: Path) -> InputError:
    if (folder / "metrics.json").exists():
        return InputError(
            f"{folder} was written by an older version of robustcf (no {RECOMMENDER} in it): train "
            "or import it again"
        )
    if (folder / "config.json").exists():
        return UnfinishedError(
            f"{folder} has no result yet: finish it with 'robustcf train --resume {folder}'"
        )
    return InputError(
        f"{folder} is not a saved recommender (no {RECOMMENDER} in it): give the folder that "
        "Recommender.save or 'robustcf train' wrote"
    )
