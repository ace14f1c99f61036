"""The softmax against autograd on its definition: temperatures, drawn sums, refusals."""

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
    assert_autograd,
    assert_gradient,
    batch_loss,
    of_epoch,
    pairs_of,
    parameters,
    small_case,
    softmax_naive,
)

SEEDS = [0, 1, 2]
SETTINGS: list[dict[str, Any]] = [
    {},
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


def uneven(seed: int) -> tuple[Interactions, Tensor, Tensor]:
    """Some users have nearly everything, one has nothing, one has all."""
    dense = np.random.default_rng(seed).random((11, 8)) < np.linspace(0.1, 0.9, 11)[:, None]
    dense[3], dense[7], dense[0, 0] = False, True, True
    pairs = Interactions(*np.nonzero(dense), 11, 8)
    return pairs, *parameters(np.random.default_rng(seed), pairs, 3)


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
    # One pair in 99 and one in 101 cells of the users with pairs.
    for n_items, expected in ((99, []), (101, [2])):
        pairs = Interactions(np.array([0, 2]), np.array([1, 0]), 5, n_items)
        objective = Softmax(pairs, temperature=0.2)
        objective.full_gradient(torch.ones(5, 1), torch.ones(n_items, 1))
        assert calls == expected


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("max_share", [None, 0.3])
@pytest.mark.parametrize("scale", [1.0, 9.0])
def test_some_users_at_a_time_are_all_of_them(
    monkeypatch: pytest.MonkeyPatch, seed: int, max_share: float | None, scale: float
) -> None:
    """Blocks of three users; rows so long that the largest score is subtracted first."""
    pairs, U, V = small_case(seed)
    U, V = scale * U, scale * V
    objective = Softmax(
        pairs, dtype=torch.float64,
        temperature=0.5, positive_temperature=0.3, weighting="pairs", max_share=max_share,
    )  # fmt: skip
    whole = objective.full_gradient(U, V)
    monkeypatch.setattr(partition, "_PARTITION_BYTES", 3 * len(V) * 8)
    found = objective.full_gradient(U, V)
    assert_gradient(found, whole.value, whole.users, whole.items)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_are_autograds_of_the_definition(settings: dict[str, Any], seed: int) -> None:
    for pairs, U, V in (small_case(seed, grad=True), uneven(seed)):
        objective = Softmax(pairs, dtype=torch.float64, **settings)
        u, v = U.detach(), V.detach()
        found = [objective.full_gradient(u, v)]
        kinds = ("rows",) if "positive_temperature" in settings else ("rows", "pairs")
        for kind in kinds:
            batches = Batches(objective, BatchConfig(kind, block_users=4, batch_size=5), seed=seed)
            found.append(of_epoch(batches, u, v))
        for one in found:
            assert_autograd(one, defined(pairs, U, V, **settings), U, V)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batching", ["rows", "pairs"])
def test_a_batch_has_the_gradient_of_autograd(batching: str, seed: int) -> None:
    pairs, U, V = uneven(seed)
    objective = Softmax(pairs)
    for batch in Batches(objective, BatchConfig(batching, 3, 7), seed=seed).epoch(1):
        got = objective.gradient(batch, U.detach(), V.detach(), value=True)
        assert_autograd(got, batch_loss("softmax", batch, U, V, pairs), U, V)
        assert got.rows is not None
        assert len(got.rows) == len(set(got.rows.tolist()))
        assert objective.gradient(batch, U.detach(), V.detach()).value is None


@pytest.mark.parametrize("seed", SEEDS)
def test_it_ignores_a_constant_added_to_a_users_scores(seed: int) -> None:
    pairs, U, V = uneven(seed)
    U, V = U.detach(), V.detach()
    objective, shift = Softmax(pairs), torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    here, there = objective.full_gradient(U, V), objective.full_gradient(U, V + shift)
    assert here.value == pytest.approx(there.value)
    torch.testing.assert_close(here.users, there.users)


def test_huge_scores_do_not_overflow() -> None:
    pairs = Interactions.from_pairs([0, 1], [0, 1], 2, 3)[0]
    U, V = torch.full((2, 1), 100.0), torch.tensor([[1.0], [50.0], [-100.0]])
    found = Softmax(pairs).full_gradient(U, V)
    # The first user's item lies 4900 behind the best, the second's is the best.
    assert found.value == pytest.approx(4900.0)
    assert bool(torch.isfinite(found.users).all())
    assert found.users[:, 0].tolist() == pytest.approx([49.0, 0.0])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_it_works_in_the_precision_of_the_factors(kind: torch.dtype) -> None:
    pairs, U, V = small_case(0)
    found = Softmax(pairs).full_gradient(U.to(kind), V.to(kind))
    assert found.users.dtype == found.items.dtype == kind
    assert found.value == pytest.approx(float(softmax_naive(pairs, U, V)), rel=1e-5)
    batch = Batch(torch.tensor([0, 2]))
    assert Softmax(pairs).gradient(batch, U.to(kind), V.to(kind)).users.dtype == kind


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
    """Averaged over all subsets, the estimate of sum exp(s) is exact."""
    pairs = Interactions.from_pairs([0], [2], 1, 6)[0]
    U, V = (part.detach() for part in parameters(np.random.default_rng(0), pairs))
    objective = Softmax(pairs, dtype=torch.float64, temperature=0.4, sampled_items=2)
    own = float(V[2] @ U[0]) / 0.4
    estimates = []
    for drawn in itertools.combinations(range(6), 2):
        batch = Batch(torch.tensor([0]), negatives=torch.tensor(drawn))
        estimates.append(np.exp(objective.gradient(batch, U, V, value=True).value + own))
    assert np.mean(estimates) == pytest.approx(float((V @ U[0] / 0.4).exp().sum()), rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_subset_is_drawn_as_often(seed: int) -> None:
    objective = Softmax(pairs_of(np.random.default_rng(0)), sampled_items=4)
    rng = np.random.default_rng(seed)
    drawn = [objective.shared_negatives(rng).numpy() for _ in range(900)]
    assert all(len(np.unique(some)) == 4 for some in drawn)
    # Binomial(900, 4/9): deviation 14.9.
    assert np.abs(np.bincount(np.concatenate(drawn), minlength=9) - 400).max() < 6 * 14.9


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
    batch = Batch(users, negatives=drawn)
    found = objective.gradient(batch, U.detach(), V.detach(), value=True)
    assert_autograd(found, expected, U, V)


# --- the kernel -----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 30.0, 400.0])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_log_partition_is_right_for_short_and_long_rows(
    scale: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of any size in one padded scratch memory; long rows do not overflow."""
    monkeypatch.setattr(partition, "_PARTITION_BYTES", at_once * 11 * 8)
    generator = torch.Generator().manual_seed(0)
    scratch = Scratch()
    for users in (20, 7, 16, 17, 1):
        U, V = (
            scale**0.5 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
            for n in (users, 11)
        )
        mass = torch.rand(users, generator=generator, dtype=torch.float64)
        u, v = U.clone().requires_grad_(), V.clone().requires_grad_()
        expected = (mass * (u @ v.T).logsumexp(dim=1)).sum()
        to_users, to_items = torch.autograd.grad(expected, (u, v))
        items = torch.ones_like(V)
        got, value = log_partition_rows(U, V, mass, items, value=True, scratch=scratch)
        assert value == pytest.approx(expected.item())
        torch.testing.assert_close(got, to_users)
        torch.testing.assert_close(items, to_items + 1.0)


def test_one_item_has_no_gradient() -> None:
    pairs = Interactions.from_pairs([0, 1], [0, 0], 2, 1)[0]
    found = Softmax(pairs, temperature=0.1, weighting="pairs").full_gradient(
        torch.ones(2, 3), torch.ones(1, 3)
    )
    assert float(found.users.abs().max()) < 1e-5
    assert found.value == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_user_without_pairs_has_no_gradient(settings: dict[str, Any]) -> None:
    pairs = Interactions.from_pairs([0, 2], [0, 1], 3, 4)[0]
    found = Softmax(pairs, **settings).full_gradient(torch.ones(3, 2), torch.randn(4, 2))
    assert bool((found.users[1] == 0).all())
    assert bool(torch.isfinite(found.items).all())


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
        ({"precision": "float8"}, "precision must be one of"),
    ],
)
def test_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Softmax(pairs_of(np.random.default_rng(0)), **settings)


def test_the_bilateral_form_needs_whole_rows_and_has_no_margin() -> None:
    objective = Softmax(pairs_of(np.random.default_rng(0)), positive_temperature=1.0)
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
