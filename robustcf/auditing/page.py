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
from robustcf.auditing.subject import METRIC

_LONGEST = 1000
_VERDICTS = {
    "pass": "no check found anything",
    "warn": "some checks want a look",
    "fail": "some checks failed",
    "skipped": "no check could be run",
}


def write_page(audits: Audit | Sequence[Audit], path: str | Path) -> Path:
    """Write the page of one or several audits, whole or not at all, and return its path."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place, page(audits).encode())
    return place


def page(audits: Audit | Sequence[Audit]) -> str:
    """Return the page as text. Every string from data is escaped; nothing is fetched.

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
    from jinja2 import Environment, StrictUndefined  # for pages alone

    text = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_text
    )
    return environment.from_string(text)


def _text(value: Any) -> Any:
    if not isinstance(value, str) or hasattr(value, "__html__"):  # a picture of our own
        return value
    return harmless(value[:_LONGEST]) + ("..." if len(value) > _LONGEST else "")


def _shown(audit: Audit) -> dict[str, Any]:
    """Return what the template shows of one audit."""
    model, groups = audit.model, dict[str, list[Finding]]()
    by_verdict: dict[str, list[Finding]] = {verdict: [] for verdict in _VERDICTS}
    for finding in audit.findings:
        groups.setdefault(finding.check.group, []).append(finding)
        by_verdict[finding.verdict].append(finding)
    held = f", {len(model.fixed)} of them held fixed (biases)" if model.fixed else ""
    return {
        "label": model.label or "embeddings",
        "source": audit.source,
        "verdict": audit.verdict,
        "words": _VERDICTS[audit.verdict],
        "counts": {verdict: len(found) for verdict, found in by_verdict.items()},
        "caveats": list(audit.caveats),
        "facts": [
            ("users", f"{model.n_users:,}"),
            ("items", f"{model.n_items:,}"),
            ("columns", f"{model.factors.dim:,}{held}"),
            ("interactions", f"{len(model.known):,}"),
            ("held-out pairs", f"{len(model.split.test):,}"),
        ],
        "groups": groups,
        "bad": by_verdict["fail"] + by_verdict["warn"],
        **_picture(audit),
    }


def _picture(audit: Audit) -> dict[str, str]:
    """Return the curves as an inline picture, with a text for those who cannot see it."""
    lines, words = [], []
    for name, result in audit.results.items():
        certified, curve = name == "certificate", result.curve
        kind: Any = "certificate" if certified else "attack"
        lines.append(Line("this model", curve.epsilons, curve[METRIC][None], kind))
        told = "certified lower bound" if certified else "attacked"
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
