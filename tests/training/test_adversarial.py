"""Adversarial training: the step is the formula, weights mean what they say, and it defends."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcf._registry import ADVERSARIES
from robustcf.attacks import FGM
from robustcf.data import Interactions, checkerboard, load
from robustcf.errors import InputError, TrainingError
from robustcf.metrics import evaluate
from robustcf.models import UltraGCN
from robustcf.objectives import BCE, BPR, Batch, BatchConfig, Batches, Gradient, Softmax
from robustcf.objectives.base import Objective
from robustcf.training import TrainConfig, adversarial
from robustcf.training.adversarial import Adversary, AdversaryConfig, Margin, adversary
from robustcf.training.fitting import build_adversary, build_objective, fit_split
from robustcf.training.loop import Stop, fit
from tests.objectives.naive import WEIGHTS, batch_loss

SEEDS = [0, 1, 2]
STEPPING = ["bpr", "bce", "softmax"]  # those that search for an attack
ALL = [*STEPPING, "margin"]
BATCHINGS = ["rows", "pairs"]
OBJECTIVES: dict[str, Any] = {"bce": BCE, "bpr": BPR, "softmax": Softmax}
BOARD = checkerboard()


def batches_of(
    name: str, batching: str, seed: int = 0, pairs: Interactions = BOARD.train
) -> Batches:
    settings: dict[str, Any] = {"negatives": 4, **WEIGHTS} if name == "bce" else {}
    objective = OBJECTIVES[name](pairs, dtype=torch.float64, **settings)
    return Batches(objective, BatchConfig(batching, block_users=4, batch_size=11), seed=seed)


def factors_of(seed: int, pairs: Interactions = BOARD.train) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    U = torch.randn(pairs.n_users, 3, generator=g, dtype=torch.float64)
    return U, torch.randn(pairs.n_items, 3, generator=g, dtype=torch.float64)


def row_steps(gradient: Tensor, size: float) -> Tensor:
    """Every row of a gradient at a length, one by one; zero rows stay."""
    return torch.stack([size * g / g.norm() if g.norm() > 0 else g for g in gradient])


def weights_of(rival: Adversary) -> dict[str, Any]:
    """Those of an attacked cross-entropy."""
    config = rival.objective.config
    return {name: getattr(config, name) for name in WEIGHTS if isinstance(rival.objective, BCE)}


def naive_user_loss(
    name: str, batch: Batch, user: int, U: Tensor, V: Tensor, weights: dict[str, Any]
) -> float:
    """The mean loss of a user's pairs, pair by pair."""
    if name == "bpr" and batch.items is not None:
        assert batch.negatives is not None
        here = batch.users == user
        alone = Batch(batch.users[here], batch.items[here], batch.negatives[here])
        return float(batch_loss(name, alone, U, V, BOARD.train)) / int(here.sum())
    drawn = batch.negatives if name == "bpr" else None
    alone = Batch(torch.tensor([user]), None, drawn)
    value = float(batch_loss(name, alone, U, V, BOARD.train, c=weights))
    return value if name == "softmax" else value / int(BOARD.train.user_degrees[user])


def naive_shares(
    size: str, name: str, batch: Batch, U: Tensor, V: Tensor, weights: dict[str, Any]
) -> Tensor:
    """VAT and PamaCF: 2 sigmoid(x), with x written out user by user; 1 for the same size."""
    factor = torch.ones(len(U), dtype=U.dtype)
    if size == "same":
        return factor
    users = sorted(set(batch.users.tolist()))
    if size == "loss":
        values = {user: naive_user_loss(name, batch, user, U, V, weights) for user in users}
    else:
        values = {user: float(row.norm()) for user, row in enumerate(U)}  # all users have pairs
    mean = sum(values.values()) / len(values)
    for user in users:
        x = 1 - values[user] / mean
        factor[user] = 2 / (1 + np.exp(-x if size == "loss" else x))
    return factor


def check_added(
    rival: Adversary, batches: Batches, rounds: Any, U: Tensor, V: Tensor, expected: Any, own: bool
) -> None:
    """What add_gradient adds, as in the loop: a gradient of pairs is one of all users."""
    batch, theirs = rounds
    before = U.clone(), V.clone()
    plain, gradient = (
        found if batch.items is None else found.whole(len(U))
        for found in (batches.objective.gradient(batch, U, V) for _ in range(2))
    )
    found = rival.add_gradient(theirs, U, V, gradient, own=gradient if own else None, value=True)
    users, items, value = expected
    assert found == pytest.approx(value)
    users = users if plain.rows is None else users[plain.rows]
    torch.testing.assert_close(gradient.users, plain.users + 0.7 * users)
    torch.testing.assert_close(gradient.items, plain.items + 0.7 * items)
    assert torch.equal(U, before[0]), "the factors themselves do not move"
    assert torch.equal(V, before[1])


