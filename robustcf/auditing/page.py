"""The page of an audit: one HTML file that works offline, without scripts, on paper and phones."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from robustcf import __version__
from robustcf._io.files import write_bytes
from robustcf._io.plots import Line, Panel, plot_panels
from robustcf._io.text import harmless
from robustcf.auditing.audit import Audit
from robustcf.auditing.findings import ORDER
from robustcf.auditing.subject import METRIC

_LONGEST = 1000


def write_page(audits: Audit | Sequence[Audit], path: str | Path) -> Path:
    """Write the page of one or several audits, whole or not at all, and return its path."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place, page(audits).encode())
    return place


def page(audits: Audit | Sequence[Audit]) -> str:
    """Return the page as text, which fetches nothing.

    Every string from data is escaped, with control characters spelt out, and cut after 1,000
    characters.
    """
    several = [audits] if isinstance(audits, Audit) else list(audits)
    return str(
        template("page.html").render(version=__version__, audits=[_shown(one) for one in several])
    )


@cache
def template(name: str) -> Any:
    """Return a template of this package; all text is escaped, and cut after 1,000 characters."""
    from jinja2 import Environment, StrictUndefined  # for pages alone

    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_text
    )
    return environment.from_string(text)


def _text(value: Any) -> Any:
    if not isinstance(value, str) or hasattr(value, "__html__"):  # a picture of our own
        return value
    return harmless(value[:_LONGEST]) + ("..." if len(value) > _LONGEST else "")


def _shown(audit: Audit) -> dict[str, Any]:
    """Return the variables of the template: the JSON object, in sections, with its picture."""
    facts = audit.as_dict()
    subject, sections = facts["subject"], dict[str, list[dict[str, Any]]]()
    by_verdict: dict[str, list[dict[str, Any]]] = {verdict: [] for verdict in ORDER}
    for check in facts["checks"]:
        sections.setdefault(check["group"], []).append(check)
        by_verdict[check["verdict"]].append(check)
    held = f", {len(subject['fixed'])} of them held fixed (biases)" if subject["fixed"] else ""
    counts = {"users": subject["users"], "items": subject["items"], "columns": subject["dim"]}
    counts |= {"interactions": subject["pairs"], "held-out pairs": subject["held_out"]}
    shown = {name: "-" if n is None else f"{n:,}" for name, n in counts.items()}
    shown["columns"] += held
    return {
        **facts,
        "counts": {verdict: len(found) for verdict, found in by_verdict.items()},
        "facts": shown,
        "sections": sections,
        "bad": by_verdict["fail"] + by_verdict["warn"],
        **_picture(facts["curves"]),
    }


def _picture(curves: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the curves as an inline picture, with its alternative text."""
    if not curves:
        return {"picture": "", "alternative": ""}
    lines, words = [], []
    for curve in curves:
        sizes, values = curve["sizes"], np.array(curve[METRIC])
        label = curve["name"] if curve["kind"] == "attack" else curves[0]["name"]
        lines.append(Line(label, sizes, values[None], curve["kind"]))
        words.append(f"{curve['name']}: {values[0]:.4f} to {values[-1]:.4f} at size {sizes[-1]:g}")
    with tempfile.TemporaryDirectory() as folder:
        panel = Panel(lines, curves[0]["axis"], "NDCG@10")
        path = plot_panels([[panel]], Path(folder) / "curve.svg")
        return {
            "picture": _inline(path.read_text(encoding="utf-8")),
            "alternative": "NDCG@10 against the size of the attack; " + "; ".join(words) + ".",
        }


def _inline(svg: str) -> str:
    """Return a picture to stand inside a page: without its prologue, links and fixed size."""
    body = svg[svg.index("<svg") :].strip()
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    head, rest = body.split(">", 1)
    head = re.sub(r'\b(width|height)="[^"]*"\s*', "", head)
    return f"{head}>{rest}"
