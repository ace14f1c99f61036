"""The softmax with a temperature: against autograd on the definition, drawn sums, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcf.data import Interactions
from robustcf.errors import InputError
from robustcf.objectives import Batch, BatchConfig, Batches, Softmax, partition, softmax
from robustcf.objectives.partition import OwnItems, Scratch, log_partition_rows
from tests.objectives.naive import (
    assert_gradient,
    gradients,
    of_epoch,
    pairs_of,
    parameters,
    small_case,
)

SEEDS = [0, 1, 2]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.2},
    {"temperature": 0.2, "weighting": "pairs"},
    {"weighting": "pairs"},
    {"temperature": 0.2, "weighting": "damped"},
    {"temperature": 0.5, "positive_temperature": 0.3},
    {"temperature": 0.5, "positive_temperature": 2.0, "weighting": "pairs"},
    {"positive_temperature": 1.0},
    {"temperature": 0.3, "positive_temperature": 0.4, "weighting": "damped"},
]
POWERS = {"users": 0.0, "damped": 0.75, "pairs": 1.0}


def defined(
    pairs: Interactions,
    U: Tensor,
    V: Tensor,
    *,
    temperature: float = 1.0,
    positive_temperature: float | None = None,
    weighting: str = "users",
) -> Tensor:
    """The objective user by user, as its docstring writes it."""
    total = U.new_zeros(())
    for u in np.unique(pairs.users).tolist():
        own = torch.tensor(pairs.items_of(u).astype(np.int64))
        scores = V @ U[u]
        mean = scores[own].mean()
        if positive_temperature is not None:
            mean = positive_temperature * (scores[own] / positive_temperature).exp().mean().log()
        term = (scores / temperature).exp().sum().log() - mean / temperature
        total = total + len(own) ** POWERS[weighting] * term
    return total


@pytest.fixture(params=["folded", "apart"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Own items inside the products with the catalogue, or in products of their own."""
    way: str = request.param
    monkeypatch.setattr(softmax, "_DENSE", 0.0 if way == "folded" else 2.0)
    return way


def test_dense_data_is_folded_and_sparse_data_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    products = OwnItems.subtract_products

    def counted(self: OwnItems, *arguments: Any) -> None:
        calls.append(len(self.rows))
        products(self, *arguments)

    monkeypatch.setattr(OwnItems, "subtract_products", counted)
    # One pair in 99 and one in 101 of what the users with pairs could have.
    for n_items, expected in ((99, []), (101, [2])):
        pairs = Interactions(np.array([0, 2]), np.array([1, 0]), 5, n_items)
        objective = Softmax(pairs, temperature=0.2)
        objective.full_gradient(torch.ones(5, 1), torch.ones(n_items, 1))
        assert calls == expected


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("max_share", [None, 0.3])
@pytest.mark.parametrize("long_rows", [False, True])
def test_some_users_at_a_time_are_all_of_them(
    monkeypatch: pytest.MonkeyPatch, seed: int, max_share: float | None, *, long_rows: bool
) -> None:
    """Blocks of three users; rows so long that the largest score is subtracted first."""
    rng = np.random.default_rng(seed)
    pairs = pairs_of(rng)
    U, V = (part.detach() * (9.0 if long_rows else 1.0) for part in parameters(rng, pairs))
    objective = Softmax(
        pairs, dtype=torch.float64,
        temperature=0.5, positive_temperature=0.3, weighting="pairs", max_share=max_share,
    )  # fmt: skip
    whole = objective.full_gradient(U, V)
    monkeypatch.setattr(partition, "_PARTITION_BYTES", 3 * len(V) * 8)
    found = objective.full_gradient(U, V)
    assert_gradient(found, whole.value, whole.users, whole.items)


@pytest.mark.parametrize("max_share", [None, 0.3])
@pytest.mark.parametrize("settings", SETTINGS)
def test_both_ways_agree(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], max_share: float | None
) -> None:
    pairs, U, V = small_case(3)
    found = []
    for limit in (0.0, 2.0):
        monkeypatch.setattr(softmax, "_DENSE", limit)
        objective = Softmax(pairs, dtype=torch.float64, max_share=max_share, **settings)
        found.append(objective.full_gradient(U, V))
    assert found[0].value == pytest.approx(found[1].value, rel=1e-12)
    torch.testing.assert_close(found[0].users, found[1].users)
    torch.testing.assert_close(found[0].items, found[1].items)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_are_autograds_of_the_definition(settings: dict[str, Any], seed: int) -> None:
    pairs, U, V = small_case(seed, grad=True)
    expected = defined(pairs, U, V, **settings)
    to_users, to_items = gradients(expected, U, V)
    objective = Softmax(pairs, dtype=torch.float64, **settings)
    U, V = U.detach(), V.detach()
    for found in (
        objective.full_gradient(U, V),
        of_epoch(Batches(objective, BatchConfig(block_users=4), seed=seed), U, V),
    ):
        assert_gradient(found, expected.item(), to_users, to_items)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("settings", SETTINGS[:4])
