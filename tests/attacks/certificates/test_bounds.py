"""Certified metrics and radii: no attack may ever fall below them, and they are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.attacks import FGM, PGD, Cutoff, OwnRowBudget, RandomNoise, RowBudget, Softmax
from robustcf.attacks.certificates import search, worst_case
from robustcf.data import Interactions, Split, checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.metrics.topk import top_items
from robustcf.recommender import Recommender
from robustcf.robustness import Threat, certified_radii, measure
from robustcf.robustness.personal import personal_curve
from tests.attacks.certificates.test_radius import smallest_gap
from tests.robustness.helpers import random_world

KS = (1, 2, 4)
SEEDS = [0, 1, 2]
SIDES = ("both", "users", "items")
UNITS = ("absolute", "relative", "own")
BOARD = checkerboard()


def certified(factors, split, sizes, ks=KS, unit="absolute", side="both", bound="tight", **where):
    target, threat = Recommender(*factors, split, **where), Threat(unit=unit, side=side)
    return measure(target, "certificate", threat, sizes, ks, bound=bound).curve


def personal(factors, split, sizes, ks=KS, unit="absolute", side="both"):
    threat = Threat(unit=unit, side=side)
    return personal_curve(Recommender(*factors, split), threat, sizes, ks)


def radii_of(factors, split, ks=(1, 10), unit="absolute", side="both", bound="tight", **where):
    target, threat = Recommender(*factors, split, **where), Threat(unit=unit, side=side)
    return certified_radii(target, threat, ks, bound=bound)


def rooms(factors, unit, side):
    """How far each user and each item may move at size 1, by numpy."""
    lengths = [np.linalg.norm(part.double().numpy(), axis=1) for part in factors]
    if unit != "own":
        units = [1.0 if unit == "absolute" else RowBudget().unit(part) for part in factors]
        lengths = [np.full_like(n, one) for n, one in zip(lengths, units, strict=True)]
    return lengths[0] * (side != "items"), lengths[1] * (side != "users")


def split_of(train, test, n_users, n_items):
    def pairs(cells):
        users, items = np.array(cells, dtype=np.int64).reshape(-1, 2).T
        return Interactions.from_pairs(users, items, n_users, n_items)[0]

    return Split("tiny", pairs(train), pairs([]), pairs(test), valid_source="none")


@st.composite
def worlds(draw, dims=(1, 3), whole=True):
    """Factors in float64 and a split: ties, twins, zero rows, users who like all there is."""
    n_users, n_items = draw(st.integers(1, 3)), draw(st.integers(3, 7))
    dim, seed = draw(st.integers(*dims)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    if whole and draw(st.booleans()):
        U, V = (rng.integers(-2, 3, (n, dim)).astype(float) for n in (n_users, n_items))
        V[rng.integers(n_items)] = V[rng.integers(n_items)]
    else:
        U, V = rng.normal(size=(n_users, dim)), rng.normal(size=(n_items, dim))
        if draw(st.booleans()):
            # A good recommender: certificates have something to lose.
            V[: n_items // 2] += 2 * U[0] / max(np.linalg.norm(U[0]), 1e-9)
    kinds = rng.choice(3, size=(n_users, n_items), p=[0.5, 0.15, 0.35])
    kinds[0, : n_items // 2] = 2
    if draw(st.booleans()):
        kinds[-1, :-1] = 2
    kinds[-1, -1] = 1
    train, test = (list(zip(*np.nonzero(kinds == kind), strict=True)) for kind in (1, 2))
    factors = Factors(torch.from_numpy(U), torch.from_numpy(V))
    return factors, split_of(train, test, n_users, n_items)


def larger_world(seed, n_users=9, n_items=150, dim=6):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(n_users, dim)), rng.normal(size=(n_items, dim))
    V *= rng.uniform(0.2, 2.0, size=(n_items, 1))
    relevant = np.argsort(-(U @ V.T + rng.normal(size=(n_users, n_items))), axis=1)
    train = [(u, i) for u in range(n_users) for i in relevant[u, 8:14]]
    test = [(u, i) for u in range(n_users) for i in relevant[u, : 1 + u % 8]]
    factors = Factors(torch.from_numpy(U).float(), torch.from_numpy(V).float())
    return factors, split_of(train, test, n_users, n_items)


# --- no attack falls below --------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    worlds(), st.floats(0.01, 1.5), st.sampled_from(SIDES), st.sampled_from(UNITS),
    st.integers(0, 99),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:the gradient of softmax is zero")
def test_no_attack_falls_below_the_certificate(world, epsilon, side, unit, seed):
    factors, split = world
    sizes = [epsilon * (1 + 1e-12)]
    curve, plain = (
        certified(factors, split, sizes, unit=unit, side=side, bound=bound)
        for bound in ("tight", "plain")
    )
    alone = personal(factors, split, [epsilon], unit=unit, side=side)
    for name, values in curve.per_user.items():
        assert (plain.per_user[name] <= values).all()
        assert (alone.per_user[name] >= values - 1e-12).all()
    options = {
        "side": side, "relative": unit != "absolute",
        "budget": OwnRowBudget() if unit == "own" else RowBudget(),
    }  # fmt: skip
    for attack in (
        FGM(Softmax(split.train), **options),
        FGM(Softmax(split.test), **options),
        PGD(Softmax(split.test), steps=3, restarts=2, seed=seed, **options),
        Cutoff(split.test, split.train, 2, steps=4, restarts=2, seed=seed, **options),
        RandomNoise(seed=seed, **options),
    ):
        attacked = attack.perturb(factors, epsilon)
        for part, spent in attacked.realised.items():
            assert spent <= curve.realised[0][part]
        for name, values in evaluate(attacked.factors, split, KS).per_user.items():
            assert (values >= curve.per_user[name][0] - 1e-12).all(), (attack.name, name)


def moved(factors, split, user, x, item_rooms):
    """The constructive worst case for one user at x: own items against x, the others along it."""
    U, V = (part.clone() for part in factors)
    U[user] = torch.from_numpy(x)
    signs = np.ones(len(V))
    signs[split.test.items_of(user).tolist()] = -1
    if np.linalg.norm(x) > 0:
        V += torch.from_numpy((item_rooms * signs)[:, None] * x / np.linalg.norm(x))
    return Factors(U, V)


def places_to_stand(factors, split, user, user_room, rng):
    """Points of the ball around a user: the middle, the worst of each pair, a net, at random."""
    u, V = factors.users[user].numpy(), factors.items.numpy()
    yield u
    if user_room == 0:
        return
    own = split.test.items_of(user)
    for i in own:
        for j in np.setdiff1d(np.arange(len(V)), own):
            if np.linalg.norm(V[i] - V[j]) > 0:
                yield worst_case(u, V[i], V[j], min(user_room, np.linalg.norm(u)))
    directions = rng.normal(size=(12, len(u)))
    if len(u) == 2:
        angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for direction in directions:
        yield u + user_room * direction / np.linalg.norm(direction)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    worlds(), st.floats(0.01, 1.0), st.sampled_from(SIDES), st.sampled_from(UNITS),
    st.integers(0, 99),
)  # fmt: skip
def test_no_constructed_worst_case_falls_below_the_certificate(world, epsilon, side, unit, seed):
    factors, split = world
    a, b = rooms(factors, unit, side)
    slack = 1e-12  # the points are built in floating point
    curve = certified(factors, split, [epsilon * (1 + slack) + slack], unit=unit, side=side)
    rng = np.random.default_rng(seed)
    for row, user in enumerate(curve.users[:2]):
        for x in places_to_stand(factors, split, user, a[user] * epsilon, rng):
            report = evaluate(moved(factors, split, user, x, b * epsilon), split, KS)
            for name, values in report.per_user.items():
                assert values[row] >= curve.per_user[name][0][row] - 1e-12, (name, x)


@pytest.mark.parametrize("unit", ["absolute", "own"])
@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(world=worlds(), epsilon=st.floats(0.01, 0.9))
def test_when_items_alone_move_the_certificate_is_attained_by_every_user(unit, world, epsilon):
    factors, split = world
    more = epsilon * (1 + 1e-6)
    curve = certified(factors, split, [epsilon, more], unit=unit, side="items")
    b = rooms(factors, unit, "items")[1]
    for row, user in enumerate(curve.users):
        u = factors.users[user].numpy()
        if not u.any():
            continue  # all scores are 0 and stay it: the certificate fears ties, the ids decide
        report = evaluate(moved(factors, split, user, u, b * more * (1 - 1e-9)), split, KS)
        for name, values in report.per_user.items():
            lower, upper = curve.per_user[name][[1, 0], row]
            assert lower <= values[row] + 1e-12
            # Rows that may not move and tie with each other are feared, and cannot be attacked.
            assert values[row] <= upper + 1e-12 or (b == 0).sum() > 1, name


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unit", ["absolute", "own"])
def test_an_attack_on_each_user_alone_meets_the_certificate_or_comes_near(unit, seed):
    factors, split = larger_world(seed)
    sizes = [0, 0.02, 0.1, 0.2]
    lower, found = (
        curve(factors, split, sizes, (2, 5), unit, "items") for curve in (certified, personal)
    )
    for name, values in lower.per_user.items():
        np.testing.assert_array_equal(found.per_user[name], values)
    clean = evaluate(factors, split, (2, 5))["ndcg@5"]
    lower, found = (
        curve(factors, split, sizes, (2, 5), unit)["ndcg@5"] for curve in (certified, personal)
    )
    assert found[0] == lower[0] == clean
    assert (clean - found[2:] > 0.4 * (clean - lower[2:])).all(), "much of it can be done"


# --- it is the definition ---------------------------------------------------------------------


def ndcg_of(overtakers, k):
    """NDCG@k with each relevant item, in order, behind as many others as may overtake it."""
    places = [count + r for r, count in enumerate(sorted(overtakers)) if count + r < k]
    ideal = sum(1 / math.log2(p + 2) for p in range(min(k, len(overtakers))))
    return sum(1 / math.log2(p + 2) for p in places) / ideal


def naive_certificate(factors, split, epsilon, k, unit, side, bound):
    """The definition, pair by pair, with brute force for each, or the plain bound."""
    U, V = (part.numpy() for part in factors)
    a, b = rooms(factors, unit, side)

    def falls(user, i, j):
        u, d, s = U[user], V[i] - V[j], b[i] + b[j]
        if bound == "tight":
            return smallest_gap(u, d, a[user] * epsilon, s * epsilon) <= 0
        n, D = np.linalg.norm(u), np.linalg.norm(d)
        return u @ d <= epsilon * (a[user] * D + s * n) + a[user] * s * epsilon**2

    found = []
    for user in np.flatnonzero(split.test.user_degrees):
        own, seen = split.test.items_of(user), split.train.items_of(user)
        others = np.setdiff1d(np.arange(len(V)), np.concatenate([own, seen]))
        found.append(ndcg_of([sum(falls(user, i, j) for j in others) for i in own], k))
    return np.array(found)


@settings(max_examples=100, deadline=None)
@given(
    worlds(dims=(2, 4), whole=False), st.floats(0.01, 0.6), st.sampled_from(SIDES),
    st.sampled_from(["absolute", "own"]),
)  # fmt: skip
def test_the_curve_is_the_definition(world, epsilon, side, unit):
    for bound in ("tight", "plain"):
        curve = certified(*world, [epsilon], (3,), unit, side, bound)
        # A pair within 1e-3 of its radius may be decided differently by the grid of the oracle.
        low, high = (
            naive_certificate(*world, epsilon * nearly, 3, unit, side, bound)
            for nearly in (1.001, 0.999)
        )
        assert (low <= curve.per_user["ndcg@3"][0] + 1e-12).all()
        assert (curve.per_user["ndcg@3"][0] <= high + 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", SIDES)
def test_with_columns_held_fixed_the_plain_bound_holds(seed, side):
    """Lengths are those of the columns that move; the definition by numpy."""
    U, V, train, test = random_world(seed, n_users=12, n_items=20, dim=4)
    U[:, 2], V[:, 2] = 1.0, np.random.default_rng(seed).normal(size=len(V)) * 2
    target = Recommender(U, V, train, test, fixed=(2,))
    sizes, free, threat = [0.0, 0.01, 0.04, 0.15], [0, 1, 3], Threat(unit="own", side=side)
    result = measure(target, "certificate", threat, sizes, (3,))
    assert result.spec.bound == "plain"
    curve = result.curve
    lengths, widths = np.linalg.norm(U[:, free], axis=1), np.linalg.norm(V[:, free], axis=1)
    a, b = lengths * (side != "items"), widths * (side != "users")
    for place, epsilon in enumerate(sizes[1:], 1):
        for row, user in enumerate(curve.users):
            others = np.flatnonzero((test[user] == 0) & (train[user] == 0))
            counts = []
            for i in np.flatnonzero(test[user]):
                d, s = V[i] - V[others], b[i] + b[others]
                reach = a[user] * np.linalg.norm(d[:, free], axis=1) + s * lengths[user]
                fall = epsilon * reach + a[user] * s * epsilon**2
                counts.append(int((d @ U[user] <= fall).sum()))
            expected = pytest.approx(ndcg_of(counts, 3), abs=1e-12)
            assert curve.per_user["ndcg@3"][place][row] == expected
    assert curve["ndcg@3"][-1] < curve["ndcg@3"][0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 3])
def test_the_radius_of_a_top_list_is_exact(seed, k):
    factors, split = larger_world(seed, n_users=4, n_items=50)
    found = radii_of(factors, split, (k,), "relative").radii[k]
    a, b = (room[0] for room in rooms(factors, "relative", "both"))
    rng = np.random.default_rng(seed)
    U, V = (part.double() for part in factors)
    for user in range(factors.n_users):
        own = top_items(factors, [user], k, split.train)[0]
        others = np.setdiff1d(np.arange(len(V)), [*own, *split.train.items_of(user)])

        def top_of(x, item_room, down, up, user=user):
            W = V.clone()
            step = item_room * torch.from_numpy(x / np.linalg.norm(x))
            W[down] -= step
            W[up] += step
            attacked = Factors(torch.from_numpy(x)[None], W)
            kept = Interactions(np.zeros(6, int), np.sort(split.train.items_of(user)), 1, len(W))
            return set(top_items(attacked, [0], k, kept)[0])

        u = U[user].numpy()
        beyond, within = found[user] * (1 + 1e-6), found[user] * (1 - 1e-9)
        fallen = (
            top_of(worst_case(u, V[i].numpy(), V[j].numpy(), a * beyond), b * beyond, [i], [j])
            for i in own
            for j in others
        )
        assert any(top != set(own) for top in fallen), "beyond the radius an attack exists"
        for i in own:
            for j in rng.choice(others, 10):
                x = worst_case(u, V[i].numpy(), V[j].numpy(), a * within)
                assert top_of(x, b * within, [i], [j]) == set(own)
                assert top_of(x, b * within, list(own), list(others)) == set(own)


# --- what it depends on -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bound", ["tight", "plain"])
@pytest.mark.parametrize("unit", ["absolute", "own"])
def test_no_block_and_no_first_rivals_show_in_the_result(monkeypatch, seed, side, bound, unit):
    """Long items far down the list count, too: the search may not leave them out."""
    factors, split = larger_world(seed)
    factors.items[::7] *= 20
    asked = {"unit": unit, "side": side, "bound": bound}

    def found():
        curve = certified(factors, split, [0, 0.01, 0.05, 0.2, 1.0], (2, 5), **asked)
        return curve.per_user, radii_of(factors, split, (1, 3), **asked).radii

    monkeypatch.setattr(search, "_FIRST_RIVALS", 150)
    per_user, radii = found()
    for first, block in ((1, 16 * 2**20), (3, 1), (7, 8 * 150 * 2)):
        monkeypatch.setattr(search, "_FIRST_RIVALS", first)
        monkeypatch.setattr(search, "BLOCK_BYTES", block)
        again, radii_again = found()
        for name, values in per_user.items():
            np.testing.assert_array_equal(again[name], values)
        for k, values in radii.items():
            np.testing.assert_allclose(radii_again[k], values, rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", SIDES)
def test_epsilon_zero_is_the_clean_result_and_curves_fall(seed, side):
    factors, split = larger_world(seed)
    clean = evaluate(factors, split, (3, 7))
    curve = certified(factors, split, [0, 1e-9, 0.05, 0.3, 50], (3, 7), side=side)
    assert set(curve.values) == set(curve.per_user) == set(clean.per_user)
    for name, values in clean.per_user.items():
        np.testing.assert_array_equal(curve.per_user[name][0], values)
        np.testing.assert_array_equal(curve.per_user[name][1], values)
        assert curve[name][0] == clean[name]
        assert (np.diff(curve.per_user[name], axis=0) <= 0).all()
    assert 0 < curve["ndcg@7"][2] < clean["ndcg@7"]
    assert curve["ndcg@7"][4] == 0
    assert (curve.attack, curve.objective) == ("certificate", None)
    assert curve.threat == Threat("row", "absolute", side, "labels")
    assert curve.protocol == clean.protocol


def test_half_precision_and_masks():
    factors, split = larger_world(1)
    half = Factors(factors.users.half(), factors.items.half())
    single = Factors(half.users.float(), half.items.float())
    for mask in (None, [], ["train"]):
        one, two = (certified(f, split, [0, 0.05], (10,), mask=mask) for f in (half, single))
        np.testing.assert_array_equal(one["ndcg@10"], two["ndcg@10"])
    assert one.protocol.masked == ("train",)


# --- edges ------------------------------------------------------------------------------------


def test_radii_without_rivals_and_with_ties():
    factors = Factors(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0], [2.0, 2.0]]))
    split = split_of([(0, 0), (1, 1)], [(0, 1), (1, 0)], 2, 4)
    found = radii_of(factors, split, (3,))
    assert np.isinf(found.radii[3]).all()
    assert found.as_dict()["top3"] == {"mean": None, "q25": None, "median": None, "q75": None}
    ties = radii_of(Factors(torch.ones(2, 2), torch.ones(4, 2)), split, (1, 2))
    assert ties.radii[1].tolist() == ties.radii[2].tolist() == [0.0, 0.0]
    assert ties.as_dict()["top2"]["median"] == 0.0


def test_rows_of_length_0():
    """Item 1 lies in the origin: only the user and item 0 can bring it past item 0."""
    factors = Factors(
        torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        torch.tensor([[2.0, 0.0], [0.0, 0.0], [-9.0, 0.0]], dtype=torch.float64),
    )
    split = split_of([(0, 2)], [(0, 0)], 1, 3)
    for side in ("items", "users"):  # 2 - 2 e > 0; the user may turn round at size 1
        curve = certified(factors, split, [0.5, 0.99, 1.01], (1,), "own", side)
        assert curve["ndcg@1"].tolist() == [1.0, 1.0, 0.0]
    zero = Factors(torch.zeros(1, 2, dtype=torch.float64), factors.items)
    tie = certified(zero, split, [0.0, 0.5], (1,), "own")
    assert tie["ndcg@1"][1] == 0.0, "a tie is not a lead"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"sizes": [0.2, 0.1]}, "ascending"),
        ({"sizes": [-1.0]}, "negative"),
        ({"side": "rows"}, "side"),
        ({"bound": "loose"}, "bound"),
        ({"ks": ()}, "cutoff"),
        ({"mask": ["tests"]}, "mask"),
    ],
)
def test_bad_input_is_refused(options, word):
    parity = torch.eye(2)[torch.arange(30) % 2]
    right = Factors(parity[:20], parity)
    with pytest.raises(InputError, match=word):
        certified(right, BOARD, **{"sizes": [0.1], **options})
    if "sizes" not in options:
        with pytest.raises(InputError, match=word):
            radii_of(right, BOARD, **options)
    with pytest.raises(InputError, match="different data"):
        certified(Factors(parity, parity), BOARD, [0.1])
    with pytest.raises(InputError, match="finite"):
        certified(Factors(right.users / 0, right.items), BOARD, [0.1])
