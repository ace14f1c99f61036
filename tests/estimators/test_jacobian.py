"""Jacobians: against autograd's own, batched, double-backward, differentiable."""

from __future__ import annotations

import pytest
import torch

from robustcf.errors import InputError
from robustcf.estimators import Jacobian, exact, sketch_and_verify, twinest, two_to_inf

from .conftest import watched

torch_double = {"dtype": torch.float64}


def _net(seed: int) -> tuple[torch.nn.Module, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = torch.nn.Sequential(
            torch.nn.Linear(12, 9), torch.nn.Tanh(), torch.nn.Linear(9, 4)
        ).double()
        return net, torch.randn(12, dtype=torch.float64)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("forward_mode", [True, False])
@pytest.mark.parametrize("chunk", [None, 2])
def test_products(seed: int, forward_mode: bool, chunk: int | None) -> None:
    net, x = _net(seed)
    dense = torch.autograd.functional.jacobian(net, x)
    J = Jacobian(net, x, forward_mode=forward_mode, chunk=chunk)
    X, Y = torch.randn(12, 5, **torch_double), torch.randn(4, 3, **torch_double)
    torch.testing.assert_close(J.matmat(X), dense @ X)
    torch.testing.assert_close(J.matmat(X[:, :1]), dense @ X[:, :1])
    torch.testing.assert_close(J.rmatmat(Y), dense.T @ Y)
    assert J.matmat(X[:, :0]).shape == (4, 0)
    assert J.rmatmat(Y[:, :0]).shape == (12, 0)


def test_image_shaped_inputs_are_flattened() -> None:
    x = torch.randn(2, 3, 3, **torch_double)
    J = Jacobian(lambda x: (x**2).sum(dim=0), x)
    assert J.shape == (9, 18)
    dense = torch.autograd.functional.jacobian(lambda x: (x**2).sum(dim=0), x).reshape(9, 18)
    torch.testing.assert_close(J.matmat(torch.eye(18, **torch_double)), dense)


@pytest.mark.parametrize("transposed", [False, True])
def test_exact_takes_the_smaller_side(transposed: bool) -> None:
    net, x = _net(0)
    dense = torch.autograd.functional.jacobian(net, x)
    J = Jacobian(net, x).H if transposed else Jacobian(net, x)
    answer = exact(J)
    truth = (dense.T if transposed else dense).norm(dim=1)
    assert answer.row == int(truth.argmax())
    assert float(answer) == pytest.approx(float(truth.max()))
    assert answer.products + answer.rproducts <= 5
    assert two_to_inf(J, budget=5).method == "exact"
    assert two_to_inf(J, budget=4, generator=0).method == "save"


@pytest.mark.parametrize("method", ["exact", "save", "twinest", "sketch"])
def test_gradients_reach_the_parameters(method: str) -> None:
    net, x = _net(1)
    value = two_to_inf(Jacobian(net, x).H, 8, method, generator=0).value
    value.backward()
    weight = net[0].weight
    assert weight.grad is not None
    row = two_to_inf(Jacobian(net, x).H, 8, method, generator=0).row
    # The same by autograd: the norm of that row of the dense transposed Jacobian.
    other, x2 = _net(1)
    dense = torch.autograd.functional.jacobian(other, x2, create_graph=True)
    dense[:, row].norm().backward()
    torch.testing.assert_close(weight.grad, other[0].weight.grad)


def test_gradcheck_in_x() -> None:
    net, x = _net(2)
    x = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: exact(Jacobian(net, x)).value, (x,))


def test_products_are_counted_on_jacobians() -> None:
    J = Jacobian(*_net(0)).H
    for run in (twinest, sketch_and_verify):
        spent = watched(J)
        answer = run(J, 4, generator=0)
        assert (answer.products, answer.rproducts) == (spent["matmat"], spent["rmatmat"])


# --- transformers, normalizations, and functions that torch cannot take as they are -------------


