"""The alignment check: factors that do not belong to the pairs are told from those that do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.adapters import Imported, alignment, joined
from robustcf.data.split import Split
from robustcf.errors import DataError
from robustcf.factors import Factors
from tests.adapters.helpers import world

# Two seeds while one works, the others before one hands in.
SEEDS = (0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4)))


def judged(U, V, split):
    return alignment(Factors.of(U, V), split.train)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_right_map_passes(seed):
    U, V, split = world(seed, 120, 80)
    found = judged(U, V, split)
    assert found.good, found
    assert found.place > 0.8
    found.require()


@pytest.mark.parametrize("seed", SEEDS)
def test_mixed_up_maps_are_refused(seed):
    U, V, split = world(seed, 120, 80)
    rng = np.random.default_rng(seed)
    found = judged(U, V[rng.permutation(80)], split)
    assert "know nothing of these pairs" in found.reason
    found = judged(U[rng.permutation(120)], V, split)
    assert "know nothing of who has what" in found.reason or "nothing of these" in found.reason
    with pytest.raises(DataError, match="--force"):
        found.require()
    assert not judged(rng.normal(size=U.shape), rng.normal(size=V.shape), split).good


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by_users", [-1, 0, 1])
@pytest.mark.parametrize("by_items", [-1, 0, 1])
def test_shifted_maps_are_refused_and_said_to_be_shifted(seed, by_users, by_items):
    U, V, split = world(seed, 120, 80)
    found = judged(np.roll(U, by_users, axis=0), np.roll(V, by_items, axis=0), split)
    if by_users == by_items == 0:
        assert found.good
        return
    words = {1: "one later", -1: "one earlier", 0: ""}
    sides = [f"{k} rows {words[n]}" for k, n in (("user", by_users), ("item", by_items)) if n]
    assert f"shifted against ids: {' and '.join(sides)} would fit better" in found.reason


def test_a_shift_between_alike_items_is_seen():
    """Neighbours that are alike still score well: only the comparison with a shift tells."""
    rng = np.random.default_rng(0)
    U = rng.normal(size=(300, 3))
    steps = np.linspace(0, 6 * np.pi, 200)
    V = np.stack([np.cos(steps), np.sin(steps), np.cos(steps / 2)], axis=1)
    V += 0.3 * rng.normal(size=V.shape)
    train = np.zeros((300, 200))
    np.put_along_axis(train, np.argsort(-(U @ V.T), axis=1)[:, :10], 1, axis=1)
    split = Split.from_csr(train)
    assert judged(U, V, split).good
    found = judged(U, np.roll(V, 1, axis=0), split)
    assert found.deviations[0] > 3  # it does not look mixed up
    assert "item rows one later" in found.reason


def test_popularity_has_no_users_to_mix_up():
    rng = np.random.default_rng(0)
    popular = np.sort(rng.random(50))[::-1]
    train = rng.random((60, 50)) < popular
    U = np.ones((60, 2)) * np.array([1.0, 2.0])
    V = np.stack([popular, popular], axis=1)
    found = judged(U, V, Split.from_csr(train.astype(float)))
    assert found.good
    assert found.deviations[1] is None
    flat = judged(U, np.ones((50, 2)), Split.from_csr(train.astype(float)))
    assert "all items have the same score" in flat.reason


@pytest.mark.parametrize("seed", SEEDS)
def test_a_catalogue_in_order_of_popularity_is_not_taken_for_shifted(seed):
    """There the item before is higher up in every list: that alone must not count."""
    rng = np.random.default_rng(seed)
    bias = np.linspace(3, -3, 80)
    U, V = rng.normal(size=(150, 4)), rng.normal(size=(80, 4))
    V = V[np.argsort(-np.linalg.norm(V, axis=1))]
    scores = U @ V.T + bias
    train = rng.random(scores.shape) < 1 / (1 + np.exp(2 - scores))
    U, V = np.hstack([U, np.ones((150, 1))]), np.hstack([V, bias[:, None]])
    found = judged(U, V, Split.from_csr(train.astype(float)))
    assert found.good, found.reason


def test_the_same_seed_gives_the_same_answer():
    U, V, split = world()
    assert judged(U, V, split) == judged(U, V, split)


def test_the_check_can_be_skipped_and_its_finding_is_kept():
    U, V, split = world(0, 120, 80)
    shifted = Imported(Factors.of(U, np.roll(V, 1, axis=0)), "arrays", "mine")
    with pytest.raises(DataError, match="shifted"):
        joined(shifted, split.train)
    model = joined(shifted, split.train, check=False)
    assert "shifted" in model.training["alignment"]
    assert torch.equal(model.factors.users, shifted.factors.users)
    right = joined(Imported(Factors.of(U, V), "arrays", "mine"), split.train)
    assert right.training["alignment"] == ""
    assert any("rank above" in note for note in right.training["notes"])
