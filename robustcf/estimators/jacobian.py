"""The Jacobian of a function as an operator: JVPs and VJPs, never the matrix."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import jvp, vjp, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from robustcf._checks import check_integer
from robustcf.errors import InputError
from robustcf.estimators.operators import Matrix, working_dtype


@functools.cache
def _load_forward_mode() -> None:
    # The first forward-mode derivative makes torch warn about rules of its own.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(1),), (torch.zeros(1),))


@functools.cache
def _say_once(words: str) -> None:
    warnings.warn(words, stacklevel=2)


class Jacobian(Matrix):
    """J = df/dx at x, outputs x inputs, both flattened.

    ``matmat`` is a Jacobian-vector product, ``rmatmat`` a vector-Jacobian product (reverse mode),
    batched by `torch.func.vmap`. The norm of J is the largest gradient norm over outputs (classes),
    that of ``Jacobian(f, x).H`` over inputs (pixels). Products are differentiable in x and in the
    parameters of f, and change no running statistics.

    Attention runs with the math kernel, and layer norm and batch norm (in training mode) are
    written out, because torch's fused versions lack forward mode or have wrong higher derivatives.
    For token ids take the derivative at their embeddings: ``Jacobian(lambda e:
    model(inputs_embeds=e), table(ids))``.

    Args:
        function: maps one tensor to one tensor, without dropout or other randomness.
        x: float16 and bfloat16 are multiplied in their own precision; results are float32.
        forward_mode: JVPs in forward mode, or (False) by two reverse passes. None: forward mode,
            and two reverse passes, with a warning, where an operation has no forward-mode rule.
        chunk: vectors per vmap call (None: all). A function that vmap refuses takes one by one.
        output_shape: shape of the function's value, if known: saves evaluating it once.

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
        forward_mode: bool | None = None,
        chunk: int | None = None,
        output_shape: torch.Size | None = None,
    ) -> None:
        if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
            got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            advice = "differentiate at the embeddings of ids, and at view_as_real of complex values"
            raise InputError(f"x must be a real floating point tensor, got {got}: {advice}")
        if chunk is not None:
            check_integer("chunk", chunk)
        self._function, self._x, self._chunk = function, x, chunk
        self._modes = [True, False] if forward_mode is None else [forward_mode]
        self._batched = [True, False]
        self._output_dtype = x.dtype
        if output_shape is None:
            output = self._value()
            output_shape, self._output_dtype = output.shape, output.dtype
        self._output_shape = output_shape
        self.shape = (output_shape.numel(), x.numel())
        self.dtype = working_dtype(x.dtype)
        self.device = x.device

    def _value(self) -> Tensor:
        probe = self._x.detach().clone()
        before = probe._version
        with torch.no_grad(), differentiable(self._function):
            output: Any = self._function(probe)
        real = isinstance(output, Tensor) and output.dtype.is_floating_point
        if not real:
            got = output.dtype if isinstance(output, Tensor) else type(output).__name__
            advice = "return logits, and view_as_real of complex values"
            raise InputError(f"function must return one real tensor, got {got}: {advice}")
        if probe._version != before:
            raise InputError("function changes its input in place: let it begin with x.clone()")
        return cast(Tensor, output)

    def _forward(self, v: Tensor) -> Tensor:
        _load_forward_mode()
        tangent = v.reshape(self._x.shape).to(self._x.dtype)
        value, out = jvp(self._function, (self._x,), (tangent,))[:2]
        return self._checked(value, out)

    def _double_backward(self, v: Tensor) -> Tensor:
        # u -> J^T u is linear, so its own VJP applied to v is J v.
        zero = torch.zeros(self._output_shape, dtype=self._output_dtype, device=self.device)
        pullback = vjp(self._vjp, zero.reshape(-1))[1]
        out: Tensor = pullback(v.to(self._x.dtype))[0]
        return out

    def _vjp(self, u: Tensor) -> Tensor:
        value, pullback = vjp(self._function, self._x)[:2]
        out: Tensor = pullback(self._checked(value, u).reshape(value.shape).to(value.dtype))[0]
        return out.reshape(-1)

    def _checked(self, value: Tensor, out: Tensor) -> Tensor:
        if value.shape != self._output_shape:
            raise InputError(
                f"function must return one shape, got {tuple(self._output_shape)} and then "
                f"{tuple(value.shape)}: its shape may depend on that of x alone"
            )
        return out.reshape(-1)

    def _columns(self, X: Tensor, rows: int, forward: bool) -> Tensor:
        """Multiply every column, in the first way that torch supports."""
        if X.shape[1] == 0:
            return torch.zeros(rows, 0, dtype=self.dtype, device=self.device)
        several = self._batched if X.shape[1] > 1 else [False]
        refused: Exception | None = None
        for mode, batched in product(self._modes if forward else [False], several):
            one = self._vjp if not forward else self._forward if mode else self._double_backward
            try:
                with differentiable(self._function):
                    if batched:
                        how: Any = {"randomness": "same", "chunk_size": self._chunk}
                        found: Tensor = vmap(one, in_dims=1, out_dims=1, **how)(X)
                    else:
                        found = torch.stack([one(column) for column in X.unbind(1)], dim=1)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # NotImplementedError is one
                refused = refused or error
                continue
            if refused is not None:
                reason = " ".join(str(refused).split())[:200]
                how = "by two reverse passes" if forward and not mode else "one vector at a time"
                _say_once(f"Jacobian: products are made {how}, since torch says: {reason}")
                if forward:
                    self._modes = [mode]
                if not batched and X.shape[1] > 1:
                    self._batched = [False]
            return found.to(self.dtype)
        raise _refusal(refused) from refused

    def matmat(self, X: Tensor, /) -> Tensor:
        """Return J X."""
        return self._columns(X, self.shape[0], forward=True)

    def rmatmat(self, Y: Tensor, /) -> Tensor:
        """Return J^T Y."""
        return self._columns(Y, self.shape[1], forward=False)