class _Text(torch.nn.Module):
    """A small causal transformer from token embeddings to the logits of the last token."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True)
        self.table = torch.nn.Embedding(20, 8)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        length, dtype = embedded.shape[0], embedded.dtype
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length, dtype=dtype)
        return self.head(self.layers(embedded[None], mask=mask, is_causal=True)[0, -1])


def _text(seed: int, **options: float) -> tuple[_Text, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = _Text(**options).double()
        return net, net.table(torch.randint(20, (6,))).detach()


def _dense(function: object, x: torch.Tensor) -> torch.Tensor:
    """By central differences, which know nothing of autograd."""
    columns = []
    with torch.no_grad():
        for unit in 1e-5 * torch.eye(x.numel(), dtype=x.dtype):
            step = unit.reshape(x.shape)
            columns.append((function(x + step) - function(x - step)).flatten() / 2e-5)
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("forward_mode", [None, False])
def test_logits_by_token_embeddings(seed, training, forward_mode) -> None:
    net, embedded = _text(seed)
    net.train(training)
    dense = _dense(net, embedded)
    J = Jacobian(net, embedded, forward_mode=forward_mode)
    with torch.no_grad():
        torch.testing.assert_close(
            J.matmat(torch.eye(48, **torch_double)), dense, atol=1e-6, rtol=0
        )
        torch.testing.assert_close(
            J.rmatmat(torch.eye(5, **torch_double)), dense.T, atol=1e-6, rtol=0
        )
    answer = two_to_inf(J.H, 6)
    assert answer.row == int(dense.norm(dim=0).argmax())


_NORMALIZED = {
    "layer": lambda h: torch.nn.functional.layer_norm(h, (6,), torch.linspace(1, 2, 6).double()),
    "batch": lambda h: torch.nn.functional.batch_norm(h, None, None, training=True),
    "instance": lambda h: torch.nn.functional.instance_norm(h.reshape(4, 2, 3)).reshape(4, 6),
    "group": lambda h: torch.nn.functional.group_norm(h, 2),
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("forward_mode", [True, False])
@pytest.mark.parametrize("normalized", _NORMALIZED.values(), ids=_NORMALIZED)
def test_gradients_of_products_through_normalizations(seed, forward_mode, normalized) -> None:
    """The fused ones of torch 2.13 give a wrong gradient of a JVP, without an error."""
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(n, 6, generator=generator, **torch_double) for n in (4, 6))
    vectors = torch.randn(24, 2, generator=generator, **torch_double)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        J = Jacobian(lambda x: normalized(x @ weight).tanh(), x, forward_mode=forward_mode)
        return J.matmat(vectors).square().sum() + J.rmatmat(vectors).square().sum()

    gradient = torch.func.grad(loss)(weight)
    expected = _dense(lambda w: loss(w).reshape(1), weight).reshape(6, 6)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-6)


def test_batch_norm_in_training_mode() -> None:
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).double().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), **torch_double)
    got = Jacobian(net, x).matmat(torch.eye(15, **torch_double))
    for name, value in net.state_dict().items():  # no statistics were updated
        assert torch.equal(value, before[name]), name
    torch.testing.assert_close(got, _dense(net, x), atol=1e-6, rtol=0)


class _OneWay(torch.autograd.Function):
    """A square without a forward-mode rule and without a batching rule."""

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def test_other_ways_are_chosen_and_said_once() -> None:
    x = torch.tensor([1.0, 3.0], **torch_double)
    J = Jacobian(lambda x: _OneWay.apply(x).flip(0), x)
    dense = torch.tensor([[0.0, 6.0], [2.0, 0.0]], **torch_double)
    with pytest.warns(UserWarning, match="two reverse passes"):
        torch.testing.assert_close(J.matmat(torch.eye(2, **torch_double)), dense)
    # No second warning: warnings are errors here.
    torch.testing.assert_close(J.matmat(torch.eye(2, **torch_double)), dense)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    x = torch.linspace(0.5, 1.5, 6).to(dtype)
    J = Jacobian(lambda x: torch.nn.functional.layer_norm(x, (6,)), x)
    exact_one = _dense(lambda x: torch.nn.functional.layer_norm(x, (6,)), x.double())
    got = J.matmat(torch.eye(6))
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, exact_one.float(), atol=0.05, rtol=0.05)


class _Growing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.repeat(self.calls)


_X = torch.ones(3, **torch_double)
_BAD = {
    "integer": (lambda x: x * 1.0, torch.arange(3), "embeddings"),
    "complex input": (torch.abs, torch.ones(3, dtype=torch.complex64), "view_as_real"),
    "complex output": (torch.fft.rfft, _X, "view_as_real"),
    "integer output": (lambda x: (x > 0).long(), _X, "logits"),
    "two outputs": (lambda x: (x, x), _X, "tuple"),
    "in place": (lambda x: x.mul_(2), _X, "in place"),
    "numpy": (lambda x: torch.from_numpy(x.detach().numpy() * 2), _X, "numpy"),
    "shape": (_Growing(), _X, "one shape"),
    "dropout": (torch.nn.Dropout(0.1), _X, r"eval\(\)"),
    "attention dropout": (_text(0, dropout=0.1)[0], _text(0)[1], r"eval\(\)"),
    "counted batches": (
        (lambda norm: lambda x: norm(x))(torch.nn.BatchNorm1d(3).double()),
        torch.ones(2, 3, **torch_double),
        "the module itself",
    ),
}


@pytest.mark.parametrize(("function", "x", "word"), _BAD.values(), ids=_BAD)
def test_functions_that_have_no_jacobian(function, x, word) -> None:
    with pytest.raises(InputError, match=word):
        Jacobian(function, x).matmat(torch.ones(x.numel(), 2, **torch_double))


def test_recurrent_dropout_is_refused_and_eval_accepted() -> None:
    net = torch.nn.LSTM(3, 3, num_layers=2, dropout=0.5).double()
    x = torch.ones(4, 3, **torch_double)
    with pytest.raises(InputError, match="dropout"):
        Jacobian(lambda x: net(x)[0], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recurrent_networks(dtype: torch.dtype) -> None:
    net = torch.nn.LSTM(3, 4, num_layers=2, dropout=0.5).to(dtype).eval()
    x = torch.linspace(-1, 1, 15, dtype=dtype).reshape(5, 3)
    J = Jacobian(lambda x: net(x)[0][-1], x)
    dense = torch.autograd.functional.jacobian(lambda x: net(x)[0][-1], x).reshape(4, 15)
    torch.testing.assert_close(J.matmat(torch.eye(15, dtype=dtype)), dense, atol=1e-6, rtol=0)
    torch.testing.assert_close(J.rmatmat(torch.eye(4, dtype=dtype)), dense.T, atol=1e-6, rtol=0)
    assert torch.backends.mkldnn.enabled
