"""Checks and their findings: a number, its verdict, and advice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from robustcf.auditing.subject import Subject

#: ``info`` is a number without a verdict.
Verdict = Literal["pass", "warn", "fail", "info", "skipped"]
# The worst first.
ORDER: tuple[Verdict, ...] = ("fail", "warn", "pass", "info", "skipped")


@dataclass(frozen=True)
class Limit:
    """Thresholds of a number; None for no threshold.

    Example:
        >>> Limit(0.9, 0.5).verdict(0.7), Limit(0.9, 0.5).words
        ('warn', 'warn below 0.9, fail below 0.5')
    """

    warn: float | None
    fail: float | None
    higher_is_better: bool = True

    def verdict(self, number: float) -> Verdict:
        """Return ``pass``, ``warn`` or ``fail``; NaN fails, a threshold itself is good enough."""
        sign = 1 if self.higher_is_better else -1
        if math.isnan(number) or (self.fail is not None and sign * number < sign * self.fail):
            return "fail"
        return "warn" if self.warn is not None and sign * number < sign * self.warn else "pass"

    @property
    def words(self) -> str:
        """The thresholds, for a table."""
        side = "below" if self.higher_is_better else "above"
        named = (("warn", self.warn), ("fail", self.fail))
        told = ", ".join(f"{name} {side} {at:g}" for name, at in named if at is not None)
        return told or "none"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        better = "higher" if self.higher_is_better else "lower"
        return {"warn": self.warn, "fail": self.fail, "better": better}


@dataclass(frozen=True)
class Found:
    """The outcome of the function of a check, with a small table.

    ``error`` is the standard error of the number over users; 0 where it is not a mean.
    """

    number: float
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    error: float = 0.0


class Skip(Exception):
    """Raised, with the reason, by a check that the inputs do not allow."""


@dataclass(frozen=True)
class Check:
    """One row of the table of checks."""

    name: str  # in options and thresholds
    title: str  # on the page
    metric: str  # the name of its number
    limit: Limit
    group: str  # section of the page
    run: Callable[[Subject], Found]  # or raises Skip
    means: str  # definition of the number
    advice: str  # action to take when it is bad

    def finding(self, subject: Subject, *, judged: bool = True) -> Finding:
        """Run the check; ``judged`` is whether its number has a verdict."""
        try:
            found = subject.found(self.run)
        except Skip as reason:
            return Finding(self, "skipped", None, f"Not run: {reason}.")
        judged = judged and (self.limit.warn is not None or self.limit.fail is not None)
        verdict = self.limit.verdict(found.number) if judged else "info"
        return Finding(self, verdict, **vars(found))


@dataclass(frozen=True)
class Finding:
    """The finding of a check, or why it was skipped (``number`` is None)."""

    check: Check
    verdict: Verdict
    number: float | None
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    error: float = 0.0

    @property
    def advice(self) -> str:
        """The action to take; empty after a pass."""
        return self.check.advice if self.verdict in ("warn", "fail") else ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "check": self.check.name,
            "title": self.check.title,
            "group": self.check.group,
            "verdict": self.verdict,
            "metric": self.check.metric,
            "number": self.number,
            "error": self.error,
            "threshold": {**self.check.limit.as_dict(), "words": self.check.limit.words},
            "means": self.check.means,
            "sentence": self.sentence,
            "advice": self.advice,
            "details": dict(self.details),
            "header": list(self.header),
            "rows": [list(row) for row in self.rows],
        }
