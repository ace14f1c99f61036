"""Ensembles against sums worked out by hand; saved ones, new users, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import robustcf
from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.ensemble import Ensemble, EnsembleScorer
from robustcf.models.factorized import FactorScorer
from robustcf.models.item_item import ItemItemScorer
from robustcf.models.neighbours import cosine_weights
from tests.models.test_item_item import dense, drawn

SEEDS = (0, 1, 2)


def members(seed):
    pairs, rng = drawn(seed), np.random.default_rng(seed)
    sizes = (pairs.n_users, pairs.n_items)
    factors = Factors(*(torch.tensor(rng.normal(size=(n, 4)), dtype=torch.float32) for n in sizes))
    return pairs, ItemItemScorer(pairs, cosine_weights(pairs, 5)), FactorScorer(factors)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_scores_are_a_weighted_sum_of_scaled_scores(seed, share):
    pairs, first, second = members(seed)
    one = dense(pairs) @ first.weights.toarray().astype(np.float64) + first._prior
    other = (second.factors.users @ second.factors.items.T).double().numpy()
    scales = [float(np.sqrt(each.var(axis=1).mean())) for each in (one, other)]
    expected = (1 - share) * one / scales[0] + share * other / scales[1]
    expected[dense(pairs) > 0] = -np.inf
    scorer, users = EnsembleScorer([first, second], share), np.arange(pairs.n_users)
    found = scorer.top(users, 4, pairs)
    wanted = np.sort(expected, axis=1)[:, ::-1][:, :4]
    np.testing.assert_allclose(found.scores, np.where(wanted > -1e9, wanted, np.nan), atol=1e-4)
    alone = [scorer.top(users[[n]], 4, pairs) for n in users]
    np.testing.assert_array_equal(np.concatenate([own.items for own in alone]), found.items)
    for other, rank in zip((0.3, share), scorer.rankers([0.3, share]), strict=True):
        again = EnsembleScorer([first, second], other).rank(users, 4, pairs)
        np.testing.assert_array_equal(rank(users, 4, pairs), again)
    some = np.array([1, 4, 9])
    chosen = scorer.top(users, 2, None, some).items
    full = scorer.top(users, pairs.n_items).items
    assert chosen.tolist() == [[i for i in row if i in some][:2] for row in full.tolist()]


def test_a_trained_one_serves_new_users_and_is_saved(tmp_path):
    settings = {"members": [{"model": "item-knn"}, {"model": "als", "factors": 4}], "share": 0.4}
    model = Ensemble(**settings).fit(checkerboard())
    assert model.evaluate((5,))["ndcg@5"] > 0.9
    history = model.split.fit_pairs(model.fit_on).csr()[[0]].indices.tolist()
    stored, new = model.recommend(0, k=3), model.recommend(items=history, k=3)
    assert stored["item"].tolist() == new["item"].tolist(), "ALS folds in as it was trained"
    model.save(tmp_path / "both")
    again = robustcf.open(tmp_path / "both")
    for own in (again.recommend(0, k=3), again.recommend(items=history, k=3)):
        assert own["item"].tolist() == stored["item"].tolist()
    with pytest.raises(InputError, match="embeddings"):
        robustcf.measure(again)
    with pytest.raises(InputError, match="embeddings"):
        Ensemble(checkerboard().train, **settings).factors()


@pytest.mark.parametrize(
    "settings",
    [
        {"members": [{"model": "als"}]},
        {"members": [{"model": "als"}, {"model": "ensemble"}]},
        {"members": [{"model": "als"}, 3]},
        {"members": "als"},
        {"share": 1.5},
        {"share": -0.1},
    ],
)
def test_refuses_other_members_and_shares(settings):
    with pytest.raises(InputError, match="member|share"):
        Ensemble(checkerboard().train, **settings)


def test_refuses_members_of_other_data_and_damaged_files():
    pairs, first, second = members(0)
    fewer = FactorScorer(Factors(second.factors.users[:3], second.factors.items))
    with pytest.raises(InputError, match="same data"):
        EnsembleScorer([first, fewer], 0.5)
    stored = EnsembleScorer([first, second], 0.5).stored()
    EnsembleScorer.restored(stored.tensors, stored.facts, pairs)
    for change in (
        {"share": 2.0},
        {"scales": [1.0, 0.0]},
        {"scales": [1.0]},
        {"members": stored.facts["members"][:1]},
        {"members": [{"kind": "vote", "facts": {}}] * 2},
        {"members": 3},
    ):
        with pytest.raises(InputError):
            EnsembleScorer.restored(stored.tensors, {**stored.facts, **change}, pairs)