CASES = [
    *((name, training, "same") for name in STEPPING for training in OBJECTIVES),
    *((name, name, size) for name in STEPPING for size in ("loss", "norm")),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize(("name", "training", "size"), CASES)
def test_the_step_is_the_formula(
    name: str, training: str, size: str, batching: str, seed: int
) -> None:
    """loss(U, V) + weight * A(U + D_U, V + D_V), D constant: autograd on the definition."""
    batches = batches_of(training, batching, seed)
    rival = adversary(name, batches, AdversaryConfig(eps=0.3, weight=0.7, size=size))
    rounds = list(rival.rounds(batches, epoch=1))[2]
    U, V = factors_of(seed)
    c = weights_of(rival)

    def uphill(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, float]:
        u, v = u.clone().requires_grad_(), v.clone().requires_grad_()
        value = batch_loss(name, rounds[1], u, v, BOARD.train, c=c)
        return *torch.autograd.grad(value, (u, v)), float(value.detach())

    shares = naive_shares(size, name, rounds[1], U, V, c)
    assert size == "same" or shares.min() < 1 < shares.max()
    at_users, at_items, _ = uphill(U, V)
    to_users = row_steps(at_users, 0.3 * float(U.norm(dim=1).median())) * shares[:, None]
    to_items = row_steps(at_items, 0.3 * float(V.norm(dim=1).median()))
    expected = uphill(U + to_users, V + to_items)
    own = rival.objective is batches.objective
    check_added(rival, batches, rounds, U, V, expected, own)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("training", "batching"), list(itertools.product(OBJECTIVES, BATCHINGS)))