def test_batches_of_pairs_add_up_to_the_whole(settings: dict[str, Any], seed: int) -> None:
    pairs, U, V = small_case(seed)
    objective = Softmax(pairs, dtype=torch.float64, **settings)
    whole = objective.full_gradient(U, V)
    parts = of_epoch(Batches(objective, BatchConfig("pairs", batch_size=5), seed=seed), U, V)
    assert_gradient(parts, whole.value, whole.users, whole.items)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_loss_of_a_new_user_adds_up_to_the_whole(settings: dict[str, Any], seed: int) -> None:
    pairs, U, V = small_case(seed)
    objective = Softmax(pairs, dtype=torch.float64, **settings)
    total = sum(
        float(objective.user_loss(pairs.items_of(u).astype(np.int64), V)(U[u]))
        for u in np.unique(pairs.users).tolist()
    )
    assert total == pytest.approx(objective.full_gradient(U, V).value)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_infinite_positive_temperature_is_the_mean(seed: int) -> None:
    pairs, U, V = small_case(seed)
    plain = Softmax(pairs, dtype=torch.float64, temperature=0.3).full_gradient(U, V)
    soft = Softmax(pairs, dtype=torch.float64, temperature=0.3, positive_temperature=1e6)
    torch.testing.assert_close(soft.full_gradient(U, V).users, plain.users, atol=1e-4, rtol=1e-4)


# --- drawn items ----------------------------------------------------------------------------


