"""Sweeps: models x settings x seeds, trained, attacked and compared in one folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robustcf._checks import check_choice, check_epsilons
from robustcf._io.plots import Kind, Line, Panel
from robustcf._io.text import markdown
from robustcf._registry import MODELS, REGULARIZERS
from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.experiments.comparison import METHOD, Comparison, area, compare_curves
from robustcf.experiments.grid import (
    Array,
    Plan,
    bullets,
    rounded,
    run_grid,
    spread,
    write_results,
)
from robustcf.experiments.records import results_folder
from robustcf.experiments.run import RunConfig, RunDir
from robustcf.experiments.saved import SavedRun, open_run
from robustcf.recommender import Recommender, open_recommender
from robustcf.recommender.saved import RECOMMENDER
from robustcf.robustness import AttackSpec, Threat, measure
from robustcf.robustness.curves import SavedCurve, kind_words, uneven_words
from robustcf.robustness.table import (
    ABSOLUTE_SIZES,
    ATTACK_SIZES,
    AUTO,
    CERTIFICATE,
    CUTOFFS,
    RANDOM,
)
from robustcf.training.config import TrainConfig
from robustcf.training.presets import adapted, preset

#: The metrics of reports and pictures, and the one that settings are compared by.
SHOWN = ("ndcg@10", "mrr@10", "coverage@10", "recall@20")
METRIC = "ndcg@10"
APR, ROBUST = "apr", "robust"
_SETTINGS = (*REGULARIZERS, APR, ROBUST)
_BCE = "fgm-bce"
# The random controls: the kind of attack they belong to -> name, and words for the report.
_CONTROLS = {
    "fgm": (RANDOM, "the same budget in a random direction"),
    "pgd": ("random-pgd", "the worse of two random directions, one for all users"),
}
_CERTIFIED = "certified lower bound on the mean, valid for every attack of this size"


class Run(NamedTuple):
    """A cell of a sweep: a setting trained with a seed."""

    setting: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return f"{self.setting}-seed{self.seed}"


@dataclass(frozen=True)
class SweepPlan(Plan):
    """Models x settings x seeds, and the attacks that every run faces.

    Args:
        models: what to train, one or several: names, ``module:Class``, and saved recommenders or
            files of factors, which are measured as they are. ``{seed}`` in a path stands for each
            seed; a path without it counts as one seed.
        preset: ``tuned``: settings chosen on valid; ``paper``: the paper's.
        regs: settings to compare: regularizers, ``apr`` (adversarial training on BPR), ``robust``
            (the robust preset).
        attacks: attacks that every run faces. Random controls are always added, and the certificate
            where the budget has one.
        epsilons: sizes, ascending (default 0 0.02 0.05 0.1 0.2; absolute: 0 0.1 0.2 0.4 0.8 1.6).
        unit: of the epsilons, see :class:`robustcf.robustness.Threat`.
        budget: the norm that epsilon bounds.

    Example:
        >>> plan = SweepPlan("demo", regs=("none",), seeds=(0, 1))
        >>> [run.name for run in plan.cells()]
        ['none-seed0', 'none-seed1']
        >>> print(plan.command())
        robustcf sweep --dataset demo --model ultragcn --regs none --attacks auto --epsilons 0 0.02
        0.05 0.1 0.2 --budget row --preset tuned --seeds 2 --threads 1 --out DIR
    """

    grid = verb = "sweep"
    step = "step"
    lists = ("models", "seeds", "regs", "attacks")

    models: tuple[str, ...] = ("ultragcn",)
    preset: str = "tuned"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    regs: tuple[str, ...] = ("weight_decay", "two_to_inf", "max_norm")
    attacks: tuple[str, ...] = (AUTO,)
    epsilons: tuple[float, ...] = ()
    unit: str = "own"
    budget: str = "row"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilons:
            usual = ABSOLUTE_SIZES if self.unit == "absolute" else ATTACK_SIZES
            object.__setattr__(self, "epsilons", usual)
        for reg in self.regs:
            if reg not in _SETTINGS and ":" not in reg:
                check_choice("every setting of regs", reg, _SETTINGS)
        check_choice("preset", self.preset, ("tuned", "paper"))
        controls = [name for name, _ in _CONTROLS.values()]
        for attack in self.attacks:
            if attack in controls or AttackSpec.parse(attack).way.certifies:
                raise InputError(f"{attack} is added to every sweep: leave it out of the attacks")
        check_epsilons(self.epsilons)
        self.threat  # noqa: B018  # checks the budget
        for setting, (model, _) in self.settings.items():
            if not is_source(model):
                self.train_config(setting, 0)

    def check_model(self, model: str) -> None:
        """Raise for a model that is neither known nor a file."""
        if not is_source(model):
            super().check_model(model)

    @property
    def settings(self) -> dict[str, tuple[str, str]]:
        """Label -> model and entry of ``regs``; the label names the model if there are several."""
        several = len(self.models) > 1
        found: dict[str, tuple[str, str]] = {}
        for model, reg in product(self.models, self.regs):
            label = f"{model}-{reg}" if several else reg
            if is_source(model):
                label, reg = Path(model).stem.replace("{seed}", "").strip("-_."), ""
            if found.setdefault(label, (model, reg)) != (model, reg):
                raise InputError(f"two models are called {label}: rename one of the files")
        return found

    def seeds_of(self, setting: str) -> tuple[int, ...]:
        """Return the seeds of a setting: one for a file without ``{seed}``."""
        model = self.settings[setting][0]
        return self.seeds[:1] if is_source(model) and "{seed}" not in model else self.seeds

    def cells(self) -> list[Run]:
        """Return every run: all settings of a seed before the next seed."""
        every = [Run(setting, seed) for seed in self.seeds for setting in self.settings]
        return [run for run in every if run.seed in self.seeds_of(run.setting)]

    def steps(self) -> list[str]:
        """Return the steps of each run: training, the attacks, the certificate."""
        return ["trained", *self.attacks, *([CERTIFICATE] if self.budget == "row" else [])]

    @property
    def threat(self) -> Threat:
        """The threat that all attacks share."""
        return Threat(norm=self.budget, unit=self.unit)

    @property
    def axis(self) -> str:
        """What epsilon means, short enough for a panel."""
        return f"epsilon, {self.budget} budget, {self.threat.unit_words}"

    def curves(self) -> list[str]:
        """Return the names of all curves of a run: attacks, controls, certificate."""
        controls = [control_of(attack) for attack in self.attacks]
        return list(dict.fromkeys([*self.attacks, *controls, *self.steps()[1:]]))

    def train_config(self, setting: str, seed: int) -> tuple[TrainConfig, str]:
        """Return the training settings of a run, and the name of their preset."""
        model, reg = self.settings[setting]
        if reg == ROBUST:
            chosen = preset(self.data_name, model, kind=ROBUST)
        else:
            base = "weight_decay" if reg == APR else reg
            chosen = preset(self.data_name, model, base, self.preset)
        changes = dict(self.changes) | ({"adversarial": "bpr"} if reg == APR else {})
        return adapted(chosen.config, changes).replace(seed=seed), chosen.name

    def own_words(self) -> list[str]:
        """Return the options of ``robustcf sweep`` alone."""
        words = ["--regs", *self.regs, "--attacks", *self.attacks]
        words += ["--epsilons", *(f"{epsilon:g}" for epsilon in self.epsilons)]
        words += [] if self.unit == "own" else [f"--{self.unit}"]
        return [*words, "--budget", self.budget]

    def complete(self, folder: Path, cell: Run, split: Split) -> Iterator[str]:
        """Train a run unless it is finished, and measure the curves that it lacks."""
        path, source = folder / cell.name, self.settings[cell.setting][0]
        if is_source(source):
            if not path.exists():
                opened(source.replace("{seed}", str(cell.seed)), split).save(path)
        else:
            self._train(path, cell, split)
        yield "trained"
        there, model = open_run(path), None
        if there.fingerprint != split.fingerprint:
            raise InputError(f"{source} was fit on other data than {self.dataset}: import it again")
        for name in self.steps()[1:]:
            if not all(_is_whole(there, settings) for settings in _told(self, name).values()):
                if model is None:
                    model = open_recommender(path)
                    model = (
                        model if model.has_interactions
                        else open_recommender(path, interactions=split)
                    )  # fmt: skip
                measure(model, name, self.threat, self.epsilons).save(results_folder(path))
            yield name

    def _train(self, path: Path, cell: Run, split: Split) -> None:
        train, preset = self.train_config(cell.setting, cell.seed)
        if train.serve != "stored":
            words = "a sweep compares attacks on stored users and items"
            raise InputError(f"{words}: {cell.setting} has serve {train.serve!r}, leave it out")
        if path.exists():
            run = RunDir(path)
        else:
            threads = self.threads or 1
            config = RunConfig(self.dataset, dict(self.data), train, threads, preset=preset)
            run = RunDir.create(path, config, split)
        # Code that the plan names may be imported, and no other.
        kept = run.config.train
        run.allow_code = isinstance(kept, TrainConfig) and kept.outside() == train.outside()
        known = kept.resolved() if isinstance(kept, TrainConfig) and run.allow_code else None
        if (known, run.config.threads) != (train, self.threads):
            raise InputError(
                f"{path} was trained with other settings than this sweep's: choose another --out"
            )
        run.check(split)
        if not run.settle() and not run.execute(split):
            raise run.interrupted()


def is_source(model: str) -> bool:
    """Return whether a model is a saved recommender or a file of factors, not a name."""
    return model not in MODELS and ("{seed}" in model or Path(model).exists())


def opened(source: str, split: Split) -> Recommender:
    """Open a saved recommender or a file of factors that was fit on these data."""
    if Path(source, RECOMMENDER).is_file():
        model = open_recommender(source)
        return model if model.has_interactions else open_recommender(source, interactions=split)
    from robustcf.adapters import from_files  # rarely needed

    return from_files(source, split, label=Path(source).stem)


def control_of(attack: str) -> str:
    """Return the name of the random control that belongs to an attack.

    Example:
        >>> control_of("auto"), control_of("pgd-bpr")
        ('random', 'random-pgd')
    """
    return _CONTROLS.get(attack.partition("-")[0], _CONTROLS["fgm"])[0]


def _told(plan: SweepPlan, name: str) -> dict[str, dict[str, Any]]:
    """Name -> settings of the curves that measuring an attack gives: it and its control."""
    spec = AttackSpec.parse(name)
    where = (plan.threat, "test", plan.epsilons, CUTOFFS)
    found = {name: spec.settings(*where)}
    if not spec.way.certifies:
        found[control_of(name)] = spec.control_settings(*where)
    return found


def _is_whole(run: SavedRun, settings: Mapping[str, Any]) -> bool:
    """Whether a run has a curve, and the values of its users can be read."""
    try:
        return len(run.find(settings).users()) > 0
    except InputError:
        return False


def sweep(
    plan: SweepPlan,
    out: str | Path,
    *,
    runs: str | Path | None = None,
    jobs: int = 1,
    progress: bool = False,
) -> SweepSummary:
    """Train, attack and compare, or resume a sweep that was stopped.

    Writes ``sweep.json`` (the plan), ``runs/``, ``curves.json``, ``curves.csv``, a picture per
    attack (PNG, SVG, PDF), ``report.md`` and a LaTeX table per attack (booktabs; bold only where
    the paired test finds the best setting better than every other).

    ``runs`` is the folder of the runs, ``out/runs`` by default; sweeps of different attacks may
    share it. Other arguments and errors: see :func:`robustcf.experiments.grid.run_grid`.

    Cost: the missing trainings, and one curve per run and attack.
    """
    folder = Path(out)
    home = folder / "runs" if runs is None else Path(runs)

    def summarize(plan: SweepPlan, split: Split) -> SweepSummary:
        told: dict[str, dict[str, Any]] = {}
        for attack in plan.steps()[1:]:
            told |= _told(plan, attack)
        curves: dict[str, dict[str, list[SavedCurve]]] = {name: {} for name in plan.curves()}
        settings: dict[str, Mapping[str, Any]] = {}
        for setting in plan.settings:
            runs = [open_run(home / Run(setting, n).name) for n in plan.seeds_of(setting)]
            settings[setting] = runs[0].settings
            for name in curves:
                curves[name][setting] = [run.find(told[name]) for run in runs]
        summary = SweepSummary(plan, folder, curves, settings, plan.facts(split))
        summary.write()
        return summary

    return run_grid(plan, folder, summarize, work=home, jobs=jobs, progress=progress)


@dataclass(frozen=True, eq=False)
class SweepSummary:
    """The results of a sweep.

    ``curves`` are by attack, control or certificate, then by setting, one per seed; ``settings``
    are the training settings of the first seed, by flat names.
    """

    plan: SweepPlan
    out: Path
    curves: Mapping[str, Mapping[str, list[SavedCurve]]]
    settings: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]

    def values(self, attack: str, setting: str, metric: str = METRIC) -> Array:
        """Return a metric, seeds x epsilons."""
        return np.array([curve.facts[metric] for curve in self.curves[attack][setting]])

    def area(self, attack: str, setting: str) -> float:
        """Return the mean over seeds of the area under the curve."""
        return float(area(self.plan.epsilons, self.values(attack, setting).T).mean())

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Attack, or certificate -> all pairs of settings compared; empty for a single setting."""
        if len(self.settings) < 2:
            return {}
        tests = comb(len(self.settings), 2) * (len(self.plan.epsilons) + 1)
        how: dict[str, Any] = {"metric": METRIC, "resamples": max(10_000, 40 * tests)}
        found = {}
        for attack in self.plan.steps()[1:]:
            if attack in self.curves:
                by_setting = self.curves[attack].items()
                values = {name: [c.per_user(METRIC) for c in curves] for name, curves in by_setting}
                found[attack] = compare_curves(values, self.plan.epsilons, **how)
        return found

    @property
    def protocol(self) -> Mapping[str, Any]:
        """The protocol of evaluation, the same for all runs."""
        found: Mapping[str, Any] = self._first(self.plan.attacks[0])["protocol"]
        return found

    def _first(self, name: str) -> Mapping[str, Any]:
        return next(iter(self.curves[name].values()))[0].facts

    def words(self, name: str) -> str:
        """Return the kind of a curve and the attacker's knowledge, in words."""
        return kind_words(self._first(name))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: the plan, then metrics seed by seed."""
        return {
            **self.facts,
            "protocol": self.protocol,
            "axis": self.plan.axis,
            "epsilons": list(self.plan.epsilons),
            "settings": {name: dict(settings) for name, settings in self.settings.items()},
            "curves": {
                attack: {
                    setting: {
                        metric: rounded(self.values(attack, setting, metric))
                        for metric in curves[0].facts["metrics"]
                    }
                    for setting, curves in by_setting.items()
                }
                for attack, by_setting in self.curves.items()
            },
            "comparisons": {attack: found.as_dict() for attack, found in self.comparisons.items()},
        }

    def write(self) -> None:
        """Write tables, pictures and the report into the folder of the sweep."""
        plan, values = self.plan, self.as_dict()
        rows = (
            {"attack": attack, "setting": setting, "seed": seed, "epsilon": epsilon}
            | {"metric": metric, "value": value}
            for attack, by_setting in values["curves"].items()
            for setting, metrics in by_setting.items()
            for n, seed in enumerate(plan.seeds_of(setting))
            for metric, by_seed in metrics.items()
            for epsilon, value in zip(plan.epsilons, by_seed[n], strict=True)
        )
        models, dataset = " and ".join(Path(m).stem for m in plan.models), self.protocol["dataset"]
        pictures = {}
        for attack in plan.attacks:
            panels = [panel(values, attack, metric) for metric in SHOWN]
            title = f"{models} on {dataset} (test) under {attack}"
            pictures[attack] = (title, [panels[:2], panels[2:]])
        described = dict([*_CONTROLS.values(), (CERTIFICATE, _CERTIFIED)])
        report = [
            f"# {models} on {dataset} under attack",
            "## What the result says",
            bullets(f"`{name}` is {self.words(name)}." for name in self.curves),
            bullets(self.findings()),
            "## Curves",
        ]
        for name in plan.attacks:
            report += [f"### `{name}`", f"![{name}]({name}.png)", *self._tables(name)]
        for name, words in described.items():
            if name in self.curves:
                report += [f"### `{name}`: {words}", *self._tables(name)]
        report += [
            "## Differences",
            f"Difference of {METRIC}, first minus second, mean over seeds. {METHOD}.",
            *(_differences(attack, found) for attack, found in self.comparisons.items()),
            "## How it was made",
            self._made(),
            self._settings_table(),
        ]
        tables = {f"table-{attack}": found.latex() for attack, found in self.comparisons.items()}
        write_results(self.out, "curves", values, rows, pictures, report, tables)

    def _tables(self, name: str) -> list[str]:
        sizes, tables = [f"{size:g}" for size in self.plan.epsilons], []
        for metric in SHOWN:
            if metric in self._first(name)["metrics"]:
                header = [f"{metric}, mean (lowest to highest seed)", *sizes]
                values = {each: self.values(name, each, metric).T for each in self.settings}
                rows = [[each, *map(spread, columns)] for each, columns in values.items()]
                tables.append(markdown(header, rows))
        return tables

    def _made(self) -> str:
        protocol = self.protocol
        return self.plan.made(
            f"Protocol: {protocol['dataset']}, {protocol['part']}: all {protocol['n_items']:,} "
            f"items ranked, pairs of {' and '.join(protocol['masked'])} masked, mean over "
            f"{protocol['n_users']:,} users.",
            f"Attack size: {self.plan.axis}.",
            "Intervals are over users; the spread over seeds is shown next to them.",
            "Training settings: those that differ between settings, then the shared ones.",
        )

    def _settings_table(self) -> str:
        every = list(self.settings.values())
        keys = list(dict.fromkeys(key for values in every for key in values if key != "seed"))
        cells = {key: [_plain(values.get(key, "-")) for values in every] for key in keys}
        differing = [[key, *shown] for key, shown in cells.items() if len(set(shown)) > 1]
        shared = [f"{key} {shown[0]}" for key, shown in cells.items() if len(set(shown)) == 1]
        text = markdown(["setting", *self.settings], differing) if differing else ""
        return f"{text}\n\nShared: {', '.join(shared)}.".lstrip()

    # --- findings -----------------------------------------------------------------------------

    def findings(self) -> list[str]:
        """Return findings in sentences; dependence on the attack comes first."""
        said = [*self._attack_dependence(), *self._weaker_than_noise(), *self._uneven()]
        for attack in sorted(self.plan.attacks, key=lambda attack: attack != AUTO):
            headline = ", the headline attack" if attack == AUTO else ""
            said.append(
                f"Area under {METRIC} against `{attack}`{headline}, mean over seeds: "
                f"{self._order(attack)}."
            )
        if CERTIFICATE in self.curves:
            said.append(
                f"Certified against every attack, area under {METRIC}, mean over seeds: "
                f"{self._order(CERTIFICATE)}."
            )
        for attack, found in self.comparisons.items():
            said += [f"`{attack}`: {sentence}" for sentence in found.words()]
        return said

    def _order(self, attack: str) -> str:
        areas = {setting: self.area(attack, setting) for setting in self.settings}
        ranked = sorted(areas, key=lambda setting: -areas[setting])
        return ", ".join(f"{setting} {areas[setting]:.4f}" for setting in ranked)

    def _attack_dependence(self) -> list[str]:
        """Pairs of settings whose order by area differs between attacks."""
        verdicts: dict[tuple[str, str], dict[str, int]] = {}
        for attack in self.plan.attacks if self.comparisons else ():
            for contrast in self.comparisons[attack].contrasts:
                pair = (contrast.first, contrast.second)
                verdicts.setdefault(pair, {})[attack] = int(contrast.verdict[0])
        sentences = []
        for (first, second), by_attack in verdicts.items():
            ahead, behind = (
                [attack for attack, verdict in by_attack.items() if verdict == sign]
                for sign in (1, -1)
            )
            if not ahead or not behind:
                continue
            # The gain to doubt is the one under the paper's attack, else the first one's.
            if _BCE in behind:
                first, second, ahead, behind = second, first, behind, ahead
            gain = "the cross-entropy gradient" if _BCE in ahead else _names(ahead)
            sentences.append(
                f"**The order depends on the attack.** {first} is ahead of {second} under "
                f"{_names(ahead)} and behind under {_names(behind)} (area under {METRIC}): the "
                f"gain is specific to attacks by {gain}, it is not robustness in general."
            )
        return sentences

    def _weaker_than_noise(self) -> list[str]:
        sentences = []
        for attack in self.plan.attacks:
            weak = [
                f"{setting} ({attacked:.4f}, noise {noise:.4f})"
                for setting in self.settings
                if (attacked := self.area(attack, setting))
                > (noise := self.area(control_of(attack), setting))
            ]
            if weak:
                sentences.append(
                    f"`{attack}` does less harm than random noise of the same size, by area, to "
                    f"{', '.join(weak)}: there it measures little."
                )
        return sentences

    def _uneven(self) -> list[str]:
        """Settings for which the unit of a relative row budget says little."""
        if (self.plan.unit, self.plan.budget) != ("relative", "row"):
            return []
        words = {
            setting: uneven_words(curves[0].facts.get("unevenness", {}))
            for setting, curves in self.curves[self.plan.attacks[0]].items()
        }
        return [
            f"{setting}: {found}. A size in medians is small for the long rows, which rank first, "
            "so its curves flatter it. By default every row has a unit of its own."
            for setting, found in words.items()
            if found
        ]


def panel(found: Mapping[str, Any], attack: str, metric: str, title: str = "") -> Panel:
    """Draw a metric under an attack: every setting with its random control and certificate.

    ``found`` is the result of :meth:`SweepSummary.as_dict`, or JSON of it.
    """
    kinds: dict[str, Kind] = {attack: "attack", control_of(attack): "random"}
    kinds[CERTIFICATE] = "certificate"
    lines = [
        Line(setting, found["epsilons"], np.array(metrics[metric]), kind)
        for setting in found["settings"]
        for name, kind in kinds.items()
        if metric in (metrics := found["curves"].get(name, {}).get(setting, {}))
    ]
    name, at, k = metric.partition("@")
    spelled = name.upper() if name in ("ndcg", "mrr", "map") else name.capitalize()
    return Panel(lines, found["axis"], spelled + at + k, title)


def _differences(attack: str, found: Comparison) -> str:
    rows = []
    for each in found.contrasts:
        columns = zip(each.difference, each.lower, each.upper, each.p_holm, strict=True)
        cells = (f"{mean:+.4f} [{a:+.4f}, {b:+.4f}] p {p:.2g}" for mean, a, b, p in columns)
        rows.append([f"{each.first} - {each.second}", *cells])
    return markdown([f"`{attack}`", "area", *(f"{size:g}" for size in found.epsilons)], rows)


def _names(attacks: Sequence[str]) -> str:
    return " and ".join(f"`{attack}`" for attack in attacks)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)
