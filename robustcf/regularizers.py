"""Penalties on a pair of factors: ``reg(U, V)`` is a scalar that any training loop can add.

Needs torch and :mod:`robustcf.estimators`, nothing else of robustcf.

Example:
    >>> import torch
    >>> reg = TwoToInf()
    >>> U, V = torch.ones(3, 2, requires_grad=True), torch.ones(4, 2)
    >>> reg(U, V).backward()
    >>> U.grad.shape
    torch.Size([3, 2])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robustcf.errors import InputError
from robustcf.estimators.api import METHODS
from robustcf.estimators.lowrank import LowRank, gram_root
from robustcf.estimators.operators import FunctionOperator, Matrix
from robustcf.support.checks import check_choice, check_integer, check_numbers
from robustcf.support.ranks import Ranks, Rows

Estimator = Callable[..., Any]
Side = Literal["users", "items"]

_POOL = 32

#: Names that :class:`TwoToInf` knows: all methods of :mod:`robustcf.estimators`.
ESTIMATORS = tuple(METHODS)


@dataclass(frozen=True)
class RegularizerConfig:
    """Settings that every regularizer has in training.

    Args:
        weight: for every 1,024 training pairs: an epoch adds ``weight * pairs / 1024`` times the
            penalty to the summed loss, whatever the batching and the size of a step. At batches of
            1,024 pairs this is the published meaning, once per batch.
    """

    weight: float = 6.5e-5

    def __post_init__(self) -> None:
        check_numbers(self, prefix="reg_")


class Regularizer(nn.Module):
    """A penalty ``reg(U, V)``, with an in-place way to its gradient for large factors.

    Subclasses define ``forward``, which is all that a plain training loop needs. A loop that
    updates some rows of U at a time calls :meth:`add_gradient` instead.
    """

    name: ClassVar[str] = ""
    Config: ClassVar[type[RegularizerConfig]] = RegularizerConfig
    #: What it is a penalty on, in a model whose scored factors are a function of its parameters.
    on: ClassVar[Literal["scored", "parameters"]] = "scored"
    #: Buffers that hold numbers of rows, of the users or, by ``side``, of the items.
    row_numbers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def configured(cls, config: Any, seed: int = 0) -> Regularizer:
        """The regularizer that a config describes; here one without settings but its weight."""
        return cls()

    def prepare(self, user_degrees: Tensor, item_degrees: Tensor) -> None:
        """Told once before training: how many pairs each user and each item has.

        Most penalties do not depend on it. Where users are on several ranks, these are the degrees
        of the users that are here, and of all items by all users.
        """

    def add_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """Add ``weight`` times the gradient: of V to one tensor, of some rows of U to another.

        Args:
            U: all of U.
            V: all of V.
            rows: the rows that ``user_gradient`` holds, ascending; None for all.
            user_gradient: changed in place.
            item_gradient: changed in place.
            weight: of the penalty.
            row_scale: extra factor for the rows of U: a row that is visited in one of n steps
                takes n times its share then, so that all steps together do what they should.

        Returns:
            The penalty, without the weight.
        """
        return add_gradient(
            self,
            U,
            V,
            rows,
            user_gradient,
            item_gradient,
            weight=weight,
            row_scale=row_scale,
        )

    def add_shared_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        shared: Rows,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """:meth:`add_gradient` where each of several ranks has some rows of U; all call it.

        Args:
            U: the rows of U that are here.
            V: all of V.
            rows: the rows that ``user_gradient`` holds, by their numbers here; None for all.
            user_gradient: changed in place.
            item_gradient: that of all ranks together, changed in place in the same way everywhere.
            shared: which rows are here.
            weight: of the penalty.
            row_scale: see :meth:`add_gradient`.

        Returns:
            The penalty of all ranks together, without the weight.

        Cost: here all of U goes to every rank, which is right for every penalty; those of this
        module say better.
        """
        return add_shared_gradient(
            self, U, V, rows, user_gradient, item_gradient,
            shared=shared, weight=weight, row_scale=row_scale,
        )  # fmt: skip


def add_shared_gradient(
    reg: nn.Module,
    U: Tensor,
    V: Tensor,
    rows: Tensor | None,
    user_gradient: Tensor,
    item_gradient: Tensor,
    *,
    shared: Rows,
    weight: float = 1.0,
    row_scale: float = 1.0,
) -> float:
    """:meth:`Regularizer.add_shared_gradient` for any module of two tensors.

    Cost: all of U goes to every rank, and each computes the whole penalty.
    """
    if shared.whole:
        everybody, here = U, rows
    else:
        # Nothing is known of the penalty but that it is a function of all rows.
        everybody = shared.ranks.joined(U)
        mine = torch.arange(len(U), device=U.device) if rows is None else rows
        here = mine + shared.start
    places = (user_gradient, item_gradient)
    if isinstance(reg, Regularizer):
        return reg.add_gradient(everybody, V, here, *places, weight=weight, row_scale=row_scale)
    return add_gradient(reg, everybody, V, here, *places, weight=weight, row_scale=row_scale)


def add_gradient(
    reg: nn.Module,
    U: Tensor,
    V: Tensor,
    rows: Tensor | None,
    user_gradient: Tensor,
    item_gradient: Tensor,
    *,
    weight: float = 1.0,
    row_scale: float = 1.0,
) -> float:
    """:meth:`Regularizer.add_gradient` for any module of two tensors, by autograd.

    Raises:
        InputError: the module does not return one number, as a tensor that depends on U or V.

    Cost: that of the module, forward and backward, and a gradient of U's size.
    """
    with torch.enable_grad():
        u, v = U.detach().requires_grad_(), V.detach().requires_grad_()
        value: Tensor = reg(u, v)
        _check_penalty(reg, value)
        gradients: tuple[Tensor | None, ...] = (None, None)
        if value.requires_grad:
            gradients = torch.autograd.grad(value, (u, v), allow_unused=True)
    to_u, to_v = gradients
    if to_u is not None:
        user_gradient.add_(to_u if rows is None else to_u[rows], alpha=weight * row_scale)
    if to_v is not None:
        item_gradient.add_(to_v, alpha=weight)
    return float(value.detach())


def _check_penalty(reg: nn.Module, value: object) -> None:
    wanted = f"the penalty of {type(reg).__name__} must be a tensor of one number"
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise InputError(f"{wanted}, got {kind}: compute it by torch, without float() or .item()")
    if value.numel() != 1:
        raise InputError(f"{wanted}, got one of shape {tuple(value.shape)}: sum it up")
    # A constant 0 has no gradient and needs none.
    if not value.requires_grad and bool(value != 0):
        raise InputError(
            f"{wanted} that depends on U or V, got {float(value):g} without a gradient: leave out "
            "detach(), numpy() and no_grad() in forward"
        )


class NoPenalty(Regularizer):
    """The penalty 0.

    Example:
        >>> float(NoPenalty()(torch.ones(2, 1), torch.ones(2, 1)))
        0.0
    """

    name = "none"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """Zero, on the device and in the dtype of U."""
        return U.new_zeros(())

    def add_shared_gradient(self, *places: Any, **options: Any) -> float:
        """Nothing."""
        return 0.0


class WeightDecay(Regularizer):
    """||U||_F^2 + ||V||_F^2.

    (The official UltraGCN code has half of it: its weight 1e-4 is 5e-5 here.)

    Cost: one pass over the factors.

    Example:
        >>> float(WeightDecay()(torch.ones(2, 1), torch.ones(3, 1)))
        5.0
    """

    name = "weight_decay"
    on = "parameters"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """The penalty."""
        return U.square().sum() + V.square().sum()

    def add_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_gradient`; in closed form, and for the rows alone.

        The value returned counts the rows only, scaled: all of U would have to be read for more.
        """
        u = U if rows is None else U[rows]
        user_gradient.add_(u, alpha=2.0 * weight * row_scale)
        item_gradient.add_(V, alpha=2.0 * weight)
        return float(row_scale * u.square().sum() + V.square().sum())

    def add_shared_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        shared: Rows,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_shared_gradient`; a sum over rows: each rank has its own."""
        places = (user_gradient, item_gradient)
        value = self.add_gradient(U, V, rows, *places, weight=weight, row_scale=row_scale)
        if shared.whole:
            return value
        of_items = float(V.square().sum())
        return shared.ranks.total(value - of_items)[0] + of_items


class DegreeDecay(Regularizer):
    """Weight decay of the rows that pairs touch, as LightGCN and other BPR models publish it.

    There a pair (u, i) with its negative j is charged ``(||u||^2 + ||i||^2 + ||j||^2) / 2``. This
    is what 1,024 pairs are charged in expectation, negatives uniform over the catalogue: rows
    count as often as they occur. So the ``weight`` of training is the published weight itself.

    Cost: one pass over the factors.

    Example:
        >>> reg = DegreeDecay()
        >>> reg.prepare(torch.tensor([3, 1]), torch.tensor([2, 2]))
        >>> float(reg(torch.ones(2, 1), torch.zeros(2, 1))) / 1024
        0.5
    """

    name = "degree_decay"
    on = "parameters"
    users: Tensor | None = None
    items: Tensor | None = None

    def prepare(self, user_degrees: Tensor, item_degrees: Tensor) -> None:
        """How often each row occurs among 1,024 pairs and their negatives, in expectation, halved.

        The attributes are no buffers: they follow from the data, and need not be saved.
        """
        # By the items, who are all here where users are on several ranks.
        pairs = item_degrees.sum().double().clamp_min(1.0)
        self.users = 512.0 * user_degrees.double() / pairs
        self.items = 512.0 * (item_degrees.double() / pairs + 1.0 / max(1, len(item_degrees)))

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """The penalty."""
        users, items = self._weights(U, V)
        return users @ U.square().sum(dim=1) + items @ V.square().sum(dim=1)

    def _weights(self, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        if self.users is None or self.items is None:
            raise InputError(
                "degree_decay must be told the number of pairs of each user and item: call "
                "prepare(user_degrees, item_degrees) first"
            )
        return self.users.to(U), self.items.to(V)

    def add_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_gradient`; in closed form, and for the rows alone.

        The value returned counts the rows only, scaled: all of U would have to be read for more.
        """
        users, items = self._weights(U, V)
        u, mine = (U, users) if rows is None else (U[rows], users[rows])
        user_gradient.add_(u * mine[:, None], alpha=2.0 * weight * row_scale)
        item_gradient.add_(V * items[:, None], alpha=2.0 * weight)
        value = row_scale * (mine @ u.square().sum(dim=1)) + items @ V.square().sum(dim=1)
        return float(value)

    def add_shared_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        shared: Rows,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_shared_gradient`; a sum over rows: each rank has its own."""
        places = (user_gradient, item_gradient)
        value = self.add_gradient(U, V, rows, *places, weight=weight, row_scale=row_scale)
        if shared.whole:
            return value
        of_items = float(self._weights(U, V)[1] @ V.square().sum(dim=1))
        return shared.ranks.total(value - of_items)[0] + of_items


