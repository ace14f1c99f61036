"""Recommendations to known users of a split, against a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.factors import Factors
from robustcf.recommender import Recommender
from tests.metrics.test_evaluate import random_split, slow_top


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_items_that_a_user_does_not_have_with_their_scores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    split = random_split(rng, 12, 9)
    factors = Factors(*(torch.tensor(rng.normal(size=(n, 3))) for n in (12, 9)))
    model = Recommender(*factors, split, part="valid")
    users = [7, 0, 3]
    found = model.recommend(users, k=5, as_ids=True)
    # Train and valid are left out, whatever it is judged by.
    expected = slow_top(factors, users, 5, split.train_full)
    for user, items, scores, top in zip(users, *found, expected, strict=True):
        kept = items[items >= 0].tolist()
        assert kept == [item for item in top.tolist() if item >= 0]
        assert not set(kept) & set(split.train_full.items_of(user).tolist())
        own = [float(factors.users[user] @ factors.items[item]) for item in kept]
        assert scores[: len(kept)].tolist() == pytest.approx(own)
        assert np.isnan(scores[len(kept) :]).all()
