"""The result of every method, and their shared steps: check, rank, verify, conclude."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators import numerics
from robustcf.estimators.numerics import Seed, row_norms
from robustcf.estimators.operators import Counted, MatrixLike


@dataclasses.dataclass(frozen=True)
class NormEstimate:
    """An estimate of a norm, the row that attains it, and its cost.

    Attributes:
        value: the norm of row ``row``, exact up to rounding when ``witness`` is True. A float for
            numpy and scipy matrices, a float64 scalar tensor (differentiable) for torch ones.
        row: the row (for `one_to_two`: the column) found; None for a matrix without rows.
        lower: a true lower bound of the norm, always.
        upper: an upper bound that holds with probability at least 1 - delta (inf if unknown).
        products: vectors multiplied by A.
        rproducts: vectors multiplied by its conjugate transpose.
        certified: whether ``lower`` and ``upper`` meet: the value is then the norm itself with
            probability at least 1 - delta.
        witness: False only where the value is not the norm of the row: for
            `rademacher_averaging` and `adaptive_power` without verification.
        enough: a budget with which ``auto`` is certain, where this answer is not; else None.
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
    enough: int | None = None

    def __str__(self) -> str:
        """Return the value and how certain it is, in a sentence."""
        found = f"{float(self):.6g}, between {self.lower:.6g} and {self.upper:.6g}"
        if self.certified:
            return f"{float(self):.6g}, certain"
        enough = f"use budget={self.enough}, or certify (often cheaper)"
        return f"{found}: not certain; {enough}"

    def __float__(self) -> float:
        return float(self.value.detach() if isinstance(self.value, Tensor) else self.value)

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON; an unknown upper bound is None."""
        fields = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        del fields["witness"]
        upper = self.upper if math.isfinite(self.upper) else None
        return {**fields, "value": float(self), "upper": upper}


class Ranking(NamedTuple):
    """The estimates of all rows before the best of them are read.

    Attributes:
        scores: one per row, larger for rows that seem longer; on any scale.
        bounds: upper bounds of the norm, as in `Run.conclude`.
        lower: a lower bound of the norm that needs no row to be read.
        value: the answer if no row is to be read, for the methods that allow it.
    """

    scores: Tensor
    bounds: Tensor | float
    lower: float = 0.0
    value: Tensor | None = None


def check_probability(name: str, value: object) -> float:
    """Return ``value`` as a float strictly between 0 and 1, or raise."""
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    if isinstance(value, bool) or not 0 < number < 1:
        raise InputError(f"{name} must lie strictly between 0 and 1, got {value!r}: try 0.05")
    return number


class Run:
    """One estimation: the counted operator, the randomness, and the rows verified so far.

    Only reading rows is done with gradients: the value differentiates as the norm of its row.

    Args:
        budget: None counts products without a limit.
        verify: rows to read.
        cost: the fewest products that give any ranking.
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
        cost: int = 0,
        least_verify: int = 1,
    ) -> None:
        self.method = method
        self.delta = check_probability("delta", delta)
        self.generator = numerics.as_generator(generator)
        self.op = Counted(A)
        d, n = self.op.shape
        self.trivial = d == 0 or n == 0
        self.verify = min(check_integer("verify", verify, least_verify), d)
        if budget is not None:
            least = cost + self.verify
            self.op.budget = check_integer("budget", budget, 0)
            if self.op.budget < least and not self.trivial:
                raise InputError(
                    f"{method} needs a budget of at least {least} products "
                    f"({cost} to rank, {self.verify} to verify), got {budget}"
                )
        self.grad = torch.is_grad_enabled()
        self.best: Tensor | None = None
        self.best_vector = torch.zeros(n, dtype=self.op.dtype, device=self.op.device)
        self.best_row: int | None = None
        self.verified = torch.zeros(d, dtype=torch.bool, device=self.op.device)
        self.norms = self.zeros()

    def zeros(self) -> Tensor:
        """Return a zero per row, in float64."""
        return torch.zeros(self.op.shape[0], dtype=torch.float64, device=self.op.device)

    def signs(self, columns: int) -> Tensor:
        """Draw random signs to multiply A^H with."""
        op = self.op
        return numerics.rademacher(op.shape[0], columns, op.dtype, op.device, self.generator)

    def normals(self, columns: int) -> Tensor:
        """Draw standard Gaussians to multiply A with."""
        op = self.op
        return numerics.gaussian(op.shape[1], columns, op.dtype, op.device, self.generator)

    def row_basis(self, P: Tensor) -> Tensor:
        """Return an orthonormal basis of A^H P."""
        Z = self.op.rmatmat(P)
        return numerics.orthonormal(Z / numerics.norm_scale(Z))

    def sketch_off(self, Q: Tensor, columns: int) -> Tensor:
        """Return the row norms of A (I - Q Q^H) G for so many fresh Gaussian columns G."""
        G = self.normals(columns)
        return row_norms(self.op.matmat(G - Q @ (Q.mH @ G)))

    @property
    def lower(self) -> float:
        """The best norm verified so far."""
        return 0.0 if self.best is None else float(self.best.detach())

    def read(self, index: Tensor) -> None:
        """Verify the rows in ``index``: read them, keep their norms and the best one."""
        # A block of rows is k x n: keep it to some 100 MB of float64 for any k.
        step = max(1, 2**23 // max(1, self.op.shape[1]))
        for part in numerics.blocks(index, step):
            with torch.set_grad_enabled(self.grad):
                rows = self.op.rows(part)
                norms = row_norms(rows)
            self.verified[part] = True
            self.norms[part] = norms.detach()
            for place, (row, norm) in enumerate(zip(part.tolist(), norms.tolist(), strict=True)):
                if self.best_row is None or (norm, -row) > (self.lower, -self.best_row):
                    with torch.set_grad_enabled(self.grad):
                        self.best, self.best_row = norms[place], row
                    self.best_vector = rows[place].detach()

    def read_largest(self, norms: Tensor) -> None:
        """Read the largest row, given the exact norms of all."""
        self.read(norms.argmax().reshape(1))
        self.verified[:] = True

    def read_best(self, scores: Tensor, number: int) -> None:
        """Verify the ``number`` best-scored rows that are not verified yet."""
        self.read(self.leaders(scores, number))

    def leaders(self, scores: Tensor, number: int) -> Tensor:
        """Return the best-scored unverified rows, best first, ties by lowest index."""
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
        """Assemble the answer, with upper bounds by row: the maximal row's has to hold.

        ``value`` and ``row`` replace the best verified norm and its row.
        """
        witness = value is None
        lower = upper = max(self.lower, lower)
        if not bool(self.verified.all()):
            most = bounds[~self.verified].max() if isinstance(bounds, Tensor) else bounds
            upper = max(lower, float(most))
        if value is None:
            value = self.best if self.best is not None else 0.0
            row = self.best_row
        if self.op.numpy:
            value = float(value)
        elif not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.float64, device=self.op.device)
        certified = witness and upper <= lower
        spent = self.op.products, self.op.rproducts
        enough = None if certified else 1 + min(self.op.shape)
        return NormEstimate(
            value, row, lower, upper, *spent, certified, self.method, witness, enough
        )

    def conclude_trivial(self) -> NormEstimate:
        """Return the answer for a matrix without entries: 0, in its first row if it has one."""
        self.verified[:] = True
        answer = self.conclude(0.0)
        return dataclasses.replace(answer, row=0 if self.op.shape[0] else None)


