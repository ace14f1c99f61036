"""Penalties on the Jacobian of a classifier: ``reg(model, x)`` is a scalar to add to any loss.

Each is the mean over images of a squared norm of J = d logits / d pixels, estimated from a few
products, differentiable in the weights. What becomes of batch-norm in training mode is said in
:class:`robustcf.vision.per_image.PerImage`.

Example:
    >>> import torch
    >>> from robustcf.vision.wideresnet import WideResNet
    >>> net = WideResNet(10, 1, 4, in_channels=1, generator=0)
    >>> reg = TwoToInf(seed=0)
    >>> reg(net, torch.rand(2, 1, 8, 8)).backward()
    >>> net.stem.weight.grad is not None
    True
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.api import METHODS
from robustcf.estimators.numerics import gaussian, rademacher
from robustcf.vision.jacobian import JacobianOperator

_TINY = 1e-30


class JacobianRegularizer(nn.Module):
    """Base: counts calls, draws a generator for each, averages over images.

    Args:
        every: act in every k-th call only, 0 in between (the paper's ablation; in training mode,
            ``eval()`` acts always). The value is **not** multiplied by k, as in the paper.
        images: penalize only the first so many images of a batch; None for all. Batches are
            shuffled, so this estimates the same mean at a part of the cost (in training mode
            the statistics of batch-norm are those of these images).
        block: vectors per image that one pass takes, see :class:`JacobianOperator`.
        seed: of the random vectors; every call draws from a stream of its own.
    """

    name = ""
    calls: Tensor

    def __init__(
        self, *, every: int = 1, images: int | None = None, block: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        for option, value in {"every": every, "images": images, "block": block}.items():
            if value is not None:
                check_integer(option, value)
        self.every, self.images, self.block, self.seed = every, images, block, seed
        # A buffer, so that state_dict() carries it: a resumed run goes on as it would have.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, model: nn.Module, x: Tensor) -> Tensor:
        """The penalty (0 in the calls that ``every`` skips)."""
        call = int(self.calls)
        if self.training:
            self.calls += 1
            if call % self.every:
                return x.new_zeros(())
        operator = JacobianOperator(model, x[: self.images], block=self.block)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + call) % 2**63)
        return self.squares(operator, generator).mean()

    def squares(self, J: JacobianOperator, generator: torch.Generator) -> Tensor:
        """The squared norm for each image, differentiable."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"every={self.every}, images={self.images}, seed={self.seed}"


class Frobenius(JacobianRegularizer):
    """||J||_F^2 by random projections (Hoffman, Roberts and Yaida, 2019).

    M ||J v||^2 for v uniform on the unit sphere of R^M, M classes: unbiased.

    Args:
        projections: vectors an image; the paper takes one.
        options: of :class:`JacobianRegularizer`.

    Cost: one product (VJP) a projection.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False))
        >>> value = Frobenius()(net, torch.rand(3, 1, 2, 2))
        >>> torch.allclose(value, net[1].weight.square().sum())
        True
    """

    name = "frobenius"

    def __init__(self, *, projections: int = 1, **options: int | None) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.projections = check_integer("projections", projections)

    def squares(self, J: JacobianOperator, generator: torch.Generator) -> Tensor:
        """M times the mean of ||J v||^2."""
        classes = J.shape[2]
        v = _unit(_gaussian(J, classes, self.projections, generator))
        return classes * J.matmat(v).square().sum(dim=1).mean(dim=1)


