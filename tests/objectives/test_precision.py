"""Products in bfloat16: near those in float32, and sums that keep their digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.data.interactions import Interactions
from robustcf.objectives import BCE, Batch, Softmax
from robustcf.objectives.base import Objective
from robustcf.recommender import Recommender

SETTINGS = {
    "bce": (BCE, {"negative_weight": 20.0}),
    "softmax": (Softmax, {}),
    "cool": (Softmax, {"temperature": 0.3}),
    "sampled": (Softmax, {"temperature": 0.3, "sampled_items": 30}),
}


def both(name: str, seed: int) -> tuple[Interactions, Objective, Objective]:
    rng = np.random.default_rng(seed)
    pairs = Interactions.from_csr((rng.random((12, 40)) < 0.2).astype(int))
    kind, settings = SETTINGS[name]
    return pairs, kind(pairs, **settings), kind(pairs, precision="bfloat16", **settings)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_differ_by_the_rounding_of_bfloat16(name: str, seed: int) -> None:
    pairs, exact, rounded = both(name, seed)
    generator = torch.Generator().manual_seed(seed)
    U, V = (torch.randn(n, 8, generator=generator) / 3 for n in (pairs.n_users, pairs.n_items))
    batch = Batch(
        torch.arange(pairs.n_users), negatives=exact.shared_negatives(np.random.default_rng(seed))
    )
    a, b = (each.gradient(batch, U, V, value=True) for each in (exact, rounded))
    assert a.value is not None
    assert b.value == pytest.approx(a.value, rel=5e-3)
    for mine, theirs in ((b.users, a.users), (b.items, a.items)):
        assert mine.dtype == torch.float32
        error = float((mine - theirs).norm() / theirs.norm())
        assert 0 < error < 2e-2  # eight digits, and they were used


def test_an_attack_computes_in_full_precision() -> None:
    config = BCE.Config(precision="bfloat16")
    assert Recommender(np.eye(2), np.eye(2), np.eye(2), bce=config).bce == BCE.Config()
