"""The vote as a recommender: against transcriptions of its definition, and its errors."""

from __future__ import annotations

import dataclasses
import hashlib
import math

import numpy as np
import pytest

from robustcf.data import Split, checkerboard, load
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.models.voting import PartitionVote, Vote, VoteConfig, choose, fit_vote
from robustcf.models.voting.voters import FULL_VOTE, Accounts, Groups, group_of
from robustcf.recommender import Ranking
from robustcf.robustness import measure
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
            if len(voted) == 3:
                assert scores[left].max() <= scores[voted].min() + 1e-5
            else:
                assert (scores[left] <= 1e-5).all()


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


@pytest.mark.parametrize("config", [DAMPED, VoteConfig(groups=6, votes=3)], ids=["one", "groups"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
def test_blocks_do_not_change_a_bit(config, seed, monkeypatch):
    split = world(seed, n_users=30, n_items=12)
    vote = PartitionVote(split.train, config)

    def everything():
        report = vote.evaluate(split, (3, 5))
        certified = vote.certify_fakes(split, [0, 1, 3], (3, 5))
        return report.per_user, certified.per_user

    whole = everything()
    for size in (1, 40, 100):
        monkeypatch.setattr("robustcf.models.voting.voters._BLOCK", size)
        monkeypatch.setattr("robustcf.models.voting.voters._GROUP_BLOCK", size)
        for one, other in zip(whole, everything(), strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)


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
    vote = PartitionVote(split.train, ACCOUNTS)
    certified = vote.certify_fakes(split, [1, 2, 3], (4,))
    train, test = split.train.csr().toarray(), split.test.csr().toarray()
    for at, fakes in enumerate((1, 2, 3)):
        for place, user in enumerate(certified.users):
            votes = naive_scores(train, train[user], ACCOUNTS)
            places = {i: (votes[i], -i) for i in range(10) if not train[user, i]}
            relevant = sorted((places[i] for i in places if test[user, i]), reverse=True)
            raised = sorted(
                ((v + fakes * FULL_VOTE, i) for i, (v, _) in places.items() if not test[user, i]),
                key=lambda pair: (-pair[0], pair[1]),
            )
            kept = 0
            for r in range(1, min(4, len(relevant)) + 1):
                last = raised[4 - r] if len(raised) > 4 - r else None
                mine = relevant[r - 1]
                if last is None or (last[0], -last[1]) < mine:
                    kept = r
            assert certified.per_user["precision@4"][at][place] == kept / 4
            hit = certified.per_user["hit_rate@4"][at][place]
            assert hit == (kept > 0)


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


def test_somebody_without_a_history_sees_what_is_popular():
    pairs = Interactions.from_pairs([0, 1, 2, 2], [3, 3, 1, 3], 4, 5)[0]
    vote = PartitionVote(pairs, ACCOUNTS)
    found, scores = plain(vote.top_for_history(np.array([], dtype=np.int64), 2, pairs))
    assert found == [3, 1]
    assert scores == [3.0 * FULL_VOTE, FULL_VOTE]
    assert PartitionVote(pairs, ACCOUNTS).rank(np.array([3]), 2, pairs).tolist() == [[3, 1]]


def test_a_new_user_is_served_like_one_with_the_same_history():
    split = world(3, n_users=30, n_items=12)
    for config in (DAMPED, VoteConfig(groups=6, votes=4)):
        vote = PartitionVote(split.train, config)
        for user in (0, 4, 9):
            own = served_to(vote, user, 5, split.train)
            history = split.train.items_of(user)
            assert plain(vote.top_for_history(history, 5, split.train)) == own
            again = served_to(vote, user, 5, None)
            found = vote.top_for_history(history, 5, split.train, filter_seen=False)
            assert plain(found) == again


@pytest.mark.parametrize("seed", SEEDS)
def test_candidates_are_chosen_from_and_keep_their_order(seed):
    split = world(seed, n_users=30, n_items=12)
    some = np.array([0, 3, 4, 7, 11])
    for config in (ACCOUNTS, DAMPED):
        vote = PartitionVote(split.train, config)
        for user in (0, 4, 9):
            whole = zip(*served_to(vote, user, 12, split.train), strict=True)
            expected = [pair for pair in whole if pair[0] in some]
            found = plain(vote.top(np.array([user]), 9, split.train, some))
            assert list(zip(*found, strict=True)) == expected
            history = split.train.items_of(user)
            new = vote.top_for_history(history, 9, split.train, candidates=some)
            assert plain(new) == found


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


def test_a_vote_is_made_again_from_what_it_keeps():
    split = world(1, n_users=30, n_items=12)
    for config in (DAMPED, VoteConfig(groups=6, votes=4, key="k")):
        vote = PartitionVote(split.train, config)
        kept = vote.stored()
        assert kept.needs_interactions
        again = PartitionVote.restored(kept.tensors, kept.facts, split.train)
        assert again.config == config
        users = np.arange(30)
        for one, other in zip(vote.top(users, 5), again.top(users, 5), strict=True):
            assert np.array_equal(one, other)
        with pytest.raises(InputError, match="interactions"):
            PartitionVote.restored(kept.tensors, kept.facts, None)
        with pytest.raises(InputError, match="settings"):
            PartitionVote.restored({}, {"settings": 3}, split.train)


def test_fitting_chooses_refits_and_recommends():
    split = checkerboard()
    model = fit_vote(split, cap=0.2, damping=0.3)
    assert (model.kind, model.label, model.fit_on) == ("vote", "vote", "train and valid")
    assert model.scorer.pairs == split.train_full
    one = Vote(cap=0.2, damping=0.3).fit(split)
    two = Vote(VoteConfig(cap=0.2, damping=0.3)).fit(split)
    for other in (one, two):
        assert model.recommend(k=5).equals(other.recommend(k=5))
    assert model.evaluate().values == model.scorer.evaluate(split, mask=model.mask).values
    assert fit_vote(split, cap=0.2, damping=0.3, refit="no").fit_on == "train"
    chosen = fit_vote(split)
    assert chosen.training["trials"]
    assert (chosen.scorer.config.cap, chosen.scorer.config.damping) == (
        choose(split).config.cap,
        choose(split).config.damping,
    )
    for make in (Vote, lambda **given: fit_vote(split, **given)):
        with pytest.raises(InputError, match="cup"):
            make(cup=0.2)


def test_a_vote_has_no_embeddings():
    model = fit_vote(world(0), cap=0.2, damping=0.3)
    for asked in (lambda: model.factors, lambda: model.fixed, lambda: measure(model, "auto")):
        with pytest.raises(InputError, match="fake accounts"):
            asked()


def test_lists_run_out_with_the_items():
    pairs = Interactions.from_pairs([0, 0, 1], [0, 1, 2], 2, 3)[0]
    assert PartitionVote(pairs, ACCOUNTS).rank(np.array([0]), 5, pairs).tolist() == [[2, -1, -1]]


def test_damping_is_computed_once():
    split = world(0)
    accounts = Accounts(split.train, DAMPED)
    most = int(accounts.degrees.max())
    for fakes in (1, 3, 0):
        factors = accounts.damping(fakes)
        assert factors.tolist() == [(DAMPED.prior + n) ** -0.6 for n in range(most + fakes + 1)]
    assert np.shares_memory(accounts.damping(2), accounts.damping(3))
    other = accounts.with_settings(dataclasses.replace(DAMPED, damping=0.0))
    assert set(other.damping(3).tolist()) == {1.0}


def test_nobody_has_lists_of_the_usual_length():
    pairs = Interactions.from_pairs([0, 0, 1], [0, 1, 2], 2, 3)[0]
    assert PartitionVote(pairs, ACCOUNTS).rank(np.array([]), 5, pairs).shape == (0, 3)


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ([-1], r"user ids must be in \[0, 12\), got -1 to -1"),
        ([10**6], r"user ids must be in \[0, 12\)"),
        ([0.0], "users must be a list of integer ids,"),
        ([[0]], "list of integer ids"),
    ],
)
def test_users_who_are_not_there_are_refused(users, words):
    split = world(0)
    vote = PartitionVote(split.train, ACCOUNTS)
    with pytest.raises(InputError, match=words):
        vote.certify_fakes(split, [0], users=users)
    with pytest.raises(InputError, match=words):
        vote.rank(users, 2, None)
    with pytest.raises(InputError, match=words):
        vote.top(np.array(users), 2)


