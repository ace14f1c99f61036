"""Penalties: values against the explicit Jacobian, gradients by gradcheck, limits, counts."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from robustcf.errors import InputError
from robustcf.vision import Frobenius, Infinity, OperatorNorm, Spectral, TwoToInf
from robustcf.vision.jacobian import JacobianOperator
from tests.vision.nets import explicit, images, small_net

SEEDS = [0, 1, 2]


class Recorded(JacobianOperator):
    """Counts vectors multiplied, and batches of them that went through the network."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.vectors, self.passes = 0, 0

    def _product(self, product, X, sides, out):
        self.vectors += X.shape[2]
        self.passes += 1
        return super()._product(product, X, sides, out)


def number(value: torch.Tensor) -> float:
    return float(value.detach())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_frobenius_is_unbiased_and_exact_per_projection(seed):
    net, x = small_net(seed), images(seed)
    dense = explicit(net, x)
    J = JacobianOperator(net, x)
    # The same vector by hand: one Gaussian an image, normalized.
    v = torch.randn(3 * 4, 1, dtype=torch.float64, generator=generator(7)).reshape(3, 4)
    v = v / v.norm(dim=1, keepdim=True)
    by_hand = 4 * torch.einsum("nic,nc->ni", dense, v).square().sum(dim=1)
    torch.testing.assert_close(Frobenius().squares(J, generator(7)), by_hand)
    many = Frobenius(projections=4000).squares(J, generator(seed))
    torch.testing.assert_close(many, dense.square().sum(dim=(1, 2)), rtol=0.05, atol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_spectral_converges_to_the_largest_singular_value(seed):
    net, x = small_net(seed), images(seed)
    J = JacobianOperator(net, x)
    truth = torch.linalg.matrix_norm(explicit(net, x), 2).square()
    values = [Spectral(steps=n).squares(J, generator()).detach() for n in (1, 3, 10, 300)]
    for less, more in itertools.pairwise(values):
        assert bool((more >= less * (1 - 1e-12)).all())
    torch.testing.assert_close(values[-1], truth)
    assert bool((values[0] < truth * (1 - 1e-6)).any())


def exact_operator_norm(dense: torch.Tensor, p: float, q: float) -> torch.Tensor:
    if (p, q) == (math.inf, math.inf):
        return dense.abs().sum(dim=1).amax(dim=1)
    if (p, q) == (2, math.inf):
        return dense.norm(dim=1).amax(dim=1)
    if (p, q) == (2, 2):
        return torch.linalg.matrix_norm(dense, 2)
    raise NotImplementedError


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("p", "q"), [(2, 2), (math.inf, math.inf), (2, math.inf)])
def test_power_methods_climb_and_never_exceed_the_norm(seed, p, q):
    net, x = small_net(seed), images(seed)
    J, truth = JacobianOperator(net, x), exact_operator_norm(explicit(net, x), p, q)
    best = torch.zeros_like(truth)
    for start in range(8):
        last = torch.zeros_like(truth)
        for steps in (1, 2, 20):
            value = OperatorNorm(p, q, steps=steps).squares(J, generator(start)).detach().sqrt()
            assert bool((value <= truth * (1 + 1e-9)).all())
            assert bool((value >= last * (1 - 1e-9)).all())
            last = value
        best = torch.maximum(best, last)
    # One of the starts reaches the exact norm, even if there are other fixed points.
    torch.testing.assert_close(best, truth, rtol=1e-3, atol=0)


