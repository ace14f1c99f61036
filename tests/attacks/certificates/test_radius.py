"""The radius of a pair, against brute force, exact arithmetic, and the attack that attains it."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from robustcf.attacks.certificates import Budgets, plain_radius, tight_radius, worst_case

UNITS = st.sampled_from([(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.5, 2.0), (3.0, 0.25)])
NUMBERS = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-4, 4, allow_subnormal=False).map(lambda x: round(x, 4)),
)


@st.composite
def pairs(draw, dims=(2, 5)):
    """(u, v_i, v_j) with i clearly ahead."""
    dim = draw(st.integers(*dims))
    vectors = [np.array(draw(st.lists(NUMBERS, min_size=dim, max_size=dim))) for _ in range(3)]
    u, i, j = vectors
    gap = u @ (i - j)
    assume(abs(gap) > 1e-3)
    return (u, i, j) if gap > 0 else (u, j, i)


def radius(function, u, i, j, a, b):
    largest = max(np.linalg.norm(i), np.linalg.norm(j))
    budgets = Budgets(a, b, len(u), float(largest))
    numbers = (u @ i - u @ j, np.linalg.norm(u), np.linalg.norm(i - j))
    return float(function(*(torch.tensor(x, dtype=torch.float64) for x in numbers), budgets))


def smallest_gap(u, d, user_room, item_room, points=1000):
    """Brute force in the plane of u and d: the border of the ball, where a concave minimum is."""
    first = u / np.linalg.norm(u)
    second = d - (d @ first) * first
    if np.linalg.norm(second) < 1e-9:
        second = np.eye(len(u))[np.abs(first).argmin()]
        second = second - (second @ first) * first
    second = second / np.linalg.norm(second)
    angles = np.linspace(0, 2 * np.pi, points)[:, None]
    X = u + user_room * (np.cos(angles) * first + np.sin(angles) * second)
    return (X @ d - 2 * item_room * np.linalg.norm(X, axis=1)).min()


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(pairs(), UNITS)
def test_the_radius_is_where_brute_force_first_closes_the_gap(pair, units):
    u, i, j = pair
    (a, b), d = units, i - j
    r = radius(tight_radius, u, i, j, a, b)
    below, above = 0.999 * r, 1.001 * r
    assert smallest_gap(u, d, a * below, b * below) > 0
    # The grid misses the minimum by its curvature: at most half of it times the angle squared.
    missed = (a * above) * (np.linalg.norm(d) + 2 * b * above) * (2 * np.pi / 1000) ** 2
    assert smallest_gap(u, d, a * above, b * above) <= missed


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(pairs(), UNITS)
def test_the_radius_is_attained_by_an_attack_within_the_budget(pair, units):
    u, i, j = pair
    a, b = units
    size = radius(tight_radius, u, i, j, a, b) * (1 + 1e-6)
    x = worst_case(u, i, j, a * size)
    assert np.linalg.norm(x - u) <= a * size * (1 + 1e-9)
    step = b * size * x / max(np.linalg.norm(x), 1e-300)
    assert x @ ((i - step) - (j + step)) <= 1e-9 * np.linalg.norm(u) * np.linalg.norm(i - j)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(pairs(), UNITS, st.integers(0, 2**32 - 1))
def test_nothing_within_the_radius_closes_the_gap(pair, units, seed):
    u, i, j = pair
    (a, b), rng = units, np.random.default_rng(seed)
    size = radius(tight_radius, u, i, j, a, b) * (1 - 1e-9)
    for room in (size, 0.7 * size):
        moves = rng.normal(size=(3, 20, len(u)))
        moves /= np.linalg.norm(moves, axis=2, keepdims=True)
        X = np.vstack([u + a * room * moves[0], worst_case(u, i, j, a * room)[None]])
        free = np.einsum("nd,nd->n", X[:20], (i + b * room * moves[1]) - (j + b * room * moves[2]))
        assert free.min() > 0
        assert (X @ (i - j) - 2 * b * room * np.linalg.norm(X, axis=1)).min() > 0


@settings(max_examples=200, deadline=None)
@given(pairs(), UNITS)
def test_the_plain_radius_solves_its_equation_and_is_never_above_the_tight_one(pair, units):
    u, i, j = pair
    a, b = units
    gap, n, D = u @ (i - j), np.linalg.norm(u), np.linalg.norm(i - j)

    def left_over(e):
        return gap - e * (a * D + 2 * b * n) - 2 * a * b * e**2

    plain = radius(plain_radius, u, i, j, a, b)
    assert plain == pytest.approx(brentq(left_over, 0, 1 + gap / (a * D + 2 * b * n)), rel=1e-9)
    assert plain <= radius(tight_radius, u, i, j, a, b)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(pairs(dims=(1, 1)), UNITS)
def test_in_one_dimension_the_radius_is_a_lower_bound(pair, units):
    u, i, j = pair
    a, b = units
    size = radius(tight_radius, u, i, j, a, b) * (1 - 1e-9)
    for x in (u + a * size, u - a * size):
        assert x @ (i - j) - 2 * b * size * np.linalg.norm(x) > 0


def test_known_answers():
    u, i, j = np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert radius(tight_radius, u, i, j, 1, 0) == pytest.approx(1 / math.sqrt(2))
    assert radius(tight_radius, u, i, j, 0, 1) == pytest.approx(1 / 2)
    assert radius(tight_radius, u, i, j, 1, 1) == pytest.approx(1 / math.sqrt(10))
    assert radius(plain_radius, u, i, j, 0, 1) == pytest.approx(1 / 2)


@pytest.mark.parametrize("function", [tight_radius, plain_radius])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_what_is_behind_level_or_undefined_is_certified_for_nothing(function, a, b):
    budgets = Budgets(a, b, 2, 1.0)
    gaps = torch.tensor([-1.0, 0.0, 1e-18, float("nan"), 0.0], dtype=torch.float64)
    norms = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    distances = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert function(gaps, norms, distances, budgets).tolist() == [0.0] * 5
    if a == b == 0:  # nothing may move: what is ahead stays there
        ahead = torch.tensor([0.5], dtype=torch.float64)
        assert function(ahead, norms[:1], norms[:1], budgets).item() == math.inf


SINGLE = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)


def exact_radius(u, i, j, a, b) -> Decimal:
    """The formula of the theorem on the very float32 numbers, with 80 digits."""
    u, i, j = ([Fraction(float(x)) for x in vector] for vector in (u, i, j))
    gap = sum(x * (y - z) for x, y, z in zip(u, i, j, strict=True))
    n2, d2 = sum(x * x for x in u), sum((y - z) ** 2 for y, z in zip(i, j, strict=True))
    if gap <= 0:
        return Decimal(0)
    with localcontext() as context:
        context.prec = 80
        decimal = [Decimal(x.numerator) / Decimal(x.denominator) for x in (gap, n2, d2)]
        gap, n2, d2 = decimal
        turned = max(n2 * d2 - gap * gap, Decimal(0)).sqrt()
        a, b = Decimal(a), Decimal(b)
        return gap / (a * a * d2 + 4 * a * b * turned + 4 * b * b * n2).sqrt()


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda dim: st.tuples(*[st.lists(SINGLE, min_size=dim, max_size=dim)] * 3)
    ),
    st.floats(-1e-6, 1e-6),
    UNITS,
)
def test_rounding_never_lengthens_a_radius(vectors, nearly, units):
    u, i, j = (np.array(v, dtype=np.float32) for v in vectors)
    a, b = units
    # Also items that are nearly alike: their gap is all rounding error.
    for rival in (j, np.float32(i * np.float32(1 + nearly))):
        computed = radius(tight_radius, u.astype(float), i.astype(float), rival.astype(float), a, b)
        assert Decimal(computed) <= exact_radius(u, i, rival, a, b)


def test_a_gap_that_only_rounding_makes_is_worth_nothing():
    # In floating point the first sum loses its small term and i seems ahead; in truth it is behind.
    u = np.array([1e8, 1.0, -1e8])
    i, j = np.array([1.0, 0.0, 1.0]), np.array([1.0, 1e-9, 1.0])
    seems = {float(np.sum(u * i) - np.sum(u * j)), float((u * i).sum() - (u[::-1] * j[::-1]).sum())}
    assert exact_radius(u, i, j, 1, 1) == 0
    budgets = Budgets(1.0, 1.0, 3, 1.5)
    for gap in (*seems, 1e-9):
        tensors = (gap, np.linalg.norm(u), np.linalg.norm(i - j))
        got = tight_radius(*(torch.tensor(x, dtype=torch.float64) for x in tensors), budgets)
        assert got.item() == 0


def test_the_worst_case_of_a_user_who_cannot_move_or_is_zero():
    assert worst_case([0.0, 0.0], [1.0, 0.0], [0.0, 1.0], 0.5).tolist() == [0.0, 0.0]
    assert worst_case([3.0, 4.0], [1.0, 0.0], [0.0, 1.0], 0.0).tolist() == [3.0, 4.0]
    assert np.linalg.norm(worst_case([2.0], [1.0], [0.0], 0.5)) < 2.0
