"""An audit for others: a model card in Markdown, and the run of a tracking server."""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf import __version__
from robustcf._checks import check_choice
from robustcf._io.text import harmless, markdown
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.auditing.audit import Audit

TRACKERS = ("mlflow", "wandb")
# Marks of Markdown that data could contain.
_MARKS = re.compile(r"([\\`*_{}\[\]|#])")


def card(found: Mapping[str, Any]) -> str:
    """Return a model card in Markdown, of the JSON object of an audit."""
    subject = found["subject"]
    facts = [(name.replace("_", " "), _text(value)) for name, value in subject.items()]
    sections = dict[str, list[Mapping[str, Any]]]()
    for check in found["checks"]:
        sections.setdefault(check["group"], []).append(check)
    lines = [
        "---",
        "library_name: robustcf",
        "tags: [recommender-systems, collaborative-filtering]",
        "---",
        "",
        f"# {_text(found['label'])}",
        "",
        f"Audited by robustcf {__version__}, served by {_text(' and '.join(found['serve']))}: "
        f"**{found['verdict']}**, {found['words']}. {_text(found['source'])}",
        "",
        "## Data",
        "",
        markdown(("", ""), facts),
    ]
    attacked = next((c for c in found["checks"] if c["check"] == "attack" and c["rows"]), None)
    lines += ["", "## Threat model", ""]
    if attacked is None:
        lines.append("No attack was run.")
    else:
        details = attacked["details"]
        lines.append(
            f"An attacker changes stored user and item vectors once, for all users: every row by "
            f"at most {details['size']:g} of its unit ({details['unit']}). Certificates hold for "
            "each user alone, against an attacker who knows everything."
        )
    for section, checks in sections.items():
        rows = [
            (check["verdict"], check["title"], _number(check), _text(check["sentence"]))
            for check in checks
        ]
        lines += ["", f"## {section}", "", markdown(("verdict", "check", "number", ""), rows)]
        for check in checks:
            if check["rows"] and section in ("Who loses", "Attacks on the embeddings"):
                table = [[_text(cell) for cell in row] for row in check["rows"]]
                lines += ["", f"{check['title']}:", "", markdown(check["header"], table)]
    serving = found["serving"]
    if serving["rows"]:
        lines += ["", "How it could be served:", "", markdown(serving["header"], serving["rows"])]
    limits = [*found["caveats"], "Offline metrics on held-out pairs are not online quality."]
    limits.append(
        "Attacks are lower bounds of the harm; only the certificate bounds it from above."
    )
    return "\n".join([*lines, "", "## Limits", "", *(f"- {_text(each)}" for each in limits), ""])


def card_of(model: Any) -> str:
    """Audit a recommender and return its card."""
    from robustcf.auditing.audit import audit  # which imports this module

    return audit(model).card()


def log(found: Audit, to: str) -> str:
    """Log numbers and page into the active run of a tracker, or a new one; return its id.

    Each check is the metric ``audit.NAME``; the page is the file ``audit.html``.
    """
    check_choice("to", to, TRACKERS)
    try:
        client: Any = importlib.import_module(to)
    except ImportError as error:
        raise InputError(f"{to} is not installed: pip install 'robustcf[{to}]'") from error
    numbers = {
        f"audit.{re.sub(r'[^A-Za-z0-9_./ -]', '-', name)}": number
        for name, number in found.numbers.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        page = found.save(Path(folder) / "audit.html")
        if to == "wandb":
            run = client.run or client.init()
            run.log({**numbers, "audit.verdict": found.verdict})
            run.log({"audit.html": client.Html(page.read_text(encoding="utf-8"))})
            return str(run.id)
        run = client.active_run()
        own = run is None
        run = run or client.start_run()
        try:
            client.log_metrics(numbers)
            client.set_tag("audit.verdict", found.verdict)
            client.log_artifact(str(page))
        finally:
            if own:
                client.end_run()
        return str(run.info.run_id)


def _number(check: Mapping[str, Any]) -> str:
    return "-" if check["number"] is None else f"{check['number']:.4g}"


def _text(value: Any) -> str:
    """Return a value on one line, with marks that Markdown reads escaped."""
    return _MARKS.sub(r"\\\1", escape(" ".join(harmless(str(value)).split())[:1000], quote=False))
