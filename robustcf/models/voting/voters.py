"""Who votes: every account for itself, or hashed groups of accounts.

The vote of an **account** depends on two profiles alone, that of the served user and its own, so
that an added account leaves all other votes as they were. Only the number of accounts that hold an
item, by which its votes are damped, changes; the certificate takes it into account.

A **group** fits a small model to its members. A keyed hash of its label (without labels, of its id)
puts an account into one group, whose votes depend on its members and the served user's history
alone. So a fake account changes the votes of one group; the key need not be secret.

Votes are added as whole numbers below 2**53, where float64 is exact, and come from operations that
IEEE 754 rounds in one way: they do not depend on block sizes or threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._io.schema import shown
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.evaluate import Judged, hits_of, per_user_metrics
from robustcf.metrics.ranking import worst_hits
from robustcf.models.voting.certificate import (
    FULL_VOTE,
    AccountVotes,
    Reach,
    above_by_accounts,
    above_by_groups,
    best,
    reach_by_accounts,
    reach_by_groups,
)
from robustcf.models.voting.config import VoteConfig

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from robustcf.data.split import Split

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# With a larger share of voting accounts, a dense product is faster than a sparse one.
_DENSE = 0.15
_UNIT = 1 << 24  # of the whole numbers in a group's model
_MOST_MEMBERS = 8000  # of a group; their overlaps fit into half a gigabyte
_GROUP_BLOCK = 1 << 22  # users x items in one step of a group
_BLOCK = 1 << 23  # users x items, users x accounts, users x votes of groups in one block


def account_votes(
    shared: Values,
    own: Values,
    theirs: Values,
    n_items: int,
    config: VoteConfig,
    full: Values | float = FULL_VOTE,
) -> Values:
    """Return the votes of accounts that share items with a user: whole numbers up to ``full``.

    With c items in common, profiles of lengths a and b, and s = sqrt(a b), the similarity is the
    cosine less its expected value by chance, ``c / s - excess * s / n_items``. The vote is
    ``(similarity / cap)^power``, at least 0 and at most 1, times ``full``. For an empty profile of
    the user every account has its full vote.

    Example:
        >>> settings = VoteConfig(cap=0.5, power=1, excess=0.0)
        >>> four = np.array([4.0, 4.0])
        >>> account_votes(np.array([1.0, 4.0]), four, four, 9, settings).tolist()
        [32768.0, 65536.0]
    """
    size = np.sqrt(np.maximum(own * theirs, 1.0))
    similarity = shared / size - config.excess * size / n_items
    share = np.clip(similarity / (config.cap or 1.0), 0.0, 1.0)
    # Every processor rounds multiplications alike, but not a power function.
    vote, square, power = np.ones_like(share), share, config.power
    while power:
        if power & 1:
            vote = vote * square
        square, power = square * square, power >> 1
    return np.rint(np.where(own > 0, vote, 1.0) * full)


class Accounts:
    """Accounts that vote each for itself; cap and damping must be set.

    ``trusted`` says of each account whether it is trusted; None means that no account is new.
    """

    def __init__(
        self, pairs: Interactions, config: VoteConfig, trusted: Mask | None = None
    ) -> None:
        self.pairs, self.config = pairs, config
        #: The full vote of an account: that of an added one, and those of all.
        self.new = float(np.rint(config.new_account_weight * FULL_VOTE))
        self.full = np.full(pairs.n_users, float(FULL_VOTE))
        if trusted is not None:
            beyond = pairs.user_degrees > (config.new_account_items or pairs.n_items)
            self.full[~trusted] = np.where(beyond, 0.0, self.new)[~trusted]
        #: The mass of the accounts that hold each item.
        masses = self.full[pairs.users] / FULL_VOTE
        degrees = np.bincount(pairs.items, weights=masses, minlength=pairs.n_items)
        self.degrees: Values = degrees.astype(np.float64)

    def with_settings(self, config: VoteConfig) -> Accounts:
        """Return the same accounts with another cap or damping; the matrices are shared."""
        other = copy(self)
        other.__dict__ |= {"config": config, "_held": self._held, "_holders": self._holders}
        other.__dict__.pop("_factors", None)
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
            self.full[shared.indices],
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

    def damping(self, added: float = 0.0) -> Values:
        """Return the factor of each item by the mass of its holders, with so much more."""
        if added not in self._factors:
            masses, where = np.unique(self.degrees + added, return_inverse=True)
            power = -(self.config.damping or 0.0)
            # Python's power is the same on every processor.
            values = [(self.config.prior + mass) ** power for mass in masses.tolist()]
            self._factors[added] = np.array(values)[where]
        return self._factors[added]

    @cached_property
    def _factors(self) -> dict[float, Values]:
        return {}

    def served(self, votes: Values, histories: csr_matrix, masked: Mask) -> Served:
        """Return users with their votes, damped."""
        return Served(votes * self.damping(), masked, self, (votes, histories))

    def serve(self, histories: csr_matrix, masked: Mask) -> Served:
        """Vote for users with these histories; masked items may not be recommended."""
        return self.served(self.votes(histories), histories, masked)

    def _cast(self, served: Served) -> AccountVotes:
        votes, histories = served.cast
        settings, mass = self.config, self.new / FULL_VOTE
        most, shared = np.full(len(votes), self.new), None
        if settings.new_account_items is not None:
            # An account with the user's own items alone may have a larger vote: the limit helps
            # where these are masked.
            inside = (histories.multiply(~served.masked)).sum(axis=1) > 0
            alone = np.asarray(inside).ravel()
            shared = self._limited(np.diff(histories.indptr))
            shared[alone] = np.inf
            most = np.where(alone, self.new, shared[:, 0])
        power = settings.damping or 0.0
        return AccountVotes(
            votes, self.degrees, self.damping, settings.prior, power, most, mass, shared
        )

    def _limited(self, lengths: Ids) -> Values:
        """Return the largest sums of votes of an added account for c items outside of a history.

        With q such items and at most L in all it shares at most ``min(L - q, length)``, so its vote
        is at most ``W(q) = max_L vote(min(L - q, length), q + min(L - q, length))``, and its sum
        for c items at most ``max_q min(q, c) W(q)``. Histories x c, up to the limit.
        """
        limit = min(self.config.new_account_items or 0, self.pairs.n_items)
        kinds, where = np.unique(lengths, return_inverse=True)
        own = kinds.astype(np.float64)
        most = np.zeros((len(kinds), limit))
        for outside in range(1, limit + 1):
            for inside in range(limit - outside + 1):
                both = np.minimum(inside, own)
                args = (self.pairs.n_items, self.config, self.new)
                cast = account_votes(both, own, outside + both, *args)
                most[:, outside - 1] = np.maximum(most[:, outside - 1], cast)
        held = np.arange(1, limit + 1)
        sums = np.stack([(np.minimum(held, c) * most).max(axis=1) for c in held.tolist()], axis=1)
        return np.asarray(sums[where])

    def above(
        self, served: Served, outsiders: Mask, owners: Ids, items: Ids, fakes: int, longest: int
    ) -> Ids:
        """See :func:`robustcf.models.voting.certificate.above_by_accounts`."""
        return above_by_accounts(self._cast(served), outsiders, owners, items, fakes, longest)

    def reach(self, served: Served, fakes: int, ks: Sequence[int]) -> list[Reach]:
        """See :func:`robustcf.models.voting.certificate.reach_by_accounts`."""
        return reach_by_accounts(self._cast(served), served.masked, fakes, ks)


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
    """Return whether accounts are grouped by their ``labels`` or their ``rows``."""
    return ROWS if pairs.user_labels is None else LABELS


def check_members(known: object, pairs: Interactions | Split) -> None:
    """Raise unless accounts are grouped as in the data that the groups were fit on."""
    if known not in (LABELS, ROWS):
        raise InputError(f"members must be {LABELS!r} or {ROWS!r}, got {shown(known)}")
    if members_by(pairs) != known:
        has = "have" if known == ROWS else "have no"
        raise InputError(
            f"expected accounts that are grouped by {known}, got data that {has} user labels; "
            "give the data that the vote was fit on, or fit it again"
        )


class _Group(NamedTuple):
    """One group: its members' pairs on the items they hold, and its model."""

    items: Ids  # held by some member
    held: csr_matrix  # members x these items
    model: Values  # members x members, whole numbers
    lengths: Values


