"""Certified curves: no attack may ever fall below them, and what they promise is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.attacks import FGM, PGD, RandomNoise, RowBudget, Softmax
from robustcf.attacks.certificates import search, worst_case
from robustcf.data import Interactions, Split, checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import PER_USER, evaluate
from robustcf.metrics.ranking import worst_hits
from robustcf.metrics.topk import top_items
from robustcf.recommender import Recommender
from robustcf.robustness import RobustnessCurve, Threat, measure
from robustcf.robustness import certified as certified_module
from robustcf.robustness import certified_radii as radii_of_target
from robustcf.robustness import personal as personal_module

KS = (1, 2, 4)
SIDES = ("both", "users", "items")
BOARD = checkerboard()


def threat_of(relative=False, side="both") -> Threat:
    return Threat(unit="relative" if relative else "absolute", side=side)


def certified_curve(
    factors, split, epsilons, ks=(10, 20), *, relative=False, side="both", bound="tight", **where
) -> RobustnessCurve:
    """By the one door; the certificate of these factors."""
    target, threat = Recommender(*factors, split, **where), threat_of(relative, side)
    return measure(target, "certificate", threat, epsilons, ks, bound=bound).curve


def personal_curve(
    factors, split, epsilons, ks=(10, 20), *, relative=False, side="both", steps=3
) -> RobustnessCurve:
    target, threat = Recommender(*factors, split), threat_of(relative, side)
    return personal_module.personal_curve(target, threat, epsilons, ks, steps=steps)


def certified_radii(
    factors, split, ks=(1, 10), *, relative=False, side="both", bound="tight", **where
) -> certified_module.CertifiedRadii:
    target, threat = Recommender(*factors, split, **where), threat_of(relative, side)
    return radii_of_target(target, threat, ks, bound=bound)


def split_of(train, test, n_users, n_items):
    def pairs(cells):
        users, items = (np.array(part, dtype=np.int64) for part in zip(*cells, strict=True))
        return Interactions.from_pairs(users, items, n_users, n_items)[0]

    nothing = Interactions(np.array([], int), np.array([], int), n_users, n_items)
    return Split("tiny", pairs(train), nothing, pairs(test), valid_source="none")


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


def not_below(report, certificate, size, who=slice(None), more=""):
    for name, values in report.per_user.items():
        lower = certificate.per_user[name][size][who]
        assert (values[who] >= lower - 1e-12).all(), (name, values[who], lower, more)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_certificate_on_valid_is_that_of_a_split_whose_test_pairs_these_are(seed):
    rng = np.random.default_rng(seed)
    kinds = rng.choice(4, size=(12, 15), p=[0.5, 0.2, 0.15, 0.15])
    train, valid, test = (
        Interactions.from_pairs(*np.nonzero(kinds == kind), 12, 15)[0] for kind in (1, 2, 3)
    )
    factors = Factors(*(torch.from_numpy(rng.normal(size=(n, 3))) for n in (12, 15)))
    sizes, asked = [0, 0.05, 0.2], {"relative": True, "mask": ("train",)}
    whole = Split("tiny", train, valid, test, valid_source="published")
    nothing = Interactions(np.array([], int), np.array([], int), 12, 15)
    alone = Split("tiny", train, nothing, valid, valid_source="none")
    found = certified_curve(factors, whole, sizes, KS, part="valid", **asked)
    wanted = certified_curve(factors, alone, sizes, KS, **asked)
    assert found.protocol.part == "valid"
    assert found.users.tolist() == wanted.users.tolist()
    for name, values in wanted.per_user.items():
        assert np.array_equal(found.per_user[name], values)
    on_test = certified_curve(factors, whole, sizes, KS, **asked)
    assert on_test["ndcg@4"].tolist() != found["ndcg@4"].tolist()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(worlds(), st.floats(0.01, 1.5), st.sampled_from(SIDES), st.booleans(), st.integers(0, 99))
@pytest.mark.filterwarnings("ignore:the gradient of softmax is zero")
def test_no_attack_falls_below_the_certificate(world, epsilon, side, relative, seed):
    factors, split = world
    options = {"relative": relative, "side": side}
    attacks = [
        attack
        for positives in (split.train, split.test)
        for attack in (
            FGM(Softmax(positives), RowBudget(), **options),
            PGD(Softmax(positives), RowBudget(), steps=3, restarts=2, seed=seed, **options),
        )
    ]
    attacks.append(RandomNoise(RowBudget(), seed=seed, **options))
    certificate = certified_curve(factors, split, [epsilon], KS, **options)
    plain = certified_curve(factors, split, [epsilon], KS, bound="plain", **options)
    for name, values in plain.per_user.items():
        assert (values <= certificate.per_user[name]).all()
    for attack in attacks:
        attacked = attack.perturb(factors, epsilon)
        for part, spent in attacked.realised.items():
            assert spent <= certificate.realised[0][part]
        not_below(evaluate(attacked.factors, split, KS), certificate, 0, more=attack.name)


def rooms(factors, relative, side):
    unit = RowBudget().unit if relative else lambda _: 1.0
    return (
        0.0 if side == "items" else unit(factors.users),
        0.0 if side == "users" else unit(factors.items),
    )


def moved(factors, split, user, x, item_room):
    """The constructive worst case for one user at x: own items against x, the others along it."""
    U, V = (part.clone() for part in factors)
    U[user] = torch.from_numpy(x)
    size = np.linalg.norm(x)
    signs = torch.ones(len(V), dtype=torch.float64)
    signs[split.test.items_of(user).tolist()] = -1
    if size > 0:
        V += item_room * signs[:, None] * torch.from_numpy(x / size)
    return Factors(U, V)


def places_to_stand(factors, split, user, user_room, rng):
    """Points of the ball around a user: the middle, the worst of each pair, a net, at random."""
    u, V = factors.users[user].numpy(), factors.items.numpy()
    yield u
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
@given(worlds(), st.floats(0.01, 1.0), st.sampled_from(SIDES), st.booleans(), st.integers(0, 99))
def test_no_constructed_worst_case_falls_below_the_certificate(
    world, epsilon, side, relative, seed
):
    factors, split = world
    a, b = rooms(factors, relative, side)
    slack = 1e-12  # the points are built in floating point
    certificate = certified_curve(
        factors, split, [epsilon * (1 + slack) + slack], KS, relative=relative, side=side
    )
    rng = np.random.default_rng(seed)
    for row, user in enumerate(certificate.users[:2]):
        for x in places_to_stand(factors, split, user, a * epsilon, rng):
            if a == 0 and not np.array_equal(x, factors.users[user].numpy()):
                continue
            attacked = moved(factors, split, user, x, b * epsilon)
            not_below(evaluate(attacked, split, KS), certificate, 0, [row], more=x)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(worlds(), st.floats(0.01, 1.0))
def test_when_items_alone_move_the_certificate_is_attained_by_every_user(world, epsilon):
    factors, split = world
    more = epsilon * (1 + 1e-6)
    certificate = certified_curve(factors, split, [epsilon, more], KS, side="items")
    for row, user in enumerate(certificate.users):
        u = factors.users[user].numpy()
        if not u.any():
            continue  # all scores are 0 and stay it: the certificate fears ties, the ids decide
        report = evaluate(moved(factors, split, user, u, more * (1 - 1e-9)), split, KS)
        for name, values in report.per_user.items():
            lower, upper = certificate.per_user[name][[1, 0], row]
            assert lower <= values[row] + 1e-12
            assert values[row] <= upper + 1e-12, name


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(worlds(), st.floats(0.01, 1.0), st.sampled_from(SIDES), st.booleans())
def test_an_attack_on_each_user_alone_stays_above_the_certificate(world, epsilon, side, relative):
    factors, split = world
    options = {"relative": relative, "side": side}
    certificate = certified_curve(factors, split, [epsilon * (1 + 1e-12)], KS, **options)
    attacked = personal_curve(factors, split, [epsilon], KS, **options)
    more = personal_curve(factors, split, [epsilon], KS, steps=5, **options)
    for name, values in attacked.per_user.items():
        assert (values >= certificate.per_user[name]).all()
        assert (values >= more.per_user[name]).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_attack_on_each_user_alone_meets_the_certificate_or_comes_near(seed):
    factors, split = larger_world(seed)
    sizes = [0, 0.02, 0.1, 0.2]
    certified, attacked = (
        curve(factors, split, sizes, (2, 5), side="items")
        for curve in (certified_curve, personal_curve)
    )
    for name, values in certified.per_user.items():
        np.testing.assert_array_equal(attacked.per_user[name], values)
    clean = evaluate(factors, split, (2, 5))
    certified, attacked = (
        curve(factors, split, sizes, (2, 5))["ndcg@5"]
        for curve in (certified_curve, personal_curve)
    )
    assert attacked[0] == certified[0] == clean["ndcg@5"]
    lost, found = clean["ndcg@5"] - certified, clean["ndcg@5"] - attacked
    assert (found[2:] > 0.4 * lost[2:]).all(), "much of what the certificate fears can be done"
    noise = RandomNoise(relative=False)
    noise = measure(Recommender(*factors, split), noise, epsilons=sizes, ks=(2, 5)).curve["ndcg@5"]
    assert (attacked[2:] < noise[2:]).all()


@pytest.mark.parametrize("steps", [-1, 1.5, True])
def test_bad_steps_are_refused(steps):
    factors, split = larger_world(0)
    with pytest.raises(InputError, match="steps must be an integer of at least 0"):
        personal_curve(factors, split, [0.1], steps=steps)


def naive_certificate(factors, split, epsilon, k, a, b):
    """The definition, pair by pair: ranks from the dual of the pair problem, by bisection in t."""
    U, V = (part.numpy() for part in factors)
    found = []
    for user in np.flatnonzero(split.test.user_degrees):
        own, seen = split.test.items_of(user), split.train.items_of(user)
        others = np.setdiff1d(np.arange(len(V)), np.concatenate([own, seen]))
        n = np.linalg.norm(U[user])
        overtakers = []
        for i in own:
            falls = 0
            for j in others:
                d = V[i] - V[j]
                # max over t of gap - eb((n^2+ea^2)/t + t) - ea||d - (2eb/t)u||: strong duality.
                t = np.linspace(max(n - epsilon * a, 1e-9), n + epsilon * a + 1e-9, 4001)
                pull = np.linalg.norm(d[None] - (2 * epsilon * b / t)[:, None] * U[user], axis=1)
                best = (
                    U[user] @ d
                    - epsilon * b * ((n**2 + (epsilon * a) ** 2) / t + t)
                    - epsilon * a * pull
                ).max()
                falls += best <= 0
            overtakers.append(falls)
        hits = np.zeros(k, dtype=bool)
        for r, count in enumerate(sorted(overtakers)):
            if count + r < k:
                hits[count + r] = True
        ideal = sum(1 / math.log2(p + 2) for p in range(min(k, len(own))))
        found.append(sum(1 / math.log2(p + 2) for p in np.flatnonzero(hits)) / ideal)
    return np.array(found)


@settings(max_examples=100, deadline=None)
@given(worlds(dims=(2, 4), whole=False), st.floats(0.01, 0.6), st.sampled_from(SIDES))
def test_the_curve_is_the_definition(world, epsilon, side):
    factors, split = world
    a, b = rooms(factors, False, side)
    curve = certified_curve(factors, split, [epsilon], (3,), side=side)
    # A pair within 1e-3 of its radius may be decided differently by the grid of the oracle.
    low = naive_certificate(factors, split, epsilon * 1.001, 3, a, b)
    high = naive_certificate(factors, split, epsilon * 0.999, 3, a, b)
    assert (low <= curve.per_user["ndcg@3"][0] + 1e-12).all()
    assert (curve.per_user["ndcg@3"][0] <= high + 1e-12).all()


def larger_world(seed, n_users=9, n_items=150, dim=6):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(n_users, dim)), rng.normal(size=(n_items, dim))
    V *= rng.uniform(0.2, 2.0, size=(n_items, 1))
    relevant = np.argsort(-(U @ V.T + rng.normal(size=(n_users, n_items))), axis=1)
    train = [(u, i) for u in range(n_users) for i in relevant[u, 8:14]]
    test = [(u, i) for u in range(n_users) for i in relevant[u, : 1 + u % 8]]
    factors = Factors(torch.from_numpy(U).float(), torch.from_numpy(V).float())
    return factors, split_of(train, test, n_users, n_items)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bound", ["tight", "plain"])
def test_no_block_and_no_first_rivals_show_in_the_result(monkeypatch, seed, side, bound):
    factors, split = larger_world(seed)
    sizes = [0, 0.01, 0.05, 0.2, 1.0]
    monkeypatch.setattr(search, "_FIRST_RIVALS", 150)
    curve = certified_curve(factors, split, sizes, (2, 5), side=side, bound=bound)
    radii = certified_radii(factors, split, (1, 3), side=side, bound=bound)
    for first, block in ((1, 16 * 2**20), (3, 1), (7, 8 * 150 * 2)):
        monkeypatch.setattr(search, "_FIRST_RIVALS", first)
        monkeypatch.setattr(search, "BLOCK_BYTES", block)
        again = certified_curve(factors, split, sizes, (2, 5), side=side, bound=bound)
        for name, values in curve.per_user.items():
            np.testing.assert_array_equal(again.per_user[name], values)
        radii_again = certified_radii(factors, split, (1, 3), side=side, bound=bound)
        for k, values in radii.radii.items():
            np.testing.assert_allclose(radii_again.radii[k], values, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 3])
def test_the_radius_of_a_top_list_is_exact(seed, k):
    factors, split = larger_world(seed, n_users=4, n_items=50)
    found = certified_radii(factors, split, (k,), relative=True).radii[k]
    a, b = rooms(factors, True, "both")
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


def test_radii_where_there_is_nothing_to_lose_or_all():
    factors = Factors(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0], [2.0, 2.0]]))
    split = split_of([(0, 0), (1, 1)], [(0, 1), (1, 0)], 2, 4)
    found = certified_radii(factors, split, (3,))
    assert np.isinf(found.radii[3]).all()
    assert found.as_dict()["top3"] == {"mean": None, "q25": None, "median": None, "q75": None}
    alike = Factors(torch.ones(2, 2), torch.ones(4, 2))
    ties = certified_radii(alike, split, (1, 2))
    assert ties.radii[1].tolist() == ties.radii[2].tolist() == [0.0, 0.0]
    assert ties.as_dict()["top2"]["median"] == 0.0


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("side", SIDES)
def test_epsilon_zero_is_the_clean_result_and_curves_fall(seed, side):
    factors, split = larger_world(seed)
    clean = evaluate(factors, split, (3, 7))
    curve = certified_curve(factors, split, [0, 1e-9, 0.05, 0.3, 50], (3, 7), side=side)
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


def test_relative_certificates_do_not_see_the_scale_of_the_factors():
    factors, split = larger_world(0)
    bigger = Factors(factors.users * 8, factors.items * 0.25)
    sizes = [0, 0.01, 0.03, 0.1]
    one, two = (certified_curve(f, split, sizes, relative=True) for f in (factors, bigger))
    for name, values in one.values.items():
        np.testing.assert_array_equal(two[name], values)
    radii = [certified_radii(f, split, relative=True).radii[1] for f in (factors, bigger)]
    np.testing.assert_allclose(*radii, rtol=1e-9)


def test_half_precision_and_masks():
    factors, split = larger_world(1)
    half = Factors(factors.users.half(), factors.items.half())
    single = Factors(half.users.float(), half.items.float())
    for mask in (None, [], ["train"]):
        one, two = (certified_curve(f, split, [0, 0.05], mask=mask) for f in (half, single))
        np.testing.assert_array_equal(one["ndcg@10"], two["ndcg@10"])
    assert one.protocol.masked == ("train",)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=3))
def test_worst_hits_are_the_worst_of_all_rankings_that_the_counts_allow(counts):
    """Enumerate rankings as what is ahead of each relevant item, ordered: m_1 <= m_2 <= ..."""
    rows = np.repeat(np.arange(len(counts)), [len(row) for row in counts])
    hits = worst_hits(np.concatenate(counts), rows, len(counts), 5)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilons": [0.2, 0.1]}, "ascending"),
        ({"epsilons": [-1.0]}, "not negative"),
        ({"side": "rows"}, "side must be one of both, users, items, got 'rows'"),
        ({"bound": "loose"}, "bound must be one of tight, plain, got 'loose'"),
        ({"ks": ()}, "at least one cutoff"),
        ({"mask": ["tests"]}, "mask must name parts"),
    ],
)
def test_bad_input_is_refused(options, message):
    parity = torch.eye(2)[torch.arange(30) % 2]
    right = Factors(parity[:20], parity)
    with pytest.raises(InputError, match=message):
        certified_curve(right, BOARD, **{"epsilons": [0.1], **options})
    if "epsilons" not in options:
        with pytest.raises(InputError, match=message):
            certified_radii(right, BOARD, **options)
    with pytest.raises(InputError, match="belong to different data"):
        certified_curve(Factors(parity, parity), BOARD, [0.1])
    broken = Factors(right.users / 0, right.items)
    with pytest.raises(InputError, match="must be finite"):
        certified_curve(broken, BOARD, [0.1])
