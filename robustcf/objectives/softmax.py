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
from robustcf.objectives import base, kernels
from robustcf.objectives.base import Batch, ComparingObjective, Gradient, Ids, ObjectiveConfig
from robustcf.objectives.kernels import softmax_rows, sparse_scores
from robustcf.objectives.margin import CentredMargin
from robustcf.objectives.partition import OwnItems, Scratch, log_partition_rows
from robustcf.objectives.weights import check_max_share, item_weights

# The weight of a user is this power of the number of own items.
_WEIGHTINGS = {"users": 0.0, "damped": 0.75, "pairs": 1.0}
# Products with own items alone read two rows for each; one place in the scores costs less where
# users have this share of the catalogue.
_DENSE = 0.01


@dataclass(frozen=True)
class SoftmaxConfig(ObjectiveConfig):
    """Settings of the softmax; the defaults are those of the attack.

    Args:
        temperature: the scores are divided by it. With rows of length 1 about 0.1 to 0.2: smaller
            weighs the best-placed negatives more.
        positive_temperature: None for the mean of a user's own scores; a number for the bilateral
            form, a soft maximum of them at this temperature.
        weighting: ``users``: every user counts once; ``pairs``: as often as they have items;
            ``damped``: between the two, the number of items to the power 3/4.
        sampled_items: items drawn for a block to stand for the whole catalogue in the sum; None
            for all of them.
        max_share: the largest share of one user in the training of an item, see
            :func:`robustcf.objectives.weights.item_weights`; None for no cap.
        precision: of the products of a block with the catalogue: ``float32``, the factors' own, or
            ``bfloat16``, which is faster where the hardware has it; sums keep the factors' own.
    """

    temperature: float = 1.0
    positive_temperature: float | None = None
    weighting: str = "users"
    sampled_items: int | None = None
    max_share: float | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_choice("precision", self.precision, kernels.PRECISIONS)
        check_number("temperature", self.temperature, positive=True)
        if self.positive_temperature is not None:
            check_number("positive_temperature", self.positive_temperature, positive=True)
        check_choice("weighting", self.weighting, tuple(_WEIGHTINGS))
        check_max_share(self.max_share)


