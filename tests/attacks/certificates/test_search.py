"""The search for radii: items that nearly coincide, against long doubles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.attacks.certificates import Budgets, plain_radius, tight_radius
from robustcf.attacks.certificates.search import Search
from robustcf.factors import Factors

UNITS = {"users": (1.0, 0.0), "items": (0.0, 1.0), "both": (1.0, 1.0)}
DIM = 64


def true_radius(bound: str, u, i, j, a: float, b: float, moving: slice) -> float:
    """By the formulas of the theorem and of the plain bound, in long doubles."""
    u, i, j = (np.asarray(x, dtype=np.longdouble) for x in (u, i, j))
    d = i - j
    gap, n = u @ d, np.sqrt(u[moving] @ u[moving])
    D = np.sqrt(d[moving] @ d[moving])
    if gap <= 0:
        return 0.0
    if bound == "tight":
        turned = np.sqrt(max((n * D) ** 2 - gap**2, np.longdouble(0)))
        return float(gap / np.sqrt((a * D) ** 2 + 4 * a * b * turned + (2 * b * n) ** 2))
    linear = a * D + 2 * b * n
    return float(2 * gap / (linear + np.sqrt(linear**2 + 8 * a * b * gap)))


def searched(bound: str, U, V, a: float, b: float, fixed: tuple[int, ...] = ()) -> np.ndarray:
    """The radii of item 0 of every user, against all others."""
    largest = float(np.linalg.norm(V, axis=1).max()) * (1 + 1e-9)
    budgets = Budgets(a, b, V.shape[1], largest)
    radius = {"tight": tight_radius, "plain": plain_radius}[bound]
    users = np.arange(len(U))
    factors = Factors(torch.from_numpy(U), torch.from_numpy(V))
    search = Search(factors, budgets, radius, count=len(V) - 1, fixed=fixed)
    return search.radii(users, users, np.zeros_like(users), None)


@pytest.mark.parametrize("side", UNITS)
@pytest.mark.parametrize("bound", ["tight", "plain"])
@pytest.mark.parametrize("apart", [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0])
def test_radii_are_exact_up_to_the_rounding_of_the_ranking(side, bound, apart):
    a, b = UNITS[side]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        U, centre = rng.normal(size=(3, DIM)), rng.normal(size=DIM)
        V = centre + apart * rng.normal(size=(5, DIM))
        found = searched(bound, U, V, a, b)
        for u, radii in zip(U, found, strict=True):
            wanted = sorted(true_radius(bound, u, V[0], v, a, b, slice(None)) for v in V[1:])
            assert (radii <= wanted).all(), "sound"
            # Scores round by about 1e-14 of the items' length, and gaps of nothing else count.
            gaps = np.abs((V[0] - V[1:]) @ u).min()
            lost = 1e-6 + 2e-13 * np.linalg.norm(u) * np.linalg.norm(V, axis=1).max() / gaps
            for got, exact in zip(radii, wanted, strict=True):
                assert got >= exact * (1 - lost)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("bound", "fixed", "lost"), [("tight", (), 0.01), ("plain", (0,), 1e-4)])
def test_close_items_next_to_a_long_one_or_apart_in_fixed_columns(seed, bound, fixed, lost):
    """Only users may move, so that distances decide; one item is 100 times longer."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(2, DIM)), rng.normal(size=DIM) + 1e-6 * rng.normal(size=(4, DIM))
    if fixed:
        V[:, 0] = rng.normal(size=4)
    else:
        V[3] = 100 * rng.normal(size=DIM)
    moving = slice(len(fixed), None)
    for u, radii in zip(U, searched(bound, U, V, 1.0, 0.0, fixed), strict=True):
        wanted = sorted(true_radius(bound, u, V[0], v, 1.0, 0.0, moving) for v in V[1:])
        assert (radii <= wanted).all()
        assert (radii >= np.array(wanted) * (1 - lost) - 1e-15).all()


def test_twins_are_never_told_apart():
    U, V = np.ones((1, 4)), np.ones((3, 4))
    assert not searched("tight", U, V, 1.0, 1.0).any()