def test_the_margin_is_the_formula(training: str, batching: str, seed: int) -> None:
    """An objective with every gap less the most that it can lose: autograd on the definition."""
    batches = batches_of(training, batching, seed)
    rival = adversary("margin", batches, AdversaryConfig(eps=0.3, weight=0.7))
    assert isinstance(rival, Margin)
    assert (rival.objective is batches.objective) == (training != "bce")
    rounds = list(rival.rounds(batches, epoch=1))[2]
    U, V = factors_of(seed)
    V[3] = V[5]  # twins: a distance of 0 has no gradient
    U[int(rounds[1].users[0])] = 0.0
    u, v = U.clone().requires_grad_(), V.clone().requires_grad_()
    slack = tuple(0.3 * float(part.norm(dim=1).median()) for part in (U, V))
    assert rival.sizes(U, V) == pytest.approx(slack)
    value = batch_loss(rival.objective.name, rounds[1], u, v, BOARD.train, slack)
    expected = *torch.autograd.grad(value, (u, v)), float(value.detach())
    check_added(rival, batches, rounds, U, V, expected, own=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_perturbation_has_the_size_asked_for(seed: int) -> None:
    """By where the objective is asked the second time; a row without a gradient stays."""

    class Watched(Softmax):
        def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
            asked.append((U.clone(), V.clone()))
            rows = torch.tensor([1, 4, 8])
            directions = Gradient(torch.randn(3, 4), rows, 1e-6 * torch.randn(30, 4), None)
            directions.items[2] = 0.0
            return directions

    asked: list[tuple[Tensor, Tensor]] = []
    g = torch.Generator().manual_seed(seed)
    U, V = torch.randn(20, 4, generator=g), 3 * torch.randn(30, 4, generator=g)
    rival = Adversary(Batches(Watched(BOARD.train)), AdversaryConfig(eps=0.25, weight=1.0))
    into = Gradient(torch.zeros_like(U), None, torch.zeros_like(V), None)
    rival.add_gradient(Batch(torch.tensor([1, 4, 8])), U, V, into)
    assert all(map(torch.equal, asked[0], (U, V)))
    for n, (before, moving) in enumerate(((U, [1, 4, 8]), (V, [n for n in range(30) if n != 2]))):
        lengths = torch.zeros(len(before))
        lengths[moving] = 0.25 * before.norm(dim=1).median()
        torch.testing.assert_close((asked[1][n] - before).norm(dim=1), lengths)


SMALL = TrainConfig.of(
    model="ultragcn", factors=4, epochs=3, block_users=7, batch_size=50, negative_weight=10.0,
    patience=0, refit="no", epochs_chosen=True,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize(
    ("model", "objective"), [("ultragcn", "bce"), ("bpr-mf", "bpr"), ("ultragcn", "softmax")]
)
def test_no_weight_is_plain_training_to_the_bit_and_any_weight_is_not(
    model: str, objective: str, batching: str
) -> None:
    config = SMALL.replace(model=model, objective=objective, batching=batching)
    plain = fit_split(BOARD, config)
    assert "attacked_loss" not in plain.history[0]
    for name in ALL:
        off = fit_split(BOARD, config.replace(adversarial=name, adv_weight=0.0))
        assert all(map(torch.equal, off.factors, plain.factors))
        on = config.replace(adversarial=name, adv_weight=0.5, adv_eps=0.2)
        first, second = (fit_split(BOARD, on) for _ in range(2))
        assert not torch.equal(first.factors.users, plain.factors.users)
        assert all(map(torch.equal, first.factors, second.factors)), "same seed, same bits"
        assert first.history[0]["attacked_loss"] > 0


def test_no_adversary_adds_nothing() -> None:
    batches = batches_of("bpr", "rows")
    U, V = factors_of(0)
    rival = adversary("none", batches)
    assert isinstance(rival, adversarial.NoAdversary)
    batch, theirs = next(rival.rounds(batches, epoch=0))
    plain, gradient = (batches.objective.gradient(batch, U, V) for _ in range(2))
    assert rival.add_gradient(theirs, U, V, gradient, own=gradient, value=True) is None
    assert torch.equal(gradient.users, plain.users)
    assert torch.equal(gradient.items, plain.items)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_adversarial_personalized_ranking_degrades_less(seed: int) -> None:
    """He et al.'s claim: at equal size of the attack, less of the quality is lost."""
    split = load("demo")
    config = TrainConfig.of(
        model="bpr-mf", factors=16, epochs=8, block_users=250, epochs_chosen=True, refit="no",
        adversarial="bpr", adv_eps=0.2, seed=seed,
    )  # fmt: skip
    curves = []
    for weight in (0.0, 1.0):
        factors = fit_split(split, config.replace(adv_weight=weight)).factors
        # Absolute sizes, as theirs are; the rows of both have about the same length.
        attack = FGM(BPR(split.train, sampled_items=300), relative=False)
        attacked = (attack.perturb(factors, epsilon).factors for epsilon in (0.0, 0.4, 0.8))
        curves.append([evaluate(each, split, (10,))["ndcg@10"] for each in attacked])
    plain, apr = curves
    for n in (1, 2):
        assert apr[n] > 1.05 * plain[n]
        assert apr[n] / apr[0] > 1.1 * plain[n] / plain[0]


def test_a_term_that_is_not_finite_is_named() -> None:
    batches = Batches(BCE(BOARD.train))
    huge = adversary("bce", batches, AdversaryConfig(eps=1e30, weight=1e30))
    with pytest.raises(TrainingError, match="adversarial"):
        fit(UltraGCN(BOARD.train, factors=3), batches, Stop(1), adversary=huge)


# --- which objective it is about ------------------------------------------------------------


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize(
    ("name", "training", "expected"),
    [
        ("bpr", "bpr", None), ("bpr", "bce", BPR), ("bpr", "softmax", BPR),
        ("bce", "bpr", BCE), ("bce", "bce", BCE), ("bce", "softmax", BCE),
        ("softmax", "bpr", Softmax), ("softmax", "bce", Softmax), ("softmax", "softmax", None),
        ("margin", "bpr", None), ("margin", "bce", BPR), ("margin", "softmax", None),
    ],
)  # fmt: skip
def test_it_takes_the_trainings_own_objective_or_one_on_the_same_pairs(
    name: str, training: str, expected: Any, batching: str
) -> None:
    batches = batches_of(training, batching, seed=3)
    rival = adversary(name, batches)
    assert isinstance(rival, ADVERSARIES[name])
    if expected is None:
        assert rival.objective is batches.objective
        assert rival.batches is batches
        assert all(mine is theirs for mine, theirs in rival.rounds(batches, epoch=0))
        return
    assert type(rival.objective) is expected
    assert rival.objective.pairs is batches.objective.pairs
    assert rival.objective.dtype == torch.float64
    assert (rival.batches.config, rival.batches.seed) == (batches.config, 3)
    rounds = list(rival.rounds(batches, epoch=1))
    assert len(rounds) == batches.n_steps
    for mine, theirs in rounds:
        assert torch.equal(mine.users, theirs.users)
        assert mine.items is theirs.items is None or torch.equal(mine.items, theirs.items)


def test_the_cross_entropy_has_the_trainings_weights_without_the_item_term() -> None:
    config = TrainConfig.of(
        model="ultragcn", factors=3, adversarial="bce", negative_weight=33.0, w1=0.5
    )
    batches = Batches(build_objective(config, BOARD.train), config.batching)
    rival = build_adversary(config, batches)
    assert isinstance(rival, adversarial.AttackBCE)
    assert rival.objective is not batches.objective
    kept = rival.objective.config
    assert (kept.negative_weight, kept.w1, kept.item_weight) == (33.0, 0.5, 0)
    # Without that term it is the training's own.
    bare = Batches(build_objective(config.replace(item_weight=0.0), BOARD.train))
    assert adversary("bce", bare).objective is bare.objective
    # Next to another objective it has its defaults.
    other = adversary("bce", Batches(BPR(BOARD.train))).objective
    assert other.config == BCE.Config(item_weight=0.0)


@pytest.mark.parametrize(
    ("name", "settings", "word"),
    [
        ("x", {}, "adversary"),
        *(("bpr", {"eps": value}, "adv_eps") for value in (-0.1, float("inf"), "large")),
        *(("bpr", {"weight": value}, "adv_weight") for value in (-1.0, float("nan"))),
        ("bpr", {"size": "mine"}, "adv_size"),
        ("margin", {"size": "loss"}, "one size"),
    ],
)
def test_refuses(name: str, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        adversary(name, batches_of("bpr", "rows"), AdversaryConfig(**settings))
    with pytest.raises(InputError, match="bpr or softmax"):
        Margin(batches_of("bce", "rows"))  # which compares nothing


# --- a size per user ------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["loss", "norm"])
def test_for_equal_users_a_size_per_user_is_the_same_for_all(size: str) -> None:
    pairs = Interactions(np.arange(4), np.arange(4), 4, 4)
    V = torch.eye(4, dtype=torch.float64)
    batches = Batches(Softmax(pairs, dtype=torch.float64))
    batch = next(iter(batches.epoch(0)))
    rival = adversary("softmax", batches, AdversaryConfig(size=size))
    for U in (V, torch.zeros_like(V)):  # rows of zeros have a mean norm of 0
        torch.testing.assert_close(rival.shares(batch, U, V), torch.ones_like(V[0]))


def test_a_user_without_pairs_does_not_count_in_the_mean_norm() -> None:
    pairs = Interactions(np.array([0, 1]), np.array([0, 1]), 3, 4)
    U = torch.tensor([[1.0], [3.0], [100.0]], dtype=torch.float64)
    batches = Batches(BPR(pairs, dtype=torch.float64))
    rival = adversary("bpr", batches, AdversaryConfig(size="norm"))
    batch = next(iter(batches.epoch(0)))
    shares = rival.shares(batch, U, torch.ones(4, 1, dtype=torch.float64))
    expected = 2 / (1 + np.exp(-np.array([-0.5, 0.5, 49.0])))
    np.testing.assert_allclose(shares.numpy(), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sampled", [None, 7])
@pytest.mark.parametrize("p", [None, 0.4])
def test_losses_of_users_are_those_of_new_users(p: float | None, sampled: int | None, seed: int):
    """The fast ways give what user_loss gives, one user at a time."""
    U, V = factors_of(seed)
    for objective in (
        Softmax(BOARD.train, temperature=0.6, positive_temperature=p, sampled_items=sampled,
                weighting="pairs", dtype=torch.float64),
        BCE(BOARD.train, **WEIGHTS, sampled_items=sampled, dtype=torch.float64),
    ):  # fmt: skip
        batches = Batches(objective, BatchConfig(block_users=6), seed=seed)
        for batch in batches.epoch(0):
            users, losses = objective.user_losses(batch, U, V)
            slow_users, slow = super(type(objective), objective).user_losses(batch, U, V)
            assert users.tolist() == slow_users.tolist()
            torch.testing.assert_close(losses, slow)


def test_objectives_that_know_no_loss_of_a_user_say_so() -> None:
    batches = batches_of("bpr", "rows")
    U, V = factors_of(0)
    with pytest.raises(InputError, match="negatives"):
        batches.objective.user_losses(Batch(torch.tensor([0])), U, V)

    class Silent(Softmax):
        name = "silent"
        user_loss = Objective.user_loss
        user_losses = Objective.user_losses

    with pytest.raises(InputError, match="silent"):
        Silent(BOARD.train).user_losses(Batch(torch.tensor([0])), U, V)