class Softmax(ComparingObjective[SoftmaxConfig]):
    """Softmax over the catalogue against a user's own items.

    The objective is, summed over the users who have items, with t the temperature::

        w_u (log sum over all items j of exp(s_uj / t)  -  mean over own items i of s_ui / t)

    where w_u is 1, or the number of the user's items, or between (``weighting``). The sum is exact,
    unless ``sampled_items`` are drawn: then their sum, times n_items / sampled_items, estimates it
    without bias. ``positive_temperature`` p replaces the mean of own scores by
    ``p log mean exp(s_ui / p)``: the bilateral softmax loss. ``max_share`` weighs the pairs, each
    pair's share of its user's term; the bilateral form then has the weighted mean of exp, and w_u
    is the sum of the weights.

    It rises when own items fall behind the others and, like a ranking, ignores a constant added to
    all of a user's scores. In a batch of pairs, (u, i) has its share of u's term.

    Cost of a gradient: three products of users x items x dim, for the users of the batch and the
    items of the sum.

    Example:
        >>> pairs = Interactions(np.array([0]), np.array([0]), 1, 2)
        >>> round(Softmax(pairs).full_gradient(torch.zeros(1, 1), torch.zeros(2, 1)).value, 4)
        0.6931
    """

    name = "softmax"
    Config = SoftmaxConfig
    # Checked on validation of six models (scripts/tune_auto.py): 2 to 6 are within 0.3 % of the
    # clean quality; the best of each alone are 1 for softmax and 6 for bpr, by about one per cent.
    log2_temperature = 2.0

    def __init__(
        self, pairs: Interactions, config: SoftmaxConfig | None = None, **options: Any
    ) -> None:
        super().__init__(pairs, config, **options)
        c = self.config
        self._scratch = Scratch()
        self._item_weights = item_weights(self.shard.item_degrees, c.max_share)
        self._products = kernels.dtype_of_products(c.precision)
        # Whether no score is divided and no item drawn.
        self._plain = (c.temperature, c.positive_temperature, c.sampled_items) == (1.0, None, None)
        if c.sampled_items is not None and c.sampled_items > pairs.n_items:
            raise InputError(
                f"sampled_items must be at most the {pairs.n_items} items there are, got "
                f"{c.sampled_items}: leave it out to take them all"
            )

    @cached_property
    def _dense(self) -> bool:
        """Whether own items enter the products with the catalogue; only in full precision."""
        cells = len(self.shard.warm_users) * self.pairs.n_items
        return self._products is None and self.shard.n_pairs >= _DENSE * cells

    def full_gradient(self, U: Tensor, V: Tensor) -> Gradient:
        """Return value and gradient over all users at (U, V), in one go, over all items."""
        self.check_shapes(U, V)
        part = self.gradient(Batch(torch.arange(len(U), device=U.device)), U, V, value=True)
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
        chosen = np.linspace(0, len(warm) - 1, min(len(warm), base.SLOPE_USERS)).astype(np.int64)
        users = warm[chosen].astype(np.int64)
        own = self.pairs.csr_of(users)
        rows = np.repeat(np.arange(len(users)), np.diff(own.indptr))
        some = Interactions(rows, own.indices, len(users), self.pairs.n_items)
        # The cap is about item degrees in all pairs, not in a sample.
        return users, Softmax(some, replace(self.config, max_share=None))

    def shared_negatives(self, rng: np.random.Generator) -> Tensor | None:
        """Draw the items of the sum, each once; None for all."""
        drawn = self.config.sampled_items
        if drawn is None or drawn == self.pairs.n_items:
            return None
        some = rng.choice(self.pairs.n_items, size=drawn, replace=False, shuffle=False)
        return self.tensor(np.sort(some), torch.int64)

    def prepare(self, users: Ids) -> tuple[OwnItems | None, int]:
        """Return the own items of a block of users, by rows and by columns."""
        if self._plain:
            return None, 0
        own = OwnItems.of(self.pairs.csr_of(users))
        return own, 2 * len(own.rows)

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        """Return the gradient of the batch's share at (U, V), for the users of the batch."""
        if not self._plain:
            return self._tempered(batch, U, V, value=value)
        users, own, weights = self._own(batch, U)
        items, entries = torch.zeros_like(V), own.entries(weights)
        how: dict[str, Any] = {"value": value, "products": self._products}
        part, total = softmax_rows(U[users], V, entries, items, **how)
        return Gradient(part, users, items, total)

    def _tempered(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool) -> Gradient:
        """:meth:`gradient` with a temperature, drawn items, or both temperatures."""
        c = self.config
        if batch.items is not None and c.positive_temperature is not None:
            raise InputError(
                "positive_temperature is about all items of a user together: use batching 'rows', "
                "or leave it out"
            )
        users, own, weights = self._own(batch, U)
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
            value=value, pull=(own, pulled) if folded else None,
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

        By :class:`robustcf.objectives.margin.CentredMargin`, against all items, drawn or not.
        """
        c = self.config
        if c.positive_temperature is not None:
            raise InputError("the bilateral softmax has no margin: leave positive_temperature out")
        users, own, weights = self._own(batch, U)
        entries, items = own.entries(weights), torch.zeros_like(V)
        # A gap over t falls as much as the gap of U / t when its rows move by a / t.
        margin = CentredMargin(U[users] / c.temperature, V, slack[0] / c.temperature, slack[1])
        counts = torch.zeros_like(margin.by_item)
        part, total = softmax_rows(
            margin.block, V, entries, items, value=value, offsets=margin.by_item, item_mass=counts
        )
        counts.index_add_(0, entries.columns, weights)
        mass = torch.zeros_like(margin.by_user).index_add_(0, entries.rows, weights)
        margin.add_gradient(mass, counts, part, items)
        if total is not None:
            total += float(weights @ margin.by_item[entries.columns])
            total += float(mass @ margin.by_user)
        return Gradient(part.div_(c.temperature), users, items, total)

    def _own(self, batch: Batch, U: Tensor) -> tuple[Tensor, OwnItems, Tensor]:
        """The users of a batch, their positives, and the weights of these."""
        degrees = self.pairs.user_degrees
        if batch.items is None:
            users = batch.users
            own = batch.prepared or OwnItems.of(self.pairs.csr_of(users.cpu().numpy()))
            counts = own.degrees.to(U.device)[own.rows.to(U.device)]
        else:
            order = batch.users.argsort(stable=True)
            users, rows = torch.unique(batch.users[order], return_inverse=True)
            sizes = torch.bincount(rows, minlength=len(users))
            own = OwnItems(rows, batch.items[order], sizes, self.pairs.n_items)
            counts = torch.from_numpy(degrees.astype(np.int64)).to(U.device)[users][rows]
        weights = counts.to(U.dtype) ** (_WEIGHTINGS[self.config.weighting] - 1.0)
        capped = self._capped(own.columns, weights)
        return users, own, weights if capped is None else weights * capped

    def _capped(self, items: Tensor, like: Tensor) -> Tensor | None:
        """The weight of each pair by its item alone, or None without a cap."""
        if self._item_weights is None:
            return None
        return torch.from_numpy(self._item_weights[items.cpu().numpy()]).to(like)

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
        # The scores of a few users exist at a time.
        step = max(1, kernels.BLOCK_BYTES // max(1, len(V) * V.element_size()))
        sums = [(part @ V.T).logsumexp(dim=1) for part in torch.split(block, step)]
        return users, torch.cat(sums) - mine

    def user_loss(self, items: Ids, V: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the objective of a new user with these items."""
        c, mine = self.config, torch.from_numpy(items).to(V.device)
        count = float(len(items)) ** _WEIGHTINGS[c.weighting]
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
