"""The whole victim retrained, and the strongest of several attacks."""

from __future__ import annotations

import numpy as np
import pytest

from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.poisoning import PoisonThreat, RandomItems, Targets, inject_split
from robustcf.poisoning.defences import Defence, Defended
from robustcf.poisoning.victim import damage, retrained, strongest
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from tests.poisoning.conftest import N_USERS, small_split
from tests.poisoning.test_exposure import naive

ALS = TrainConfig.of(model="als", factors=6, iterations=2)


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


def test_without_test_pairs_there_is_no_quality_and_no_worst_of_it(split):
    nothing = split.test.take(np.zeros(len(split.test), dtype=bool))
    alone = Split("no test", split.train, split.valid, nothing)
    assert retrained(alone, ALS, [], np.array([0])).quality == {}
    threat = PoisonThreat(fakes=2, targets=Targets(2), goal="availability")
    with pytest.raises(InputError, match="no test pairs"):
        strongest(alone, ALS, threat, attacks=("random",))
    assert np.isnan(damage("availability", {}, {}))


class RemovesTheLast(Defence):
    """A defence that knows too much: it drops the last users."""

    def apply(self, data, config):
        kept = data.take(data.users < N_USERS)
        return Defended(kept, config, {"removed": len(data) - len(kept)})


def test_a_defence_stands_between_data_and_training(split):
    threat = PoisonThreat(fakes=6, targets=Targets(2))
    found = RandomItems().attack(split.train, threat)
    guarded = retrained(split, ALS, found.profiles, found.targets, defence=RemovesTheLast())
    assert guarded.defence == {"removed": found.realised["pairs"]}
    assert guarded.as_dict()["defence_report"] == guarded.defence
    plain = retrained(split, ALS, found.profiles, found.targets)
    assert guarded.exposure.values != plain.exposure.values
    both = strongest(split, ALS, threat, attacks=("random", "copy"), defence=RemovesTheLast())
    assert all(outcome.defence["removed"] > 0 for outcome in both.outcomes.values())


@pytest.mark.parametrize("goal", ["promote", "demote", "availability"])
def test_auto_takes_the_worst_of_all(split, goal):
    threat = PoisonThreat(fakes=6, targets=Targets(2), goal=goal)
    names = ("random", "bandwagon", "copy")
    found = strongest(split, ALS, threat, attacks=names, ks=(5, 10), seed=1)
    measured = {}
    for name in names:
        outcome = found.outcomes[name]
        rate = outcome.exposure["hit_rate@10"] + 1e-6 * outcome.exposure["ndcg@10"]
        quality = outcome.quality["ndcg@10"]
        measured[name] = {"promote": rate, "demote": -rate, "availability": -quality}[goal]
        assert damage(goal, outcome.exposure.values, outcome.quality) == measured[name]
    assert measured[found.name] == max(measured.values())
    assert found.outcome is found.outcomes[found.name]
    assert found.injected.attack == found.name
