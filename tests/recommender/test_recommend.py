"""Recommendations by labels: against a naive ranking, for known, new and unknown users."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch

import robustcf
from robustcf.data import load
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from robustcf.recommender import FactorScorer, Ranking, Recommender
from robustcf.testing import labelled_split
from tests.metrics.test_evaluate import random_split, slow_top

SEEDS = [0, 1, 2]


def random_model(seed, n_users=30, n_items=25, dim=4, labels=True):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(n_users, dim)), rng.normal(size=(n_items, dim))
    pairs = (rng.random((n_users, n_items)) < 0.2).astype(int)
    pairs[:, 0] = 1
    names = {}
    if labels:
        names = {
            "user_labels": rng.permutation([f"u{n}" for n in range(n_users)]),
            "item_labels": rng.permutation(np.arange(1000, 1000 + n_items)),
        }
    return Recommender(U, V, pairs, **names), U, V, pairs


def naive(U, V, pairs, user, k, *, filter_seen=True, allowed=None):
    scores = [(-float(U[user] @ v), item) for item, v in enumerate(V)]
    kept = [
        (score, item)
        for score, item in scores
        if not (filter_seen and pairs[user, item]) and (allowed is None or item in allowed)
    ]
    return [item for _, item in sorted(kept)[:k]]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("filter_seen", [True, False])
def test_lists_are_those_of_a_naive_ranking(seed, filter_seen):
    model, U, V, pairs = random_model(seed)
    found = model.recommend(k=7, filter_seen=filter_seen)
    for user, label in enumerate(model.user_labels.tolist()):
        rows = found[found["user"] == label]
        expected = naive(U, V, pairs, user, 7, filter_seen=filter_seen)
        assert rows["item"].tolist() == model.item_labels[expected].tolist()
        np.testing.assert_allclose(rows["score"], V[expected] @ U[user])


@pytest.mark.parametrize("seed", SEEDS)
def test_candidates_alone_are_ranked(seed):
    model, U, V, pairs = random_model(seed)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(25, 9, replace=False)
    found = model.recommend(k=5, candidates=model.item_labels[chosen].tolist(), as_ids=True)
    assert isinstance(found, Ranking)
    for user in range(30):
        expected = naive(U, V, pairs, user, 5, allowed=set(chosen.tolist()))
        assert [item for item in found.items[user].tolist() if item >= 0] == expected
        assert np.isnan(found.scores[user][found.items[user] < 0]).all()


def test_users_come_in_any_form():
    model, *_ = random_model(0)
    labels = model.user_labels[[3, 1]].tolist()
    expected = model.recommend(labels, k=2)
    assert expected["user"].tolist() == [labels[0]] * 2 + [labels[1]] * 2
    for form in (tuple(labels), np.array(labels), pd.Series(labels), pd.Index(labels)):
        pd.testing.assert_frame_equal(model.recommend(form, k=2), expected)
    polars = pytest.importorskip("polars")
    pd.testing.assert_frame_equal(model.recommend(polars.Series(labels), k=2), expected)
    assert model.recommend(labels[0], k=2)["user"].tolist() == [labels[0]] * 2
    numbers, *_ = random_model(0, labels=False)
    assert numbers.recommend(np.int64(3), k=1)["user"].tolist() == [3]


@pytest.mark.parametrize(
    ("ask", "word"),
    [
        ({"users": "u99"}, "u9"),
        ({"users": ["u1", "nobody", "else"]}, "1 more"),
        ({"users": 3}, "unknown"),
        ({"users": True}, "unknown"),
        ({"users": 1.0}, "unknown"),
        ({"users": [["u1"]]}, "unknown"),
        ({"users": {"u1": 1}}, "label"),
        ({"items": ["1001"]}, "integers"),
        ({"items": [7]}, "unknown"),
        ({"items": []}, "at least one"),
        ({"users": "u1", "items": [1001]}, "not both"),
        ({"users": "u1", "candidates": []}, "candidates"),
        ({"users": "u1", "candidates": [1]}, "unknown"),
        ({"users": "u1", "k": 0}, "k"),
        ({"users": "u1", "k": 2.5}, "k"),
        ({"users": "u1", "unknown": "shrug"}, "unknown"),
    ],
)
def test_what_cannot_be_recommended_is_an_error(ask, word):
    model, *_ = random_model(0)
    with pytest.raises(InputError, match=word):
        model.recommend(**ask)


def test_numbers_stand_for_themselves_where_there_are_no_labels():
    model, *_ = random_model(0, labels=False)
    for wrong in (30, -1):
        with pytest.raises(InputError, match="0 to 29"):
            model.recommend(wrong)


@pytest.mark.parametrize("seed", SEEDS)
def test_unknown_users_get_popular_items_where_that_is_asked_for(seed):
    model, *_, pairs = random_model(seed)
    known = model.user_labels[4]
    found = model.recommend(["stranger", known, 17], k=3, unknown="popular")
    best = np.argsort(-pairs.sum(axis=0), kind="stable")[:3]
    for label in ("stranger", 17):
        rows = found[found["user"] == label]
        assert rows["item"].tolist() == model.item_labels[best].tolist()
        assert rows["score"].tolist() == pairs.sum(axis=0)[best].tolist()
    mine = found[found["user"] == known]["item"].tolist()
    assert mine == model.recommend(known, k=3)["item"].tolist()
    new = model.recommend(items=["nothing", "of it"], k=3, unknown="popular")
    assert new["item"].tolist() == model.item_labels[best].tolist()
    assert new["user"].tolist() == [None] * 3
    some = model.recommend(items=["nothing", 1001], k=3, unknown="popular")
    assert some["item"].tolist() == model.recommend(items=[1001], k=3)["item"].tolist()


def test_half_precision_serves():
    model = Recommender(torch.randn(9, 4).half(), torch.randn(7, 4).half(), np.eye(9, 7))
    assert len(model.recommend(3, k=2)) == len(model.similar(3, k=2)) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_ids_have_their_scores_and_leave_out_train_and_valid(seed):
    """Whatever it is judged by."""
    rng = np.random.default_rng(seed)
    split = random_split(rng, 12, 9)
    factors = Factors(*(torch.tensor(rng.normal(size=(n, 3))) for n in (12, 9)))
    model = Recommender(*factors, split, part="valid")
    users = [7, 0, 3]
    found = model.recommend(users, k=5, as_ids=True)
    expected = slow_top(factors, users, 5, split.train_full)
    np.testing.assert_array_equal(found.items, expected[:, : found.items.shape[1]])
    for user, items, scores in zip(users, *found, strict=True):
        kept = items[items >= 0]
        own = factors.items[kept] @ factors.users[user]
        np.testing.assert_allclose(scores[: len(kept)], own)
        assert np.isnan(scores[len(kept) :]).all()


def test_few_items_left_make_short_lists():
    model = Recommender(np.eye(2), np.eye(2), [[1, 1], [1, 0]])
    found = model.recommend(k=5)
    assert found["user"].tolist() == [1]
    ids = model.recommend(k=5, as_ids=True)
    assert ids.items.tolist() == [[-1, -1], [1, -1]]


@pytest.mark.parametrize("seed", SEEDS)
def test_similar_items_are_those_of_the_cosine(seed):
    model, _, V, _ = random_model(seed)
    units = V / np.linalg.norm(V, axis=1, keepdims=True)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -2)
    for item in (0, 7):
        found = model.similar(int(model.item_labels[item]), k=4)
        best = np.argsort(-cosines[item], kind="stable")[:4]
        assert found["similar"].tolist() == model.item_labels[best].tolist()
        np.testing.assert_allclose(found["score"], cosines[item][best])
    with pytest.raises(InputError):
        model.similar("nothing")


def test_a_bias_does_not_make_items_similar():
    V = np.array([[1.0, 0.0, 5.0], [0.0, 1.0, 5.0], [1.0, 0.1, -5.0]])
    U = np.ones((2, 3))
    model = Recommender(U, V, np.eye(2, 3), fixed=[2])
    assert model.similar(0, k=1)["similar"].tolist() == [2]


def test_many_users_need_memory_for_the_result_alone():
    rng = np.random.default_rng(0)
    n_users, n_items = 100_000, 3_000
    factors = rng.normal(size=(n_users, 4)).astype(np.float32)
    model = Recommender(factors, rng.normal(size=(n_items, 4)).astype(np.float32))
    tracemalloc.start()
    found = model.recommend(k=3, filter_seen=False, as_ids=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.items.shape == (n_users, 3)
    assert peak < n_users * n_items / 4  # bytes; the scores alone would be sixteen times as many


def test_asking_again_and_again_takes_no_more_memory():
    model = robustcf.train(load("demo"), "als", dim=8)
    ask = [lambda n=n: model.recommend(n % 2000, k=5 + n % 7) for n in range(400)]
    for call in ask:
        call()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for call in ask:
        call()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 200_000


def test_threads_may_ask_at_the_same_time():
    model = robustcf.train(load("demo"), "als", dim=8)
    expected = model.recommend(k=5, as_ids=True).items
    wrong = []

    def serve(start):
        for user in range(start, 2000, 8):
            found = model.recommend(user, k=5, as_ids=True).items[0]
            if found.tolist() != expected[user].tolist():
                wrong.append(user)

    workers = [threading.Thread(target=serve, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_user_is_served_like_a_known_one_with_the_same_history(seed):
    """Of ALS, whose rows solve the same least squares."""
    split = labelled_split(seed)
    model = robustcf.train(split, "als", dim=6, sweeps=60)
    for user in (1, 5, 20):
        label = split.user_labels[user]
        history = split.item_labels[model.known.items_of(user)].tolist()
        own = model.recommend(label, k=5)
        new = model.recommend(items=history, k=5)
        np.testing.assert_allclose(new["score"], own["score"], rtol=1e-3)


def test_everybody_is_served_alike_by_popularity():
    split = labelled_split()
    model = robustcf.train(split, "popularity")
    rare = split.item_labels[int(np.argmin(model.item_counts))]
    counts = dict(zip(split.item_labels.tolist(), model.item_counts.tolist(), strict=True))
    found = model.recommend(items=[rare], k=5)["item"].tolist()
    best = sorted(counts, key=lambda label: -counts[label])
    assert [counts[label] for label in found] == [counts[label] for label in best[:5]]


# --- data of the caller's own ---------------------------------------------------------------


def frame_of(pairs):
    users, items = np.asarray(pairs.user_labels), np.asarray(pairs.item_labels)
    return pd.DataFrame({"user": users[pairs.users], "item": items[pairs.items]})


def test_factors_and_tables_are_matched_by_labels():
    split = labelled_split()
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(40, 4)), rng.normal(size=(30, 4))
    names = {"user_labels": split.user_labels, "item_labels": split.item_labels}
    by_rows = Recommender(U, V, split.train, split.test)
    shuffled = frame_of(split.train).sample(frac=1.0, random_state=0)
    by_labels = Recommender(U, V, shuffled, frame_of(split.test), **names)
    pd.testing.assert_frame_equal(by_labels.recommend(k=3), by_rows.recommend(k=3))
    assert by_labels.evaluate().values == by_rows.evaluate().values
    with pytest.raises(DataError):
        Recommender(U, V, shuffled)
    with pytest.raises(DataError):
        Recommender(U, V, shuffled, user_labels=split.user_labels, item_labels=np.arange(30))


def test_a_recommender_without_interactions_says_what_it_lacks():
    model = Recommender(np.eye(2), np.eye(2), user_labels=["a", "b"])
    assert not model.has_interactions
    assert model.recommend("a", k=1, filter_seen=False)["item"].tolist() == [0]
    for ask in (
        lambda: model.recommend("a"),
        model.evaluate,
        lambda: model.known,
        lambda: robustcf.measure(model),
        lambda: robustcf.audit(model),
        lambda: model.recommend("c", unknown="popular", filter_seen=False),
    ):
        with pytest.raises(InputError):
            ask()
    with pytest.raises(InputError):
        Recommender(np.eye(2), np.eye(2), test=np.eye(2))
    assert "without interactions" in repr(model)


def test_a_scorer_of_other_data_is_refused():
    scorer = FactorScorer(Recommender(np.eye(3), np.eye(3)).factors)
    with pytest.raises(InputError, match="different data"):
        Recommender.of(scorer, labelled_split())


def test_a_kind_without_embeddings_says_so():
    model = robustcf.train(labelled_split(), model="vote")
    for ask in (
        lambda: model.factors,
        lambda: robustcf.measure(model),
        lambda: robustcf.certify(model),
        lambda: robustcf.audit(model),
        lambda: robustcf.harden(model),
        lambda: model.export("x.safetensors"),
    ):
        with pytest.raises(InputError, match="fakes"):
            ask()
    found = robustcf.certify(model, fakes=[0, 1])
    assert found["precision@10"][0] >= found["precision@10"][1]
    other, *_ = random_model(0)
    with pytest.raises(InputError, match="vote"):
        robustcf.certify(other, fakes=[0, 1])
    with pytest.raises(InputError, match="give one"):
        robustcf.certify(model, [0, 0.1], fakes=[0, 1])


def test_in_a_notebook_labels_are_escaped():
    model = Recommender(np.eye(2), np.eye(2), np.eye(2), label="<script>alert(1)</script>")
    html = model._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    result = robustcf.measure(model, "fgm-softmax", epsilons=[0, 0.1])
    for thing in (result, result.curve, model.evaluate(), robustcf.audit(model, attack=False)):
        assert thing._repr_html_().startswith("<div>")
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 500


# --- the front door -------------------------------------------------------------------------

FOUR_LINES = """
model = robustcf.train(robustcf.load(df), minutes=0.05)
recommended = model.recommend(["ann"], k=10)
model.save("model")
new = robustcf.open("model").recommend(items=["Toy Story"], k=10)
"""


def films(seed=0):
    pairs = load("demo").train.take(load("demo").train.users < 300)
    frame = pd.DataFrame({"user": pairs.users, "item": pairs.items})
    frame = frame.assign(
        user="user " + frame["user"].astype(str), item="film " + frame["item"].astype(str)
    )
    popular = frame["item"].value_counts().index
    mine = pd.DataFrame({"user": "ann", "item": [*popular[:4], "Toy Story"]})
    fans = pd.DataFrame({"user": frame["user"].unique()[:40], "item": "Toy Story"})
    return pd.concat([frame, mine, fans]).sample(frac=1.0, random_state=seed)


@pytest.mark.slow
def test_four_lines_from_a_frame_to_a_model_that_serves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    df = films()
    names = {"robustcf": robustcf, "df": df}
    exec(FOUR_LINES, names)
    recommended, new = names["recommended"], names["new"]
    assert recommended["user"].tolist() == ["ann"] * 10
    assert not set(recommended["item"]) & set(df[df["user"] == "ann"]["item"])
    assert len(new) == 10
    assert "Toy Story" not in set(new["item"])


def test_an_implicit_model_in_three_lines(tmp_path):
    implicit = pytest.importorskip("implicit")
    split = labelled_split()
    theirs = implicit.als.AlternatingLeastSquares(
        factors=8, random_state=0, num_threads=1, alpha=3.0, regularization=0.1
    )
    theirs.fit(split.train.csr(), show_progress=False)
    names = {"model": theirs, "interactions": split.train.csr(), "robustcf": robustcf}
    names |= {"path": tmp_path / "audit.html"}
    lines = """