class OperatorNorm(JacobianRegularizer):
    """||J^T||_{p->q}^2, the most that a pixel change of l_p size 1 moves the logits in l_q.

    The power method with dual vectors (Boyd, 1974; Roth, Kilcher and Hofmann, 2020): from random
    v, u = dual_q(J^T v), v = the maximizer of <J u, v> on the l_p ball, and so on; then
    ||J^T v||_q with gradients, v held. Always a lower bound of the norm. p = q = 2 converges to
    it; the others climb to a fixed point, which need not be the largest one.

    Args:
        p: 2 or inf.
        q: 2 or inf.
        steps: iterations of two products each; 1 makes three products in all, the paper's number.
        options: of :class:`JacobianRegularizer`.

    Cost: 2 steps + 1 products, one after another.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
        >>> norm = OperatorNorm(math.inf, math.inf, steps=9)(net, torch.rand(2, 1, 2, 2)).sqrt()
        >>> bool(norm <= net[1].weight.abs().sum(dim=1).max() + 1e-5)
        True
    """

    def __init__(
        self, p: float = 2.0, q: float = 2.0, *, steps: int = 1, **options: int | None
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        if p not in (2, math.inf) or q not in (2, math.inf):
            raise InputError(f"p and q must be 2 or inf, got {p!r} and {q!r}")
        self.p, self.q, self.steps = p, q, check_integer("steps", steps)

    def squares(self, J: JacobianOperator, generator: torch.Generator) -> Tensor:
        """The squared norm of J^T v for the last v."""
        inputs = J.shape[1]
        v = _ball(_gaussian(J, inputs, 1, generator), self.p)
        with torch.no_grad():
            for _ in range(self.steps):
                u = _dual(J.rmatmat(v), self.q)
                v = _ball(J.matmat(u), self.p)
        moved = J.rmatmat(v).squeeze(2)
        if self.q == 2:
            return moved.square().sum(dim=1)
        return moved.abs().amax(dim=1).square()


class Spectral(OperatorNorm):
    """||J||_2^2, the largest squared singular value: :class:`OperatorNorm` with p = q = 2."""

    name = "spectral"

    def __init__(self, *, steps: int = 1, **options: int | None) -> None:
        super().__init__(2.0, 2.0, steps=steps, **options)


class Infinity(OperatorNorm):
    """||J^T||_inf^2, the squared largest l_1 norm of a logit's gradient: p = q = inf.

    The map from pixels to logits is measured, as in the cited work: how far the logits can move
    when every pixel may change by 1. (For the tall J itself this is its one-norm.)
    """

    name = "infinity"

    def __init__(self, *, steps: int = 1, **options: int | None) -> None:
        super().__init__(math.inf, math.inf, steps=steps, **options)


class TwoToInf(JacobianRegularizer):
    """||J||_{2->inf}^2: the largest squared norm of a row, a row being one pixel's influence.

    The row is found without gradients; then ||J^T e_j||^2 is taken with them, so the value is
    always the exact squared norm of the row that was picked.

    Args:
        estimator: ``twinest``, the paper's; ``sketch`` (Gaussian sketch, then the best of a few
            rows read; with budget 5 the cheapest: four products in parallel, and one) and
            ``exact`` (one product a class), all three for the whole batch at once; or any other
            name of :data:`robustcf.estimators.METHODS`, image by image.
        budget: products per image: TwINEst with 9 takes four sign vectors in parallel, at two
            products each, and reads one row. (The paper counts five multiplications, four of
            them parallel; whether a sample there is one product or two it does not say: with
            budget 5 there are two samples.)
        options: of :class:`JacobianRegularizer`.

    Cost: ``budget`` products, one of them differentiated.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
        >>> value = TwoToInf(estimator="exact")(net, torch.rand(2, 1, 2, 2))
        >>> torch.allclose(value, net[1].weight.square().sum(dim=0).max())
        True
    """

    name = "two_to_inf"

    def __init__(
        self, *, estimator: str = "twinest", budget: int = 9, **options: int | None
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        if estimator not in METHODS:
            raise InputError(f"estimator must be one of {', '.join(METHODS)}, got {estimator!r}")
        if check_integer("budget", budget) < 3:
            raise InputError(f"budget must be at least 3 products, got {budget}")
        self.estimator, self.budget = estimator, budget

    def squares(self, J: JacobianOperator, generator: torch.Generator) -> Tensor:
        """The exact squared norm of the row picked for each image."""
        with torch.no_grad():
            row = self.pick(J, generator)
        return J.rows(row.unsqueeze(1)).square().sum(dim=(1, 2))

    def pick(self, J: JacobianOperator, generator: torch.Generator) -> Tensor:
        """The row for each image."""
        images, inputs, classes = J.shape
        if self.estimator == "twinest":
            signs = rademacher(
                images * inputs, (self.budget - 1) // 2, J.dtype, J.device, generator
            ).reshape(images, inputs, -1)
            return (signs * J.matmat(J.rmatmat(signs))).mean(dim=2).argmax(dim=1)
        if self.estimator == "exact":
            return J.dense().square().sum(dim=2).argmax(dim=1)
        if self.estimator == "sketch":
            # With one leader there is nothing to compare: it is read once, with gradients.
            verify = min(4, self.budget // 4, inputs)
            read = verify if verify > 1 else 0
            sketch = J.matmat(_gaussian(J, classes, self.budget - read - 1, generator))
            scores = sketch.square().sum(dim=2)
            if not read:
                return scores.argmax(dim=1)
            leaders = scores.topk(read, dim=1).indices
            best = J.rows(leaders).square().sum(dim=2).argmax(dim=1, keepdim=True)
            return leaders.gather(1, best).squeeze(1)
        method = METHODS[self.estimator]
        found = [method(J.image(n), self.budget, generator=generator).row for n in range(images)]
        return torch.tensor([row or 0 for row in found], device=J.device)


#: Name -> class, for the command line; ``none`` is no regularizer.
REGULARIZERS: dict[str, type[JacobianRegularizer]] = {
    "frobenius": Frobenius,
    "spectral": Spectral,
    "infinity": Infinity,
    "two_to_inf": TwoToInf,
}


def _gaussian(J: JacobianOperator, side: int, vectors: int, generator: torch.Generator) -> Tensor:
    images = J.shape[0]
    return gaussian(images * side, vectors, J.dtype, J.device, generator).reshape(images, side, -1)


def _unit(g: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(g, dim=1, keepdim=True)
    return g / length.clamp_min(_TINY)


def _ball(g: Tensor, p: float) -> Tensor:
    """The point of the l_p unit ball with the largest product with g."""
    if p == 2:
        return _unit(g)
    return g.sign()


def _dual(z: Tensor, q: float) -> Tensor:
    """The vector of l_q* norm 1 whose product with z is ||z||_q."""
    if q == 2:
        return _unit(z)
    leading = z.abs() == z.abs().amax(dim=1, keepdim=True)
    return z.sign() * leading / leading.sum(dim=1, keepdim=True)
