"""Threat: what it says, what it allows, and every way to get it wrong."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from robustcf.attacks import BUDGETS, FGM, PGD, OwnRowBudget, RandomNoise, Softmax
from robustcf.attacks.base import SIDES
from robustcf.data import load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import Recommender
from robustcf.robustness import AttackSpec, Threat, certified_radii, measure
from robustcf.robustness.table import ABSOLUTE_SIZES, ATTACK_SIZES, CERTIFIED_SIZES, NAMES
from robustcf.robustness.threat import KNOWLEDGE, UNITS
from robustcf.training.fitting import fit_split
from robustcf.training.presets import preset
from tests.robustness.helpers import random_target, shortest_items

SEEDS = [0, 1, pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l1"}, "norm"),
        ({"norm": None}, "norm"),
        ({"unit": "percent"}, "unit"),
        ({"unit": True}, "unit"),
        ({"side": "rows"}, "side"),
        ({"knowledge": "all"}, "knowledge"),
        ({"norm": "frobenius", "unit": "own"}, "frobenius"),
        ({"norm": "spectral", "unit": "own"}, "spectral"),
    ],
)
def test_what_is_not_a_threat_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Threat(**options)


def test_the_axis_names_budget_unit_and_side():
    default = {"norm": "row", "unit": "own", "side": "both", "knowledge": None}
    assert json.loads(json.dumps(Threat().as_dict())) == default
    assert {Threat(norm).unit for norm in BUDGETS if norm != "row"} == {"relative"}
    unit_words = {"row": "median row norms", "frobenius": "Frobenius", "spectral": "spectral norms"}
    for norm, unit, side, knowledge in itertools.product(BUDGETS, UNITS, SIDES, KNOWLEDGE):
        if unit == "own" and norm != "row":
            continue
        threat = Threat(norm, unit, side, knowledge)
        assert threat.relative == (unit != "absolute")
        assert threat.budget.name == ("own row" if unit == "own" else norm)
        assert f"{norm} budget" in threat.axis
        assert ("absolute" in threat.axis) == (not threat.relative)
        assert (side in threat.axis) == (side != "both")
        assert (unit_words[norm] in threat.axis) == (unit == "relative")
        assert ("each row's own length" in threat.axis) == (unit == "own")
        assert threat.unit_words in threat.axis


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("norm", BUDGETS)
@pytest.mark.parametrize("side", SIDES)
def test_what_is_spent_is_what_numpy_measures(seed, norm, side):
    """In units of the factors' own size, by numpy; the other side is left alone."""
    target = random_target(seed)
    U, V = (part.numpy() for part in target.factors)
    size = {
        "row": lambda X: np.sort(np.linalg.norm(X, axis=1))[(len(X) - 1) // 2],
        "frobenius": lambda X: np.sqrt((X**2).sum()),
        "spectral": lambda X: np.linalg.svd(X, compute_uv=False)[0],
    }[norm]
    for unit in ("relative", "absolute"):
        curve = measure(target, "fgm-softmax", Threat(norm, unit, side), [0, 0.3]).curve
        for name, part in (("users", U), ("items", V)):
            whole = 0.3 * (size(part) if unit == "relative" else 1.0)
            expected = whole if side in ("both", name) else 0.0
            assert curve.realised[1][name] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("attack", "known"),
    [("auto", "labels"), ("cutoff", "labels"), ("fgm-bce", "data"), ("pgd-softmax", "data"),
     ("random", "none"), ("certificate", "labels"), ("personal", "labels"),
     ("robustcf.attacks:FGM", "data")],
)  # fmt: skip
def test_unless_told_an_attacker_knows_what_the_attack_assumes(attack, known):
    target = random_target(0)
    options = {"steps": 2} if ":" not in attack else {}
    result = measure(target, attack, epsilons=[0, 0.1], **options)
    assert result.threat.knowledge == known
    told = measure(target, attack, Threat(knowledge=known), [0, 0.1], **options)
    assert result.as_dict() == told.as_dict()
    assert result.curve.name == told.curve.name
    if result.control is not None:
        assert result.control.threat.knowledge == "none"
    for curve in (result.members or {}).values():
        assert curve.threat.knowledge == known
    blind = {"random": "none", "certificate": "labels", "personal": "labels"}
    if attack in blind:  # regardless of the knowledge granted
        other = measure(target, attack, Threat(knowledge="data"), [0, 0.1])
        assert other.as_dict() == result.as_dict()
    alone = Recommender(*target.factors, target.known)
    found = measure(alone, attack, epsilons=[0, 0.1], **options)
    assert found.threat.knowledge == blind.get(attack, "data"), "no held-out pairs: no labels"
    assert found.with_data is None


