"""All detectors together."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from robustcf.data.interactions import Interactions
from robustcf.poisoning.defences.base import Detection, Detector
from robustcf.poisoning.defences.groups import Groups
from robustcf.poisoning.defences.pca import PCASelection
from robustcf.poisoning.defences.twins import Twins


class AllDetectors(Detector):
    """Whoever looks fake to :class:`PCASelection`, :class:`Twins` or :class:`Groups`.

    The score is the number of detectors that flag a user.

    Cost: that of the three.

    Example:
        >>> from robustcf.data import load
        >>> int(AllDetectors().detect(load("demo").train).flagged.sum())
        0
    """

    name: ClassVar[str] = "detect"

    def __init__(self) -> None:
        """Take the detectors with their defaults."""
        self.detectors: tuple[Detector, ...] = (PCASelection(), Twins(), Groups())

    def each(self, train: Interactions) -> dict[str, Detection]:
        """What every detector finds, by its name."""
        return {detector.name: detector.detect(train) for detector in self.detectors}

    def find(self, train: Interactions) -> Detection:
        """See :class:`AllDetectors`."""
        return union(self.each(train))


def union(found: dict[str, Detection]) -> Detection:
    """Several detections as one; the score counts them.

    Example:
        >>> a, b = (Detection(np.array(x), np.zeros(2)) for x in ([True, False], [True, True]))
        >>> union({"a": a, "b": b}).scores.tolist()
        [2.0, 1.0]
    """
    counts = np.sum([each.flagged for each in found.values()], axis=0).astype(np.float64)
    items = np.unique(np.concatenate([each.items for each in found.values()]))
    return Detection(counts > 0, counts, items)
