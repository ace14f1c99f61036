"""FactorScorer: the score of user u and item i is the product of their embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf._checks import check_integer, check_list
from robustcf._io.schema import FLAG, NAME, NOT_NEGATIVE, OBJECT, check_kind, list_of, record, whole
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.topk import Ranker, TopItems, dot64, top_items
from robustcf.models.folding import FoldIn
from robustcf.models.scorer import Ids, Ranking, Scorer, Stored, Values

# Embeddings of recommended items that are scored in float64 at a time.
_BYTES = 32 * 2**20
_FOLD_IN = record(
    {"objective": NAME, "settings": OBJECT, "ridge": NOT_NEGATIVE, "offset": FLAG, "unit": FLAG}
)
_FACTS = record({"fixed": list_of(whole()), "fold_in": _FOLD_IN})


class FactorScorer(Scorer):
    """Scores ``U @ V.T``: what matrix factorizations and two-tower models serve.

    Args:
        factors: finite embeddings.
        fixed: columns that hold a bias and the constant it is multiplied with: attacks and
            certificates do not move them.
        fold_in: how a new user is embedded; None for a softmax over the catalogue.

    Example:
        >>> scorer = FactorScorer(Factors(torch.ones(1, 1), torch.tensor([[1.0], [3.0], [2.0]])))
        >>> scorer.top(np.array([0]), 2)
        Ranking(items=array([[1, 2]]), scores=array([[3., 2.]]))
    """

    kind = "factors"

    def __init__(
        self, factors: Factors, fixed: Sequence[int] = (), fold_in: FoldIn | None = None
    ) -> None:
        factors.check_finite()
        self.factors, self.fold_in = factors, FoldIn() if fold_in is None else fold_in
        self.n_users, self.n_items = factors.n_users, factors.n_items
        columns = check_list("fixed", fixed)
        self.fixed = tuple(check_integer("a fixed column", column, 0) for column in columns)
        if any(not 0 <= column < factors.dim for column in self.fixed):
            raise InputError(f"fixed columns must be in [0, {factors.dim}), got {list(self.fixed)}")
        if len(set(self.fixed)) == factors.dim:
            raise InputError(
                "all columns are held fixed, so that no embedding is left to attack: leave at "
                "least one column free"
            )
        #: Whether code from outside of the package may be imported to fold users in.
        self.allow_code = True
        self._rankers: dict[int, Ranker] = {}

    @property
    def free(self) -> list[int]:
        """The columns that an attack may move."""
        return [column for column in range(self.factors.dim) if column not in self.fixed]

    def rank(self, users: Ids, k: int, seen: Interactions | None = None) -> TopItems:
        """See :func:`robustcf.metrics.topk.top_items`."""
        return top_items(self.factors, users, k, seen, ranker=self._ranker(k))

    def _ranker(self, k: int) -> Ranker:
        """Return what is prepared once for lists of k items; serving asks for few lengths."""
        k = min(k, self.n_items)
        if k not in self._rankers:
            if len(self._rankers) >= 4:
                self._rankers.clear()
            self._rankers[k] = Ranker(self.factors, k)
        return self._rankers[k]

    def top(
        self, users: Ids, k: int, seen: Interactions | None = None, candidates: Ids | None = None
    ) -> Ranking:
        """See :meth:`Scorer.top`."""
        if candidates is None:
            items = self.rank(users, k, seen)
        else:
            # Of these users alone: their pairs are renumbered for the candidates.
            rows, columns = torch.from_numpy(users), torch.from_numpy(candidates)
            part = Factors(self.factors.users[rows], self.factors.items[columns])
            own = None if seen is None else _among(seen, users, candidates)
            found = top_items(part, np.arange(len(users)), k, own)
            items = np.where(found >= 0, candidates[found], -1)
        return Ranking(items, self._scores(self.factors.users, users, items))

    def _scores(self, embedded: Tensor, users: Ids, items: TopItems) -> Values:
        """Return the float64 scores of ranked items; NaN for the padding."""
        V = self.factors.items
        step = max(1, _BYTES // (8 * max(1, items.shape[1] * V.shape[1])))
        parts = []
        for at in range(0, len(items), step):
            rows = embedded[torch.from_numpy(users[at : at + step])]
            parts.append(dot64(rows[:, None, :], V[torch.from_numpy(items[at : at + step])]))
        scores = torch.cat(parts).cpu().numpy() if parts else np.empty(items.shape)
        scores[items < 0] = np.nan
        return scores

    def embed(self, history: Ids, pairs: Interactions) -> Tensor:
        """Return the embedding of a new user who has these items, see :class:`FoldIn`.

        Cost: at most 60 steps of L-BFGS, a few products of items x dim each; by least squares one
        product of items x dim x dim.
        """
        if self.fold_in.outside and not self.allow_code:
            raise InputError(
                "a new user is folded in by code from outside of the package "
                f"({self.fold_in.objective}), which would be imported and run: open the "
                "recommender with allow_code=True (--allow-code) if you trust it"
            )
        return self.fold_in.embed(self.factors, history, pairs, self.fixed)

    def top_for_history(
        self,
        history: Ids,
        k: int,
        pairs: Interactions,
        *,
        filter_seen: bool = True,
        candidates: Ids | None = None,
    ) -> Ranking:
        """See :meth:`Scorer.top_for_history`; the new user is embedded by :meth:`embed`."""
        row = self.embed(history, pairs)
        ids = np.zeros(len(history), dtype=np.int64)
        own = Interactions(ids, history, 1, self.n_items) if filter_seen else None
        new = FactorScorer(Factors(row[None, :], self.factors.items), self.fixed)
        return new.top(np.zeros(1, dtype=np.int64), k, own, candidates)

    def similar(self, items: Ids, k: int) -> Ranking:
        """Return items by the cosine of their embeddings; columns held fixed do not count."""
        rows = self._item_directions[torch.from_numpy(items)]
        ids = np.arange(len(items))
        own = Interactions.from_pairs(ids, items, len(items), self.n_items)[0]
        cosines = FactorScorer(Factors(rows, self._item_directions))
        return cosines.top(ids, min(k, self.n_items - 1), own)

    @cached_property
    def _item_directions(self) -> Tensor:
        free = self.factors.items[:, self.free]
        wide = free if free.dtype in (torch.float32, torch.float64) else free.float()
        return torch.nn.functional.normalize(wide, dim=1)

    def stored(self) -> Stored:
        """See :meth:`Scorer.stored`."""
        users, items = (part.detach().cpu().contiguous() for part in self.factors)
        facts = {"fixed": list(self.fixed), "fold_in": self.fold_in.as_dict()}
        return Stored({"users": users, "items": items}, facts)

    @classmethod
    def restored(
        cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], pairs: Interactions | None
    ) -> FactorScorer:
        """See :meth:`Scorer.restored`."""
        check_kind("", dict(facts), _FACTS)
        if not {"users", "items"} <= set(tensors):
            raise InputError(
                f"expected matrices users and items, got {', '.join(sorted(tensors)) or 'none'}"
            )
        factors = Factors.of(tensors["users"], tensors["items"])
        scorer = cls(factors, facts["fixed"], FoldIn(**facts["fold_in"]))
        scorer.allow_code = False
        return scorer


def _among(seen: Interactions, users: Ids, candidates: Ids) -> Interactions:
    """Return the pairs of some users with some items, both numbered by their place."""
    rows, items = seen.rows(users)
    place = np.searchsorted(candidates, items)
    known = np.minimum(place, len(candidates) - 1)
    kept = candidates[known] == items
    return Interactions.from_pairs(rows[kept], known[kept], len(users), len(candidates))[0]
