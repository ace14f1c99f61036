"""Curves that runs have saved, found and read without loading torch: ``compare`` starts at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.schema import TEXT, check_kind, record
from robustcf._io.text import grid_name
from robustcf.errors import InputError
from robustcf.experiments.records import RESULTS, own_folder
from robustcf.recommender.saved import RECOMMENDER, read_recommender
from robustcf.robustness.curve_files import is_curve, read_facts, read_users

# The home of every saved curve, and where version 0.1 kept them.
FOLDERS = (RESULTS, "attacks", "certificates")
# From the strongest on. Not by measured damage: which curve is read must not depend on results.
_ATTACKS = ("auto", "cutoff", "pgd", "fgm")
_OBJECTIVES = ("softmax", "bpr", "bce")
_BUDGETS = ("row", "frobenius", "spectral")
# Words of a file name -> options that lead to them.
_SETTINGS = {
    "absolute": "--absolute",
    "own": "--relative own",
    "users": "--side users",
    "items": "--side items",
    "labels": "--knowledge labels",
    "valid": "--part valid",
}
# Above this a median row norm does not stand for the rows, see robustcf.attacks.unevenness.
_UNEVEN = 1.5
# How version 0.1 spelled cutoffs and sizes other than the default ones.
_GRID_OF_0_1 = r"k\d+(_\d+)*|eps[0-9a-f]{8}"
# Until format 3, which names the kind, the worst of several attacks was taken user by user.
_KINDS_BEFORE_3 = {
    "auto": "per user",
    "pgd": "per user",
    "certificate": "certified",
    "personal": "each user alone",
}
# What has to be equal before two curves can be compared.
_SHARED = (
    *("attack", "kind", "objective", "budget", "unit", "side", "knowledge"),
    *("epsilons", "protocol"),
)


@dataclass(frozen=True, eq=False)
class SavedCurve:
    """A curve as it was saved; the values of users are read when asked for.

    Args:
        path: of the JSON file.
        facts: what it holds.
    """

    path: Path
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the file, which tells all settings; a file of 0.1 as it is named today."""
        if self.facts["format"] == "robustcf curve 1":
            return _name_today(self.path, self.facts)
        return self.path.stem

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The attack sizes."""
        return tuple(self.facts["epsilons"])

    def users(self) -> npt.NDArray[np.int64]:
        """Ids of the users whose values there are."""
        return self._arrays()["users"]

    def per_user(self, metric: str) -> npt.NDArray[np.float64]:
        """Epsilons x users.

        Raises:
            InputError: there are no values of single users for this metric.
        """
        arrays = self._arrays()
        if metric not in arrays:
            known = ", ".join(name for name in arrays if name != "users")
            whole = " (coverage is of the whole list, not of single users)"
            raise InputError(
                f"{self.path} has no values of single users for {metric!r}"
                f"{whole if metric.startswith('coverage') else ''}; there are {known}"
            )
        return arrays[metric].astype(np.float64)

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return read_users(self.path.with_suffix(".npz"), len(self.facts["epsilons"]))


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run as far as a comparison needs it.

    Args:
        path: its directory.
        settings: what it was trained with, by flat names.
        fingerprint: of its data.
        curves: name -> saved curve.
    """

    path: Path
    settings: Mapping[str, Any]
    fingerprint: str
    curves: Mapping[str, SavedCurve]


def open_run(path: str | Path, *, allow_unfinished: bool = False) -> SavedRun:
    """Open a run directory for reading its saved curves.

    Args:
        path: the directory.
        allow_unfinished: whether its training may have been interrupted.

    Raises:
        UnfinishedError: the training has not come to its end, and this was not allowed.
        InputError: it is no run directory, or a file in it cannot be read.
    """
    folder = Path(path)
    facts = read_recommender(folder, allow_unfinished=allow_unfinished)
    if facts["kind"] != "factors":
        raise InputError(
            f"{folder}: a recommender of the kind {facts['kind']!r} has no embeddings, and so no "
            "attack curves to compare"
        )
    training = facts["training"] or {}
    settings: dict[str, Any] = {"model": facts["label"], "reg": "none"}
    if isinstance(training.get("config"), dict):
        settings = flat_settings(training["config"])
        check_kind(folder / RECOMMENDER, settings, record({"model": TEXT, "reg": TEXT}), "training")
    else:
        settings |= {"label": facts["label"], "source": training.get("source")}
    fingerprint = str(facts["fingerprint"])
    curves: dict[str, SavedCurve] = {}
    for home in FOLDERS:
        for file in sorted(own_folder(folder, home).glob("*.json")):
            curve = _read(file)
            if curve is not None:
                # Of one name, the one in the home of this version counts.
                curves.setdefault(curve.name, curve)
    return SavedRun(folder, settings, fingerprint, curves)


