"""The page of an audit: one HTML file that works offline, without scripts, on paper and phones."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from robustcf import __version__
from robustcf._io.files import write_bytes
from robustcf._io.plots import Line, Panel, plot_panels
from robustcf._io.text import harmless
from robustcf.auditing.audit import Audit
from robustcf.auditing.findings import Finding

METRIC = "ndcg@10"
_LONGEST = 1000
VERDICTS = {
    "pass": "no check found anything",
    "warn": "some checks want a look",
    "fail": "some checks failed",
    "skipped": "no check could be run",
}


def write_page(audits: Audit | Sequence[Audit], path: str | Path) -> Path:
    """Write the page of one or several audits, whole or not at all.

    Returns:
        The path.
    """
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place, page(audits).encode())
    return place


def page(audits: Audit | Sequence[Audit]) -> str:
    """The page as text. Every string from data is escaped; nothing is fetched from anywhere.

    Control and bidirectional characters are spelt out, and text ends after 1,000 characters.

    Example:
        >>> import torch
        >>> from robustcf.auditing.audit import audit
        >>> from robustcf.data import checkerboard
        >>> from robustcf.recommender import Recommender
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> model = Recommender(parity[:20], parity, checkerboard(), label="<script>")
        >>> "<script>" in page(audit(model, attack=False))
        False
    """
    several = [audits] if isinstance(audits, Audit) else list(audits)
    return str(_template().render(version=__version__, audits=[_shown(one) for one in several]))


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    text = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_text
    )
    return environment.from_string(text)


def _text(value: Any) -> Any:
    """Return text with control and bidirectional characters spelt out, and at a bearable length."""
    if not isinstance(value, str) or hasattr(value, "__html__"):  # a picture of our own
        return value
    return harmless(value[:_LONGEST]) + ("..." if len(value) > _LONGEST else "")


def _shown(audit: Audit) -> dict[str, Any]:
    """What the template shows of one audit."""
    run = [finding for finding in audit.findings if finding.verdict != "skipped"]
    counts = {v: sum(f.verdict == v for f in audit.findings) for v in VERDICTS}
    groups: dict[str, list[Finding]] = {}
    for finding in audit.findings:
        groups.setdefault(finding.check.group, []).append(finding)
    return {
        "label": audit.model.label or "embeddings",
        "source": audit.source,
        "verdict": audit.verdict,
        "words": VERDICTS[audit.verdict],
        "counts": counts,
        "caveats": list(audit.caveats),
        "facts": _facts(audit),
        "groups": groups,
        "bad": [f for f in run if f.verdict == "fail"] + [f for f in run if f.verdict == "warn"],
        **_picture(audit),
    }


def _facts(audit: Audit) -> list[tuple[str, str]]:
    factors, model = audit.model.factors, audit.model
    held = f", {len(model.fixed)} of them held fixed (biases)" if model.fixed else ""
    return [
        ("users", f"{factors.n_users:,}"),
        ("items", f"{factors.n_items:,}"),
        ("columns", f"{factors.dim:,}{held}"),
        ("interactions", f"{len(model.known):,}"),
        ("held-out pairs", f"{len(model.split.test):,}"),
    ]


def _picture(audit: Audit) -> dict[str, Any]:
    """The curves as an inline picture, with a text for those who cannot see it."""
    lines, words = [], []
    for name, result in audit.results.items():
        kind: Any = "certificate" if name == "certificate" else "attack"
        curve = result.curve
        lines.append(Line("this model", curve.epsilons, curve[METRIC][None], kind))
        told = "certified lower bound" if name == "certificate" else "attacked"
        ends = f"{curve[METRIC][0]:.4f} to {curve[METRIC][-1]:.4f}"
        words.append(f"{told}: {ends} at size {curve.epsilons[-1]:g}")
        if result.control is not None:
            lines.append(Line("this model", curve.epsilons, result.control[METRIC][None], "random"))
    if not lines:
        return {"picture": "", "alternative": ""}
    threat = next(iter(audit.results.values())).threat
    with tempfile.TemporaryDirectory() as folder:
        path = plot_panels([[Panel(lines, threat.axis, "NDCG@10")]], Path(folder) / "curve.svg")
        return {
            "picture": inline(path.read_text(encoding="utf-8")),
            "alternative": "NDCG@10 against the size of the attack; " + "; ".join(words) + ".",
        }


def inline(svg: str) -> str:
    """A picture to stand inside a page: without its prologue, links and fixed size.

    Example:
        >>> inline('<?xml version="1.0"?><!DOCTYPE svg><svg width="6in" height="4in"></svg>')
        '<svg ></svg>'
    """
    body = svg[svg.index("<svg") :].strip()
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    head, rest = body.split(">", 1)
    head = re.sub(r'\b(width|height)="[^"]*"\s*', "", head)
    return f"{head}>{rest}"
