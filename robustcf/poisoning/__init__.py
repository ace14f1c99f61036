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

from robustcf.poisoning.base import Injected, Poisoning, ProfileError, Task
from robustcf.poisoning.exposure import Exposure, exposure
from robustcf.poisoning.heuristic import Bandwagon, CopiedProfiles, RandomItems
from robustcf.poisoning.injection import inject, inject_split, read_profiles, write_profiles
from robustcf.poisoning.surrogate import Greedy, Surrogate
from robustcf.poisoning.threat import Knowledge, PoisonThreat, Targets, parse_fakes
from robustcf.poisoning.victim import Outcome, Strongest, damage, retrained, strongest

__all__ = [
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
    "retrained",
    "strongest",
    "write_profiles",
]