def flat_settings(train: Mapping[str, Any]) -> dict[str, Any]:
    """Training settings by flat names, as a configuration file nests them or 0.1 wrote them.

    Plain JSON in, so that no model has to be imported to compare runs of it.

    Example:
        >>> flat_settings({"model": {"name": "mine", "dim": 2}, "reg": {"name": "none"}, "lr": 1})
        {'model': 'mine', 'dim': 2, 'reg': 'none', 'lr': 1}
    """
    if isinstance(train.get("model"), str):
        # Of version 0.1, where None meant the model's own default.
        unset = [key for key in ("negatives", "sampled_items") if train.get(key) is None]
        return {key: value for key, value in train.items() if key not in unset}
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


def kind_words(facts: Mapping[str, Any]) -> str:
    """Whose perturbation a saved curve is of, and what the attacker knew.

    Example:
        >>> kind_words({"kind": "joint", "knowledge": "labels"})
        'joint (one perturbation for all users), the attacker knows the labels'
    """
    kind = {
        "joint": "joint (one perturbation for all users)",
        "per user": "per user (each user's worst of several perturbations)",
        "certified": "certified (no attack of the size leaves any user less)",
    }.get(facts["kind"], str(facts["kind"]))
    knows = {"labels": "the labels", "data": "the training pairs"}
    if facts["kind"] == "certified":
        return kind
    return f"{kind}, the attacker knows {knows.get(facts['knowledge'], 'nothing')}"


def uneven_words(ratios: Mapping[str, float | None]) -> str:
    """Which factors' row norms their median does not stand for, in words; or nothing.

    Args:
        ratios: ``users`` and ``items`` -> :func:`robustcf.attacks.unevenness`.

    Example:
        >>> uneven_words({"users": 1.1, "items": 4.2})
        'row norms are uneven (items: root mean square 4.2 medians)'
    """
    found = [
        f"{name}: " + ("median 0" if ratio is None else f"root mean square {ratio:.2g} medians")
        for name, ratio in ratios.items()
        if ratio is None or ratio > _UNEVEN
    ]
    return f"row norms are uneven ({', '.join(found)})" if found else ""


def _read(path: Path) -> SavedCurve | None:
    facts = read_facts(path)
    if not is_curve(facts):
        return None
    facts.setdefault("unit", "relative" if facts["relative"] else "absolute")
    if facts["format"] != "robustcf curve 3":
        facts["kind"] = _KINDS_BEFORE_3.get(facts["attack"], "joint")
    if "knowledge" not in facts:
        # Version 0.1 knew one special case of it, and called that an oracle.
        labels = facts.get("oracle") or facts["attack"] == "certificate"
        known = "labels" if labels else "data"
        facts["knowledge"] = "none" if facts["attack"] == "random" else known
        facts["objective"] = facts["objective"] and facts["objective"].removeprefix("oracle-")
    return SavedCurve(path, facts) if path.with_suffix(".npz").is_file() else None


def _name_today(path: Path, facts: Mapping[str, Any]) -> str:
    """What a curve of version 0.1 would be called today.

    Its names left out the unit where it was absolute, and defaults of sizes and cutoffs; those of
    certificates left out everything but the bound, the unit and the side.
    """
    unit = "relative" if facts["relative"] else "absolute"
    if path.parent.name == "certificates":
        words = ["certificate", *(["plain"] if path.stem.startswith("plain") else [])]
        words += [facts["budget"], unit]
        words += [facts["side"]] if facts["side"] != "both" else []
    else:
        labels = facts["knowledge"] == "labels"
        words = [word for word in path.stem.split("-") if not re.fullmatch(_GRID_OF_0_1, word)]
        words = [word for word in words if word not in ("oracle", "relative")]
        # Controls of ensembles had two names, by who wrote them.
        name = "-".join(words)
        auto = f"random-worst-of-{8 if facts['relative'] else 6}"
        name = name.replace("random-auto", auto).replace("random-pgd", "random-worst-of-2")
        words = name.replace(auto, f"{auto}-cumulative").split("-")
        if facts["budget"] not in words:
            raise InputError(
                f"{path}: the name of a curve of version 0.1 must tell its budget, "
                f"{facts['budget']}, got {path.stem!r}"
            )
        place = words.index(facts["budget"]) + 1
        words.insert(place, unit)
        place += 2 if facts["side"] != "both" else 1
        words[place:place] = ["labels"] if labels else []
    return "-".join([*words, grid_name(facts["epsilons"], _cutoffs(facts))])


