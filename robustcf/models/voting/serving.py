"""Users served by votes, in blocks: their rankings, and what fakes leave of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf.data.interactions import Interactions
from robustcf.metrics.evaluate import Judged, hits_of, per_user_metrics
from robustcf.models.voting.accounts import FULL_VOTE, Accounts
from robustcf.models.voting.certificate import above_by_accounts, above_by_groups, worst_places
from robustcf.models.voting.groups import Groups

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

# Numbers of one block of users: users x items, users x accounts, users x votes of groups.
_BLOCK = 1 << 23


@dataclass(frozen=True, eq=False)
class Served:
    """A block of users, and what was voted for them.

    Args:
        scores: users x items: what is ranked.
        masked: users x items, True where an item may not be shown.
        voters: who voted.
        cast: of accounts, the votes, users x items; of groups, users x groups x N' item ids.
    """

    scores: Values
    masked: npt.NDArray[np.bool_]
    voters: Accounts | Groups
    cast: npt.NDArray[Any]

    def top(self, k: int) -> Ids:
        """The k best items, best first, ties to the lower id, -1 where they run out."""
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

    def above(self, outsiders: npt.NDArray[np.bool_], owners: Ids, items: Ids, fakes: int) -> Ids:
        """How many outsiders fakes can put above each of some items of these users."""
        voters = self.voters
        if isinstance(voters, Accounts):
            damping, degrees = voters.damping(fakes), voters.degrees
            most = float(FULL_VOTE)
            return above_by_accounts(
                self.cast, outsiders, degrees, damping, most, owners, items, fakes
            )
        pairs = zip(owners.tolist(), items.tolist(), strict=True)
        found = (above_by_groups(self.cast[row], outsiders[row], i, fakes) for row, i in pairs)
        return np.fromiter(found, dtype=np.int64)


def blocks_of(users: Ids, pairs: Interactions, others: int = 0) -> Iterator[Ids]:
    """Users in blocks that keep memory bounded; no result depends on their size."""
    size = max(1, _BLOCK // max(1, pairs.n_items, pairs.n_users, others))
    for start in range(0, len(users), size):
        yield users[start : start + size]


def masked_rows(seen: Interactions | None, users: Ids, n_items: int) -> npt.NDArray[np.bool_]:
    """Users x items, True where a pair is in ``seen``."""
    if seen is None:
        return np.zeros((len(users), n_items), dtype=bool)
    found: npt.NDArray[np.bool_] = seen.csr()[users].toarray() > 0
    return found


def certified_metrics(
    served: Served, judged: Judged, users: Ids, fakes: Sequence[int], ks: Sequence[int]
) -> list[dict[str, Values]]:
    """For each number of fakes, lower bounds of the metrics of a block of users."""
    length = min(ks[-1], served.scores.shape[1])
    top = served.top(length)
    clean = hits_of(top, judged.relevant, users)
    # Fakes push items back only, as far as the bound goes: what is not there now is not looked at.
    owners, places = np.nonzero(clean)
    items = top[owners, places]
    outsiders = ~(masked_rows(judged.relevant, users, served.scores.shape[1]) | served.masked)
    found = []
    for number in fakes:
        hits = clean
        if number:
            above = served.above(outsiders, owners, items, number)
            hits = worst_places(above, owners, len(users), length)
            kept = above < length
            owners, items = owners[kept], items[kept]
        found.append(per_user_metrics(hits, judged.relevant, users, ks))
    return found
