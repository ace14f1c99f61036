"""The Defence contract: training data and settings in, those to train with out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.training.config import TrainConfig

# Fewer users than this have no ordinary user to be compared with.
_FEWEST_USERS = 20


@dataclass(frozen=True, eq=False)
class Detection:
    """Who looks fake: a flag and a score (the detector's own measure) for each user.

    The ids of the items that the flagged users promote are there where the detector knows.
    """

    flagged: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float64]
    items: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def judged(self, fake: npt.ArrayLike) -> dict[str, float]:
        """Compare with the truth, for each user whether they are fake.

        Returns:
            ``precision`` (1 where nobody is flagged), ``recall`` (1 where nobody is fake) and
            ``false_positive_rate``, the share of the genuine users that is flagged.

        Example:
            >>> found = Detection(np.array([True, True, False]), np.zeros(3))
            >>> found.judged([True, False, False])
            {'precision': 0.5, 'recall': 1.0, 'false_positive_rate': 0.5}
        """
        truth = np.asarray(fake)
        if truth.shape != self.flagged.shape or truth.dtype != bool:
            raise InputError(
                f"fake must be true or false for each of the {len(self.flagged)} users, got "
                f"{truth.dtype} of shape {truth.shape}"
            )
        both = int((self.flagged & truth).sum())
        flagged, fakes, genuine = (int(x.sum()) for x in (self.flagged, truth, ~truth))
        return {
            "precision": both / flagged if flagged else 1.0,
            "recall": both / fakes if fakes else 1.0,
            "false_positive_rate": (flagged - both) / genuine if genuine else 0.0,
        }


@dataclass(frozen=True, eq=False)
class Defended:
    """What a defence makes of data and settings."""

    train: Interactions  # users keep their ids; one who is removed has no pairs
    config: TrainConfig
    report: Mapping[str, Any]  # plain values for JSON; ``flagged`` has the ids of removed users
    detection: Detection | None = None  # of a detector


class Defence(ABC):
    """What a recommender does about fake users before or while it trains.

    It gets the training pairs, fakes among them, and the settings. It knows neither which users are
    fake nor how many.
    """

    name: ClassVar[str] = ""

    @abstractmethod
    def apply(self, train: Interactions, config: TrainConfig) -> Defended:
        """Return the data and the settings to train with."""


class Detector(Defence):
    """A defence that finds users who look fake and drops their pairs; a subclass finds them."""

    @abstractmethod
    def find(self, train: Interactions) -> Detection:
        """Return who looks fake, among at least 20 users who all have pairs."""

    def detect(self, train: Interactions) -> Detection:
        """Return who looks fake among all users.

        Users without pairs are never flagged; among fewer than 20 others nobody is, since there is
        no telling what is usual.
        """
        warm = np.flatnonzero(train.user_degrees > 0)
        flagged, scores = np.zeros(train.n_users, dtype=bool), np.zeros(train.n_users)
        if len(warm) < _FEWEST_USERS:
            return Detection(flagged, scores)
        if len(warm) < train.n_users:
            place = np.zeros(train.n_users, dtype=np.int64)
            place[warm] = np.arange(len(warm))
            train = Interactions(place[train.users], train.items, len(warm), train.n_items)
        found = self.find(train)
        flagged[warm], scores[warm] = found.flagged, found.scores
        return Detection(flagged, scores, found.items)

    def apply(self, train: Interactions, config: TrainConfig) -> Defended:
        """Return the pairs without those of users who look fake, and the settings as they are.

        Raises:
            InputError: all users would be dropped.
        """
        found = self.detect(train)
        kept = ~found.flagged[train.users]
        if len(train) and not kept.any():
            raise InputError(
                f"{self.name} finds all users with pairs suspicious, and nothing would be left to "
                "learn from: choose another defence"
            )
        report = {
            "defence": self.name,
            "flagged": np.flatnonzero(found.flagged).tolist(),
            "items": found.items.tolist(),
        }
        return Defended(train.take(kept), config, report, found)
