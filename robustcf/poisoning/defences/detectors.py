"""Detectors of fake users: by shared variance, near-copies and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer, check_number
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.poisoning.defences.base import Detection, Detector

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Numbers = npt.NDArray[np.float64]

# The standard deviation of a normal distribution in median absolute deviations.
_MAD = 1.4826
# Similarities held at a time: 64 MB, and about four times that while sorting.
_ENTRIES = 16_000_000
# Fisher's transformation of a cosine of 1 is infinite.
_MOST = 1.0 - 1e-6
# Twins: largest probability of a surplus under the popularity of items, divided by their number.
_CHANCE = 1e-3
# Groups: ranks of the nearest users whose similarity counts, the power of log(users / degree) in
# it, and the robust standard deviations above the median of a suspect.
_NEIGHBOURS, _RARITY, _SUSPECT = (10, 20, 50), 3.0, 4.0
# Groups: least share of suspects among an item's users, and largest share of users with the item.
_SHARE, _RARE = 1 / 3, 0.2
# Groups: least Jaccard index of equal sets of all users; friends reach 0.7.
_LINK_OF_ALL = 0.8
# Items whose common users are counted at a time.
_BLOCK = 1000


class PCASelection(Detector):
    """Users whose profiles share least variance with those of other users.

    Variable selection by principal components (Mehta and Nejdl, 2009,
    doi:10.1007/s11257-008-9050-4) on profiles standardized over the items. Flagged are users whose
    log share of variance in the first ``components`` (plus ``components / n_items``, as of a random
    profile) is more than ``threshold`` robust standard deviations below the median. It finds random
    items, not copied profiles or popular items.

    Cost: a truncated SVD of the pairs, some ten products with ``components`` + 9 columns.
    """

    name: ClassVar[str] = "pca"

    def __init__(self, components: int = 3, threshold: float = 6.0) -> None:
        self.components = check_integer("components", components)
        self.threshold = check_number("threshold", threshold, positive=True)

    def find(self, train: Interactions) -> Detection:
        """Return the suspects; the score is minus the robust z-score."""
        shares = self.shares(train)
        scores = -_robust_z(np.log(shares + self.components / train.n_items))
        return Detection(scores > self.threshold, scores)

    def shares(self, train: Interactions) -> Numbers:
        """Return the share of each user's variance in the leading components."""
        n = train.n_items
        mean = train.user_degrees / max(n, 1)
        spread = np.sqrt(mean * (1.0 - mean))
        inverse = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 0.0)
        count = min(self.components, train.n_users, n)
        # Z = diag(inverse) (R - mean 1^T) is dense; subspace iteration finds the leading
        # eigenvectors of Z Z^T with products of R alone.
        R, back = train.csr().astype(np.float64), train.csr().T.tocsr().astype(np.float64)

        def forward(X: Any) -> Any:
            return inverse[:, None] * (R @ X - mean[:, None] * X.sum(axis=0))

        def backward(Y: Any) -> Any:
            scaled = inverse[:, None] * Y
            return back @ scaled - (mean[:, None] * scaled).sum(axis=0)

        width = min(count + 9, train.n_users, n)
        rng = np.random.default_rng(0)  # affects the last digits only
        Q = np.linalg.qr(forward(rng.standard_normal((n, width))))[0]
        for _ in range(30):
            Q = np.linalg.qr(forward(backward(Q)))[0]
        small = backward(Q)
        values, vectors = np.linalg.eigh(small.T @ small)
        leading = Q @ vectors[:, ::-1][:, :count]
        strength = np.maximum(values[::-1][:count], 0.0)
        shares: Numbers = (leading**2 @ strength) / max(n, 1)
        return shares