def ranking_method(
    *, cost: int, verify: int, least_verify: int = 1, name: str = ""
) -> Callable[[Callable[..., Ranking | NormEstimate]], Callable[..., NormEstimate]]:
    """Make a method of a function that ranks rows, or that concludes by itself.

    The arguments are those of :func:`robustcf.estimators.two_to_inf`. The shared steps are added:
    check the arguments, rank without gradients, read the best rows, conclude.

    Args:
        cost: the fewest products that give any ranking.
        verify: default number of best-ranked rows to read, at most a quarter of the budget.
        least_verify: 0 for methods that can answer without reading a row.
        name: of the method; by default, of the function.

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

    def method(rank: Callable[..., Ranking | NormEstimate]) -> Callable[..., NormEstimate]:
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
            how = {"method": name or rank.__name__, "cost": cost, "least_verify": least_verify}
            run = Run(A, budget, verify, generator, delta, **how)  # type: ignore[arg-type]
            if run.trivial:
                return run.conclude_trivial()
            with torch.no_grad():
                found = rank(run, **options)
            if isinstance(found, NormEstimate):
                return found
            scores, bounds, lower, value = found
            if not run.verify:
                return run.conclude(bounds, value=value, row=int(scores.argmax()), lower=lower)
            run.read_best(scores, run.verify)
            return run.conclude(bounds, lower=lower)

        del estimate.__wrapped__  # its arguments are those above
        return estimate

    return method
