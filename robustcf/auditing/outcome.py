"""What the functions behind checks return, and how they say that they cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Found:
    """A number and what goes with it; see :class:`robustcf.auditing.findings.Finding`."""

    number: float
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


class Skip(Exception):
    """A check that these inputs do not allow; the message says why. Never leaves an audit."""