def common_curves(runs: Sequence[SavedRun], attack: str | None = None) -> list[SavedCurve]:
    """The curve of the same attack from every run, checked to be comparable.

    Args:
        runs: at least two.
        attack: the name of a saved curve or its beginning (``fgm-bce``). None takes the strongest
            that all runs have: joint before per user, with labels before without, ``auto`` before
            ``cutoff``, ``pgd`` and ``fgm``, on ``softmax`` before ``bpr`` before ``bce``, relative
            sizes before absolute ones.

    Raises:
        InputError: there is no such common curve (the message says which command makes it), or
            the runs differ in data, protocol, epsilons or budget.
    """
    if len(runs) < 2:
        raise InputError(f"a comparison needs at least two runs, got {len(runs)}")
    for run in runs[1:]:
        if run.fingerprint != runs[0].fingerprint:
            raise InputError(
                f"{runs[0].path} and {run.path} were made from different data (fingerprints "
                f"{runs[0].fingerprint[:12]}, {run.fingerprint[:12]}): train or import one again "
                "with the pairs of the other (robustcf import SOURCE --interactions RUN takes "
                "those of a run)"
            )
    name = _strongest(runs) if attack is None else _named(runs, attack)
    curves = [run.curves[name] for run in runs]
    first = curves[0]
    for curve in curves[1:]:
        for key in _SHARED:
            if curve.facts[key] != first.facts[key]:
                raise InputError(
                    f"{first.path} and {curve.path} differ in {key} ({first.facts[key]}, "
                    f"{curve.facts[key]}): attack the runs in the same way"
                )
        if not np.array_equal(curve.users(), first.users()):
            raise InputError(f"{first.path} and {curve.path} are about different users")
    return curves