class Groups:
    """Groups of accounts, each fitted to its own members; ``groups`` must be set."""

    def __init__(self, pairs: Interactions, config: VoteConfig) -> None:
        self.check(pairs.n_users, config.groups or 0)
        self.config, self.n_items = config, pairs.n_items
        own = np.arange(pairs.n_users) if pairs.user_labels is None else pairs.user_labels
        #: Which group each account is in.
        self.members = group_of(own, config.groups or 1, config.key)
        largest = int(np.bincount(self.members).max())
        if config.base == "ridge" and largest > _MOST_MEMBERS:
            raise InputError(
                f"expected groups of at most {_MOST_MEMBERS:,} members, the largest of "
                f"{config.groups:,} has {largest:,}: take more groups"
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
                f"groups must be from 1 to the number of users, {n_users:,}, got {groups}; without "
                "groups every account is a voter"
            )

    def ballots(self, histories: csr_matrix, masked: Mask) -> Ids:
        """Return the votes of each group: histories x groups x N' item ids, padded with -1."""
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
        return np.ascontiguousarray((group.held.T @ shared.T).T)

    def serve(self, histories: csr_matrix, masked: Mask) -> Served:
        """Vote for users with these histories; masked items may not be recommended."""
        ballots = self.ballots(histories, masked)
        counted = np.zeros((len(ballots), self.n_items + 1))
        rows = np.repeat(np.arange(len(ballots)), ballots.shape[1] * ballots.shape[2])
        np.add.at(counted, (rows, ballots.ravel()), 1.0)  # -1, the padding, is the last column
        return Served(counted[:, :-1], masked, self, (ballots,))

    def above(
        self, served: Served, outsiders: Mask, owners: Ids, items: Ids, fakes: int, longest: int
    ) -> Ids:
        """See :func:`robustcf.models.voting.certificate.above_by_groups`."""
        (ballots,) = served.cast
        pairs = zip(owners.tolist(), items.tolist(), strict=True)
        found = (above_by_groups(ballots[row], outsiders[row], i, fakes) for row, i in pairs)
        return np.fromiter(found, dtype=np.int64)

    def reach(self, served: Served, fakes: int, ks: Sequence[int]) -> list[Reach]:
        """See :func:`robustcf.models.voting.certificate.reach_by_groups`."""
        limits = (len(self._groups), self.config.votes)
        return reach_by_groups(served.scores, served.masked, *limits, fakes, ks)