class MaxNorm(Regularizer):
    """||U||_{2->inf}^2 + ||V||_{2->inf}^2: the squared norms of the longest row of each factor.

    Ties go to the lowest row.

    Cost: one pass over the factors; the gradient touches one row of each.

    Example:
        >>> float(MaxNorm()(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.ones(1, 2)))
        27.0
    """

    name = "max_norm"

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """The penalty."""
        return self._row(U).square().sum() + self._row(V).square().sum()

    @staticmethod
    def _row(matrix: Tensor) -> Tensor:
        if len(matrix) == 0:
            return matrix.new_zeros(0)
        with torch.no_grad():
            row = int(matrix.square().sum(dim=1).argmax())
        return matrix[row]

    def add_shared_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        shared: Rows,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_shared_gradient`; one row of each rank is compared."""
        longest = shared.leaders(U.detach().square().sum(dim=1), 1)
        here, mine = shared.own(longest)
        # A row of everybody's, which is the longest of a matrix of one row: nobody sends the rest.
        row = shared.fetch(U, longest)
        to_row = torch.zeros_like(row)
        value = self.add_gradient(row, V, None, to_row, item_gradient, weight=weight)
        if len(here):
            place = mine if rows is None else (rows == mine).nonzero()[:, 0]
            add = to_row.expand(len(place), -1)
            user_gradient.index_add_(0, place, add, alpha=row_scale)
        return value


@dataclass(frozen=True)
class TwoToInfConfig(RegularizerConfig):
    """Settings of :class:`TwoToInf` in training, where its arguments are explained.

    Args:
        weight: see :class:`RegularizerConfig`.
        estimator: how to find the row.
        budget: products the estimator may use.
        top: rows whose mean squared norm is taken.
        side: ``users`` or ``items``.
        every: steps between actions.
        refresh: actions between two searches of all rows.
    """

    estimator: str = "exact"
    budget: int = 33
    top: int = 1
    side: str = "users"
    every: int = 1
    refresh: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("reg_side", self.side, ("users", "items"))
        TwoToInf.configured(self)  # its own options are checked by itself


class TwoToInf(Regularizer):
    """||U V^T||_{2->inf}^2, the largest squared row norm of the scores: max_u sum_i s_ui^2.

    The row is found without gradients, then its squared norm is taken with them, so a row that
    an estimator gets wrong gives the gradient of that row: a subgradient up to the difference.

    Args:
        estimator: how to find the row: a name out of :data:`ESTIMATORS` or any function of
            :mod:`robustcf.estimators`. ``exact`` needs no products with the scores for factors:
            ||(U V^T)_u||^2 = u^T (V^T V) u. ``twinest`` is the paper's.
        budget: products the estimator may use (ignored by ``exact``); 33 are 16 TwINEst
            samples and the reading of one row.
        top: mean of the squared norms of this many largest rows instead of the largest one;
            more than 1 needs ``exact``.
        side: ``users``: rows of U V^T; ``items``: rows of V U^T, the one-to-two norm of the
            scores.
        every: act in every n-th call only, with n times the value, so that the mean over calls
            stays (in training mode; ``eval()`` acts always).
        refresh: ``exact`` in training mode: look at all rows in every n-th call only; in between
            the largest of the 32 (or 4 * top) rows that led then is taken, by their norms now.
            Rows move little in a few steps, and a full look costs as much as a step on a small
            catalogue. 1 looks every time.
        seed: of the estimator; call number n draws from a stream of its own.

    Cost: ``exact``: (n_users + n_items) * dim^2 to find the rows, then top * n_items * dim.

    Example:
        >>> reg = TwoToInf()
        >>> float(reg(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])))
        100.0
    """

    name = "two_to_inf"
    Config = TwoToInfConfig
    calls: Tensor
    row_numbers = ("leaders",)
    leaders: Tensor

    def __init__(
        self,
        estimator: str | Estimator = "exact",
        *,
        budget: int = 33,
        top: int = 1,
        side: Side = "users",
        every: int = 1,
        refresh: int = 1,
        seed: int = 0,
    ) -> None:
        """Check the options and find the estimator."""
        super().__init__()
        counts = {"budget": budget, "top": top, "every": every, "refresh": refresh}
        for option, value in counts.items():
            check_integer(option, value)
        check_choice("side", side, ("users", "items"))
        self.estimator_name, self._estimate = _resolve(estimator)
        if top > 1 and self.estimator_name != "exact":
            raise InputError(
                f"top = {top} rows need estimator='exact', got {self.estimator_name!r}: "
                "an estimator returns one row"
            )
        self.budget, self.top, self.side, self.every, self.seed = budget, top, side, every, seed
        self.refresh = refresh
        # Buffers, so that state_dict() carries them: a resumed run goes on as it would have.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("leaders", torch.zeros(0, dtype=torch.int64))

    @classmethod
    def configured(cls, config: TwoToInfConfig, seed: int = 0) -> TwoToInf:
        """The regularizer that a config describes."""
        options = asdict(config)
        options.pop("weight")
        return cls(**options, seed=seed)

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        """The penalty (0 in the calls that ``every`` skips)."""
        factor = self._count()
        if factor == 0 or 0 in U.shape or 0 in V.shape:
            return U.new_zeros(())
        left, right = (U, V) if self.side == "users" else (V, U)
        rows = self.select(left, right)
        return factor * (right @ left[rows].T).square().sum() / len(rows)

    def select(self, left: Tensor, right: Tensor) -> Tensor:
        """The rows of left @ right.T that the penalty is about, largest first."""
        with torch.no_grad():
            matrix = LowRank(left.detach(), right.detach())
            if self.estimator_name == "exact":
                return self._largest(matrix, Rows.of(len(left), Ranks()))
            return self._estimated(matrix)

    def _select(self, U: Tensor, V: Tensor, shared: Rows) -> Tensor:
        """:meth:`select` by ``side``, where each of several ranks has some rows of U."""
        if shared.whole:
            return self.select(*((U, V) if self.side == "users" else (V, U)))
        by_users = self.side == "users"
        with torch.no_grad():
            if self.estimator_name == "exact":
                if by_users:
                    return self._largest(LowRank(U, V), shared)
                # Norms of rows of V U^T need no more of U than U^T U = L L^T: those of V L.
                root = gram_root(shared.ranks.sum((U.mT @ U).double())).to(V.dtype)
                return self._largest(LowRank(V, root.mT), Rows.of(len(V), Ranks()))
            scores = _shared_scores(U, V, shared)
            return self._estimated(scores if by_users else scores.H)

    def _estimated(self, matrix: Matrix) -> Tensor:
        seed = (self.seed * 1_000_003 + int(self.calls)) % 2**63
        found = self._estimate(matrix, self.budget, generator=seed)
        if found.row is None:
            raise InputError(f"estimator {self.estimator_name!r} returned no row: use another")
        return torch.tensor([found.row], device=matrix.device)

    def _largest(self, matrix: LowRank, rows: Rows) -> Tensor:
        """Numbers of the largest rows, of which those in ``rows`` are in the matrix."""
        pooled = self.training and self.refresh > 1
        acted = (int(self.calls) - 1) // self.every  # in training mode this call is counted
        if pooled and acted % self.refresh and len(self.leaders):
            # Few rows: their entries are cheaper than the Gram matrix of the other factor.
            leaders = rows.fetch(matrix.U, self.leaders) @ matrix.V.mT
            norms = leaders.square().sum(dim=1)
            return self.leaders[norms.topk(min(self.top, len(norms))).indices]
        # Where it is safe depends on the rows: ranks must do the same.
        scores = matrix.quick_scores() if rows.whole else None
        if scores is None:
            scores = matrix.row_norms()
        if pooled:
            self.leaders = rows.leaders(scores, min(rows.count, max(_POOL, 4 * self.top)))
            return self.leaders[: self.top]
        if self.top == 1 and rows.whole:
            return scores.argmax().reshape(1)
        return rows.leaders(scores, min(self.top, rows.count))

    def _count(self) -> float:
        """The factor of this call, which is counted in training mode."""
        if not self.training:
            return 1.0
        acts = int(self.calls) % self.every == 0
        self.calls += 1
        return float(self.every) if acts else 0.0

    def add_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_gradient`; in closed form, no gradient of U's size."""
        return self.add_shared_gradient(
            U, V, rows, user_gradient, item_gradient,
            shared=Rows.of(len(U), Ranks()), weight=weight, row_scale=row_scale,
        )  # fmt: skip

    def add_shared_gradient(
        self,
        U: Tensor,
        V: Tensor,
        rows: Tensor | None,
        user_gradient: Tensor,
        item_gradient: Tensor,
        *,
        shared: Rows,
        weight: float = 1.0,
        row_scale: float = 1.0,
    ) -> float:
        """See :meth:`Regularizer.add_shared_gradient`.

        Cost between ranks: the few rows that may be largest, or a matrix of dim x dim; with an
        estimator, its products: a number a user and product.
        """
        factor = self._count()
        if factor == 0 or shared.count == 0 or U.shape[1] == 0 or 0 in V.shape:
            return 0.0
        chosen = self._select(U, V, shared)
        scale = 2.0 * weight * factor / len(chosen)
        if self.side == "users":
            some = shared.fetch(U, chosen)
            product = V @ some.T
            item_gradient.addmm_(product, some, alpha=scale)
            here, mine = shared.own(chosen)
            if rows is None:
                place, kept = mine, torch.ones_like(mine, dtype=torch.bool)
            elif len(rows) == 0:
                place, kept = mine, torch.zeros_like(mine, dtype=torch.bool)
            else:
                place = torch.searchsorted(rows, mine).clamp_(max=len(rows) - 1)
                kept = rows[place] == mine
            if bool(kept.any()):
                to_rows = product.T[here[kept]] @ V
                user_gradient.index_add_(0, place[kept], to_rows, alpha=scale * row_scale)
            return float(factor * product.square().sum() / len(chosen))
        some = V[chosen]
        product = U @ some.T
        own = product if rows is None else product[rows]
        user_gradient.addmm_(own, some, alpha=scale * row_scale)
        to_items = shared.ranks.sum(product.T @ U)
        item_gradient.index_add_(0, chosen, to_items, alpha=scale)
        square = shared.ranks.sum(product.square().sum())
        return float(factor * square / len(chosen))

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"estimator={self.estimator_name}, top={self.top}, side={self.side}"


def _shared_scores(U: Tensor, V: Tensor, shared: Rows) -> FunctionOperator:
    """U V^T of all ranks, each of which has some rows of U: what goes in and out is the same."""
    mine = slice(shared.start, shared.stop)
    return FunctionOperator(
        (shared.count, len(V)),
        lambda X: shared.ranks.joined(U @ (V.mT @ X)),
        lambda Y: V @ shared.ranks.sum(U.mT @ Y[mine]),
        U.dtype,
        U.device,
    )


def _resolve(estimator: str | Estimator) -> tuple[str, Estimator]:
    if callable(estimator):
        return getattr(estimator, "__name__", "custom"), estimator
    if estimator not in METHODS:
        raise InputError(f"estimator must be one of {', '.join(METHODS)}, got {estimator!r}")
    return estimator, METHODS[estimator]
