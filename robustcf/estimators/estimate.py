"""What every method returns, and the steps they all share: check, rank, verify, conclude."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.numerics import Seed, as_generator, blocks, gaussian, rademacher, row_norms
from robustcf.estimators.operators import Counted, MatrixLike


@dataclasses.dataclass(frozen=True)
class NormEstimate:
    """An estimate of a norm, the row that attains it, and what it cost.

    Attributes:
        value: the norm of row ``row``, exact up to rounding when ``witness`` is True. A float for
            numpy and scipy matrices, a float64 scalar tensor (differentiable) for torch ones.
        row: the row (for `one_to_two`: the column) found; None if there is none.
        lower: a true lower bound of the norm, always.
        upper: an upper bound that holds with probability at least 1 - delta (inf: none known).
        products: how many vectors were multiplied by A.
        rproducts: how many by its conjugate transpose.
        certified: True when ``lower`` and ``upper`` meet, so that the value is the norm itself
            with probability at least 1 - delta.
        method: the name of the method.
        witness: False only where the value is not the norm of the row: for
            `rademacher_averaging` and `adaptive_power` without verification.
    """

    value: Any
    row: int | None
    lower: float
    upper: float
    products: int
    rproducts: int
    certified: bool
    method: str
    witness: bool = True

    def __float__(self) -> float:
        """The value as a plain number."""
        return float(self.value.detach() if isinstance(self.value, Tensor) else self.value)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON; an unknown upper bound is None."""
        return {
            "value": float(self),
            "row": self.row,
            "lower": self.lower,
            "upper": self.upper if math.isfinite(self.upper) else None,
            "products": self.products,
            "rproducts": self.rproducts,
            "certified": self.certified,
            "method": self.method,
        }


class Ranking(NamedTuple):
    """What a method knows of all rows before it reads the best of them.

    Attributes:
        scores: one per row, larger for rows that seem longer; on any scale.
        bounds: upper bounds of the norm, as in `Run.conclude`.
        lower: a lower bound of the norm that needs no row to be read.
        value: the answer where no row is to be read, for the methods that allow it.
    """

    scores: Tensor
    bounds: Tensor | float
    lower: float = 0.0
    value: Tensor | None = None


def check_probability(name: str, value: object) -> float:
    """``value`` as a float strictly between 0 and 1, or an error."""
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    if isinstance(value, bool) or not 0 < number < 1:
        raise InputError(f"{name} must lie strictly between 0 and 1, got {value!r}: try 0.05")
    return number


class Run:
    """One estimation: the counted operator, the randomness, and the rows verified so far.

    Everything but the reading of rows happens without gradients; rows are read with them, so that
    the value differentiates as the norm of the row that was chosen.

    Args:
        A: as the method was given it, like the next four.
        budget: None counts products without a limit.
        verify: rows to read.
        generator: see `as_generator`.
        delta: strictly between 0 and 1.
        method: its name.
        samples_cost: the fewest products that give any ranking.
        least_verify: 0 for methods that can answer without reading a row.
    """

    def __init__(
        self,
        A: MatrixLike,
        budget: int | None,
        verify: int,
        generator: Seed,
        delta: float,
        *,
        method: str,
        samples_cost: int = 0,
        least_verify: int = 1,
    ) -> None:
        self.method = method
        self.delta = check_probability("delta", delta)
        self.generator = as_generator(generator)
        self.op = Counted(A)
        d, n = self.op.shape
        self.trivial = d == 0 or n == 0
        self.verify = min(check_integer("verify", verify, least_verify), d)
        if budget is not None:
            least = samples_cost + self.verify
            checked = check_integer("budget", budget, 0)
            if checked < least and not self.trivial:
                raise InputError(
                    f"{method} needs a budget of at least {least} products "
                    f"({samples_cost} to rank, {self.verify} to verify), got {budget}: raise it"
                )
            self.op.budget = checked
        self.grad = torch.is_grad_enabled()
        self.best: Tensor | None = None
        self.best_vector = torch.zeros(n, dtype=self.op.dtype, device=self.op.device)
        self.best_row: int | None = None
        self.verified = torch.zeros(d, dtype=torch.bool, device=self.op.device)
        self.norms = torch.zeros(d, dtype=torch.float64, device=self.op.device)

    def signs(self, columns: int) -> Tensor:
        """Random signs to multiply A^H with."""
        return rademacher(self.op.shape[0], columns, self.op.dtype, self.op.device, self.generator)

    def normals(self, columns: int) -> Tensor:
        """Standard Gaussians to multiply A with."""
        return gaussian(self.op.shape[1], columns, self.op.dtype, self.op.device, self.generator)

    def carry_out(self, steps: Callable[[Run], NormEstimate]) -> NormEstimate:
        """What ``steps`` conclude; a matrix without entries needs none."""
        return self.conclude_trivial() if self.trivial else steps(self)

    @property
    def lower(self) -> float:
        """The best norm verified so far."""
        return 0.0 if self.best is None else float(self.best.detach())

    def read(self, index: Tensor) -> None:
        """Verify the rows in ``index``: read them, keep their norms and the best one."""
        # A block of rows is k x n: keep it to some 100 MB of float64 whatever k is.
        step = max(1, 2**23 // max(1, self.op.shape[1]))
        for part in blocks(index, step):
            with torch.set_grad_enabled(self.grad):
                rows = self.op.rows(part)
                norms = row_norms(rows)
            self.verified[part] = True
            self.norms[part] = norms.detach()
            parts = zip(part.tolist(), norms.tolist(), range(len(part)), strict=True)
            for row, norm, place in parts:
                if self.best_row is None or (norm, -row) > (self.lower, -self.best_row):
                    with torch.set_grad_enabled(self.grad):
                        self.best, self.best_row = norms[place], row
                    self.best_vector = rows[place].detach()

    def read_best(self, scores: Tensor, number: int) -> None:
        """Verify the ``number`` best-scored rows that are not verified yet."""
        self.read(self.leaders(scores, number))

    def leaders(self, scores: Tensor, number: int) -> Tensor:
        """The best-scored unverified rows, best first, ties by lowest index."""
        open_scores = scores.masked_fill(self.verified, -math.inf)
        number = min(number, int((~self.verified).sum()))
        return torch.sort(open_scores, descending=True, stable=True).indices[:number]

    def conclude(
        self,
        bounds: Tensor | float,
        *,
        value: Tensor | float | None = None,
        row: int | None = None,
        lower: float = 0.0,
    ) -> NormEstimate:
        """Assemble the answer.

        Args:
            bounds: an upper bound of the norm for every row (verified ones are overruled), such
                that the maximal row's holds with probability 1 - delta; or one number.
            value: where it is not the best verified norm; ``row`` likewise.
            row: see above.
            lower: a lower bound that needs no verified row.
        """
        witness = value is None
        true_lower = max(self.lower, lower)
        if bool(self.verified.all()):
            upper = true_lower
        elif isinstance(bounds, Tensor):
            upper = max(true_lower, float(bounds[~self.verified].max()))
        else:
            upper = max(true_lower, bounds)
        if value is None:
            value = self.best if self.best is not None else 0.0
            row = self.best_row
        if self.op.numpy:
            value = float(value)
        elif not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.float64, device=self.op.device)
        return NormEstimate(
            value=value,
            row=row,
            lower=true_lower,
            upper=upper,
            products=self.op.products,
            rproducts=self.op.rproducts,
            certified=witness and upper <= true_lower,
            method=self.method,
            witness=witness,
        )

    def conclude_trivial(self) -> NormEstimate:
        """A matrix without entries has norm 0, attained by its first row if it has one."""
        self.verified[:] = True
        answer = self.conclude(0.0)
        return dataclasses.replace(answer, row=0 if self.op.shape[0] else None)


