"""The generated sets: fixed for ever, and shaped as documented."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from robustcf.data import checkerboard, demo, load
from robustcf.errors import DataError


def test_the_demo_set_never_changes():
    # Pinned: figures in the README are figures on these very pairs.
    assert demo().fingerprint == "078fb882715cf33e6b7dc4e925577598889e8f6e1f05a65fa213dffff6e8bd3f"


def test_the_demo_set_is_as_documented():
    split = load("demo")
    everything = split.train_full.union(split.test)
    assert (split.n_users, split.n_items, len(everything)) == (2000, 1500, 100_000)
    assert "synthetic" in split.notes[0]
    assert everything.user_degrees.min() >= 10
    assert everything.user_degrees.max() <= 400
    popularity = np.sort(everything.item_degrees)[::-1]
    assert popularity[:150].sum() > 0.25 * len(everything), "a tenth of the items, a quarter of all"
    # Ids must not give popularity away.
    assert abs(np.corrcoef(np.arange(1500), everything.item_degrees)[0, 1]) < 0.1


def test_the_seed_changes_the_split_and_nothing_else():
    one, two = demo(1), demo(2)
    assert one.fingerprint != two.fingerprint
    assert one.train_full.union(one.test) == two.train_full.union(two.test)


def recall_at_20(split, scores) -> float:
    scores = scores.copy()
    scores[split.train.users, split.train.items] = -np.inf
    top = np.argsort(-scores, axis=1)[:, :20]
    hits = np.take_along_axis(split.test.csr().toarray(), top, axis=1).sum(1)
    return float((hits / np.maximum(split.test.user_degrees, 1)).mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_there_is_something_to_learn_beyond_popularity(seed):
    split = demo(seed)
    dense = split.train.csr().toarray()
    scale = np.sqrt(np.maximum(dense.sum(0), 1))
    *_, vt = svds(csr_matrix(dense / scale), k=16, random_state=0)
    taste = (dense / scale) @ vt.T @ (vt * scale)
    popular = np.broadcast_to(dense.sum(0), dense.shape)
    assert recall_at_20(split, taste) > 2 * recall_at_20(split, popular)


@pytest.mark.parametrize("shape", [(2, 6), (20, 30), (7, 11)])
def test_checkerboard_has_its_known_answer(shape):
    board = checkerboard(*shape)
    n_users, n_items = shape
    everything = board.train_full.union(board.test).csr().toarray()
    expected = (np.arange(n_users)[:, None] + np.arange(n_items)) % 2 == 0
    np.testing.assert_array_equal(everything, expected)
    assert (board.test.user_degrees >= 1).all()


def test_a_board_too_small_is_refused():
    with pytest.raises(DataError, match="users"):
        checkerboard(1, 6)
