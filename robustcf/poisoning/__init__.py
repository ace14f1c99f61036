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

from robustcf.poisoning.auto import Strongest, strongest
from robustcf.poisoning.bandwagon import Bandwagon
from robustcf.poisoning.base import Injected, Poisoning, ProfileError, Task
from robustcf.poisoning.copied import CopiedProfiles
from robustcf.poisoning.exposure import Exposure, exposure
from robustcf.poisoning.greedy import Greedy
from robustcf.poisoning.injection import inject, inject_split, read_profiles, write_profiles
from robustcf.poisoning.knowledge import Knowledge
from robustcf.poisoning.random_items import RandomItems
from robustcf.poisoning.surrogate import Surrogate
from robustcf.poisoning.threat import PoisonThreat, Targets, parse_fakes
from robustcf.poisoning.victim import Outcome, damage, retrained

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
