"""Runs and their saved curves, read without loading torch: ``compare`` starts at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._io.schema import TEXT, check_kind, record
from robustcf.errors import InputError
from robustcf.experiments.records import RESULTS, own_folder
from robustcf.recommender.saved import RECOMMENDER, read_recommender
from robustcf.robustness.curves import OPTIONS, SavedCurve, read_curves

# From the strongest on. Not by measured damage: which curve is read must not depend on results.
_ATTACKS = ("auto", "pairwise", "cutoff", "pgd", "fgm")
_OBJECTIVES = ("softmax", "bpr", "bce")


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run as far as a comparison needs it; training settings are by flat names."""

    path: Path
    settings: Mapping[str, Any]
    fingerprint: str
    curves: Mapping[str, SavedCurve]

    def find(self, settings: Mapping[str, Any]) -> SavedCurve:
        """The curve of these settings, see :meth:`robustcf.robustness.AttackSpec.settings`."""
        for curve in self.curves.values():
            if curve.settings == settings:
                return curve
        raise InputError(f"{self.path} has no saved curve of {settings['attack']} as asked for")


def open_run(path: str | Path, *, allow_unfinished: bool = False) -> SavedRun:
    """Open a run directory for reading its saved curves, or raise an InputError."""
    folder = Path(path)
    facts = read_recommender(folder, allow_unfinished=allow_unfinished)
    if facts["kind"] not in ("factors", "fold-in"):
        raise InputError(
            f"{folder}: a recommender of the kind {facts['kind']!r} has no embeddings, and so no "
            "attack curves to compare"
        )
    training = facts["training"] or {}
    settings: dict[str, Any] = {"model": facts["label"], "reg": "none"}
    if isinstance(training.get("config"), dict):
        settings = _flat(training["config"])
        check_kind(folder / RECOMMENDER, settings, record({"model": TEXT, "reg": TEXT}), "training")
    else:
        settings |= {"label": facts["label"], "source": training.get("source")}
    curves = read_curves(own_folder(folder, RESULTS))
    return SavedRun(folder, settings, str(facts["fingerprint"]), curves)


def _flat(train: Mapping[str, Any]) -> dict[str, Any]:
    """Training settings by flat names, from JSON: no model is imported to compare runs of it."""
    prefixes = {"reg": "reg_", "adversary": "adv_"}
    names = {"adversary": "adversarial", "reg_estimator": "estimator", "batching.kind": "batching"}
    values: dict[str, Any] = {}
    for part, value in train.items():
        if not isinstance(value, Mapping):
            values[part] = value
            continue
        for key, setting in value.items():
            flat = part if key == "name" else prefixes.get(part, "") + key
            flat = f"{part}.{key}" if (part, key) == ("batching", "kind") else flat
            values[names.get(flat, flat)] = setting
    return values


def common_curves(runs: Sequence[SavedRun], attack: str | None = None) -> list[SavedCurve]:
    """Return the curve of the same settings from every run, at least two.

    ``attack`` is an attack (``fgm``, ``fgm-bce``) or the name of a saved curve. None takes the
    strongest that all runs have: joint before per user, with labels before without, ``auto`` before
    ``pairwise``, ``cutoff``, ``pgd`` and ``fgm``, on ``softmax`` before ``bpr`` before ``bce``,
    sizes in own lengths before relative and absolute ones.

    Raises:
        InputError: the curve is missing (the message has the command that makes it), or the runs
            are of different data or users.
    """
    if len(runs) < 2:
        raise InputError(f"a comparison needs at least two runs, got {len(runs)}")
    for run in runs[1:]:
        if run.fingerprint != runs[0].fingerprint:
            raise InputError(
                f"{runs[0].path} and {run.path} were made from different data (fingerprints "
                f"{runs[0].fingerprint[:12]}, {run.fingerprint[:12]}): train or import one again "
                "with the pairs of the other (robustcf import SOURCE --interactions RUN)"
            )
    found = [[curve for curve in run.curves.values() if _is_asked(curve, attack)] for run in runs]
    shared = [c for c in found[0] if all(c.name in run.curves for run in runs)]
    if not shared:
        raise InputError(_missing(runs, found, attack))
    if attack is not None and len(shared) > 1:
        several = ", ".join(f"{curve.name} ({_words(curve)})" for curve in shared)
        raise InputError(f"--attack {attack} may be {several}: name one of them")
    curves = [run.curves[min(shared, key=_strength).name] for run in runs]
    for curve in curves[1:]:
        if not np.array_equal(curve.users(), curves[0].users()):
            raise InputError(f"{curves[0].path} and {curve.path} are about different users")
    return curves


def _is_asked(curve: SavedCurve, attack: str | None) -> bool:
    if attack is not None:
        return f"{curve.name}-".startswith(f"{attack.replace(':', '.')}-")
    # An attack on the test rankings; on those of train where an imported run has nothing else.
    return curve.facts["attack"] in _ATTACKS and curve.settings["part"] != "valid"


def _strength(curve: SavedCurve) -> tuple[Any, ...]:
    facts = curve.facts
    attack, objective = facts["attack"], facts["objective"]
    return (
        curve.settings["part"] != "test",
        facts["kind"] != "joint",
        attack not in ("auto", "pairwise", "cutoff"),
        facts["knowledge"] != "labels",
        _ATTACKS.index(attack) if attack in _ATTACKS else len(_ATTACKS),
        _OBJECTIVES.index(objective) if objective in _OBJECTIVES else len(_OBJECTIVES),
        ("own", "relative", "absolute").index(facts["unit"]),
        facts["side"] != "both",
        -len(facts["epsilons"]),
        curve.name,
    )


