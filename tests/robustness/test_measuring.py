"""``measure``: the order that every curve keeps, what is saved, and under which name."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from robustcf.attacks import FGM, PGD, RandomNoise, Softmax
from robustcf.attacks.base import SIDES
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness import (
    NAMES,
    AttackSpec,
    RobustnessCurve,
    Threat,
    certified_radii,
    harden,
    measure,
    quantization_table,
)
from robustcf.robustness.curves import read_curves
from robustcf.robustness.table import _GUESSING_STEPS, STEPS
from robustcf.robustness.threat import UNITS
from tests.robustness.helpers import random_target

SEEDS = [0, 1, 2]
SIZES = [0.0, 0.01, 0.05, 0.2]
ATTACKS = [name for name in NAMES if name not in ("certificate", "personal")]


# --- order ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("side", SIDES)
def test_nothing_is_below_what_is_certified(seed, unit, side):
    """Certified, then each user attacked alone, then every attack on all of them at once."""
    target = random_target(seed, n_users=16, n_items=25, dim=3)
    threat = Threat(unit=unit, side=side)
    certified, personal = (
        measure(target, name, threat, SIZES, (3, 10)).curve for name in ("certificate", "personal")
    )
    plain = measure(target, "certificate", threat, SIZES, (3, 10), bound="plain").curve
    for name, lowest in certified.per_user.items():
        assert (plain.per_user[name] <= lowest + 1e-12).all()
        assert (personal.per_user[name] >= lowest - 1e-12).all()
    for attack in ("fgm-bce", "pgd-softmax", "cutoff", "auto", "random"):
        for knowledge in ("data", "labels"):
            known = dataclasses.replace(threat, knowledge=knowledge)
            result = measure(target, attack, known, SIZES, (3, 10), steps=6)
            curves = (result.curve, result.per_user, result.control, result.per_user_control)
            for curve in filter(None, curves):
                for name, lowest in certified.per_user.items():
                    assert (curve.per_user[name] >= lowest - 1e-12).all(), (attack, name)
                    assert (curve[name] >= certified[name] - 1e-12).all()
            if result.per_user is not None:
                for name, values in result.curve.values.items():
                    assert (values >= result.per_user[name] - 1e-12).all()
    assert certified["ndcg@3"][0] == personal["ndcg@3"][0]
    assert certified["ndcg@3"][-1] < certified["ndcg@3"][0], "there is something to lose"


@pytest.mark.parametrize("attack", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_size_0_is_the_clean_result_to_the_bit(attack, dtype):
    world = random_target(1)
    factors = Factors(*(part.to(dtype) for part in world.factors))
    target = world.with_factors(factors)
    clean = evaluate(factors, target.split, (3, 10))
    result = measure(target, attack, epsilons=[0, 0.1], ks=(3, 10), steps=2)
    curves = [result.curve, result.control, result.per_user, result.per_user_control]
    curves += (result.members or {}).values()
    assert (result.with_data is not None) == (attack == "auto")
    if result.with_data is not None:
        curves += [result.with_data.curve, result.with_data.per_user]
    for curve in filter(None, curves):
        exact = 0 if curve.kind != "per user" else 1e-15
        for name, values in curve.values.items():
            assert values[0] == pytest.approx(clean[name], abs=exact)
        for name, values in curve.per_user.items():
            np.testing.assert_array_equal(values[0], clean.per_user[name])
        assert curve.realised[0] == {"users": 0.0, "items": 0.0}
        assert curve.protocol == clean.protocol
        np.testing.assert_array_equal(curve.users, clean.users)


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "options", "headline", "how", "columns"),
    [
        ("pgd-softmax", {"steps": 3}, "the attacker knows the training pairs",
         "pgd (3 steps, 1 start; the stronger of PGD and FGM) on softmax",
         ["worst of 2 random", "per user", "per user, 2 random"]),
        ("auto", {"steps": 3}, "joint (one perturbation for all users), the attacker knows the",
         "auto (3 steps, 1 start on pairs",
         ["random", "knows data"]),
        ("auto", {}, "labels", f"auto ({STEPS['auto']} steps", ["knows data"]),
        ("fgm-bce", {"threat": Threat(knowledge="labels")}, "the labels", "fgm on bce", ["random"]),
        ("random", {}, "knows nothing but the embeddings", "random (seed 0)", []),
        ("certificate", {"bound": "plain"}, "certified (no attack of the size leaves any user",
         "certified lower bound (plain)", []),
        ("personal", {}, "each user alone", "each user attacked alone", ["worst of 4 random"]),
    ],
)  # fmt: skip
def test_a_result_in_words_and_values(attack, options, headline, how, columns):
    result = measure(random_target(0), attack, epsilons=[0, 0.2], ks=(5, 10), **options)
    first, header, _, last_row, *others = str(result).splitlines()
    words, _, members = "\n".join(others).partition("\n\n")
    told = words.replace("\n", " ")
    assert len(members.splitlines()) == (3 if attack.startswith("pgd") else 0)
    assert headline in first
    assert told.startswith(how)
    assert "; row budget on both, as a share of each row's own length; " in told
    for name in columns:
        assert f"  {name}: ndcg@5" in header
    assert ("coverage" in header) == (attack not in ("certificate", "personal"))
    assert f"{result.curve['mrr@5'][1]:.4f}" in last_row
    data = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    metrics = {name for name in data if "@" in name}
    others = {
        "random": result.control,
        "per_user": result.per_user,
        "random_per_user": result.per_user_control,
        "with_data": result.with_data and result.with_data.curve,
    }
    for key, curve in others.items():
        assert (key in data) == (curve is not None)
        if curve is not None:
            assert curve.as_lists().items() <= data[key].items()
            assert f"{curve['ndcg@5'][1]:.4f}" in last_row
    expected = {
        *("attack", "objective", "kind", "budget", "relative", "unit", "side", "knowledge"),
        *("epsilons", "realised", "protocol"),
        *(key for key, curve in others.items() if curve is not None),
        *(["random_draws"] if result.control is not None else []),
        *(["members"] if attack.startswith("pgd") else []),
    }
    assert set(data) - metrics == expected | set(result.curve.options)
    if attack == "auto" and not options:
        assert f"auto ({_GUESSING_STEPS} steps" in str(result.with_data), "who guesses takes fewer"


@pytest.mark.parametrize("attack", NAMES)
def test_the_same_result_twice_touches_nothing(tmp_path, attack):
    target = random_target(0)
    first = measure(target, attack, epsilons=[0, 0.2], steps=3)
    path, replaced = first.save(tmp_path)
    assert (path, replaced) == (tmp_path / f"{first.curve.name}.json", False)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    expected = 2 if first.control is None or first.control is first.curve else 4
    assert len(before) == expected + 2 * (attack == "auto"), "and what it does without labels"
    assert measure(target, attack, epsilons=[0, 0.2], steps=3).save(tmp_path) == (path, False)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before
    loaded = RobustnessCurve.load(path)
    assert loaded.as_dict() == first.curve.as_dict()
    assert json.loads(path.read_text())["kind"] == first.curve.kind
    if attack == "auto":
        companion = measure(target, attack, Threat(knowledge="data"), [0, 0.2], steps=3)
        other = tmp_path / f"{companion.curve.name}.json"
        assert RobustnessCurve.load(other).as_dict() == first.with_data.curve.as_dict()
        assert RobustnessCurve.load(other).as_dict() == companion.curve.as_dict()
        assert companion.save(tmp_path) == (other, False)
        assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


def test_pictures_with_another_control_have_another_name():
    def stem(attack, **options):
        return measure(random_target(0), attack, epsilons=[0], **options).picture_stem

    assert stem("fgm-bce", seed=3) == f"{stem('fgm-bce')}-seed3"
    assert "seed" not in stem("random", seed=3), "a setting of the curve"


def test_uneven_rows_are_pointed_out():
    """A note where the median does not represent the rows, only for sizes in medians."""
    target = random_target(0)
    users, items = target.factors
    scales = torch.ones(len(items), 1).double()
    scales[:14] = 30
    uneven = target.with_factors(Factors(users, scales * items))
    scales[5:] = 0
    short = target.with_factors(Factors(users, scales * items))
    for model, threat, note in (
        (uneven, Threat(unit="relative"), "items: root mean square"),
        (short, Threat(unit="relative"), "items: median 0"),
        (uneven, Threat(unit="relative", side="users"), ""),
        (uneven, Threat(unit="absolute"), ""),
        (uneven, Threat(), ""),
        (uneven, Threat("frobenius"), ""),
        (target, Threat(unit="relative"), ""),
    ):
        result = measure(model, "random", threat, [0.1])
        assert ("note: row norms are uneven" in str(result)) == bool(note)
        assert f"({note}" in str(result)
        assert ("unevenness" in result.as_dict()) == (threat.norm + threat.unit == "rowrelative")


@pytest.mark.parametrize("attack", ["fgm-bce", "auto", "cutoff", "pgd-bce"])
def test_knowledge_of_the_labels_helps_on_average(attack):
    total = np.zeros(2)
    for seed in SEEDS:
        threats = [Threat(knowledge=known) for known in ("labels", "data")]
        how = {"epsilons": [0, 0.3], "steps": 10}
        found = [measure(random_target(seed), attack, threat, **how) for threat in threats]
        assert found[0].control.as_dict() == found[1].control.as_dict()
        assert found[0].curve["ndcg@10"][0] == found[1].curve["ndcg@10"][0]
        total += [result.curve["ndcg@10"][1] for result in found]
    assert total[0] < total[1]


# --- names and settings -----------------------------------------------------------------------


DATA = {"known": "data"}


@pytest.mark.parametrize(
    ("name", "base", "same", "other"),
    [
        ("auto", {}, {"steps": STEPS["auto"], "seed": 3, "bound": "plain"}, {"steps": 3}),
        ("auto", DATA, {**DATA, "steps": _GUESSING_STEPS}, {**DATA, "steps": 50}),
        ("cutoff", {}, {"known": "labels"}, DATA),
        ("cutoff", {"part": "train"}, {"part": "train", **DATA}, {"part": "valid"}),
        ("pgd-bce", {}, {"steps": 8, "seed": 3}, {"restarts": 2}),
        ("fgm-bce", {}, {"steps": 3, "seed": 3, "restarts": 2}, {"known": "labels"}),
        ("random", {}, {"known": "labels", "steps": 3}, {"seed": 1}),
        ("certificate", {}, {**DATA, "seed": 1}, {"bound": "plain"}),
        ("personal", {}, {**DATA, "bound": "plain"}, {"unit": "own"}),
    ],
)
def test_settings_tell_what_decides_and_nothing_else(name, base, same, other):
    def settings(known=None, unit="relative", part="test", **options):
        spec = AttackSpec.parse(name, **options)
        return spec.settings(Threat(unit=unit, knowledge=known), part, (0, 0.1), (10,))

    assert settings(**same) == settings(**base)
    assert settings(**other) != settings(**base)


@pytest.mark.parametrize("attack", [*NAMES, "robustcf.attacks:FGM-bpr"])
@pytest.mark.parametrize("part", ["test", "train"])
def test_settings_known_before_are_those_of_the_saved_curves(attack, part, tmp_path):
    target = random_target(0)
    target = target if part == "test" else Recommender(*target.factors, target.known)
    options = {"steps": 2, "seed": 1} if ":" not in attack else {}
    result = measure(target, attack, epsilons=[0, 0.1], ks=(3,), **options)
    path, _ = result.save(tmp_path)
    asked = (Threat(), part, (0, 0.1), (3,))
    curves = read_curves(tmp_path)
    assert curves[path.stem].settings == result.spec.settings(*asked)
    assert result.curve.name == path.stem
    if result.control is not None and result.control is not result.curve:
        control = curves[result.control.name].settings
        assert control == result.spec.control_settings(*asked)
        assert control["draws"] == result.draws


@pytest.mark.parametrize("name", [*NAMES, "robustcf.attacks:FGM-bce", "robustcf.attacks:PGD"])
def test_a_name_is_read_as_it_is_written(name):
    spec = AttackSpec.parse(name)
    assert AttackSpec.parse(spec.name) == spec
    if name in NAMES:
        assert spec.name == name


# --- attacks that are built -------------------------------------------------------------------


def test_an_attack_that_is_built_is_saved_under_its_class(tmp_path):
    target = random_target(0)
    result = measure(target, FGM(Softmax(target.known)), epsilons=[0, 0.1])
    path, replaced = result.save(tmp_path)
    assert path.stem.startswith("robustcf.attacks.gradient.FGM-softmax-")
    assert replaced is False
    named = measure(target, "fgm-softmax", epsilons=[0, 0.1])
    assert named.curve.as_lists() == result.curve.as_lists()
    assert named.control.as_dict() == result.control.as_dict()
    assert named.curve.name != result.curve.name
    few, many = (PGD(Softmax(target.known), steps=steps) for steps in (2, 3))
    names = {measure(target, each, epsilons=[0], control=False).curve.name for each in (few, many)}
    assert len(names) == 2


def test_the_table_of_targets_is_left_as_it_was():
    """Measuring does not change the factors."""
    target = random_target(0)
    before = [part.clone() for part in target.factors]
    for attack in (*ATTACKS, "certificate", "personal", RandomNoise()):
        measure(target, attack, epsilons=[0, 0.3], **({"steps": 3} if attack in NAMES else {}))
    for part, kept in zip(target.factors, before, strict=True):
        assert torch.equal(part, kept)


# --- what it refuses ------------------------------------------------------------------------


def test_embeddings_alone_are_no_target():
    U, V = random_target(0).factors
    for function in (measure, harden, certified_radii, quantization_table):
        with pytest.raises(InputError, match="Recommender"):
            function((U, V))
    with pytest.raises(InputError, match="got tuple"):
        check_recommender((U, V))
    with pytest.raises(InputError, match="threat"):
        certified_radii(random_target(0), "row")
