"""The alignment check: do factors and interactions belong together?

For a sample of the given pairs, take the *place* of the item in its user's list: the share of
random items with a lower score. Its mean is 1 for perfect and one half for uninformative factors.

- With items or users permuted, the mean must be lower by several standard deviations. Where all
  users have the same list (popularity), users are not tested.
- With rows shifted by one, the place in the user's list, less the place in the lists of others
  (the previous item of a catalogue sorted by popularity is higher in all), must not be better.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from robustcf._randomness import stream
from robustcf.data.interactions import Interactions
from robustcf.errors import DataError
from robustcf.factors import Factors

_PAIRS = 2048
_REFERENCE = 128
_MIXED = 40
_STRANGERS = 4
# A map that is mixed up itself is this far above the others about once in a thousand times.
_DEVIATIONS = 3.0
_SHIFT_DEVIATIONS = 4.0

_Ids = npt.NDArray[np.int64]
_Places = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Alignment:
    """Result of the alignment check.

    Args:
        place: mean place of given items in their users' lists, from 0 (last) to 1 (first).
        mixed: the same with items, and with users permuted.
        deviations: standard deviations from these to ``place``; None without any deviation.
        reason: why the factors are refused, or empty.
    """

    place: float
    mixed: tuple[float, float]
    deviations: tuple[float | None, float | None]
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether the factors fit the pairs."""
        return not self.reason

    def __str__(self) -> str:
        return (
            f"given pairs rank above {self.place:.0%} of random items (items mixed up: "
            f"{self.mixed[0]:.0%}, users mixed up: {self.mixed[1]:.0%})"
        )

    def require(self) -> None:
        """Raise a DataError with the reason, if there is one."""
        if self.reason:
            raise DataError(f"{self.reason}; {self}. check=False (--force) skips this check")


def mean_place(factors: Factors, pairs: Interactions, seed: int = 0) -> float:
    """Return the mean place of training pairs in their users' lists, see :class:`Alignment`."""
    return _sampled(factors, pairs, stream(seed, "smell"))[0]


def _sampled(
    factors: Factors, pairs: Interactions, rng: np.random.Generator
) -> tuple[float, _Lists, _Ids, _Ids, _Ids]:
    """Return the mean place of sampled pairs, the lists, users, items, and reference items."""
    chosen = rng.permutation(len(pairs))[:_PAIRS]
    users, items = pairs.users[chosen].astype(np.int64), pairs.items[chosen].astype(np.int64)
    reference = rng.choice(factors.n_items, min(_REFERENCE, factors.n_items), replace=False)
    lists = _Lists(factors, users, reference)
    return float(lists.places(items).mean()), lists, users, items, reference


def alignment(factors: Factors, pairs: Interactions, seed: int = 0) -> Alignment:
    """Compare the scores of training pairs with those under wrong maps from ids to rows.

    Cost: about 90 times scoring 2,048 pairs, half of these against 128 items: about a second.

    Example:
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> alignment(Factors(parity[:20], parity), checkerboard().train).good
        True
    """
    rng = stream(seed, "smell")
    place, lists, users, items, reference = _sampled(factors, pairs, rng)
    mixed, deviations = [], []
    for side in ("items", "users"):
        found = []
        for _ in range(_MIXED):
            if side == "items":
                places = lists.places(rng.permutation(factors.n_items)[items])
            else:
                others = rng.permutation(factors.n_users)[users]
                places = _Lists(factors, others, reference).places(items)
            found.append(float(places.mean()))
        spread = float(np.std(found, ddof=1))
        mixed.append(float(np.mean(found)))
        deviations.append((place - mixed[-1]) / spread if spread > 1e-9 else None)
    reason = _shifted(factors, users, items, reference, rng) or _reason(deviations)
    return Alignment(place, (mixed[0], mixed[1]), (deviations[0], deviations[1]), reason)


def _reason(deviations: list[float | None]) -> str:
    by_items, by_users = deviations
    if by_items is None:
        return "all items have the same score: these factors rank nothing"
    if by_items < _DEVIATIONS:
        return (
            "these factors know nothing of these pairs: with items mixed up they fit as well. The "
            "item ids are shifted or permuted against the rows, or the factors are of other data"
        )
    if by_users is not None and by_users < _DEVIATIONS:
        return (
            "these factors know nothing of who has what: with users mixed up they fit as well. The "
            "user ids are shifted or permuted against the rows"
        )
    return ""


def _shifted(
    factors: Factors, users: _Ids, items: _Ids, reference: _Ids, rng: np.random.Generator
) -> str:
    """Return the reason to call a map shifted: neighbouring rows fit clearly better; or empty."""
    n_users, n_items = factors.n_users, factors.n_items
    # Rows at the ends have no neighbour: they stay where they are.
    nearby = {
        step: (np.clip(users + step, 0, n_users - 1), np.clip(items + step, 0, n_items - 1))
        for step in (0, -1, 1)
    }
    strangers = [
        _Lists(factors, rng.permutation(n_users)[users], reference) for _ in range(_STRANGERS)
    ]
    others = {
        step: np.mean([each.places(what) for each in strangers], axis=0)
        for step, (_, what) in nearby.items()
    }
    lists = {step: _Lists(factors, who, reference) for step, (who, _) in nearby.items()}
    own = lists[0].places(items) - others[0]
    # Users and items recur in the sample, so pairs are not independent: count rows.
    rows = min(len(np.unique(users)), len(np.unique(items)))
    best, words = _SHIFT_DEVIATIONS, ""
    for by_users, by_items in product((0, -1, 1), repeat=2):
        gain = lists[by_users].places(nearby[by_items][1]) - others[by_items] - own
        spread = float(gain.std(ddof=1)) / np.sqrt(rows) if len(gain) > 1 else 0.0
        if spread > 0 and gain.mean() / spread > best:
            best = float(gain.mean() / spread)
            moved = [
                f"{side} rows {'one later' if step > 0 else 'one earlier'}"
                for side, step in (("user", by_users), ("item", by_items))
                if step
            ]
            words = (
                f"rows are shifted against ids: {' and '.join(moved)} would fit better "
                "(padding row, or ids from 1?)"
            )
    return words


class _Lists:
    """Scores of the reference items per user."""

    def __init__(self, factors: Factors, users: _Ids, reference: _Ids) -> None:
        # In float64, so that a large bias does not swamp the rest.
        self.items = factors.items
        self.users = factors.users[torch.from_numpy(users)].double()
        self.others = self.users @ self.items[torch.from_numpy(reference)].double().T

    def places(self, items: _Ids) -> _Places:
        """Return the share of the reference with a lower score than each user's item."""
        rows = self.items[torch.from_numpy(items)].double()
        scores = (self.users * rows).sum(dim=1, keepdim=True)
        # Two orders of addition may round one product differently: nearly equal is equal.
        close = 1e-12 * (1 + scores.abs())
        below, upto = self.others < scores - close, self.others <= scores + close
        places: _Places = ((below.sum(dim=1) + upto.sum(dim=1)) / (2.0 * below.shape[1])).numpy()
        return places