def _refusal(error: Exception | None) -> InputError:
    words = " ".join(str(error).split())
    advice = "use operations that torch.func supports"
    if "in-place" in words or "inplace" in words or "modified by an in" in words:
        advice = (
            "it changes a tensor in place: use the out-of-place form; batch norm in training mode "
            "needs the module itself as the function, or eval()"
        )
    elif "storage" in words or "numpy" in words:
        advice = "it leaves torch, by numpy() or a view of memory: stay in torch"
    elif "setup_context" in words:
        advice = "give its autograd.Function a setup_context and generate_vmap_rule = True"
    return InputError(f"torch cannot differentiate the function ({words[:200]}): {advice}")


# --- operations whose fused versions torch differentiates wrongly, or not at all ----------------


@contextmanager
def differentiable(function: object = None) -> Iterator[None]:
    """Let torch functions inside have correct derivatives of every order and mode.

    Attention takes the math kernel. Layer norm, instance norm, and batch norm in training mode are
    written out: the gradient of a JVP through the fused ones is wrong without an error (PyTorch
    issues 196699 and 196700, open in 2.13). Running statistics are not updated. Dropout that is
    left on is an error.

    Args:
        function: a module, or a method of one: its batch norms do not count their batches.
    """
    owner = getattr(function, "__self__", function)
    modules = owner.modules() if isinstance(owner, nn.Module) else ()
    counters = [m for m in modules if isinstance(m, _BatchNorm) and m.training]
    kept = [module.num_batches_tracked for module in counters]
    try:
        for module in counters:
            module.num_batches_tracked = None
        with sdpa_kernel(SDPBackend.MATH), _Unfused():
            yield
    finally:
        for module, count in zip(counters, kept, strict=True):
            module.num_batches_tracked = count


class _Unfused(TorchFunctionMode):
    """Replaces fused normalizations, and refuses dropout; see :func:`differentiable`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _DROPS and _DROPS[name](args, kwargs):
            raise InputError(
                f"the function has dropout ({name}), so it has no one Jacobian: call eval(), or "
                "set the probability to 0"
            )
        if name == "lstm":  # the fused one of CPUs keeps what torch.func cannot follow
            backend: Any = torch.backends.mkldnn
            kept, backend.enabled = backend.enabled, False
            try:
                return func(*args, **kwargs)
            finally:
                backend.enabled = kept
        return _WRITTEN_OUT.get(func, func)(*args, **kwargs)


def _drops(p: int, default: float, on: int | None = None) -> Callable[[Any, Any], bool]:
    """Whether a call drops anything: the places of its probability and of its training flag."""

    def is_on(args: Any, kwargs: Any) -> bool:
        rate = args[p] if len(args) > p else kwargs.get("dropout_p", kwargs.get("p", default))
        training = kwargs.get("training", kwargs.get("train", on is None or default == 0.5))
        if on is not None and len(args) > on:
            training = args[on]
        return bool(rate and training)

    return is_on


def _recurrent_drops(args: Any, kwargs: Any) -> bool:
    # (input, hidden, weights, bias, layers, dropout, train, ...), one place later if packed.
    rate, training = args[5:7] if isinstance(args[5], float) else args[6:8]
    return bool(rate and training)


_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
_DROPS: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys((*_DROPOUTS, "feature_alpha_dropout"), _drops(1, 0.5, 2)),
    "scaled_dot_product_attention": _drops(4, 0.0),
    "multi_head_attention_forward": _drops(10, 0.0),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent_drops),
}


def _normalized(
    x: Tensor, axes: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    centred = wide - wide.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True)
    out: Tensor = (centred * torch.rsqrt(variance + eps)).to(x.dtype)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _by_channel(x: Tensor, vector: Tensor | None) -> Tensor | None:
    return None if vector is None else vector.reshape(1, -1, *[1] * (x.dim() - 2))


def _layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    axes = tuple(range(-len(normalized_shape), 0))
    return _normalized(input, axes, weight, bias, eps)


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    axes = (0, *range(2, input.dim()))
    scale, shift = _by_channel(input, weight), _by_channel(input, bias)
    return _normalized(input, axes, scale, shift, eps)


def _instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    scale, shift = _by_channel(input, weight), _by_channel(input, bias)
    if use_input_stats:
        return _normalized(input, tuple(range(2, input.dim())), scale, shift, eps)
    return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)


_WRITTEN_OUT: dict[Any, Callable[..., Tensor]] = {
    F.layer_norm: _layer_norm,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
}