class Estimator(Protocol):
    """How every method is called."""

    def __call__(
        self,
        A: MatrixLike,
        budget: int,
        *,
        verify: int | None = None,
        generator: Seed = None,
        delta: float = 0.05,
        **options: Any,
    ) -> NormEstimate:
        """See :func:`robustcf.estimators.two_to_inf`."""
        ...


def ranking_method(
    *, cost: int, verify: int, least_verify: int = 1
) -> Callable[[Callable[..., Ranking]], Estimator]:
    """Make a method of a function that ranks rows.

    What is sampled is the function's; the rest is shared: check the arguments, rank without
    gradients, read the best rows, conclude.

    Args:
        cost: the fewest products that give any ranking.
        verify: how many of the best-ranked rows are read where the caller does not say, but no more
            than a quarter of the budget.
        least_verify: 0 for methods that can answer without reading a row.

    Example:
        >>> @ranking_method(cost=1, verify=1)
        ... def by_first_entry(run: Run) -> Ranking:
        ...     e = torch.eye(run.op.shape[1], 1, dtype=run.op.dtype)
        ...     return Ranking(scores=run.op.matmat(e)[:, 0].abs(), bounds=math.inf)
        >>> answer = by_first_entry(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), 2)
        >>> float(answer), answer.row, answer.products, answer.rproducts
        (5.0, 1, 1, 1)
    """
    rows = verify

    def method(rank: Callable[..., Ranking]) -> Estimator:
        @functools.wraps(rank)
        def estimate(
            A: MatrixLike,
            budget: int,
            *,
            verify: int | None = None,
            generator: Seed = None,
            delta: float = 0.05,
            **options: Any,
        ) -> NormEstimate:
            if verify is None:
                quarter = budget // 4 if isinstance(budget, int) else 0
                verify = max(min(rows, 1), min(rows, quarter))
            run = Run(
                A,
                budget,
                verify,
                generator,
                delta,
                method=rank.__name__,
                samples_cost=cost,
                least_verify=least_verify,
            )
            return run.carry_out(lambda run: _rank_and_verify(run, rank, options))

        del estimate.__wrapped__  # its arguments are those above
        return estimate

    return method


def _rank_and_verify(
    run: Run, rank: Callable[..., Ranking], options: dict[str, Any]
) -> NormEstimate:
    with torch.no_grad():
        scores, bounds, lower, value = rank(run, **options)
    if not run.verify:
        return run.conclude(bounds, value=value, row=int(scores.argmax()), lower=lower)
    run.read_best(scores, run.verify)
    return run.conclude(bounds, lower=lower)
