"""Audit: which properties of a model's embeddings are safe, and which are not.

:func:`audit` runs the checks that its inputs allow; :func:`write_page` puts what they found on one
page. ``robustcf audit`` does both. :func:`submit` measures a recommender for a leaderboard.
"""

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names
from robustcf.auditing.audit import SCHEMA, Audit, audit
from robustcf.auditing.checks import CHECKS, thresholds_from
from robustcf.auditing.findings import Check, Finding, Limit
from robustcf.auditing.page import page, write_page

if TYPE_CHECKING:
    from robustcf.auditing.battery import submit
    from robustcf.auditing.entries import Entry, read_entry, verify
    from robustcf.auditing.leaderboard import Board, markdown_table, read_boards, write_site

__all__ = [
    "CHECKS",
    "SCHEMA",
    "Audit",
    "Board",
    "Check",
    "Entry",
    "Finding",
    "Limit",
    "audit",
    "markdown_table",
    "page",
    "read_boards",
    "read_entry",
    "submit",
    "thresholds_from",
    "verify",
    "write_page",
    "write_site",
]

# On demand: an audit does not need leaderboards.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Board": ".leaderboard",
        "Entry": ".entries",
        "markdown_table": ".leaderboard",
        "read_boards": ".leaderboard",
        "read_entry": ".entries",
        "submit": ".battery",
        "verify": ".entries",
        "write_site": ".leaderboard",
    },
)
