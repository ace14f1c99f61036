"""What every objective promises: batches that add up, gradients that are autograd's, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcf.data import Interactions
from robustcf.errors import InputError
from robustcf.objectives import (
    BCE,
    BPR,
    OBJECTIVES,
    Batch,
    BatchConfig,
    Batches,
    BCEConfig,
    BPRConfig,
    ComparingObjective,
    Gradient,
    Objective,
    ObjectiveConfig,
    Softmax,
)
from tests.objectives.naive import (
    WEIGHTS,
    assert_autograd,
    assert_gradient,
    bce_naive,
    bpr_naive,
    of_epoch,
    official_omega,
    pairs_of,
    small_case,
    softmax_naive,
)

SEEDS = [0, 1, 2]
KINDS = [BCE, BPR, Softmax]
NAIVE = {BCE: bce_naive, BPR: bpr_naive, Softmax: softmax_naive}
BATCHINGS = ["rows", "pairs"]


def objective_of(kind: Any, pairs: Interactions, **settings: Any) -> Objective[Any]:
    own = {"neighbours": 3, **WEIGHTS} if kind is BCE else {}
    return kind(pairs, dtype=torch.float64, **{**own, **settings})


def all_negatives(kind: Any) -> dict[str, int]:
    return {"sampled_items": 99} if kind is BPR else {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_contract(kind: Any, batching: str) -> None:
    pairs = Interactions.from_pairs([0, 0, 1, 2, 3], [0, 1, 1, 2, 3], 5, 6)[0]
    batches = Batches(kind(pairs), BatchConfig(batching, block_users=2, batch_size=2), seed=3)
    seen = list(batches.epoch(0))
    assert len(seen) == batches.n_steps
    assert batches.by_rows == (batching == "rows")
    users = np.concatenate([np.unique(batch.users) for batch in seen])
    assert set(users.tolist()) == {0, 1, 2, 3}  # the cold user is in no batch
    U, V = torch.randn(5, 3), torch.randn(6, 3)
    for batch in seen:
        gradient = batches.objective.gradient(batch, U, V, value=True)
        assert bool(torch.isfinite(gradient.users).all())
        assert bool(torch.isfinite(gradient.items).all())
        assert np.isfinite(gradient.value)
        assert gradient.items.shape == V.shape
        rows = 5 if gradient.rows is None else len(gradient.rows)
        assert gradient.users.shape == (rows, 3)
    same = list(batches.epoch(0))
    assert all(torch.equal(a.users, b.users) for a, b in zip(seen, same, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_full_gradient_is_autograds_of_the_definition(kind: Any, seed: int) -> None:
    pairs, U, V = small_case(seed, grad=True)
    objective = objective_of(kind, pairs, **all_negatives(kind))
    found, again = (objective.full_gradient(U.detach(), V.detach()) for _ in range(2))
    assert found.rows is None
    assert_autograd(found, NAIVE[kind](pairs, U, V), U, V)
    assert torch.equal(again.users, found.users)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_users_add_up_to_the_full_gradient(kind: Any, seed: int) -> None:
    pairs, U, V = small_case(seed)
    objective = objective_of(kind, pairs, **all_negatives(kind))
    whole = objective.full_gradient(U, V)
    for block_users in (1, 5, 100):
        parts = of_epoch(Batches(objective, BatchConfig(block_users=block_users), seed=seed), U, V)
        assert_gradient(parts, whole.value, whole.users, whole.items)


def mean_gradient(batches: Batches, U: Tensor, V: Tensor, epochs: int) -> tuple[Tensor, Tensor]:
    """Mean over epochs of the summed gradients (U over V), and its standard error."""
    seen = []
    for epoch in range(epochs):
        total = Gradient(torch.zeros_like(U), None, torch.zeros_like(V), None)
        for batch in batches.epoch(epoch):
            total.add(batches.objective.gradient(batch, U, V))
        seen.append(torch.cat((total.users, total.items)))
    stack = torch.stack(seen)
    return stack.mean(dim=0), stack.std(dim=0) / epochs**0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [BCE, BPR])
def test_both_batchings_have_the_same_expected_gradient(seed: int, kind: Any) -> None:
    pairs, U, V = small_case(seed)
    full = objective_of(kind, pairs, sampled_items=pairs.n_items).full_gradient(U, V)
    exact = torch.cat((full.users, full.items))
    some = objective_of(kind, pairs, sampled_items=4, negatives=3)
    for how in (BatchConfig(block_users=5), BatchConfig("pairs", batch_size=8)):
        mean, error = mean_gradient(Batches(some, how, seed=seed), U, V, 150)
        # Six standard errors over some 90 entries: a false alarm is a one-in-ten-million event.
        assert bool(((mean - exact).abs() <= 6 * error + 1e-9).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_gradient_is_at_the_tensors_given_and_leaves_them(kind: Any, batching: str) -> None:
    pairs, U, V = small_case(0)
    objective = objective_of(kind, pairs)
    batch = next(Batches(objective, BatchConfig(batching)).epoch(0))
    before = U.clone(), V.clone()
    there = objective.gradient(batch, 2 * U, V)
    here = objective.gradient(batch, U, V)
    assert not torch.equal(there.users, here.users)
    assert torch.equal(before[0], U)
    assert torch.equal(before[1], V)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_slope_is_the_derivative_for_the_log_of_the_scale(kind: Any, seed: int) -> None:
    pairs, U, V = small_case(seed)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(NAIVE[kind](pairs, log_t.exp() * U, V), log_t)
    objective = objective_of(kind, pairs, **all_negatives(kind))
    assert objective.slope(U, V) == pytest.approx(float(expected))


def test_the_slope_of_many_users_is_that_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, U, V = small_case(0, shape=(600, 9))
    whole = {kind: objective_of(kind, pairs).slope(U, V) for kind in (BCE, Softmax)}

    def of_users(kind: Any, users: np.ndarray) -> float:
        chosen = pairs.take(np.isin(pairs.users, users))
        found = objective_of(kind, pairs).full_gradient(U, V).users
        rows = torch.tensor(np.unique(chosen.users).astype(np.int64))
        return float((found[rows] * U[rows]).sum())

    monkeypatch.setattr("robustcf.objectives.base.SLOPE_USERS", 10)
    objective = objective_of(BCE, pairs)
    first = next(Batches(objective).epoch(0)).users.numpy()
    assert len(first) < 300  # one of several blocks, which are in a random order
    assert objective.slope(U, V) == pytest.approx(of_users(BCE, first))
    warm = np.flatnonzero(pairs.user_degrees)
    even = warm[np.linspace(0, len(warm) - 1, 10).astype(int)]
    assert objective_of(Softmax, pairs).slope(U, V) == pytest.approx(of_users(Softmax, even))
    assert objective_of(BCE, pairs).slope(U, V) != pytest.approx(whole[BCE])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("items", [[2], [0, 5, 6]])
def test_the_loss_of_a_new_user_is_the_definition(seed: int, items: list[int]) -> None:
    """Weights of items are those of the pairs; the user's own follow from the items."""
    pairs, U, V = small_case(seed, grad=True)
    u, ids = U[0].detach(), np.array(items)
    scores = (V @ u).detach()
    own, n = scores[ids], pairs.n_items
    others = [scores[j] for j in range(n) if j not in items]

    softplus = torch.nn.functional.softplus
    expected = {
        Softmax: torch.log(scores.exp().sum()) - own.mean(),
        BPR: sum(softplus(other - mine) for mine in own for other in others) / len(others),
    }
    c, omega = WEIGHTS, official_omega(pairs, 3)
    beta_u = (len(items) + 1) ** 0.5 / len(items)
    beta = [beta_u / (degree + 1) ** 0.5 for degree in pairs.item_degrees.tolist()]
    bce = scores.new_zeros(())
    for i in items:
        bce = bce + (c["w1"] + c["w2"] * beta[i]) * softplus(-scores[i])
        for j in range(n):
            weight = c["negative_weight"] / n * (c["w3"] + c["w4"] * beta[j])
            bce = bce + weight * softplus(scores[j])
        for j, weight in omega[i]:
            bce = bce + c["item_weight"] * weight * softplus(-scores[j])
    expected[BCE] = bce
    for kind, wanted in expected.items():
        loss = objective_of(kind, pairs).user_loss(ids, V.detach())
        torch.testing.assert_close(loss(u), wanted)
        row = u.clone().requires_grad_()
        assert torch.autograd.gradcheck(loss, (row,))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [BCE, BPR])
