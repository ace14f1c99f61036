"""The objectives against naive transcriptions: value, gradient, and both batchings alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcf.data import Interactions
from robustcf.models import BPRMF, Batch, UltraGCN
from robustcf.objectives.graph import item_beta, item_graph, user_beta

SEEDS = [0, 1, 2]


def pairs_of(rng: np.random.Generator, n_users: int = 13, n_items: int = 9) -> Interactions:
    """Random pairs; the last user and the last item have none."""
    cells = rng.random((n_users, n_items)) < 0.35
    cells[-1], cells[:, -1] = False, False
    cells[0, 0] = True
    return Interactions(*np.nonzero(cells), n_users, n_items)


def parameters(
    rng: np.random.Generator, train: Interactions, dim: int = 4
) -> tuple[Tensor, Tensor]:
    U = torch.tensor(rng.standard_normal((train.n_users, dim)), requires_grad=True)
    V = torch.tensor(rng.standard_normal((train.n_items, dim)), requires_grad=True)
    return U, V


# --- the official objective, written out from its description, slowly -----------------------


def official_omega(train: Interactions, neighbours: int) -> list[list[tuple[int, float]]]:
    R = train.csr().toarray().astype(np.float64)
    G = R.T @ R
    g = G.sum(axis=1)
    table = []
    for i in range(train.n_items):
        weights = [
            (G[i, j] * (np.sqrt(g[i] + 1) / g[i]) * (1 / np.sqrt(g[j] + 1)) if g[i] else 0.0, j)
            for j in range(train.n_items)
        ]
        best = sorted(weights, key=lambda e: (-e[0], e[1]))[:neighbours]
        table.append([(j, w) for w, j in best if w > 0])
    return table


def official_pair_loss(
    u: int, i: int, negatives: list[int], S: Tensor, train: Interactions, c: dict[str, Any]
) -> Tensor:
    """One training pair of the official code."""
    du, di = train.user_degrees, train.item_degrees

    def beta(user: int, item: int) -> float:
        return float(np.sqrt(du[user] + 1) / du[user] * (1 / np.sqrt(di[item] + 1)))

    loss = (c["w1"] + c["w2"] * beta(u, i)) * -torch.nn.functional.logsigmoid(S[u, i])
    for j in negatives:
        weight = (c["w3"] + c["w4"] * beta(u, j)) * c["negative_weight"] / len(negatives)
        loss = loss + weight * -torch.nn.functional.logsigmoid(-S[u, j])
    for j, omega in c["omega"][i]:
        loss = loss + c["item_weight"] * omega * -torch.nn.functional.logsigmoid(S[u, j])
    return loss


WEIGHTS: dict[str, Any] = {
    "negative_weight": 7.0,
    "item_weight": 0.3,
    "w1": 0.1,
    "w2": 1.3,
    "w3": 0.05,
    "w4": 0.9,
}


def ultragcn(train: Interactions, **options: Any) -> UltraGCN:
    given = {"dim": 4, "neighbours": 3, "dtype": torch.float64, **WEIGHTS, **options}
    return UltraGCN(train, **given)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weights", [{}, {"w3": 0.0}, {"w4": 0.0}, {"item_weight": 0.0}])
def test_rows_are_the_official_objective_over_all_negatives(
    seed: int, weights: dict[str, float]
) -> None:
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    U, V = parameters(rng, train)
    c = {**WEIGHTS, **weights, "omega": official_omega(train, 3)}
    every = list(range(train.n_items))
    S = U @ V.T
    expected = sum(
        official_pair_loss(int(u), int(i), every, S, train, c)
        for u, i in zip(train.users, train.items, strict=True)
    )
    expected_U, expected_V = torch.autograd.grad(expected, (U, V))

    model = ultragcn(train, block_users=5, **weights)
    value, got_U, got_V = 0.0, torch.zeros_like(U), torch.zeros_like(V)
    for batch in model.batches(0):
        gradient = model.gradient(batch, U.detach(), V.detach(), value=True)
        value += gradient.value
        got_U[gradient.rows] += gradient.users
        got_V += gradient.items
    assert value == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(got_U, expected_U)
    torch.testing.assert_close(got_V, expected_V)


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_are_the_official_loss_of_the_drawn_negatives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    U, V = parameters(rng, train)
    c = {**WEIGHTS, "omega": official_omega(train, 3)}
    model = ultragcn(train, batching="pairs", batch_size=8, negatives=4)
    assert sum(len(batch.users) for batch in model.batches(3)) == len(train)
    for batch in model.batches(3):
        S = U @ V.T
        expected = sum(
            official_pair_loss(int(u), int(i), js.tolist(), S, train, c)
            for u, i, js in zip(batch.users, batch.items, batch.negatives, strict=True)
        )
        gradients = torch.autograd.grad(expected, (U, V))
        got = model.gradient(batch, U.detach(), V.detach())
        assert got.value == pytest.approx(expected.item(), rel=1e-12)
        torch.testing.assert_close(got.users, gradients[0])
        torch.testing.assert_close(got.items, gradients[1])


def mean_gradient(model: Any, U: Tensor, V: Tensor, passes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean over passes of the summed gradients (U over V), and its standard error."""
    seen = []
    for epoch in range(passes):
        total = torch.zeros(len(U) + len(V), U.shape[1], dtype=U.dtype)
        for batch in model.batches(epoch):
            gradient = model.gradient(batch, U, V)
            if gradient.rows is None:
                total[: len(U)] += gradient.users
            else:
                total[: len(U)].index_add_(0, gradient.rows, gradient.users)
            total[len(U) :] += gradient.items
        seen.append(total)
    stack = torch.stack(seen)
    return stack.mean(dim=0), stack.std(dim=0) / passes**0.5, stack[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [ultragcn, BPRMF])