@pytest.mark.parametrize("attack", ["auto", "cutoff", "fgm-bce", "pgd-softmax"])
def test_attackers_need_pairs_to_aim_at(attack):
    target = random_target(0)
    with pytest.raises(InputError, match="knows nothing"):
        measure(target, attack, Threat(knowledge="none"), [0, 0.1])
    alone = Recommender(*target.factors, target.known)
    with pytest.raises(InputError, match="held-out"):
        measure(alone, attack, Threat(knowledge="labels"), [0, 0.1])


@pytest.mark.parametrize("norm", ["frobenius", "spectral"])
def test_certificates_are_about_rows(norm):
    for ask in (
        *(lambda m, t, a=a: measure(m, a, t, [0, 0.1]) for a in ("certificate", "personal")),
        lambda model, threat: measure(model, "certificate", threat, [0]),
        certified_radii,
    ):
        with pytest.raises(InputError, match=norm):
            ask(random_target(0), Threat(norm))


@pytest.mark.parametrize(
    ("attack", "options", "message"),
    [
        *((name, {}, "one of") for name in ("mse", "fgm-mse", "pgd-", "auto-bce", "")),
        ("quantization", {}, r"quantization_table\(model\)"),
        ("pgd-bce", {"steps": 0}, "steps"),
        ("pgd-bce", {"restarts": 1.5}, "restarts"),
        ("pgd-bce", {"seed": -1}, "seed"),
        ("pgd-bce", {"bound": "loose"}, "bound"),
        ("pgd-bce", {"stepz": 3}, "stepz"),
        ("pgd-bce", {"objective": "bce"}, "leave the option"),
        (AttackSpec("pgd"), {"steps": 3}, "AttackSpec"),
        (FGM, {}, "AttackSpec"),
        (RandomNoise(), {"threat": Threat()}, "built"),
        (RandomNoise(), {"steps": 3}, "built"),
        ("random", {"threat": "row"}, "Threat"),
        ("random", {"ks": 10}, "ks must be a list"),
        ("random", {"ks": []}, "cutoff"),
        ("random", {"ks": [0]}, "cutoff"),
        ("random", {"epsilons": 0.1}, "epsilons must be a list"),
        ("random", {"epsilons": np.array([])}, "epsilons"),
        (RandomNoise(), {"epsilons": ()}, "epsilons"),
    ],
)
def test_what_measure_refuses(attack, options, message):
    with pytest.raises(InputError, match=message):
        measure(random_target(0), attack, **{"epsilons": [0], **options})


def test_an_attack_that_is_built_has_its_budget_and_options():
    target = random_target(0)
    built = PGD(Softmax(target.known), BUDGETS["spectral"](), relative=False, side="items")
    result = measure(target, built, epsilons=[0, 0.5])
    assert result.threat == Threat("spectral", "absolute", "items", "data")
    assert result.control.threat == Threat("spectral", "absolute", "items", "none")
    assert result.spec.name == "robustcf.attacks.gradient:PGD-softmax"
    assert measure(target, built).curve.epsilons == ABSOLUTE_SIZES
    labels = measure(target, FGM(Softmax(target.relevant)), epsilons=[0, 0.3]).curve
    named = measure(target, "fgm-softmax", Threat(knowledge="labels"), [0, 0.3]).curve
    assert labels.threat.knowledge == "labels"
    assert labels.as_lists() == named.as_lists()
    own = measure(target, RandomNoise(OwnRowBudget()), epsilons=[0, 0.5])
    assert own.threat == Threat("row", "own", "both", "data")
    assert own.curve.as_lists() == own.control.as_lists()


@pytest.mark.parametrize("attack", ["auto", "fgm-bce", "random", "certificate", "personal"])
@pytest.mark.parametrize("unit", UNITS)
def test_sizes_beyond_computing_are_refused(attack, unit):
    for size in (1e160, 1e308):
        with pytest.raises(InputError, match="attack"):
            measure(random_target(0), attack, Threat(unit=unit), [0, size], steps=2)
    # Large is not yet too large.
    found = measure(random_target(0), attack, Threat(unit=unit), [0, 1e9], ks=(3,), steps=2)
    assert np.isfinite(found.curve["ndcg@3"]).all()


def test_sizes_and_cutoffs_when_none_are_asked_for():
    target = random_target(0)
    for name, unit in itertools.product(NAMES, UNITS):
        usual = ABSOLUTE_SIZES if unit == "absolute" else ATTACK_SIZES
        expected = CERTIFIED_SIZES if name in ("certificate", "personal") else usual
        assert AttackSpec.parse(name).sizes(Threat(unit=unit)) == expected
    for attack, unit in (("random", "relative"), ("random", "absolute"), (RandomNoise(), "own")):
        threat = Threat(unit=unit) if isinstance(attack, str) else None
        expected = ABSOLUTE_SIZES if unit == "absolute" else ATTACK_SIZES
        assert measure(target, attack, threat).curve.epsilons == expected
    result = measure(target, "certificate", ks=[7, 3, 7])
    assert result.curve.epsilons == CERTIFIED_SIZES
    assert (result.ks, result.metric) == ([3, 7], "ndcg@3")


