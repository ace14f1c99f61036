"""What is audited: a model, a sample of its users where it is large, and its exact top lists."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from robustcf._randomness import stream
from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport
from robustcf.metrics.topk import TopItems, top_items
from robustcf.recommender import Recommender

# Beyond this many scores, checks look at a sample of the users; attacks are left out.
MOST_SCORES = 2_000_000_000
SAMPLE = 20_000
# Certified radii want a product in float64 and more: fewer users, by this many scores. A thousand
# of them tell a share to three points.
FEW, LEAST, FEW_SCORES = 5_000, 500, 100_000_000
CUTOFF = 10

Ids = npt.NDArray[np.int64]


class Subject:
    """A model under audit.

    Args:
        model: all of it.
        seed: of the sample.

    Cost: the exact top lists of the users that are looked at, once.

    Example:
        >>> import torch
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> subject = Subject(Recommender(parity[:20], parity, checkerboard()))
        >>> subject.sampled, subject.top.shape
        (False, (20, 10))
    """

    def __init__(self, model: Recommender, seed: int = 0) -> None:
        """Draw the sample."""
        self.whole, self.seed = model, seed
        factors = model.factors
        users = np.arange(factors.n_users)
        judged = np.flatnonzero(getattr(model.split, model.part).user_degrees)
        self.sampled = len(users) * factors.n_items > MOST_SCORES and len(users) > SAMPLE
        if self.sampled:
            # Users with held-out pairs first: only these have a quality.
            pool = judged if len(judged) >= SAMPLE else users
            users = np.sort(stream(seed, "audit users").choice(pool, SAMPLE, replace=False))
        self.users: Ids = users.astype(np.int64)

    @cached_property
    def model(self) -> Recommender:
        """The model, or its sample of users with all items."""
        if not self.sampled:
            return self.whole
        whole = self.whole
        part = rows_of(whole.factors, self.users)
        return Recommender(
            part.users,
            part.items,
            users_of(whole.split, self.users),
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
        """What is not recommended again: all that is known of a user."""
        model = self.model
        return model.known if model.seen is None else model.seen

    @cached_property
    def top(self) -> TopItems:
        """The exact top lists, one row for each user that is looked at."""
        return self.ranked(self.model.factors)

    def ranked(self, factors: Factors) -> TopItems:
        """Top lists by other factors for the same users."""
        return top_items(factors, np.arange(factors.n_users), CUTOFF, self.seen)

    def few(self, most: int, purpose: str) -> Ids:
        """Rows of at most so many of the users that are looked at, drawn by the seed."""
        rows = np.arange(len(self.users))
        if len(rows) > most:
            rows = np.sort(stream(self.seed, purpose).choice(rows, most, replace=False))
        return rows.astype(np.int64)

    def out_of(self, rows: Ids) -> str:
        """How many users a check looked at, where these are not all that others look at.

        Example:
            >>> import torch
            >>> from robustcf.data import checkerboard
            >>> parity = torch.eye(2)[torch.arange(30) % 2]
            >>> subject = Subject(Recommender(parity[:20], parity, checkerboard()))
            >>> subject.out_of(subject.few(5, "x")), subject.out_of(subject.few(99, "x"))
            (' (5 of 20 users looked at)', '')
        """
        if len(rows) == len(self.users):
            return ""
        return f" ({len(rows):,} of {self.whole.factors.n_users:,} users looked at)"

    @property
    def words(self) -> str:
        """Who was looked at, in words."""
        return (
            f"a sample of {len(self.users):,} of {self.whole.factors.n_users:,} users"
            if self.sampled
            else f"all {len(self.users):,} users"
        )


def rows_of(factors: Factors, users: Ids) -> Factors:
    """The rows of some users, and all items."""
    return Factors(factors.users[users], factors.items)


def users_of(split: Split, users: Ids) -> Split:
    """The pairs of some users, who are numbered from 0 on."""
    place = np.full(split.n_users, -1, dtype=np.int64)
    place[users] = np.arange(len(users))

    def kept(pairs: Interactions) -> Interactions:
        chosen = pairs.take(place[pairs.users] >= 0)
        return Interactions.from_pairs(
            place[chosen.users], chosen.items, len(users), split.n_items
        )[0]

    return Split(
        split.name,
        kept(split.train),
        kept(split.valid),
        kept(split.test),
        valid_source=split.valid_source,
        protocol=split.protocol,
    )


def overlap(left: TopItems, right: TopItems) -> npt.NDArray[np.float64]:
    """The share of each list on the left that is in the list on the right.

    Example:
        >>> overlap(np.array([[1, 2], [3, -1], [-1, -1]]), np.array([[2, 5], [3, 9], [1, 2]]))
        array([0.5, 1. , 1. ])
    """
    real = left >= 0
    found = (left[:, :, None] == right[:, None, :]).any(axis=2) & real
    counts = real.sum(axis=1)
    return np.where(counts > 0, found.sum(axis=1) / np.maximum(counts, 1), 1.0)
