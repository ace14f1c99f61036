"""What a check finds: a number, how it stands against its thresholds, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "warn", "fail", "skipped"]
# From the worst on: the verdict of a whole audit is that of its worst finding.
ORDER: tuple[Verdict, ...] = ("fail", "warn", "pass", "skipped")


@dataclass(frozen=True)
class Limit:
    """Where a number stops being good.

    Args:
        warn: beyond this the verdict is ``warn``; None for never.
        fail: beyond this it is ``fail``; None for never.
        higher_is_better: whether beyond means below.

    Example:
        >>> Limit(0.9, 0.5).verdict(0.7), Limit(10, None, higher_is_better=False).verdict(99)
        ('warn', 'warn')
    """

    warn: float | None
    fail: float | None
    higher_is_better: bool = True

    def verdict(self, number: float) -> Verdict:
        """``pass``, ``warn`` or ``fail``; what is no number fails."""
        if math.isnan(number):
            return "fail"
        for name, bound in (("fail", self.fail), ("warn", self.warn)):
            if bound is not None and (number < bound) == self.higher_is_better and number != bound:
                return "fail" if name == "fail" else "warn"
        return "pass"

    @property
    def words(self) -> str:
        """The thresholds, for a table.

        Example:
            >>> Limit(0.9, 0.5).words
            'warn below 0.9, fail below 0.5'
        """
        side = "below" if self.higher_is_better else "above"
        named = (("warn", self.warn), ("fail", self.fail))
        return ", ".join(f"{name} {side} {at:g}" for name, at in named if at is not None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "warn": self.warn,
            "fail": self.fail,
            "better": "higher" if self.higher_is_better else "lower",
        }


@dataclass(frozen=True)
class Check:
    """What is checked, before it is.

    Args:
        name: as options and thresholds call it.
        title: as the page calls it.
        metric: the name of its number.
        limit: its thresholds.
        group: the part of the page it stands in.
        means: one sentence on what the number is.
        advice: one sentence on what to do when it is bad.
    """

    name: str
    title: str
    metric: str
    limit: Limit
    group: str
    means: str
    advice: str


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Args:
        check: the check.
        verdict: ``pass``, ``warn``, ``fail`` or ``skipped``.
        number: what was measured; None where it was skipped.
        sentence: what was found, or why it was skipped, in one sentence.
        details: other numbers, by name.
        header: of a small table, or nothing.
        rows: of that table.
    """

    check: Check
    verdict: Verdict
    number: float | None
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()

    @property
    def advice(self) -> str:
        """What to do, where there is something to do."""
        return self.check.advice if self.verdict in ("warn", "fail") else ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
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


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a whole: that of its worst part.

    Example:
        >>> worst(["pass", "warn", "skipped"]), worst([])
        ('warn', 'skipped')
    """
    return next((verdict for verdict in ORDER if verdict in verdicts), "skipped")