def test_chosen_users_are_no_sample():
    split = world(0)
    vote = PartitionVote(split.train, ACCOUNTS)
    known = np.flatnonzero(split.test.user_degrees)
    found = vote.certify_fakes(split, [0], users=known[:2].tolist())
    assert found.users.tolist() == known[:2].tolist()
    assert f"mean over 2 chosen of the {len(known)} users with a test item" in str(found.protocol)
    assert found.as_dict()["protocol"]["chosen_from"] == len(known)
    assert "sample_seed" not in found.as_dict()["protocol"]
    assert "chosen" not in str(vote.certify_fakes(split, [0]).protocol)
    with pytest.raises(InputError, match="users must be at least one, got none"):
        vote.certify_fakes(split, [0], users=[])


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
    ("settings", "words"),
    [
        ({"groups": 0}, "groups must be an integer"),
        ({"cap": 0.0}, "cap must be a number from 0.001 to 1"),
        ({"cap": 2.0}, "cap must be a number"),
        ({"cap": math.nan}, "cap must be a finite number"),
        ({"power": 65}, "power"),
        ({"damping": 1.0}, "the proof would not hold"),
        ({"prior": 0.5}, "prior must be a number from 1"),
        ({"ridge": 0.0}, "ridge must be a number"),
        ({"base": "mine"}, "base"),
        ({"refit": "maybe"}, "refit"),
        ({"key": 3}, "key must be a text"),
        ({"fakes": 0}, "fakes"),
        ({"votes": 0}, "votes"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(InputError, match=words):
        VoteConfig(**settings)


def test_what_does_not_fit_is_an_error(monkeypatch):
    split = world(0)
    with pytest.raises(InputError, match="from 1 to the number of users, 12, got 13"):
        PartitionVote(split.train, VoteConfig(groups=13))
    with pytest.raises(InputError, match="be chosen on validation data first"):
        PartitionVote(split.train, VoteConfig())
    with pytest.raises(InputError, match="no votes"):
        PartitionVote(split.train.take(np.zeros(len(split.train), dtype=bool)))
    vote = PartitionVote(split.train, ACCOUNTS)
    with pytest.raises(InputError, match="they are different data"):
        vote.evaluate(world(0, n_items=7))
    with pytest.raises(InputError, match="item ids"):
        vote.top_for_history(np.array([6]), 2, split.train)
    with pytest.raises(InputError, match="there are ndcg@10"):
        vote.certify_fakes(split, [0])["auc"]
    with pytest.raises(InputError, match="ascending"):
        vote.certify_fakes(split, [2, 1])
    monkeypatch.setattr("robustcf.models.voting.voters._MOST_MEMBERS", 3)
    with pytest.raises(InputError, match="take more groups"):
        PartitionVote(split.train, VoteConfig(groups=1))


def test_a_choice_without_a_single_hit_falls_back():
    train = np.array([[1, 0, 0, 0] + [0] * 40] * 3)
    valid = np.zeros_like(train)
    valid[:, 43] = 1
    chosen = choose(Split.from_csr(train, valid=valid))
    assert len(chosen.trials) == 30
    assert (chosen.config.cap, chosen.config.damping) == (0.15, 0.3)


def without_labels(pairs: Interactions) -> Interactions:
    return Interactions(pairs.users, pairs.items, pairs.n_users, pairs.n_items)


@pytest.mark.parametrize("seed", range(3))
def test_groups_by_label_and_by_row_are_not_confused(seed: int) -> None:
    split = world(seed)
    config = VoteConfig(groups=3, votes=2)
    kinds = {"labels": split.train, "rows": without_labels(split.train)}
    for name, other in (("labels", "rows"), ("rows", "labels")):
        fitted = PartitionVote(kinds[name], config)
        stored = fitted.stored()
        assert stored.facts["members"] == name
        again = PartitionVote.restored({}, stored.facts, kinds[name])
        assert (again.voters.members == fitted.voters.members).all()
        with pytest.raises(InputError, match="labels"):
            PartitionVote.restored({}, stored.facts, kinds[other])
    with pytest.raises(InputError, match="labels"):
        PartitionVote(kinds["rows"], config).evaluate(split)
    with pytest.raises(InputError, match="labels"):
        PartitionVote(kinds["rows"], config).certify_fakes(split, [0])


def test_what_decides_the_groups_must_be_known() -> None:
    split = world(0)
    facts = dict(PartitionVote(split.train, VoteConfig(groups=3, votes=2)).stored().facts)
    for wrong in ("names", 3, None, ["labels"]):
        with pytest.raises(InputError, match="members"):
            PartitionVote.restored({}, {**facts, "members": wrong}, split.train)


def test_accounts_vote_with_and_without_labels() -> None:
    split = world(0)
    facts = PartitionVote(split.train, ACCOUNTS).stored().facts
    PartitionVote.restored({}, facts, without_labels(split.train))
