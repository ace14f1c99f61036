"""Poisoning grids: models x attacks x numbers of fake users x seeds, retrained and evaluated."""

from __future__ import annotations

import hashlib
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from robustcf._checks import check_cutoffs, check_known
from robustcf._io.files import read_json, write_bytes, write_json
from robustcf._io.plots import Line, Panel
from robustcf._io.reading import read_plain
from robustcf._io.schema import ABSENT, OBJECT, RATE, Kind, check_kind, list_of, record, whole
from robustcf._io.text import aligned, markdown, wrapped
from robustcf._registry import DEFENCES, MODELS, POISONINGS
from robustcf._runtime import threads_used
from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.experiments.grid import (
    Array,
    Plan,
    bullets,
    check_unique,
    make_folder,
    rounded,
    run_grid,
    spread,
    write_results,
)
from robustcf.poisoning.base import spent
from robustcf.poisoning.exposure import CUTOFFS
from robustcf.poisoning.injection import read_profiles, read_targets, write_profiles
from robustcf.poisoning.threat import NONE, UNDEFENDED, ItemIds, PoisonThreat, Targets, fakes_name
from robustcf.poisoning.victim import AUTO, QUALITY, damage, members, retrained
from robustcf.training.config import TrainConfig
from robustcf.training.presets import KINDS, adapted, choose

if TYPE_CHECKING:
    from robustcf.models.voting.config import VoteConfig

#: In the place of an attack: profiles from ``file:NAME``, and no fake users.
FILE, CLEAN = "file:", "clean"
VOTE = "vote"
LOST = "ndcg@10 lost"
CELLS, PROFILES = "cells", "profiles"
_EXPOSURE = ("hit_rate", "ndcg", "share", "t_hr", "t_ndcg")
_MOST_BYTES = 1 << 30
_KNOWS = {
    "data": "all training pairs",
    "part": "the training pairs of some users",
    "none": "how popular the items are, and nothing else",
}
_WANTS = {
    "promote": "to have the targets recommended",
    "demote": "to keep the targets from being recommended",
    "availability": "to make recommendations worse for all users",
}
_MEANING = """\
- Genuine users only. A user lacks a target without a pair of it in train, validation or test; \
other targets do not count.
- `target hit_rate@k`: users with at least one lacked target among the first k items, divided by \
users who lack at least one. `target ndcg@k`: NDCG with the lacked targets as the relevant items, \
over the same users.
- `target share@k`: places of the first k that hold a lacked target, divided by all places, over \
all genuine users.
- `target t_hr@k` and `t_ndcg@k`: hit rate and NDCG of each target alone, over the users who lack \
it, mean over targets (T-HR and T-NDCG of publications).
- `{}`: NDCG@10 on test of the clean recommender of the same seed, minus that of the poisoned one.
- `auto`: for each seed the attack that did most to this victim after retraining, by {}."""
# Settings of votes and of trainings alike.
_OF_BOTH = {"refit"}
Cell = Mapping[str, Any]


class Part(NamedTuple):
    """A cell of the grid: the profiles of an attack, ``file`` or ``clean``, against all victims."""

    attack: str
    fakes: float
    seed: int

    @property
    def name(self) -> str:
        """The file of the profiles."""
        middle = "" if self.attack == CLEAN else f"-{fakes_name(self.fakes)}"
        return f"{self.attack.replace(':', '.')}{middle}-seed{self.seed}"


class Row(NamedTuple):
    """A victim under an attack, over all seeds."""

    model: str
    defence: str
    attack: str = CLEAN
    fakes: float = 0

    @property
    def victim(self) -> str:
        """Model and defence."""
        return self.model if self.defence == UNDEFENDED else f"{self.model} with {self.defence}"

    @property
    def size(self) -> str:
        """The number of fakes in words."""
        return "fakes of the file" if self.attack.startswith(FILE) else fakes_name(self.fakes)

    def stem(self, seed: int) -> str:
        """Return the name of the file of a result."""
        victim = f"{self.model}-{self.defence}".replace(":", ".")
        return f"{victim}-{Part(self.attack, self.fakes, seed).name}"


