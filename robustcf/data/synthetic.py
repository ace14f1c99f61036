"""Generated sets: the embedded demo set, and a set with a known answer."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from robustcf._randomness import stream
from robustcf.data.holdout import split_pairs
from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.errors import DataError

_DEMO_USERS, _DEMO_ITEMS, _DEMO_PAIRS = 2_000, 1_500, 100_000
_DEMO_WORLD_SEED = 2026  # the seed of the caller is that of the split


def demo(seed: int = 0) -> Split:
    """Return the embedded demo set: SYNTHETIC, 2,000 users x 1,500 items, 100,000 pairs.

    It resembles a film catalogue: items have a Zipf-like popularity and a few of 12 genres, users
    like a few genres and have log-normal numbers of items, 10 at least. Items are drawn without
    replacement in proportion to ``exp(popularity + taste)``, and one in ten by popularity alone.

    The seed is that of the split (10 % of each user's items to test, then 10 % to valid); the
    interactions never change. Cost: about a second the first time.

    Example:
        >>> demo()
        Split('demo', 2,000 users x 1,500 items, train 80,846, valid 9,067, test 10,087)
    """
    pairs = _demo_pairs()
    return split_pairs("demo", pairs, seed, notes=("synthetic: generated, not observed behaviour",))


@cache
def _demo_pairs() -> Interactions:
    rng = stream(_DEMO_WORLD_SEED, "demo")
    n_genres = 12
    popularity = -0.75 * np.log1p(np.arange(_DEMO_ITEMS) / 12.0)
    genres_of_item = _memberships(rng, _DEMO_ITEMS, n_genres, concentration=0.12)
    tastes_of_user = _memberships(rng, _DEMO_USERS, n_genres, concentration=0.18)
    strength = np.exp(0.35 * rng.standard_normal(_DEMO_USERS))

    # Summed genre by genre, not by a BLAS product, whose rounding differs between machines.
    affinity = np.zeros((_DEMO_USERS, _DEMO_ITEMS))
    for genre in range(n_genres):
        affinity += np.outer(tastes_of_user[:, genre], genres_of_item[:, genre])
    logits = popularity + 5.0 * strength[:, None] * affinity

    degrees = _degrees(rng)
    noise = rng.binomial(degrees, 0.1)
    chosen = _sample_without_replacement(rng, logits, degrees - noise)
    by_popularity = np.where(chosen, -np.inf, popularity)
    chosen |= _sample_without_replacement(rng, by_popularity, noise)

    # Shuffled, so that item ids do not reveal popularity.
    users, items = np.nonzero(chosen)
    return Interactions(users, rng.permutation(_DEMO_ITEMS)[items], _DEMO_USERS, _DEMO_ITEMS)


def _memberships(
    rng: np.random.Generator, rows: int, columns: int, concentration: float
) -> npt.NDArray[np.float64]:
    """Return rows of a sparse Dirichlet, scaled to unit length, with few large entries."""
    weights = rng.standard_gamma(concentration, size=(rows, columns)) + 1e-12
    lengths: npt.NDArray[np.float64] = np.sqrt((weights**2).sum(axis=1, keepdims=True))
    return weights / lengths


def _degrees(rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return log-normal counts between 10 and 400 that add up to the number of pairs."""
    raw = np.exp(0.75 * rng.standard_normal(_DEMO_USERS))
    degrees = np.clip(np.floor(raw / raw.mean() * _DEMO_PAIRS / _DEMO_USERS), 10, 400)
    counts: npt.NDArray[np.int64] = degrees.astype(np.int64)
    # Spread the remainder of rounding and clipping over users within the limits.
    step = 1 if counts.sum() < _DEMO_PAIRS else -1
    room = np.flatnonzero((counts > 10) & (counts < 400))
    missing = abs(int(_DEMO_PAIRS - counts.sum()))
    np.add.at(counts, np.resize(rng.permutation(room), missing), step)
    return counts


def _sample_without_replacement(
    rng: np.random.Generator, logits: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Draw ``counts`` columns of each row with probability ~ exp(logits): Gumbel top-k."""
    keys = logits + rng.gumbel(size=logits.shape)
    order = np.argsort(-keys, axis=1)
    chosen = np.zeros(logits.shape, dtype=bool)
    np.put_along_axis(chosen, order, np.arange(logits.shape[1]) < counts[:, None], axis=1)
    return chosen


def checkerboard(n_users: int = 20, n_items: int = 30, seed: int = 0) -> Split:
    """Return a set with a known answer: user u has all items of u's parity.

    A model that learns it ranks the test items of every user first.

    Example:
        >>> board = checkerboard(4, 8)
        >>> bool(((board.test.users + board.test.items) % 2 == 0).all())
        True
    """
    if n_users < 2 or n_items < 6:
        got = f"{n_users} users and {n_items} items"
        raise DataError(f"a checkerboard needs at least 2 users and 6 items, got {got}")
    users, items = np.nonzero((np.arange(n_users)[:, None] + np.arange(n_items)) % 2 == 0)
    pairs = Interactions(users, items, n_users, n_items)
    return split_pairs("checkerboard", pairs, seed, test_ratio=0.2, valid_ratio=0.2)
