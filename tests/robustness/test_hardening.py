"""Hardening, and hardening by trial: what is tried, what is chosen, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.data import load
from robustcf.errors import InputError
from robustcf.recommender import Recommender
from robustcf.robustness import harden, harden_by_trial, measure
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from tests.auditing.helpers import small_target


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_choice_is_the_best_that_keeps_the_quality(seed):
    target = small_target(seed, dim=8)
    best, tried, chosen = harden_by_trial(target, sizes=(0.1,), kept=0.9, steps=3)
    floor = 0.9 * tried[0].clean
    good = [trial for trial in tried if trial.clean >= floor]
    assert chosen in good
    assert chosen.left == max(trial.left for trial in good)
    assert tried[0].name == "as it is"
    assert {trial.rank for trial in tried} == {None, 6, 4, 3, 2}
    assert best.evaluate((10,))["ndcg@10"] == chosen.clean


def test_the_numbers_are_those_of_measure():
    target = small_target(0, dim=8)
    _, tried, _ = harden_by_trial(target, sizes=(0.1, 0.2), steps=4)
    for trial in tried[1:3]:
        other = harden(target, rank=trial.rank, shrink_by=trial.shrink_by)
        curve = measure(other, "pairwise", None, (0.0, 0.1, 0.2), (10,), steps=4).curve["ndcg@10"]
        assert [trial.clean, *trial.joint] == curve.tolist()
        proved = measure(other, "certificate", None, (0.0, 0.02), (10,)).curve["ndcg@10"]
        assert trial.certified == proved[1]


def test_biases_stay():
    rng = np.random.default_rng(0)
    plain = small_target(0, dim=4)
    users = np.c_[plain.factors.users.numpy(), np.ones(40, np.float32)]
    items = np.c_[plain.factors.items.numpy(), rng.normal(size=30).astype(np.float32)]
    target = Recommender(users, items, plain.split, fixed=[4])
    best, tried, _ = harden_by_trial(target, sizes=(0.1,), steps=2)
    assert np.array_equal(best.factors.items[:, 4].numpy(), items[:, 4])
    assert max(trial.rank or 0 for trial in tried) < 4


@pytest.mark.slow
def test_a_trained_model_keeps_far_more_afterwards():
    config = TrainConfig.of(model="ultragcn", factors=16, epochs=4, refit="no")
    trained = fit_split(load("demo"), config)
    target = trained.recommender().judged_by("valid")
    best, tried, chosen = harden_by_trial(target, steps=5)
    assert chosen.left > 1.5 * tried[0].left
    test = trained.recommender()
    sizes = (0.0, 0.05)
    before, after = (
        measure(model, "fgm-softmax", None, sizes, (10,)).curve["ndcg@10"]
        for model in (test, test.with_factors(best.factors))
    )
    assert after[1] > before[1]
    assert after[0] > 0.95 * before[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kept": 0.0}, r"kept must be a share in \(0, 1\], got 0.0"),
        ({"kept": 1.5}, r"kept must be a share in \(0, 1\]"),
        ({"sizes": (0.0,)}, "sizes must have one above 0"),
        ({"sizes": (0.2, 0.1)}, "ascending"),
        ({"steps": 0}, "steps must be an integer of at least 1"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        harden_by_trial(small_target(0), **options)
    with pytest.raises(InputError, match="Recommender"):
        harden_by_trial(np.eye(3), **options)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("n_users", "n_items"), [(30, 40), (3, 40), (30, 3), (2, 2)])
def test_hardening_moves_no_ranking_whatever_the_sizes(seed, n_users, n_items):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(2, 1, (n_users, 5)), rng.normal(-1, 1, (n_items, 5))
    target = Recommender(U, V, np.eye(n_users, n_items))
    safer = harden(target)
    assert safer.factors.dim == 5
    before, after = (t.factors.users @ t.factors.items.T for t in (target, safer))
    moved = (after - before).numpy()
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1], moved.shape), atol=1e-9)
    np.testing.assert_array_equal(after.argsort(dim=1), before.argsort(dim=1))
    gram = [part.T @ part for part in safer.factors]
    torch.testing.assert_close(gram[0], gram[1], atol=1e-8, rtol=1e-8)
    size = sum(float(part.square().sum()) for part in safer.factors)
    singular = np.linalg.svd((before - before.mean(dim=1, keepdim=True)).numpy(), compute_uv=False)
    assert size == pytest.approx(2 * singular.sum(), rel=1e-6), "no smaller one has these scores"


def test_fewer_and_shorter_directions_on_request():
    target = small_target(0)
    cut = harden(target, rank=2)
    U, V = (part.double() for part in target.factors)
    a, values, b = torch.linalg.svd(U @ (V - V.mean(dim=0)).T)
    best = (a[:, :2] * values[:2]) @ b[:2]
    scores = cut.factors.users.double() @ cut.factors.items.double().T
    torch.testing.assert_close(scores, best, atol=1e-4, rtol=1e-4)
    shorter = harden(target, shrink_by=1.0)
    assert shorter.factors.users.norm() < harden(target).factors.users.norm()
    wrong = [{"rank": value} for value in (0, -1, 1.5, "all")]
    wrong += [{"shrink_by": value} for value in (-0.1, float("nan"), "much")]
    for options in wrong:
        with pytest.raises(InputError, match=next(iter(options))):
            harden(target, **options)
