"""A recommender retrained with fake users in its data, as genuine users then see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.poisoning.exposure import CUTOFFS, Exposure, exposure
from robustcf.poisoning.injection import inject_split, with_train
from robustcf.poisoning.threat import AVAILABILITY, DEMOTE, ItemIds
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import fit_split

#: Of the quality on test pairs of the genuine users.
QUALITY = ("ndcg@10", "recall@20")


class Defended(Protocol):
    """What a defence makes of training data and settings, and what it says of its work."""

    @property
    def train(self) -> Interactions:
        """The pairs to train on; the genuine users keep their ids."""

    @property
    def config(self) -> TrainConfig:
        """How to train."""

    @property
    def report(self) -> Mapping[str, Any]:
        """Plain values for JSON."""


class Defence(Protocol):
    """What stands between the training data and the training."""

    def apply(self, train: Interactions, config: TrainConfig) -> Defended:
        """The data and the settings to train with; it does not know which users are fake."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What genuine users get of a recommender that was trained on these data.

    Args:
        exposure: what they are shown of the targets.
        quality: ``ndcg@10`` and ``recall@20`` on their test pairs.
        epochs: of the training.
        train_seconds: time of the training.
        defence: what a defence says of its work; empty without one.
    """

    exposure: Exposure
    quality: Mapping[str, float]
    epochs: int
    train_seconds: float
    defence: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; no times, so that the same work gives the same bytes."""
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
    """Train the whole recommender with fake users in, and look at it with the genuine ones.

    The victim trains as it always does: its own settings, its number of epochs by its own rule, its
    validation pairs, which are the genuine users'. A defence stands between the data and the
    training: it may remove or weigh pairs, or change the settings.

    Args:
        split: the genuine users' data.
        config: how the victim trains.
        profiles: the items of each fake user; none for the clean recommender.
        targets: the items to look for.
        defence: what the victim does first, or None.
        ks: cutoffs of the exposure.

    Cost: one training, two evaluations.

    Example:
        >>> import numpy as np
        >>> from robustcf.data import checkerboard
        >>> config = TrainConfig.of(model="als", dim=4)
        >>> clean = retrained(checkerboard(), config, [], np.array([0]), ks=(5,))
        >>> sorted(clean.exposure.values)
        ['hit_rate@5', 'ndcg@5', 'share@5']
    """
    poisoned = inject_split(split, profiles)
    said: Mapping[str, Any] = {}
    if defence is not None:
        defended = defence.apply(poisoned.train, config)
        poisoned, config, said = (
            with_train(poisoned, defended.train),
            defended.config,
            defended.report,
        )
    trained = fit_split(poisoned, config)
    if trained.interrupted:
        raise KeyboardInterrupt
    mask = split.fit_mask(trained.fit_on, "test")
    genuine = Factors(trained.factors.users[: split.n_users], trained.factors.items)
    if len(split.test):
        report = evaluate(genuine, split, (10, 20), mask=mask)
        quality = {name: report[name] for name in QUALITY}
    else:
        quality = {}
    return Outcome(
        exposure(genuine, split, targets, ks, mask=mask),
        quality,
        trained.epochs,
        trained.train_seconds,
        said,
    )


def damage(goal: str, exposed: Mapping[str, float], quality: Mapping[str, float]) -> float:
    """How well an attack has reached its goal; larger is worse for the victim.

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
