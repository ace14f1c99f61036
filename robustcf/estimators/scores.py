"""Scores that no product of factors gives, as an operator: a function of users and items."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.estimate import Ranking, Run, ranking_method
from robustcf.estimators.numerics import blocks, norm_scale, row_norms
from robustcf.estimators.operators import Matrix, working_dtype

Inputs = int | Tensor | Sequence[Tensor]


class Scores(Matrix):
    """A_ui = the score of item i for user u by any function, never stored: blocks are computed.

    ``function(users, items)`` gets a block of the users' inputs and one of the items', and returns
    a score per user (row) and item (column). Rows are differentiable in the parameters.

    Args:
        function: a module or function, without dropout or other randomness.
        users: inputs by user: a tensor, or several (ids, features, histories), of one length; a
            number stands for ids from 0.
        items: inputs by item.
        pairs: the function takes as many users as items and scores them pair by pair, as NeuMF.
        block: users x items computed at a time.
        bound: the largest absolute score that is possible (1 for probabilities and cosines), from
            which `sampled` derives an upper bound; None if unknown.

    Cost: one score per user and item for *every* call of a product, of any number of vectors, and
    for all row norms together: so the exact norm costs no more than a sketch. A row costs a score
    per item, a column a score per user; `sampled` needs some rows and columns only.

    Example:
        >>> table = torch.nn.Embedding.from_pretrained(torch.eye(3))
        >>> A = Scores(lambda u, i: torch.sigmoid(table(u) @ table(i).T), users=2, items=3)
        >>> A.shape, [round(value, 3) for value in A.row_norms().tolist()]
        ((2, 3), [1.017, 1.017])
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        users: Inputs,
        items: Inputs,
        *,
        pairs: bool = False,
        block: int = 2**20,
        bound: float | None = None,
    ) -> None:
        self.users, self.items = _inputs("users", users), _inputs("items", items)
        self.function, self.pairs, self.bound = function, pairs, bound
        self.block = check_integer("block", block)
        self.transposed = False
        self.shape = (len(self.users[0]), len(self.items[0]))
        self.dtype, self.device = torch.float32, self.users[0].device
        if 0 in self.shape:
            return
        users, items = (torch.arange(min(3, side), device=self.device) for side in self.shape)
        with torch.no_grad():
            first, again = self._scores(users, items), self._scores(users[:2], items)
        slack = 1e-2 * float(first.abs().max())
        if not torch.allclose(first[:2], again, rtol=0, atol=slack, equal_nan=True):
            raise InputError(
                "the function gave two scores for one user and item: call eval() on its module, so "
                "that no dropout is on and batch norm takes its running statistics"
            )
        self.dtype, self.device = working_dtype(first.dtype), first.device

    @property
    def H(self) -> Scores:
        """The transpose: items become the rows."""
        other = object.__new__(Scores)
        other.__dict__.update(self.__dict__, transposed=not self.transposed)
        other.shape = (self.shape[1], self.shape[0])
        return other

    def _scores(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the scores of some rows and columns, checked."""
        u, i = (columns, rows) if self.transposed else (rows, columns)
        shape = (len(u), len(i))
        if self.pairs:
            u, i = u.repeat_interleave(shape[1]), i.repeat(shape[0])
        found: Any = self.function(_taken(self.users, u), _taken(self.items, i))
        if self.pairs and isinstance(found, Tensor) and found.numel() == len(u):
            found = found.reshape(shape)
        if not isinstance(found, Tensor) or found.shape != shape:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            want = f"{len(u)} scores" if self.pairs else f"users x items, {shape[0]} x {shape[1]}"
            other = "" if self.pairs else "; for one score per pair, pairs=True"
            raise InputError(f"the function must return {want}, got {got}{other}")
        if not found.dtype.is_floating_point:
            raise InputError(f"scores must be real floating point, got {found.dtype}: use .float()")
        return found.T if self.transposed else found

    def _blocks(self, rows: Tensor, columns: Tensor) -> Any:
        """Yield blocks of rows, and their scores at the columns."""
        wide = max(1, min(len(columns), self.block))
        high = max(1, self.block // wide)
        for some in blocks(rows, high):
            parts = [self._scores(some, part) for part in blocks(columns, wide)]
            yield some, torch.cat(parts, dim=1).to(self.dtype)

    def _all(self, side: int) -> Tensor:
        return torch.arange(self.shape[side], device=self.users[0].device)

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return A X."""
        parts = [scores @ X for _, scores in self._blocks(self._all(0), self._all(1))]
        return torch.cat(parts) if parts else X.new_zeros(self.shape[0], X.shape[1])

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return A^T Y."""
        out = Y.new_zeros(self.shape[1], Y.shape[1])
        for rows, scores in self._blocks(self._all(0), self._all(1)):
            out = out + scores.T @ Y[rows.to(Y.device)]
        return out

    def rows(self, index: Tensor) -> Tensor:
        """Return rows: a score per item."""
        parts = [part for _, part in self._blocks(index.to(self.users[0].device), self._all(1))]
        return torch.cat(parts) if parts else self.users[0].new_zeros(0, self.shape[1])

    @torch.no_grad()
    def row_norms(self) -> Tensor:
        """Return all row norms, from all scores."""
        parts = [row_norms(scores) for _, scores in self._blocks(self._all(0), self._all(1))]
        none = torch.zeros(0, dtype=torch.float64, device=self.device)
        return torch.cat([none, *parts])


@ranking_method(cost=2, verify=16)
def sampled(run: Run, *, bound: float | None = None) -> Ranking:
    """Estimate ||A||_{2->inf} from the entries of random columns, and the best rows read.

    ||A_i||^2 is n times the mean of |A_ij|^2 over s columns drawn with replacement. Unlike a
    sketch it computes s entries per row only, so it is the method for scores by a function
    (`Scores`), where a product costs all of them. It misses rows whose length is in few columns.

    With a bound on the entries the result has an upper bound, by the empirical Bernstein inequality
    of Maurer and Pontil (2009, arXiv:0907.3740) for the maximal row alone; without one it is
    infinite.

    Args:
        bound: the largest absolute entry that is possible; None takes the operator's own.

    Cost: at most s = budget - verify columns, each counted as a product with A.

    Example:
        >>> A = torch.ones(100, 50, dtype=torch.float64)
        >>> A[42] *= 3
        >>> sampled(A, 20, verify=4, generator=0).row
        42
    """
    op, n, s = run.op, run.op.shape[1], run.op.left - run.verify
    drawn = torch.randint(n, (s,), generator=run.generator, device=run.generator.device)
    columns, places = torch.unique(drawn.to(op.device), return_inverse=True)
    entries = op.columns(columns)[:, places]
    scale = norm_scale(entries)
    squares = (entries.to(op.wide) / scale).abs().square()
    means = squares.mean(dim=1)
    if bound is None:
        bound = getattr(op.operator, "bound", None)
    if bound is None or s < 2:
        return Ranking(means, math.inf)
    most = float(squares.max()) ** 0.5 * scale
    if most > bound * (1 + 1e-6):
        raise InputError(f"expected entries of at most bound = {bound:g}, got {most:g}: raise it")
    log = math.log(2 / run.delta)
    slack = (2 * squares.var(dim=1) * log / s).sqrt()
    slack += 7 * (bound / scale) ** 2 * log / (3 * (s - 1))
    uppers = (n * (means + slack)).sqrt().mul(scale).clamp_max(n**0.5 * bound)
    return Ranking(means, uppers)


def _inputs(name: str, given: Inputs) -> list[Tensor]:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return [torch.arange(given)]
    found = [given] if isinstance(given, Tensor) else given
    if not isinstance(found, Sequence) or not all(isinstance(p, Tensor) and p.dim() for p in found):
        raise InputError(
            f"{name} must be a number, a tensor or several, got {type(given).__name__}"
        )
    if len({len(part) for part in found}) != 1:
        raise InputError(f"{name} must be tensors of one length, got {[len(p) for p in found]}")
    return list(found)


def _taken(inputs: list[Tensor], index: Tensor) -> Any:
    parts = tuple(part[index] for part in inputs)
    return parts[0] if len(parts) == 1 else parts
