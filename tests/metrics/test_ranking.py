"""Metrics against trec_eval, user by user, and against answers known by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.errors import InputError
from robustcf.metrics import ranking
from robustcf.metrics.evaluate import PER_USER

KS = (1, 2, 3, 5, 10, 20)


def trec(top: np.ndarray, relevant: list[set[int]], k: int) -> dict[str, np.ndarray]:
    """The same numbers from trec_eval; ranks are turned into falling scores."""
    qrels = {str(u): {str(i): 1 for i in items} for u, items in enumerate(relevant)}
    runs = {
        str(u): {str(i): float(len(row) - rank) for rank, i in enumerate(row) if i >= 0}
        for u, row in enumerate(top)
    }
    # trec_eval needs a document per run: an irrelevant one stands in for an empty list.
    runs = {u: run or {"nothing": 1.0} for u, run in runs.items()}
    measures = {f"ndcg_cut.{k}", f"recall.{k}", f"P.{k}", f"map_cut.{k}", f"success.{k}"}
    found = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(runs)
    # trec_eval has no cutoff for the reciprocal rank: cut the run instead.
    cut = {u: dict(sorted(run.items(), key=lambda e: -e[1])[:k]) for u, run in runs.items()}
    ranks = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(cut)
    users = [str(u) for u in range(len(relevant))]
    names = {"ndcg": "ndcg_cut", "recall": "recall", "precision": "P", "hit_rate": "success"}
    names["average_precision"] = "map_cut"
    values = {
        ours: np.array([found[u][f"{theirs}_{k}"] for u in users]) for ours, theirs in names.items()
    }
    values["reciprocal_rank"] = np.array([ranks[u]["recip_rank"] for u in users])
    return values


def check(top: np.ndarray, relevant: list[set[int]], ks: tuple[int, ...] = KS) -> None:
    hits = np.array([[i in items for i in row] for row, items in zip(top, relevant, strict=True)])
    hits = hits.reshape(top.shape)
    counts = np.array([len(items) for items in relevant])
    for k in ks:
        for name, expected in trec(top, relevant, k).items():
            got = getattr(ranking, name)(hits, counts, k)
            np.testing.assert_allclose(got, expected, atol=1e-12, err_msg=f"{name}@{k}")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agrees_with_trec_eval_on_random_lists(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_users, n_items = 60, 40
    top = np.array([rng.permutation(n_items)[:20] for _ in range(n_users)])
    relevant = [
        set(rng.choice(n_items, size=rng.integers(1, n_items), replace=False).tolist())
        for _ in range(n_users)
    ]
    check(top, relevant)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_agrees_with_trec_eval_on_any_list(data: st.DataObject) -> None:
    n_items = data.draw(st.integers(1, 8))
    length = data.draw(st.integers(1, 10))
    rows, relevant = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        order = data.draw(st.permutations(range(n_items)))[: data.draw(st.integers(0, length))]
        rows.append(list(order)[:length] + [-1] * (length - len(order[:length])))
        relevant.append(data.draw(st.sets(st.integers(0, n_items - 1), min_size=1)))
    check(np.array(rows), relevant, ks=(1, 2, length, length + 3))


def test_coverage_counts_distinct_items_of_all_lists() -> None:
    top = np.array([[0, 1, -1], [1, 2, -1]])
    assert ranking.coverage(top, 10, 2) == 0.3
    assert ranking.coverage(top, 10, 1) == 0.2
    assert ranking.coverage(top, 10, 50) == 0.3
    assert ranking.coverage(np.full((3, 2), -1), 10, 2) == 0.0
    assert ranking.coverage(np.empty((0, 0), dtype=int), 0, 2) == 0.0


def test_no_users_and_no_ranks() -> None:
    none = np.zeros((0, 5), dtype=bool)
    for name in ("ndcg", "recall", "precision", "hit_rate", "average_precision"):
        assert getattr(ranking, name)(none, np.zeros(0, dtype=int), 3).shape == (0,)
    empty = np.zeros((2, 0), dtype=bool)
    for name in ("ndcg", "recall", "reciprocal_rank", "precision", "average_precision"):
        assert getattr(ranking, name)(empty, np.array([1, 2]), 3).tolist() == [0.0, 0.0]


MISS, ONE = np.zeros((1, 2), bool), np.array([1])


@pytest.mark.parametrize(
    ("metric", "arguments", "message"),
    [
        (ranking.ndcg, (MISS, ONE, 0), "k must be an integer of at least 1, got 0"),
        (ranking.ndcg, (MISS, ONE, True), "k must be an integer"),
        (ranking.ndcg, (MISS, ONE, 1.5), "k must be an integer"),
        (ranking.ndcg, (MISS[0], ONE, 1), "hits must be a boolean array"),
        (ranking.ndcg, (MISS.astype(float), ONE, 1), "hits must be a boolean array"),
        (ranking.ndcg, (MISS, np.array([1, 1]), 1), "one count per user"),
        (ranking.ndcg, (MISS, np.array([0]), 1), "leave such users out"),
        (ranking.coverage, (np.array([[0, 9]]), 3, 1), "below n_items = 3"),
        (ranking.coverage, (np.array([[0, -2]]), 3, 1), "below n_items = 3"),
        (ranking.coverage, (np.array([0, 1]), 3, 1), "users x ranks"),
        (ranking.coverage, (np.array([[0, 1]]), 3, 0), "at least 1"),
    ],
)
def test_bad_input(metric: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        metric(*arguments)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=3))
def test_worst_hits_are_the_worst_of_all_rankings_that_the_counts_allow(counts):
    """Enumerate rankings as what is ahead of each relevant item, ordered: m_1 <= m_2 <= ..."""
    rows = np.repeat(np.arange(len(counts)), [len(row) for row in counts])
    hits = ranking.worst_hits(np.concatenate(counts), rows, len(counts), 5)
    for row, limits in zip(hits, counts, strict=True):
        worst = [min(m, 5) + r for r, m in enumerate(sorted(limits))]
        assert np.flatnonzero(row).tolist() == [place for place in worst if place < 5]
        for seed in range(3):
            rng = np.random.default_rng(seed)
            ahead = np.sort([rng.integers(0, limit + 1) for limit in limits])
            other = np.zeros((1, 12), dtype=bool)
            other[0, ahead + np.arange(len(ahead))] = True
            count = np.array([len(limits)])
            for function in PER_USER.values():
                assert function(other, count, 5)[0] >= function(row[None], count, 5)[0] - 1e-12
