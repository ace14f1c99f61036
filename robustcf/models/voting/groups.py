"""Accounts hashed into groups: each fits a small model to its own members, and votes.

An account belongs to one group, by a keyed hash of its label; without labels, of its id, which must
then stay: a removed account keeps its place, with an empty row. What a group votes for depends on
its members and on the served user's history alone, so a fake account changes the votes of one
group. The proof counts the worst groups; it does not need the key to be secret.

Models are kept as whole numbers, and scores are added exactly: a group votes the same in any block
of users.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from robustcf._io.schema import shown
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.models.voting.config import VoteConfig

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from robustcf.data.split import Split

Ids = npt.NDArray[np.int64]

LABELS, ROWS = "labels", "rows"
# One unit of a model's whole numbers.
_UNIT = 1 << 24
# Members of a group whose overlaps fit into half a gigabyte.
_MOST_MEMBERS = 8000
# Scores of one step: users x items of a group.
_BLOCK = 1 << 22


def group_of(labels: npt.NDArray[np.generic], n_groups: int, key: str) -> Ids:
    """The group of each account: a keyed hash of its label, the same on every machine.

    Example:
        >>> group_of(np.array(["ann", "bob", "ann2"]), 4, "k").tolist()
        [2, 3, 3]
        >>> group_of(np.array(["bob"]), 4, "k").tolist()  # whoever else is there
        [3]
    """
    secret = hashlib.blake2b(key.encode(), digest_size=32).digest()
    found = (
        hashlib.blake2b(str(label).encode(), key=secret, digest_size=8).digest()
        for label in labels.tolist()
    )
    return np.array([int.from_bytes(each, "big") % n_groups for each in found], dtype=np.int64)


def members_by(pairs: Interactions | Split) -> str:
    """Return what decides the groups of these accounts: their ``labels``, or their ``rows``.

    Example:
        >>> members_by(Interactions.from_pairs([0, 1], [0, 0], 2, 1)[0])
        'rows'
    """
    return ROWS if pairs.user_labels is None else LABELS


def check_members(known: object, pairs: Interactions | Split) -> None:
    """Raise unless accounts are hashed by the same thing as when the groups were fitted.

    Args:
        known: what :func:`members_by` gave then.
        pairs: the data of now.

    Raises:
        InputError: they are hashed by another thing, so that all groups would be others.
    """
    if known not in (LABELS, ROWS):
        raise InputError(f"members must be {LABELS!r} or {ROWS!r}, got {shown(known)}")
    if members_by(pairs) != known:
        has = "have" if known == ROWS else "have no"
        raise InputError(
            f"expected accounts that are grouped by their {known}, as those the vote was fit on, "
            f"got data that {has} user labels; give the data as they were, or fit the vote again"
        )


@dataclass(frozen=True, eq=False)
class _Group:
    """One group: its members' pairs on the items they hold, and its model."""

    items: Ids  # the items that somebody in the group holds
    held: csr_matrix  # members x these items
    model: npt.NDArray[np.float64]  # members x members, whole numbers
    lengths: npt.NDArray[np.float64]


class Groups:
    """The groups of a recommender, fitted.

    Args:
        pairs: what the accounts hold.
        config: ``groups`` must be set.

    Raises:
        InputError: there are more groups than accounts.
    """

    def __init__(self, pairs: Interactions, config: VoteConfig) -> None:
        """Hash the accounts and fit every group to its own members."""
        self.check(pairs.n_users, config.groups or 0)
        self.config, self.n_items = config, pairs.n_items
        own = np.arange(pairs.n_users) if pairs.user_labels is None else pairs.user_labels
        #: Which group each account is in.
        self.members = group_of(own, config.groups or 1, config.key)
        largest = int(np.bincount(self.members).max())
        if config.base == "ridge" and largest > _MOST_MEMBERS:
            raise InputError(
                f"with {config.groups:,} groups the largest has {largest:,} members, and its ridge "
                f"would need a matrix of that size squared, expected at most {_MOST_MEMBERS:,}: "
                "take more groups"
            )
        held = pairs.csr().astype(np.float64)
        self._groups = [
            _fitted(held[np.flatnonzero(self.members == g)], config)
            for g in range(config.groups or 0)
        ]

    @staticmethod
    def check(n_users: int, groups: int) -> None:
        """Raise unless there are from one to as many groups as users."""
        if not 1 <= groups <= n_users:
            raise InputError(
                f"groups must be from 1 to the number of users, {n_users:,}, got {groups}: take "
                "fewer, or leave it out, then every account is a voter"
            )

    def ballots(self, histories: csr_matrix, masked: npt.NDArray[np.bool_]) -> Ids:
        """What each group votes for: histories x groups x N' item ids, -1 where it has no more.

        Args:
            histories: histories x items.
            masked: histories x items, True where an item may not be shown.
        """
        wanted = min(self.config.votes, self.n_items)
        found = np.full((histories.shape[0], len(self._groups), wanted), -1, dtype=np.int64)
        for number, group in enumerate(self._groups):
            if len(group.items) == 0:
                continue
            rows = max(1, _BLOCK // len(group.items))
            for start in range(0, histories.shape[0], rows):
                block = slice(start, start + rows)
                scores = self._scores(group, histories[block])
                scores[masked[block][:, group.items]] = 0.0
                found[block, number] = _best(scores, group.items, wanted)
        return found

    def _scores(self, group: _Group, histories: csr_matrix) -> npt.NDArray[np.float64]:
        shared = (histories[:, group.items].astype(np.float64) @ group.held.T).toarray()
        if self.config.base == "knn":
            lengths = np.diff(histories.indptr)[:, None] * group.lengths
            shared = np.rint(_UNIT * shared / np.sqrt(np.maximum(lengths, 1)))
        else:
            shared = shared @ group.model
        # Transposed: scipy multiplies a sparse matrix with a dense one, from the left.
        scores: npt.NDArray[np.float64] = (group.held.T @ shared.T).T
        return np.ascontiguousarray(scores)


def _fitted(members: csr_matrix, config: VoteConfig) -> _Group:
    """A group's model: for ``ridge`` (G + l I)^-1, G the members' overlaps.

    A history r then has the scores ``r X^T (G + l I)^-1 X``, with X the group's own pairs.
    """
    items = np.unique(members.indices).astype(np.int64)
    held = members[:, items].tocsr()
    lengths = np.diff(members.indptr).astype(np.float64)
    model = np.zeros((0, 0))
    if config.base == "ridge" and len(lengths):
        overlaps = (held @ held.T).toarray()
        ridge = config.ridge * max(1.0, lengths.mean())
        inverse = np.linalg.inv(overlaps + ridge * np.eye(len(lengths)))
        model = np.rint(_UNIT * inverse)
    return _Group(items, held, model, lengths)


def _best(scores: npt.NDArray[np.float64], items: Ids, wanted: int) -> Ids:
    """The items of the largest positive scores, best first, ties to the lower id; else -1."""
    width = scores.shape[1]
    # A key of its own for each item: equal scores differ by place, and items are ascending.
    keys = scores.astype(np.int64) * width + np.arange(width)[::-1]
    number = min(wanted, width)
    top = np.argpartition(-keys, number - 1, axis=1)[:, :number]
    order = np.argsort(-np.take_along_axis(keys, top, axis=1), axis=1)
    top = np.take_along_axis(top, order, axis=1)
    found = np.full((len(scores), wanted), -1, dtype=np.int64)
    found[:, :number] = np.where(np.take_along_axis(scores, top, axis=1) > 0, items[top], -1)
    return found
