"""An earlier audit: read from its JSON, and compared with a new one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robustcf._io import schema
from robustcf._io.reading import parse_json, read_plain
from robustcf.errors import InputError

_MOST_BYTES = 1 << 24
_CHECK = schema.record(
    {
        "check": schema.TEXT,
        "number": schema.nullable(schema.NUMBER),
        "error": schema.NOT_NEGATIVE,
    }
)
_AUDIT = schema.record({"checks": schema.list_of(_CHECK), "subject": schema.OBJECT})
# Of two standard errors: 95 %. Numbers without an error, such as counts, may differ by rounding.
_DEVIATIONS, _ROUNDING = 1.96, 1e-6


def read_audit(path: str | Path, expected: int) -> dict[str, Any]:
    """Read the JSON object of an earlier audit of the schema ``expected``."""
    place = Path(path)
    try:
        facts = parse_json(read_plain(place, _MOST_BYTES, follow=True))
    except InputError as error:
        raise InputError(f"{place} cannot be read as JSON ({error})") from error
    known = facts.get("schema") if isinstance(facts, dict) else None
    if known != expected:
        advice = "give the output of robustcf audit --json of this version"
        got = schema.shown(known)
        raise InputError(f"{place}: expected an audit of schema {expected}, got {got}: {advice}")
    schema.check_kind(place, facts, _AUDIT)
    return dict(facts)


def changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the change of each check that both audits ran.

    ``worse`` and ``better`` are beyond the noise: 1.96 standard errors of the difference, over
    users. Example: the documentation of audits.
    """
    known = {check["check"]: check for check in before["checks"]}
    rows = []
    for check in now["checks"]:
        old = known.get(check["check"], {})
        if check["number"] is None or old.get("number") is None:
            continue
        change = check["number"] - old["number"]
        noise = _DEVIATIONS * math.hypot(check["error"], old["error"])
        outside = abs(change) > max(noise, _ROUNDING * abs(old["number"]), 1e-12)
        improved = (change > 0) == (check["threshold"]["better"] == "higher")
        words = ("better" if improved else "worse") if outside else "unchanged"
        margin = f", noise {noise:.2g}" if noise else ""
        told = f"{check['check']} is {words}: {old['number']:.4g} before, {check['number']:.4g} now"
        rows.append(
            {
                "check": check["check"],
                "before": old["number"],
                "now": check["number"],
                "change": change,
                "noise": noise,
                "worse": outside and not improved,
                "better": outside and improved,
                "sentence": f"{told} (change {change:+.2g}{margin})",
            }
        )
    return rows