def test_the_drawn_sum_is_unbiased() -> None:
    """Averaged over all subsets, exactly: the estimate of sum exp(s) is the sum."""
    rng = np.random.default_rng(0)
    pairs = Interactions.from_pairs([0], [2], 1, 6)[0]
    U, V = (part.detach() for part in parameters(rng, pairs))
    objective = Softmax(pairs, dtype=torch.float64, temperature=0.4, sampled_items=2)
    own = float(V[2] @ U[0]) / 0.4
    estimates = []
    for drawn in itertools.combinations(range(6), 2):
        batch = Batch(torch.tensor([0]), negatives=torch.tensor(drawn))
        value = objective.gradient(batch, U, V, value=True).value
        assert value is not None
        estimates.append(np.exp(value + own))
    assert np.mean(estimates) == pytest.approx(float((V @ U[0] / 0.4).exp().sum()), rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_subset_is_drawn_as_often(seed: int) -> None:
    objective = Softmax(pairs_of(np.random.default_rng(0)), sampled_items=4)
    rng = np.random.default_rng(seed)
    counts = np.zeros(9)
    for _ in range(900):
        drawn = objective.shared_negatives(rng)
        assert drawn is not None
        assert len(np.unique(drawn)) == 4
        counts[drawn.numpy()] += 1
    # Binomial(900, 4/9): deviation 14.9.
    assert np.abs(counts - 400).max() < 6 * 14.9


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_with_drawn_items_is_autograds(seed: int) -> None:
    pairs, U, V = small_case(seed, grad=True)
    objective = Softmax(
        pairs, dtype=torch.float64, temperature=0.5, sampled_items=5, weighting="pairs"
    )
    drawn = torch.tensor([0, 2, 3, 6, 8])
    users = torch.tensor(np.unique(pairs.users).astype(np.int64))
    expected = U.new_zeros(())
    for u in users.tolist():
        own = torch.tensor(pairs.items_of(u).astype(np.int64))
        sums = (9 / 5) * (V[drawn] @ U[u] / 0.5).exp().sum()
        expected = expected + len(own) * sums.log() - (V[own] @ U[u]).sum() / 0.5
    to_users, to_items = gradients(expected, U, V)
    batch = Batch(users, negatives=drawn)
    found = objective.gradient(batch, U.detach(), V.detach(), value=True)
    assert_gradient(found, expected.item(), to_users[users], to_items)


# --- the kernel -----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 30.0, 400.0])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_log_partition_is_right_for_short_and_long_rows(
    scale: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound the largest score is taken off first: nothing overflows."""
    generator = torch.Generator().manual_seed(0)
    U = scale * torch.randn(7, 3, generator=generator, dtype=torch.float64)
    V = torch.randn(11, 3, generator=generator, dtype=torch.float64)
    mass = torch.rand(7, generator=generator, dtype=torch.float64)
    u, v = U.clone().requires_grad_(), V.clone().requires_grad_()
    expected = (mass * (u @ v.T).logsumexp(dim=1)).sum()
    to_users, to_items = torch.autograd.grad(expected, (u, v))
    monkeypatch.setattr("robustcf.objectives.partition._PARTITION_BYTES", at_once * 11 * 8)
    items = torch.ones_like(V)
    users, value = log_partition_rows(U, V, mass, items, value=True)
    assert value == pytest.approx(expected.item())
    torch.testing.assert_close(users, to_users)
    torch.testing.assert_close(items, to_items + 1.0)


def test_one_item_has_no_gradient() -> None:
    pairs = Interactions.from_pairs([0, 1], [0, 0], 2, 1)[0]
    found = Softmax(pairs, temperature=0.1, weighting="pairs").full_gradient(
        torch.ones(2, 3), torch.ones(1, 3)
    )
    assert float(found.users.abs().max()) < 1e-5
    assert found.value == pytest.approx(0.0, abs=1e-5)


def test_a_user_without_pairs_has_no_gradient() -> None:
    pairs = Interactions.from_pairs([0, 2], [0, 1], 3, 4)[0]
    for settings in SETTINGS:
        found = Softmax(pairs, **settings).full_gradient(torch.ones(3, 2), torch.randn(4, 2))
        assert bool((found.users[1] == 0).all())
        assert bool(torch.isfinite(found.items).all())


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature must be a finite number and positive, got 0.0"),
        ({"temperature": -1.0}, "temperature must be a finite number and not negative, got -1"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"temperature": "x"}, "temperature must be a finite number"),
        ({"positive_temperature": 0.0}, "positive_temperature must be a finite number and pos"),
        ({"weighting": "items"}, "weighting must be one of users, damped, pairs, got 'items'"),
        ({"sampled_items": 0}, "sampled_items must be an integer of at least 1, got 0"),
        ({"sampled_items": 10}, "sampled_items must be at most the 9 items there are, got 10"),
    ],
)
def test_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Softmax(pairs_of(np.random.default_rng(0)), **settings)


def test_the_bilateral_form_wants_whole_rows_and_has_no_margin() -> None:
    pairs = pairs_of(np.random.default_rng(0))
    objective = Softmax(pairs, positive_temperature=1.0)
    U, V = torch.ones(13, 2), torch.ones(9, 2)
    batch = next(Batches(objective, BatchConfig("pairs")).epoch(0))
    with pytest.raises(InputError, match="batching"):
        objective.gradient(batch, U, V)
    with pytest.raises(InputError, match="bilateral"):
        objective.margin_gradient(Batch(torch.tensor([0])), U, V, (0.1, 0.1))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_margin_at_a_temperature_bounds_the_loss_under_attack(seed: int) -> None:
    pairs, U, V = small_case(seed)
    objective = Softmax(pairs, dtype=torch.float64, temperature=0.3, weighting="pairs")
    users = torch.tensor(np.unique(pairs.users).astype(np.int64))
    a, b = 0.05, 0.08
    bound = objective.margin_gradient(Batch(users), U, V, (a, b), value=True)
    assert bound.value > objective.full_gradient(U, V).value
    generator = torch.Generator().manual_seed(seed)

    def moved(rows: Tensor, by: float) -> Tensor:
        step = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
        return rows + by * step / step.norm(dim=1, keepdim=True)

    for _ in range(50):
        assert objective.full_gradient(moved(U, a), moved(V, b)).value <= bound.value
    # Its gradient: finite differences of its own value.
    step = torch.randn(U.shape, generator=generator, dtype=torch.float64)
    h = 1e-6
    values = [
        objective.margin_gradient(Batch(users), U + s * h * step, V, (a, b), value=True).value
        for s in (1, -1)
    ]
    slope = float((bound.users * step[users]).sum())
    assert (values[0] - values[1]) / (2 * h) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sums_over_the_catalogue_in_memory_that_was_used_before(seed: int) -> None:
    """Blocks of any size in one scratch: rows of scores are padded, and padding counts nowhere."""
    rng = torch.Generator().manual_seed(seed)
    V = torch.randn(23, 4, generator=rng, dtype=torch.float64)
    scratch = Scratch()
    for users in (20, 5, 16, 17, 1):
        U = torch.randn(users, 4, generator=rng, dtype=torch.float64).requires_grad_()
        W = V.clone().requires_grad_()
        mass = torch.rand(users, generator=rng, dtype=torch.float64)
        expected = (mass * (U @ W.T).logsumexp(dim=1)).sum()
        expected.backward()
        to_items = torch.zeros_like(V)
        part, value = log_partition_rows(U.detach(), V, mass, to_items, value=True, scratch=scratch)
        assert value == pytest.approx(float(expected.detach()))
        torch.testing.assert_close(part, U.grad)
        torch.testing.assert_close(to_items, W.grad)
