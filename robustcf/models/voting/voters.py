"""Who votes: every account for itself, or hashed groups of accounts.

An **account** votes for the items it holds, by a whole number that depends on two profiles alone,
that of the served user and its own: an account that is added leaves the votes of all others as they
were. The one exception is the number of accounts that hold an item, by which its votes are damped;
the certificate takes it into account.

A **group** fits a small model to its members. An account belongs to one group, by a keyed hash of
its label; without labels, of its id. What a group votes for depends on its members and on the
served user's history alone, so a fake account changes the votes of one group. The proof does not
need the key to be secret.

Votes are added as whole numbers below 2**53, where float64 is exact, and come from operations that
IEEE 754 rounds in one way: no block size and no number of threads shows in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._io.schema import shown
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.evaluate import Judged, hits_of, per_user_metrics
from robustcf.metrics.ranking import worst_hits
from robustcf.models.voting.certificate import AccountVotes, above_by_accounts, above_by_groups
from robustcf.models.voting.config import VoteConfig

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from robustcf.data.split import Split

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: The largest vote of an account.
FULL_VOTE = 1 << 16
# With a larger share of accounts that vote, a dense product is faster than a sparse one.
_DENSE = 0.15
# One unit of the whole numbers of a group's model.
_UNIT = 1 << 24
# Members of a group whose overlaps fit into half a gigabyte.
_MOST_MEMBERS = 8000
# Scores of one step of a group: users x items.
_GROUP_BLOCK = 1 << 22
# Numbers of one block of users: users x items, users x accounts, users x votes of groups.
_BLOCK = 1 << 23


def account_votes(
    shared: Values, own: Values, theirs: Values, n_items: int, config: VoteConfig
) -> Values:
    """Return the votes of accounts that share items with a user: whole numbers up to FULL_VOTE.

    With c items in common, profiles of lengths a and b, and s = sqrt(a b), the similarity is
    ``c / s - excess * s / n_items``: the cosine less what two profiles of these lengths would have
    in common by chance, if all items were alike. The vote is ``(similarity / cap)^power``, at
    least 0 and at most 1, in units of 1 / FULL_VOTE.

    Example:
        >>> settings = VoteConfig(cap=0.5, power=1, excess=0.0)
        >>> four = np.array([4.0, 4.0])
        >>> account_votes(np.array([1.0, 4.0]), four, four, 9, settings).tolist()
        [32768.0, 65536.0]
    """
    size = np.sqrt(own * theirs)
    similarity = shared / size - config.excess * size / n_items
    share = np.clip(similarity / (config.cap or 1.0), 0.0, 1.0)
    # By multiplications, which every processor rounds alike; a power function need not.
    vote, square, power = np.ones_like(share), share, config.power
    while power:
        if power & 1:
            vote = vote * square
        square, power = square * square, power >> 1
    return np.rint(vote * FULL_VOTE)


class Accounts:
    """The accounts of a recommender, which vote each for itself; cap and damping must be set."""

    def __init__(self, pairs: Interactions, config: VoteConfig) -> None:
        self.pairs, self.config = pairs, config
        self.degrees: Ids = pairs.item_degrees.astype(np.int64)
        self._damping: Values = np.empty(0)  # as long as was asked for so far

    def with_settings(self, config: VoteConfig) -> Accounts:
        """Return the same accounts with other settings; the matrices are shared."""
        other = Accounts(self.pairs, config)
        other.__dict__ |= {"_held": self._held, "_holders": self._holders}
        return other

    @cached_property
    def _held(self) -> csr_matrix:
        return self.pairs.csr().astype(np.float64)

    @cached_property
    def _holders(self) -> csr_matrix:
        return self._held.T.tocsr()

    def overlaps(self, histories: csr_matrix) -> csr_matrix:
        """Return how many items each history shares with each account: histories x accounts."""
        found: csr_matrix = (histories.astype(np.float64) @ self._holders).tocsr()
        return found

    def votes(self, histories: csr_matrix, overlaps: csr_matrix | None = None) -> Values:
        """Return the votes of all items: histories x items.

        For an empty history every account has its full vote: popularity.
        """
        from scipy.sparse import csr_matrix

        shared = self.overlaps(histories) if overlaps is None else overlaps
        lengths = np.diff(histories.indptr)
        cast = account_votes(
            shared.data,
            np.repeat(lengths.astype(np.float64), np.diff(shared.indptr)),
            self.pairs.user_degrees[shared.indices].astype(np.float64),
            self.pairs.n_items,
            self.config,
        )
        weights = csr_matrix((cast, shared.indices.copy(), shared.indptr.copy()), shared.shape)
        weights.eliminate_zeros()
        found: Values
        # Exact in both ways.
        if weights.nnz > _DENSE * weights.shape[0] * weights.shape[1]:
            found = np.ascontiguousarray((self._holders @ weights.T.toarray(order="C")).T)
        else:
            found = (weights @ self._held).toarray()
        found[lengths == 0] = FULL_VOTE * self.degrees
        return found

    def damping(self, fakes: int = 0) -> Values:
        """Return the factor of an item by the number of its holders, for some fakes more."""
        power = self.config.damping or 0.0
        held, there = int(self.degrees.max(initial=0)) + fakes + 1, len(self._damping)
        if held > there:
            more = [float(self.config.prior + n) ** -power for n in range(there, held)]
            self._damping = np.concatenate((self._damping, more))
        return self._damping[:held]

    def served(self, votes: Values, masked: Mask) -> Served:
        """Return users with these votes of theirs, damped."""
        return Served(votes * self.damping()[self.degrees], masked, self, votes)

    def serve(self, histories: csr_matrix, masked: Mask) -> Served:
        """Vote for users with these histories; masked items may not be recommended."""
        return self.served(self.votes(histories), masked)

    def above(self, votes: Values, outsiders: Mask, owners: Ids, items: Ids, fakes: int) -> Ids:
        """See :func:`robustcf.models.voting.certificate.above_by_accounts`."""
        cast = AccountVotes(votes, self.degrees, self.damping(fakes), float(FULL_VOTE))
        return above_by_accounts(cast, outsiders, owners, items, fakes)


LABELS, ROWS = "labels", "rows"


def group_of(labels: npt.NDArray[np.generic], n_groups: int, key: str) -> Ids:
    """Return the group of each account: a keyed hash of its label, the same on every machine.

    Example:
        >>> group_of(np.array(["ann", "bob", "ann2"]), 4, "k").tolist()
        [2, 3, 3]
    """
    secret = hashlib.blake2b(key.encode(), digest_size=32).digest()
    found = (
        hashlib.blake2b(str(label).encode(), key=secret, digest_size=8).digest()
        for label in labels.tolist()
    )
    return np.array([int.from_bytes(each, "big") % n_groups for each in found], dtype=np.int64)


def members_by(pairs: Interactions | Split) -> str:
    """Return what decides the groups of these accounts: their ``labels``, or their ``rows``."""
    return ROWS if pairs.user_labels is None else LABELS


def check_members(known: object, pairs: Interactions | Split) -> None:
    """Raise unless :func:`members_by` is what it was for the data that the groups were fit on."""
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

    items: Ids  # the items that some member holds
    held: csr_matrix  # members x these items
    model: Values  # members x members, whole numbers
    lengths: Values


class Groups:
    """The groups of a recommender, each fitted to its own members; ``groups`` must be set."""

    def __init__(self, pairs: Interactions, config: VoteConfig) -> None:
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

    def ballots(self, histories: csr_matrix, masked: Mask) -> Ids:
        """Return what each group votes for: histories x groups x N' item ids, padded with -1."""
        wanted = min(self.config.votes, self.n_items)
        found = np.full((histories.shape[0], len(self._groups), wanted), -1, dtype=np.int64)
        for number, group in enumerate(self._groups):
            if len(group.items) == 0:
                continue
            rows = max(1, _GROUP_BLOCK // len(group.items))
            for start in range(0, histories.shape[0], rows):
                block = slice(start, start + rows)
                scores = self._scores(group, histories[block])
                scores[masked[block][:, group.items]] = 0.0
                found[block, number] = _best(scores, group.items, wanted)
        return found

    def _scores(self, group: _Group, histories: csr_matrix) -> Values:
        shared = (histories[:, group.items].astype(np.float64) @ group.held.T).toarray()
        if self.config.base == "knn":
            lengths = np.diff(histories.indptr)[:, None] * group.lengths
            shared = np.rint(_UNIT * shared / np.sqrt(np.maximum(lengths, 1)))
        else:
            shared = shared @ group.model
        # Transposed: scipy multiplies a sparse matrix with a dense one, from the left.
        scores: Values = (group.held.T @ shared.T).T
        return np.ascontiguousarray(scores)

    def serve(self, histories: csr_matrix, masked: Mask) -> Served:
        """Vote for users with these histories; masked items may not be recommended."""
        ballots = self.ballots(histories, masked)
        counted = np.zeros((len(ballots), self.n_items + 1))
        rows = np.repeat(np.arange(len(ballots)), ballots.shape[1] * ballots.shape[2])
        np.add.at(counted, (rows, ballots.ravel()), 1.0)  # -1, the padding, is the last column
        return Served(counted[:, :-1], masked, self, ballots)

    def above(self, ballots: Ids, outsiders: Mask, owners: Ids, items: Ids, fakes: int) -> Ids:
        """See :func:`robustcf.models.voting.certificate.above_by_groups`."""
        pairs = zip(owners.tolist(), items.tolist(), strict=True)
        found = (above_by_groups(ballots[row], outsiders[row], i, fakes) for row, i in pairs)
        return np.fromiter(found, dtype=np.int64)


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


def _best(scores: Values, items: Ids, wanted: int) -> Ids:
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


@dataclass(frozen=True, eq=False)
class Served:
    """A block of users, and what was voted for them.

    Args:
        scores: users x items: what is ranked.
        masked: users x items, True where an item may not be recommended.
        voters: who voted.
        cast: accounts: the votes, users x items; groups: users x groups x N' item ids.
    """

    scores: Values
    masked: Mask
    voters: Accounts | Groups
    cast: npt.NDArray[Any]

    def top(self, k: int) -> Ids:
        """Return the k best items, best first, ties to the lower id, -1 where they run out."""
        scores = np.where(self.masked, -1.0, self.scores)
        k = min(k, scores.shape[1])
        last = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k]
        found = np.full((len(scores), k), -1, dtype=np.int64)
        for row, least in enumerate(last):
            near = np.flatnonzero(scores[row] >= least)
            best = near[np.argsort(-scores[row, near], kind="stable")][:k]
            best = best[~self.masked[row, best]]
            found[row, : len(best)] = best
        return found

    def certified(
        self, judged: Judged, users: Ids, fakes: Sequence[int], ks: Sequence[int]
    ) -> list[dict[str, Values]]:
        """Return, for each number of fakes, lower bounds of the metrics of these users."""
        length = min(ks[-1], self.scores.shape[1])
        top = self.top(length)
        clean = hits_of(top, judged.relevant, users)
        # Fakes only push items back, as far as the bound goes: other items are not looked at.
        owners, places = np.nonzero(clean)
        items = top[owners, places]
        relevant = masked_rows(judged.relevant, users, self.scores.shape[1])
        outsiders = ~(relevant | self.masked)
        found = []
        for number in fakes:
            hits = clean
            if number:
                above = self.voters.above(self.cast, outsiders, owners, items, number)
                hits = worst_hits(above, owners, len(users), length)
                kept = above < length
                owners, items = owners[kept], items[kept]
            found.append(per_user_metrics(hits, judged.relevant, users, ks))
        return found


def blocks_of(users: Ids, pairs: Interactions, others: int = 0) -> Iterator[Ids]:
    """Yield users in blocks that keep memory bounded; no result depends on their size."""
    size = max(1, _BLOCK // max(1, pairs.n_items, pairs.n_users, others))
    for start in range(0, len(users), size):
        yield users[start : start + size]


def masked_rows(seen: Interactions | None, users: Ids, n_items: int) -> Mask:
    """Return users x items, True where a pair is in ``seen``."""
    if seen is None:
        return np.zeros((len(users), n_items), dtype=bool)
    found: Mask = seen.csr()[users].toarray() > 0
    return found
