"""Reference models: where a number stands among those of models that were audited before.

``reference.json`` holds the numbers; ``scripts/audit_reference.py`` makes it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from robustcf.auditing.findings import Finding

_FEWEST = 4


@cache
def known() -> dict[str, Any]:
    """Return the reference models: ``models``, a list of ``family``, ``data`` and ``numbers``."""
    text = resources.files(__package__).joinpath("reference.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def words(finding: Finding, label: str) -> str:
    """Say how many reference models a number is better than; empty where there are too few."""
    number, name = finding.number, finding.check.name
    if number is None:
        return ""
    models = [model for model in known()["models"] if name in model["numbers"]]
    family = next((m["family"] for m in models if m["family"] in label.lower()), None)
    told = []
    for kind, some in (
        ("reference", models),
        (f"{family} reference", [model for model in models if model["family"] == family]),
    ):
        if len(some) < _FEWEST:
            continue
        others = [model["numbers"][name] for model in some]
        higher = finding.check.limit.higher_is_better
        beaten = sum(other < number if higher else other > number for other in others)
        told.append(f"{beaten / len(others):.0%} of {len(others)} {kind} models")
    return f"better than {' and '.join(told)}" if told else ""