@dataclass(frozen=True)
class PoisonPlan(Plan):
    """Victims x attacks x numbers of fakes x seeds.

    Args:
        models: the victims, one or several, ``vote`` too (default: the best known for the data).
        preset: settings of the victims: ``tuned``, ``robust``, ``paper`` or a file.
        seeds: of targets, attacks and training.
        attacks: how the fake users choose their items; ``auto`` (default): all of them, and the
            worst for each seed.
        fakes: fake users, as numbers or in percent of the genuine ones (default 1%); the clean
            recommender (0) is always included.
        targets: what the attacks are about, drawn anew for each seed.
        length: items per profile; None for the mean of the genuine users.
        goal: see :class:`robustcf.poisoning.PoisonThreat`.
        knowledge: see :class:`robustcf.poisoning.PoisonThreat`.
        known: see :class:`robustcf.poisoning.PoisonThreat`.
        defences: what the victim does about it, or ``none``.
        profiles: files of profiles instead of attacks and numbers of fakes; published ones in JSON
            name the targets, too.
        ks: cutoffs of the exposure (default 10 50).

    Example:
        >>> plan = PoisonPlan("demo", models=("als",), attacks=("random",), seeds=(0,))
        >>> [part.name for part in plan.cells()]
        ['clean-seed0', 'random-1%-seed0']
        >>> print(plan.command())
        robustcf poison --dataset demo --model als --attack random --fakes 1% --targets 5 --k 10 50
        --preset tuned --seeds 1 --threads 1 --out DIR
    """

    grid, verb, step = "poisoning", "poison", "training"
    lists = ("models", "seeds", "attacks", "defences")

    models: tuple[str, ...] = ()
    preset: str = "tuned"
    attacks: tuple[str, ...] = (AUTO,)
    fakes: tuple[float, ...] = (0.01,)
    targets: Targets = field(default_factory=Targets)
    length: int | None = None
    goal: str = "promote"
    knowledge: str = "data"
    known: float = 0.2
    defences: tuple[str, ...] = (UNDEFENDED,)
    profiles: tuple[str, ...] = ()
    ks: tuple[int, ...] = CUTOFFS

    def __post_init__(self) -> None:
        if self.preset == "auto":
            raise InputError(
                "the preset auto would search anew for every victim: take tuned, or a file that "
                "'robustcf tune' wrote"
            )
        if not self.models:
            object.__setattr__(self, "models", (self.best_model,))
        super().__post_init__()
        # One account (1) and as many as users (1.0) are equal numbers, but not the same.
        check_unique("fakes", [fakes_name(fakes) for fakes in self.fakes])
        object.__setattr__(self, "ks", check_cutoffs(self.ks))
        for name in self.defences:
            if name != UNDEFENDED:
                DEFENCES[name]
        for fakes in self.fakes:
            self.threat(fakes)
        if self.profiles:
            check_unique("names of the files of profiles", self.tried)
            named = {read_targets(path) for path in self.profiles} - {()}
            if len(named) > 1:
                raise InputError("profiles must be of the same targets: attack with one file each")
            if named and not self.targets.labels:
                object.__setattr__(self, "targets", Targets(labels=named.pop()))
        for name in self.attacks if not self.profiles else ():
            if name == AUTO:
                continue
            kind = POISONINGS[name]
            if self.goal not in kind.goals:
                raise InputError(
                    f"{name} has the goals {', '.join(kind.goals)}, not {self.goal!r}: leave it out"
                )
            if self.knowledge == NONE and kind.needs_pairs:
                raise InputError(
                    f"{name} learns from pairs and needs the knowledge data or part, got none"
                )
        for model in self.models:
            self.train_config(model, 0)
        if not self.steps():
            raise InputError(f"the defences fit none of the models: {'; '.join(self.unfit)}")

    @property
    def best_model(self) -> str:
        """The model that is best known for the data."""
        return choose(self.data_name, kind=self.preset).config.resolved().model.name

    def check_model(self, model: str) -> None:
        """Raise for a victim that is neither a model nor a vote."""
        if model != VOTE:
            MODELS[model]

    def threat(self, fakes: float, defence: str = UNDEFENDED) -> PoisonThreat:
        """Return the threat of so many fakes, for attackers who know the defence."""
        own = (self.length, self.targets, self.goal, self.knowledge, self.known)
        return PoisonThreat(fakes, *own, defence)

    @property
    def tried(self) -> tuple[str, ...]:
        """The attacks whose profiles are made, the members of ``auto`` among them."""
        if self.profiles:
            return tuple(FILE + Path(path).stem for path in self.profiles)
        named = [name for name in self.attacks if name != AUTO]
        defended = set(self.defences) != {UNDEFENDED}
        more: tuple[str, ...] = ()
        if AUTO in self.attacks:  # imports all attacks
            more = members(self.goal, self.knowledge, defended=defended)
        return tuple(dict.fromkeys((*named, *more)))

    @property
    def sizes(self) -> tuple[float, ...]:
        """The numbers of fakes of the attacks; the content of a file counts as one size."""
        return (1,) if self.profiles else tuple(f for f in self.fakes if f)

    def cells(self) -> list[Part]:
        """Return the clean recommenders of a seed, then its attacks, then the next seed."""
        made = [(name, fakes) for fakes in self.sizes for name in self.tried]
        return [Part(*each, seed) for seed in self.seeds for each in ((CLEAN, 0), *made)]

    def steps(self) -> list[Row]:
        """Return every victim, without defences that do not fit their model."""
        return [row for row, why in self._victims if why is None]

    @property
    def unfit(self) -> list[str]:
        """Which defences do not fit which models, and why."""
        return [f"{row.victim}: {why}" for row, why in self._victims if why is not None]

    @cached_property
    def _victims(self) -> list[tuple[Row, str | None]]:
        found: list[tuple[Row, str | None]] = []
        for row in (Row(model, defence) for model in self.models for defence in self.defences):
            why = None
            if row.defence != UNDEFENDED:
                try:
                    DEFENCES[row.defence]().configured(self.train_config(row.model, 0)[0])
                except InputError as error:
                    why = str(error)
            found.append((row, why))
        return found

    def train_config(self, model: str, seed: int) -> tuple[TrainConfig | VoteConfig, str]:
        """Return how a victim trains, and the name of the preset it came from.

        Of several models, a vote takes the settings that it has, and other models the others.
        """
        if model == VOTE:
            return self.vote_config(seed), "settings chosen on valid"
        own = set(_vote_settings()) - _OF_BOTH if VOTE in self.models else set()
        changes = {key: value for key, value in self.changes.items() if key not in own}
        chosen = choose(self.data_name, model, None, self.preset, changed=changes)
        return adapted(chosen.config, changes).replace(seed=seed), chosen.name

    def vote_config(self, seed: int) -> VoteConfig:
        """Return the settings of a vote; those that are open are chosen on valid."""
        from robustcf.models.voting.config import VoteConfig  # on demand: votes are seldom

        known = _vote_settings()
        if set(self.models) == {VOTE}:
            check_known(VoteConfig, self.changes)
        changes = {key: value for key, value in self.changes.items() if key in known}
        return VoteConfig(**{**changes, "seed": seed})

    def pinned(self, split: Split) -> dict[str, Any]:
        """Return training settings and digests of files, which may change before it is resumed."""
        self._check(split)
        pinned = super().pinned(split)
        files = {FILE + Path(path).stem: path for path in self.profiles}
        if self.preset not in KINDS:
            files["preset"] = self.preset
        for name, path in files.items():
            content = read_plain(Path(path), _MOST_BYTES, follow=True)
            pinned[name] = hashlib.sha256(content).hexdigest()
        for model in self.models:
            config, _ = self.train_config(model, self.seeds[0])
            pinned[f"settings of {model}"] = (
                config.as_dict() if isinstance(config, TrainConfig) else asdict(config)
            )
        return pinned

    def own_words(self) -> list[str]:
        """Return the options of ``robustcf poison`` alone."""
        if not self.profiles:
            words = ["--attack", *self.attacks, "--fakes", *map(fakes_name, self.fakes)]
            words += ["--length", str(self.length)] if self.length is not None else []
        else:
            words = ["--profiles", *(Path(path).name for path in self.profiles)]
        if self.targets.labels:
            words += ["--target", *self.targets.labels]
        else:
            words += ["--targets", str(self.targets.count)]
            words += ["--target-kind", self.targets.kind] if self.targets.kind != "rare" else []
        words += ["--goal", self.goal] if self.goal != "promote" else []
        words += ["--knowledge", self.knowledge] if self.knowledge != "data" else []
        words += ["--known", f"{self.known:g}"] if self.knowledge == "part" else []
        words += ["--defence", *self.defences] if self.defences != (UNDEFENDED,) else []
        return [*words, "--k", *map(str, self.ks)]

    def _check(self, split: Split) -> None:
        if len(split.test) == 0:
            raise InputError(
                f"{split.name} has no test pairs to measure quality by: give --test-ratio or "
                "--test-file"
            )
        for seed in self.seeds:
            self.targets.choose(split.train, seed)
            for fakes in () if self.profiles else self.sizes:
                self.threat(fakes).granted(split.train, seed)
        for path in self.profiles:
            if not read_profiles(path, split.train):
                raise InputError(f"{path} has no profiles: expected one or more, a pair a row")

    def complete(self, folder: Path, cell: Part, split: Split) -> Iterator[str]:
        """Retrain every victim that has no result yet."""
        made: dict[str, tuple[ItemIds, ...]] = {}
        known = cell.attack in self.tried and self._knows_defence(cell.attack)
        with threads_used(self.threads, exact=True):
            for victim in self.steps():
                row = victim._replace(attack=cell.attack, fakes=cell.fakes)
                if _read_cell(self, folder, row, cell.seed) is None:
                    defence = row.defence if known else UNDEFENDED
                    if defence not in made:
                        made[defence] = self._profiles(folder, cell, split, defence)
                    profiles = made[defence]
                    targets = self.targets.choose(split.train, cell.seed)
                    found = retrained(
                        split,
                        self.train_config(row.model, cell.seed)[0],
                        profiles,
                        targets,
                        defence=None if row.defence == UNDEFENDED else DEFENCES[row.defence](),
                        ks=self.ks,
                    )
                    result = {
                        **row._asdict(),
                        "seed": cell.seed,
                        "targets": targets.tolist(),
                        "spent": spent(profiles),
                        **plain(found.as_dict()),
                    }
                    if self.more_kinds(row, cell.seed):
                        result |= self.more(split, profiles, targets)
                    make_folder(folder / CELLS)
                    write_json(folder / CELLS / f"{row.stem(cell.seed)}.json", result)
                yield row.victim

    def more_kinds(self, row: Row, seed: int) -> Mapping[str, Kind]:
        """Return the kinds of further entries of a cell."""
        return {}

    def more(self, split: Split, profiles: Sequence[ItemIds], targets: ItemIds) -> dict[str, Any]:
        """Return further entries, for cells that have kinds of them."""
        return {}

    def _knows_defence(self, attack: str) -> bool:
        return not attack.startswith(FILE) and POISONINGS[attack].knows_defence

    def _profiles(
        self, folder: Path, part: Part, split: Split, defence: str
    ) -> tuple[ItemIds, ...]:
        """The profiles of an attack; never read back, as their file may have been changed."""
        if part.attack == CLEAN:
            return ()
        if part.attack.startswith(FILE):
            return read_profiles(self.profiles[self.tried.index(part.attack)], split.train)
        attack = POISONINGS[part.attack]()
        found = attack.attack(split.train, self.threat(part.fakes, defence), part.seed)
        make_folder(folder / PROFILES)
        against = "" if defence == UNDEFENDED else f"-{defence.replace(':', '.')}"
        path = folder / PROFILES / f"{part.name}{against}.csv"
        write_profiles(path, found.profiles, split.train)
        return found.profiles


