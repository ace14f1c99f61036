"""Adversarial training: the step is the formula, weights mean what they say, and it defends."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from robustcf.training.adversarial import OBJECTIVES, Adversary, Margin, SoftmaxBatches, adversary
from robustcf.attacks import FGM, Softmax
from robustcf.training.config import TrainConfig
from robustcf.data import Interactions, checkerboard, load
from robustcf.errors import InputError, TrainingError
from robustcf.factors import Factors
from robustcf.training.loop import Stop, fit
from robustcf.models import BPRMF, Batch, Gradient, Model, UltraGCN
from robustcf.robustness import PassObjective, robustness_curve
from robustcf.training import build_adversary, build_model, train

SEEDS = [0, 1, 2]
STEPPING = [name for name in OBJECTIVES if name != "margin"]  # those that search for an attack
BATCHINGS = ["rows", "pairs"]
MODELS = {"ultragcn": UltraGCN, "bpr-mf": BPRMF}
BOARD = checkerboard()
WEIGHTS = {"negative_weight": 7.0, "w1": 0.01, "w2": 0.9, "w3": 0.02, "w4": 1.1}


def model_of(name: str, batching: str, seed: int, pairs: Interactions = BOARD.train) -> Model:
    g = torch.Generator().manual_seed(seed)
    start = Factors(
        torch.randn(pairs.n_users, 3, generator=g, dtype=torch.float64),
        torch.randn(pairs.n_items, 3, generator=g, dtype=torch.float64),
    )
    options: dict[str, Any] = {"negatives": 4, **WEIGHTS} if name == "ultragcn" else {}
    return MODELS[name](
        pairs, start=start, batching=batching, batch_size=37, block_users=6, seed=seed,
        dtype=torch.float64, **options,
    )  # fmt: skip


def naive(
    name: str, batch: Batch, U: Tensor, V: Tensor, pairs: Interactions, a: float = 0, b: float = 0
) -> Tensor:
    """The attack's objective on a batch, pair by pair; BPR's gaps less what a room may take."""
    degrees = pairs.user_degrees.tolist()
    n, total = pairs.n_items, U.new_zeros(())
    beta_i = [1 / (degree + 1) ** 0.5 for degree in pairs.item_degrees.tolist()]
    if batch.items is None:
        own = [(u, i) for u in batch.users.tolist() for i in pairs.items_of(u).tolist()]
    else:
        own = list(zip(batch.users.tolist(), batch.items.tolist(), strict=True))
    for place, (u, i) in enumerate(own):
        scores = V @ U[u]
        if name == "softmax":
            total = total + (scores.exp().sum().log() - scores[i]) / degrees[u]
            continue
        if name == "bpr":
            assert batch.negatives is not None
            if batch.items is None:
                drawn = [j for j in batch.negatives.tolist() if (u, j) not in set(own)]
                scale = n / ((n - degrees[u]) * len(batch.negatives))
            else:
                drawn = batch.negatives[place].tolist()
                scale = 1 / len(drawn)
            for j in drawn:
                lost = a * torch.dist(V[i], V[j]) + 2 * b * U[u].norm() + 2 * a * b
                total = total + scale * softplus(scores[j] - scores[i] + lost)
            continue
        beta_u = (degrees[u] + 1) ** 0.5 / degrees[u]
        items = range(n) if batch.items is None else batch.negatives[place].tolist()
        total = total + (WEIGHTS["w1"] + WEIGHTS["w2"] * beta_u * beta_i[i]) * softplus(-scores[i])
        for j in items:
            weight = WEIGHTS["w3"] + WEIGHTS["w4"] * beta_u * beta_i[j]
            total = total + WEIGHTS["negative_weight"] / len(items) * weight * softplus(scores[j])
    return total


def row_steps(gradient: Tensor, size: float) -> Tensor:
    """Every row of a gradient at a length, one by one; zero rows stay."""
    return torch.stack([size * g / g.norm() if g.norm() > 0 else g for g in gradient])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "model", "batching"), list(itertools.product(STEPPING, MODELS, BATCHINGS))
)
def test_the_step_is_the_formula(name: str, model: str, batching: str, seed: int) -> None:
    """loss(U, V) + weight * A(U + D_U, V + D_V), D constant: autograd on the definition."""
    trained = model_of(model, batching, seed)
    rival = adversary(name, trained, eps=0.3, weight=0.7, **WEIGHTS)
    batch, theirs = list(rival.rounds(trained, epoch=1))[2]
    assert torch.equal(batch.users, theirs.users)
    if batch.items is not None:
        assert torch.equal(batch.items, theirs.items)
    U, V = trained.users.clone(), trained.items.clone()

    def uphill(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, float]:
        u, v = u.clone().requires_grad_(), v.clone().requires_grad_()
        value = naive(name, theirs, u, v, trained.train)
        return *torch.autograd.grad(value, (u, v)), float(value.detach())

    at_users, at_items, _ = uphill(U, V)
    to_users = row_steps(at_users, 0.3 * float(U.norm(dim=1).median()))
    to_items = row_steps(at_items, 0.3 * float(V.norm(dim=1).median()))
    there_users, there_items, value = uphill(U + to_users, V + to_items)

    plain, gradient = (trained.gradient(batch, U, V) for _ in range(2))
    own = gradient if rival.objective is trained else None
    attacked = rival.add_gradient(theirs, U, V, gradient, own=own, value=True)
    assert attacked == pytest.approx(value)
    if plain.rows is not None:
        there_users = there_users[plain.rows]
    torch.testing.assert_close(gradient.users, plain.users + 0.7 * there_users)
    torch.testing.assert_close(gradient.items, plain.items + 0.7 * there_items)
    assert torch.equal(U, trained.users), "the factors themselves do not move"
    assert torch.equal(V, trained.items)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("model", "batching"), list(itertools.product(MODELS, BATCHINGS)))
def test_the_margin_is_the_formula(model: str, batching: str, seed: int) -> None:
    """BPR with every gap less the most that it can lose: autograd on the definition."""
    trained = model_of(model, batching, seed)
    rival = adversary("margin", trained, eps=0.3, weight=0.7)
    assert isinstance(rival, Margin)
    assert (rival.objective is trained) == (model == "bpr-mf")
    batch, theirs = list(rival.rounds(trained, epoch=1))[2]
    U, V = trained.users.clone(), trained.items.clone()
    V[3] = V[5]  # twins: a distance of 0 has no gradient
    U[int(theirs.users[0])] = 0.0
    u, v = U.clone().requires_grad_(), V.clone().requires_grad_()
    room = [0.3 * float(part.norm(dim=1).median()) for part in (U, V)]
    value = naive("bpr", theirs, u, v, trained.train, *room)
    to_users, to_items = torch.autograd.grad(value, (u, v))

    plain, gradient = (trained.gradient(batch, U, V) for _ in range(2))
    bound = rival.add_gradient(theirs, U, V, gradient, value=True)
    assert bound == pytest.approx(float(value.detach()))
    if plain.rows is not None:
        to_users = to_users[plain.rows]
    torch.testing.assert_close(gradient.users, plain.users + 0.7 * to_users)
    torch.testing.assert_close(gradient.items, plain.items + 0.7 * to_items)
    assert rival.add_gradient(theirs, U, V, gradient) is None or batching == "pairs"


@pytest.mark.parametrize("longest", [1.0, 100.0, 3000.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_margin_in_single_precision_is_that_in_double(seed: int, longest: float) -> None:
    """Near twins and one row far longer than the rest, which must not blur the others."""
    start = model_of("bpr-mf", "rows", seed).factors()
    V = start.items.clone()
    V[3] = V[5] * (1 + 1e-9)
    V[0] *= longest
    found, expected = (
        model.gradient(list(model.batches(0))[1], *model.factors(), value=True, room=(0.3, 0.2))
        for model in (
            BPRMF(
                BOARD.train, start=Factors(start.users.to(kind), V.to(kind)), block_users=6,
                seed=seed, dtype=kind,
            )
            for kind in (torch.float32, torch.float64)
        )
    )  # fmt: skip
    assert found.value == pytest.approx(expected.value, rel=1e-4)
    rest = torch.arange(1, len(V))
    scale = float(expected.items[rest].abs().max())
    assert (found.items.double() - expected.items)[rest].abs().max() < 1e-3 * scale
    size = float(expected.users.abs().max())
    assert (found.users.double() - expected.users).abs().max() < 1e-3 * size


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("batching", BATCHINGS)
def test_no_attack_within_the_room_exceeds_the_margins_bound(batching: str, seed: int) -> None:
    model = model_of("bpr-mf", batching, seed)
    assert isinstance(model, BPRMF)
    U, V = model.users, model.items
    batch, room = list(model.batches(0))[1], (0.2 + 0.05 * seed, 0.3)
    bound = model.gradient(batch, U, V, value=True, room=room).value
    plain = model.gradient(batch, U, V, value=True)
    g = torch.Generator().manual_seed(seed)
    rows = torch.arange(len(U)) if plain.rows is None else plain.rows
    uphill = torch.zeros_like(U).index_add_(0, rows, plain.users)
    noise = [torch.randn(part.shape, generator=g, dtype=torch.float64) for part in (U, V)]
    assert bound is not None
    for to_users, to_items in ((uphill, plain.items), noise):
        attacked = (U + row_steps(to_users, room[0]), V + row_steps(to_items, room[1]))
        there = model.gradient(batch, *attacked, value=True).value
        assert there is not None
        assert there <= bound
    none = model.gradient(batch, U, V, value=True, room=(0.0, 0.0))
    assert none.value == pytest.approx(plain.value)
    torch.testing.assert_close(none.users, plain.users)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_perturbation_has_the_size_asked_for(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    U, V = torch.randn(9, 4, generator=g), 3 * torch.randn(7, 4, generator=g)
    rows = torch.tensor([1, 4, 8])
    directions = Gradient(torch.randn(3, 4), rows, 1e-6 * torch.randn(7, 4), None)
    directions.items[2] = 0.0
    rival = Adversary(SoftmaxBatches(BOARD.train), eps=0.25, weight=1.0)
    to_users, to_items = rival.perturbation(U, V, directions)
    expected = 0.25 * U.norm(dim=1).median()
    torch.testing.assert_close(to_users.norm(dim=1), expected.expand(3))
    lengths = to_items.norm(dim=1)
    assert lengths[2] == 0
    kept = [0, 1, 3, 4, 5, 6]
    torch.testing.assert_close(lengths[kept], (0.25 * V.norm(dim=1).median()).expand(6))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_softmax_batches_add_up_to_the_attacks_objective(batching: str, seed: int) -> None:
    dense = np.random.default_rng(seed).random((11, 8)) < 0.4
    dense[3] = False  # a user without pairs does not count
    pairs = Interactions(*np.nonzero(dense), 11, 8)
    model = model_of("bpr-mf", batching, seed, pairs)
    U, V = model.users, model.items
    users, items, value = torch.zeros_like(U), torch.zeros_like(V), 0.0
    for batch in model.batches(0):
        part = SoftmaxBatches(pairs).gradient(batch, U, V, value=True)
        users.index_add_(0, part.rows, part.users)
        items += part.items
        value += part.value or 0.0
    whole = Softmax(pairs).gradient(U, V)
    torch.testing.assert_close(users, whole.users)
    torch.testing.assert_close(items, whole.items)
    assert value == pytest.approx(whole.value)


SMALL = TrainConfig(
    dim=4, epochs=3, block_users=7, batch_size=50, negative_weight=10.0, patience=0, refit="no",
    epochs_chosen=True,
)  # fmt: skip


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("model", MODELS)
def test_no_weight_is_plain_training_to_the_bit_and_any_weight_is_not(
    model: str, batching: str
) -> None:
    config = SMALL.replace(model=model, batching=batching)
    plain = train(BOARD, config)
    assert "attacked_loss" not in plain.history[0]
    for name in OBJECTIVES:
        off = train(BOARD, config.replace(adversarial=name, adv_weight=0.0))
        assert torch.equal(off.factors.users, plain.factors.users)
        assert torch.equal(off.factors.items, plain.factors.items)
        on = config.replace(adversarial=name, adv_weight=0.5, adv_eps=0.2)
        first, second = (train(BOARD, on) for _ in range(2))
        assert not torch.equal(first.factors.users, plain.factors.users)
        assert torch.equal(first.factors.users, second.factors.users), "same seed, same bits"
        assert torch.equal(first.factors.items, second.factors.items)
        assert first.history[0]["attacked_loss"] > 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("model", "name"), list(itertools.product(MODELS, OBJECTIVES)))
def test_learns_a_checkerboard(model: str, name: str, seed: int) -> None:
    split = checkerboard(40, 40, seed=seed)
    config = TrainConfig(
        model=model, dim=4, epochs=40, block_users=8, init="normal", init_std=0.1, lr=0.2,
        user_lr=0.2, negative_weight=10.0, reg_weight=1e-5, eval_every=10, seed=seed,
        adversarial=name, adv_eps=0.1, adv_weight=1.0,
    )  # fmt: skip
    assert train(split, config).evaluate((4,))["recall@4"] > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_adversarial_personalized_ranking_degrades_less(seed: int) -> None:
    """He et al.'s claim: at equal size of the attack, less of the quality is lost."""
    split = load("demo")
    config = TrainConfig(
        model="bpr-mf", dim=16, epochs=8, block_users=250, epochs_chosen=True, refit="no",
        adversarial="bpr", adv_eps=0.2, seed=seed,
    )  # fmt: skip
    curves = []
    for weight in (0.0, 1.0):
        factors = train(split, config.replace(adv_weight=weight)).factors
        objective = PassObjective(BPRMF(split.train, start=factors, sampled_items=300), "bpr")
        # Absolute sizes, as theirs are; the rows of both have about the same length.
        curve = robustness_curve(factors, split, FGM(objective), [0, 0.4, 0.8])
        curves.append(curve["ndcg@10"])
    plain, apr = curves
    for n in (1, 2):
        assert apr[n] > 1.05 * plain[n]
        assert apr[n] / apr[0] > 1.1 * plain[n] / plain[0]


