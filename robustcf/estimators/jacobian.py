"""The Jacobian of a function as an operator: JVPs and VJPs, never the matrix."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from robustcf.errors import InputError
from robustcf.estimators.operators import Matrix, working_dtype


@functools.cache
def _load_forward_mode() -> None:
    # The first forward-mode derivative makes torch script some rules of its own, with a
    # deprecation warning that no caller can act on.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(1),), (torch.zeros(1),))


class Jacobian(Matrix):
    """J = df/dx at x, outputs x inputs, both flattened.

    ``matmat`` is a Jacobian-vector product (forward mode), ``rmatmat`` a vector-Jacobian product
    (reverse mode); several vectors go through `torch.func.vmap` together. The inputs x outputs
    matrix, tall for a classifier, is ``Jacobian(f, x).H``: its two-to-infinity norm is the
    largest gradient norm over pixels, J's own the largest over classes. Products are
    differentiable in x and in whatever parameters f closes over.

    Args:
        function: maps one tensor to one tensor.
        x: where to differentiate.
        forward_mode: False builds JVPs from two VJPs, for functions without forward-mode rules.
        chunk: how many vectors vmap takes at once (None: all).
        output_shape: of the function's value, where it is known: saves evaluating it once.

    Example:
        >>> J = Jacobian(lambda x: x**2, torch.tensor([1.0, 3.0]))
        >>> J.matmat(torch.eye(2)).tolist()
        [[2.0, 0.0], [0.0, 6.0]]
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        x: Tensor,
        *,
        forward_mode: bool = True,
        chunk: int | None = None,
        output_shape: torch.Size | None = None,
    ) -> None:
        if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
            got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise InputError(f"x must be a real floating point tensor, got {got}")
        if chunk is not None and chunk < 1:
            raise InputError(f"chunk must be at least 1 or None, got {chunk}")
        if output_shape is None:
            with torch.no_grad():
                output = function(x)
            if not isinstance(output, torch.Tensor):
                raise InputError(
                    f"function must return one tensor, got {type(output).__name__}: "
                    "pick one output or concatenate them"
                )
            output_shape = output.shape
        self._function, self._x = function, x
        self._forward_mode, self._chunk = forward_mode, chunk
        self._output_shape = output_shape
        self.shape = (output_shape.numel(), x.numel())
        self.dtype = working_dtype(x.dtype)
        self.device = x.device

    def _jvp(self, v: Tensor) -> Tensor:
        tangent = v.reshape(self._x.shape).to(self._x.dtype)
        if self._forward_mode:
            _load_forward_mode()
            out: Tensor = jvp(self._function, (self._x,), (tangent,))[1]
            return out.reshape(-1)

        # u -> J^T u is linear, so its own VJP applied to v is J v.
        def pullback(u: Tensor) -> Tensor:
            result: Tensor = vjp(self._function, self._x)[1](u)[0]
            return result

        zero = torch.zeros(self._output_shape, dtype=self._x.dtype, device=self.device)
        image: Tensor = vjp(pullback, zero)[1](tangent)[0]
        return image.reshape(-1)

    def _vjp(self, u: Tensor) -> Tensor:
        cotangent = u.reshape(self._output_shape).to(self._x.dtype)
        out: Tensor = vjp(self._function, self._x)[1](cotangent)[0]
        return out.reshape(-1)

    def _columns(self, product: Callable[[Tensor], Tensor], X: Tensor, rows: int) -> Tensor:
        if X.shape[1] == 0:
            return torch.zeros(rows, 0, dtype=self.dtype, device=self.device)
        if X.shape[1] == 1:
            return product(X[:, 0]).unsqueeze(1).to(self.dtype)
        mapped = vmap(product, in_dims=1, out_dims=1, randomness="same", chunk_size=self._chunk)
        result: Tensor = mapped(X)
        return result.to(self.dtype)

    def matmat(self, X: Tensor, /) -> Tensor:
        """J X."""
        return self._columns(self._jvp, X, self.shape[0])

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """J^T Y."""
        return self._columns(self._vjp, Y, self.shape[1])
