"""Threat: what it says, what it allows, and every way to get it wrong."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from robustcf.attacks import BUDGETS, FGM, PGD, OwnRowBudget, RandomNoise, Softmax
from robustcf.attacks.base import SIDES
from robustcf.errors import InputError
from robustcf.recommender import Recommender
from robustcf.robustness import AttackSpec, Threat, certified_radii, measure
from robustcf.robustness.table import ATTACK_SIZES, CERTIFIED_SIZES, NAMES
from robustcf.robustness.threat import KNOWLEDGE, UNITS
from tests.robustness.helpers import random_target

# Two seeds while one works, the third before one hands in.
SEEDS = [0, 1, pytest.param(2, marks=pytest.mark.slow)]
EVERY = [
    words
    for words in itertools.product(BUDGETS, UNITS, SIDES, KNOWLEDGE)
    if words[1] != "own" or words[0] == "row"
]


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


def test_the_default_is_relative_on_both_sides_by_whom_the_attack_assumes():
    default = {"norm": "row", "unit": "relative", "side": "both", "knowledge": None}
    assert json.loads(json.dumps(Threat().as_dict())) == default


@pytest.mark.parametrize("words", EVERY, ids="-".join)
def test_every_threat_says_what_a_size_means(words):
    threat = Threat(*words)
    norm, unit, side, _ = words
    assert threat.relative == (unit != "absolute")
    assert threat.budget.name == ("own row" if unit == "own" else norm)
    assert f"{norm} budget" in threat.axis
    assert ("absolute" in threat.axis) == (not threat.relative)
    assert (side in threat.axis) == (side != "both")
    unit_words = {"row": "median row norms", "frobenius": "Frobenius", "spectral": "spectral norms"}
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("attack", ["fgm-softmax", "pgd-bpr", "cutoff", "auto", "random"])
def test_own_sizes_are_shares_of_each_row(seed, side, attack, monkeypatch):
    """By numpy: no row moves by more than its share, and the longest share is what is said."""
    target = random_target(seed)
    moved = []
    evaluate = Recommender.evaluate

    def watched(self, ks=(10, 20), factors=None):
        if factors is not None and factors is not target.factors:
            moved.append(factors)
        return evaluate(self, ks, factors)

    monkeypatch.setattr(Recommender, "evaluate", watched)
    result = measure(target, attack, Threat(unit="own", side=side), [0, 0.3], steps=3)
    largest = dict.fromkeys(("users", "items"), 0.0)
    for factors in moved:
        for name, before, after in zip(largest, target.factors, factors, strict=True):
            before, after = before.numpy(), after.numpy()
            shares = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
            assert shares.max() <= 0.3
            assert shares.max() == 0 or side in ("both", name)
            largest[name] = max(largest[name], shares.max())
    assert max(largest.values()) == pytest.approx(0.3)
    assert result.curve.threat.unit == "own"
    for name, share in result.curve.realised[1].items():
        assert share <= largest[name] + 1e-12


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
    if attack in blind:  # whatever it is told
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
    target = random_target(0)
    for attack in ("certificate", "personal"):
        for sizes in ([0, 0.1], [0]):
            with pytest.raises(InputError, match=norm):
                measure(target, attack, Threat(norm), sizes)
    with pytest.raises(InputError, match=norm):
        certified_radii(target, Threat(norm))


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
    assert measure(target, built).curve.epsilons == ATTACK_SIZES["absolute"]
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
        expected = CERTIFIED_SIZES if name in ("certificate", "personal") else ATTACK_SIZES[unit]
        assert AttackSpec.parse(name).sizes(unit) == expected
    for attack, unit in (("random", "relative"), ("random", "absolute"), (RandomNoise(), "own")):
        threat = Threat(unit=unit) if isinstance(attack, str) else None
        assert measure(target, attack, threat).curve.epsilons == ATTACK_SIZES[unit]
    result = measure(target, "certificate", ks=[7, 3, 7])
    assert result.curve.epsilons == CERTIFIED_SIZES
    assert (result.ks, result.metric) == ([3, 7], "ndcg@3")