class Twins(Detector):
    """Users with a near-copy of another profile, plus items that other such users add too.

    A user has a twin if the cosine with the nearest profile, by Fisher's transformation, is more
    than ``threshold`` robust standard deviations above the median. An item in the surplus over the
    twin of more users than its popularity explains (Poisson, probability at most 0.001 / items) is
    promoted, and twins with such an item in their surplus are flagged.

    Cost: the cosines of all pairs of users, 64 MB at a time.

    Example:
        >>> from robustcf.data import load
        >>> from robustcf.poisoning import inject
        >>> train = load("demo").train
        >>> copies = [np.union1d(train.items_of(user), 0) for user in range(30)]
        >>> Twins().detect(inject(train, copies)).items.tolist()
        [0]
    """

    name: ClassVar[str] = "twins"

    def __init__(self, threshold: float = 6.0) -> None:
        self.threshold = check_number("threshold", threshold, positive=True)

    def find(self, train: Interactions) -> Detection:
        """Return the suspects; the score is the robust z-score of the similarity."""
        cosines, who = _nearest(_unit_profiles(train, 0.0), 1)
        scores = _unusual(cosines[:, 0])
        twins = np.flatnonzero(scores > self.threshold)
        flagged = np.zeros(train.n_users, dtype=bool)
        if len(twins) == 0:
            return Detection(flagged, scores)
        R = train.csr()
        surplus = (R[twins] - R[twins].multiply(R[who[twins, 0]])).tocsr()
        surplus.eliminate_zeros()
        promoted = beyond_chance(surplus, train.item_degrees)
        flagged[twins] = np.asarray(surplus[:, promoted].sum(axis=1)).ravel() > 0
        return Detection(flagged, scores, promoted)


class Groups(Detector):
    """Users who share several items that few others have.

    1. *Suspects*: users whose cosine with the 10th, 20th or 50th nearest profile, weighted by
       rarity, is 4 robust standard deviations above the median (Fisher's transformation).
    2. *Promoted items*: items of at most a fifth of all users, with at least ``least`` suspects, a
       third of their users, that are linked: their sets of suspects have a Jaccard index of at
       least ``link``, or their sets of all users one of 0.8.
    3. *Flagged*: users with at least two items, and half, of a set of linked items, if they are at
       least ``least``.

    It misses single targets, fewer than ``least`` accounts, and accounts with disjoint targets.

    Cost: the cosines of all pairs of users, 64 MB at a time, and the common users of all pairs of
    items, a thousand items at a time.
    """

    name: ClassVar[str] = "groups"

    def __init__(self, least: int = 10, link: float = 0.7) -> None:
        self.least = check_integer("least", least, 2)
        self.link = check_number("link", link, positive=True)
        if self.link > 1:
            raise InputError(f"link must be at most 1, got {link}")

    def find(self, train: Interactions) -> Detection:
        """Return the suspects; the score is the largest robust z-score of the similarities."""
        cosines, _ = _nearest(_unit_profiles(train, _RARITY), max(_NEIGHBOURS))
        scores = np.zeros(train.n_users)
        for count in _NEIGHBOURS:
            if count <= cosines.shape[1]:
                scores = np.maximum(scores, _unusual(cosines[:, count - 1]))
        flagged = np.zeros(train.n_users, dtype=bool)
        promoted = [np.empty(0, np.int64)]
        all_users = np.ones(train.n_users, dtype=bool)
        sets = self._linked(train, scores > _SUSPECT, self.link)
        sets += self._linked(train, all_users, max(self.link, _LINK_OF_ALL))
        for items in sets:
            own = np.asarray(train.csr()[:, items].sum(axis=1)).ravel()
            members = own >= max(2.0, len(items) / 2)
            if members.sum() >= self.least:
                flagged |= members
                promoted.append(items)
        return Detection(flagged, scores, np.unique(np.concatenate(promoted)))

    def _linked(
        self, train: Interactions, among: npt.NDArray[np.bool_], link: float
    ) -> list[npt.NDArray[np.int64]]:
        """Sets of two or more items that the same of these users have."""
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        R = train.csr()[among]
        counts = np.asarray(R.sum(axis=0)).ravel()
        rare = train.item_degrees <= _RARE * train.n_users
        enough = (counts >= self.least) & (counts >= _SHARE * train.item_degrees) & rare
        items = np.flatnonzero(enough)
        if len(items) < 2:
            return []
        some, own = R[:, items].tocsr(), counts[items]
        back = some.T.tocsr()
        links: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        for start in range(0, len(items), _BLOCK):
            common = (back[start : start + _BLOCK] @ some).tocoo()
            rows, columns = start + common.row.astype(np.int64), common.col.astype(np.int64)
            jaccard = common.data / (own[rows] + own[columns] - common.data)
            there = (jaccard >= link) & (rows < columns)
            links.append((rows[there], columns[there]))
        rows, columns = (np.concatenate(each) for each in zip(*links, strict=True))
        graph = coo_matrix((np.ones(len(rows)), (rows, columns)), (len(items), len(items)))
        _, labels = connected_components(graph, directed=False)
        linked = np.unique(labels[np.concatenate((rows, columns))])
        return [items[labels == number] for number in linked]


