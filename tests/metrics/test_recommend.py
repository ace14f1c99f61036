"""Recommendations to known users, against a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.factors import Factors
from robustcf.metrics.recommend import recommend_to
from tests.metrics.test_evaluate import random_split, slow_top


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_items_that_a_user_does_not_have_with_their_scores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    split = random_split(rng, 12, 9)
    factors = Factors(*(torch.tensor(rng.normal(size=(n, 3))) for n in (12, 9)))
    users = [7, 0, 3]
    found = recommend_to(factors, split.train_full, users, 5)
    expected = slow_top(factors, users, 5, split.train_full)
    for user, (items, scores), top in zip(users, found, expected, strict=True):
        assert items == [item for item in top.tolist() if item >= 0]
        assert not set(items) & set(split.train_full.items_of(user).tolist())
        for item, score in zip(items, scores, strict=True):
            assert score == pytest.approx(float(factors.users[user] @ factors.items[item]))