def _vote_settings() -> list[str]:
    from robustcf.models.voting.config import VoteConfig  # on demand: votes are seldom

    return [field.name for field in fields(VoteConfig)]


def stands_out(counts: Mapping[str, Array], name: str) -> bool:
    """Return whether a count is larger than all others by more than noise.

    It must be larger for every seed, and the sums over seeds must differ by more than twice the
    standard deviation of a Poisson difference, sqrt(a + b).

    Example:
        >>> few, many = np.array([2, 3]), np.array([90, 80])
        >>> stands_out({"a": few, "b": many}, "b"), stands_out({"a": few, "b": few + 1}, "b")
        (True, False)
    """
    mine = counts[name]
    return all(
        bool((mine > other).all())
        and (mine - other).sum() > 2 * math.sqrt(abs(mine).sum() + abs(other).sum())
        for key, other in counts.items()
        if key != name
    )


def count_range(counts: Array) -> str:
    """Return a mean of counts, with the range of several seeds."""
    mean = f"{counts.mean():,.0f}"
    return f"{mean} ({counts.min():,.0f}-{counts.max():,.0f})" if len(counts) > 1 else mean


def plain(value: Any) -> Any:
    """Numbers of numpy as Python's own, which JSON can hold."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _read_cell(plan: PoisonPlan, folder: Path, row: Row, seed: int) -> Cell | None:
    """A cell from its file; None where it is missing or damaged, so that it is made again."""
    path = folder / CELLS / f"{row.stem(seed)}.json"
    rates = {f"{kind}@{k}": RATE for kind in _EXPOSURE for k in plan.ks}
    single = {f"hit_rate@{k}": list_of(RATE, 1) for k in plan.ks}
    kind = {
        "spent": record({name: whole() for name in ("fakes", "length", "pairs")}),
        "exposure": record(
            {**rates, "by_target": record(single), "n_users": whole()}, others=ABSENT
        ),
        "quality": record(dict.fromkeys(QUALITY, RATE)),
        "defence_report": OBJECT,
    }
    try:
        cell = read_json(path)
        check_kind(path, cell, record(kind | dict(plan.more_kinds(row, seed))))
    except InputError:
        return None
    named = {**row._asdict(), "seed": seed}
    return cell if {key: cell.get(key) for key in named} == named else None


def poison(
    plan: PoisonPlan, out: str | Path, *, jobs: int = 1, progress: bool = False
) -> PoisonSummary:
    """Attack, retrain and evaluate, or resume a grid that was stopped.

    Writes ``poison.json`` (the plan), ``profiles/`` (CSV, per attack, size and seed), ``cells/``
    (JSON, per victim and attack), ``results.json``, ``results.csv``, a picture (PNG and SVG),
    ``report.md`` and ``report.txt``.

    Args and errors: see :func:`robustcf.experiments.grid.run_grid`.

    Cost: one training per victim, attack, size and seed that is missing.
    """
    folder = Path(out)

    def summarize(plan: PoisonPlan, split: Split) -> PoisonSummary:
        summary = PoisonSummary.read(plan, folder, split)
        summary.write()
        return summary

    return run_grid(plan, folder, summarize, jobs=jobs, progress=progress)


@dataclass(frozen=True, eq=False)
class PoisonSummary:
    """The results of a poisoning grid; ``cells`` are by the names of their files."""

    plan: PoisonPlan
    out: Path
    dataset: str
    n_users: int
    cells: Mapping[str, Cell]
    facts: Mapping[str, Any]

    @classmethod
    def read(cls, plan: PoisonPlan, folder: Path, split: Split) -> PoisonSummary:
        """Return the results of a grid that is complete."""
        cells: dict[str, Cell] = {}
        for victim in plan.steps():
            for part in plan.cells():
                row = victim._replace(attack=part.attack, fakes=part.fakes)
                cell, stem = _read_cell(plan, folder, row, part.seed), row.stem(part.seed)
                if cell is None:
                    raise InputError(f"{folder / CELLS / stem}.json is gone: repeat the command")
                cells[stem] = cell
        return cls(plan, folder, split.name, split.n_users, cells, plan.facts(split))

    @property
    def attacks(self) -> list[str]:
        """The attacks that have rows: those tried, and ``auto`` if it is in the plan."""
        auto = [AUTO] if AUTO in self.plan.attacks and not self.plan.profiles else []
        return [*self.plan.tried, *auto]

    @property
    def metrics(self) -> list[str]:
        """The metrics of exposure, then quality and its loss."""
        return [*(f"target {kind}@{k}" for kind in _EXPOSURE for k in self.plan.ks), *QUALITY, LOST]

    @property
    def headline(self) -> str:
        """The metric that the goal is about."""
        return LOST if self.plan.goal == "availability" else self._hit_rate

    @property
    def _hit_rate(self) -> str:
        return f"target hit_rate@{max(self.plan.ks)}"

    def rows(self, victim: Row) -> Iterator[Row]:
        """Yield the rows of a victim: clean, then every attack of every size."""
        yield victim
        for fakes in self.plan.sizes:
            for attack in self.attacks:
                yield victim._replace(attack=attack, fakes=fakes)

    def cell(self, row: Row, seed: int) -> Cell:
        """Return a cell; of ``auto``, that of the attack that harmed this victim most."""
        if row.attack != AUTO:
            return self.cells[row.stem(seed)]

        def harm(cell: Cell) -> float:
            rates = {name: value for name, value in cell["exposure"].items() if "@" in name}
            return damage(self.plan.goal, rates, cell["quality"])

        return max((self.cell(row._replace(attack=a), seed) for a in self.plan.tried), key=harm)

    def of_seeds(self, row: Row) -> list[Cell]:
        """Return the cells of a row, one per seed."""
        return [self.cell(row, seed) for seed in self.plan.seeds]

    def values(self, row: Row, metric: str) -> Array:
        """Return a metric, seed by seed."""
        if metric == LOST:
            clean = Row(row.model, row.defence)
            return self.values(clean, "ndcg@10") - self.values(row, "ndcg@10")
        part = "exposure" if metric.startswith("target ") else "quality"
        name = metric.removeprefix("target ")
        return np.array([cell[part][name] for cell in self.of_seeds(row)], dtype=np.float64)

    def mean(self, row: Row, metric: str) -> float:
        """Return the mean of a metric over seeds."""
        return float(np.mean(self.values(row, metric)))

    def target_spread(self, row: Row) -> tuple[float, float, float]:
        """Return lowest, mean and highest hit rate of single targets at the largest cutoff.

        Each over the genuine users who lack that target.
        """
        k = f"hit_rate@{max(self.plan.ks)}"
        found = [value for cell in self.of_seeds(row) for value in cell["exposure"]["by_target"][k]]
        return float(min(found)), float(np.mean(found)), float(max(found))

    def chosen(self, row: Row) -> list[str]:
        """Return the attacks that ``auto`` took, seed by seed."""
        return [str(cell["attack"]) for cell in self.of_seeds(row)]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: the plan, then metrics seed by seed."""
        results = [self._result(row) for each in self.plan.steps() for row in self.rows(each)]
        head = {"n_users": self.n_users, "headline": self.headline}
        return {**self.facts, **head, "results": results}

    def _result(self, row: Row) -> dict[str, Any]:
        cells = self.of_seeds(row)
        spent = dict(cells[0]["spent"])
        result = row._asdict() | {
            "fakes": str(spent["fakes"]) if row.attack.startswith(FILE) else fakes_name(row.fakes),
            "spent": spent,
            **{metric: rounded(self.values(row, metric)) for metric in self.metrics},
            "single targets": rounded(self.target_spread(row)),
        }
        if row.attack == AUTO:
            result["chosen"] = self.chosen(row)
        if row.defence != UNDEFENDED:
            result["defence_report"] = [cell["defence_report"] for cell in cells]
        return result

    def write(self) -> None:
        """Write tables, the picture and both reports into the folder of the grid."""
        values = self.as_dict()
        rows = (
            {key: result[key] for key in Row._fields}
            | {"seed": seed, "metric": metric, "value": value}
            for result in values["results"]
            for metric in self.metrics
            for seed, value in zip(self.plan.seeds, result[metric], strict=True)
        )
        title = textwrap.fill(f"{self.dataset}: {self.plan.goal} {self.plan.targets.words()}", 40)
        panels = [self._panels(metric) for metric in (self._hit_rate, LOST)]
        drawn = "" if self.plan.targets.labels else " Each seed draws its targets anew."
        report = [
            f"# {' and '.join(self.plan.models)} on {self.dataset} with fake users",
            "## What the result says",
            bullets(self.findings()),
            "![users who see a target, and quality lost, by the number of fake users](poison.png)",
            "## Numbers",
            f"Mean over seeds (lowest to highest seed), in percent.{drawn}",
            *map(self._table, self.plan.steps()),
            "## What the numbers mean",
            _MEANING.format(LOST, self.headline),
            "## How it was made",
            self._made(),
        ]
        write_results(self.out, "results", values, rows, {"poison": (title, panels)}, report)
        write_bytes(self.out / "report.txt", f"{self.text()}\n".encode())

    def _panels(self, metric: str) -> list[Panel]:
        """A panel per victim, a line per attack."""
        name, below = "NDCG@10 lost, x 100", None  # an attack may improve quality
        if metric != LOST:
            name, below = f"users who see a target, % (first {max(self.plan.ks)})", 0.0
        panels = []
        for victim in self.plan.steps():
            lines = []
            for attack in self.attacks:
                rows = [victim, *(Row(*victim[:2], attack, fakes) for fakes in self.plan.sizes)]
                # Sizes are those of the first attack: auto may spend another number for each seed.
                first = [row._replace(attack=self.plan.tried[0]) for row in rows[1:]]
                spent = [self.cell(row, self.plan.seeds[0])["spent"]["fakes"] for row in first]
                sizes = [100 * number / self.n_users for number in (0, *spent)]
                values = 100 * np.stack([self.values(row, metric) for row in rows], axis=1)
                lines.append(Line(attack, sizes, values))
            axis = "fake users, % of the genuine ones"
            panels.append(Panel(lines, axis, name, victim.victim, below))
        return panels

    def findings(self) -> list[str]:
        """Return what the numbers support, in sentences: the worst attack per victim and size."""
        metric, sentences = self.headline, []
        for victim in self.plan.steps():
            for fakes in self.plan.sizes:
                means = {
                    row: self.mean(row, metric)
                    for row in (victim._replace(attack=a, fakes=fakes) for a in self.plan.tried)
                }
                sign = -1 if self.plan.goal == "demote" else 1
                worst = max(means, key=lambda row: sign * means[row])
                lost = self.mean(worst, LOST)
                word = "fell" if lost >= 0 else "rose"
                counts = {r.attack: sign * self.counts(r) for r in (victim, *means)}
                clear = stands_out(counts, worst.attack)
                reach = f"{metric} {100 * means[worst]:.2f} % (clean "
                reach += f"{100 * self.mean(victim, metric):.2f} %)"
                if metric != LOST:
                    reach = f"{reach}, {count_range(self.counts(worst))} users"
                did = f"`{worst.attack}` did most" if clear else "no attack did more than noise"
                size = f"{worst.size} fakes"
                if self.plan.profiles:
                    size = (
                        f"{self.cell(worst, self.plan.seeds[0])['spent']['fakes']} fakes of a file"
                    )
                sentences.append(
                    f"{worst.victim}, {size}: {did}, {reach}; "
                    f"NDCG@10 of genuine users {word} by {abs(lost):.4f}."
                )
        return [*sentences, *(f"Left out, {words}." for words in self.plan.unfit)]

    def counts(self, row: Row) -> Array:
        """Return the users of the headline, seed by seed; of availability, NDCG@10 times users."""
        users = [cell["exposure"].get("n_users", self.n_users) for cell in self.of_seeds(row)]
        return np.asarray(np.rint(self.values(row, self.headline) * np.array(users)))

    @property
    def _columns(self) -> list[str]:
        return [name for name in self.metrics if name != "recall@20"]

    def text(self) -> str:
        """Return the report for a terminal: one table, and the findings."""
        k = max(self.plan.ks)
        shown = (f"target hit_rate@{k}", f"target t_hr@{k}", f"target t_ndcg@{k}", "ndcg@10")
        rows = [
            [
                *(name[:24] for name in row[:3]),
                "file" if row.attack.startswith(FILE) else row.size,
                count_range(self.counts(row)) if self.headline != LOST else "-",
                *(f"{self.mean(row, name):.4f}" for name in shown[1:]),
            ]
            for victim in self.plan.steps()
            for row in self.rows(victim)
        ]
        header = [*Row._fields, f"users@{k}", f"t_hr@{k}", f"t_ndcg@{k}", "ndcg@10"]
        table = aligned(header, rows, left=range(len(Row._fields)))
        words = (
            f"(users@{k}: genuine users of {self.n_users:,} who see a target among their first {k},"
            "\nmean and range of the seeds; the others are means of shares and metrics)"
        )
        return "\n\n".join([f"{table}\n{words}", *map(wrapped, self.findings())])

    def _table(self, victim: Row) -> str:
        single = f"single targets, hit_rate@{max(self.plan.ks)}"
        rows = []
        for row in self.rows(victim):
            chosen = (
                f" ({', '.join(dict.fromkeys(self.chosen(row)))})" if row.attack == AUTO else ""
            )
            low, mean, high = (100 * value for value in self.target_spread(row))
            values = (spread(100 * self.values(row, metric), 3) for metric in self._columns)
            alone = f"{mean:.3f} ({low:.3f} to {high:.3f})"
            rows.append([row.attack + chosen, row.size, *values, alone])
        table = markdown(["attack", "fakes", *self._columns, single], rows)
        return f"### {victim.victim}\n\n{table}"

    def _made(self) -> str:
        plan = self.plan
        presets = (f"{model}: {plan.train_config(model, 0)[1]}" for model in plan.models)
        knows = f"knows {_KNOWS[plan.knowledge]}"
        if plan.profiles:
            knows = f"has the profiles of {', '.join(Path(path).name for path in plan.profiles)}"
        return plan.made(
            f"The attacker wants {_WANTS[plan.goal]} ({plan.targets.words()}) and {knows}.",
            "Each seed is that of targets, attack and training. The victim is trained anew for "
            "each cell: all its epochs, by its own rule.",
            f"{self.n_users:,} genuine users.",
            f"Presets: {', '.join(presets)}.",
        )
