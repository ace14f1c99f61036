"""Audit: which properties of a model's embeddings are safe, and which are not.

:func:`audit` runs the checks that its inputs allow; :func:`write_page` puts what they found on one
page. ``robustcf audit`` does both.
"""

from robustcf.auditing.audit import SCHEMA, Audit, audit
from robustcf.auditing.checks import CHECKS, thresholds_from
from robustcf.auditing.findings import Check, Finding, Limit
from robustcf.auditing.page import page, write_page

__all__ = [
    "CHECKS",
    "SCHEMA",
    "Audit",
    "Check",
    "Finding",
    "Limit",
    "audit",
    "page",
    "thresholds_from",
    "write_page",
]
