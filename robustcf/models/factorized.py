"""FactorScorer: the score of user u and item i is the product of their embeddings.

:class:`FoldedScorer` does not store users: it computes them from their histories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf._checks import check_choice, check_integer, check_list
from robustcf._io.schema import FLAG, NAME, NOT_NEGATIVE, OBJECT, check_kind, list_of, record, whole
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.topk import Ranker, TopItems, dot64, top_items
from robustcf.models.folding import FoldIn, Histories
from robustcf.models.scorer import Ids, Ranking, Scorer, Stored, Values

# Embeddings of recommended items that are scored in float64 at a time.
_BYTES = 32 * 2**20
_FOLD_IN = record(
    {"objective": NAME, "settings": OBJECT, "ridge": NOT_NEGATIVE, "offset": FLAG, "unit": FLAG}
)
_FACTS = record({"fixed": list_of(whole()), "fold_in": _FOLD_IN})
_FOLDED_FACTS = record({"damping": NOT_NEGATIVE, "fold_in": _FOLD_IN})
#: How users are served: by stored embeddings, or computed from their histories.
SERVES: tuple[str, ...] = ("stored", "fold-in")
# More users than that are computed once and kept.
_FEW_USERS = 1024


class FactorScorer(Scorer):
    """Scores ``U @ V.T``, as matrix factorizations and two-tower models do.

    Args:
        factors: finite embeddings.
        fixed: columns that attacks and certificates do not move: a bias, and the constant that it
            is multiplied with.
        fold_in: how a new user is embedded; None for a softmax over the catalogue.

    Example:
        >>> scorer = FactorScorer(Factors(torch.ones(1, 1), torch.tensor([[1.0], [3.0], [2.0]])))
        >>> scorer.top(np.array([0]), 2)
        Ranking(items=array([[1, 2]]), scores=array([[3., 2.]]))
    """

    kind = "factors"
    #: What computes users from their histories; None for stored users.
    histories: Histories | None = None

    def __init__(
        self, factors: Factors, fixed: Sequence[int] = (), fold_in: FoldIn | None = None
    ) -> None:
        factors.check_finite()
        self.factors, self.fold_in = factors, FoldIn() if fold_in is None else fold_in
        self.n_users, self.n_items = factors.n_users, factors.n_items
        columns = check_list("fixed", fixed)
        self.fixed = tuple(check_integer("a fixed column", column, 0) for column in columns)
        if max(self.fixed, default=0) >= factors.dim:
            raise InputError(f"fixed columns must be in [0, {factors.dim}), got {list(self.fixed)}")
        if not self.free:
            raise InputError("all columns are held fixed: leave at least one free to attack")
        #: Whether code from outside of the package may be imported to fold users in.
        self.allow_code = True
        self._rankers: dict[int, Ranker] = {}

    @property
    def free(self) -> list[int]:
        """The columns that an attack may move."""
        return [n for n in range(self.arrays.dim) if n not in self.fixed]

    @property
    def arrays(self) -> Factors:
        """The stored arrays: U and V; for :class:`FoldedScorer`, the map and V."""
        return self.factors

    def rank(self, users: Ids, k: int, seen: Interactions | None = None) -> TopItems:
        """See :func:`robustcf.metrics.topk.top_items`."""
        length = min(k, self.n_items)
        if length not in self._rankers:
            if len(self._rankers) >= 4:  # serving asks for few lengths
                self._rankers.clear()
            self._rankers[length] = Ranker(self.factors, length)
        return top_items(self.factors, users, k, seen, ranker=self._rankers[length])

    def top(
        self, users: Ids, k: int, seen: Interactions | None = None, candidates: Ids | None = None
    ) -> Ranking:
        """See :meth:`Scorer.top`."""
        if candidates is None:
            items = self.rank(users, k, seen)
        else:
            rows, columns = torch.from_numpy(users), torch.from_numpy(candidates)
            part = Factors(self.factors.users[rows], self.factors.items[columns])
            own = None if seen is None else _among(seen, users, candidates)
            found = top_items(part, np.arange(len(users)), k, own)
            items = np.where(found >= 0, candidates[found], -1)
        return Ranking(items, self._scores(users, items))

    def _scores(self, users: Ids, items: TopItems) -> Values:
        """Return the float64 scores of ranked items; NaN for the padding."""
        U, V = self.factors
        step = max(1, _BYTES // (8 * max(1, items.shape[1] * V.shape[1])))
        scores = np.empty(items.shape)
        for at in range(0, len(items), step):
            here = slice(at, at + step)
            rows, ranked = U[torch.from_numpy(users[here])], V[torch.from_numpy(items[here])]
            scores[here] = dot64(rows[:, None, :], ranked).cpu().numpy()
        scores[items < 0] = np.nan
        return scores

    def embed(self, history: Ids, pairs: Interactions) -> Tensor:
        """Return the embedding of a new user who has these items, see :class:`FoldIn`.

        Cost: at most 60 steps of L-BFGS, a few products of items x dim each; by least squares one
        product of items x dim x dim.
        """
        if self.fold_in.outside and not self.allow_code:
            raise InputError(
                f"folding in a new user would import and run {self.fold_in.objective}, code from "
                "outside of the package: if you trust it, open with allow_code=True (--allow-code)"
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
        own = Interactions(np.zeros_like(history), history, 1, self.n_items)
        new = FactorScorer(Factors(row[None, :], self._item_factors), self.fixed)
        return new.top(np.zeros(1, dtype=np.int64), k, own if filter_seen else None, candidates)

    def similar(self, items: Ids, k: int) -> Ranking:
        """Return items by the cosine of their embeddings, without the fixed columns."""
        rows = self._item_directions[torch.from_numpy(items)]
        ids = np.arange(len(items))
        own = Interactions.from_pairs(ids, items, len(items), self.n_items)[0]
        cosines = FactorScorer(Factors(rows, self._item_directions))
        return cosines.top(ids, min(k, self.n_items - 1), own)

    @property
    def _item_factors(self) -> Tensor:
        return self.factors.items

    @cached_property
    def _item_directions(self) -> Tensor:
        free = self._item_factors[:, self.free]
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
            raise InputError(f"expected matrices users and items, got {sorted(tensors)}")
        factors = Factors.of(tensors["users"], tensors["items"])
        scorer = cls(factors, facts["fixed"], FoldIn(**facts["fold_in"]))
        scorer.allow_code = False
        return scorer


class FoldedScorer(FactorScorer):
    """Scores ``U @ V.T`` with users computed from their histories, see :class:`Histories`.

    Known users and new ones are served alike: equal histories have equal lists. No user is stored;
    the embeddings of all users are computed when they are asked for, by an evaluation or attack.

    Args:
        table: the map, (dim + 2) x dim.
        items: V.
        pairs: the histories of the known users.
        damping: see :class:`Histories`.

    Example:
        >>> pairs = Interactions.from_pairs([0, 0, 1], [0, 1, 2], 2, 3)[0]
        >>> V = torch.tensor([[1.0], [2.0], [3.0]])
        >>> scorer = FoldedScorer(torch.tensor([[1.0], [0.0], [0.0]]), V, pairs, damping=1.0)
        >>> scorer.factors.users.tolist()
        [[1.5], [3.0]]
    """

    kind = "fold-in"
    histories: Histories

    def __init__(
        self,
        table: Tensor,
        items: Tensor,
        pairs: Interactions,
        damping: float = 0.5,
        fold_in: FoldIn | None = None,
    ) -> None:
        self._arrays = arrays = Factors(table, items)
        arrays.check_finite()
        if arrays.n_users != arrays.dim + 2:
            size = f"{arrays.dim + 2} x {arrays.dim}"
            raise InputError(f"expected a fold-in map of {size}, got {tuple(arrays.users.shape)}")
        if pairs.n_items != arrays.n_items:
            known = f"{arrays.n_items:,} items, the histories have {pairs.n_items:,}"
            raise InputError(f"V has {known}: they belong to different data")
        self.n_users, self.n_items, self.fixed = pairs.n_users, pairs.n_items, ()
        self.histories = Histories(pairs, damping)
        self.fold_in = FoldIn() if fold_in is None else fold_in
        self.allow_code = True
        self._rankers = {}

    @classmethod
    def of(
        cls, scorer: FactorScorer, pairs: Interactions | None, damping: float = 0.5
    ) -> FoldedScorer:
        """Return a scorer that computes the users of another from their histories."""
        if scorer.fixed:
            columns = f"columns {list(scorer.fixed)} held fixed (biases)"
            raise InputError(f"serving by fold-in needs factors without biases, got {columns}")
        if pairs is None:
            advice = "give them, or serve stored users"
            raise InputError(f"serving by fold-in needs the interactions, the histories: {advice}")
        # Half precision has too few digits for sums over histories.
        U, V = (part if part.dtype == torch.float64 else part.float() for part in scorer.factors)
        table = Histories(pairs, damping).fitted(Factors(U, V))
        return cls(table, V, pairs, damping, scorer.fold_in)

    @cached_property
    def factors(self) -> Factors:  # type: ignore[override]
        """U, computed from the histories, and V."""
        return self.histories.factors(self._arrays)

    @property
    def arrays(self) -> Factors:
        """The stored arrays: the map and V."""
        return self._arrays

    def top(
        self, users: Ids, k: int, seen: Interactions | None = None, candidates: Ids | None = None
    ) -> Ranking:
        """See :meth:`Scorer.top`; the rows of few users alone are computed."""
        if "factors" in vars(self) or len(users) > _FEW_USERS:
            return super().top(users, k, seen, candidates)
        own, ids = self._served(self.histories.pairs, users), np.arange(len(users))
        return own.top(ids, k, None if seen is None else _of_users(seen, users), candidates)

    def _served(self, pairs: Interactions, users: Ids) -> FactorScorer:
        few = Histories(_of_users(pairs, users), self.histories.damping)
        return FactorScorer(few.factors(self._arrays), fold_in=self.fold_in)

    def embed(self, history: Ids, pairs: Interactions) -> Tensor:
        """Return the embedding of a user who has these items, by the same map."""
        own = Interactions(np.zeros_like(history), history, 1, self.n_items)
        return self._served(own, np.zeros(1, dtype=np.int64)).factors.users[0]

    @property
    def _item_factors(self) -> Tensor:
        return self._arrays.items

    def stored(self) -> Stored:
        """See :meth:`Scorer.stored`."""
        table, items = (part.detach().cpu().contiguous() for part in self._arrays)
        facts = {"damping": self.histories.damping, "fold_in": self.fold_in.as_dict()}
        return Stored({"map": table, "items": items}, facts, needs_interactions=True)

    @classmethod
    def restored(
        cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], pairs: Interactions | None
    ) -> FoldedScorer:
        """See :meth:`Scorer.restored`."""
        check_kind("", dict(facts), _FOLDED_FACTS)
        if not {"map", "items"} <= set(tensors):
            raise InputError(f"expected matrices map and items, got {sorted(tensors)}")
        if pairs is None:
            raise InputError("a fold-in recommender scores by its interactions: give them")
        table, items = Factors.of(tensors["map"], tensors["items"])
        return cls(table, items, pairs, facts["damping"], FoldIn(**facts["fold_in"]))


def served(
    scorer: FactorScorer, serve: str, pairs: Interactions | None, damping: float = 0.5
) -> FactorScorer:
    """Return the scorer with its users stored, or computed from their histories."""
    check_choice("serve", serve, SERVES)
    if (scorer.histories is not None) == (serve == "fold-in"):
        return scorer
    if serve == "stored":
        return FactorScorer(scorer.factors, scorer.fixed, scorer.fold_in)
    return FoldedScorer.of(scorer, pairs, damping)


def _of_users(pairs: Interactions, users: Ids) -> Interactions:
    """Return the pairs of some users, numbered by their place."""
    rows, items = pairs.rows(users)
    return Interactions.from_pairs(rows, items, len(users), pairs.n_items)[0]


def _among(seen: Interactions, users: Ids, candidates: Ids) -> Interactions:
    """Return the pairs of some users with the candidates, both numbered by their place."""
    rows, items = seen.rows(users)
    place = np.minimum(np.searchsorted(candidates, items), len(candidates) - 1)
    kept = candidates[place] == items
    return Interactions.from_pairs(rows[kept], place[kept], len(users), len(candidates))[0]