def test_infinity_by_hand():
    """Two classes; class 1 has the larger l_1 norm, and the signs lead there."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 2, bias=False)).double()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[1.0, -1.0, 0.5], [3.0, 2.0, -4.0]]))
    x = torch.rand(2, 3, 1, 1, dtype=torch.float64)
    assert number(Infinity(steps=3)(net, x)) == pytest.approx(81.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("estimator", ["twinest", "sketch", "exact", "save", "xrownorm"])
def test_two_to_inf_is_the_exact_norm_of_the_row_it_picked(seed, estimator):
    net, x = small_net(seed), images(seed)
    squares = explicit(net, x).square().sum(dim=2)
    reg = TwoToInf(estimator=estimator)
    J = JacobianOperator(net, x)
    picked = reg.pick(J, generator(seed))
    values = reg.squares(J, generator(seed)).detach()
    torch.testing.assert_close(values, squares.gather(1, picked.unsqueeze(1)).squeeze(1))
    assert bool((values <= squares.amax(dim=1) * (1 + 1e-9)).all())
    if estimator == "exact":
        assert torch.equal(picked, squares.argmax(dim=1))


@pytest.mark.parametrize("seed", SEEDS)
def test_twinest_picks_what_its_formula_says(seed):
    """The naive transcription: mean of x * (J J^T x), largest entry."""
    net, x = small_net(seed), images(seed)
    dense = explicit(net, x)
    bits = torch.randint(0, 2, (3 * 50, 4), generator=generator(3))
    signs = (2 * bits - 1).double().reshape(3, 50, 4)
    expected = []
    for J, columns in zip(dense, signs, strict=True):
        diagonal = sum(column * (J @ (J.T @ column)) for column in columns.T) / 4
        expected.append(int(diagonal.argmax()))
    assert TwoToInf().pick(JacobianOperator(net, x), generator(3)).tolist() == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("estimator", ["twinest", "sketch"])
def test_more_products_find_the_largest_row(seed, estimator):
    net, x = small_net(seed), images(seed)
    truth = explicit(net, x).square().sum(dim=2).amax(dim=1)
    value = TwoToInf(estimator=estimator, budget=8001).squares(
        JacobianOperator(net, x), generator(seed)
    )
    torch.testing.assert_close(value.detach(), truth, rtol=0.02, atol=0)


REGS = {
    "frobenius": Frobenius,
    "spectral": Spectral,
    "infinity": Infinity,
    "two_to_inf": TwoToInf,
    "sketch": lambda **options: TwoToInf(estimator="sketch", **options),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGS)
@pytest.mark.parametrize("training", [False, True])
def test_gradcheck_in_the_weights(name, training):
    """The vectors found are held, as designed: the last product alone is differentiated."""
    net = small_net(0, batch_norm=True, classes=3).train(training)
    x = images(0, 4)
    weights = dict(net.named_parameters())
    held = _held_value(REGS[name](), net, x)
    names = ["0.weight", "1.weight"]

    def value(*some):
        return functional_call(
            _Penalty(held, net), {f"net.{n}": w for n, w in zip(names, some, strict=True)}, (x,)
        )

    inputs = tuple(weights[n].detach().clone().requires_grad_() for n in names)
    assert torch.autograd.gradcheck(value, inputs, atol=1e-6)
    # And what forward gives is that gradient.
    reg = REGS[name]()
    net.zero_grad()
    reg(net, x).backward()
    expected = torch.autograd.grad(value(*inputs), inputs)
    for n, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(weights[n].grad, gradient)


class _Penalty(nn.Module):
    def __init__(self, held, net) -> None:
        super().__init__()
        self.held, self.net = held, net

    def forward(self, x):
        return self.held(self.net, x)


def _held_value(reg, net, x):
    """The penalty as a function of the net, with the vectors of the first evaluation."""
    J = JacobianOperator(net, x)
    source = torch.Generator().manual_seed(0)  # what call 0 with seed 0 draws from
    if isinstance(reg, TwoToInf):
        row = reg.pick(J, source).unsqueeze(1)
        return lambda net, x: JacobianOperator(net, x).rows(row).square().sum(dim=(1, 2)).mean()
    if isinstance(reg, Frobenius):
        v = torch.randn(len(x) * 3, 1, dtype=x.dtype, generator=source).reshape(len(x), 3, 1)
        v = v / v.norm(dim=1, keepdim=True)
        return lambda net, x: 3 * JacobianOperator(net, x).matmat(v).square().sum() / len(x)
    recorded = []

    class Spy(JacobianOperator):
        def rmatmat(self, Y):
            recorded.append(Y.detach())
            return super().rmatmat(Y)

    reg.squares(Spy(net, x), source)
    v, q = recorded[-1], reg.q

    def value(net, x):
        moved = JacobianOperator(net, x).rmatmat(v).squeeze(2)
        norms = moved.norm(dim=1) if q == 2 else moved.abs().amax(dim=1)
        return norms.square().mean()

    return value


def test_gradcheck_in_the_images():
    net, reg = small_net(1), TwoToInf(estimator="exact").eval()
    x = images(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: reg(net, x), (x,), atol=1e-6)


@pytest.mark.parametrize(
    ("reg", "vectors", "passes"),
    [
        (Frobenius(), 1, 1),
        (Spectral(), 3, 3),
        (Infinity(), 3, 3),
        # Four sign vectors in parallel, there and back, and the row that is read.
        (TwoToInf(), 9, 3),
        (TwoToInf(budget=5), 5, 3),
        (TwoToInf(estimator="sketch"), 9, 3),
        (TwoToInf(estimator="sketch", budget=5), 5, 2),
        (TwoToInf(estimator="exact"), 5, 2),
    ],
)
def test_products_are_as_many_as_stated(reg, vectors, passes):
    net, x = small_net(0), images(0)
    J = Recorded(net, x)
    reg.squares(J, generator())
    assert (J.vectors, J.passes) == (vectors, passes)


def test_every_k_acts_in_every_kth_call_and_the_state_carries_on():
    net, x = small_net(0), images(0)
    reg = TwoToInf(every=3)
    values = [number(reg(net, x)) for _ in range(7)]
    assert [value > 0 for value in values] == [True, False, False, True, False, False, True]
    again = TwoToInf(every=3)
    again.load_state_dict(reg.state_dict())
    assert [number(again(net, x)) for _ in range(2)] == [number(reg(net, x)) for _ in range(2)]
    assert number(TwoToInf(every=3).eval()(net, x)) == values[0]
    plain = [number(Frobenius(seed=5)(net, x)) for _ in range(2)]
    assert plain[0] == plain[1]
    one = Frobenius(seed=5)
    assert number(one(net, x)) != number(one(net, x))


def test_a_part_of_the_batch():
    net, x = small_net(0, batch_norm=True).train(), images(0, 6)
    part = JacobianOperator(net, x[:2]).dense().square().sum(dim=2).amax(dim=1).mean()
    torch.testing.assert_close(TwoToInf(estimator="exact", images=2)(net, x), part)


@pytest.mark.parametrize("name", REGS)
def test_running_statistics_are_left_alone(name):
    net, x = small_net(0, batch_norm=True).train(), images(0)
    mean, var = net[1].running_mean.clone(), net[1].running_var.clone()
    REGS[name]()(net, x).backward()
    assert torch.equal(mean, net[1].running_mean)
    assert torch.equal(var, net[1].running_var)
    assert int(net[1].num_batches_tracked) == 0


@pytest.mark.parametrize("name", REGS)
def test_a_zero_jacobian_has_penalty_zero_and_a_finite_gradient(name):
    net = nn.Sequential(nn.Flatten(), nn.Linear(50, 3)).double()
    nn.init.zeros_(net[1].weight)
    value = REGS[name]()(net, images(0))
    value.backward()
    assert number(value) == 0
    assert bool(torch.isfinite(net[1].weight.grad).all())


@pytest.mark.parametrize("name", REGS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
def test_descending_on_a_penalty_lowers_its_norm(name, seed):
    """A learning test: what is penalized falls."""
    net, x = small_net(seed), images(seed)
    dense = explicit(net, x)
    before = float(dense.square().sum(dim=2).amax(dim=1).mean())
    reg = REGS[name](seed=seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02 if name != "infinity" else 0.002)
    for _ in range(40):
        optimizer.zero_grad()
        reg(net, x).backward()
        optimizer.step()
    after = float(explicit(net, x).square().sum(dim=2).amax(dim=1).mean())
    assert after < 0.8 * before


def test_bad_options():
    for options in ({"every": 0}, {"images": 0}, {"block": True}, {"every": 1.5}):
        with pytest.raises(InputError, match="must be an integer of at least 1"):
            Frobenius(**options)
    with pytest.raises(InputError, match="projections must be"):
        Frobenius(projections=0)
    with pytest.raises(InputError, match="steps must be"):
        Spectral(steps=0)
    with pytest.raises(InputError, match="p and q must be 2 or inf"):
        OperatorNorm(1, 2)
    with pytest.raises(InputError, match="estimator"):
        TwoToInf(estimator="guess")
    with pytest.raises(InputError, match="budget"):
        TwoToInf(budget=2)
