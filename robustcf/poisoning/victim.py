"""Retraining of a recommender with fake users, evaluated for the genuine users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from robustcf._registry import FITTERS, POISONINGS
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate_rankings
from robustcf.models.scorer import Scorer
from robustcf.poisoning.base import Injected
from robustcf.poisoning.exposure import CUTOFFS, Exposure, exposure, genuine_ranking
from robustcf.poisoning.injection import inject_split, with_train
from robustcf.poisoning.threat import (
    AVAILABILITY,
    DEMOTE,
    NONE,
    UNDEFENDED,
    ItemIds,
    PoisonThreat,
)
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import fit_split

if TYPE_CHECKING:
    from robustcf.models.voting.config import VoteConfig
    from robustcf.poisoning.defences.base import Defence

#: Metrics of quality for genuine users.
QUALITY = ("ndcg@10", "recall@20")
#: The name of the worst of all attacks.
AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Outcome:
    """Exposure and quality of a trained recommender for genuine users."""

    exposure: Exposure
    quality: Mapping[str, float]  # see QUALITY; empty without test pairs
    epochs: int
    train_seconds: float
    defence: Mapping[str, Any]  # its report; empty without one

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without times, which differ between runs."""
        return {
            "exposure": self.exposure.as_dict(),
            "quality": dict(self.quality),
            "epochs": self.epochs,
            "defence_report": dict(self.defence),
        }


def retrained(
    split: Split,
    config: TrainConfig | VoteConfig,
    profiles: Sequence[ItemIds],
    targets: ItemIds,
    *,
    defence: Defence | None = None,
    ks: Sequence[int] = CUTOFFS,
) -> Outcome:
    """Train the whole recommender with fake users, and evaluate it for the genuine ones.

    Args:
        split: the genuine users' data, whose validation pairs choose the epochs.
        config: the victim's settings, those of a vote too.
        profiles: the items of each fake user; empty for the clean recommender.
        defence: changes data and settings before training.
        ks: cutoffs of the exposure.

    Example:
        >>> import numpy as np
        >>> from robustcf.data import checkerboard
        >>> config = TrainConfig.of(model="als", factors=4)
        >>> retrained(checkerboard(), config, [], np.array([0])).exposure["hit_rate@10"] <= 1
        True
    """
    poisoned = inject_split(split, profiles)
    report: Mapping[str, Any] = {}
    if defence is not None:
        defended = defence.apply(poisoned.train, config)
        poisoned = with_train(poisoned, defended.train)
        config, report = defended.config, defended.report
    fitted: Factors | Scorer
    if not isinstance(config, TrainConfig):
        model = FITTERS["vote"](poisoned, config)
        fitted, fit_on, epochs = model.scorer, model.fit_on, 0
        seconds = float(model.training["train_seconds"])
    else:
        trained = fit_split(poisoned, config)
        if trained.interrupted:
            raise KeyboardInterrupt
        fitted, fit_on, epochs = trained.fitted, trained.fit_on, trained.epochs
        seconds = trained.train_seconds
    mask = split.fit_mask(fit_on, "test")
    rank = genuine_ranking(fitted, split)
    quality = {}
    if len(split.test):
        metrics = evaluate_rankings(rank, split, (10, 20), mask=mask)
        quality = {name: metrics[name] for name in QUALITY}
    exposed = exposure(fitted, split, targets, ks, mask=mask)
    return Outcome(exposed, quality, epochs, seconds, report)


def damage(goal: str, exposed: Mapping[str, float], quality: Mapping[str, float]) -> float:
    """Return the success of an attack; larger is worse for the victim.

    ``promote``: the hit rate of the targets at the largest cutoff, ties broken by their NDCG;
    ``demote``: its negative; ``availability``: the negative NDCG@10 of genuine users, or NaN.

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
    """The strongest of several attacks, its profiles, and the outcomes of all."""

    name: str
    injected: Injected
    outcomes: Mapping[str, Outcome]

    @property
    def outcome(self) -> Outcome:
        """The outcome of the strongest."""
        return self.outcomes[self.name]


def members(goal: str, knowledge: str, *, defended: bool = False) -> tuple[str, ...]:
    """Return the attacks with this goal for which this knowledge is enough.

    Those that know the defence are among them where the victim is ``defended``.

    Example:
        >>> members("promote", "none")
        ('random', 'bandwagon')
    """
    named = {name: POISONINGS[name] for name in POISONINGS}
    able = {
        name: kind
        for name, kind in named.items()
        if goal in kind.goals and (defended or not kind.knows_defence)
    }
    return tuple(name for name, kind in able.items() if knowledge != NONE or not kind.needs_pairs)


def strongest(
    split: Split,
    config: TrainConfig | VoteConfig,
    threat: PoisonThreat,
    *,
    attacks: Sequence[str] = (),
    defence: Defence | None = None,
    seed: int = 0,
    ks: Sequence[int] = CUTOFFS,
) -> Strongest:
    """Return the strongest of several attacks after retraining the victim, with its defence.

    The ``attacks`` are names, by default all for the goal and knowledge of the threat; for the
    other arguments see :func:`retrained` and :meth:`Poisoning.attack`.

    Cost: every attack, and one training of the victim for each.

    Example:
        >>> from robustcf.data import checkerboard
        >>> threat, config = PoisonThreat(fakes=2), TrainConfig.of(model="als", factors=4)
        >>> strongest(checkerboard(), config, threat, attacks=["random"]).name
        'random'
    """
    if threat.goal == AVAILABILITY and len(split.test) == 0:
        raise InputError(
            f"{split.name} has no test pairs to measure availability: choose another goal"
        )
    made: dict[str, Injected] = {}
    outcomes: dict[str, Outcome] = {}
    defended = threat.defence != UNDEFENDED
    for name in tuple(attacks) or members(threat.goal, threat.knowledge, defended=defended):
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