def test_a_term_that_is_not_finite_is_named() -> None:
    model = UltraGCN(BOARD.train, 3)
    with pytest.raises(TrainingError, match="the adversarial loss of ultragcn is not finite"):
        fit(model, Stop(1), adversary=adversary("bce", model, eps=1e38, weight=1.0))


def test_refuses() -> None:
    model = BPRMF(BOARD.train, 3)
    with pytest.raises(
        InputError, match="adversarial must be one of bpr, bce, softmax, margin, got 'x'"
    ):
        adversary("x", model, eps=0.1, weight=1.0)
    with pytest.raises(InputError, match="adv_eps must be a finite number and not negative"):
        adversary("bpr", model, eps=-0.1, weight=1.0)
    with pytest.raises(InputError, match="adv_eps must be a finite number and not negative"):
        adversary("margin", model, eps=float("inf"), weight=1.0)
    with pytest.raises(InputError, match="adv_weight must be a finite number and not negative"):
        adversary("margin", model, eps=0.1, weight=-1.0)
    with pytest.raises(InputError, match="adv_weight must be a finite number"):
        adversary("bpr", model, eps=0.1, weight=float("nan"))
    with pytest.raises(InputError, match="adversarial must be one of none, bpr, bce, softmax"):
        TrainConfig(adversarial="pgd")
    with pytest.raises(InputError, match="adv_eps must be a finite number and not negative"):
        TrainConfig(adv_eps=-1.0)


def test_the_cross_entropy_has_the_models_weights_or_the_configurations() -> None:
    config = TrainConfig(dim=3, adversarial="bce", negative_weight=33.0, w1=0.5)
    for name in MODELS:
        model = build_model(config.replace(model=name), BOARD.train)
        rival = build_adversary(config.replace(model=name), model)
        assert rival is not None
        objective = rival.objective
        assert isinstance(objective, UltraGCN)
        assert (objective.negative_weight, objective.w1, objective.item_weight) == (33.0, 0.5, 0)
    bare = build_model(config.replace(item_weight=0.0), BOARD.train)
    assert adversary("bce", bare, eps=0.1, weight=1.0).objective is bare
