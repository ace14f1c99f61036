"""Scorer: the part of a recommender in which kinds differ. What ranks items, and what it stores.

A kind derives from :class:`Scorer` and stands in the table :data:`robustcf._registry.SCORERS`.
Labels, tables, evaluation and folders are shared: :class:`robustcf.recommender.Recommender`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.metrics.evaluate import Part
from robustcf.metrics.topk import TopItems

if TYPE_CHECKING:
    from torch import Tensor

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


class Ranking(NamedTuple):
    """Item ids, best first, and their scores: users x k; -1 and NaN where items run out."""

    items: TopItems
    scores: Values


@dataclass(frozen=True)
class Stored:
    """What a scorer keeps on disk: tensors, and facts that are ready for JSON.

    Args:
        needs_interactions: whether it scores by the interactions themselves.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    needs_interactions: bool = False


class Scorer(ABC):
    """Ranks items for users and for histories of new users.

    Ids are row numbers from 0. Rankings must not depend on how users are grouped into calls, and
    equal scores go to the lower item id.
    """

    #: The name of the kind, as folders and tables have it.
    kind: ClassVar[str]

    n_users: int
    n_items: int

    @abstractmethod
    def top(
        self, users: Ids, k: int, seen: Interactions | None = None, candidates: Ids | None = None
    ) -> Ranking:
        """Return the k best items per user with scores.

        Args:
            users: ids.
            k: items per user, at most the number of candidates.
            seen: pairs that are left out, or None.
            candidates: ids of the items to choose from, ascending; None for all.
        """

    def rank(self, users: Ids, k: int, seen: Interactions | None = None) -> TopItems:
        """Return the k best items per user, without scores."""
        return self.top(users, k, seen).items

    @abstractmethod
    def top_for_history(
        self,
        history: Ids,
        k: int,
        pairs: Interactions,
        *,
        filter_seen: bool = True,
        candidates: Ids | None = None,
    ) -> Ranking:
        """Return the k best items for a new user: one row.

        Args:
            history: ids of the items that the user has, at least one, ascending.
            k: see :meth:`top`, as for ``candidates``.
            pairs: the interactions that the model was fit on, or a stand-in with the same number
                of pairs per item.
            filter_seen: whether to leave out the history itself.
            candidates: see :meth:`top`.
        """

    @abstractmethod
    def similar(self, items: Ids, k: int) -> Ranking:
        """Return the k items most similar to each of some items, which are left out themselves."""

    @abstractmethod
    def stored(self) -> Stored:
        """Return what has to be kept to score again."""

    @classmethod
    @abstractmethod
    def restored(
        cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], pairs: Interactions | None
    ) -> Self:
        """Build the scorer from the tensors and facts of :meth:`stored`, read from untrusted files.

        Args:
            tensors: see :class:`Stored`.
            facts: see :class:`Stored`.
            pairs: the interactions that the model was fit on, where they were kept.
        """

    def certify_fakes(
        self,
        split: Split,
        fakes: Sequence[int],
        ks: Sequence[int] = (10, 20),
        *,
        part: Part = "test",
        mask: Sequence[str] | None = None,
    ) -> Any:
        """Return lower bounds of all metrics with fake accounts; an error for most kinds."""
        raise InputError(
            f"a recommender of the kind {self.kind!r} has no certificate against fake accounts: "
            "train a vote, robustcf.train(data, model='vote') or 'robustcf train --model vote'"
        )

    def no_embeddings(self) -> NoReturn:
        """Raise the error of a kind without embeddings that is asked for them."""
        raise InputError(
            f"a recommender of the kind {self.kind!r} has no user and item embeddings to attack, "
            "certify, harden or audit; give one that scores by U @ V.T"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_users:,} users x {self.n_items:,} items)"


def padded(ranking: Ranking, k: int) -> Ranking:
    """Return a ranking with exactly k columns, filled up with -1 and NaN."""
    items, scores = ranking
    lacking = k - items.shape[1]
    if lacking <= 0:
        return Ranking(items[:, :k], scores[:, :k])
    rows = len(items)
    return Ranking(
        np.hstack((items, np.full((rows, lacking), -1, dtype=np.int64))),
        np.hstack((scores, np.full((rows, lacking), np.nan))),
    )
