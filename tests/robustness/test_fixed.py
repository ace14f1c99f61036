"""Fixed columns: attacks leave them, units do not count them, certificates stay sound."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, PGD, RandomNoise, Softmax
from robustcf.attacks.certificates.bounds import BOUNDS
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.topk import top_items
from robustcf.recommender import Recommender
from robustcf.robustness import Threat, certified_radii, harden, measure
from tests.robustness.helpers import random_world

SEEDS = [0, 1, pytest.param(2, marks=pytest.mark.slow)]
SIDES = ("both", "users", "items")
KS = (1, 2, 4)


def biased(
    seed: int, scale: float = 30.0, n_users: int = 12, n_items: int = 15, dim: int = 3
) -> tuple[Recommender, list[int]]:
    """A factorization with biases ``u.v + b_i``, written as columns ``(1, b_i)`` and ``(c, 0)``."""
    U, V, train, test = random_world(seed, n_users, n_items, dim)
    rng = np.random.default_rng([seed, 7])
    ones, zeros = np.ones((n_users, 1)), np.zeros((n_items, 1))
    bias = scale * rng.normal(size=(n_items, 1))
    U = np.hstack([U[:, :1], ones, U[:, 1:], scale * rng.normal(size=(n_users, 1))])
    V = np.hstack([V[:, :1], bias, V[:, 1:], zeros])
    fixed = [1, dim + 1]
    return Recommender(U, V, train, test, fixed=fixed), fixed


# --- attacks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack", ["fgm-bpr", "pgd-softmax", "cutoff", "auto", "random", "robustcf.attacks:RandomNoise"]
)
@pytest.mark.parametrize("unit", ["relative", "absolute"])
@pytest.mark.parametrize("norm", BUDGETS)
@pytest.mark.slow
def test_no_attack_moves_them(attack, norm, unit):
    target, fixed = biased(0)
    moved = []
    options = {} if ":" in attack else {"steps": 3}
    options["on_attacked"] = lambda size, factors, _: moved.append(factors) if size else None
    found = measure(target, attack, Threat(norm, unit), [0, 0.1, 0.5], **options).curve
    assert len(moved) >= 2
    for factors in moved:
        for before, after in zip(target.factors, factors, strict=True):
            assert torch.equal(after[:, fixed], before[:, fixed])
    budget = BUDGETS[norm]()
    for name, part in zip(("users", "items"), target.factors, strict=True):
        whole = 0.5 * (budget.unit(part[:, target.free]) if unit == "relative" else 1.0)
        assert found.realised[2][name] <= whole
    assert any(not torch.equal(f.users, target.factors.users) for f in moved), "the rest moves"


def moved_items(
    target: Recommender, user: int, x: np.ndarray, size: float, down: list[int] | None = None
) -> Factors:
    """All items in the worst place for one user at x: these, or the relevant ones, down."""
    U, V = (part.clone().double() for part in target.factors)
    U[user] = torch.from_numpy(x)
    direction = np.zeros_like(x)
    direction[target.free] = x[target.free]
    length = np.linalg.norm(direction)
    signs = torch.ones(len(V), dtype=torch.float64)
    signs[target.relevant.items_of(user).tolist() if down is None else down] = -1
    if length > 0:
        V += size * signs[:, None] * torch.from_numpy(direction / length)
    return Factors(U, V)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [30.0, 0.01])
def test_the_attack_on_each_user_alone_is_one_that_exists(seed, scale):
    """Where items alone move it is the explicit attack, user by user."""
    target, _ = biased(seed, scale)
    size = 0.2
    found = measure(target, "personal", Threat(unit="absolute", side="items"), [size], KS).curve
    for row, user in enumerate(found.users):
        u = target.factors.users[user].numpy()
        report = target.evaluate(KS, moved_items(target, user, u, size))
        for name, values in report.per_user.items():
            assert found.per_user[name][0, row] == pytest.approx(values[row], abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("attack", ["fgm-softmax", "pgd-bpr", "random", "certificate", "personal"])
def test_relative_sizes_do_not_count_them(seed, attack):
    """The same scores with fixed columns of another length give the same curve."""
    target, fixed = biased(seed, 1.0)
    U, V = (part.clone() for part in target.factors)
    U[:, fixed] *= 64.0
    V[:, fixed] /= 64.0
    other = target.with_factors(Factors(U, V))
    sizes = [0, 0.05, 0.3]
    for unit in ("own", "relative"):
        how = {"threat": Threat(unit=unit), "epsilons": sizes, "ks": KS}
        results = [measure(each, attack, **how) for each in (target, other)]
        one, two = (result.curve for result in results)
        for name, values in one.per_user.items():
            np.testing.assert_allclose(two.per_user[name], values, atol=1e-9)
        for n in range(3):
            assert one.realised[n] == pytest.approx(two.realised[n])
        assert results[0].extra().get("unevenness") == results[1].extra().get("unevenness")


def test_an_attack_object_must_have_the_same_fixed_columns():
    target, fixed = biased(0)
    with pytest.raises(InputError, match="columns"):
        measure(target, RandomNoise(), epsilons=[0, 0.1])
    built = measure(target, RandomNoise(fixed=fixed[::-1]), epsilons=[0, 0.1])
    assert built.curve.as_lists() == measure(target, "random", epsilons=[0, 0.1]).curve.as_lists()
    for bound in BOUNDS:  # the tight one is not sound, see below
        result = measure(target, "certificate", epsilons=[0, 0.05], bound=bound)
        assert result.spec.bound == result.as_dict()["bound"] == "plain"
        assert certified_radii(target, bound=bound).bound == "plain"


# --- certificates -----------------------------------------------------------------------------


def check_not_below(report, certificate, more, rows=slice(None)) -> None:
    for name, values in report.per_user.items():
        lower = certificate.per_user[name][0][rows]
        assert (values[rows] >= lower - 1e-12).all(), (name, values[rows], lower, more)


def places_to_stand(target: Recommender, user: int, reach: float, rng: np.random.Generator):
    """Points that a user may be moved to: a net of the ball in the columns that may move."""
    u, free = target.factors.users[user].numpy(), target.free
    yield u
    directions = rng.normal(size=(24, len(free)))
    if len(free) == 2:
        angles = np.linspace(0, 2 * np.pi, 48, endpoint=False)
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    V = target.factors.items.numpy()[:, free]
    own = target.relevant.items_of(user)
    gaps = [V[j] - V[i] for i in own for j in range(len(V)) if j not in own]
    for direction in (*directions, *gaps[:20]):
        length = np.linalg.norm(direction)
        for share in (1.0, 0.6) if length > 0 else ():
            x = u.copy()
            x[free] += share * reach * direction / length
            yield x


def check_sound(target: Recommender, size: float, side: str, relative: bool, seed: int) -> None:
    """No attack that leaves the fixed columns alone goes below what is certified."""
    threat = Threat(unit="relative" if relative else "absolute", side=side)
    certificate = measure(target, "certificate", threat, [size * (1 + 1e-9)], KS).curve
    # What was really allowed, measured apart from the package.
    norms = [np.linalg.norm(part.numpy()[:, target.free], axis=1) for part in target.factors]
    units = [np.sort(n)[(len(n) - 1) // 2] if relative else 1.0 for n in norms]
    a, b = (0.0 if side == "items" else units[0]), (0.0 if side == "users" else units[1])
    how = threat.options(target)
    attacks = [RandomNoise(seed=seed + n, **how) for n in range(6)]
    for pairs in (target.known, target.relevant):
        attacks.append(FGM(Softmax(pairs), **how))
        attacks.append(PGD(Softmax(pairs), steps=4, restarts=2, seed=seed, **how))
    for attack in attacks:
        report = target.evaluate(KS, attack.perturb(target.factors, size).factors)
        check_not_below(report, certificate, attack.name)
    personal = measure(target, "personal", threat, [size], KS).curve
    for name, values in personal.per_user.items():
        assert (values >= certificate.per_user[name] - 1e-12).all()
    rng = np.random.default_rng(seed)
    for row, user in enumerate(certificate.users[:3]):
        for x in places_to_stand(target, user, a * size, rng):
            if a == 0 and not np.array_equal(x, target.factors.users[user].numpy()):
                continue
            report = target.evaluate(KS, moved_items(target, user, x, b * size))
            check_not_below(report, certificate, x, [row])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [1000.0, 1.0, 1e-3])
@pytest.mark.parametrize("side", SIDES)
def test_no_attack_falls_below_the_certificate(seed, scale, side):
    target, _ = biased(seed, scale, n_users=8, n_items=10, dim=2 + seed)
    for size in (0.02, 0.3):
        check_sound(target, size, side, relative=bool(seed % 2), seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_fixed_columns_raise_the_certificate(seed):
    target, _ = biased(seed, 30.0, n_users=8, n_items=10, dim=3)
    how = {"threat": Threat(unit="absolute"), "epsilons": [0.3], "ks": KS, "bound": "plain"}
    models = (target, Recommender(*target.factors, target.split))
    some, whole = (measure(model, "certificate", **how).curve["ndcg@4"] for model in models)
    assert some[0] > whole[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [30.0, 0.01])
def test_radii_hold_too(seed, scale):
    """Within the radius no attack in a net changes the set of the first k."""
    target, _ = biased(seed, scale, n_users=6, n_items=9, dim=2)
    k = 2
    found = certified_radii(target, Threat(unit="absolute"), (k,))
    assert (found.radii[k] > 0).any()
    rng = np.random.default_rng(seed)
    for row, user in enumerate(found.users):
        size = found.radii[k][row] * (1 - 1e-9)
        if not np.isfinite(size):
            continue
        own = top_items(target.factors, [user], k, target.seen)[0].tolist()
        for x in places_to_stand(target, user, size, rng):
            moved = moved_items(target, user, x, size, own)
            assert set(top_items(moved, [user], k, target.seen)[0].tolist()) == set(own)


@pytest.mark.parametrize("seed", SEEDS)
def test_rankings_by_bias_alone_are_certified_at_any_size(seed):
    rng = np.random.default_rng(seed)
    bias = np.sort(rng.normal(size=20))[::-1]
    U = np.hstack([1e-6 * rng.normal(size=(5, 2)), np.ones((5, 1))])
    V = np.hstack([1e-6 * rng.normal(size=(20, 2)), bias[:, None]])
    relevant = np.zeros((5, 20))
    relevant[:, :3] = 1
    target = Recommender(U, V, relevant, fixed=[2])
    curve = measure(target, "certificate", epsilons=[0, 1.0, 10.0], ks=(3,)).curve
    assert curve["ndcg@3"].tolist() == [1.0, 1.0, 1.0]
    free = measure(Recommender(U, V, relevant), "certificate", epsilons=[1.0]).curve
    assert free["ndcg@10"][0] < 1


# --- hardening --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [30.0, 0.01])
def test_hardening_leaves_them_and_every_ranking(seed, scale):
    target, fixed = biased(seed, scale, n_users=20, n_items=25)
    users, items = target.factors
    shifted = target.with_factors(Factors(users, items + 2.0 * torch.ones(1, 5).double()))
    for each in (target, shifted):
        safer = harden(each)
        assert safer.fixed == tuple(fixed)
        for before, after in zip(each.factors, safer.factors, strict=True):
            assert torch.equal(after[:, fixed], before[:, fixed])
        before, after = (top_items(t.factors, range(20), 25, None) for t in (each, safer))
        np.testing.assert_array_equal(after, before)
        assert safer.evaluate().values == each.evaluate().values
        grams = [part[:, safer.free].T @ part[:, safer.free] for part in safer.factors]
        torch.testing.assert_close(*grams, atol=1e-8, rtol=1e-8)
    proved = [measure(t, "certificate", epsilons=[0.01]).curve for t in (shifted, harden(shifted))]
    assert proved[1]["ndcg@10"][0] >= proved[0]["ndcg@10"][0]
