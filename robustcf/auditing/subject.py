"""The subject of an audit: a model, a sample of its users where it is large, exact top lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._randomness import stream
from robustcf.auditing.findings import Found, Skip
from robustcf.data.interactions import Interactions, Labels
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport
from robustcf.metrics.groups import Groups
from robustcf.metrics.topk import TopItems, top_items
from robustcf.recommender import FactorScorer, FoldedScorer, Recommender

if TYPE_CHECKING:
    from robustcf.robustness.measuring import Result

# Beyond this many scores, checks sample users and attacks are left out.
MOST_SCORES = 2_000_000_000
SAMPLE = 20_000
CUTOFF, METRIC = 10, "ndcg@10"
#: Attack size, in lengths of each row.
SIZE = 0.05

Ids = npt.NDArray[np.int64]


@dataclass(eq=False)
class Subject:
    """A model under audit, with the options of :func:`robustcf.audit`; each check runs once."""

    whole: Recommender
    seed: int = 0
    against: Factors | None = None
    attack: bool = True
    size: float = SIZE
    #: Partitions of the users and items of ``whole``.
    groups: list[Groups] = field(default_factory=list)
    #: The ways of serving that the verdict is about.
    serve: tuple[str, ...] = ()
    #: ``attack`` and ``certificate`` -> their curves, once they were run.
    results: dict[str, Result] = field(default_factory=dict)
    #: Curves for the picture, ready for JSON.
    curves: list[dict[str, object]] = field(default_factory=list)
    #: Way of serving -> rows of :attr:`users` that were looked at, and their lists.
    served: dict[str, tuple[Ids, TopItems]] = field(default_factory=dict)
    _found: dict[Callable[[Subject], Found], Found] = field(default_factory=dict)

    @property
    def large(self) -> bool:
        """Whether there are too many scores to rank all users."""
        return self.whole.n_users * self.whole.n_items > MOST_SCORES

    @property
    def sampled(self) -> bool:
        """Whether :attr:`users` are a sample."""
        return self.large and self.whole.n_users > SAMPLE

    @cached_property
    def users(self) -> Ids:
        """The users that are ranked; of a sample, users with held-out pairs if they suffice."""
        users = np.arange(self.whole.n_users)
        if self.sampled and self.whole.has_interactions:
            judged = np.flatnonzero(getattr(self.whole.split, self.whole.part).user_degrees)
            users = judged if len(judged) >= SAMPLE else users
        if self.sampled:
            users = np.sort(stream(self.seed, "audit users").choice(users, SAMPLE, replace=False))
        return users.astype(np.int64)

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
        part = self.rows_of(whole.factors)
        if not whole.has_interactions:
            return Recommender.of(FactorScorer(part, whole.fixed), None, label=whole.label)
        split = whole.split
        place = np.full(whole.n_users, -1, dtype=np.int64)
        place[self.users] = np.arange(len(self.users))

        def kept(pairs: Interactions) -> Interactions:
            chosen = pairs.take(place[pairs.users] >= 0)
            users = place[chosen.users]
            return Interactions.from_pairs(users, chosen.items, len(self.users), whole.n_items)[0]

        train, valid, test = map(kept, (split.train, split.valid, split.test))
        few = replace(split, train=train, valid=valid, test=test, notes=(), sources={})
        how: dict[str, Any] = {name: getattr(whole, name) for name in ("part", "mask", "fit_on")}
        how["label"] = whole.label
        if whole.histories is not None:
            pairs, damping = few.fit_pairs(whole.fit_on), whole.histories.damping
            return Recommender.of(
                FoldedScorer(whole.arrays.users, whole.arrays.items, pairs, damping), few, **how
            )
        return Recommender(part.users, part.items, few, fixed=whole.fixed, bce=whole.bce, **how)

    @cached_property
    def clean(self) -> MetricReport:
        """The evaluation without perturbation."""
        return self.model.evaluate((CUTOFF,))

    @property
    def known(self) -> Interactions:
        """The training pairs of the whole model; a check without them is skipped."""
        if not self.whole.has_interactions:
            raise Skip("there are no interactions: give the training pairs with --interactions")
        return self.whole.known

    @cached_property
    def seen(self) -> Interactions | None:
        """The pairs that are not recommended again."""
        if not self.whole.has_interactions:
            return None
        return self.model.known if self.model.seen is None else self.model.seen

    @cached_property
    def top(self) -> TopItems:
        """The exact top lists, one row per user."""
        return self.ranked(self.model.factors)

    @cached_property
    def attacked(self) -> TopItems:
        """The top lists under the headline attack, once it was run."""
        return self.ranked(self.results["attack"].curve.attacked[-1])

    @cache  # noqa: B019 - an audit is short
    def raw(self, most: int) -> TopItems:
        """Return exact top lists of at most so many users, known items included."""
        return top_items(self.model.factors, self.few(most, "audit queries")[0], CUTOFF, None)

    def ranked(self, factors: Factors) -> TopItems:
        """Return top lists by other factors for the same users."""
        return top_items(factors, np.arange(factors.n_users), CUTOFF, self.seen)

    def rows_of(self, factors: Factors) -> Factors:
        """Return the factors of the ranked users and of all items."""
        return Factors(factors.users[self.users], factors.items) if self.sampled else factors

    def few(self, most: int, purpose: str) -> tuple[Ids, str]:
        """Draw at most so many of the users; with words if these are not all."""
        rows = np.arange(len(self.users), dtype=np.int64)
        if len(rows) <= most:
            return rows, ""
        rows = np.sort(stream(self.seed, purpose).choice(rows, most, replace=False))
        return rows, f" ({len(rows):,} of {self.whole.n_users:,} users looked at)"

    @property
    def words(self) -> str:
        """The ranked users in words."""
        every = f"{self.whole.n_users:,} users"
        return f"a sample of {len(self.users):,} of {every}" if self.sampled else f"all {every}"


def label(labels: Labels | None, row: int) -> str:
    """Return the label of a row."""
    return str(row) if labels is None else str(labels[row])