from robustcf.adapters import from_implicit
mine = from_implicit(model, interactions)
attacked = robustcf.measure(mine, epsilons=[0, 0.1])
page = robustcf.audit(mine, attack=False).save(path)
safer = robustcf.harden(mine)
"""
    exec(lines, names)
    assert names["page"].read_text().startswith("<!doctype html>")
    assert names["attacked"].curve["ndcg@10"][1] < names["attacked"].curve["ndcg@10"][0]
    assert (
        names["safer"].recommend(0)["item"].tolist() == names["mine"].recommend(0)["item"].tolist()
    )
    # A new user is folded in as implicit does it.
    history = split.train.csr()[7]
    ids, scores = theirs.recommend(0, history, N=5, recalculate_user=True)
    own = names["mine"].recommend(items=history.indices.tolist(), k=5)
    assert own["item"].tolist() == ids.tolist()
    np.testing.assert_allclose(own["score"], scores, rtol=1e-4)


def test_interactions_may_be_given_at_last(tmp_path):
    split = labelled_split()
    model = robustcf.train(split, "als", dim=4)
    model.save(tmp_path / "model", include_interactions=False)
    again = robustcf.open(tmp_path / "model", interactions=split)
    pd.testing.assert_frame_equal(again.recommend(k=3), model.recommend(k=3))
    assert again.evaluate().values == model.evaluate().values
    with pytest.raises(InputError, match="other data"):
        robustcf.open(tmp_path / "model", interactions=labelled_split(1))
    model.save(tmp_path / "whole")
    with pytest.raises(InputError, match="leave interactions out"):
        robustcf.open(tmp_path / "whole", interactions=split)