def test_the_losses_of_new_users_add_up_to_the_whole(kind: Any, seed: int) -> None:
    pairs, U, V = small_case(seed)
    objective = objective_of(kind, pairs, **all_negatives(kind))
    total = sum(
        float(objective.user_loss(pairs.items_of(u).astype(np.int64), V)(U[u]))
        for u in np.unique(pairs.users).tolist()
    )
    assert total == pytest.approx(objective.full_gradient(U, V).value)


def test_the_tables_names_are_the_classes() -> None:
    assert [OBJECTIVES[name] for name in ("bce", "bpr", "softmax")] == KINDS
    for name in OBJECTIVES:
        assert OBJECTIVES[name].name == name
        assert OBJECTIVES[name].compares_items == issubclass(OBJECTIVES[name], ComparingObjective)
    assert not BCE.compares_items


@pytest.mark.parametrize("kind", KINDS)
def test_refuses_to_have_no_pairs(kind: Any) -> None:
    pairs = pairs_of(np.random.default_rng(0))
    with pytest.raises(InputError, match="got none"):
        kind(pairs.take(np.zeros(len(pairs), dtype=bool)))


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (BCE, {"negatives": 0}, "negatives must be an integer of at least 1, got 0"),
        (BCE, {"sampled_items": 0}, "sampled_items must be an integer of at least 1, got 0"),
        (BCE, {"negative_weight": 0.0}, "negative_weight must be a finite number and positive"),
        (BCE, {"item_weight": -1.0}, "item_weight must be a finite number and not negative"),
        (BCE, {"neighbours": 0}, "neighbours must be an integer of at least 1, got 0"),
        (BCE, {"w1": "x"}, "w1 must be a finite number"),
        (BCE, {"w3": 0.0, "w4": 0.0}, "w3 and w4 must not both be 0"),
        (BCE, {"w5": 1.0}, "unknown setting 'w5'; known: negatives"),
        (BPR, {"negatives": 0}, "negatives must be an integer of at least 1, got 0"),
        (BPR, {"sampled_items": 0}, "sampled_items must be an integer of at least 1, got 0"),
        (BPR, {"sampled_items": None}, "sampled_items must be an integer of at least 1, got None"),
        (BPR, {"negative_weight": 3.0}, "unknown setting 'negative_weight'; did you mean 'negat"),
        (Softmax, {"negatives": 3}, "unknown setting 'negatives'"),
    ],
)
def test_refuses_settings(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        kind(pairs_of(np.random.default_rng(0)), **settings)


def test_takes_a_config_or_settings_not_both_and_of_its_own_class() -> None:
    pairs = pairs_of(np.random.default_rng(0))
    assert BPR(pairs, BPRConfig(negatives=3)).config == BPR(pairs, negatives=3).config
    assert BCE(pairs).config == BCEConfig()
    with pytest.raises(InputError, match="settings"):
        BPR(pairs, BPRConfig(), negatives=3)
    with pytest.raises(InputError, match="BPRConfig"):
        BPR(pairs, BCEConfig())
    with pytest.raises(InputError, match="BCEConfig"):
        BCE(pairs, {"w1": 1.0})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("users", "items"), [(12, 9), (13, 8), (9, 13)])