def _fitted(members: csr_matrix, config: VoteConfig) -> _Group:
    """Fit a group: with ``ridge`` a history r scores ``r X^T (X X^T + l I)^-1 X``, X its pairs."""
    items = np.unique(members.indices).astype(np.int64)
    held = members[:, items].tocsr()
    lengths = np.diff(members.indptr).astype(np.float64)
    model = np.zeros((0, 0))
    if config.base == "ridge" and len(lengths):
        overlaps = (held @ held.T).toarray()
        ridge = config.ridge * max(1.0, lengths.mean())
        model = np.rint(_UNIT * np.linalg.inv(overlaps + ridge * np.eye(len(lengths))))
    return _Group(items, held, model, lengths)


def _best(scores: Values, items: Ids, wanted: int) -> Ids:
    """Return items of the largest positive scores, best first, ties to the lower id; else -1."""
    width = scores.shape[1]
    # Keys are unique: equal scores differ by place, and items are ascending.
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
    """A block of users, and the votes for them.

    Args:
        scores: users x items, by which items are ranked.
        masked: users x items, True where an item may not be recommended.
        voters: who voted.
        cast: accounts: votes, users x items, and histories; groups: users x groups x N' item ids.
    """

    scores: Values
    masked: Mask
    voters: Accounts | Groups
    cast: tuple[Any, ...]

    def top(self, k: int) -> Ids:
        """Return the k best items, best first, ties to the lower id, -1 where they run out."""
        return best(np.where(self.masked, -1.0, self.scores), k)

    def reach(self, fakes: int, ks: Sequence[int]) -> list[Reach]:
        """Return which items can enter, and which must stay in, the first k places."""
        return self.voters.reach(self, fakes, ks)

    def certified(
        self, judged: Judged, users: Ids, fakes: Sequence[int], ks: Sequence[int]
    ) -> list[dict[str, Values]]:
        """Return lower bounds of the metrics of these users per number of fakes."""
        length = min(ks[-1], self.scores.shape[1])
        top = self.top(length)
        clean = hits_of(top, judged.relevant, users)
        # In the bound, fakes only push hits back: other items do not matter.
        owners, places = np.nonzero(clean)
        items = top[owners, places]
        relevant = masked_rows(judged.relevant, users, self.scores.shape[1])
        outsiders = ~(relevant | self.masked)
        found = []
        for number in fakes:
            hits = clean
            if number:
                above = self.voters.above(self, outsiders, owners, items, number, length)
                hits = worst_hits(above, owners, len(users), length)
                kept = above < length
                owners, items = owners[kept], items[kept]
            found.append(per_user_metrics(hits, judged.relevant, users, ks))
        return found


def blocks_of(users: Ids, pairs: Interactions, others: int = 0) -> Iterator[Ids]:
    """Yield users in blocks that keep memory bounded, at least one; results do not depend on it."""
    size = max(1, _BLOCK // max(1, pairs.n_items, pairs.n_users, others))
    for start in range(0, max(1, len(users)), size):
        yield users[start : start + size]


def masked_rows(seen: Interactions | None, users: Ids, n_items: int) -> Mask:
    """Return users x items, True where a pair is in ``seen``."""
    if seen is None:
        return np.zeros((len(users), n_items), dtype=bool)
    found: Mask = seen.csr()[users].toarray() > 0
    return found
