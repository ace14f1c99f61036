"""Item-item weights against naive dense transcriptions; histories score as stored users do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import robustcf
from robustcf.data import Interactions, checkerboard
from robustcf.errors import InputError
from robustcf.models import neighbours
from robustcf.models import scorer as scorers
from robustcf.models.item_item import ItemItemScorer
from robustcf.models.neighbours import (
    GraphFilter,
    ItemKNN,
    SparseEASE,
    cosine_weights,
    ease_weights,
    filter_weights,
    ridge_weights,
)
from robustcf.poisoning.victim import retrained
from robustcf.training import TrainConfig

SEEDS = (0, 1, 2)


def drawn(seed: int, users: int = 40, items: int = 25, share: float = 0.2) -> Interactions:
    rng = np.random.default_rng(seed)
    own = rng.random((users, items)) < share * rng.random(items) * 2
    own[:, 3] = False  # an item without pairs
    own[5] = False  # a user without pairs
    return Interactions.from_csr(csr_matrix(own))


def dense(pairs: Interactions) -> np.ndarray:
    return pairs.csr().toarray().astype(np.float64)


def cosines(R: np.ndarray, damping: float = 0.0) -> np.ndarray:
    lengths = np.sqrt(np.maximum(R.sum(axis=0), 1))
    found = R.T @ R / (np.outer(lengths, lengths) + damping)
    np.fill_diagonal(found, 0.0)
    return found


def nearest(similar: np.ndarray, item: int, most: int) -> np.ndarray:
    order = sorted(np.flatnonzero(similar[:, item]), key=lambda i: (-similar[i, item], i))
    return np.sort(order[:most]).astype(int)


@pytest.mark.parametrize("users", [40, 12])  # the smaller side is inverted
@pytest.mark.parametrize("seed", SEEDS)
def test_ease_is_its_closed_form(seed, users):
    pairs = drawn(seed, users)
    R = dense(pairs)
    P = np.linalg.inv(R.T @ R + 7.0 * np.eye(R.shape[1]))
    expected = np.eye(len(P)) - P / np.diag(P)
    np.fill_diagonal(expected, 0.0)
    np.testing.assert_allclose(ease_weights(pairs, 7.0), expected, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("most_dense", [0, 1000])
@pytest.mark.parametrize("most", [1, 4, 25])
def test_ridge_is_a_regression_on_the_most_similar_items(seed, most_dense, most, monkeypatch):
    monkeypatch.setattr(neighbours, "MOST_DENSE", most_dense)
    monkeypatch.setattr(neighbours, "_SOLVED_BYTES", 8 * 16 * 3)  # several blocks
    pairs = drawn(seed)
    R, found = dense(pairs), ridge_weights(pairs, 3.0, most).toarray()
    similar, expected = cosines(R), np.zeros(found.shape)
    for item in range(R.shape[1]):
        own = nearest(similar, item, most)
        X = np.vstack([R[:, own], np.sqrt(3.0) * np.eye(len(own))])
        y = np.concatenate([R[:, item], np.zeros(len(own))])
        expected[own, item] = np.linalg.lstsq(X, y, rcond=None)[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_kept_weights_are_the_largest_into_each_item(seed, monkeypatch):
    monkeypatch.setattr(neighbours, "_BLOCK_BYTES", 16 * 25 * 4)  # several blocks
    pairs = drawn(seed)
    whole = ease_weights(pairs, 7.0)
    found = SparseEASE(pairs, neighbours=0, regularization=7.0, kept=3).weights.toarray()
    for item in range(25):
        own = sorted(range(25), key=lambda i: (-abs(whole[i, item]), i))[:3]
        expected = np.zeros(25, dtype=np.float32)
        expected[own] = whole[own, item]
        np.testing.assert_array_equal(found[:, item], expected)
    with pytest.raises(InputError, match="kept"):
        SparseEASE(pairs, neighbours=5, kept=3)


def test_ridge_on_all_items_is_ease_where_all_items_meet():
    R = (np.random.default_rng(0).random((60, 12)) < 0.5).astype(float)
    R[0] = 1.0  # every two items have a user in common
    pairs = Interactions.from_csr(csr_matrix(R))
    found = ridge_weights(pairs, 5.0, 12).toarray()
    np.testing.assert_allclose(found, ease_weights(pairs, 5.0), atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_cosines_and_filter_are_their_definitions(seed, monkeypatch):
    monkeypatch.setattr(neighbours, "_BLOCK_BYTES", 8 * 25 * 4)  # several blocks
    pairs = drawn(seed)
    R = dense(pairs)
    similar = cosines(R, 10.0)
    found = cosine_weights(pairs, 5, damping=10.0).toarray()
    for item in range(25):
        own = nearest(similar, item, 5)
        assert np.flatnonzero(found[:, item]).tolist() == own.tolist()
        np.testing.assert_allclose(found[own, item], similar[own, item], rtol=1e-6)
    users, items = (np.maximum(R.sum(axis=axis), 1) for axis in (1, 0))
    N = R / np.sqrt(np.outer(users, items))
    expected = np.diag(items**-0.25) @ N.T @ N @ np.diag(items**0.25)
    np.fill_diagonal(expected, 0.0)
    np.testing.assert_allclose(filter_weights(pairs, 0.25).toarray(), expected, atol=1e-6)
    assert np.diff(filter_weights(pairs, 0.25, 3).tocsc().indptr).max() <= 3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "weights", [lambda p: ease_weights(p, 5.0), lambda p: ridge_weights(p, 5.0, 6)]
)
def test_rankings_are_sums_of_rows_and_a_history_scores_as_its_user(seed, weights, monkeypatch):
    pairs = drawn(seed)
    scorer = ItemItemScorer(pairs, weights(pairs))
    B = scorer.weights if isinstance(scorer.weights, np.ndarray) else scorer.weights.toarray()
    expected = dense(pairs) @ B.astype(np.float64) + scorer._prior
    expected[dense(pairs) > 0] = -np.inf
    users = np.arange(pairs.n_users)
    found = scorer.top(users, 5, pairs)
    for user in users.tolist():
        kept = found.items[user] >= 0
        np.testing.assert_allclose(
            found.scores[user, kept], np.sort(expected[user])[::-1][:5][kept], atol=1e-5
        )
        history = pairs.csr()[[user]].indices.astype(np.int64)
        if len(history):
            again = scorer.top_for_history(history, 5, pairs)
            assert again.items.tolist() == found.items[[user]].tolist()
            np.testing.assert_array_equal(again.scores, found.scores[[user]])
    monkeypatch.setattr(scorers, "_SCORE_BYTES", 4 * 25 * 3)
    assert scorer.top(users, 5, pairs).items.tolist() == found.items.tolist()


def test_ties_candidates_padding_and_users_without_history():
    pairs = Interactions.from_pairs([0, 1, 1, 2], [0, 0, 1, 2], 4, 4)[0]
    B = np.zeros((4, 4), dtype=np.float32)
    B[0, [1, 2]] = 1.0
    scorer = ItemItemScorer(pairs, csr_matrix(B))
    assert scorer.top(np.array([0]), 2).items.tolist() == [[1, 2]], "ties go to the lower id"
    found = scorer.top(np.array([0, 3]), 3, pairs, np.array([0, 2, 3]))
    assert found.items.tolist() == [[2, 3, -1], [0, 2, 3]]
    assert np.isnan(found.scores[0, 2])
    assert scorer.top_for_history(np.array([0]), 1, pairs, filter_seen=False).items[0, 0] == 1
    assert scorer.similar(np.array([0]), 2).items.tolist() == [[1, 2]]


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_a_restored_scorer_ranks_alike(kind):
    pairs = drawn(0)
    weights = ease_weights(pairs, 5.0) if kind == "dense" else ridge_weights(pairs, 5.0, 6)
    scorer = ItemItemScorer(pairs, weights)
    stored = scorer.stored()
    assert stored.needs_interactions
    again = ItemItemScorer.restored(stored.tensors, stored.facts, pairs)
    users = np.arange(pairs.n_users)
    np.testing.assert_array_equal(again.top(users, 5).scores, scorer.top(users, 5).scores)
    with pytest.raises(InputError):
        ItemItemScorer.restored(stored.tensors, stored.facts, None)


SPARSE = {
    "weights.data": torch.ones(2),
    "weights.indices": torch.tensor([1, 0]),
    "weights.indptr": torch.tensor([0, 1, 2]),
}


@pytest.mark.parametrize(
    "change",
    [
        {"weights.data": torch.tensor([1.0, torch.nan])},
        {"weights.data": torch.ones(3)},
        {"weights.indices": torch.tensor([1, 2])},
        {"weights.indices": torch.tensor([-1, 0])},
        {"weights.indices": torch.tensor([0.0, 1.0])},
        {"weights.indptr": torch.tensor([0, 2])},
        {"weights.indptr": torch.tensor([0, 3, 2])},
        {"weights.indptr": torch.tensor([1, 1, 2])},
        {"weights": torch.ones(2, 3)},
        {"weights": torch.full((2, 2), torch.inf)},
    ],
)
def test_damaged_weights_are_refused(change):
    pairs = Interactions.from_pairs([0, 1], [0, 1], 2, 2)[0]
    ItemItemScorer.restored(SPARSE, {}, pairs)
    with pytest.raises(InputError):
        ItemItemScorer.restored({**SPARSE, **change}, {}, pairs)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SparseEASE, {"regularization": 0.0}),
        (SparseEASE, {"neighbours": -1}),
        (SparseEASE, {"kept": -1}),
        (ItemKNN, {"neighbours": 0}),
        (ItemKNN, {"damping": -1.0}),
        (GraphFilter, {"power": -1.0}),
        (GraphFilter, {"neighbours": -1}),
    ],
)
def test_settings_out_of_range_are_refused(kind, settings):
    with pytest.raises(InputError):
        kind(drawn(0), **settings)


def test_exact_ease_of_a_large_catalogue_is_refused(monkeypatch):
    assert isinstance(SparseEASE(drawn(0), neighbours=0).weights, np.ndarray)
    monkeypatch.setattr(neighbours, "MOST_EXACT", 20)
    with pytest.raises(InputError, match="neighbours"):
        SparseEASE(drawn(0), neighbours=0)


@pytest.mark.parametrize("kind", [SparseEASE, ItemKNN, GraphFilter])
def test_models_fit_serve_and_say_that_they_have_no_embeddings(kind, tmp_path):
    model = kind().fit(checkerboard())
    assert model.evaluate((10,))["ndcg@10"] > 0.5
    model.save(tmp_path / "model")
    again = robustcf.open(tmp_path / "model")
    users = np.arange(model.n_users)
    np.testing.assert_array_equal(
        again.scorer.top(users, 5).items, model.scorer.top(users, 5).items
    )
    with pytest.raises(InputError, match="embeddings"):
        robustcf.measure(model)
    with pytest.raises(InputError, match="gauge"):
        robustcf.train(checkerboard(), kind.name, gauge="balanced")
    with pytest.raises(InputError, match="embeddings"):
        kind(checkerboard().train).factors()


def test_a_poisoned_item_item_model_is_judged_for_its_genuine_users():
    split, config = checkerboard(), TrainConfig.of(model="item-knn")
    target = np.array([0])
    fakes = [np.array([0, item]) for item in range(1, 30, 2)]  # the other colour
    clean, attacked = (retrained(split, config, own, target, ks=(10,)) for own in ([], fakes))
    assert attacked.exposure["hit_rate@10"] > clean.exposure["hit_rate@10"]
    assert attacked.quality["ndcg@10"] <= clean.quality["ndcg@10"]
