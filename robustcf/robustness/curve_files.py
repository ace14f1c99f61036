"""Saved curves as files: what they must hold, and the one way to read them, without torch."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.files import read_arrays
from robustcf._io.reading import parse_json, read_plain
from robustcf._io.schema import (
    FLAG,
    NOT_NEGATIVE,
    NUMBER,
    OBJECT,
    TEXT,
    Kind,
    check_kind,
    choice,
    list_of,
    nullable,
    record,
    shown,
    whole,
)
from robustcf.errors import InputError

FORMATS = ("robustcf curve 1", "robustcf curve 2", "robustcf curve 3")
# A metric and its cutoff; the cutoff becomes a number.
_METRIC = re.compile(r"[a-z_]+@[1-9][0-9]{0,8}")
_NAME = Kind("a name of letters, digits and signs", lambda v: TEXT.fits(v) and 0 < len(v) < 200)
_METRIC_NAME = Kind(
    "a metric with its cutoff, as ndcg@10", lambda v: TEXT.fits(v) and bool(_METRIC.fullmatch(v))
)
#: How numbers were made, see :class:`robustcf.metrics.evaluate.Protocol`.
PROTOCOL = record(
    {
        "dataset": TEXT,
        "part": choice("train", "valid", "test"),
        "masked": list_of(TEXT),
        "n_users": whole(),
        "n_users_left_out": whole(),
        "n_items": whole(),
    },
    {"capped": list_of(whole(1)), "sampled_from": whole(1), "sample_seed": whole()},
)
_CURVE = record(
    {
        "format": choice(*FORMATS),
        "attack": _NAME,
        "objective": nullable(_NAME),
        "budget": choice("row", "frobenius", "spectral"),
        "relative": FLAG,
        "side": choice("both", "users", "items"),
        "epsilons": list_of(NOT_NEGATIVE, 1),
        "metrics": list_of(_METRIC_NAME, 1),
        "protocol": PROTOCOL,
    },
    {
        "kind": choice("joint", "per user", "each user alone", "certified"),
        "unit": choice("relative", "own", "absolute"),
        "knowledge": nullable(choice("labels", "data", "none")),
        "oracle": FLAG,
        "realised": list_of(OBJECT),
    },
)


def is_curve(facts: dict[str, Any]) -> bool:
    """Whether a JSON object says that it is a curve, of whatever version."""
    return isinstance(facts.get("format"), str) and facts["format"].startswith("robustcf curve ")


def read_facts(path: Path) -> dict[str, Any]:
    """What a file holds that may be a curve, checked if it says that it is one.

    Returns:
        The object; an empty one where the file holds something else, which is no curve either.

    Raises:
        InputError: it is no JSON, or a curve with something else in it than there must be.
    """
    content = read_plain(path)
    try:
        facts = parse_json(content)
    except InputError as error:
        raise InputError(f"{path} is no readable JSON file ({error})") from error
    if not isinstance(facts, dict):
        return {}
    if is_curve(facts):
        check_facts(path, facts)
    return facts


def check_facts(path: Path, facts: dict[str, Any]) -> None:
    """Raise unless what a file holds is a whole curve; the message names file and key."""
    if facts["format"] not in FORMATS:
        raise InputError(
            f"{path} is no robustness curve of a known format ({', '.join(FORMATS)}), got "
            f"{shown(facts['format'])}"
        )
    check_kind(path, facts, _CURVE)
    sizes = facts["epsilons"]
    if any(b <= a for a, b in pairwise(sizes)):
        raise InputError(f"{path}: epsilons must be ascending and differ, got {shown(sizes)}")
    for metric in facts["metrics"]:
        check_kind(path, facts, record({metric: list_of(NUMBER, len(sizes), len(sizes))}))
    if facts["format"] == FORMATS[-1]:
        check_kind(path, facts, record({"kind": TEXT, "unit": TEXT, "knowledge": nullable(TEXT)}))


def read_users(path: Path, n_epsilons: int) -> dict[str, npt.NDArray[Any]]:
    """The values of single users of a curve: metric -> epsilons x users, and the ids of the users.

    Args:
        path: of the npz file.
        n_epsilons: sizes that the curve has.

    Raises:
        InputError: it cannot be read, or an array is of another shape or kind.
    """
    arrays = read_arrays(path)
    users = arrays.get("users")
    if users is None or users.ndim != 1 or users.dtype.kind not in "iu":
        got = "nothing" if users is None else f"{users.dtype} of shape {users.shape}"
        raise InputError(f"{path}: users must be a list of integers, got {got}")
    for name, array in arrays.items():
        if name == "users":
            continue
        if array.shape != (n_epsilons, len(users)) or array.dtype.kind != "f":
            raise InputError(
                f"{path}: {shown(name)} must be numbers of shape {(n_epsilons, len(users))}, got "
                f"{array.dtype} of shape {array.shape}"
            )
        if not np.isfinite(array).all():
            raise InputError(f"{path}: {shown(name)} must be finite, got a value that is not")
    return arrays
