"""The vote as a recommender: against transcriptions of its definition, and its errors."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math

import numpy as np
import pytest

from robustcf.data import Split, checkerboard, load
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.models.voting import PartitionVote, Vote, VoteConfig, choose, fit_vote
from robustcf.models.voting.voters import FULL_VOTE, Groups, group_of
from robustcf.recommender import Ranking
from tests.models.voting.helpers import ACCOUNTS, DAMPED, world

SEEDS = [0, 1, 2]


def naive_scores(train: np.ndarray, history: np.ndarray, config: VoteConfig) -> list[float]:
    """Votes of accounts, as the documents define them, in plain Python."""
    scores = []
    for item in range(train.shape[1]):
        total = 0
        for voter in train:
            if not voter[item]:
                continue
            a, b, common = int(history.sum()), int(voter.sum()), int((history * voter).sum())
            if a == 0:
                total += FULL_VOTE
                continue
            size = math.sqrt(a * b)
            alike = common / size - config.excess * size / train.shape[1]
            share = min(1.0, max(0.0, alike / config.cap))
            total += round(FULL_VOTE * math.prod([share] * config.power))
        scores.append(total * (config.prior + int(train[:, item].sum())) ** -config.damping)
    return scores


def plain(ranking: Ranking) -> tuple[list[int], list[float]]:
    """The items and scores of one row, without the padding."""
    (items,), (scores,) = ranking
    real = items >= 0
    assert np.isnan(scores[~real]).all()
    return items[real].tolist(), scores[real].tolist()


def served_to(vote, user, k, seen) -> tuple[list[int], list[float]]:
    return plain(vote.top(np.array([user]), k, seen))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("config", [ACCOUNTS, DAMPED, VoteConfig(cap=0.3, damping=0.5)])
def test_accounts_vote_as_defined(config, seed):
    split = world(seed, n_users=20, n_items=9)
    train = split.train.csr().toarray()
    vote = PartitionVote(split.train, config)
    for user in range(20):
        ranked, scores = served_to(vote, user, 9, split.train)
        naive = naive_scores(train, train[user], config)
        order = [i for i in sorted(range(9), key=lambda i: (-naive[i], i)) if not train[user, i]]
        assert scores == pytest.approx([naive[i] for i in ranked], rel=1e-12, abs=1e-9)
        assert ranked == order


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("base", ["ridge", "knn"])
def test_groups_vote_as_defined(base, seed):
    config = VoteConfig(groups=4, votes=3, base=base, ridge=0.7, key="some key")
    split = world(seed, n_users=20, n_items=9)
    train = split.train.csr().toarray().astype(np.float64)
    own = Groups(split.train, config)
    for user in (0, 7):
        masked = train[user] > 0
        ballots = own.ballots(split.train.csr()[[user]], masked[None])[0]
        for group in range(4):
            X = train[own.members == group]
            if base == "ridge":
                ridge = 0.7 * max(1.0, X.sum(1).mean()) if len(X) else 1.0
                inverse = np.linalg.inv(X @ X.T + ridge * np.eye(len(X)))
                scores = train[user] @ X.T @ inverse @ X
            else:
                alike = (X @ train[user]) / np.sqrt(X.sum(1) * train[user].sum())
                scores = alike @ X
            scores[masked] = 0
            voted = [i for i in ballots[group] if i >= 0]
            assert (np.diff(scores[voted]) <= 1e-5).all()
            assert (scores[voted] > 0).all()
            left = np.setdiff1d(np.arange(9), voted)
            most = scores[voted].min() if len(voted) == 3 else 0.0
            assert scores[left].max() <= most + 1e-5


def test_a_group_is_a_keyed_hash_of_the_label_alone():
    labels = np.array(["7", "x", "é"])
    secret = hashlib.blake2b(b"k", digest_size=32).digest()
    expected = [
        int.from_bytes(hashlib.blake2b(s.encode(), key=secret, digest_size=8).digest(), "big") % 5
        for s in labels
    ]
    assert group_of(labels, 5, "k").tolist() == expected
    assert group_of(labels[1:], 5, "k").tolist() == expected[1:]
    many = np.arange(2000)
    assert not np.array_equal(group_of(many, 5, "k"), group_of(many, 5, "l"))
    assert np.bincount(group_of(many, 5, "k")).min() > 300


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_sparse_and_dense_counting_agree(share, monkeypatch):
    split = world(5, n_users=30, n_items=12)
    whole = PartitionVote(split.train, DAMPED).evaluate(split).per_user
    monkeypatch.setattr("robustcf.models.voting.voters._DENSE", share)
    other = PartitionVote(split.train, DAMPED).evaluate(split).per_user
    assert all(np.array_equal(whole[name], other[name]) for name in whole)


@pytest.mark.parametrize("seed", SEEDS)
def test_certified_precision_by_the_rule_in_words(seed):
    """r relevant items are certain if the (k - r + 1)-th best outsider cannot reach the r-th."""
    split = world(seed, n_users=40, n_items=10)
    certified = PartitionVote(split.train, ACCOUNTS).certify_fakes(split, [1, 2, 3], (4,))
    train, test = split.train.csr().toarray(), split.test.csr().toarray()
    for at, fakes in enumerate((1, 2, 3)):
        for place, user in enumerate(certified.users):
            votes = naive_scores(train, train[user], ACCOUNTS)
            free = [i for i in range(10) if not train[user, i]]
            relevant = sorted(((votes[i], -i) for i in free if test[user, i]), reverse=True)
            raised = [(votes[i] + fakes * FULL_VOTE, -i) for i in free if not test[user, i]]
            raised = sorted(raised, reverse=True) + [(-1.0, 0)] * 4
            kept = [r for r, mine in enumerate(relevant[:4], 1) if raised[4 - r] < mine]
            expected = max(kept, default=0)
            assert certified.per_user["precision@4"][at][place] == expected / 4
            assert certified.per_user["hit_rate@4"][at][place] == (expected > 0)


def test_no_fakes_is_the_evaluation_and_more_fakes_never_help():
    split = world(8, n_users=90, n_items=30)
    for config in (VoteConfig(cap=0.2, damping=0.3), VoteConfig(groups=30, votes=8)):
        vote = PartitionVote(split.train, config)
        users = np.flatnonzero(split.test.user_degrees)[::2]
        certified = vote.certify_fakes(split, [0, 1, 4, 40], (5, 10), users=users)
        clean = vote.evaluate(split, (5, 10))
        kept = np.isin(clean.users, users)
        for name, rows in certified.per_user.items():
            assert np.array_equal(rows[0], clean.per_user[name][kept])
            assert (np.diff(rows, axis=0) <= 0).all()
            assert certified[name] == [float(row.mean()) for row in rows]


def test_a_new_user_is_served_like_one_with_the_same_history():
    split = world(3, n_users=30, n_items=12)
    for config in (DAMPED, VoteConfig(groups=6, votes=4)):
        vote = PartitionVote(split.train, config)
        for user, seen in itertools.product((0, 4, 9), (split.train, None)):
            history = split.train.items_of(user)
            how = {"filter_seen": seen is not None}
            found = vote.top_for_history(history, 5, split.train, **how)
            assert plain(found) == served_to(vote, user, 5, seen)


@pytest.mark.parametrize("seed", SEEDS)
def test_similar_items_are_those_of_the_same_accounts(seed):
    split = world(seed, n_users=30, n_items=12)
    held = split.train.csr().toarray().astype(float)
    found = PartitionVote(split.train, ACCOUNTS).similar(np.array([5, 0]), 4)
    for item, items, scores in zip((5, 0), *found, strict=True):
        sizes = np.sqrt(np.maximum(held.sum(axis=0), 1))
        cosine = held.T @ held[:, item] / (sizes * sizes[item])
        others = sorted((i for i in range(12) if i != item), key=lambda i: (-cosine[i], i))
        assert items.tolist() == others[:4]
        assert scores == pytest.approx(cosine[items])


def test_fitting_chooses_refits_and_recommends():
    split = checkerboard()
    settings = {"cap": 0.2, "damping": 0.3}
    model = fit_vote(split, **settings)
    assert (model.kind, model.label, model.fit_on) == ("vote", "vote", "train and valid")
    assert model.scorer.pairs == split.train_full
    for other in (Vote(**settings), Vote(VoteConfig(**settings))):
        assert model.recommend(k=5).equals(other.fit(split).recommend(k=5))
    assert model.evaluate().values == model.scorer.evaluate(split, mask=model.mask).values
    assert fit_vote(split, **settings, refit="no").fit_on == "train"
    chosen, expected = fit_vote(split), choose(split).config
    assert chosen.training["trials"]
    assert chosen.scorer.config.cap == expected.cap
    assert chosen.scorer.config.damping == expected.damping
    for make in (Vote, lambda **given: fit_vote(split, **given)):
        with pytest.raises(InputError, match="cup"):
            make(cup=0.2)


def test_edges_of_lists():
    pairs = Interactions.from_pairs([0, 0, 1], [0, 1, 2], 2, 3)[0]
    vote = PartitionVote(pairs, ACCOUNTS)
    assert vote.rank(np.array([0]), 5, pairs).tolist() == [[2, -1, -1]], "items run out"
    assert vote.rank(np.array([]), 5, pairs).shape == (0, 3), "no users"
    pairs = Interactions.from_pairs([0, 1, 2, 2], [3, 3, 1, 3], 4, 5)[0]
    vote = PartitionVote(pairs, ACCOUNTS)
    popular = vote.top_for_history(np.array([], dtype=np.int64), 2, pairs)
    assert plain(popular) == ([3, 1], [3.0 * FULL_VOTE, FULL_VOTE]), "no history"
    assert vote.rank(np.array([3]), 2, pairs).tolist() == [[3, 1]]


@pytest.mark.parametrize("users", [[-1], [10**6], [0.0], [[0]]])
@pytest.mark.parametrize(
    "ask",
    [
        lambda vote, users: vote.certify_fakes(world(0), [0], users=users),
        lambda vote, users: vote.rank(users, 2, None),
        lambda vote, users: vote.top(np.array(users), 2),
    ],
)
def test_unknown_users_are_refused(ask, users):
    with pytest.raises(InputError, match="user"):
        ask(PartitionVote(world(0).train, ACCOUNTS), users)


def test_chosen_users_are_not_a_sample():
    split = world(0)
    vote = PartitionVote(split.train, ACCOUNTS)
    known = np.flatnonzero(split.test.user_degrees)
    found = vote.certify_fakes(split, [0], users=known[:2].tolist())
    assert found.users.tolist() == known[:2].tolist()
    assert f"mean over 2 chosen of the {len(known)} users with a test item" in str(found.protocol)
    protocol = found.as_dict()["protocol"]
    assert protocol["chosen_from"] == len(known)
    assert "sample_seed" not in protocol
    assert "chosen" not in str(vote.certify_fakes(split, [0]).protocol)


@pytest.mark.slow
def test_settings_are_chosen_on_valid_alone_and_repeat():
    split = load("demo")
    chosen = choose(split, VoteConfig(cap=0.2))
    assert chosen.fakes == 10
    assert [trial["damping"] for trial in chosen.trials] == [0.0, 0.3, 0.5]
    best = max(chosen.trials, key=lambda trial: trial["clean"] + trial["certified"] / 2)
    assert (chosen.config.cap, chosen.config.damping) == (0.2, best["damping"])
    assert choose(split, VoteConfig(cap=0.2)).trials == chosen.trials
    other = dataclasses.replace(split, test=split.test.take(np.arange(10)))
    assert choose(other, VoteConfig(cap=0.2)).trials == chosen.trials
    # A trial is what the vote of these settings has on these users.
    rng_users = choose.__globals__["stream"](0, "vote users").choice(2000, 500, replace=False)
    vote = PartitionVote(split.train, VoteConfig(cap=0.2, damping=0.3))
    found = vote.certify_fakes(split, [0, 10], [10], part="valid", users=np.sort(rng_users))
    trial = chosen.trials[1]
    assert found["precision@10"] == pytest.approx([trial["clean"], trial["certified"]])


def test_without_valid_or_with_groups_nothing_is_chosen():
    split = world(0)
    filled = choose(split).config
    assert (filled.cap, filled.damping) == (0.15, 0.3)
    assert choose(split, VoteConfig(damping=0.1)).config.damping == 0.1
    assert choose(split, VoteConfig(groups=2)).config == VoteConfig(groups=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("groups", 0), ("cap", 0.0), ("cap", 2.0), ("cap", math.nan), ("power", 65),
        ("damping", 1.0), ("prior", 0.5), ("ridge", 0.0), ("base", "mine"), ("refit", "maybe"),
        ("key", 3), ("fakes", 0), ("votes", 0), ("prior", None), ("power", None), ("seed", None),
    ],
)  # fmt: skip
def test_settings_are_checked(name, value):
    with pytest.raises(InputError, match=name):
        VoteConfig(**{name: value})


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda train, vote: PartitionVote(train, VoteConfig(groups=13)), "groups"),
        (lambda train, vote: PartitionVote(train, VoteConfig()), "chosen"),
        (lambda train, vote: PartitionVote(train.take(np.zeros(len(train), bool))), "no votes"),
        (lambda train, vote: vote.evaluate(world(0, n_items=7)), "different data"),
        (lambda train, vote: vote.top_for_history(np.array([6]), 2, train), "item ids"),
        (lambda train, vote: vote.certify_fakes(world(0), [0])["auc"], "metric"),
        (lambda train, vote: vote.certify_fakes(world(0), [2, 1]), "ascending"),
        (lambda train, vote: vote.certify_fakes(world(0), [0], users=[]), "at least one"),
        (lambda train, vote: PartitionVote(train, VoteConfig(groups=1)), "more groups"),
        (lambda train, vote: PartitionVote.restored({}, vote.stored().facts, None), "interactions"),
        (lambda train, vote: PartitionVote.restored({}, {"settings": 3}, train), "settings"),
    ],
)
def test_wrong_arguments_are_errors(call, word, monkeypatch):
    monkeypatch.setattr("robustcf.models.voting.voters._MOST_MEMBERS", 3)
    train = world(0).train
    with pytest.raises(InputError, match=word):
        call(train, PartitionVote(train, ACCOUNTS))


def test_a_choice_without_a_single_hit_falls_back():
    train = np.array([[1, 0, 0, 0] + [0] * 40] * 3)
    valid = np.zeros_like(train)
    valid[:, 43] = 1
    chosen = choose(Split.from_csr(train, valid=valid))
    assert len(chosen.trials) == 30
    assert (chosen.config.cap, chosen.config.damping) == (0.15, 0.3)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_by_label_and_by_row_are_not_confused(seed):
    split, config = world(seed), VoteConfig(groups=3, votes=2)
    bare = Interactions(split.train.users, split.train.items, split.n_users, split.n_items)
    kinds = {"labels": split.train, "rows": bare}
    for name, other in (("labels", "rows"), ("rows", "labels")):
        fitted = PartitionVote(kinds[name], config)
        facts = fitted.stored().facts
        assert facts["members"] == name
        again = PartitionVote.restored({}, facts, kinds[name])
        assert (again.voters.members == fitted.voters.members).all()
        with pytest.raises(InputError, match="labels"):
            PartitionVote.restored({}, facts, kinds[other])
        for wrong in ("names", 3, None, ["labels"]):
            with pytest.raises(InputError, match="members"):
                PartitionVote.restored({}, {**facts, "members": wrong}, kinds[name])
    vote = PartitionVote(bare, config)
    for ask in (lambda: vote.evaluate(split), lambda: vote.certify_fakes(split, [0])):
        with pytest.raises(InputError, match="labels"):
            ask()
    accounts = PartitionVote(split.train, ACCOUNTS).stored().facts
    PartitionVote.restored({}, accounts, bare)  # accounts vote with and without labels
