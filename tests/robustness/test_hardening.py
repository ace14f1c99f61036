"""Hardening by trial: what is tried, what is chosen, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

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
        curve = measure(other, "cutoff", None, (0.0, 0.1, 0.2), (10,), steps=4).curve["ndcg@10"]
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
    trained = fit_split(
        load("demo"), TrainConfig.of(model="ultragcn", dim=16, epochs=4, refit="no")
    )
    target = trained.recommender().judged_by("valid")
    best, tried, chosen = harden_by_trial(target, steps=5)
    assert chosen.left > 1.5 * tried[0].left
    test = trained.recommender()
    sizes = (0.0, 0.05)
    before = measure(test, "fgm-softmax", None, sizes, (10,)).curve["ndcg@10"]
    after = measure(test.with_factors(best.factors), "fgm-softmax", None, sizes, (10,)).curve[
        "ndcg@10"
    ]
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


def test_only_a_target_is_hardened():
    with pytest.raises(InputError, match="Recommender"):
        harden_by_trial(np.eye(3))
