"""What a sweep is to do: a frozen plan, and the training settings that it stands for."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustcf._checks import check_choice, check_epsilons, check_integer
from robustcf._registry import MODELS, REGULARIZERS
from robustcf._runtime import MOST_THREADS
from robustcf.data.catalog import find
from robustcf.errors import InputError
from robustcf.robustness import AttackSpec, Threat
from robustcf.robustness.table import ATTACK_SIZES, AUTO, CERTIFICATE, RANDOM
from robustcf.training.config import TrainConfig
from robustcf.training.presets import adapted, preset

# The names of the random controls in a sweep's files, by the attack they belong to.
CONTROLS = {"fgm": RANDOM, "pgd": "random-pgd", AUTO: "random-auto"}
APR, ROBUST = "apr", "robust"
SETTINGS = (*REGULARIZERS, APR, ROBUST)
# Where the data lie is no part of what they are: the fingerprint is.
_PLACES = ("data_dir", "download")


@dataclass(frozen=True)
class SweepPlan:
    """Settings x seeds, and the attacks that every run of them faces.

    Args:
        dataset: a name or a path.
        data: the other arguments of :func:`robustcf.data.load`.
        model: what to train.
        regs: settings to compare: regularizers, ``apr`` (adversarial training on BPR), ``robust``
            (the robust preset).
        seeds: of training.
        attacks: attacks that every run faces. The random control is always added, and the
            certificate where the budget has one.
        epsilons: sizes, ascending.
        unit: of the sizes: ``relative``, ``own`` or ``absolute``, see
            :class:`robustcf.robustness.Threat`; absolute ones do not compare models of different
            scale.
        budget: the norm that epsilon bounds.
        preset: ``tuned``: settings chosen on valid; ``paper``: the paper's.
        changes: training settings that differ from the preset, for all runs.
        threads: torch threads of every run. Another number may round differently, so it is part
            of the plan; how many runs go on at a time is not.

    Raises:
        InputError: something is unknown, empty or given twice.

    Example:
        >>> SweepPlan("demo", regs=("none",), seeds=(0, 1)).runs()
        [('none', 0), ('none', 1)]
    """

    dataset: str
    data: Mapping[str, Any] = field(default_factory=dict)
    model: str = "ultragcn"
    regs: tuple[str, ...] = ("weight_decay", "two_to_inf", "max_norm")
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    attacks: tuple[str, ...] = (AUTO,)
    epsilons: tuple[float, ...] = ATTACK_SIZES["relative"]
    unit: str = "relative"
    budget: str = "row"
    preset: str = "tuned"
    changes: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("regs", "seeds", "attacks"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise InputError(f"{name} must be some and differ, got {list(values)}")
        for reg in self.regs:
            if reg not in SETTINGS and ":" not in reg:
                raise InputError(f"regs must be out of {', '.join(SETTINGS)}, got {reg!r}")
        check_choice("preset", self.preset, ("tuned", "paper"))
        MODELS[self.model]
        for attack in self.attacks:
            if attack in CONTROLS.values() or AttackSpec.parse(attack).way.certifies:
                raise InputError(f"{attack} is no attack, and always next to them: leave it out")
        check_epsilons(self.epsilons)
        check_integer("threads", self.threads, 1, MOST_THREADS)
        self.threat  # noqa: B018  # checks the budget
        for reg, seed in self.runs():
            self.train_config(reg, seed)

    def runs(self) -> list[tuple[str, int]]:
        """Setting and seed of every run: all settings of a seed before the next seed."""
        return [(reg, seed) for seed in self.seeds for reg in self.regs]

    @property
    def threat(self) -> Threat:
        """What the attackers may do."""
        return Threat(norm=self.budget, unit=self.unit)

    @property
    def measured(self) -> list[str]:
        """What is measured of every run: the attacks, and the certificate if there is one."""
        return [*self.attacks, *([CERTIFICATE] if self.budget == "row" else [])]

    def curves(self) -> list[str]:
        """The names of all curves of a run: the attacks, their controls, the certificate."""
        controls = dict.fromkeys(control_of(attack) for attack in self.attacks)
        return [*self.attacks, *controls, *self.measured[len(self.attacks) :]]

    def train_config(self, reg: str, seed: int) -> tuple[TrainConfig, str]:
        """What a run is trained with, and the name of the preset it came from."""
        manifest = find(self.dataset)
        name = manifest.name if manifest is not None else Path(self.dataset).name
        if reg == ROBUST:
            chosen = preset(name, self.model, kind=ROBUST)
        else:
            base = "weight_decay" if reg == APR else reg
            chosen = preset(name, self.model, base, self.preset)
        changes = dict(self.changes) | ({"adversarial": "bpr"} if reg == APR else {})
        return adapted(chosen.config, changes).replace(seed=seed), chosen.name

    def identity(self) -> dict[str, Any]:
        """Plain values of everything that decides the results, apart from the data's content."""
        values = dataclasses.asdict(self)
        values["data"] = {k: v for k, v in self.data.items() if k not in _PLACES}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def command(self) -> str:
        """The command that does the same, without where the data lie."""
        words = ["robustcf", "sweep", "--dataset", Path(self.dataset).name, "--model", self.model]
        words += ["--regs", *self.regs, "--seeds", str(len(self.seeds))]
        words += ["--attacks", *self.attacks, "--epsilons", *(f"{e:g}" for e in self.epsilons)]
        words += {"own": ["--relative", "own"]}.get(self.unit, [f"--{self.unit}"])
        words += ["--budget", self.budget]
        words += ["--preset", self.preset, "--threads", str(self.threads)]
        for key, value in self.changes.items():
            words += ["--set", f"{key}={json.dumps(value)}"]
        for key, value in self.identity()["data"].items():
            words += [f"--{'split-seed' if key == 'seed' else key.replace('_', '-')}", str(value)]
        return shlex.join([*words, "--out", "DIR"])


def control_of(attack: str) -> str:
    """The name of the random control that belongs to an attack.

    Example:
        >>> control_of("fgm-bce"), control_of("auto")
        ('random', 'random-auto')
    """
    return CONTROLS.get(attack.partition("-")[0], RANDOM)
