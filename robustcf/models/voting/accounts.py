"""Every account is a voter: its vote for the items it holds, from how alike it is to the user.

The vote is a whole number that depends on two profiles alone, that of the served user and that of
the voter. Nothing that is shared, no item norm, no list of nearest neighbours, no mean, stands in
between, so an account that is added leaves the votes of all others as they were. The one exception
is the number of accounts that hold an item, by which its votes are damped; the certificate of
:func:`robustcf.models.voting.certificate.above_by_accounts` takes it into account.

Votes are added as whole numbers below 2**53, where float64 is exact, and come from operations that
IEEE 754 rounds in one way: no block size and no number of threads shows in them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions
from robustcf.models.voting.config import VoteConfig

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Values = npt.NDArray[np.float64]

#: The largest vote.
FULL_VOTE = 1 << 16
# With a larger share of accounts that vote, a dense product is faster than a sparse one.
_DENSE = 0.15


def account_votes(
    shared: Values, own: Values, theirs: Values, n_items: int, config: VoteConfig
) -> Values:
    """The votes of accounts that share items with a user, as whole numbers up to FULL_VOTE.

    With c items in common, profiles of lengths a and b, and s = sqrt(a b), the similarity is
    ``c / s - excess * s / n_items``: the cosine less what two profiles of these lengths would have
    in common by chance, if all items were alike. The vote is ``(similarity / cap)^power``, at
    least 0 and at most 1, in units of 1 / FULL_VOTE.

    Args:
        shared: items in common.
        own: length of the user's profile, for each pair.
        theirs: length of the voter's.
        n_items: size of the catalogue.
        config: cap, power and excess.

    Example:
        >>> settings = VoteConfig(cap=0.5, power=1, excess=0.0)
        >>> account_votes(np.array([1.0, 4.0]), np.array([4.0, 4.0]), np.array([4.0, 4.0]), 9,
        ...               settings).tolist()
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
    """The accounts of a recommender, and what they vote for.

    Args:
        pairs: what the accounts hold.
        config: cap and damping must be set.
    """

    def __init__(self, pairs: Interactions, config: VoteConfig) -> None:
        """Keep the pairs; there is nothing to fit."""
        self.pairs, self.config = pairs, config
        self.degrees: npt.NDArray[np.int64] = pairs.item_degrees.astype(np.int64)
        self._damping: Values = np.empty(0)  # as long as was asked for so far

    def with_settings(self, config: VoteConfig) -> Accounts:
        """The same accounts with other settings; the matrices are shared."""
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
        """How many items each history shares with each account: histories x accounts."""
        found: csr_matrix = (histories.astype(np.float64) @ self._holders).tocsr()
        return found

    def votes(self, histories: csr_matrix, overlaps: csr_matrix | None = None) -> Values:
        """Votes of all items, for each history: histories x items.

        For somebody without a history every account has its full vote: popularity.
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
        found = self._counted(weights)
        found[lengths == 0] = FULL_VOTE * self.degrees
        return found

    def _counted(self, weights: csr_matrix) -> Values:
        """Votes of the items from those of the accounts: exact, in whichever way is faster."""
        weights.eliminate_zeros()
        found: Values
        if weights.nnz > _DENSE * weights.shape[0] * weights.shape[1]:
            found = np.ascontiguousarray((self._holders @ weights.T.toarray(order="C")).T)
        else:
            found = (weights @ self._held).toarray()
        return found

    def damping(self, fakes: int = 0) -> Values:
        """The factor of an item by the number of accounts that hold it, for some fakes more."""
        power = self.config.damping or 0.0
        held, there = int(self.degrees.max(initial=0)) + fakes + 1, len(self._damping)
        if held > there:
            more = [float(self.config.prior + n) ** -power for n in range(there, held)]
            self._damping = np.concatenate((self._damping, more))
        return self._damping[:held]

    def scores(self, votes: Values) -> Values:
        """What items are ranked by."""
        return votes * self.damping()[self.degrees]
