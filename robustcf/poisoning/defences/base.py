"""The contract of a defence, which changes training data or settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.models.voting.config import VoteConfig
    from robustcf.training.config import TrainConfig

    #: Of a model that is trained, or of a vote.
    Settings: TypeAlias = TrainConfig | VoteConfig

# With fewer users there is no telling what is usual.
_FEWEST_USERS = 20


@dataclass(frozen=True, eq=False)
class Detection:
    """Suspected fake users, the scores of all users, and promoted items, if they are known."""

    flagged: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float64]  # the detector's own measure
    items: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def judged(self, fake: npt.ArrayLike) -> dict[str, float]:
        """Return precision, recall and false positive rate, given whether each user is fake.

        Precision is 1 without flagged users, recall 1 without fake ones.

        Example:
            >>> found = Detection(np.array([True, True, False]), np.zeros(3))
            >>> found.judged([True, False, False])
            {'precision': 0.5, 'recall': 1.0, 'false_positive_rate': 0.5}
        """
        truth = np.asarray(fake)
        if truth.shape != self.flagged.shape or truth.dtype != bool:
            got = f"{truth.dtype} of shape {truth.shape}"
            raise InputError(f"fake must be a bool per user ({len(self.flagged)} users), got {got}")
        both = int((self.flagged & truth).sum())
        flagged, fakes, genuine = (int(x.sum()) for x in (self.flagged, truth, ~truth))
        return {
            "precision": both / flagged if flagged else 1.0,
            "recall": both / fakes if fakes else 1.0,
            "false_positive_rate": (flagged - both) / genuine if genuine else 0.0,
        }


@dataclass(frozen=True, eq=False)
class Defended:
    """Defended data and settings."""

    train: Interactions  # users keep their ids; removed users have no pairs
    config: Settings
    report: Mapping[str, Any]  # plain values for JSON; ``flagged``: ids of removed users
    detection: Detection | None = None


class Defence(ABC):
    """A defence against fake users before or during training, which does not know who is fake."""

    name: ClassVar[str] = ""

    def configured(self, config: Settings) -> Settings:
        """Return the settings to train with; raise InputError for a model that it does not fit."""
        return config

    @abstractmethod
    def apply(self, train: Interactions, config: Settings) -> Defended:
        """Return the data and the settings to train with."""


class Detector(Defence):
    """A defence that drops the pairs of suspected users; a subclass defines :meth:`find`."""

    @abstractmethod
    def find(self, train: Interactions) -> Detection:
        """Return the suspects among at least 20 users, all with pairs."""

    def detect(self, train: Interactions) -> Detection:
        """Return the suspects among users with pairs; none if these are fewer than 20."""
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

    def apply(self, train: Interactions, config: Settings) -> Defended:
        """Return the pairs without those of suspects; raise InputError if none would be left."""
        found = self.detect(train)
        kept = ~found.flagged[train.users]
        if len(train) and not kept.any():
            raise InputError(f"{self.name} suspects all users with pairs: choose another defence")
        report = {
            "defence": self.name,
            "flagged": np.flatnonzero(found.flagged).tolist(),
            "items": found.items.tolist(),
        }
        return Defended(train.take(kept), config, report, found)
