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
from tests.robustness.helpers import BOARD, RIGHT, random_target

# Two seeds while one works, the third before one hands in.
SEEDS = [0, 1, pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l1"}, "norm must be one of row, frobenius, spectral, got 'l1'"),
        ({"unit": "percent"}, "unit must be one of relative, own, absolute, got 'percent'"),
        ({"side": "rows"}, "side must be one of both, users, items, got 'rows'"),
        ({"knowledge": "all"}, "knowledge must be one of none, data, labels, got 'all'"),
        ({"norm": None}, "norm must be one of"),
        ({"unit": True}, "unit must be one of"),
        ({"norm": "frobenius", "unit": "own"}, "goes with the norm 'row', got 'frobenius'"),
        ({"norm": "spectral", "unit": "own"}, "goes with the norm 'row', got 'spectral'"),
    ],
)
def test_what_is_no_threat_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Threat(**options)


def test_the_default_is_relative_on_both_sides_by_whom_the_attack_assumes():
    assert Threat() == Threat("row", "relative", "both", None)
    assert Threat().as_dict() == {
        "norm": "row", "unit": "relative", "side": "both", "knowledge": None,
    }  # fmt: skip
    json.dumps(Threat().as_dict())


EVERY = [
    words
    for words in itertools.product(BUDGETS, UNITS, SIDES, KNOWLEDGE)
    if words[1] != "own" or words[0] == "row"
]


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
    assert threat.unit_words.removeprefix("in ") in threat.axis


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
    assert moved
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
    alone = measure(
        Recommender(*target.factors, target.known), attack, epsilons=[0, 0.1], **options
    )
    expected = {"random": "none", "certificate": "labels", "personal": "labels"}
    assert alone.threat.knowledge == expected.get(attack, "data"), "no held-out pairs: no labels"
    assert alone.with_data is None


@pytest.mark.parametrize("attack", ["auto", "cutoff", "fgm-bce", "pgd-softmax"])
def test_labels_need_pairs_that_were_held_out(attack):
    target = random_target(0)
    alone = Recommender(*target.factors, target.known)
    with pytest.raises(InputError, match="knowledge 'labels' is about held-out pairs"):
        measure(alone, attack, Threat(knowledge="labels"), [0, 0.1])


def test_knowledge_is_which_pairs_are_pushed_down():
    target = random_target(0)
    seen = {}
    for knowledge, pairs in (("data", target.known), ("labels", target.relevant)):
        assert Threat(knowledge=knowledge).pairs(target) is pairs
        named = measure(target, "fgm-softmax", Threat(knowledge=knowledge), [0, 0.3]).curve
        built = measure(target, FGM(Softmax(pairs)), epsilons=[0, 0.3]).curve
        assert named.as_lists() == built.as_lists()
        seen[knowledge] = named["ndcg@10"][1]
    assert seen["labels"] < seen["data"], "who knows what counts does more harm"


@pytest.mark.parametrize("attack", ["fgm-bce", "pgd-bpr", "auto", "cutoff"])
def test_who_knows_nothing_has_nothing_to_aim_at(attack):
    target = random_target(0)
    with pytest.raises(InputError, match="an attacker who knows nothing has no pairs to aim at"):
        measure(target, attack, Threat(knowledge="none"), [0, 0.1])


@pytest.mark.parametrize("attack", ["random", "certificate", "personal"])
@pytest.mark.parametrize("knowledge", KNOWLEDGE)
def test_where_knowledge_does_not_matter_it_changes_nothing(attack, knowledge):
    target = random_target(0)
    plain = measure(target, attack, epsilons=[0, 0.1]).curve
    curve = measure(target, attack, Threat(knowledge=knowledge), [0, 0.1]).curve
    assert curve.as_dict() == plain.as_dict()
    assert curve.threat.knowledge == ("none" if attack == "random" else "labels")


@pytest.mark.parametrize("norm", ["frobenius", "spectral"])
def test_certificates_are_about_rows(norm):
    target = random_target(0)
    for attack in ("certificate", "personal"):
        for sizes in ([0, 0.1], [0]):
            with pytest.raises(InputError, match=f"norm 'row' only, got '{norm}'"):
                measure(target, attack, Threat(norm), sizes)
    with pytest.raises(InputError, match="there are certificates for the norm 'row' only"):
        certified_radii(target, Threat(norm))


