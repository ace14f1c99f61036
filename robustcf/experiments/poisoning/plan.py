"""What a grid of poisoning is to do: a frozen plan, its parts, and the command that asks for it."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustcf._checks import check_cutoffs, check_integer
from robustcf._registry import DEFENCES, MODELS, POISONINGS
from robustcf._runtime import MOST_THREADS
from robustcf.data.catalog import find
from robustcf.errors import InputError
from robustcf.poisoning.exposure import CUTOFFS
from robustcf.poisoning.threat import NONE, PoisonThreat, Targets, fakes_name
from robustcf.poisoning.victim import AUTO, members
from robustcf.training.config import TrainConfig
from robustcf.training.presets import adapted, choose

# Where the data lie is no part of what they are: the fingerprint is.
_PLACES = ("data_dir", "download")
#: Profiles that come from a file, in the place of an attack's name.
FILE = "file"
#: No defence.
UNDEFENDED = "none"
#: The recommender without fake users, in the place of an attack's name.
CLEAN = "clean"


@dataclass(frozen=True)
class Part:
    """A piece of work: profiles of one attack, size and seed, against all models and defences.

    Args:
        attack: its name, or ``clean``.
        fakes: number or share; 0 for clean.
        seed: of targets, attack and training.
    """

    attack: str
    fakes: float
    seed: int

    @property
    def name(self) -> str:
        """A file's name."""
        middle = "" if self.attack == CLEAN else f"-{fakes_name(self.fakes)}"
        return f"{self.attack.replace(':', '.')}{middle}-seed{self.seed}"


