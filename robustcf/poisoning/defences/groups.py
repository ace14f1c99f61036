"""Groups of users who share the same few items that others rarely have."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer, check_number
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.poisoning.defences.base import Detection, Detector, Flags
from robustcf.poisoning.defences.neighbours import nearest, unit_profiles
from robustcf.poisoning.defences.outliers import Numbers, robust_z

# Sizes of groups that are looked for: the similarity to a user's 10th, 20th, 50th nearest.
_NEIGHBOURS = (10, 20, 50)
# How much more rare items count in a similarity: log(users / degree) to this power.
_RARITY = 3.0
_MOST = 1.0 - 1e-6
# Robust standard deviations above the median from which a user is looked at: many are.
_SUSPECT = 4.0
# Of an item's users, the share that must be suspects.
_SHARE = 1 / 3
# Of all users, the share that may have an item that counts: what most have, the same users have.
_RARE = 0.2
# The Jaccard index of sets of all users from which they are the same: friends reach 0.7.
_LINK_OF_ALL = 0.8
# Items whose common users are counted at a time.
_BLOCK = 1000


class Groups(Detector):
    """Users who own several of the same items, items that hardly anybody else has.

    Whoever pushes several items gives every fake account all of them: the targets' users are then
    nearly the same set, whatever else the profiles hold. In three steps:

    1. *Suspects* are users with unusually similar others: the cosine with the 10th, 20th or 50th
       nearest profile, rare items counting most, lies 4 robust standard deviations above the
       median (by Fisher's transformation). About one genuine user in a hundred is a suspect.
    2. *Pushed items* have at most a fifth of all users and at least ``least`` suspects, who are at
       least a third of their users, and belong together with others: items are linked whose sets of
       suspects have a Jaccard index of ``link`` or more, and a pushed item has a link. So do items
       whose sets of *all* users have one of 0.8: fakes that outnumber the genuine users of their
       targets show without any suspects.
    3. *Flagged* are users, suspects or not, with at least two items of one set of linked items, and
       at least half of that set; if they are at least ``least``.

    What it cannot see: a single target, fewer than ``least`` accounts, accounts that share out the
    targets among themselves.

    Args:
        least: the smallest group.
        link: see above.

    Cost: the cosines of all pairs of users, 64 MB at a time, and the common users of all pairs of
    items, a thousand items at a time.

    Example:
        >>> from robustcf.data import load
        >>> Groups().detect(load("demo").train).items.tolist()
        []
    """

    name: ClassVar[str] = "groups"

    def __init__(self, least: int = 10, link: float = 0.7) -> None:
        """Keep the settings."""
        self.least = check_integer("least", least, 2)
        self.link = check_number("link", link, positive=True)
        if self.link > 1:
            raise InputError(f"link must be at most 1, got {link}")

    def find(self, train: Interactions) -> Detection:
        """See :class:`Groups`; the score is the largest robust z-score of the similarities."""
        scores = _likeness(train)
        flagged = np.zeros(train.n_users, dtype=bool)
        pushed = []
        everybody = np.ones(train.n_users, dtype=bool)
        sets = self._linked(train, scores > _SUSPECT, self.link)
        sets += self._linked(train, everybody, max(self.link, _LINK_OF_ALL))
        for items in sets:
            own = np.asarray(train.csr()[:, items].sum(axis=1)).ravel()
            members = own >= max(2.0, len(items) / 2)
            if members.sum() >= self.least:
                flagged |= members
                pushed.append(items)
        items = np.unique(np.concatenate(pushed)) if pushed else np.empty(0, np.int64)
        return Detection(flagged, scores, items)

    def _linked(
        self, train: Interactions, among: Flags, link: float
    ) -> list[npt.NDArray[np.int64]]:
        """Sets of two items or more that the same of these users have."""
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


def _likeness(train: Interactions) -> Numbers:
    """How unusually similar a user's 10th, 20th or 50th nearest profile is: the largest z-score."""
    cosines, _ = nearest(unit_profiles(train, _RARITY), max(_NEIGHBOURS))
    likeness = np.zeros(train.n_users)
    for count in _NEIGHBOURS:
        if count <= cosines.shape[1]:
            near = np.minimum(cosines[:, count - 1].astype(np.float64), _MOST)
            likeness = np.maximum(likeness, robust_z(np.arctanh(near)))
    return likeness
