"""A recommender retrained with fake users in its data, as genuine users then see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from robustcf._registry import POISONINGS
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.poisoning.base import Injected
from robustcf.poisoning.exposure import CUTOFFS, Exposure, exposure
from robustcf.poisoning.injection import inject_split, with_train
from robustcf.poisoning.threat import AVAILABILITY, DEMOTE, NONE, ItemIds, PoisonThreat
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import fit_split

if TYPE_CHECKING:
    from robustcf.poisoning.defences.base import Defence

#: Quality on test pairs of the genuine users.
QUALITY = ("ndcg@10", "recall@20")
#: The name of the worst of all attacks.
AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What genuine users get of a recommender that was trained on these data."""

    exposure: Exposure
    quality: Mapping[str, float]  # see QUALITY; empty without test pairs
    epochs: int
    train_seconds: float
    defence: Mapping[str, Any]  # its report; empty without one

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; no times, so that the same work gives the same bytes."""
        return {
            "exposure": self.exposure.as_dict(),
            "quality": dict(self.quality),
            "epochs": self.epochs,
            "defence_report": dict(self.defence),
        }


def retrained(
    split: Split,
    config: TrainConfig,
    profiles: Sequence[ItemIds],
    targets: ItemIds,
    *,
    defence: Defence | None = None,
    ks: Sequence[int] = CUTOFFS,
) -> Outcome:
    """Train the whole recommender with fake users in, and evaluate it for the genuine ones.

    The victim trains as it always does: its own settings, its number of epochs by its own rule, its
    validation pairs, which are the genuine users'.

    Args:
        split: the genuine users' data.
        config: how the victim trains.
        profiles: the items of each fake user; none for the clean recommender.
        targets: the items to look for.
        defence: what the victim does to data and settings first, or None.
        ks: cutoffs of the exposure.

    Example:
        >>> import numpy as np
        >>> from robustcf.data import checkerboard
        >>> config = TrainConfig.of(model="als", dim=4)
        >>> clean = retrained(checkerboard(), config, [], np.array([0]), ks=(5,))
        >>> sorted(clean.exposure.values)
        ['hit_rate@5', 'ndcg@5', 'share@5']
    """
    poisoned = inject_split(split, profiles)
    report: Mapping[str, Any] = {}
    if defence is not None:
        defended = defence.apply(poisoned.train, config)
        poisoned = with_train(poisoned, defended.train)
        config, report = defended.config, defended.report
    trained = fit_split(poisoned, config)
    if trained.interrupted:
        raise KeyboardInterrupt
    mask = split.fit_mask(trained.fit_on, "test")
    genuine = Factors(trained.factors.users[: split.n_users], trained.factors.items)
    quality = {}
    if len(split.test):
        metrics = evaluate(genuine, split, (10, 20), mask=mask)
        quality = {name: metrics[name] for name in QUALITY}
    exposed = exposure(genuine, split, targets, ks, mask=mask)
    return Outcome(exposed, quality, trained.epochs, trained.train_seconds, report)


def damage(goal: str, exposed: Mapping[str, float], quality: Mapping[str, float]) -> float:
    """Return how well an attack has reached its goal; larger is worse for the victim.

    ``promote``: the hit rate of the targets at the largest cutoff; ``demote``: its negative;
    ``availability``: the negative NDCG@10 of genuine users, NaN where it is not known. Where hit
    rates are equal, the targets' NDCG at the largest cutoff decides.

    Example:
        >>> damage("promote", {"hit_rate@10": 0.1, "ndcg@10": 0.0}, {})
        0.1
    """
    if goal == AVAILABILITY:
        return -quality.get("ndcg@10", math.nan)
    largest = max(int(name.partition("@")[2]) for name in exposed if name.startswith("hit_rate@"))
    value = exposed[f"hit_rate@{largest}"] + 1e-6 * exposed[f"ndcg@{largest}"]
    return -value if goal == DEMOTE else value


@dataclass(frozen=True, eq=False)
class Strongest:
    """The attack that did most, its profiles, and what each of those that were tried did."""

    name: str
    injected: Injected
    outcomes: Mapping[str, Outcome]

    @property
    def outcome(self) -> Outcome:
        """What the strongest did."""
        return self.outcomes[self.name]


def members(goal: str, knowledge: str) -> tuple[str, ...]:
    """Return the attacks that have this goal and can do with this knowledge.

    Example:
        >>> members("promote", "none")
        ('random', 'bandwagon')
    """
    return tuple(
        name
        for name in POISONINGS
        if goal in POISONINGS[name].goals
        and (knowledge != NONE or not POISONINGS[name].needs_pairs)
    )


def strongest(
    split: Split,
    config: TrainConfig,
    threat: PoisonThreat,
    *,
    attacks: Sequence[str] = (),
    defence: Defence | None = None,
    seed: int = 0,
    ks: Sequence[int] = CUTOFFS,
) -> Strongest:
    """Return the worst of several attacks after retraining the victim, with its defence.

    The ``attacks`` are names, by default all that the threat allows; the other arguments are those
    of :func:`retrained` and :meth:`Poisoning.attack`.

    Cost: that of every attack, and one training of the victim for each.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import Targets
        >>> config = TrainConfig.of(model="als", dim=8, sweeps=2)
        >>> threat = PoisonThreat(fakes=0.02, targets=Targets(2))
        >>> found = strongest(load("demo"), config, threat, attacks=("random", "bandwagon"))
        >>> found.name in ("random", "bandwagon")
        True
    """
    if threat.goal == AVAILABILITY and len(split.test) == 0:
        raise InputError(
            f"{split.name} has no test pairs: which attack costs most quality cannot be seen; take "
            "a split with test pairs, or another goal"
        )
    made: dict[str, Injected] = {}
    outcomes: dict[str, Outcome] = {}
    for name in tuple(attacks) or members(threat.goal, threat.knowledge):
        made[name] = POISONINGS[name]().attack(split.train, threat, seed)
        outcomes[name] = retrained(
            split, config, made[name].profiles, made[name].targets, defence=defence, ks=ks
        )
    damages = {
        name: damage(threat.goal, outcome.exposure.values, outcome.quality)
        for name, outcome in outcomes.items()
    }
    worst = max(damages, key=lambda name: damages[name])
    return Strongest(worst, made[worst], outcomes)
