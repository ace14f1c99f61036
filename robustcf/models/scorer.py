"""Scorer: the part in which kinds of recommenders differ. It ranks items and is stored on disk.

A kind derives from :class:`Scorer` and is listed in :data:`robustcf._registry.SCORERS`.
:class:`robustcf.recommender.Recommender` adds labels, tables, evaluation and folders to all kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_cutoff
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.topk import TopItems, user_ids

if TYPE_CHECKING:
    from torch import Tensor

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Scores = npt.NDArray[np.float32]
# Scores of a :class:`DenseScorer` at a time.
_SCORE_BYTES = 64 * 2**20


class Ranking(NamedTuple):
    """Item ids, best first, and their scores: users x k; -1 and NaN where items run out."""

    items: TopItems
    scores: Values


@dataclass(frozen=True)
class Stored:
    """Content of a scorer on disk: tensors, and facts that are ready for JSON.

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

    #: The name of the kind, as in folders and tables.
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
            seen: pairs to leave out, or None.
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
            history: ids of the user's items, at least one, ascending.
            k: see :meth:`top`, as for ``candidates``.
            pairs: the interactions that the model was fit on, or a stand-in with the same number
                of pairs per item.
            filter_seen: whether to leave out the history itself.
        """

    @abstractmethod
    def similar(self, items: Ids, k: int) -> Ranking:
        """Return the k items most similar to each given item, which is left out itself."""

    @abstractmethod
    def stored(self) -> Stored:
        """Return the content that :meth:`restored` needs."""

    @classmethod
    @abstractmethod
    def restored(
        cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], pairs: Interactions | None
    ) -> Self:
        """Build the scorer from the content of :class:`Stored`, read from untrusted files.

        ``pairs`` are the interactions that the model was fit on, where they were saved.
        """

    @property
    def stores(self) -> tuple[str, ...]:
        """Names of the stored arrays: what an attacker with write access may alter."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.stored().tensors))

    def certify_fakes(self, *args: Any, **kwargs: Any) -> Any:
        """Raise, except for votes, see :meth:`robustcf.models.voting.PartitionVote.certify_fakes`.

        A kind of one's own may return lower bounds of all metrics under fake accounts.
        """
        raise InputError(
            f"a recommender of the kind {self.kind!r} has no certificate against fake accounts: "
            "train a vote, robustcf.train(data, model='vote') or 'robustcf train --model vote'"
        )

    #: The same about the users to whom an item can be shown.
    certify_reach = certify_fakes

    def no_embeddings(self) -> NoReturn:
        """Raise the error of a kind without embeddings that is asked for them."""
        raise InputError(
            f"a recommender of the kind {self.kind!r} has no embeddings to attack, certify, harden "
            "or audit: train one that has, robustcf.train(data, 'als') or 'robustcf train --model "
            "als'. A vote can be certified against fake accounts: certify(model, fakes=[0, 1, 5])"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_users:,} users x {self.n_items:,} items)"


class DenseScorer(Scorer):
    """Base of kinds that make the scores of all items, for some users at a time."""

    @abstractmethod
    def user_scores(self, users: Ids) -> Scores:
        """Return users x items; a user's scores do not depend on the other users."""

    @abstractmethod
    def history_scores(self, history: Ids, pairs: Interactions) -> Scores:
        """Return the scores for a new user in one row, see :meth:`Scorer.top_for_history`."""

    def top(
        self, users: Ids, k: int, seen: Interactions | None = None, candidates: Ids | None = None
    ) -> Ranking:
        """See :meth:`Scorer.top`."""
        ids = user_ids(users, self.n_users)
        k = min(check_cutoff("k", k), self.n_items if candidates is None else len(candidates))
        items, scores = np.full((len(ids), k), -1, dtype=np.int64), np.full((len(ids), k), np.nan)
        for part in score_blocks(len(ids), self.n_items):
            own = masked(self.user_scores(ids[part]), ids[part], seen)
            items[part], scores[part] = best(own, k, candidates)
        return Ranking(items, scores)

    def top_for_history(
        self,
        history: Ids,
        k: int,
        pairs: Interactions,
        *,
        filter_seen: bool = True,
        candidates: Ids | None = None,
    ) -> Ranking:
        """See :meth:`Scorer.top_for_history`."""
        own = self.history_scores(history, pairs)
        if filter_seen:
            own[:, history] = -np.inf
        return best(own, k, candidates)


def score_blocks(count: int, n_items: int) -> Iterator[slice]:
    """Yield slices of users whose scores fit into 64 MB."""
    size = max(1, _SCORE_BYTES // (4 * max(1, n_items)))
    for start in range(0, count, size):
        yield slice(start, start + size)


def masked(scores: Scores, users: Ids, seen: Interactions | None) -> Scores:
    """Set the scores of seen pairs to -inf, in place."""
    if seen is not None:
        scores[seen.csr()[users].nonzero()] = -np.inf
    return scores


def best(scores: Scores, k: int, candidates: Ids | None) -> Ranking:
    """Return the k best items per row, ties to the lower id; -1 and NaN for scores of -inf."""
    own = scores if candidates is None else scores[:, candidates]
    k = min(check_cutoff("k", k), own.shape[1])
    least = np.partition(own, own.shape[1] - k, axis=1)[:, own.shape[1] - k]
    places = np.empty((len(own), k), dtype=np.int64)
    for row, bound in enumerate(least):
        above = np.flatnonzero(own[row] > bound)
        above = above[np.argsort(-own[row, above], kind="stable")]
        # Many items may have the score of the last place, 0 say: they are not sorted.
        ties = np.flatnonzero(own[row] == bound)[: k - len(above)]
        places[row] = np.concatenate((above, ties))
    values = np.take_along_axis(own, places, axis=1).astype(np.float64)
    items = places if candidates is None else candidates[places]
    out = np.isneginf(values)
    return Ranking(np.where(out, -1, items), np.where(out, np.nan, values))
