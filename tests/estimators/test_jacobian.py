"""Jacobians: against autograd's own, batched, double-backward, differentiable."""

from __future__ import annotations

import pytest
import torch

from robustcf.estimators import Jacobian, exact, sketch_and_verify, twinest, two_to_inf

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

    def value(x: torch.Tensor) -> torch.Tensor:
        return exact(Jacobian(net, x)).value

    assert torch.autograd.gradcheck(value, (x.clone().requires_grad_(),))


def test_products_are_counted_on_jacobians() -> None:
    net, x = _net(0)
    calls = {"jvp": 0, "vjp": 0}
    J = Jacobian(net, x).H

    inner_m, inner_r = J.matmat, J.rmatmat

    def matmat(X: torch.Tensor) -> torch.Tensor:
        calls["vjp"] += X.shape[1]
        return inner_m(X)

    def rmatmat(Y: torch.Tensor) -> torch.Tensor:
        calls["jvp"] += Y.shape[1]
        return inner_r(Y)

    J.matmat, J.rmatmat = matmat, rmatmat  # type: ignore[method-assign]
    for run in (twinest, sketch_and_verify):
        calls.update(jvp=0, vjp=0)
        answer = run(J, 4, generator=0)
        assert (answer.products, answer.rproducts) == (calls["vjp"], calls["jvp"])
