"""Flags of entries: each fires on a planted model, and none on plain ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from robustcf.attacks import Attack
from robustcf.auditing import battery
from robustcf.auditing.battery import submit
from robustcf.auditing.entries import RANKED
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.factorized import FactorScorer
from robustcf.recommender import Recommender
from robustcf.robustness import Threat
from tests.auditing.test_entries import small_model

SEEDS = (0, 1, 2)


def work(model, tmp_path, **options):
    return battery._Battery(model, tmp_path, None, options.get("steps"), False)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plain_model_has_no_red_flag(tmp_path, seed):
    entry = submit(small_model(seed), tmp_path / "e", name="plain", steps=40, progress=False)
    assert not entry.unreliable, entry.facts["flags"]
    values = [row["value"] for row in entry.facts["attacked"]]
    assert values == sorted(values, reverse=True)
    assert not list((tmp_path / "e").glob(".*"))


def flags(model):
    return {flag.name: flag.red for flag in battery.model_flags(model)}


def test_noise_that_does_as_much():
    assert battery.noise_flag(0.5, 0.4, 0.39).red
    assert battery.noise_flag(0.5, 0.4, 0.45) is None
    assert battery.noise_flag(0.5, 0.499, 0.499) is None  # neither does anything


class AtRandom(FactorScorer):
    def rank(self, users, k, seen=None):
        rng = np.random.default_rng()
        noisy = Factors(
            self.factors.users + torch.from_numpy(rng.normal(size=(self.n_users, 6))).float(),
            self.factors.items,
        )
        return FactorScorer(noisy).rank(users, k, seen)


def planted(name):
    model = small_model()
    (U, V), split = model.factors, model.split
    if name == "gradients":
        return Recommender(U, torch.ones_like(V), split)
    if name == "random":
        return Recommender.of(AtRandom(model.factors), split)
    if name == "uneven":
        return Recommender(torch.cat([100 * U[:3], U[3:]]), V, split)
    both = split.train.csr().toarray() + 3 * split.test.csr().toarray()
    left, sizes, right = np.linalg.svd(both, full_matrices=False)
    return Recommender((left * sizes)[:, :25], right[:25].T, split)


@pytest.mark.parametrize("name", ["gradients", "random", "leak", "uneven"])
def test_flags_that_need_no_attack(name):
    assert flags(small_model()) == {}
    assert flags(planted(name))[name] is (name != "uneven")


def test_an_attack_that_has_not_ended(tmp_path):
    found = work(small_model(), tmp_path, steps=1)
    levels = iter((0.3, 0.2, 0.1))
    found._measure = lambda sizes, **how: type("R", (), {"curve": {"ndcg@10": [next(levels)]}})
    row = {"value": 0.4}
    assert found._unfinished(0.5, row).red
    assert row["value"] == 0.2  # and the worst of them counts
    found._measure = lambda sizes, **how: type("R", (), {"curve": {"ndcg@10": [0.399]}})
    assert found._unfinished(0.5, {"value": 0.4}) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_random_search_that_finds_more(tmp_path, seed):
    found = work(small_model(seed), tmp_path)
    clean = found.model.evaluate((10,)).values["ndcg@10"]
    assert found._gradient_free(clean, clean).red  # an attack that found nothing


def test_a_perturbation_of_another_entry_that_does_more(tmp_path):
    model = small_model()
    entry = submit(model, tmp_path / "e", name="other", steps=20, progress=False)
    clean = model.evaluate((10,)).values["ndcg@10"]
    found = work(model, tmp_path)
    assert found._transfer(clean, clean, [entry.path]).red
    assert found._transfer(clean, entry.facts["evidence"]["value"], [entry.path]) is None
    elsewhere = work(small_model(1), tmp_path)
    assert elsewhere._transfer(clean, clean, [entry.path]) is None  # another split


class Nothing(Attack):
    name = "nothing"

    def propose(self, factors, allowed):
        return torch.zeros_like(factors.users), torch.zeros_like(factors.items)


def test_an_attack_of_its_own_counts_where_it_is_worse(tmp_path):
    model = small_model()
    own = Nothing(**Threat(unit="own").options(model))
    plain = submit(model, tmp_path / "a", name="a", steps=5, progress=False)
    both = submit(model, tmp_path / "b", name="b", steps=5, attack=own, progress=False)
    assert both.attacked() == plain.attacked()
    assert "Nothing" in both.facts["attack"]


def test_an_interrupted_submission_is_resumed(tmp_path, monkeypatch):
    model = small_model()

    def stopped(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(battery._Battery, "_certified", stopped)
        with pytest.raises(KeyboardInterrupt):
            submit(model, tmp_path / "e", name="a", steps=5, progress=False)
    kept = json.loads((tmp_path / "e" / ".stages.json").read_text())
    assert set(kept) == {"digest", "clean", "attack"}

    def again(self):
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr(battery._Battery, "_attacked", again)
        entry = submit(model, tmp_path / "e", name="a", steps=5, progress=False)
    assert entry.attacked(RANKED) <= entry.facts["evidence"]["value"]
    with pytest.raises(InputError, match="already"):
        submit(model, tmp_path / "e", name="a")
