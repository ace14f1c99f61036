"""Auto: the worst of all attacks, by retraining the real victim against each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from robustcf._registry import POISONINGS
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.poisoning.base import Injected
from robustcf.poisoning.exposure import CUTOFFS
from robustcf.poisoning.threat import AVAILABILITY, NONE, PoisonThreat
from robustcf.poisoning.victim import Defence, Outcome, damage, retrained
from robustcf.training.config import TrainConfig

AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Strongest:
    """The attack that did most, and all that were tried.

    Args:
        name: of the strongest.
        injected: its profiles.
        outcome: what it did.
        outcomes: name -> what each of them did.
    """

    name: str
    injected: Injected
    outcome: Outcome
    outcomes: Mapping[str, Outcome]


def members(goal: str, knowledge: str) -> tuple[str, ...]:
    """The attacks that have this goal and can do with this knowledge.

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
    """The worst of several attacks after retraining the victim, with the defence that it has.

    Args:
        split: the genuine users' data.
        config: how the victim trains.
        threat: what the attacker may do, wants and knows.
        attacks: names; by default all that the threat allows.
        defence: of the victim, or None.
        seed: of targets and attacks.
        ks: cutoffs of the exposure.

    Raises:
        InputError: the goal is availability, and there are no test pairs to see it by; or what
            :meth:`robustcf.poisoning.Poisoning.attack` raises.

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
    names = tuple(attacks) or members(threat.goal, threat.knowledge)
    made: dict[str, Injected] = {}
    outcomes: dict[str, Outcome] = {}
    for name in names:
        made[name] = POISONINGS[name]().attack(split.train, threat, seed)
        outcomes[name] = retrained(
            split, config, made[name].profiles, made[name].targets, defence=defence, ks=ks
        )
    worst = max(
        outcomes,
        key=lambda name: damage(
            threat.goal, outcomes[name].exposure.values, outcomes[name].quality
        ),
    )
    return Strongest(worst, made[worst], outcomes[worst], outcomes)
