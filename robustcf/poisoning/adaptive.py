"""An attacker who knows the defence of the victim, and tries it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from robustcf._registry import DEFENCES
from robustcf.errors import InputError
from robustcf.poisoning._half_steps import fit_als
from robustcf.poisoning.base import Poisoning, Task
from robustcf.poisoning.heuristic import CopiedProfiles
from robustcf.poisoning.injection import inject
from robustcf.poisoning.surrogate import Surrogate, push_of, reached_by
from robustcf.poisoning.threat import PROMOTE, UNDEFENDED, ItemIds
from robustcf.training.config import TrainConfig

_SOURCES = 4


class Adaptive(Poisoning):
    """The profiles that reach most users after the defence of the victim, judged by a surrogate.

    Candidates are those of ``copy`` and of ``surrogate``, as they are and changed against
    detectors: fillers mixed from four profiles (no copies), one target per fake user or a single
    target for all (no set of items that all share), or both. Each goes through the defence, and ALS
    is fitted to what is left, with the cap of ``leverage`` if that is the defence. Adversarial
    training, which ALS does not have, is not simulated. Without a defence nothing is changed.

    Cost: both attacks; for each of up to 12 candidates the defence and a fit of ALS.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import PoisonThreat
        >>> threat = PoisonThreat(fakes=5, length=20, defence="twins")
        >>> Adaptive().attack(load("demo").train, threat).realised["fakes"]
        5
    """

    name = "adaptive"
    needs_pairs = True
    knows_defence = True

    def propose(self, task: Task) -> list[ItemIds]:
        """Return the best candidate."""
        pairs, config = task.known.pairs(self.name), TrainConfig.of(model="als")
        defence = None if task.defence == UNDEFENDED else DEFENCES[task.defence]()
        if defence is not None:
            try:
                defence.configured(config)
            except InputError:
                defence = None  # of the training of other models
        seed = int(task.rng.integers(2**31))
        push = push_of(task, pairs, fit_als(pairs, seed))
        best, chosen = -np.inf, list[ItemIds]()
        for start in (CopiedProfiles(), Surrogate()):
            made = list(start.propose(task))
            for profiles in [made] if task.defence == UNDEFENDED else _changed(task, made):
                left, share = inject(pairs, profiles), None
                if defence is not None:
                    try:
                        defended = defence.apply(left, config)
                    except InputError:
                        continue  # it suspects everyone
                    left = defended.train
                    if isinstance(defended.config, TrainConfig):
                        share = defended.config.as_dict()["model"]["max_share"]
                factors = fit_als(left, seed, pairs.n_users, share)
                reached = reached_by(task, pairs, factors, push)
                if reached > best or not chosen:
                    best, chosen = reached, profiles
        return chosen


def _changed(task: Task, profiles: list[ItemIds]) -> Iterator[list[ItemIds]]:
    """Yield the profiles and their variants."""
    targets = [profiles]
    if task.goal == PROMOTE and len(task.targets) > 1:
        count = len(task.targets)
        for kept in (lambda n: n % count, lambda n: 0):
            others = (np.delete(task.targets, kept(n)) for n in range(len(profiles)))
            pairs = zip(profiles, others, strict=True)
            targets.append([np.setdiff1d(profile, other) for profile, other in pairs])
    for each in targets:
        yield each
        yield _mixed(each, task.targets, task.rng)


def _mixed(
    profiles: Sequence[ItemIds], targets: ItemIds, rng: np.random.Generator
) -> list[ItemIds]:
    """Fillers from four of the profiles each, as many as before."""
    found = []
    for profile in profiles:
        four = rng.choice(len(profiles), size=min(_SOURCES, len(profiles)), replace=False)
        pool = np.setdiff1d(np.concatenate([profiles[n] for n in four]), targets)
        mine = np.intersect1d(profile, targets)
        count = min(len(pool), len(profile) - len(mine))
        found.append(np.union1d(rng.choice(pool, count, replace=False), mine).astype(np.int64))
    return found
