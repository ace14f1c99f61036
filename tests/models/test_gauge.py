"""The balanced gauge: the same rankings with the smallest norms; shrinking and truncating."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcf.data import checkerboard
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.models import fold_in
from robustcf.models.gauge import Gauge, shrink, truncate
from robustcf.objectives import BCE, BPR, Objective, Softmax

SEEDS = [0, 1, 2]


def factors_of(seed: int, dim: int = 4) -> Factors:
    """Factors with a long direction that all rows share, as after a cross-entropy."""
    g = torch.Generator().manual_seed(seed)
    U, V = (torch.randn(n, dim, generator=g, dtype=torch.float64) for n in (20, 30))
    U[:, 0] += 5.0
    V[:, 0] -= 4.0
    return Factors(U, V)


def balanced(factors: Factors) -> Factors:
    return Gauge.balanced(*factors).apply(factors)


def centred_scores(factors: Factors) -> Tensor:
    scores = factors.users @ factors.items.T
    return scores - scores.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_ranking_changes(seed: int) -> None:
    split, before = checkerboard(seed=seed), factors_of(seed)
    after = balanced(before)
    torch.testing.assert_close(centred_scores(after), centred_scores(before))
    old, new = evaluate(before, split), evaluate(after, split)
    assert all(np.array_equal(new.per_user[name], own) for name, own in old.per_user.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_both_norms_are_the_nuclear_norm_of_the_centred_scores(seed: int) -> None:
    factors = factors_of(seed)
    U, V = Gauge.balanced(*(part.numpy() for part in factors)).apply(factors)  # arrays, too
    values = np.linalg.svd(centred_scores(factors).numpy(), compute_uv=False)
    for part in (U, V):
        np.testing.assert_allclose((part.T @ part).numpy(), np.diag(values[:4]), atol=1e-9)
    torch.testing.assert_close(V.mean(dim=0), torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_other_gauge_has_smaller_norms(seed: int) -> None:
    def size(*parts: Tensor) -> float:
        return sum(float(part.square().sum()) for part in parts)

    U, V = balanced(factors_of(seed))
    assert size(U, V) < 0.7 * size(*factors_of(seed))
    g = torch.Generator().manual_seed(seed)
    for step in [0.01, 0.1, 1.0] * 20:
        A = (torch.eye(4) + step * torch.randn(4, 4, generator=g)).double()
        c = step * torch.randn(4, generator=g).double()
        assert size(U @ A, (V - c) @ torch.linalg.inv(A).T) > size(U, V)


@pytest.mark.parametrize(
    "factors",
    [
        Factors(torch.ones(5, 3), torch.ones(6, 3)),  # no ranking at all
        Factors(torch.zeros(5, 3), torch.randn(6, 3)),
        Factors(torch.randn(2, 4), torch.randn(9, 4)),  # fewer users than columns
        Factors(torch.randn(7, 1) @ torch.ones(1, 3), torch.randn(9, 3)),  # one direction used
    ],
    ids=["constant", "zero", "few", "flat"],
)
def test_directions_that_no_score_needs_get_no_length(factors: Factors) -> None:
    after = balanced(factors)
    after.check_finite()
    assert after.users.dtype == factors.users.dtype
    torch.testing.assert_close(centred_scores(after), centred_scores(factors), rtol=1e-4, atol=1e-5)
    assert after.users.norm() <= max(factors.users.norm(), factors.items.norm()) + 1e-4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.5, 100.0])
def test_shrinking_is_the_proximal_step_of_the_nuclear_norm(seed: int, share: float) -> None:
    """Minimizes ||X - S||_F^2 / 2 + tau ||X||_*, S the centred scores: soft thresholding."""
    factors = factors_of(seed)
    left, values, right = np.linalg.svd(centred_scores(factors).numpy(), full_matrices=False)
    tau = share * np.sort(values[:4])[1]  # torch's median of four is the second
    expected = left @ np.diag(np.maximum(values - tau, 0.0)) @ right
    after = shrink(balanced(factors), share)
    np.testing.assert_allclose((after.users @ after.items.T).numpy(), expected, atol=1e-9)
    torch.testing.assert_close(after.users.T @ after.users, after.items.T @ after.items)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [BCE, BPR, Softmax])
def test_folding_in_with_an_offset_does_not_see_the_centre(
    kind: type[Objective[Any]], seed: int
) -> None:
    objective = kind(checkerboard(seed=seed).train, dtype=torch.float64)
    factors = factors_of(seed)
    centred = Factors(factors.users, factors.items - factors.items.mean(dim=0))
    rows = [
        fold_in(objective, start, [0, 2, 6], ridge=0.5, offset=True) for start in (factors, centred)
    ]
    assert rows[0].shape == (4,)
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rank", [1, 3, 5])
def test_truncating_is_the_best_approximation_of_the_centred_scores(seed: int, rank: int) -> None:
    """Against numpy's singular values of the whole score matrix (Eckart and Young)."""
    factors = factors_of(seed, dim=6)
    kept = truncate(balanced(factors), rank)
    a, values, b = np.linalg.svd(centred_scores(factors).numpy(), full_matrices=False)
    best = (a[:, :rank] * values[:rank]) @ b[:rank]
    assert kept.dim == rank
    np.testing.assert_allclose((kept.users @ kept.items.T).numpy(), best, atol=1e-9)
    for whole in (None, 6, 99):
        assert torch.equal(truncate(balanced(factors), whole).items, balanced(factors).items)
