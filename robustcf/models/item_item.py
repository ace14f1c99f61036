"""Item-item recommenders: an item's score is the sum of its weights from the items of a history.

A history is all that serving needs, so that stored users and new users are the same. The weights
come from the models of :mod:`robustcf.models.neighbours`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix

from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.models.scorer import DenseScorer, Ids, Ranking, Scores, Stored, best

if TYPE_CHECKING:
    from torch import Tensor

#: Items x items: sparse, or a dense array where every item has a weight.
#: The catalogue up to which the item-item counts are one dense matrix.
MOST_DENSE = 16_384
#: The catalogue up to which EASE is exact: its matrices take 4 GB there.
MOST_EXACT = 20_000

Weights = csr_matrix | npt.NDArray[np.float32]


class ItemItemScorer(DenseScorer):
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

    def scores(self, histories: csr_matrix) -> Scores:
        """Return dense scores; each row is summed in the order of its history."""
        found = histories.astype(np.float32) @ self.weights
        scores: Scores = found.toarray() if isinstance(found, csr_matrix) else np.asarray(found)
        scores += self._prior
        return scores

    def user_scores(self, users: Ids) -> Scores:
        """See :meth:`DenseScorer.user_scores`."""
        return self.scores(self.pairs.csr()[users])

    def history_scores(self, history: Ids, pairs: Interactions) -> Scores:
        """See :meth:`DenseScorer.history_scores`; the same scores as for a stored user."""
        ends = np.array([0, len(history)])
        ones = np.ones(len(history), dtype=np.float32)
        return self.scores(csr_matrix((ones, history, ends), shape=(1, self.n_items)))

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
