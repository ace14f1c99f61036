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

# How far the user and the two items may move at size 1.
ROOMS = st.tuples(*[st.sampled_from([0.0, 0.25, 1.0, 3.0])] * 3).filter(any)
NUMBERS = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-4, 4, allow_subnormal=False).map(lambda x: round(x, 4)),
)
SINGLE = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)


@st.composite
def pairs(draw, dims=(2, 5)):
    """(u, v_i, v_j) with i clearly ahead."""
    dim = draw(st.integers(*dims))
    u, i, j = (np.array(draw(st.lists(NUMBERS, min_size=dim, max_size=dim))) for _ in range(3))
    gap = u @ (i - j)
    assume(abs(gap) > 1e-3)
    return (u, i, j) if gap > 0 else (u, j, i)


def computed(function, budgets, *numbers):
    """The radius from gap, ||u||, ||v_i - v_j||, a and s."""
    gap, n, D, *moves = (torch.as_tensor(x, dtype=torch.float64) for x in numbers)
    return function(gap, n, D, budgets, tuple(moves))


def radius(function, u, i, j, a, s):
    budgets = Budgets(1.0, 1.0, len(u), float(max(np.linalg.norm(i), np.linalg.norm(j))))
    lengths = np.linalg.norm(u), np.linalg.norm(i - j)
    return float(computed(function, budgets, u @ i - u @ j, *lengths, a, s))


def smallest_gap(u, d, user_room, items_room, points=1000):
    """Brute force in the plane of u and d: the border of the ball, where a concave minimum is."""
    n = np.linalg.norm(u)
    first = u / n if n > 0 else np.eye(len(u))[0]
    second = d - (d @ first) * first
    if np.linalg.norm(second) < 1e-9:
        second = np.eye(len(u))[np.abs(first).argmin()]
        second = second - (second @ first) * first
    second = second / np.linalg.norm(second)
    angles = np.linspace(0, 2 * np.pi, points)[:, None]
    X = u + user_room * (np.cos(angles) * first + np.sin(angles) * second)
    return (X @ d - items_room * np.linalg.norm(X, axis=1)).min()


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(pairs(), ROOMS)
def test_the_radius_is_where_brute_force_first_closes_the_gap(pair, rooms):
    u, i, j = pair
    a, s, d = rooms[0], rooms[1] + rooms[2], i - j
    r = radius(tight_radius, u, i, j, a, s)
    below, above = 0.999 * r, 1.001 * r
    assert smallest_gap(u, d, a * below, s * below) > 0
    # The grid misses the minimum by its curvature: at most half of it times the angle squared.
    missed = (a * above) * (np.linalg.norm(d) + s * above) * (2 * np.pi / 1000) ** 2
    assert smallest_gap(u, d, a * above, s * above) <= missed


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(pairs(), ROOMS)
def test_the_radius_is_attained_by_moving_three_rows(pair, rooms):
    u, i, j = pair
    a, b, c = rooms
    size = radius(tight_radius, u, i, j, a, b + c) * (1 + 1e-6)
    x = worst_case(u, i, j, a * size)
    assert np.linalg.norm(x - u) <= a * size * (1 + 1e-9)
    along = x / max(np.linalg.norm(x), 1e-300)
    left = x @ ((i - b * size * along) - (j + c * size * along))
    assert left <= 1e-9 * np.linalg.norm(u) * np.linalg.norm(i - j)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(pairs(), ROOMS, st.integers(0, 2**32 - 1))
def test_nothing_within_the_radius_closes_the_gap(pair, rooms, seed):
    u, i, j = pair
    (a, b, c), rng = rooms, np.random.default_rng(seed)
    size = radius(tight_radius, u, i, j, a, b + c) * (1 - 1e-9)
    moves = rng.normal(size=(2, 40, len(u)))
    moves /= np.linalg.norm(moves, axis=2, keepdims=True)
    X = np.vstack([u + a * size * moves[0], worst_case(u, i, j, a * size)[None]])
    along = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    toward = np.vstack([moves[1], along[-1:]])
    for ahead, behind in (
        (i - b * size * along, j + c * size * along),
        (i - b * size * toward, j + c * size * toward[::-1]),
    ):
        assert ((X * (ahead - behind)).sum(axis=1) > 0).all()


@settings(max_examples=200, deadline=None)
@given(pairs(), ROOMS)
def test_the_plain_radius_solves_its_equation_and_is_never_above_the_tight_one(pair, rooms):
    u, i, j = pair
    a, s = rooms[0], rooms[1] + rooms[2]
    gap, n, D = u @ (i - j), np.linalg.norm(u), np.linalg.norm(i - j)

    def left_over(e):
        return gap - e * (a * D + s * n) - a * s * e**2

    plain = radius(plain_radius, u, i, j, a, s)
    assert plain == pytest.approx(brentq(left_over, 0, 1 + gap / (a * D + s * n)), rel=1e-9)
    assert plain <= radius(tight_radius, u, i, j, a, s)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(pairs(dims=(1, 1)), ROOMS)
