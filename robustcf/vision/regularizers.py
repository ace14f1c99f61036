"""Penalties on the Jacobian of a classifier: ``reg(model, x)`` is a scalar to add to any loss.

Each is the mean over images of a squared norm of J = d logits / d pixels, estimated from a few
products, differentiable in the weights; batch-norm in training mode as in
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

from robustcf._checks import check_choice, check_integer
from robustcf.errors import InputError
from robustcf.estimators.api import METHODS
from robustcf.estimators.numerics import gaussian, rademacher
from robustcf.vision.jacobian import JacobianOperator

_TINY = 1e-30


class JacobianRegularizer(nn.Module):
    """The base of all penalties; subclasses define :meth:`squares`.

    Args:
        every: act in every k-th call only, 0 in between, **not** multiplied by k (the paper's
            ablation; in training mode, ``eval()`` acts always).
        images: penalize only the first so many images of a batch; None for all. Batch-norm in
            training mode then has the statistics of these images.
        block: vectors per image that one pass takes, see :class:`JacobianOperator`.
        seed: of the random vectors, which differ in every call.
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
        # A buffer, so that state_dict() carries it to a resumed run.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, model: nn.Module, x: Tensor) -> Tensor:
        """Return the penalty (0 in the calls that ``every`` skips)."""
        call = int(self.calls)
        if self.training:
            self.calls += 1
            if call % self.every:
                return x.new_zeros(())
        operator = JacobianOperator(model, x[: self.images], block=self.block)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + call) % 2**63)
        return self.squares(operator, generator).mean()

    def squares(self, J: JacobianOperator, generator: torch.Generator) -> Tensor:
        """Return the squared norm for each image, differentiable."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Return the settings that ``print`` shows."""
        return f"every={self.every}, images={self.images}, seed={self.seed}"


class Frobenius(JacobianRegularizer):
    """||J||_F^2 by random projections (Hoffman, Roberts and Yaida, 2019).

    M ||J v||^2 for v uniform on the unit sphere of R^M, M classes: unbiased.

    Args:
        projections: vectors per image, at one product (VJP) each; the paper takes one.
        options: of :class:`JacobianRegularizer`.

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
        """Return M times the mean of ||J v||^2."""
        classes = J.shape[2]
        v = _unit(_gaussian(J, classes, self.projections, generator))
        return classes * J.matmat(v).square().sum(dim=1).mean(dim=1)


class OperatorNorm(JacobianRegularizer):
    """||J^T||_{p->q}^2, the most that a pixel change of l_p size 1 moves the logits in l_q.

    The power method with dual vectors (Boyd, 1974; Roth, Kilcher and Hofmann, 2020) from a random
    v, then ||J^T v||_q with gradients, v held. Always a lower bound; p = q = 2 converges to the
    norm, the others to a fixed point that need not be the largest one.

    Args:
        p: 2 or inf.
        q: 2 or inf.
        steps: iterations of two products each; 1 is the paper's number.
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
        """Return the squared norm of J^T v for the last v."""
        v = _ball(_gaussian(J, J.shape[1], 1, generator), self.p)
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

    As in the cited work, the norm of the map from pixels to logits; for the tall J itself it is
    the one-norm.
    """

    name = "infinity"

    def __init__(self, *, steps: int = 1, **options: int | None) -> None:
        super().__init__(math.inf, math.inf, steps=steps, **options)


class TwoToInf(JacobianRegularizer):
    """||J||_{2->inf}^2: the largest squared norm of a row, a row being one pixel's influence.

    The row is found without gradients; the value is its exact squared norm, with gradients.

    Args:
        estimator: for the whole batch at once: ``twinest``, the paper's, ``sketch`` (Gaussian
            sketch, then the best of a few rows; the cheapest with budget 5) and ``exact`` (one
            product per class); or any other name of :data:`robustcf.estimators.METHODS`, image by
            image.
        budget: products per image. TwINEst with 9 takes four sign vectors in parallel, at two
            products each, and reads one row. (The paper counts five multiplications, four of them
            parallel, without saying whether a sample is one product or two.)
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
        check_choice("estimator", estimator, METHODS)
        self.estimator, self.budget = estimator, check_integer("budget", budget, 3)

    def squares(self, J: JacobianOperator, generator: torch.Generator) -> Tensor:
        """Return the exact squared norm of the row picked for each image."""
        with torch.no_grad():
            row = self.pick(J, generator)
        return J.rows(row.unsqueeze(1)).square().sum(dim=(1, 2))

    def pick(self, J: JacobianOperator, generator: torch.Generator) -> Tensor:
        """Return the row for each image."""
        images, inputs, classes = J.shape
        if self.estimator == "twinest":
            count = (self.budget - 1) // 2
            signs = rademacher(images * inputs, count, J.dtype, J.device, generator)
            signs = signs.reshape(images, inputs, -1)
            return (signs * J.matmat(J.rmatmat(signs))).mean(dim=2).argmax(dim=1)
        if self.estimator == "exact":
            return J.dense().square().sum(dim=2).argmax(dim=1)
        if self.estimator == "sketch":
            # A single leader needs no comparison: it is read once, with gradients.
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


#: Name -> class, for the command line.
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
    return _unit(g) if p == 2 else g.sign()


def _dual(z: Tensor, q: float) -> Tensor:
    """The vector of l_q* norm 1 whose product with z is ||z||_q."""
    if q == 2:
        return _unit(z)
    leading = z.abs() == z.abs().amax(dim=1, keepdim=True)
    return z.sign() * leading / leading.sum(dim=1, keepdim=True)
