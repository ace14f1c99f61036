"""UltraGCN's weights: betas by their formula, the item graph by its definition."""

from __future__ import annotations

import numpy as np
import pytest

from robustcf.objectives.weights import item_beta, item_graph, user_beta
from tests.objectives.naive import official_omega, pairs_of

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_item_graph_is_the_published_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustcf.objectives.weights._BLOCK_PAIRS", 30)  # several blocks
    train = pairs_of(np.random.default_rng(seed), 30, 20)
    graph = item_graph(train, 4)
    for i, expected in enumerate(official_omega(train, 4)):
        row = graph[i]
        got = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
        assert got == pytest.approx(dict(expected))


def test_betas_of_degree_zero_are_finite() -> None:
    assert user_beta(np.array([0, 1])).tolist() == [0.0, pytest.approx(2**0.5)]
    assert item_beta(np.array([0, 1])).tolist() == [1.0, pytest.approx(2**-0.5)]