def test_in_one_dimension_the_radius_is_a_lower_bound(pair, rooms):
    u, i, j = pair
    a, s = rooms[0], rooms[1] + rooms[2]
    size = radius(tight_radius, u, i, j, a, s) * (1 - 1e-9)
    for x in (u + a * size, u - a * size):
        assert x @ (i - j) - s * size * np.linalg.norm(x) > 0


def test_known_answers():
    u, i, j = np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert radius(tight_radius, u, i, j, 1, 0) == pytest.approx(1 / math.sqrt(2))
    assert radius(tight_radius, u, i, j, 0, 2) == pytest.approx(1 / 2)
    assert radius(tight_radius, u, i, j, 1, 2) == pytest.approx(1 / math.sqrt(10))
    assert radius(plain_radius, u, i, j, 0, 2) == pytest.approx(1 / 2)


@pytest.mark.parametrize("function", [tight_radius, plain_radius])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_what_is_behind_level_or_undefined_is_certified_for_nothing(function, a, b):
    budgets = Budgets(a, b, 2, 1.0)
    gaps, norms = [-1.0, 0.0, 1e-18, float("nan"), 0.0], [1.0, 1.0, 1.0, 1.0, 0.0]
    found = computed(function, budgets, gaps, norms, [1.0, 0.0, 1.0, 1.0, 1.0], a, 2 * b)
    assert found.tolist() == [0.0] * 5
    if a == b == 0:  # nothing may move: what is ahead stays there
        assert computed(function, budgets, 0.5, 1.0, 1.0, a, b).item() == math.inf


def exact_radius(u, i, j, a, s) -> Decimal:
    """The formula of the theorem on the very numbers, with 80 digits."""
    u, i, j = ([Fraction(float(x)) for x in vector] for vector in (u, i, j))
    gap = sum(x * (y - z) for x, y, z in zip(u, i, j, strict=True))
    n2, d2 = sum(x * x for x in u), sum((y - z) ** 2 for y, z in zip(i, j, strict=True))
    if gap <= 0:
        return Decimal(0)
    with localcontext() as context:
        context.prec = 80
        gap, n2, d2 = (Decimal(x.numerator) / Decimal(x.denominator) for x in (gap, n2, d2))
        turned = max(n2 * d2 - gap * gap, Decimal(0)).sqrt()
        a, s = Decimal(a), Decimal(s)
        return gap / (a * a * d2 + 2 * a * s * turned + s * s * n2).sqrt()


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda dim: st.tuples(*[st.lists(SINGLE, min_size=dim, max_size=dim)] * 3)
    ),
    st.floats(-1e-6, 1e-6),
    ROOMS,
)
def test_rounding_never_lengthens_a_radius(vectors, nearly, rooms):
    u, i, j = (np.array(v, dtype=np.float32) for v in vectors)
    a, s = rooms[0], rooms[1] + rooms[2]
    # Also items that are nearly alike: their gap is all rounding error.
    for rival in (j, np.float32(i * np.float32(1 + nearly))):
        found = radius(tight_radius, u.astype(float), i.astype(float), rival.astype(float), a, s)
        assert Decimal(found) <= exact_radius(u, i, rival, a, s)


def test_a_gap_that_only_rounding_makes_is_worth_nothing():
    # In floating point the first sum loses its small term and i seems ahead; in truth it is behind.
    u = np.array([1e8, 1.0, -1e8])
    i, j = np.array([1.0, 0.0, 1.0]), np.array([1.0, 1e-9, 1.0])
    seems = {float(np.sum(u * i) - np.sum(u * j)), float((u * i).sum() - (u[::-1] * j[::-1]).sum())}
    assert exact_radius(u, i, j, 1, 2) == 0
    lengths = np.linalg.norm(u), np.linalg.norm(i - j)
    for gap in (*seems, 1e-9):
        assert computed(tight_radius, Budgets(1.0, 1.0, 3, 1.5), gap, *lengths, 1, 2).item() == 0


def test_the_worst_case_of_a_user_who_cannot_move_or_is_zero():
    assert worst_case([0.0, 0.0], [1.0, 0.0], [0.0, 1.0], 0.5).tolist() == [0.0, 0.0]
    assert worst_case([3.0, 4.0], [1.0, 0.0], [0.0, 1.0], 0.0).tolist() == [3.0, 4.0]
    assert np.linalg.norm(worst_case([2.0], [1.0], [0.0], 0.5)) < 2.0
