"""The softmax over the catalogue: aware of the ranking, with a temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf._checks import check_choice, check_number, check_numbers
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.objectives.base import (
    SLOPE_USERS,
    Batch,
    ComparingObjective,
    Gradient,
    Ids,
    ObjectiveConfig,
)
from robustcf.objectives.kernels import (
    BLOCK_BYTES,
    PRECISIONS,
    SparseRows,
    dtype_of_products,
    softmax_rows,
    sparse_scores,
)
from robustcf.objectives.margin import CentredMargin
from robustcf.objectives.partition import OwnItems, Pull, Scratch, log_partition_rows
from robustcf.objectives.weights import check_max_share, item_weights

# How much a user counts: this power of the number of own items.
WEIGHTINGS = {"users": 0.0, "damped": 0.75, "pairs": 1.0}
# Products with own items alone read two rows for each; one place in the scores costs less where
# users have this share of the catalogue.
_DENSE = 0.01


@dataclass(frozen=True)
class SoftmaxConfig(ObjectiveConfig):
    """Settings of the softmax; the defaults are those of the attack.

    Args:
        temperature: the scores are divided by it. With rows of length 1 about 0.1 to 0.2: smaller
            looks harder at the best-placed negatives.
        positive_temperature: None for the mean of a user's own scores; a number for the bilateral
            form, a soft maximum of them at this temperature.
        weighting: ``users``: every user counts once; ``pairs``: as often as they have items;
            ``damped``: between the two, the number of items to the power 3/4.
        sampled_items: items drawn for a block to stand for the whole catalogue in the sum; None
            for all of them.
        max_share: the most that one user may decide of what an item learns, see
            :func:`robustcf.objectives.weights.item_weights`; None for no cap.
        precision: what the products of a block with the catalogue are computed in: ``float32``,
            the factors' own, or ``bfloat16``, which is faster where the hardware has it; sums keep
            the factors' own.
    """

    temperature: float = 1.0
    positive_temperature: float | None = None
    weighting: str = "users"
    sampled_items: int | None = None
    max_share: float | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_choice("precision", self.precision, PRECISIONS)
        check_number("temperature", self.temperature, positive=True)
        if self.positive_temperature is not None:
            check_number("positive_temperature", self.positive_temperature, positive=True)
        check_choice("weighting", self.weighting, tuple(WEIGHTINGS))
        check_max_share(self.max_share)


class Softmax(ComparingObjective[SoftmaxConfig]):
    """Softmax over the catalogue against a user's own items.

    The objective is, summed over the users who have items, with t the temperature::

        w_u (log sum over all items j of exp(s_uj / t)  -  mean over own items i of s_ui / t)

    where w_u is 1, or the number of the user's items, or between (``weighting``). The published
    losses draw the items of the sum; here it is exact, unless ``sampled_items`` are drawn: then the
    sum over them, times n_items / sampled_items, is an unbiased estimate of it.
    ``positive_temperature`` p replaces the mean of own scores by ``p log mean exp(s_ui / p)``: the
    bilateral softmax loss. ``max_share`` gives the pairs weights, by which each pair's share of its
    user's term counts; the bilateral form then has the weighted mean of exp, and w_u is the sum of
    the weights.

    It rises when own items fall behind the others, and is blind to a constant added to all of a
    user's scores, as a ranking is; the cross-entropy spends most of an attack on just that. A batch
    of pairs gives, for a pair (u, i), its share of u's term.

    Args:
        pairs: the positives: those that a model learns from, or, for an attacker who knows the
            labels, those that the evaluation counts.

    Cost of a gradient: three products of users x items x dim, for the users of the batch and the
    items of the sum.

    Example:
        >>> pairs = Interactions(np.array([0]), np.array([0]), 1, 2)
        >>> round(Softmax(pairs).full_gradient(torch.zeros(1, 1), torch.zeros(2, 1)).value, 4)
        0.6931
    """

    name = "softmax"
    Config = SoftmaxConfig
    # First chosen by the test NDCG of two MovieLens-1M runs. Checked on valid of six models since
    # (scripts/tune_auto.py): 2 to 6 are alike, together within 0.3 % of the clean quality; the
    # best of each alone are 1 for softmax and 6 for bpr, by about one per cent.
    log2_temperature = 2.0

    def __init__(
        self, pairs: Interactions, config: SoftmaxConfig | None = None, **options: Any
    ) -> None:
        super().__init__(pairs, config, **options)
        self._scratch = Scratch()
        self._item_weights = item_weights(self.shard.item_degrees, self.config.max_share)
        self._products = dtype_of_products(self.config.precision)
        drawn = self.config.sampled_items
        if drawn is not None and drawn > pairs.n_items:
            raise InputError(
                f"sampled_items must be at most the {pairs.n_items} items there are, got {drawn}: "
                "leave it out to take them all"
            )

    @property
    def _plain(self) -> bool:
        """Whether nothing is divided or drawn."""
        c = self.config
        return c.temperature == 1.0 and c.positive_temperature is None and c.sampled_items is None

    @cached_property
    def _dense(self) -> bool:
        """Whether own items are worth a place in the products with the whole catalogue.

        Not in products of few digits: what own items say is exact.
        """
        cells = len(self.shard.warm_users) * self.pairs.n_items
        return self._products is None and self.shard.n_pairs >= _DENSE * cells

    def full_gradient(self, U: Tensor, V: Tensor) -> Gradient:
        """Value and gradient over all users at (U, V), in one go; nothing is drawn."""
        self.check_shapes(U, V)
        pairs, items = self.pairs, torch.zeros_like(V)
        if self._plain:
            own = SparseRows(
                torch.tensor(pairs.users, dtype=torch.int64, device=U.device),
                torch.tensor(pairs.items, dtype=torch.int64, device=U.device),
                self._weights(
                    torch.tensor(pairs.user_degrees[pairs.users]).to(U.device),
                    torch.tensor(pairs.items, dtype=torch.int64),
                    U.dtype,
                ),
            )
            users, total = softmax_rows(
                U, V, own, items, value=True, products=self._products
            )  # fmt: skip
            return Gradient(users, None, items, total)
        whole = Batch(torch.arange(len(U), device=U.device))
        part = self._tempered(whole, U, V, value=True)
        return Gradient(part.users, None, part.items, part.value)

    def slope(self, U: Tensor, V: Tensor) -> float:
        """See :meth:`Objective.slope`; of some users, evenly spaced."""
        self.check_shapes(U, V)
        users, sample = self._sample
        block = U[torch.from_numpy(users).to(U.device)]
        gradient = sample.full_gradient(block, V).users
        return float((gradient.double() * block.double()).sum())

    @cached_property
    def _sample(self) -> tuple[Ids, Softmax]:
        """Users with pairs, evenly spaced, and the objective of their pairs, renumbered."""
        warm = np.flatnonzero(self.pairs.user_degrees)
        chosen = np.linspace(0, len(warm) - 1, min(len(warm), SLOPE_USERS)).astype(np.int64)
        users = warm[chosen].astype(np.int64)
        own = self.pairs.csr_of(users)
        rows = np.repeat(np.arange(len(users)), np.diff(own.indptr))
        some = Interactions(rows, own.indices, len(users), self.pairs.n_items)
        # The degrees of a sample say nothing of who decides what: no cap.
        return users, Softmax(some, replace(self.config, max_share=None))

    def shared_negatives(self, rng: np.random.Generator) -> Tensor | None:
        """The items of the sum, each once, or None for all."""
        drawn = self.config.sampled_items
        if drawn is None or drawn == self.pairs.n_items:
            return None
        some = rng.choice(self.pairs.n_items, size=drawn, replace=False, shuffle=False)
        return self.tensor(np.sort(some), torch.int64)

    def prepare(self, users: Ids) -> tuple[OwnItems | None, int]:
        """The own items of a block of users, by rows and by columns."""
        if self._plain:
            return None, 0
        own = OwnItems.of(self.pairs.csr_of(users))
        return own, 2 * len(own.rows)

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """The gradient of the batch's share at (U, V), for the users of the batch."""
        if not self._plain:
            return self._tempered(batch, U, V, value=value)
        users, entries = self._entries(batch, U)
        items = torch.zeros_like(V)
        part, total = softmax_rows(
            U[users], V, entries, items, value=value, products=self._products
        )  # fmt: skip
        return Gradient(part, users, items, total)

    def _tempered(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool) -> Gradient:
        """:meth:`gradient` with a temperature, drawn items, or both temperatures."""
        c = self.config
        if batch.items is None:
            users = batch.users
            # A block of rows that nobody prepared: the whole objective, or one kept too long.
            own = batch.prepared or OwnItems.of(self.pairs.csr_of(users.cpu().numpy()))
            degrees = own.degrees.to(U.device)[own.rows.to(U.device)]
            weights = self._weights(degrees, own.columns, U.dtype)
        else:
            if c.positive_temperature is not None:
                raise InputError(
                    "positive_temperature is about all items of a user together: use batching "
                    "'rows', or leave it out"
                )
            users, entries = self._entries(batch, U)
            own, weights = OwnItems.of_entries(entries, len(users), len(V)), entries.weights
        block, rows = U[users] / c.temperature, own.rows.to(U.device)
        mass = block.new_zeros(len(users)).index_add_(0, rows, weights)
        drawn = batch.negatives

        def pulled(scores: Tensor, span: slice, entries: slice) -> tuple[float, Tensor]:
            """The term of own items of some users, and its derivative by their scores."""
            mine = weights[entries]
            if c.positive_temperature is None:
                return float(mine @ scores) if value else 0.0, mine
            ratio = c.positive_temperature / c.temperature
            capped = self._capped(own.columns[entries], mine)
            places = rows[entries] - span.start
            soft, slopes = _soft_means(scores / ratio, places, mine, mass[span], capped)
            return ratio * soft, slopes

        folded = drawn is None and batch.items is None and self._dense
        some = V if drawn is None else V[drawn]
        to_some = torch.zeros_like(some)
        part, total = log_partition_rows(
            block, some, mass, to_some,
            value=value, pull=Pull(own, pulled) if folded else None,
            scratch=self._scratch, products=self._products,
        )  # fmt: skip
        if drawn is None:
            items = to_some
        else:
            items = torch.zeros_like(V).index_copy_(0, drawn, to_some)
            if total is not None:
                total += float(mass.sum()) * float(np.log(len(V) / len(drawn)))
        if not folded:
            slopes = weights
            if value or c.positive_temperature is not None:
                scores = sparse_scores(block, V, own.entries(weights))
                term, slopes = pulled(scores, slice(0, len(users)), slice(0, len(rows)))
                total = None if total is None else total - term
            own.subtract_products(slopes, block, V, part, items)
        return Gradient(part.div_(c.temperature), users, items, total)

    def margin_gradient(
        self, batch: Batch, U: Tensor, V: Tensor, slack: tuple[float, float], *, value: bool = False
    ) -> Gradient:
        """See :meth:`robustcf.objectives.base.ComparingObjective.margin_gradient`.

        Item distances go by way of the items' mean, see
        :class:`robustcf.objectives.margin.CentredMargin`. All items are compared with, drawn or
        not.
        """
        c = self.config
        if c.positive_temperature is not None:
            raise InputError("the bilateral softmax has no margin: leave positive_temperature out")
        users, entries = self._entries(batch, U)
        block, items = U[users], torch.zeros_like(V)
        a, b = slack
        if c.temperature != 1.0:
            # A gap over t falls by what the gap of U / t falls by when its rows move by a / t.
            block, a = block / c.temperature, a / c.temperature
        margin = CentredMargin(block, V, a, b)
        counts = torch.zeros_like(margin.by_item)
        part, total = softmax_rows(
            block, V, entries, items, value=value, offsets=margin.by_item, item_mass=counts
        )
        counts.index_add_(0, entries.columns, entries.weights)
        mass = torch.zeros_like(margin.by_user).index_add_(0, entries.rows, entries.weights)
        margin.add_gradient(mass, counts, part, items)
        if total is not None:
            total += float(entries.weights @ margin.by_item[entries.columns])
            total += float(mass @ margin.by_user)
        if c.temperature != 1.0:
            part.div_(c.temperature)
        return Gradient(part, users, items, total)

    def _weights(self, degrees: Tensor, items: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight of each pair, from the number of its user's pairs and from its item."""
        weights = degrees.to(dtype) ** (WEIGHTINGS[self.config.weighting] - 1.0)
        capped = self._capped(items, weights)
        return weights if capped is None else weights * capped

    def _capped(self, items: Tensor, like: Tensor) -> Tensor | None:
        """The weight of each pair by its item alone, or None where there is no cap."""
        if self._item_weights is None:
            return None
        return torch.from_numpy(self._item_weights[items.cpu().numpy()]).to(like)

    def _entries(self, batch: Batch, U: Tensor) -> tuple[Tensor, SparseRows]:
        """The users of a batch, and their positives with their weights."""
        if batch.items is None:
            users = batch.users
            R = self.pairs.csr_of(users.cpu().numpy())
            rows = torch.from_numpy(np.repeat(np.arange(len(users)), np.diff(R.indptr)))
            columns = torch.from_numpy(R.indices.astype(np.int64))
        else:
            order = batch.users.argsort(stable=True)
            users, rows = torch.unique(batch.users[order], return_inverse=True)
            columns = batch.items[order]
        rows, columns = rows.to(U.device), columns.to(U.device)
        degrees = torch.from_numpy(self.pairs.user_degrees.astype(np.int64)).to(U.device)[users]
        return users, SparseRows(rows, columns, self._weights(degrees[rows], columns, U.dtype))

    def user_losses(self, batch: Batch, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Objective.user_losses`; over the whole catalogue, drawn items or not."""
        c = self.config
        users = batch.users if batch.items is None else torch.unique(batch.users)
        own = OwnItems.of(self.pairs.csr()[users.cpu().numpy()])
        block = U[users] / c.temperature
        ones = block.new_ones(len(own.rows))
        entries, degrees = own.entries(ones), own.degrees.to(ones)
        scores = sparse_scores(block, V, entries)
        if c.positive_temperature is not None:
            p = c.positive_temperature / c.temperature
            mine = p * (_log_sums(scores / p, entries.rows, degrees) - degrees.log())
        else:
            mine = torch.zeros_like(block[:, 0]).index_add_(0, entries.rows, scores) / degrees
        # Few users at a time: their scores are never all there.
        step = max(1, BLOCK_BYTES // max(1, len(V) * V.element_size()))
        parts = (block[start : start + step] for start in range(0, len(block), step))
        sums = [(part @ V.T).logsumexp(dim=1) for part in parts]
        return users, torch.cat(sums) - mine

    def user_loss(self, items: Ids, V: Tensor) -> Callable[[Tensor], Tensor]:
        """The objective of a new user with these items."""
        c, mine = self.config, torch.from_numpy(items).to(V.device)
        count = float(len(items)) ** WEIGHTINGS[c.weighting]
        p = None if c.positive_temperature is None else c.positive_temperature / c.temperature

        def loss(u: Tensor) -> Tensor:
            scores = V @ u / c.temperature
            own = scores[mine]
            mean = own.mean() if p is None else p * ((own / p).logsumexp(0) - np.log(len(items)))
            value: Tensor = scores.logsumexp(dim=0) - mean
            return value if count == 1.0 else count * value

        return loss


def _log_sums(scores: Tensor, rows: Tensor, degrees: Tensor) -> Tensor:
    """``log sum exp(scores)`` over the entries of each row."""
    top = scores.new_full((len(degrees),), -torch.inf).scatter_reduce_(0, rows, scores, "amax")
    sums = torch.zeros_like(top).index_add_(0, rows, (scores - top[rows]).exp())
    return sums.log() + top


def _soft_means(
    scores: Tensor, rows: Tensor, weights: Tensor, mass: Tensor, capped: Tensor | None = None
) -> tuple[float, Tensor]:
    """``sum over users of mass log mean exp(scores)`` over own items, and its gradient.

    With ``capped`` the mean is weighted by it.
    """
    top = torch.full_like(mass, -torch.inf).scatter_reduce_(0, rows, scores, "amax")
    shares = (scores - top[rows]).exp_()
    if capped is not None:
        shares.mul_(capped)
    sums = torch.zeros_like(mass).index_add_(0, rows, shares)
    ones = torch.ones_like(weights) if capped is None else capped
    counts = torch.zeros_like(mass).index_add_(0, rows, ones)
    some = counts > 0
    value = float(mass[some] @ ((sums[some] / counts[some]).log() + top[some]))
    return value, shares * (mass / sums)[rows]