@dataclass(frozen=True)
class PoisonPlan:
    """Models x attacks x numbers of fakes x seeds.

    Args:
        dataset: a name or a path.
        data: the other arguments of :func:`robustcf.data.load`.
        models: the victims, one or several (default: the best known for the data).
        preset: how the victims train: ``tuned`` (default), ``robust``, ``paper`` or a file.
        changes: training settings that differ from the preset.
        attacks: how the fake users choose their items; ``auto`` (default): all of them, and the
            worst for each seed.
        fakes: numbers or shares, ascending as they are given; 0 is the clean recommender, which is
            always there.
        targets: what the attacks are about, drawn anew for each seed.
        length: items of a profile; None for the mean of the genuine users.
        goal: see :class:`robustcf.poisoning.PoisonThreat`.
        knowledge: likewise.
        known: likewise.
        defences: what the victim does about it, or ``none``.
        profiles: a file of profiles instead of attacks and numbers of fakes.
        seeds: of targets, attacks and training.
        ks: cutoffs of the exposure (default 10 50).
        threads: torch threads of each training; None for those of an earlier call in the same
            folder, else by the size of the data, shared by the jobs.

    Raises:
        InputError: something is unknown, empty, given twice or out of its range.

    Example:
        >>> plan = PoisonPlan("demo", models=("als",), attacks=("random",), seeds=(0,))
        >>> [part.name for part in plan.parts()]
        ['clean-seed0', 'random-1%-seed0']
    """

    dataset: str
    data: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    preset: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    attacks: tuple[str, ...] = (AUTO,)
    fakes: tuple[float, ...] = (0.01,)
    targets: Targets = field(default_factory=Targets)
    length: int | None = None
    goal: str = "promote"
    knowledge: str = "data"
    known: float = 0.2
    defences: tuple[str, ...] = (UNDEFENDED,)
    profiles: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    ks: tuple[int, ...] = CUTOFFS
    threads: int | None = 1

    def __post_init__(self) -> None:
        if self.preset == "auto":
            raise InputError(
                "a victim is trained many times, and the preset auto would search each time: take "
                "tuned, or a file that 'robustcf tune' wrote"
            )
        if not self.models:
            object.__setattr__(self, "models", (self._default_model(),))
        for name in ("models", "attacks", "fakes", "defences", "seeds"):
            values = getattr(self, name)
            # One account and as many as users (1.0) are equal numbers, and are not the same.
            named = [fakes_name(value) for value in values] if name == "fakes" else values
            if not values or len(set(named)) != len(named):
                raise InputError(f"{name} must be some and differ, got {list(values)}")
        for seed in self.seeds:
            check_integer("every seed", seed, 0)
        object.__setattr__(self, "ks", check_cutoffs(self.ks))
        if self.threads is not None:
            check_integer("threads", self.threads, 1, MOST_THREADS)
        for model in self.models:
            MODELS[model]
        for name in self.defences:
            if name != UNDEFENDED:
                DEFENCES[name]
        for fakes in self.fakes:
            threat = self.threat(fakes)
        for name in self.attacks if self.profiles is None else ():
            if name == AUTO:
                continue
            kind = POISONINGS[name]
            if threat.goal not in kind.goals:
                raise InputError(
                    f"{name} has the goals {', '.join(kind.goals)}, not {threat.goal!r}: leave it "
                    "out"
                )
            if threat.knowledge == NONE and kind.needs_pairs:
                raise InputError(
                    f"{name} learns from pairs, and the knowledge is none: leave it out, or grant "
                    "data or part"
                )
        for model in self.models:
            self.train_config(model, 0)

    def threat(self, fakes: float) -> PoisonThreat:
        """What the attacker may do with so many fakes."""
        return PoisonThreat(fakes, self.length, self.targets, self.goal, self.knowledge, self.known)

    @property
    def tried(self) -> tuple[str, ...]:
        """The attacks whose profiles are made: those named, and the members of ``auto``."""
        if self.profiles is not None:
            return (FILE,)
        named = [name for name in self.attacks if name != AUTO]
        more = members(self.goal, self.knowledge) if AUTO in self.attacks else ()
        return tuple(dict.fromkeys((*named, *more)))

    @property
    def sizes(self) -> tuple[float, ...]:
        """The numbers of fakes of the attacks; what a file holds counts as one size."""
        return (1,) if self.profiles is not None else tuple(f for f in self.fakes if f)

    def parts(self) -> list[Part]:
        """All pieces of work: the clean recommenders of a seed, then its attacks."""
        found = []
        for seed in self.seeds:
            found.append(Part(CLEAN, 0, seed))
            found += [Part(name, fakes, seed) for fakes in self.sizes for name in self.tried]
        return found

    def victims(self) -> list[tuple[str, str]]:
        """Model and defence of everything that is trained."""
        return [(model, defence) for model in self.models for defence in self.defences]

    def train_config(self, model: str, seed: int) -> tuple[TrainConfig, str]:
        """How a victim trains, and the name of the preset it came from."""
        chosen = choose(self._name, model, None, self.preset or "tuned", changed=self.changes)
        return adapted(chosen.config, self.changes).replace(seed=seed), chosen.name

    @property
    def _name(self) -> str:
        manifest = find(self.dataset)
        return manifest.name if manifest is not None else Path(self.dataset).name

    def _default_model(self) -> str:
        kind = self.preset if self.preset is not None else "tuned"
        return choose(self._name, None, None, kind, changed=()).config.resolved().model.name

    def identity(self) -> dict[str, Any]:
        """Plain values of everything that decides the results, apart from the data's content."""
        values = dataclasses.asdict(self)
        values["data"] = {k: v for k, v in self.data.items() if k not in _PLACES}
        plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
        return plain

    def command(self) -> str | None:
        """The command that does the same, without where the data lie.

        None where there is none: a command takes the seeds from 0 on.
        """
        if list(self.seeds) != list(range(len(self.seeds))):
            return None
        words = ["robustcf", "poison", "--dataset", Path(self.dataset).name, "--model"]
        words += self.models
        words += ["--preset", self.preset] if self.preset else []
        if self.profiles is None:
            words += ["--attack", *self.attacks, "--fakes", *map(fakes_name, self.fakes)]
            words += ["--length", str(self.length)] if self.length is not None else []
        else:
            words += ["--profiles", Path(self.profiles).name]
        if self.targets.labels:
            words += ["--target", *self.targets.labels]
        else:
            words += ["--targets", str(self.targets.count)]
            words += ["--target-kind", self.targets.kind] if self.targets.kind != "rare" else []
        words += ["--goal", self.goal] if self.goal != "promote" else []
        if self.knowledge != "data":
            words += ["--knowledge", self.knowledge]
            words += ["--known", f"{self.known:g}"] if self.knowledge == "part" else []
        words += ["--defence", *self.defences] if self.defences != (UNDEFENDED,) else []
        words += ["--seeds", str(len(self.seeds)), "--k", *map(str, self.ks)]
        for key, value in self.changes.items():
            words += ["--set", f"{key}={json.dumps(value)}"]
        for key, value in self.identity()["data"].items():
            words += [f"--{'split-seed' if key == 'seed' else key.replace('_', '-')}", str(value)]
        return shlex.join([*words, "--threads", str(self.threads), "--out", "DIR"])
