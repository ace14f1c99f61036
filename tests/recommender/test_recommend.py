"""Recommendations by labels: against a naive ranking, for known, new and unknown users."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

import robustcf
from robustcf.adapters import from_implicit
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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("filter_seen", [True, False])
@pytest.mark.parametrize("among", [25, 9])
def test_lists_are_those_of_a_naive_ranking(seed, filter_seen, among):
    model, U, V, pairs = random_model(seed)
    chosen = np.random.default_rng(seed).choice(25, among, replace=False)
    candidates = None if among == 25 else model.item_labels[chosen].tolist()
    how = {"k": 7, "filter_seen": filter_seen, "candidates": candidates}
    table, ids = model.recommend(**how), model.recommend(**how, as_ids=True)
    assert isinstance(ids, Ranking)
    for user, label in enumerate(model.user_labels.tolist()):
        scores = [(-float(U[user] @ V[item]), item) for item in chosen.tolist()]
        kept = [pair for pair in scores if not (filter_seen and pairs[user, pair[1]])]
        expected = [item for _, item in sorted(kept)[:7]]
        rows = table[table["user"] == label]
        assert rows["item"].tolist() == model.item_labels[expected].tolist()
        np.testing.assert_allclose(rows["score"], V[expected] @ U[user])
        assert [item for item in ids.items[user].tolist() if item >= 0] == expected
        assert np.isnan(ids.scores[user][ids.items[user] < 0]).all()


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
        ({"users": ["u1", "unknown-user", "else"]}, "1 more"),
        ({"users": 3}, "unknown"),
        ({"users": True}, "unknown"),
        ({"users": 1.0}, "unknown"),
        ({"users": [["u1"]]}, "unknown"),
        ({"users": {"u1": 1}}, "label"),
        ({"items": ["1001"]}, "integers"),
        ({"items": [7]}, "unknown"),
        ({"items": []}, "an item"),
        ({"users": "u1", "items": [1001]}, "not both"),
        ({"users": "u1", "candidates": []}, "candidates"),
        ({"users": "u1", "candidates": [1]}, "unknown"),
        ({"users": "u1", "k": 0}, "k"),
        ({"users": "u1", "k": 2.5}, "k"),
        ({"users": "u1", "unknown": "shrug"}, "unknown"),
    ],
)
def test_requests_that_are_errors(ask, word):
    model, *_ = random_model(0)
    with pytest.raises(InputError, match=word):
        model.recommend(**ask)


@pytest.mark.parametrize("wrong", [30, -1])
def test_row_numbers_are_the_labels_of_unlabelled_data(wrong):
    model, *_ = random_model(0, labels=False)
    with pytest.raises(InputError, match="0 to 29"):
        model.recommend(wrong)


@pytest.mark.parametrize("seed", SEEDS)
def test_unknown_users_get_popular_items_on_request(seed):
    model, *_, pairs = random_model(seed)
    known, counts = model.user_labels[4], pairs.sum(axis=0)
    best = np.argsort(-counts, kind="stable")[:3]
    popular = model.item_labels[best].tolist()
    how = {"k": 3, "unknown": "popular"}
    found = model.recommend(["stranger", known, 17], **how)
    for label in ("stranger", 17):
        rows = found[found["user"] == label]
        assert rows["item"].tolist() == popular
        assert rows["score"].tolist() == counts[best].tolist()
    mine = found[found["user"] == known]["item"].tolist()
    assert mine == model.recommend(known, k=3)["item"].tolist()
    new = model.recommend(items=["nothing", "of it"], **how)
    assert (new["item"].tolist(), new["user"].tolist()) == (popular, [None] * 3)
    some = model.recommend(items=["nothing", 1001], **how)
    assert some["item"].tolist() == model.recommend(items=[1001], k=3)["item"].tolist()


def test_half_precision_serves():
    model = Recommender(torch.randn(9, 4).half(), torch.randn(7, 4).half(), np.eye(9, 7))
    assert len(model.recommend(3, k=2)) == len(model.similar(3, k=2)) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_ids_have_their_scores_and_leave_out_train_and_valid(seed):
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
    n_users, n_items = 30_000, 3_000
    factors = rng.normal(size=(n_users, 4)).astype(np.float32)
    model = Recommender(factors, rng.normal(size=(n_items, 4)).astype(np.float32))
    tracemalloc.start()
    found = model.recommend(k=3, filter_seen=False, as_ids=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.items.shape == (n_users, 3)
    assert peak < n_users * n_items / 4  # bytes; the scores alone would be sixteen times as many


@pytest.fixture(scope="module")
def demo_model():
    return robustcf.train(load("demo"), "als", factors=8)


def test_repeated_requests_take_no_more_memory(demo_model):
    def ask():
        for n in range(100):
            demo_model.recommend(n, k=5 + n % 7)

    ask()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ask()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 50_000


def test_threads_may_ask_at_the_same_time(demo_model):
    expected = demo_model.recommend(k=5, as_ids=True).items

    def correct(start):
        users = range(start, 500, 8)
        found = [demo_model.recommend(user, k=5, as_ids=True).items[0] for user in users]
        return np.array_equal(found, expected[users])

    with ThreadPoolExecutor(8) as workers:
        assert all(workers.map(correct, range(8)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_user_is_served_like_a_known_one_with_the_same_history(seed):
    """Of ALS, whose rows solve the same least squares."""
    split = labelled_split(seed)
    model = robustcf.train(split, "als", factors=6, iterations=60)
    for user in (1, 5, 20):
        history = split.item_labels[model.known.items_of(user)].tolist()
        own, new = (
            model.recommend(split.user_labels[user], k=5),
            model.recommend(items=history, k=5),
        )
        np.testing.assert_allclose(new["score"], own["score"], rtol=1e-3)


def test_everybody_is_served_alike_by_popularity():
    split = labelled_split()
    model = robustcf.train(split, "popularity")
    rare = split.item_labels[int(np.argmin(model.item_counts))]
    counts = dict(zip(split.item_labels.tolist(), model.item_counts.tolist(), strict=True))
    found = model.recommend(items=[rare], k=5)["item"].tolist()
    best = sorted(counts, key=lambda label: -counts[label])
    assert [counts[label] for label in found] == [counts[label] for label in best[:5]]


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
    for wrong in ({}, {**names, "item_labels": np.arange(30)}):
        with pytest.raises(DataError):
            Recommender(U, V, shuffled, **wrong)


def test_a_recommender_without_interactions_says_what_it_lacks():
    model = Recommender(np.eye(2), np.eye(2), user_labels=["a", "b"])
    assert not model.has_interactions
    assert model.recommend("a", k=1, filter_seen=False)["item"].tolist() == [0]
    for ask in (
        lambda: model.recommend("a"),
        model.evaluate,
        lambda: model.known,
        lambda: robustcf.measure(model),
        lambda: robustcf.harden(model, by_trial=True),
        lambda: model.recommend("c", unknown="popular", filter_seen=False),
    ):
        with pytest.raises(InputError, match="interactions"):
            ask()
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


FOUR_LINES = """
model = robustcf.train(robustcf.load(df), minutes=0.05)
recommended = model.recommend(["ann"], k=10)
model.save("model")
new = robustcf.open("model").recommend(items=["Toy Story"], k=10)
"""


def films():
    pairs = load("demo").train
    pairs = pairs.take(pairs.users < 300)
    frame = pd.DataFrame({"user": pairs.users, "item": pairs.items}).astype(str)
    frame = ("user " + frame[["user"]]).join("film " + frame[["item"]])
    popular = frame["item"].value_counts().index
    mine = pd.DataFrame({"user": "ann", "item": [*popular[:4], "Toy Story"]})
    fans = pd.DataFrame({"user": frame["user"].unique()[:40], "item": "Toy Story"})
    return pd.concat([frame, mine, fans]).sample(frac=1.0, random_state=0)


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


def test_a_model_of_implicit_is_measured_hardened_and_serves_new_users(tmp_path):
    implicit = pytest.importorskip("implicit")
    pairs = labelled_split().train.csr()
    theirs = implicit.als.AlternatingLeastSquares(
        factors=8, random_state=0, num_threads=1, alpha=3.0, regularization=0.1
    )
    theirs.fit(pairs, show_progress=False)
    mine = from_implicit(theirs, pairs)
    clean, attacked = robustcf.measure(mine, epsilons=[0, 0.1]).curve["ndcg@10"]
    assert attacked < clean
    page = robustcf.audit(mine, attack=False).save(tmp_path / "audit.html")
    assert page.read_text().startswith("<!doctype html>")
    before, after = (m.recommend(0)["item"].tolist() for m in (mine, robustcf.harden(mine)))
    assert before == after
    # A new user is folded in as implicit does it.
    ids, scores = theirs.recommend(0, pairs[7], N=5, recalculate_user=True)
    own = mine.recommend(items=pairs[7].indices.tolist(), k=5)
    assert own["item"].tolist() == ids.tolist()
    np.testing.assert_allclose(own["score"], scores, rtol=1e-4)
