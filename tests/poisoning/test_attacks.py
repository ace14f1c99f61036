"""Attacks: limits of the threat, and the profiles that each of them chooses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf._registry import POISONINGS
from robustcf.data import Interactions, load
from robustcf.errors import InputError
from robustcf.poisoning import Poisoning, PoisonThreat, ProfileError, Targets, inject
from robustcf.poisoning._half_steps import HalfSteps, fit_als
from robustcf.poisoning.adaptive import Adaptive
from robustcf.poisoning.defences import AllDetectors
from robustcf.poisoning.heuristic import Bandwagon, CopiedProfiles, RandomItems
from robustcf.poisoning.surrogate import Greedy, Surrogate, _projected
from robustcf.poisoning.victim import members
from tests.poisoning.conftest import small_split

ATTACKS = tuple(POISONINGS)


class Cheat(Poisoning):
    """Proposes what it is told to."""

    name = "cheat"
    goals = ("promote",)

    def __init__(self, profiles):
        self.profiles = profiles

    def propose(self, task):
        return self.profiles


@pytest.mark.parametrize(
    ("profiles", "word"),
    [
        ([[0], [1], [2], [3]], "more than"),
        ([[0, 1, 2, 3, 4, 5]], "may have 5"),
        ([[0, 40]], "0 to 40"),
        ([[-1, 0]], "-1 to 0"),
        ([[1, 1]], "twice"),
        ([[]], "shape"),
        ([np.empty(0, int)], "profile of 0"),
        ([[0.5]], "float64"),
        ([[[1, 2]]], "shape"),
    ],
)
def test_no_attack_gets_more_than_the_threat_allows(split, profiles, word):
    threat = PoisonThreat(fakes=3, length=5, targets=Targets(2))
    with pytest.raises(ProfileError, match=word):
        Cheat(profiles).attack(split.train, threat)
    with pytest.raises(InputError, match="goals"):
        Cheat(profiles).attack(split.train, PoisonThreat(goal="demote"))
    found = Cheat([[4, 2], [1]]).attack(split.train, threat)
    assert [profile.tolist() for profile in found.profiles] == [[2, 4], [1]]
    assert found.allowed == {"fakes": 3, "length": 5}
    assert found.realised == {"fakes": 2, "length": 2, "pairs": 3}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("goal", ["promote", "demote", "availability"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_every_attack_spends_all_fakes_on_its_goal(split, name, goal, seed):
    threat = PoisonThreat(fakes=7, length=8, targets=Targets(2), goal=goal)
    found = POISONINGS[name]().attack(split.train, threat, seed)
    assert found.realised["fakes"] == 7
    assert found.realised["length"] <= 8
    for profile in found.profiles:
        assert np.isin(found.targets, profile).all() == (goal == "promote")
        assert goal != "demote" or not np.isin(found.targets, profile).any()
    again = POISONINGS[name]().attack(split.train, threat, seed)
    assert all(map(np.array_equal, found.profiles, again.profiles))


@pytest.mark.parametrize("name", ATTACKS)
def test_no_fakes_and_as_many_as_users_with_one_item_each(split, name):
    found = POISONINGS[name]().attack(split.train, PoisonThreat(fakes=0, targets=Targets(2)))
    assert found.profiles == ()
    assert found.realised == {"fakes": 0, "length": 0, "pairs": 0}
    threat = PoisonThreat(fakes=1.0, length=1, targets=Targets(1))
    found = POISONINGS[name]().attack(split.train, threat)
    assert {tuple(profile) for profile in found.profiles} == {tuple(found.targets)}
    assert len(found.profiles) == split.n_users


@pytest.mark.parametrize("defence", ["detect", "twins", "leverage", "adversarial-loss"])
@pytest.mark.parametrize("goal", ["promote", "demote"])
def test_an_attacker_who_knows_the_defence(split, defence, goal):
    threat = PoisonThreat(fakes=25, length=8, targets=Targets(3), goal=goal, defence=defence)
    one, again = (Adaptive().attack(split.train, threat, 3) for _ in range(2))
    assert all(map(np.array_equal, one.profiles, again.profiles))
    assert one.realised["fakes"] == 25
    targeted = [np.isin(one.targets, profile).any() for profile in one.profiles]
    assert all(targeted) if goal == "promote" else not any(targeted)


@pytest.mark.slow
def test_it_passes_a_detector_that_finds_the_others():
    train = load("demo").train
    found = {}
    for name, known in (("copy", "none"), ("adaptive", "detect")):
        threat = PoisonThreat(fakes=40, targets=Targets(5), defence=known)
        made = POISONINGS[name]().attack(train, threat, 0)
        flagged = AllDetectors().detect(inject(train, made.profiles)).flagged
        found[name] = int(flagged[train.n_users :].sum())
    assert found["adaptive"] < found["copy"] / 2
    assert "adaptive" in members("promote", "data", defended=True)
    assert "adaptive" not in members("promote", "data")
    with pytest.raises(InputError, match="defence"):
        PoisonThreat(defence="frob")


@pytest.mark.parametrize("name", ["copy", "surrogate", "greedy", "adaptive"])
def test_what_needs_pairs_says_so_and_does_with_some(split, name):
    attack = POISONINGS[name]()
    with pytest.raises(InputError, match="needs pairs"):
        attack.attack(split.train, PoisonThreat(fakes=2, targets=Targets(1), knowledge="none"))
    threat = PoisonThreat(fakes=4, targets=Targets(1), knowledge="part", known=0.3)
    assert attack.attack(split.train, threat).realised["fakes"] == 4
    assert name not in members("promote", "none")


def few_items() -> Interactions:
    """Twelve users of a catalogue of four items, without labels."""
    has = np.random.default_rng(0).random((12, 4)) < 0.5
    has[np.arange(12), np.arange(12) % 4] = True
    return Interactions(*np.nonzero(has), 12, 4)


@pytest.mark.parametrize("name", ATTACKS)
def test_nearly_all_items_are_targets(name):
    others = PoisonThreat(5, 4, Targets(labels=("0", "2", "3")), goal="demote")
    found = POISONINGS[name]().attack(few_items(), others)
    assert {tuple(profile.tolist()) for profile in found.profiles} == {(1,)}
    everything = PoisonThreat(5, 4, Targets(4))
    found = POISONINGS[name]().attack(few_items(), everything)
    assert {tuple(profile.tolist()) for profile in found.profiles} == {(0, 1, 2, 3)}


@pytest.mark.parametrize("seed", range(3))
def test_bandwagon_fills_with_popular_items_and_copies_are_of_single_users(seed):
    train = small_split(seed).train

    def attacked(attack, *threat):
        found = attack.attack(train, PoisonThreat(*threat), seed)
        return set(found.targets.tolist()), [set(each.tolist()) for each in found.profiles]

    tenth = set(np.argsort(-train.item_degrees, kind="stable")[: train.n_items // 10].tolist())
    targets, profiles = attacked(Bandwagon(), 5, 5, Targets(2))
    assert all(profile - targets <= tenth for profile in profiles)
    real = [set(train.items_of(user).tolist()) for user in range(train.n_users)]
    targets, profiles = attacked(CopiedProfiles(), 20, 40, Targets(2))
    assert all(any(mine == own | targets for own in real) for mine in profiles)
    targets, profiles = attacked(CopiedProfiles(), 3, 40, Targets(2), "demote")
    fans = [own for own in real if own & targets]
    assert all(any(mine == own - targets for own in fans) for mine in profiles)


def test_copies_of_users_with_no_items_but_the_targets(split):
    only = split.train.take(split.train.items == split.train.items[0])
    targets = Targets(labels=(f"i{split.train.items[0]}",))
    for goal, spent in (("promote", (2, 1, 2)), ("demote", (0, 0, 0))):
        found = CopiedProfiles().attack(only, PoisonThreat(2, 3, targets, goal)).realised
        assert tuple(found.values()) == spent


@pytest.mark.parametrize("seed", range(3))
def test_half_steps_solve_the_normal_equations(seed):
    """Against plain loops over all weights of the ALS objective, one row at a time."""
    train = small_split(seed).train
    factors = fit_als(train, seed)
    U, V = (part.double().numpy() for part in factors)
    steps = HalfSteps(factors, train, np.array([3, 8]))
    rng = np.random.default_rng(seed)
    fillers, weights = np.array([0, 5, 9]), rng.random((2, 3)).astype(np.float32)
    rows = steps.fake_rows(torch.from_numpy(weights), torch.from_numpy(fillers))

    def solved(rows, has):
        a, ridge, dim = 0.1, 0.01, rows.shape[1]
        A = ridge * (has.sum() + a * len(rows)) * np.eye(dim)
        for row, weight in zip(rows, has, strict=True):
            A += (a + weight) * np.outer(row, row)
        return np.linalg.solve(A, rows.T @ has)

    expected = []
    for mine in weights:
        have = np.zeros(len(V))
        have[fillers], have[[3, 8]] = mine, 1.0
        expected.append(solved(V, have))
    assert np.allclose(rows.numpy(), expected, atol=1e-4)
    counts = np.array([2.0, 1.0], dtype=np.float32)
    found = steps.item_rows(rows, torch.from_numpy(counts)).numpy()
    all_users = np.concatenate((U, [expected[0]] * 2, [expected[1]]))
    for item, row in zip((3, 8), found, strict=True):
        own = np.concatenate((train.csr().toarray()[:, item], np.ones(3)))
        assert np.allclose(row, solved(all_users, own), atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_projection_is_the_nearest(seed):
    """No random point of the set is nearer, and the point itself is in it."""
    rng = np.random.default_rng(seed)
    free = torch.from_numpy(rng.normal(0.3, 1.0, (1, 6)))
    most = torch.tensor([2.0], dtype=torch.float64)
    found = _projected(free, most)
    assert 0 <= found.min() <= found.max() <= 1
    assert float(found.sum()) <= 2 + 1e-6
    points = rng.random((20_000, 6))
    points = points[points.sum(axis=1) <= 2]
    nearest = np.linalg.norm(points - free.numpy(), axis=1).min()
    assert float((found - free).norm()) <= nearest + 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_surrogate_shows_the_targets_to_more_users_than_random_fillers(seed):
    """In a model of its own kind, fitted with another seed, by a count with numpy alone."""
    train = small_split(seed).train
    threat = PoisonThreat(fakes=4, length=12, targets=Targets(1))

    def hits(attack):
        found = attack.attack(train, threat, seed)
        factors = fit_als(inject(train, found.profiles), seed + 100)
        U, V = (part.double().numpy() for part in factors)
        target, seen = int(found.targets[0]), 0
        for user in np.setdiff1d(np.arange(train.n_users), train.users[train.items == target]):
            scores = V @ U[user]
            others = np.setdiff1d(np.arange(train.n_items), train.items_of(int(user)))
            seen += int((scores[others] > scores[target]).sum() < 10)
        return seen

    assert hits(Surrogate()) > hits(RandomItems())


def test_fakes_of_one_kind_differ_also_where_profiles_are_short(split, monkeypatch):
    monkeypatch.setattr("robustcf.poisoning.surrogate._KINDS", 2)
    threat = PoisonThreat(fakes=8, length=6, targets=Targets(1))
    profiles = Surrogate(rounds=0).attack(split.train, threat).profiles
    for fake in range(2, 8):
        assert len(profiles[fake]) == len(profiles[fake % 2]) - 1
        assert np.isin(profiles[fake], profiles[fake % 2]).all()


@pytest.mark.parametrize(
    ("kind", "options"),
    [(Surrogate, {"rounds": -1}), (Greedy, {"retrainings": 0}), (Greedy, {"decay": 0.0})],
)
def test_options_out_of_range_are_refused(kind, options):
    with pytest.raises(InputError, match=next(iter(options))):
        kind(**options)
