"""Certified reach: against every account in small worlds, brute force over sets, real data."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest

from robustcf import certify, train
from robustcf.data import Split, load
from robustcf.data.interactions import item_group
from robustcf.errors import InputError
from robustcf.models.voting import PartitionVote, VoteConfig
from robustcf.models.voting.certificate import reach_by_accounts, reach_by_groups
from tests.hostile.votes import KS, climbers, lists, try_votes
from tests.models.voting.helpers import ACCOUNTS, DAMPED, all_profiles, poisoned, world
from tests.models.voting.test_certificate import every_corruption, flat_votes

BOTH = pytest.mark.parametrize("config", [ACCOUNTS, DAMPED], ids=["plain", "damped"])
# A fake that holds one item outside of a history has the full vote, however short the history is.
EASY = VoteConfig(cap=0.3, power=1, excess=0.0, damping=0.0)


@pytest.mark.parametrize("seed", [0, 1, 2])
@BOTH
def test_no_account_shows_more_or_takes_more(config, seed):
    split = world(seed, n_items=5)
    vote = PartitionVote(split.train, config)
    (_, served), *_ = vote._blocks(np.arange(split.n_users), split.train)
    found = served.reach(1, KS)
    today = lists(vote, split)[1]
    ever, always = today.copy(), today.copy()
    for profile in all_profiles(5):
        spoilt = poisoned(split, profile[None])
        seen = lists(PartitionVote(spoilt.train, config), split)[1]
        ever, always = ever | seen, always & seen
    for n, each in enumerate(found):
        assert not (ever[n] & ~each.reached).any()
        assert not (each.kept & ~always[n]).any()
    for n, each in enumerate(served.reach(0, KS)):
        assert (each.reached == today[n]).all()
        assert (each.kept == today[n]).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bound_is_met_where_every_fake_has_the_full_vote(seed):
    split = world(seed, n_items=5)
    vote = PartitionVote(split.train, EASY)
    (_, served), *_ = vote._blocks(np.arange(split.n_users), split.train)
    for number in (1, 2):
        ever = lists(vote, split)[1]
        for user, item in itertools.product(range(split.n_users), range(5)):
            profile = split.train.csr()[user].toarray()[0] > 0
            profile[item] = True
            spoilt = poisoned(split, np.tile(profile, (number, 1)).astype(np.float32))
            ever |= lists(PartitionVote(spoilt.train, EASY), split)[1]
        for n, each in enumerate(served.reach(number, KS)):
            assert (ever[n] == each.reached).all()


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_accounts_with_any_votes(seed, power):
    """Each of two fakes has one vote for all that it holds: 0, a part, or the full one."""
    rng = np.random.default_rng(seed)
    n_items, mass = 4, (1.0, 0.5)[seed % 2]
    degrees = rng.integers(1, 9, size=n_items)
    votes = rng.random((1, n_items)) * degrees
    cast = flat_votes(votes, degrees, power, most=mass, mass=mass)
    kinds = list(itertools.product((0.0, 0.3, 1.0), all_profiles(n_items)))
    bound = reach_by_accounts(cast, np.zeros((1, n_items), dtype=bool), 2, KS)
    for chosen in itertools.combinations_with_replacement(kinds, 2):
        total, held = votes[0].copy(), degrees.astype(float)
        for weight, profile in chosen:
            total, held = total + mass * weight * profile, held + mass * profile
        scores = total * (1.0 + held) ** -power
        order = np.argsort(-scores, kind="stable")
        for n, k in enumerate(KS):
            assert bound[n].reached[0, order[:k]].all()
            assert not bound[n].kept[0, order[k:]].any()


@pytest.mark.parametrize("fakes", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_groups_against_all_corruptions(seed, fakes):
    rng = np.random.default_rng(seed)
    ballots = np.array([np.argsort(rng.random(4) + np.arange(4) * 0.3)[:2] for _ in range(5)])
    votes = np.bincount(ballots.ravel(), minlength=4)[None] * 1.0
    bound = reach_by_groups(votes, np.zeros((1, 4), dtype=bool), 5, 2, fakes, KS)
    for spoilt in every_corruption(ballots.tolist(), range(4), fakes):
        order = np.argsort(-spoilt, kind="stable")
        for n, k in enumerate(KS):
            assert bound[n].reached[0, order[:k]].all()
            assert not bound[n].kept[0, order[k:]].any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_worst_set_is_bounded_and_counts_are_those_of_users(seed):
    split = world(seed, n_users=20, n_items=8)
    vote = PartitionVote(split.train, DAMPED)
    found = vote.certify_reach(split, [0, 1], (2,), mask=("train",), targets=2)
    (_, served), *_ = vote._blocks(np.arange(20), split.train)
    able = served.reach(1, (2,))[0].reached & (split.test.csr().toarray() == 0)
    able &= split.train.csr().toarray() == 0
    assert (found.reached[2][1] == able.sum(axis=0)).all()
    for group, items in found.groups.items():
        pairs = itertools.combinations(items, min(2, len(items)))
        worst = max(able[:, list(pair)].any(axis=1).sum() for pair in pairs)
        assert worst <= found.together[2][group][1] <= 20
        assert found.worst(group, 2)[1] == able[:, items].sum(axis=0).max()
    assert (found.kept[2][0] == found.shown[2]).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["accounts", "groups"])
def test_injections_that_climb(kind, seed):
    for number in range(3):
        try_votes(Random(f"{seed} {number}"), kind)


@pytest.mark.slow
@pytest.mark.realdata
def test_injections_into_ml_100k(real_data):
    split = load("ml-100k", data_dir=str(real_data))
    for climber in list(climbers(split))[2::4]:
        first, last = climber.climb(10)
        assert climber.checked == 11
        assert last >= first


def test_a_limit_and_a_small_weight_only_help():
    split = load("demo")
    names = tuple(map(str, range(1000)))
    configs = [
        VoteConfig(cap=0.2, damping=0.3),
        VoteConfig(cap=0.2, damping=0.3, new_account_items=3),
        VoteConfig(cap=0.2, damping=0.3, trusted=names, new_account_weight=0.2),
    ]
    users = np.arange(0, 2000, 20)
    plain, limited, young = (
        PartitionVote(split.train, config).certify_fakes(split, [0, 5], (10,), users=users)
        for config in configs
    )
    assert plain["precision@10"][0] == limited["precision@10"][0]
    assert plain["precision@10"][1] < limited["precision@10"][1]
    assert plain["precision@10"][1] < young["precision@10"][1]


def test_young_accounts_of_one_vote_are_like_any():
    split = world(0)
    plain = PartitionVote(split.train, DAMPED).certify_fakes(split, [0, 1], (1, 2))
    settings = {**vars(DAMPED), "trusted": ("u1", "u2")}
    same = PartitionVote(split.train, VoteConfig(**settings)).certify_fakes(split, [0, 1], (1, 2))
    assert plain.values == same.values


def test_trusted_by_time_is_kept_in_a_saved_vote(tmp_path):
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(30), 12)
    frame = {"user": users, "item": rng.integers(40, size=360), "time": users * 10}
    import pandas as pd

    split = load(pd.DataFrame(frame), time_col="time")
    model = train(split, "vote", cap=0.2, damping=0.3, trusted_before=150, new_account_weight=0.5)
    assert 0 < model.scorer.trusted.sum() < 30
    from robustcf import open as open_saved

    other = open_saved(model.save(tmp_path / "vote"))
    assert other.scorer.trusted.tolist() == model.scorer.trusted.tolist()
    assert other.recommend(k=5).equals(model.recommend(k=5))


def test_settings_are_chosen_from_trusted_accounts_alone():
    split = load("demo")
    names = tuple(map(str, range(1200)))
    config = VoteConfig(trusted=names, fakes=5, cap=0.15)
    from robustcf.models.voting import choose

    before = choose(split, config)
    rng = np.random.default_rng(1)
    pairs, valid, test = (part.csr().toarray() for part in (split.train, split.valid, split.test))
    for part in (pairs, valid):  # all accounts that are not trusted do as they like
        part[1200:] = rng.random(part[1200:].shape) < 0.02
    valid[pairs > 0] = 0
    test[(pairs > 0) | (valid > 0)] = 0
    after = choose(Split.from_csr(pairs, valid=valid, test=test), config)
    assert [dict(trial) for trial in after.trials] == [dict(trial) for trial in before.trials]
    assert after.config == before.config


def test_results_are_tables_and_pictures(tmp_path):
    model = train(load("demo"), "vote", cap=0.2, damping=0.5)
    found = certify(model, fakes=[1, 20], ks=[10], reach=True)
    frame = found.to_frame()
    assert len(frame) == 6
    assert frame["users"].tolist() == [n for g in found.groups for n in found.worst(g, 10)]
    assert max(map(len, "\n".join(found.lines()).splitlines())) <= 100
    assert found.plot(tmp_path / "reach.svg").exists()
    assert "worst" in found._repr_html_()
    assert (
        found.of(found.groups["rare"][:1], 10)
        == found.reached[10][:, found.groups["rare"][0]].tolist()
    )
    assert set(found.as_dict()) == {"dataset", "n_users", "fakes", "groups", "items"}
    with pytest.raises(InputError, match="group"):
        found.worst("common", 10)
    with pytest.raises(InputError, match="items"):
        found.of([], 10)


def test_a_group_of_items_is_a_fifth():
    assert item_group(np.arange(11), "rare").tolist() == [1, 2]
    assert item_group(np.arange(11), "popular", 3).tolist() == [8, 9, 10]
    with pytest.raises(InputError, match="group"):
        item_group(np.arange(3), "common")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"new_account_weight": 0.5}, "trusted"),
        ({"new_account_weight": 0.0, "trusted": ["a"]}, "new_account_weight"),
        ({"new_account_items": 0}, "new_account_items"),
        ({"groups": 3, "new_account_items": 2}, "groups"),
        ({"groups": 3, "trusted": ["a"]}, "groups"),
        ({"trusted": "a"}, "trusted"),
        ({"trusted_before": 1.5}, "trusted_before"),
    ],
)
def test_settings_of_new_accounts_are_checked(settings, word):
    with pytest.raises(InputError, match=word):
        VoteConfig(**settings)


def test_what_cannot_be_certified_is_refused():
    split = world(0)
    with pytest.raises(InputError, match="labels"):
        PartitionVote(split.train, VoteConfig(cap=0.2, damping=0.3, trusted=["other"]))
    with pytest.raises(InputError, match="times"):
        PartitionVote(split.train, VoteConfig(cap=0.2, damping=0.3, trusted_before=3))
    model = train(load("demo"), "popularity")
    with pytest.raises(InputError, match="fakes"):
        certify(model, reach=True)
    with pytest.raises(InputError, match="certificate"):
        certify(model, fakes=[1], reach=True)
    vote = PartitionVote(split.train, VoteConfig(cap=0.2, damping=0.3, trusted=["u1"]))
    stored = vote.stored()
    with pytest.raises(InputError, match="trusted"):
        PartitionVote.restored({}, stored.facts, split.train)