def group_runs(runs: Sequence[SavedRun]) -> dict[str, list[int]]:
    """Label -> places of the runs that differ in nothing but their training seed.

    The label is model, regularizer and adversarial training; settings that tell groups of one
    label apart are added to it.

    Raises:
        InputError: two runs have the same settings and the same seed.
    """
    settings = []
    for run in runs:
        values = dict(run.settings)
        settings.append((values.pop("seed", 0), values))
    groups: list[tuple[dict[str, Any], list[int]]] = []
    for place, (seed, values) in enumerate(settings):
        members = next((places for known, places in groups if _alike(known, values)), None)
        if members is None:
            groups.append((values, [place]))
            continue
        twin = next((other for other in members if settings[other][0] == seed), None)
        if twin is not None:
            raise InputError(
                f"{runs[twin].path} and {runs[place].path} have the same settings and the same "
                f"seed {seed}: they are one run, not two"
            )
        members.append(place)
    labels = [label_of(values) for values, _ in groups]
    named = {}
    for number, (values, places) in enumerate(groups):
        alike = [groups[n][0] for n, label in enumerate(labels) if label == labels[number]]
        # Of settings that all of them have: version 0.1 wrote more than these.
        shared = [k for k in values if all(k in other for other in alike)]
        # None is "not set", which says nothing where the others are named.
        differing = [k for k in shared if any(other[k] != values[k] for other in alike)]
        named_ones = [k for k in differing if values[k] is not None] or differing
        extra = ", ".join(f"{key} {values[key]}" for key in named_ones)
        named[f"{labels[number]} ({extra})" if extra else labels[number]] = places
    return named


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether settings agree; version 0.1 wrote some that its model did not have."""
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def label_of(settings: Mapping[str, Any]) -> str:
    """Model, regularizer and, where there is any, adversarial training; or what was imported.

    Example:
        >>> label_of({"model": "bpr-mf", "reg": "none", "adversarial": "bpr"})
        'bpr-mf, none, adversarial bpr'
    """
    if "label" in settings:  # it was not trained here
        return str(settings["label"])
    adversarial = settings.get("adversarial", "none")
    extra = [] if adversarial == "none" else [f"adversarial {adversarial}"]
    return ", ".join([settings["model"], settings["reg"], *extra])


def _strongest(runs: Sequence[SavedRun]) -> str:
    common = set.intersection(*(set(run.curves) for run in runs))
    candidates = [
        [curve for curve in run.curves.values() if _is_candidate(curve.facts)] for run in runs
    ]
    ranked = [curve for curve in candidates[0] if curve.name in common]
    if not ranked:
        raise InputError(_nothing_common(runs, None, candidates))
    return min(ranked, key=_strength).name


def _is_candidate(facts: Mapping[str, Any]) -> bool:
    """An attack on the test rankings; on those of train where an imported run has nothing else."""
    return facts["attack"] in _ATTACKS and facts["protocol"]["part"] != "valid"


def _strength(curve: SavedCurve) -> tuple[Any, ...]:
    facts = curve.facts
    objective = facts["objective"]
    return (
        facts["protocol"]["part"] != "test",
        facts["kind"] != "joint",
        facts["attack"] not in ("auto", "cutoff"),
        facts["knowledge"] != "labels",
        _ATTACKS.index(facts["attack"]),
        _OBJECTIVES.index(objective) if objective in _OBJECTIVES else len(_OBJECTIVES),
        not facts["relative"],
        facts["side"] != "both",
        -len(facts["epsilons"]),
        curve.name,
    )  # the last two tell sizes and cutoffs apart


def _named(runs: Sequence[SavedRun], attack: str) -> str:
    common = set.intersection(*(set(run.curves) for run in runs))
    if attack in common:
        return attack
    matching = sorted(name for name in common if name.startswith(f"{attack}-"))
    if len(matching) > 1:
        raise InputError(f"--attack {attack} may be {', '.join(matching)}: name one of them")
    if not matching:
        begun = [
            [curve for name, curve in run.curves.items() if f"{name}-".startswith(f"{attack}-")]
            for run in runs
        ]
        raise InputError(_nothing_common(runs, attack, begun))
    return matching[0]


def _nothing_common(
    runs: Sequence[SavedRun], attack: str | None, found: Sequence[Sequence[SavedCurve]]
) -> str:
    """What to tell somebody whose runs do not share a curve, with the commands that make it.

    Args:
        runs: the runs.
        attack: what was asked for; None for the strongest.
        found: the curves of each run that would do.
    """
    name = attack or "auto"
    common = sorted(set.intersection(*(set(run.curves) for run in runs)))
    known = f"common to all are {', '.join(common)}" if common else "none is common to all"
    if attack is None and common:
        other = next((n for n in common if n.startswith("certificate")), common[0])
        short = "certificate" if other.startswith("certificate") else other
        known += f"; --attack {short} compares by that"
    if not any(found):
        told = _from_name(name)
        if told is None:
            saved = ", ".join(sorted({n for run in runs for n in run.curves})) or "none"
            return (
                f"no run has a saved curve {name!r}; saved are {saved}: give --attack one of "
                "these names or its beginning, or make one with 'robustcf attack' first"
            )
        (command, options), lacking = told, [run.path for run in runs]
    else:
        shared = set.intersection(*({_kind(curve) for curve in curves} for curves in found))
        pool = [c for curves in found for c in curves if not shared or _kind(c) in shared]
        if attack is None:
            pool.sort(key=lambda curve: _strength(curve)[:-2])
        wanted = _most_frequent(pool)
        command = "certify" if wanted.facts["attack"] == "certificate" else "attack"
        options = _options(wanted)
        lacking = [run.path for run in runs if wanted.name not in run.curves]
        if shared:
            kind = _kind(wanted)
            grids = "; ".join(
                f"{run.path}: {', '.join(_grid(c) for c in curves if _kind(c) == kind)}"
                for run, curves in zip(runs, found, strict=True)
            )
            return (
                f"all runs have {kind}, but at different sizes or cutoffs ({grids}): to have "
                f"{_grid(wanted)} everywhere, make it with: {_lines(command, lacking, options)}"
            )
    lines = _lines(command, lacking, options)
    return f"not all runs have a saved curve {name!r} ({known}): make it with: {lines}"


def _lines(command: str, paths: Sequence[Path], options: str) -> str:
    return "; ".join(f"robustcf {command} {path} {options}".rstrip() for path in paths)


def _most_frequent(curves: Sequence[SavedCurve]) -> SavedCurve:
    """The curve that the most runs have; the first of these."""
    names = [curve.name for curve in curves]
    return max(curves, key=lambda curve: names.count(curve.name))


def _grid_name(curve: SavedCurve) -> str:
    return grid_name(curve.epsilons, _cutoffs(curve.facts))


def _kind(curve: SavedCurve) -> str:
    """The name of a curve without its sizes and cutoffs."""
    return curve.name.removesuffix(f"-{_grid_name(curve)}")


def _grid(curve: SavedCurve) -> str:
    """Its sizes and cutoffs, for people."""
    ks = " ".join(map(str, _cutoffs(curve.facts)))
    return f"sizes {' '.join(map(_shortest, curve.epsilons))} at {ks}"


def _cutoffs(facts: Mapping[str, Any]) -> list[int]:
    return sorted({int(metric.split("@")[1]) for metric in facts["metrics"]})


def _options(curve: SavedCurve) -> str:
    """The options of the command that makes such a curve of another run."""
    facts, words = curve.facts, []
    if facts["attack"] == "certificate":
        words += ["--bound plain"] if curve.name.startswith("certificate-plain") else []
    elif facts["attack"] == "personal":
        words += ["--personal"]
    else:
        words += [f"--attack {facts['attack']}"]
        words += [f"--objective {facts['objective']}"] if facts["objective"] else []
        words += [f"--budget {facts['budget']}"]
        usual = "labels" if facts["attack"] in ("auto", "cutoff") else "data"
        told = facts["knowledge"] not in (usual, "none")
        words += [f"--knowledge {facts['knowledge']}"] if told else []
        words += [f"--part {facts['protocol']['part']}"] * (facts["protocol"]["part"] != "test")
        for option in ("steps", "restarts", "seed"):
            words += [f"--{option} {n}" for n in re.findall(rf"-{option}(\d+)-", curve.name)]
    words += {"own": ["--relative own"], "absolute": ["--absolute"]}.get(facts["unit"], [])
    words += [f"--side {facts['side']}"] if facts["side"] != "both" else []
    words += ["--epsilons", *(_shortest(size) for size in facts["epsilons"])]
    ks = _cutoffs(facts)
    return " ".join([*words, *(["--k", *map(str, ks)] if ks != [10, 20] else [])])


def _shortest(size: float) -> str:
    """A size as people write it, if that is the very number."""
    return f"{size:g}" if float(f"{size:g}") == size else repr(size)


def _from_name(name: str) -> tuple[str, str] | None:
    """The command and the options that lead to a name; None where it is no name of a curve."""
    attack, *rest = name.split("-")
    if attack not in (*_ATTACKS, "random", "certificate"):
        return None
    certificate = attack == "certificate"
    words = [] if certificate else [f"--attack {attack}"]
    if attack in ("auto", "cutoff") and "labels" not in rest and any(w[:1] == "e" for w in rest):
        words.append("--knowledge data")  # a whole name that does not tell of labels
    for word in rest:
        number = re.fullmatch(r"(steps|restarts|seed)(\d+)", word)
        grid = re.fullmatch(r"([ek])([\d.]+(?:_[\d.]+)*)", word)
        if word == "labels" and attack in ("auto", "cutoff"):
            continue
        if word in _OBJECTIVES and not certificate:
            words.append(f"--objective {word}")
        elif word in _BUDGETS:
            words += [] if certificate else [f"--budget {word}"]
        elif word in _SETTINGS:
            words.append(_SETTINGS[word])
        elif word == "plain" and certificate:
            words.append("--bound plain")
        elif number and not certificate:
            words.append(f"--{number[1]} {number[2]}")
        elif grid:
            option = "--epsilons" if grid[1] == "e" else "--k"
            words.append(f"{option} {grid[2].replace('_', ' ')}")
        elif word != "relative":
            return None
    return "certify" if certificate else "attack", " ".join(words)