def test_refuses_factors_of_other_data(kind: Any, users: int, items: int) -> None:
    objective = kind(pairs_of(np.random.default_rng(0)))
    message = f"factors are for {users} users x {items} items, the pairs for 13 x 9"
    with pytest.raises(InputError, match=message):
        objective.full_gradient(torch.ones(users, 2), torch.ones(items, 2))
    with pytest.raises(InputError, match="different data"):
        objective.slope(torch.ones(users, 2), torch.ones(items, 2))


def test_pairs_loss_refuses_rows() -> None:
    pairs = pairs_of(np.random.default_rng(0))
    block = Batch(torch.tensor([0]))
    U, V = torch.ones(13, 2), torch.ones(9, 2)
    for objective in (BCE(pairs), BPR(pairs)):
        with pytest.raises(InputError, match="needs"):
            objective.pairs_loss(block, U, V)
    with pytest.raises(InputError, match="compares"):
        BPR(pairs).gradient(block, U, V)
    with pytest.raises(InputError, match="batching"):
        Softmax(pairs).pairs_loss(block, U, V)


@dataclass(frozen=True)
class ScaleConfig(ObjectiveConfig):
    scale: float = 1.0


class Squares(Objective[ScaleConfig]):
    """A user-defined objective with a gradient alone."""

    name = "squares"
    Config = ScaleConfig

    def gradient(self, batch: Batch, U: Tensor, V: Tensor, *, value: bool = False) -> Gradient:
        rows, c = batch.users, self.config.scale
        total = float(c * U[rows].square().sum()) if value else None
        return Gradient(2 * c * U[rows], rows, torch.zeros_like(V), total)


def test_an_objective_needs_a_gradient_alone() -> None:
    pairs = pairs_of(np.random.default_rng(0))
    objective = Squares(pairs, scale=3.0)
    U, V = torch.randn(13, 2), torch.randn(9, 2)
    warm = torch.tensor(pairs.user_degrees > 0)[:, None]
    found = objective.full_gradient(U, V)
    torch.testing.assert_close(found.users, 6 * U * warm)
    assert found.value == pytest.approx(float(3 * (U * warm).square().sum()), rel=1e-5)
    assert objective.slope(U, V) == pytest.approx(2 * found.value, rel=1e-5)
    assert not objective.compares_items
    batch = next(Batches(objective, BatchConfig("pairs")).epoch(0))
    assert batch.negatives is None
    with pytest.raises(InputError, match="batching"):
        objective.pairs_loss(batch, U, V)
    with pytest.raises(InputError, match="squares"):
        objective.user_loss(np.array([0]), V)


def test_gradients_add_by_rows_or_whole() -> None:
    rows, users = torch.tensor([3, 1]), torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    part = Gradient(users, rows, torch.full((4, 1), 2.0), 7.0)
    whole = part.whole(5)
    assert whole.users.flatten().tolist() == [0.0, 2.0, 0.0, 1.0, 0.0]
    assert whole.users.dtype == torch.float64
    assert (whole.rows, whole.items, whole.value) == (None, part.items, 7.0)
    assert whole.whole(5) is whole
    total = Gradient(torch.zeros(5, 1, dtype=torch.float64), None, torch.zeros(4, 1), None)
    total.add(part, 0.5)
    assert torch.equal(total.users, whole.users / 2)
    assert total.items.flatten().tolist() == [1.0] * 4
    total.add(total.whole(5), 1.0)
    assert torch.equal(total.users, whole.users)
    same = Gradient(torch.zeros_like(users), rows, torch.zeros(4, 1), None)
    same.add(part)
    assert torch.equal(same.users, users)
