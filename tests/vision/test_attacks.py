"""FGSM and PGD: budgets, eps = 0, foolbox as an oracle, bad input."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from robustcf.errors import InputError
from robustcf.vision import accuracy, apgd, classifier, fgsm, pgd

SEEDS = [0, 1, 2]


def setting(seed: int, count: int = 12):
    net = classifier(10, 1, 5, [0.5] * 3, [0.25] * 3, generator=seed)
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 3, 8, 8, generator=source)
    x[0] = 0.0  # at the border, where clipping matters
    x[1] = 1.0
    y = torch.randint(5, (count,), generator=source)
    return net, x, y


def loss(net, x, y):
    with torch.no_grad():
        return float(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("seed", SEEDS)
def test_fgsm_is_one_signed_step(seed):
    net, x, y = setting(seed)
    net.eval()
    inputs = x.clone().requires_grad_()
    F.cross_entropy(net(inputs), y).backward()
    expected = (x + 0.03 * inputs.grad.sign()).clamp(0, 1)
    torch.testing.assert_close(fgsm(net, x, y, 0.03), expected)
    assert loss(net, expected, y) > loss(net, x, y)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("random_start", [False, True])
def test_pgd_stays_in_the_ball_and_in_range(seed, random_start):
    net, x, y = setting(seed)
    net.eval()
    for eps in (2 / 255, 0.1, 0.5):
        attacked = pgd(net, x, y, eps, steps=5, random_start=random_start, generator=seed)
        assert float((attacked - x).abs().max()) <= eps * (1 + 1e-5)
        assert 0 <= float(attacked.min()) <= float(attacked.max()) <= 1
        assert loss(net, attacked, y) > loss(net, x, y)
        again = pgd(net, x, y, eps, steps=5, random_start=random_start, generator=seed)
        assert torch.equal(attacked, again)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("random_start", [False, True])
def test_eps_zero_is_the_image_bit_for_bit(seed, random_start):
    net, x, y = setting(seed)
    assert torch.equal(fgsm(net, x, y, 0.0), x)
    assert torch.equal(pgd(net, x, y, 0.0, random_start=random_start, generator=0), x)
    clean = accuracy(net, x, y, batch_size=5)
    assert accuracy(net, x, y, attack=fgsm, eps=0.0, batch_size=5) == clean
    assert accuracy(net, x, y, attack=pgd, eps=0.0, batch_size=5) == clean


def test_modes_and_images_are_left_alone():
    net, x, y = setting(0)
    net.train()
    net.net.bn.eval()
    kept, statistics = x.clone(), net.net.groups[0][0].bn1.running_mean.clone()
    pgd(net, x, y)
    assert net.training
    assert not net.net.bn.training
    assert torch.equal(x, kept)
    assert torch.equal(net.net.groups[0][0].bn1.running_mean, statistics)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_accuracy_counts():
    net = nn.Flatten()
    x = torch.eye(4)[[0, 1, 2, 3, 3]].reshape(5, 4, 1, 1)
    y = torch.tensor([0, 1, 2, 3, 0])
    assert accuracy(net, x, y, batch_size=2) == 0.8
    assert accuracy(net, (x * 255).to(torch.uint8), y) == 0.8


@pytest.fixture(scope="module")
def foolbox():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "foolbox", reason="foolbox, the oracle for attacks, is absent: pip install '.[dev]'"
        )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("eps", [2 / 255, 0.1])
def test_against_foolbox(foolbox, seed, eps):
    net, x, y = setting(seed)
    net.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = foolbox.PyTorchModel(net, bounds=(0, 1))
        theirs = foolbox.attacks.FGSM(random_start=False)
        _, fast, _ = theirs(model, x, y, epsilons=eps)
        theirs = foolbox.attacks.LinfPGD(abs_stepsize=0.7 * eps, steps=3, random_start=False)
        _, slow, _ = theirs(model, x, y, epsilons=eps)
    torch.testing.assert_close(fgsm(net, x, y, eps), fast)
    torch.testing.assert_close(pgd(net, x, y, eps, steps=3, step_size=0.7 * eps), slow)


def test_bad_input():
    net, x, y = setting(0)
    for eps in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="negative"):
            fgsm(net, x, y, eps)
    with pytest.raises(InputError, match="steps"):
        pgd(net, x, y, steps=0)
    with pytest.raises(InputError, match="step_size must be"):
        pgd(net, x, y, step_size=-1.0)
    with pytest.raises(InputError, match="normalization"):
        fgsm(net, 2 * x - 1, y)
    with pytest.raises(InputError, match="one label (an|per) image"):
        fgsm(net, x, y[:3])
    with pytest.raises(InputError, match="one label (an|per) image"):
        accuracy(net, x, y[:3])
    with pytest.raises(InputError, match="labels"):
        fgsm(net, x, y + 5)
    with pytest.raises(InputError, match="labels"):
        fgsm(net, x, y - 5)


# --- Auto-PGD -----------------------------------------------------------------------------------


def linear(seed: int, classes: int):
    source = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(27, classes)).double()
    net[1].weight.data = torch.randn(classes, 27, generator=source, dtype=torch.float64)
    net[1].bias.data = -0.5 * net[1].weight.data.sum(dim=1)
    x = 0.3 + 0.4 * torch.rand(60, 3, 3, 3, generator=source, dtype=torch.float64)
    return net, x, net(x).argmax(dim=1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_apgd_is_optimal_for_a_linear_classifier(seed, classes):
    """Class t beats y within the ball exactly if their margin is below eps ||w_y - w_t||_1."""
    net, x, y = linear(seed, classes)
    weight, logits = net[1].weight, net(x)
    eps = 0.01
    margins = logits.gather(1, y[:, None]) - logits
    reach = eps * (weight[y][:, None, :] - weight).abs().sum(dim=2)
    falls = ((margins < reach).sum(dim=1) > 0).detach()
    assert 0.05 < falls.double().mean() < 0.95
    attacked = apgd(net, x, y, eps, steps=30)
    assert torch.equal(net(attacked).argmax(dim=1) != y, falls)
    assert float((attacked - x).abs().max()) <= eps * (1 + 1e-9)
    assert torch.equal(attacked[~falls], x[~falls])


@pytest.mark.parametrize("seed", SEEDS)
def test_apgd_is_at_least_as_strong_as_pgd(seed):
    net, x, _ = setting(seed, 40)
    net.eval()
    y = net(x).argmax(dim=1)
    eps = 0.03
    left = [accuracy(net, x, y, attack=attack, eps=eps) for attack in (pgd, apgd)]
    assert left[1] <= left[0]
    attacked = apgd(net, x, y, eps, steps=10)
    assert float((attacked - x).abs().max()) <= eps * (1 + 1e-5)
    assert 0 <= float(attacked.min()) <= float(attacked.max()) <= 1
    assert torch.equal(attacked, apgd(net, x, y, eps, steps=10))
    assert torch.equal(apgd(net, x, y, 0.0), x)


@pytest.mark.parametrize(
    ("options", "word"), [({"steps": 0}, "steps"), ({"targets": -1}, "targets")]
)
def test_apgd_refuses(options, word):
    net, x, y = setting(0)
    with pytest.raises(InputError, match=word):
        apgd(net, x, y, **options)
