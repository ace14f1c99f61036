"""Certificates where every row has a budget of its own: brute force, exact numbers, attacks."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from robustcf.attacks import FGM, PGD, Cutoff, OwnRowBudget, RandomNoise, Softmax
from robustcf.attacks.certificates import Budgets, plain_radius, search, tight_radius, worst_case
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.recommender import Recommender
from robustcf.robustness import Threat, certified_radii, measure
from tests.attacks.certificates.test_curves import SIDES, larger_world, split_of, worlds
from tests.attacks.certificates.test_radius import SINGLE, pairs
from tests.robustness.helpers import random_world

SEEDS = [0, 1, 2]
KS = (1, 2, 4)
ROOMS = st.tuples(*[st.sampled_from([0.0, 0.25, 1.0, 3.0])] * 3).filter(any)


def radius(function, u, i, j, a, s):
    largest = max(np.linalg.norm(i), np.linalg.norm(j))
    budgets = Budgets(1.0, 1.0, len(u), float(largest), own=True)
    numbers = (u @ i - u @ j, np.linalg.norm(u), np.linalg.norm(i - j), a, s)
    gap, n, D, *moves = (torch.tensor(x, dtype=torch.float64) for x in numbers)
    return float(function(gap, n, D, budgets, tuple(moves)))


def smallest_gap(u, d, user_room, items_room, points=1000):
    """Brute force in the plane of u and d; the two items move together by ``items_room``."""
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


# --- one pair ---------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(pairs(), ROOMS)
def test_the_radius_is_where_brute_force_first_closes_the_gap(pair, rooms):
    u, i, j = pair
    (a, b, c), d = rooms, i - j
    r = radius(tight_radius, u, i, j, a, b + c)
    below, above = 0.999 * r, 1.001 * r
    assert smallest_gap(u, d, a * below, (b + c) * below) > 0
    missed = (a * above) * (np.linalg.norm(d) + (b + c) * above) * (2 * np.pi / 1000) ** 2
    assert smallest_gap(u, d, a * above, (b + c) * above) <= missed


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
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
@settings(max_examples=300, deadline=None)
@given(pairs(), ROOMS, st.integers(0, 2**32 - 1))
def test_nothing_within_the_radius_closes_the_gap(pair, rooms, seed):
    u, i, j = pair
    (a, b, c), rng = rooms, np.random.default_rng(seed)
    size = radius(tight_radius, u, i, j, a, b + c) * (1 - 1e-9)
    assert radius(plain_radius, u, i, j, a, b + c) <= size * (1 + 1e-8)
    moves = rng.normal(size=(3, 40, len(u)))
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
@given(pairs(), st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from([0.0, 0.25, 1.0]))
def test_equal_budgets_are_the_case_that_was(pair, a, b):
    assume(a + b > 0)
    u, i, j = pair
    largest = float(max(np.linalg.norm(i), np.linalg.norm(j)))
    numbers = (u @ i - u @ j, np.linalg.norm(u), np.linalg.norm(i - j))
    tensors = [torch.tensor(x, dtype=torch.float64) for x in numbers]
    for function in (tight_radius, plain_radius):
        uniform = function(*tensors, Budgets(a, b, len(u), largest))
        assert uniform.item() == radius(function, u, i, j, a, 2 * b)


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
@settings(max_examples=300, deadline=None)
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
    assume(a + s > 0)
    for rival in (j, np.float32(i * np.float32(1 + nearly))):
        computed = radius(tight_radius, u.astype(float), i.astype(float), rival.astype(float), a, s)
        assert Decimal(computed) <= exact_radius(u, i, rival, a, s)


# --- whole rankings ---------------------------------------------------------------------------


def own(side="both") -> Threat:
    return Threat(unit="own", side=side, knowledge="labels")


def certificate(factors, split, sizes, ks=KS, side="both", **options):
    return measure(
        Recommender(*factors, split), "certificate", own(side), sizes, ks, **options
    ).curve


def rooms_of(factors, side):
    """How far each row may move at size 1, by numpy."""
    users, items = (np.linalg.norm(part.double().numpy(), axis=1) for part in factors)
    return users * (side != "items"), items * (side != "users")


def naive_certificate(factors, split, epsilon, k, side, *, plain=False):
    """The definition, pair by pair, with brute force for each (or the plain bound)."""
    U, V = (part.numpy() for part in factors)
    a, b = rooms_of(factors, side)
    found = []
    for user in np.flatnonzero(split.test.user_degrees):
        mine, seen = split.test.items_of(user), split.train.items_of(user)
        others = np.setdiff1d(np.arange(len(V)), np.concatenate([mine, seen]))
        overtakers = []
        for i in mine:
            falls = 0
            for j in others:
                u, d, s = U[user], V[i] - V[j], b[i] + b[j]
                if plain:
                    n, D = np.linalg.norm(u), np.linalg.norm(d)
                    left = u @ d - epsilon * (a[user] * D + s * n) - a[user] * s * epsilon**2
                else:
                    left = smallest_gap(u, d, a[user] * epsilon, s * epsilon)
                falls += left <= 0
            overtakers.append(falls)
        hits = [count + r for r, count in enumerate(sorted(overtakers)) if count + r < k]
        ideal = sum(1 / math.log2(p + 2) for p in range(min(k, len(mine))))
        found.append(sum(1 / math.log2(p + 2) for p in hits) / ideal)
    return np.array(found)


@settings(max_examples=60, deadline=None)
@given(worlds(dims=(2, 4), whole=False), st.floats(0.01, 0.5), st.sampled_from(SIDES))
def test_the_curve_is_the_definition(world, epsilon, side):
    factors, split = world
    for plain in (False, True):
        bound = "plain" if plain else "tight"
        curve = certificate(factors, split, [epsilon], (3,), side, bound=bound)
        # A pair within 1e-3 of its radius may be decided differently by the grid of the oracle.
        low, high = (
            naive_certificate(factors, split, epsilon * nearly, 3, side, plain=plain)
            for nearly in (1.001, 0.999)
        )
        assert (low <= curve.per_user["ndcg@3"][0] + 1e-12).all()
        assert (curve.per_user["ndcg@3"][0] <= high + 1e-12).all()


@settings(max_examples=60, deadline=None)
@given(worlds(), st.floats(0.01, 0.9))
def test_when_items_alone_move_the_certificate_is_attained_by_every_user(world, epsilon):
    """All items, each by its own length: zero rows stay, long ones go far."""
    factors, split = world
    more = epsilon * (1 + 1e-6)
    curve = certificate(factors, split, [epsilon, more], side="items")
    lengths = torch.linalg.vector_norm(factors.items, dim=1, keepdim=True)
    for row, user in enumerate(curve.users):
        u = factors.users[user]
        if not u.any():
            continue  # all scores are 0 and stay it: the certificate fears ties, the ids decide
        signs = torch.ones(len(lengths), 1, dtype=torch.float64)
        signs[split.test.items_of(user).tolist()] = -1
        V = factors.items + more * (1 - 1e-9) * lengths * signs * u / u.norm()
        report = evaluate(Factors(factors.users, V), split, KS)
        for name, values in report.per_user.items():
            lower, upper = curve.per_user[name][[1, 0], row]
            assert lower <= values[row] + 1e-12
            # Rows of no length that tie with each other are feared, too, and cannot be attacked.
            tied = (lengths == 0).sum() > 1
            assert values[row] <= upper + 1e-12 or tied, name


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(worlds(), st.floats(0.01, 1.2), st.sampled_from(SIDES), st.integers(0, 99))
@pytest.mark.filterwarnings("ignore:the gradient of softmax is zero")
def test_no_attack_falls_below_the_certificate(world, epsilon, side, seed):
    factors, split = world
    curve = certificate(factors, split, [epsilon * (1 + 1e-12)], side=side)
    plain = certificate(factors, split, [epsilon * (1 + 1e-12)], side=side, bound="plain")
    alone = measure(Recommender(*factors, split), "personal", own(side), [epsilon], KS).curve
    for name, values in curve.per_user.items():
        assert (plain.per_user[name] <= values).all()
        assert (alone.per_user[name] >= values - 1e-12).all()
    options = {"side": side, "budget": OwnRowBudget()}
    for attack in (
        FGM(Softmax(split.test), **options),
        PGD(Softmax(split.test), steps=3, restarts=2, seed=seed, **options),
        Cutoff(split.test, split.train, 2, steps=4, restarts=2, seed=seed, **options),
        RandomNoise(seed=seed, **options),
    ):
        attacked = attack.perturb(factors, epsilon)
        assert max(attacked.realised.values()) <= epsilon * (1 + 1e-12)
        report = evaluate(attacked.factors, split, KS)
        for name, values in report.per_user.items():
            assert (values >= curve.per_user[name][0] - 1e-12).all(), (attack.name, name)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_user_alone_meets_the_certificate_where_items_alone_move(seed):
    factors, split = larger_world(seed)
    target, sizes = Recommender(*factors, split), [0, 0.02, 0.1, 0.2]
    certified, alone = (
        measure(target, name, own("items"), sizes, (2, 5)).curve
        for name in ("certificate", "personal")
    )
    for name, values in certified.per_user.items():
        np.testing.assert_array_equal(alone.per_user[name], values)
    assert certified["ndcg@5"][-1] < certified["ndcg@5"][0]
    both, found = (
        measure(target, name, own(), sizes, (2, 5)).curve["ndcg@5"]
        for name in ("certificate", "personal")
    )
    lost = both[0] - both
    assert (both[0] - found[2:] > 0.4 * lost[2:]).all(), "much of what it fears can be done"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bound", ["tight", "plain"])
def test_no_block_and_no_first_rivals_show_in_the_result(monkeypatch, seed, side, bound):
    """Long items far down the list count, too: the search may not leave them out."""
    factors, split = larger_world(seed)
    V = factors.items.clone()
    V[::7] *= 20
    factors = Factors(factors.users, V)
    target, sizes = Recommender(*factors, split), [0, 0.01, 0.05, 0.2]
    monkeypatch.setattr(search, "_FIRST_RIVALS", 150)
    curve = certificate(factors, split, sizes, (2, 5), side, bound=bound)
    radii = certified_radii(target, own(side), (1, 3), bound=bound)
    for first, block in ((1, 16 * 2**20), (3, 1), (7, 8 * 150 * 2)):
        monkeypatch.setattr(search, "_FIRST_RIVALS", first)
        monkeypatch.setattr(search, "BLOCK_BYTES", block)
        again = certificate(factors, split, sizes, (2, 5), side, bound=bound)
        for name, values in curve.per_user.items():
            np.testing.assert_array_equal(again.per_user[name], values)
        radii_again = certified_radii(target, own(side), (1, 3), bound=bound)
        for k, values in radii.radii.items():
            np.testing.assert_allclose(radii_again.radii[k], values, rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", SIDES)
def test_neither_scale_nor_the_length_of_a_user_is_seen(seed, side):
    factors, split = larger_world(seed)
    g = torch.Generator().manual_seed(seed)
    lengths = 2.0 ** torch.randint(-4, 5, (factors.n_users, 1), generator=g)
    other = Factors(lengths * factors.users, 0.25 * factors.items)
    sizes = [0, 0.01, 0.03, 0.1]
    one, two = (certificate(f, split, sizes, (5,), side) for f in (factors, other))
    for name, values in one.per_user.items():
        np.testing.assert_array_equal(two.per_user[name], values)
    radii = [
        certified_radii(Recommender(*f, split), own(side), (1,)).radii[1] for f in (factors, other)
    ]
    np.testing.assert_allclose(*radii, rtol=1e-9)
    if side != "items":
        threat = Threat(side=side)
        medians = [
            measure(Recommender(*f, split), "certificate", threat, sizes, (5,)).curve["ndcg@5"]
            for f in (factors, other)
        ]
        assert medians[0].tolist() != medians[1].tolist(), "so it can fail"


def test_rows_of_no_length_have_nothing_to_fear_and_nothing_to_do():
    """Item 1 lies in the origin: only the user and item 0 can bring it past item 0."""
    factors = Factors(
        torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        torch.tensor([[2.0, 0.0], [0.0, 0.0], [-9.0, 0.0]], dtype=torch.float64),
    )
    split = split_of([(0, 2)], [(0, 0)], 1, 3)
    curve = certificate(factors, split, [0.5, 0.99, 1.01], (1,), "items")
    assert curve["ndcg@1"].tolist() == [1.0, 1.0, 0.0], "2 - 2 e > 0"
    still = certificate(factors, split, [0.5, 0.99, 1.01], (1,), "users")
    assert still["ndcg@1"].tolist() == [1.0, 1.0, 0.0], "the user may turn round at size 1"
    zero = Factors(torch.zeros(1, 2, dtype=torch.float64), factors.items)
    assert certificate(zero, split, [0.0, 0.5], (1,))["ndcg@1"][1] == 0.0, "a tie is no lead"


# --- columns held fixed -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", SIDES)
def test_with_columns_held_fixed_the_plain_bound_holds(seed, side):
    """Lengths are those of the columns that move; the definition by numpy, and attacks."""
    U, V, train, test = random_world(seed, n_users=12, n_items=20, dim=4)
    U[:, 2], V[:, 2] = 1.0, np.random.default_rng(seed).normal(size=len(V)) * 2
    target = Recommender(U, V, train, test, fixed=(2,))
    sizes, free = [0.0, 0.01, 0.04, 0.15], [0, 1, 3]
    result = measure(target, "certificate", own(side), sizes, (3,))
    assert result.spec.bound == "plain"
    curve = result.curve
    a = np.linalg.norm(U[:, free], axis=1) * (side != "items")
    b = np.linalg.norm(V[:, free], axis=1) * (side != "users")
    for place, epsilon in enumerate(sizes[1:], 1):
        for row, user in enumerate(curve.users):
            mine = np.flatnonzero(test[user])
            others = np.flatnonzero((test[user] == 0) & (train[user] == 0))
            counts = []
            for i in mine:
                d = V[i] - V[others]
                n, D = np.linalg.norm(U[user, free]), np.linalg.norm(d[:, free], axis=1)
                s = b[i] + b[others]
                fall = epsilon * (a[user] * D + s * n) + a[user] * s * epsilon**2
                counts.append(int((d @ U[user] <= fall).sum()))
            hits = [c + r for r, c in enumerate(sorted(counts)) if c + r < 3]
            ideal = sum(1 / math.log2(p + 2) for p in range(min(3, len(mine))))
            expected = sum(1 / math.log2(p + 2) for p in hits) / ideal
            assert curve.per_user["ndcg@3"][place][row] == pytest.approx(expected, abs=1e-12)
    for name in ("cutoff", "auto", "pgd-softmax", "personal", "random"):
        attacked = measure(target, name, own(side), sizes, (3,), steps=5)
        for found in filter(None, (attacked.curve, attacked.per_user)):
            for metric, values in curve.per_user.items():
                assert (found.per_user[metric] >= values - 1e-12).all(), (name, metric)
    assert curve["ndcg@3"][-1] < curve["ndcg@3"][0]
