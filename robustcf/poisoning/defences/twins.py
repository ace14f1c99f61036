"""Near-duplicate profiles that all add the same items."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_number
from robustcf.data.interactions import Interactions
from robustcf.poisoning.defences.base import Detection, Detector
from robustcf.poisoning.defences.neighbours import nearest, unit_profiles
from robustcf.poisoning.defences.outliers import robust_z

# Fisher's transformation of a cosine of 1 is infinite.
_MOST = 1.0 - 1e-6
# A surplus that the popularity of items explains with this chance or more is no surplus; divided
# by the number of items.
_CHANCE = 1e-3


class Twins(Detector):
    """Users whose profile is another's, and who add what other such users add.

    Two users are twins where the cosine of a profile with its nearest one is unusual: Fisher's
    transformation of it lies more than ``threshold`` robust standard deviations above the median.
    Whoever copies a real profile and adds a target has a twin; so has the copied user. The two are
    told apart by what one has and the other has not: an item that is in the surplus of more twins
    than its popularity explains (Poisson, chance at most 0.001 / items) is pushed, and twins with a
    pushed item in their surplus are flagged. Twins that add nothing in common are left alone.

    Args:
        threshold: see above.

    Cost: the cosines of all pairs of users, 64 MB at a time.

    Example:
        >>> from robustcf.data import load
        >>> train = load("demo").train
        >>> copies = [np.append(train.items_of(user), 0) for user in range(30)]
        >>> users = np.repeat(np.arange(30), [len(copy) for copy in copies]) + train.n_users
        >>> pairs, _ = Interactions.from_pairs(
        ...     np.concatenate((train.users, users)),
        ...     np.concatenate((train.items, *copies)), train.n_users + 30, train.n_items)
        >>> Twins().detect(pairs).items.tolist()
        [0]
    """

    name: ClassVar[str] = "twins"

    def __init__(self, threshold: float = 6.0) -> None:
        """Keep the settings."""
        self.threshold = check_number("threshold", threshold, positive=True)

    def find(self, train: Interactions) -> Detection:
        """See :class:`Twins`; the score is the robust z-score of the similarity."""
        cosines, who = nearest(unit_profiles(train, 0.0), 1)
        near = np.minimum(cosines[:, 0].astype(np.float64), _MOST)
        scores = robust_z(np.arctanh(near))
        twins = np.flatnonzero(scores > self.threshold)
        flagged = np.zeros(train.n_users, dtype=bool)
        if len(twins) == 0:
            return Detection(flagged, scores)
        R = train.csr()
        surplus = (R[twins] - R[twins].multiply(R[who[twins, 0]])).tocsr()
        surplus.eliminate_zeros()
        pushed = _pushed(np.diff(surplus.indptr), surplus.indices, train.item_degrees)
        flagged[twins] = np.asarray(surplus[:, pushed].sum(axis=1)).ravel() > 0
        return Detection(flagged, scores, pushed)


def _pushed(
    sizes: npt.NDArray[np.integer], items: npt.NDArray[np.integer], degrees: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Items in more of the surpluses than their popularity explains."""
    from scipy.stats import poisson

    counts = np.bincount(items, minlength=len(degrees))
    expected = sizes.sum() * degrees / max(1, degrees.sum())
    chance = poisson.sf(counts - 1, expected)
    return np.flatnonzero((counts >= 3) & (chance < _CHANCE / len(degrees)))
