"""Exposure against a naive count; the whole victim retrained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.poisoning import (
    PoisonThreat,
    RandomItems,
    Targets,
    damage,
    exposure,
    inject_split,
    retrained,
    strongest,
)
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from tests.poisoning.conftest import N_ITEMS, N_USERS, small_split

ALS = TrainConfig.of(model="als", dim=6, sweeps=2)


def naive(U, V, split, targets, k, masked):
    """Hit rate, NDCG and share by loops over users and places."""
    has = [set(p.items_of(u).tolist()) for u in range(N_USERS) for p in (split.train,)]
    for part in (split.valid, split.test):
        for u, i in zip(part.users.tolist(), part.items.tolist(), strict=True):
            has[u].add(i)
    seen = [set() for _ in range(N_USERS)]
    for name in masked:
        part = getattr(split, name)
        for u, i in zip(part.users.tolist(), part.items.tolist(), strict=True):
            seen[u].add(i)
    hits, gains, population, taken, filled = 0, 0.0, 0, 0, 0
    single = {t: [0, 0] for t in targets}
    for u in range(N_USERS):
        scores = {i: float(U[u] @ V[i]) for i in range(N_ITEMS) if i not in seen[u]}
        top = sorted(scores, key=lambda i: (-scores[i], i))[:k]
        lacked = [t for t in targets if t not in has[u]]
        filled += len(top)
        taken += sum(i in lacked for i in top)
        for t in lacked:
            single[t][0] += t in top
            single[t][1] += 1
        if not lacked:
            continue
        population += 1
        hits += any(i in lacked for i in top)
        gain = sum(1 / math.log2(place + 2) for place, i in enumerate(top) if i in lacked)
        best = sum(1 / math.log2(place + 2) for place in range(min(k, len(lacked))))
        gains += gain / best
    return (
        {
            f"hit_rate@{k}": hits / population,
            f"ndcg@{k}": gains / population,
            f"share@{k}": taken / filled,
        },
        [a / b for a, b in single.values()],
        population,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fakes", [0, 5])
def test_exposure_is_a_naive_count(seed, fakes):
    split = small_split(seed)
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(N_USERS + fakes, 3)), rng.normal(size=(N_ITEMS, 3))
    targets = sorted(rng.choice(N_ITEMS, 4, replace=False).tolist())
    found = exposure(Factors(torch.tensor(U), torch.tensor(V)), split, targets, (3, 10, 60))
    for k in (3, 10, 60):
        values, single, population = naive(U, V, split, targets, k, split.masked("test"))
        for name, value in values.items():
            assert found[name] == pytest.approx(value, abs=1e-12), name
        assert found.by_target[k] == pytest.approx(single, abs=1e-12)
        assert found.n_users == population
    assert found.as_dict()["by_target"]["hit_rate@3"] == found.by_target[3]


def test_hit_rate_reaches_one_with_several_targets():
    split = Split.from_csr(np.eye(4, 8))
    V = torch.zeros(8, 1)
    V[5], V[6], V[7] = 3.0, 2.0, 1.0
    found = exposure(Factors(torch.ones(4, 1), V), split, [5, 6, 7], ks=(1, 3))
    assert found["hit_rate@1"] == found["hit_rate@3"] == 1.0
    assert found["ndcg@3"] == found["share@3"] == found["share@1"] == 1.0
    assert found.by_target[1] == [1.0, 0.0, 0.0]


def test_single_targets_are_by_ascending_id():
    split = Split.from_csr(np.array([[1, 0, 0, 0], [1, 0, 0, 0]]))
    factors = Factors(torch.ones(2, 1), torch.tensor([[0.0], [1.0], [3.0], [2.0]]))
    for targets in ([1, 2, 3], [3, 2, 1], [2, 1, 2, 3]):
        assert exposure(factors, split, targets, ks=(1,)).by_target == {1: [0.0, 1.0, 0.0]}


def test_users_who_have_all_targets_do_not_count():
    split = Split.from_csr(np.array([[1, 1, 0], [0, 0, 1]]), test=np.array([[0, 0, 1], [1, 1, 0]]))
    factors = Factors(torch.ones(2, 1), torch.ones(3, 1))
    found = exposure(factors, split, [0, 1], ks=(2,))
    assert found.n_users == 0
    assert set(found.values.values()) == {0.0}


@pytest.mark.parametrize(
    ("targets", "words"),
    [([], "at least one"), ([40], r"in \[0, 40\)"), ([-1], "targets must be in"), ([0.5], "ids")],
)
def test_targets_that_are_no_items_are_refused(split, targets, words):
    factors = Factors(torch.ones(N_USERS, 1), torch.ones(N_ITEMS, 1))
    with pytest.raises(InputError, match=words):
        exposure(factors, split, targets)


def test_factors_of_other_data_are_refused(split):
    with pytest.raises(InputError, match="they belong to different data"):
        exposure(Factors(torch.ones(3, 1), torch.ones(N_ITEMS, 1)), split, [0])
    whole = Factors(torch.ones(N_USERS, 1), torch.ones(N_ITEMS, 1))
    with pytest.raises(InputError, match=r"no metric 'hits'"):
        exposure(whole, split, [0])["hits"]


@pytest.mark.parametrize("seed", range(2))
def test_the_victim_is_trained_on_the_poisoned_data_and_judged_by_genuine_users(seed):
    split = small_split(seed)
    threat = PoisonThreat(fakes=6, targets=Targets(2))
    found = RandomItems().attack(split.train, threat, seed)
    outcome = retrained(split, ALS, found.profiles, found.targets, ks=(5,))
    trained = fit_split(inject_split(split, found.profiles), ALS)
    U, V = (part.double().numpy() for part in trained.factors)
    values, _, _ = naive(U, V, split, found.targets.tolist(), 5, ("train", "valid"))
    assert trained.fit_on == "train and valid"
    for name, value in values.items():
        assert outcome.exposure[name] == pytest.approx(value, abs=1e-9)
    assert outcome.quality["ndcg@10"] == trained.evaluate()["ndcg@10"]
    clean = retrained(split, ALS, [], found.targets)
    assert clean.quality["ndcg@10"] == fit_split(split, ALS).evaluate()["ndcg@10"]


def test_a_victim_without_test_pairs_has_no_quality(split):
    nothing = split.test.take(np.zeros(len(split.test), dtype=bool))
    alone = Split("no test", split.train, split.valid, nothing)
    assert retrained(alone, ALS, [], np.array([0])).quality == {}


@dataclass
class Cleaned:
    train: object
    config: TrainConfig
    report: dict[str, int]


class RemovesTheLast:
    """A defence that knows too much: it drops the last users."""

    def apply(self, data, config):
        kept = data.take(data.users < N_USERS)
        return Cleaned(kept, config, {"removed": len(data) - len(kept)})


def test_a_defence_stands_between_data_and_training(split):
    threat = PoisonThreat(fakes=6, targets=Targets(2))
    found = RandomItems().attack(split.train, threat)
    guarded = retrained(split, ALS, found.profiles, found.targets, defence=RemovesTheLast())
    assert guarded.defence == {"removed": found.realised["pairs"]}
    assert guarded.as_dict()["defence_report"] == guarded.defence
    assert (
        guarded.exposure.values
        != retrained(split, ALS, found.profiles, found.targets).exposure.values
    )


@pytest.mark.parametrize("goal", ["promote", "demote", "availability"])
def test_auto_takes_the_worst_of_all(split, goal):
    threat = PoisonThreat(fakes=6, targets=Targets(2), goal=goal)
    names = ("random", "bandwagon", "copy")
    found = strongest(split, ALS, threat, attacks=names, ks=(5, 10), seed=1)
    measured = {}
    for name in names:
        outcome = found.outcomes[name]
        rate = outcome.exposure["hit_rate@10"] + 1e-6 * outcome.exposure["ndcg@10"]
        measured[name] = {
            "promote": rate,
            "demote": -rate,
            "availability": -outcome.quality["ndcg@10"],
        }[goal]
        assert damage(goal, outcome.exposure.values, outcome.quality) == measured[name]
    assert measured[found.name] == max(measured.values())
    assert found.outcome is found.outcomes[found.name]
    assert found.injected.attack == found.name


def test_auto_needs_test_pairs_to_see_quality_fall(split):
    nothing = split.test.take(np.zeros(len(split.test), dtype=bool))
    alone = Split("no test", split.train, split.valid, nothing)
    threat = PoisonThreat(fakes=2, targets=Targets(2), goal="availability")
    with pytest.raises(InputError, match="no test has no test pairs"):
        strongest(alone, ALS, threat, attacks=("random",))
    assert np.isnan(damage("availability", {}, {}))


def test_auto_faces_the_defence(split):
    threat = PoisonThreat(fakes=6, targets=Targets(2))
    found = strongest(split, ALS, threat, attacks=("random", "copy"), defence=RemovesTheLast())
    assert all(outcome.defence["removed"] > 0 for outcome in found.outcomes.values())
