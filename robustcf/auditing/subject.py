"""What is audited: a model, a sample of its users where it is large, and its exact top lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from robustcf._randomness import stream
from robustcf.auditing.findings import Found
from robustcf.data.interactions import Interactions, Labels
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport
from robustcf.metrics.topk import TopItems, top_items
from robustcf.recommender import Recommender

if TYPE_CHECKING:
    from robustcf.robustness.measuring import Result

# Beyond this many scores, checks look at a sample of the users; attacks are left out.
MOST_SCORES = 2_000_000_000
SAMPLE = 20_000
CUTOFF, METRIC = 10, "ndcg@10"
#: Attack size, in median row norms.
SIZE = 0.05

Ids = npt.NDArray[np.int64]


class Subject:
    """A model under audit, with the options of the audit; each check runs once.

    Cost: the exact top lists of the users that are looked at, once.
    """

    def __init__(
        self,
        model: Recommender,
        seed: int = 0,
        *,
        against: Factors | None = None,
        attack: bool = True,
        size: float = SIZE,
        progress: bool = False,
    ) -> None:
        self.whole, self.seed, self.against = model, seed, against
        self.attack, self.size, self.progress = attack, size, progress
        #: ``attack`` and ``certificate`` -> their curves, once they were run.
        self.results: dict[str, Result] = {}
        self._found: dict[Callable[[Subject], Found], Found] = {}
        users = np.arange(model.n_users)
        self.large = model.n_users * model.n_items > MOST_SCORES
        self.sampled = self.large and len(users) > SAMPLE
        if self.sampled:
            # Users with held-out pairs first: only these have a quality.
            judged = np.flatnonzero(getattr(model.split, model.part).user_degrees)
            pool = judged if len(judged) >= SAMPLE else users
            users = np.sort(stream(seed, "audit users").choice(pool, SAMPLE, replace=False))
        self.users: Ids = users.astype(np.int64)

    def found(self, check: Callable[[Subject], Found]) -> Found:
        """Return what a check finds, which another may ask for too."""
        if check not in self._found:
            self._found[check] = check(self)
        return self._found[check]

    @cached_property
    def model(self) -> Recommender:
        """The model, or its sample of users with all items."""
        whole = self.whole
        if not self.sampled:
            return whole
        place = np.full(whole.n_users, -1, dtype=np.int64)
        place[self.users] = np.arange(len(self.users))

        def kept(pairs: Interactions) -> Interactions:
            chosen = pairs.take(place[pairs.users] >= 0)
            users = place[chosen.users]
            return Interactions.from_pairs(users, chosen.items, len(self.users), whole.n_items)[0]

        split = whole.split
        train, valid, test = (kept(part) for part in (split.train, split.valid, split.test))
        part = self.rows_of(whole.factors)
        return Recommender(
            part.users,
            part.items,
            replace(split, train=train, valid=valid, test=test, notes=(), sources={}),
            part=whole.part,
            mask=whole.mask,
            fit_on=whole.fit_on,
            fixed=whole.fixed,
            label=whole.label,
            bce=whole.bce,
        )

    @cached_property
    def clean(self) -> MetricReport:
        """The evaluation of the factors as they are."""
        return self.model.evaluate((CUTOFF,))

    @cached_property
    def seen(self) -> Interactions:
        """The pairs that are not recommended again."""
        return self.model.known if self.model.seen is None else self.model.seen

    @cached_property
    def top(self) -> TopItems:
        """The exact top lists, one row per user that is looked at."""
        return self.ranked(self.model.factors)

    def ranked(self, factors: Factors) -> TopItems:
        """Return top lists by other factors for the same users."""
        return top_items(factors, np.arange(factors.n_users), CUTOFF, self.seen)

    def rows_of(self, factors: Factors) -> Factors:
        """Return factors of the users that are looked at and of all items."""
        return Factors(factors.users[self.users], factors.items) if self.sampled else factors

    def few(self, most: int, purpose: str) -> tuple[Ids, str]:
        """Draw at most so many of the users that are looked at; with words if these are not all."""
        rows = np.arange(len(self.users), dtype=np.int64)
        if len(rows) <= most:
            return rows, ""
        rows = np.sort(stream(self.seed, purpose).choice(rows, most, replace=False))
        return rows, f" ({len(rows):,} of {self.whole.n_users:,} users looked at)"

    @property
    def words(self) -> str:
        """Which users were looked at, in words."""
        many = f"{len(self.users):,}"
        return (
            f"a sample of {many} of {self.whole.n_users:,} users"
            if self.sampled
            else f"all {many} users"
        )


def label(labels: Labels | None, row: int) -> str:
    """Return what a row is called."""
    return str(row) if labels is None else str(labels[row])


def overlap(left: TopItems, right: TopItems) -> npt.NDArray[np.float64]:
    """Return the share of each list on the left that is in the list on the right.

    Example:
        >>> overlap(np.array([[1, 2], [3, -1], [-1, -1]]), np.array([[2, 5], [3, 9], [1, 2]]))
        array([0.5, 1. , 1. ])
    """
    real = left >= 0
    found = (left[:, :, None] == right[:, None, :]).any(axis=2) & real
    counts = real.sum(axis=1)
    return np.where(counts > 0, found.sum(axis=1) / np.maximum(counts, 1), 1.0)