def _missing(
    runs: Sequence[SavedRun], found: Sequence[Sequence[SavedCurve]], attack: str | None
) -> str:
    """Which runs lack the curve that was asked for, and the commands that make it."""
    pool = sorted((curve for curves in found for curve in curves), key=_strength)
    if not pool:
        saved = sorted({name for run in runs for name in run.curves})
        common = [name for name in saved if all(name in run.curves for run in runs)]
        hint = f" (--attack {common[0]} compares by one that all runs have)" if common else ""
        names = f"; saved are {', '.join(saved)}{hint}" if saved else ""
        choice = ", or give --attack one of these names" if saved else ""
        certify = attack == "certificate"
        return (
            f"no run has a saved curve of {attack or 'an attack'}{names}: make one with "
            f"'robustcf {'certify' if certify else 'attack'} RUN'{choice}"
        )
    counts = Counter(curve.name for curve in pool)
    wanted = max(pool, key=lambda curve: counts[curve.name])
    lacking = [n for n, run in enumerate(runs) if wanted.name not in run.curves]
    near = [min(found[n], key=lambda c: len(_differences(wanted, c))) for n in lacking if found[n]]
    told = (f"; {curve.path} differs in {', '.join(_differences(wanted, curve))}" for curve in near)
    return (
        f"not all runs have a saved curve {wanted.name} ({_words(wanted)}){''.join(told)}: make "
        f"it with: {'; '.join(_command(wanted, runs[n].path) for n in lacking)}"
    )


def _differences(one: SavedCurve, other: SavedCurve) -> list[str]:
    pairs = {key: (value, other.settings[key]) for key, value in one.settings.items()}
    return [f"{key} ({a}, {b})" for key, (a, b) in pairs.items() if a != b] or ["protocol"]


def _words(curve: SavedCurve) -> str:
    """The settings of a curve in a few words."""
    told = curve.settings
    words = [told["kind"], f"{told['budget']} budget", told["unit"], f"on {told['side']}"]
    words += [f"knows {told['knowledge']}", told["part"]]
    words += [f"{key} {told[key]}" for key in OPTIONS if told[key] is not None]
    sizes, ks = map(_shortest, told["epsilons"]), map(str, told["ks"])
    return ", ".join([*words, f"sizes {' '.join(sizes)} at {' '.join(ks)}"])


def _command(curve: SavedCurve, run: Path) -> str:
    """The command that makes such a curve of another run."""
    told = curve.settings
    attack = told["attack"]
    words = ["robustcf", "certify" if attack == "certificate" else "attack", str(run)]
    if attack == "certificate":
        words += ["--bound plain"] if told["bound"] == "plain" else []
    elif attack == "personal":
        words += ["--personal"]
    else:
        words += [f"--attack {attack}"]
        words += [f"--objective {told['objective']}"] if told["objective"] else []
        words += [f"--budget {told['budget']}"]
        usual = "labels" if attack in ("auto", "pairwise", "cutoff") else "data"
        if told["knowledge"] not in (usual, "none"):
            words += [f"--knowledge {told['knowledge']}"]
        words += [f"--part {told['part']}"] if told["part"] != "test" else []
        protocol = curve.facts["protocol"]
        if protocol.get("sampled_from") is not None:
            words += [f"--eval-users {protocol['n_users']}"]
        for option in ("steps", "restarts", "seed"):
            words += [f"--{option} {told[option]}"] if told[option] is not None else []
    words += [] if told["unit"] == "own" else [f"--{told['unit']}"]
    words += [f"--side {told['side']}"] if told["side"] != "both" else []
    words += ["--epsilons", *map(_shortest, told["epsilons"])]
    words += ["--k", *map(str, told["ks"])] if told["ks"] != [10, 20] else []
    return " ".join(words)


def _shortest(size: float) -> str:
    """A size as people write it, if that is the very number."""
    return f"{size:g}" if float(f"{size:g}") == size else repr(size)


def group_runs(runs: Sequence[SavedRun]) -> dict[str, list[int]]:
    """Return label -> places of the runs that differ only in their training seed.

    The label is model, regularizer and adversarial training, and settings that tell groups of one
    label apart. Two runs of the same settings and seed are an InputError.
    """
    groups: list[tuple[dict[str, Any], dict[str, int]]] = []
    for place, run in enumerate(runs):
        values = dict(run.settings)
        seed = repr(values.pop("seed", 0))  # from a file: of any type
        members = next((members for known, members in groups if known == values), None)
        if members is None:
            members = {}
            groups.append((values, members))
        if seed in members:
            raise InputError(
                f"{runs[members[seed]].path} and {run.path} have the same settings and the same "
                f"seed {seed}: leave one out"
            )
        members[seed] = place
    labels = [_label(values) for values, _ in groups]
    named = {}
    for label, (values, members) in zip(labels, groups, strict=True):
        alike = [groups[n][0] for n, other in enumerate(labels) if other == label]
        differing = [
            key
            for key in values
            if all(key in other for other in alike)
            and any(other[key] != values[key] for other in alike)
        ]
        # None is "not set", which says nothing where the others are named.
        told = [key for key in differing if values[key] is not None] or differing
        extra = ", ".join(f"{key} {values[key]}" for key in told)
        named[f"{label} ({extra})" if extra else label] = list(members.values())
    return named


def _label(settings: Mapping[str, Any]) -> str:
    if "label" in settings:  # it was not trained here
        return str(settings["label"])
    adversarial = settings.get("adversarial", "none")
    extra = [] if adversarial == "none" else [f"adversarial {adversarial}"]
    return ", ".join([settings["model"], settings["reg"], *extra])
