"""What a check is and what it finds: a number, its verdict, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from robustcf.auditing.subject import Subject

Verdict = Literal["pass", "warn", "fail", "skipped"]
# The worst first: the verdict of an audit is that of its worst finding.
ORDER: tuple[Verdict, ...] = ("fail", "warn", "pass", "skipped")


@dataclass(frozen=True)
class Limit:
    """Thresholds of a number; None for no threshold.

    Example:
        >>> Limit(0.9, 0.5).verdict(0.7), Limit(10, None, higher_is_better=False).verdict(99)
        ('warn', 'warn')
        >>> Limit(0.9, 0.5).words
        'warn below 0.9, fail below 0.5'
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
        return ", ".join(f"{name} {side} {at:g}" for name, at in named if at is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        better = "higher" if self.higher_is_better else "lower"
        return {"warn": self.warn, "fail": self.fail, "better": better}


@dataclass(frozen=True)
class Found:
    """What the function of a check returns: a number, and what goes with it."""

    number: float
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


class Skip(Exception):
    """A check that these inputs do not allow; the message says why. Never leaves an audit."""


@dataclass(frozen=True)
class Check:
    """One row of the table of checks.

    Args:
        name: as options and thresholds call it.
        title: as the page calls it.
        metric: the name of its number.
        limit: its thresholds.
        group: the section of the page.
        run: what measures it; raises :class:`Skip` where the inputs do not allow it.
        means: one sentence on what the number is.
        advice: one sentence on what to do when it is bad.
    """

    name: str
    title: str
    metric: str
    limit: Limit
    group: str
    run: Callable[[Subject], Found]
    means: str
    advice: str

    def finding(self, subject: Subject) -> Finding:
        """Run the check."""
        try:
            found = subject.found(self.run)
        except Skip as reason:
            return Finding(self, "skipped", None, f"Not run: {reason}.")
        return Finding(self, self.limit.verdict(found.number), **vars(found))


@dataclass(frozen=True)
class Finding:
    """What a check found, or why it was skipped (``number`` is None); with a small table."""

    check: Check
    verdict: Verdict
    number: float | None
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()

    @property
    def advice(self) -> str:
        """What to do; empty after a pass."""
        return self.check.advice if self.verdict in ("warn", "fail") else ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "check": self.check.name,
            "title": self.check.title,
            "verdict": self.verdict,
            "metric": self.check.metric,
            "number": self.number,
            "threshold": self.check.limit.as_dict(),
            "sentence": self.sentence,
            "advice": self.advice,
            "details": dict(self.details),
        }