def test_a_recommender_says_what_it_stores_and_a_side_it_lacks_is_refused():
    stored = random_target(0)
    computed = stored.serving("fold-in")
    assert (stored.stores, computed.stores) == (("users", "items"), ("map", "items"))
    for model, side in ((computed, "users"), (stored, "items+map")):
        with pytest.raises(InputError, match="stores"):
            measure(model, "fgm-softmax", Threat(side=side), [0, 0.1])
    for side, words in (("both", "users and items"), ("items+map", "items and map")):
        assert Threat(side=side).side_words == words


# --- what the units are invariant to ----------------------------------------------------------


def rotated(model, rng):
    turn = torch.from_numpy(np.linalg.qr(rng.normal(size=(model.factors.dim,) * 2))[0])
    return [part.double() @ turn for part in model.factors]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("attack", ["pairwise", "certificate", "personal", "radii"])
def test_invariances_of_the_units(seed, attack):
    """A rotation; a constant for U and one for V; a constant for each user. As the guide says."""
    target, rng = random_target(seed), np.random.default_rng(seed)
    U, V = target.factors
    each = 2.0 ** torch.from_numpy(rng.integers(-4, 5, (len(U), 1)))
    changes = {"rotation": rotated(target, rng), "common": (8 * U, V / 2), "users": (each * U, V)}
    holds = {
        "own": {"rotation", "common", "users"},
        "relative": {"rotation", "common"},
        "absolute": {"rotation"},
    }
    for unit in UNITS:
        threat = Threat(unit=unit)
        options = {"steps": 6, "control": False} if attack == "pairwise" else {}

        def found(model, threat=threat, options=options):
            if attack == "radii":
                return certified_radii(model, threat, (1,)).radii[1]
            return measure(model, attack, threat, [0.0, 0.04, 0.15], (5,), **options).curve[
                "ndcg@5"
            ]

        plain = found(target)
        same = set()
        for name, factors in changes.items():
            if np.allclose(found(target.with_factors(Factors(*factors))), plain, atol=1e-9):
                same.add(name)
        assert same == holds[unit]


def gamed(model):
    """Rescalings of rows that keep all top-10 lists, strongest first by an earlier search."""
    top = model.scorer.rank(np.arange(model.n_users), 10, model.seen)
    counts = np.bincount(top[top >= 0], minlength=model.n_items)
    U, V = model.factors
    long = torch.ones(len(U), 1).to(U)
    long[: 2 * len(U) // 5] = 1000.0
    never = torch.from_numpy(np.where(counts == 0, 1e-3, 1.0)[:, None]).to(V)
    yield "shortest", Factors(long * U, never * V)
    for share in (0.0, 0.9):  # of the items in lists, those that are not kept
        kept = counts >= max(1, np.quantile(counts[counts > 0], share))
        least = torch.from_numpy(shortest_items(model, kept)[:, None]).to(V)
        yield f"least {share}", Factors(U, least * V)


def check_not_gamed(model, sizes, steps):
    """No rescaling that keeps all lists adds 2 % of clean, and medians show that one can."""
    users = np.arange(model.n_users)
    before = model.scorer.rank(users, 10, model.seen)
    clean = model.evaluate((10,))["ndcg@10"]

    def left(each, unit):
        how = {"threat": Threat(unit=unit), "ks": (10,), "control": False}
        attacked = measure(each, "pairwise", epsilons=sizes, steps=steps, **how).curve
        proved = measure(each, "certificate", epsilons=[sizes[0] / 5], **how).curve
        return np.concatenate([attacked["ndcg@10"], proved["ndcg@10"]])

    plain = {unit: left(model, unit) for unit in ("own", "relative")}
    most = dict.fromkeys(plain, 0.0)
    for _, factors in gamed(model):
        other = model.with_factors(factors)
        assert np.array_equal(other.scorer.rank(users, 10, model.seen), before)
        for unit, values in plain.items():
            most[unit] = max(most[unit], float((left(other, unit) - values).max() / clean))
    assert most["own"] < 0.02
    assert most["relative"] > 0.02, "so it can fail"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rescaling_of_rows_that_keeps_all_lists_raises_results(seed):
    model = random_target(seed, n_users=200, n_items=300, dim=8)
    check_not_gamed(model, [0.05, 0.1], steps=10)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("model", ["softmax-mf", "als"])
def test_no_rescaling_raises_results_on_movielens(model, real_data):
    split = load("ml-100k", data_dir=real_data, download=False)
    config = preset("ml-100k", model).config
    check_not_gamed(fit_split(split, config).recommender(), [0.02, 0.05], steps=20)
