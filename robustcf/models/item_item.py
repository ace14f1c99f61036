"""Item-item recommenders: an item's score is the sum of its weights from the items of a history.

A history is all that serving needs, so that stored users and new users are the same. The weights
come from the models of :mod:`robustcf.models.neighbours`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix

from robustcf._checks import check_cutoff
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.topk import user_ids
from robustcf.models.scorer import Ids, Ranking, Scorer, Stored

if TYPE_CHECKING:
    from torch import Tensor

#: Items x items: sparse, or a dense array where every item has a weight.
#: The catalogue up to which the item-item counts are one dense matrix.
MOST_DENSE = 16_384
#: The catalogue up to which EASE is exact: its matrices take 4 GB there.
MOST_EXACT = 20_000

Weights = csr_matrix | npt.NDArray[np.float32]

# Scores at a time.
_SCORE_BYTES = 64 * 2**20


class ItemItemScorer(Scorer):
    """Scores ``r @ B``: r has a 1 for each item of a user's history, B is items x items.

    A user without a history gets the most popular items. The attack surface is B and the
    histories; there are no embeddings.

    Args:
        pairs: the histories.
        weights: B, sparse or dense; its diagonal does not count.

    Cost: of a user, the sum of the rows of B that belong to the history.

    Example:
        >>> pairs = Interactions.from_pairs([0, 1, 1], [0, 0, 1], 2, 3)[0]
        >>> B = np.array([[0, 0.5, 0.2], [0.5, 0, 0.9], [0.2, 0.9, 0]], dtype=np.float32)
        >>> ItemItemScorer(pairs, B).top(np.array([0]), 2, pairs).items.tolist()
        [[1, 2]]
    """

    kind = "item-item"

    def __init__(self, pairs: Interactions, weights: Weights) -> None:
        n_items = pairs.n_items
        if weights.shape != (n_items, n_items):
            raise InputError(
                f"weights must be {n_items} x {n_items}, one row and column per item, got "
                f"{weights.shape}"
            )
        values = weights.data if isinstance(weights, csr_matrix) else weights
        if not np.isfinite(values).all():
            raise InputError("weights must be finite numbers, got NaN or infinity")
        self.pairs, self.weights = pairs, weights
        # Items without a weight from the history: in the order of popularity.
        scale = float(np.abs(values).mean()) if values.size else 1.0
        degrees = pairs.item_degrees / max(1, pairs.item_degrees.max(initial=0))
        self._prior = (1e-4 * scale * degrees).astype(np.float32)
        self.n_users, self.n_items = pairs.n_users, n_items

    def scores(self, histories: csr_matrix) -> npt.NDArray[np.float32]:
        """Return dense scores; each row is summed in the order of its history."""
        found = histories.astype(np.float32) @ self.weights
        scores: npt.NDArray[np.float32] = (
            found.toarray() if isinstance(found, csr_matrix) else np.asarray(found)
        )
        scores += self._prior
        return scores

    def history_scores(self, history: Ids) -> npt.NDArray[np.float32]:
        """Return the scores of a user with these items, in one row."""
        ends = np.array([0, len(history)])
        ones = np.ones(len(history), dtype=np.float32)
        return self.scores(csr_matrix((ones, history, ends), shape=(1, self.n_items)))

    def top(
        self, users: Ids, k: int, seen: Interactions | None = None, candidates: Ids | None = None
    ) -> Ranking:
        """See :meth:`Scorer.top`."""
        ids = user_ids(users, self.n_users)
        most = self.n_items if candidates is None else len(candidates)
        k = min(check_cutoff("k", k), most)
        items, scores = np.full((len(ids), k), -1, dtype=np.int64), np.full((len(ids), k), np.nan)
        for part in score_blocks(len(ids), self.n_items):
            own = self.scores(self.pairs.csr()[ids[part]])
            if seen is not None:
                own[seen.csr()[ids[part]].nonzero()] = -np.inf
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
        """See :meth:`Scorer.top_for_history`; the same scores as for a stored user."""
        own = self.history_scores(history)
        if filter_seen:
            own[:, history] = -np.inf
        return best(own, k, candidates)

    def similar(self, items: Ids, k: int) -> Ranking:
        """Return the items with the largest weights from each of some items."""
        rows = self.weights[items]
        own = rows.toarray() if isinstance(rows, csr_matrix) else rows.copy()
        own[np.arange(len(items)), items] = -np.inf
        return best(own, k, None)

    def stored(self) -> Stored:
        """See :meth:`Scorer.stored`."""
        if isinstance(self.weights, csr_matrix):
            arrays = {name: getattr(self.weights, name) for name in ("data", "indices", "indptr")}
            tensors = {f"weights.{name}": torch.from_numpy(own) for name, own in arrays.items()}
        else:
            tensors = {"weights": torch.from_numpy(self.weights)}
        return Stored(tensors, needs_interactions=True)

    @classmethod
    def restored(
        cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], pairs: Interactions | None
    ) -> ItemItemScorer:
        """See :meth:`Scorer.restored`."""
        if pairs is None:
            raise InputError("an item-item recommender scores by its interactions: give them")
        if "weights" in tensors:
            return cls(pairs, tensors["weights"].float().numpy())
        data, indices, indptr = (
            tensors[f"weights.{name}"].numpy() for name in ("data", "indices", "indptr")
        )
        whole = all(part.dtype.kind == "i" and part.ndim == 1 for part in (indices, indptr))
        if (
            not whole
            or len(indptr) != pairs.n_items + 1
            or indptr[0]
            or np.any(np.diff(indptr) < 0)
        ):
            raise InputError("weights.indptr must be ascending, one number per item and one more")
        if not len(data) == len(indices) == indptr[-1]:
            raise InputError("weights.data and weights.indices must be as long as indptr says")
        if len(indices) and not 0 <= indices.min() <= indices.max() < pairs.n_items:
            raise InputError(f"weights.indices must be in [0, {pairs.n_items})")
        shape = (pairs.n_items, pairs.n_items)
        return cls(pairs, csr_matrix((data.astype(np.float32), indices, indptr), shape=shape))


def score_blocks(count: int, n_items: int) -> Iterator[slice]:
    """Yield slices of users whose scores fit into 64 MB."""
    size = max(1, _SCORE_BYTES // (4 * max(1, n_items)))
    for start in range(0, count, size):
        yield slice(start, start + size)


def best(scores: npt.NDArray[np.float32], k: int, candidates: Ids | None) -> Ranking:
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
