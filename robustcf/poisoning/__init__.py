"""Fake users: attacks on training data by accounts, and what they do to genuine users.

Example:
    >>> from robustcf.data import load
    >>> split = load("demo")
    >>> threat = PoisonThreat(fakes=0.01, targets=Targets(count=2))
    >>> found = Bandwagon().attack(split.train, threat)
    >>> poisoned = inject_split(split, found.profiles)
    >>> poisoned.n_users - split.n_users
    20
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names
from robustcf.poisoning.exposure import Exposure, exposure

if TYPE_CHECKING:
    from robustcf.experiments.fakes import report
    from robustcf.poisoning.adaptive import Adaptive
    from robustcf.poisoning.base import Injected, Poisoning, ProfileError, Task
    from robustcf.poisoning.heuristic import Bandwagon, CopiedProfiles, RandomItems
    from robustcf.poisoning.injection import inject, inject_split, read_profiles, write_profiles
    from robustcf.poisoning.surrogate import Greedy, Surrogate
    from robustcf.poisoning.threat import Knowledge, PoisonThreat, Targets, parse_fakes
    from robustcf.poisoning.victim import Outcome, Strongest, damage, retrained, strongest

__all__ = [
    "Adaptive",
    "Bandwagon",
    "CopiedProfiles",
    "Exposure",
    "Greedy",
    "Injected",
    "Knowledge",
    "Outcome",
    "PoisonThreat",
    "Poisoning",
    "ProfileError",
    "RandomItems",
    "Strongest",
    "Surrogate",
    "Targets",
    "Task",
    "damage",
    "exposure",
    "inject",
    "inject_split",
    "parse_fakes",
    "read_profiles",
    "report",
    "retrained",
    "strongest",
    "write_profiles",
]

_HOMES = {
    ".adaptive": ("Adaptive",),
    ".base": ("Injected", "Poisoning", "ProfileError", "Task"),
    ".heuristic": ("Bandwagon", "CopiedProfiles", "RandomItems"),
    ".injection": ("inject", "inject_split", "read_profiles", "write_profiles"),
    ".surrogate": ("Greedy", "Surrogate"),
    ".threat": ("Knowledge", "PoisonThreat", "Targets", "parse_fakes"),
    "robustcf.experiments.fakes": ("report",),
    ".victim": ("Outcome", "Strongest", "damage", "retrained", "strongest"),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: home for home, names in _HOMES.items() for name in names}
)