def test_both_batchings_have_the_same_expected_gradient(seed: int, make: Any) -> None:
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    U, V = (part.detach() for part in parameters(rng, train))
    common = {"dim": 4, "dtype": torch.float64, "seed": seed}
    rows = make(train, block_users=5, sampled_items=4, **common)
    full = make(train, block_users=5, sampled_items=train.n_items, **common)
    pairs = make(train, batching="pairs", batch_size=8, negatives=3, **common)
    _, _, exact = mean_gradient(full, U, V, 2)
    for model in (rows, pairs):
        mean, error, _ = mean_gradient(model, U, V, 150)
        # Six standard errors over some 90 entries: a false alarm is a one-in-ten-million event.
        assert bool(((mean - exact).abs() <= 6 * error + 1e-9).all())


def bpr_naive(train: Interactions, U: Tensor, V: Tensor) -> Tensor:
    S = U @ V.T
    loss = S.new_zeros(())
    for u, i in zip(train.users.tolist(), train.items.tolist(), strict=True):
        others = sorted(set(range(train.n_items)) - set(train.items_of(u).tolist()))
        terms = [-torch.nn.functional.logsigmoid(S[u, i] - S[u, j]) for j in others]
        loss = loss + torch.stack(terms).mean()
    return loss


@pytest.mark.parametrize("seed", SEEDS)
def test_bpr_rows_over_all_items_are_the_whole_objective(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustcf.models.bprmf._COMPARISONS", 40)  # several chunks a block
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    U, V = parameters(rng, train)
    expected = bpr_naive(train, U, V)
    gradients = torch.autograd.grad(expected, (U, V))
    model = BPRMF(train, 4, block_users=5, sampled_items=99, dtype=torch.float64)
    value, got_U, got_V = 0.0, torch.zeros_like(U), torch.zeros_like(V)
    for batch in model.batches(0):
        gradient = model.gradient(batch, U.detach(), V.detach(), value=True)
        value += gradient.value
        got_U[gradient.rows] += gradient.users
        got_V += gradient.items
    assert value == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(got_U, gradients[0])
    torch.testing.assert_close(got_V, gradients[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_bpr_negatives_are_uniform_over_what_the_user_lacks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train = pairs_of(rng)
    model = BPRMF(train, 2, batching="pairs", negatives=4000, seed=seed)
    users = np.unique(train.users)
    drawn = model._negatives(rng, users)
    for user, negatives in zip(users.tolist(), drawn, strict=True):
        others = np.setdiff1d(np.arange(train.n_items), train.items_of(user))
        values, counts = np.unique(negatives, return_counts=True)
        assert np.array_equal(values, others)
        share = 1 / len(others)
        spread = np.sqrt(4000 * share * (1 - share))
        assert (np.abs(counts - 4000 * share) <= 6 * spread + 1e-9).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_item_graph_is_the_published_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustcf.objectives.graph._BLOCK_PAIRS", 30)  # several blocks
    train = pairs_of(np.random.default_rng(seed), 30, 20)
    graph = item_graph(train, 4)
    for i, expected in enumerate(official_omega(train, 4)):
        row = graph[i]
        got = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
        assert got == pytest.approx(dict(expected))


def test_betas_of_degree_zero_are_finite() -> None:
    assert user_beta(np.array([0, 1])).tolist() == [0.0, pytest.approx(2**0.5)]
    assert item_beta(np.array([0, 1])).tolist() == [1.0, pytest.approx(2**-0.5)]


def test_small_blocks_and_large_ones_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    train = pairs_of(np.random.default_rng(0))
    model = ultragcn(train, block_users=50)
    (batch,) = model.batches(0)
    whole = model.gradient(batch, model.users, model.items, value=True)
    monkeypatch.setattr("robustcf.objectives.kernels.BLOCK_BYTES", 8 * train.n_items * 3)
    parts = model.gradient(batch, model.users, model.items, value=True)
    torch.testing.assert_close(whole.users, parts.users)
    torch.testing.assert_close(whole.items, parts.items)
    assert whole.value == pytest.approx(parts.value)


def test_weights_are_made_again_when_they_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    train = pairs_of(np.random.default_rng(0))
    kept, made = (ultragcn(train, block_users=5) for _ in range(2))
    first = [kept.gradient(batch, kept.users, kept.items) for batch in kept.batches(1)]
    assert len(kept._kept) == kept.n_steps
    monkeypatch.setattr("robustcf.models.ultragcn._KEEP_ENTRIES", 0)
    for a, batch in zip(first, made.batches(1), strict=True):
        b = made.gradient(batch, made.users, made.items)
        assert torch.equal(a.users, b.users)
        assert torch.equal(a.items, b.items)
    assert not made._kept


def test_sampled_loss_is_unbiased_too() -> None:
    rng = np.random.default_rng(0)
    train = pairs_of(rng)
    U, V = (part.detach() for part in parameters(rng, train))
    full = ultragcn(train, block_users=50)
    some = ultragcn(train, block_users=50, sampled_items=4)
    (batch,) = full.batches(0)
    exact = full.gradient(batch, U, V, value=True).value
    values = []
    for epoch in range(200):
        (drawn,) = some.batches(epoch)
        values.append(some.gradient(drawn, U, V, value=True).value)
    assert abs(np.mean(values) - exact) <= 6 * np.std(values) / 200**0.5


def test_gradient_is_at_the_tensors_given() -> None:
    train = pairs_of(np.random.default_rng(0))
    model = ultragcn(train)
    (batch,) = model.batches(0)
    before = model.users.clone(), model.items.clone()
    there = model.gradient(batch, 2 * model.users, model.items)
    here = model.gradient(batch, model.users, model.items)
    assert not torch.equal(there.users, here.users)
    assert torch.equal(before[0], model.users)
    assert torch.equal(before[1], model.items)


def test_pairs_loss_refuses_rows() -> None:
    train = pairs_of(np.random.default_rng(0))
    block = Batch(torch.tensor([0]))
    for model in (ultragcn(train), BPRMF(train, 2)):
        with pytest.raises(ValueError, match="needs a batch of pairs"):
            model.pairs_loss(block, model.users, model.items)
    with pytest.raises(ValueError, match="compares with drawn items"):
        BPRMF(train, 2).gradient(block, torch.ones(13, 2), torch.ones(9, 2))