class AllDetectors(Detector):
    """Users flagged by :class:`PCASelection`, :class:`Twins` or :class:`Groups`; the score counts.

    Example:
        >>> from robustcf.data import load
        >>> int(AllDetectors().detect(load("demo").train).flagged.sum())
        0
    """

    name: ClassVar[str] = "detect"

    def __init__(self) -> None:
        self.detectors: tuple[Detector, ...] = (PCASelection(), Twins(), Groups())

    def find(self, train: Interactions) -> Detection:
        """Return the union of the three detections."""
        return union([detector.detect(train) for detector in self.detectors])


def union(found: list[Detection]) -> Detection:
    """Return several detections as one; the score counts them."""
    counts = np.sum([each.flagged for each in found], axis=0).astype(np.float64)
    items = np.unique(np.concatenate([each.items for each in found]))
    return Detection(counts > 0, counts, items)


def _robust_z(values: Numbers) -> Numbers:
    """Distances from the median in units of the median absolute deviation; 0 if that is 0."""
    centred = values - np.median(values)
    spread = _MAD * float(np.median(np.abs(centred)))
    return centred / spread if spread > 0 else np.zeros(len(values))


def _unusual(cosines: npt.NDArray[np.float32]) -> Numbers:
    return _robust_z(np.arctanh(np.minimum(cosines.astype(np.float64), _MOST)))


def _unit_profiles(train: Interactions, rarity: float) -> csr_matrix:
    """Profiles of length 1, items weighted by ``log(users / degree) ** rarity``."""
    from scipy.sparse import diags

    weights = np.log(max(1, train.n_users) / np.maximum(train.item_degrees, 1.0)) ** rarity
    R = (train.csr().astype(np.float32) @ diags(weights.astype(np.float32))).tocsr()
    norms = np.sqrt(np.asarray(R.multiply(R).sum(axis=1)).ravel())
    unit: csr_matrix = (diags(1.0 / np.where(norms > 0, norms, 1.0)) @ R).tocsr()
    return unit.astype(np.float32)


def _nearest(
    profiles: csr_matrix, count: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Cosines of each row with its nearest other rows, descending, and the ids of these rows."""
    n = profiles.shape[0]
    count = min(count, n - 1)
    values = np.zeros((n, count), dtype=np.float32)
    who = np.zeros((n, count), dtype=np.int64)
    back: Any = profiles.T.tocsr()
    step = max(1, _ENTRIES // n)
    for start in range(0, n, step):
        block = (profiles[start : start + step] @ back).toarray()
        rows = np.arange(len(block))
        block[rows, start + rows] = -1.0
        best = np.argpartition(-block, count - 1, axis=1)[:, :count]
        found = np.take_along_axis(block, best, axis=1)
        order = np.lexsort((best, -found), axis=1)
        values[start : start + step] = np.take_along_axis(found, order, axis=1)
        who[start : start + step] = np.take_along_axis(best, order, axis=1)
    return values, who


def beyond_chance(surplus: csr_matrix, degrees: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Items in more of the surpluses than their popularity explains."""
    from scipy.stats import poisson

    counts = np.bincount(surplus.indices, minlength=len(degrees))
    expected = surplus.nnz * degrees / max(1, degrees.sum())
    chance = poisson.sf(counts - 1, expected)
    return np.flatnonzero((counts >= 3) & (chance < _CHANCE / len(degrees)))