def test_attacks_that_there_are_not():
    target = random_target(0)
    for name in ("fgm", "mse", "fgm-mse", "pgd-", "auto-bce", "", "quantization"):
        if name == "fgm":
            assert measure(target, name, epsilons=[0]).spec.name == "fgm-bce"
            continue
        with pytest.raises(InputError, match="(attack|objective) must be one of"):
            measure(target, name, epsilons=[0])
    for options, message in (
        ({"steps": 0}, "steps must be an integer of at least 1"),
        ({"restarts": 1.5}, "restarts must be an integer"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"bound": "loose"}, "bound must be one of tight, plain, got 'loose'"),
    ):
        with pytest.raises(InputError, match=message):
            measure(target, "pgd-bce", epsilons=[0], **options)
    with pytest.raises(InputError, match="attack must be a name, an AttackSpec"):
        measure(target, AttackSpec("pgd"), epsilons=[0], steps=3)
    with pytest.raises(InputError, match="attack must be a name, an AttackSpec"):
        measure(target, FGM, epsilons=[0])
    with pytest.raises(InputError, match="unknown option .stepz. of an attack"):
        measure(target, "pgd-bce", epsilons=[0], stepz=3)


def test_an_attack_that_is_built_has_its_budget_and_options():
    target = random_target(0)
    noise = RandomNoise()
    for options in ({"threat": Threat()}, {"steps": 3}):
        with pytest.raises(InputError, match="an attack that is built has its budget and options"):
            measure(target, noise, epsilons=[0], **options)
    built = PGD(Softmax(target.known), BUDGETS["spectral"](), relative=False, side="items")
    result = measure(target, built, epsilons=[0, 0.5])
    assert result.threat == Threat("spectral", "absolute", "items", "data")
    assert result.control.threat == Threat("spectral", "absolute", "items", "none")
    assert result.spec.name == "robustcf.attacks.gradient:PGD-softmax"
    assert measure(target, built).curve.epsilons == ATTACK_SIZES["absolute"]
    own = measure(target, RandomNoise(OwnRowBudget()), epsilons=[0, 0.5])
    assert own.threat == Threat("row", "own", "both", "data")
    assert own.curve.as_lists() == own.control.as_lists()


@pytest.mark.parametrize("attack", ["auto", "fgm-bce", "random", "certificate", "personal"])
@pytest.mark.parametrize("unit", ["relative", "own", "absolute"])
def test_sizes_beyond_computing_are_the_askers_fault(attack, unit):
    for size in (1e160, 1e308):
        with pytest.raises(
            InputError, match=r"an attack of size 1e\+\d+ makes embeddings or scores"
        ):
            measure(random_target(0), attack, Threat(unit=unit), [0, size], steps=2)
    # Large is not yet too large.
    found = measure(random_target(0), attack, Threat(unit=unit), [0, 1e9], ks=(3,), steps=2)
    assert np.isfinite(found.curve["ndcg@3"]).all()


def test_sizes_when_none_are_asked_for():
    target = Recommender(*RIGHT, BOARD)
    for name in NAMES:
        spec = AttackSpec.parse(name)
        for unit in UNITS:
            expected = CERTIFIED_SIZES if spec.way.certifies else ATTACK_SIZES[unit]
            assert spec.sizes(unit) == expected
    assert measure(target, "random").curve.epsilons == ATTACK_SIZES["relative"]
    assert measure(target, "random", Threat(unit="absolute")).curve.epsilons[-1] == 1.6
    assert measure(target, "certificate").curve.epsilons == CERTIFIED_SIZES


def test_cutoffs_are_sorted_and_checked():
    target = Recommender(*RIGHT, BOARD)
    result = measure(target, "random", epsilons=[0], ks=[7, 3, 7])
    assert result.ks == [3, 7]
    assert result.metric == "ndcg@3"
    for ks, message in (([], "at least one cutoff"), ([0], "every cutoff must be an integer")):
        with pytest.raises(InputError, match=message):
            measure(target, "random", epsilons=[0], ks=ks)
