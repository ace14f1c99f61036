"""Products against the explicit Jacobian, batch-norm in both modes, blocks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from robustcf.errors import InputError
from robustcf.estimators import METHODS, two_to_inf
from robustcf.vision import JacobianOperator, PerImage
from tests.vision.nets import explicit, images, small_net

DOUBLE = {"dtype": torch.float64}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("block", [None, 1, 2])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_products_in_both_directions(seed, block, batch_norm):
    net, x = small_net(seed, batch_norm=batch_norm).eval(), images(seed)
    oracle = explicit(net, x)
    J = JacobianOperator(net, x, block=block)
    assert J.shape == (3, 50, 4) == tuple(oracle.shape)
    X, Y = torch.randn(3, 4, 5, **DOUBLE), torch.randn(3, 50, 3, **DOUBLE)
    torch.testing.assert_close(J.matmat(X), oracle @ X)
    torch.testing.assert_close(J.rmatmat(Y), oracle.mT @ Y)
    torch.testing.assert_close(J.matmat(X[:, :, :1]), oracle @ X[:, :, :1])
    assert J.matmat(X[:, :, :0]).shape == (3, 50, 0)
    torch.testing.assert_close(J.dense(), oracle)
    index = torch.tensor([[3, 1], [0, 49], [7, 7]])
    rows = torch.stack([oracle[n, index[n]] for n in range(3)])
    torch.testing.assert_close(J.rows(index), rows)


class Frozen(nn.Module):
    """The oracle for training mode: batch-norm with the statistics of a batch as constants."""

    def __init__(self, net: nn.Sequential, x: torch.Tensor) -> None:
        super().__init__()
        self.net = net
        hidden = net[0](x).detach()
        self.mean = hidden.mean(dim=(0, 2, 3), keepdim=True)
        self.var = hidden.var(dim=(0, 2, 3), keepdim=True, unbiased=False)

    def forward(self, x):
        bn = self.net[1]
        hidden = (self.net[0](x) - self.mean) / (self.var + bn.eps).sqrt()
        hidden = hidden * bn.weight.reshape(1, -1, 1, 1) + bn.bias.reshape(1, -1, 1, 1)
        return self.net[2:](hidden)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_training_mode_holds_the_statistics_of_the_batch(seed):
    net, x = small_net(seed, batch_norm=True).train(), images(seed, 6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    J = JacobianOperator(net, x)
    dense = J.dense()
    J.rmatmat(torch.randn(6, 50, 2, **DOUBLE))
    assert net.training
    assert all(module.training for module in net.modules())
    assert "forward" not in net[1].__dict__
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was touched"
    torch.testing.assert_close(dense, explicit(Frozen(net, x), x))
    # The function has the values of the training mode at x, and can be asked for one image.
    function = PerImage(net, x)
    torch.testing.assert_close(function(x[:2]), function(x)[:2])
    torch.testing.assert_close(function(x), net(x))


def test_gradients_reach_the_statistics():
    """Scaling the weights before a batch-norm changes neither function nor Jacobian."""
    net, x = small_net(0, batch_norm=True).train(), images(0, 8)
    with torch.no_grad():
        net[1].eps = 0.0
    value = JacobianOperator(net, x).dense().square().sum()
    value.backward()
    weight = net[0].weight
    assert weight.grad.norm() > 1e-3
    assert abs(float((weight.grad * weight).detach().sum())) < 1e-8 * float(weight.grad.norm())


def test_statistics_are_used_where_none_run():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Flatten(), nn.BatchNorm1d(50, track_running_stats=False), nn.Linear(50, 3)
        ).double()
    x = images(0, 5)
    dense = JacobianOperator(net.eval(), x).dense()
    scale = (x.flatten(1).var(dim=0, unbiased=False) + net[1].eps).rsqrt() * net[1].weight
    torch.testing.assert_close(dense[3], (net[2].weight * scale).T)


def test_dropout_is_off_and_the_mode_comes_back():
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(50, 3)).double().train()
    net[2].eval()
    J = JacobianOperator(net, images(0))
    torch.testing.assert_close(J.dense()[1], net[2].weight.T)
    assert [module.training for module in net] == [True, True, False]


def test_an_error_inside_gives_the_layers_back():
    net = small_net(0, batch_norm=True).train()
    with pytest.raises(RuntimeError):
        PerImage(net, torch.zeros(2, 5, 5, 5, **DOUBLE))
    assert net.training
    assert "forward" not in net[1].__dict__


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_estimator_takes_the_jacobian_of_an_image(method):
    net, x = small_net(1), images(1)
    truth = explicit(net, x)[2].norm(dim=1)
    operator = JacobianOperator(net, x).image(2)
    assert operator.shape == (50, 4)
    answer = two_to_inf(operator, 30, method, generator=0)
    if answer.witness:
        assert float(answer) == pytest.approx(float(truth[answer.row]))
    if method == "exact":
        assert answer.row == int(truth.argmax())


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes, below vmap's batching."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.numel())
        return result


@pytest.mark.parametrize("direction", ["matmat", "rmatmat"])
def test_blocks_hold_no_more_than_the_block(direction):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 64, 4))
    x = torch.rand(2, 1, 8, 8)
    side = 4 if direction == "matmat" else 64
    X = torch.randn(2, side, 32)
    hidden = 2 * 8 * 64  # what one vector an image occupies in the widest layer
    largest = {}
    for block in (2, None):
        with Largest() as seen, torch.no_grad():
            getattr(JacobianOperator(net, x, block=block), direction)(X)
        largest[block] = seen.numel
    assert largest[None] >= 32 * hidden
    argument_or_result = 2 * 64 * 32
    assert largest[2] <= max(2 * hidden, argument_or_result)


def test_half_precision_and_devices_follow_the_images():
    net = small_net(0).float()
    assert JacobianOperator(net, images(0).float()).matmat(torch.ones(3, 4, 1)).dtype == (
        torch.float32
    )


def test_bad_input():
    net, x = small_net(0), images(0)
    for bad in (torch.tensor(1.0), x[:0], "image"):
        with pytest.raises(InputError, match="batch"):
            JacobianOperator(net, bad)
    J = JacobianOperator(net, x)
    with pytest.raises(InputError, match="vectors"):
        J.matmat(torch.zeros(3, 50, 1))
    with pytest.raises(InputError, match="vectors"):
        J.rmatmat(torch.zeros(2, 50, 1))
    with pytest.raises(InputError, match="image"):
        J.image(3)
    with pytest.raises(InputError, match="classes"):
        JacobianOperator(nn.Identity(), x)
    with pytest.raises(InputError, match="classes"):
        JacobianOperator(nn.LSTM(5, 2).double(), x[:, 0])
    shared = nn.BatchNorm2d(2).double()
    twice = nn.Sequential(shared, shared, nn.Flatten()).train()
    with pytest.raises(InputError, match="called"):
        JacobianOperator(twice, x)
