"""Hardening: an equivalent factorization, and by trial the gauge, rank and shrinking to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from robustcf._checks import check_epsilons, check_integer, check_number
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.gauge import Gauge, shrink, truncate
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.measuring import measure
from robustcf.robustness.table import CERTIFICATE, CUTOFF

SIZES = (0.05, 0.1)
KEPT = 0.97
# Fewer than the headline attack's: they order candidates alike and cost less.
STEPS = 20
PROMISED = 0.02
# Shrinkings, and with each the shares of the columns that are kept (None: all).
_RANKS: dict[float, tuple[float | None, ...]] = {
    0.0: (None, 0.75, 0.5, 0.375, 0.25),
    0.5: (None, 0.75, 0.5),
}
METRIC = "ndcg@10"
_AS_IT_IS = "as it is"


def harden(model: Recommender, *, shrink_by: float = 0.0, rank: int | None = None) -> Recommender:
    """An equivalent factorization (same rankings) on which perturbations usually do less damage.

    The balanced gauge: it removes the common item direction and balances U and V, without data or
    training, see :mod:`robustcf.models.gauge`. That usually raises the certificate, but there is
    no guarantee: measure both. Columns held fixed stay as they are.

    Args:
        model: the recommender.
        shrink_by: how much shorter the singular values of the scores become, in their median; 0
            leaves every ranking as it is.
        rank: how many of the strongest directions of the scores to keep; None for all. Fewer cost
            some quality and leave more of it under attack.

    Cost: a QR decomposition of each factor, O((users + items) dim^2).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> model = Recommender(rng.normal(3, 1, (9, 4)), rng.normal(-3, 1, (7, 4)), np.eye(9, 7))
        >>> safer = harden(model)
        >>> bool(safer.factors.items.norm() < model.factors.items.norm())
        True
    """
    check_recommender(model)
    check_number("shrink_by", shrink_by)
    if rank is not None:
        check_integer("rank", rank)
    free = torch.tensor(model.free)
    moved = Factors(model.factors.users[:, free], model.factors.items[:, free])
    safer = truncate(shrink(Gauge.balanced(*moved).apply(moved), shrink_by), rank)
    parts = []
    for whole, part in zip(model.factors, safer, strict=True):
        changed = whole.clone()
        # With fewer users or items than columns, there are fewer directions than that.
        changed[:, free] = 0.0
        changed[:, free[: part.shape[1]]] = part
        parts.append(changed)
    return model.with_factors(Factors(*parts))


@dataclass(frozen=True)
class Hardened:
    """One way to harden, and what it leaves.

    Args:
        name: in words.
        shrink_by: see :func:`robustcf.robustness.harden`; so is ``rank``.
        clean: NDCG@10 without an attack.
        joint: NDCG@10 under the attack at the cutoff, one value for each size.
        certified: the certified lower bound at size 0.02.
    """

    name: str
    shrink_by: float
    rank: int | None
    clean: float
    joint: tuple[float, ...]
    certified: float

    @property
    def left(self) -> float:
        """What an attack leaves, mean over the sizes."""
        return sum(self.joint) / len(self.joint)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def harden_by_trial(
    model: Recommender,
    *,
    sizes: Sequence[float] = SIZES,
    kept: float = KEPT,
    steps: int = STEPS,
    step: Callable[[str], None] | None = None,
) -> tuple[Recommender, list[Hardened], Hardened]:
    """The factors of a model in the way that leaves most under attack.

    Candidates are the factors as they are, the balanced gauge, and with it several ranks and
    shrinkings. Of those that keep the clean quality, the one with the highest NDCG@10 under the
    attack at the cutoff (joint), mean over the sizes, is chosen.

    Args:
        model: the recommender; judged by validation pairs, never by those that you will report on.
        sizes: of the attack, in median row norms.
        kept: the share of the clean NDCG@10 that must stay.
        steps: of the attack.
        step: called with the name of each candidate before it is tried.

    Returns:
        The hardened model, all that was tried (the factors as they are first), and the choice.

    Cost: nine attacks of ``steps`` steps at each size, and nine certificates.

    Example:
        >>> import torch
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2] + 3.0
        >>> model = Recommender(parity[:20], parity, checkerboard())
        >>> _, tried, chosen = harden_by_trial(model, steps=2)
        >>> tried[0].name, chosen.left >= tried[0].left
        ('as it is', True)
    """
    check_recommender(model)
    check_integer("steps", steps)
    if not 0 < check_number("kept", kept) <= 1:
        raise InputError(f"kept must be a share in (0, 1], got {kept!r}")
    epsilons = check_epsilons((0.0, *sizes) if 0.0 not in sizes else sizes)
    if len(epsilons) < 2:
        raise InputError("sizes must have one above 0")
    tried: list[tuple[Hardened, Recommender]] = []
    for name, shrink_by, rank in _candidates(len(model.free)):
        if step is not None:
            step(name)
        other = model if name == _AS_IT_IS else harden(model, shrink_by=shrink_by, rank=rank)
        attacked = measure(other, CUTOFF, None, epsilons, (10,), steps=steps, control=False)
        certified = measure(other, CERTIFICATE, None, (0.0, PROMISED), (10,)).curve[METRIC]
        clean, *joint = (float(value) for value in attacked.curve[METRIC])
        found = Hardened(name, shrink_by, rank, clean, tuple(joint), float(certified[-1]))
        tried.append((found, other))
    floor = kept * tried[0][0].clean
    good = [entry for entry in tried if entry[0].clean >= floor]
    chosen, best = max(good, key=lambda entry: entry[0].left)
    return best, [entry for entry, _ in tried], chosen


def _candidates(columns: int) -> list[tuple[str, float, int | None]]:
    found: list[tuple[str, float, int | None]] = [(_AS_IT_IS, 0.0, None)]
    for shrink_by, shares in _RANKS.items():
        ranks = {None if share is None else max(1, round(share * columns)) for share in shares}
        for rank in sorted(ranks - {columns}, key=lambda rank: -(rank or columns)):
            name = "balanced"
            name += "" if rank is None else f", {rank} directions"
            name += f", shrunk by {shrink_by:g}" if shrink_by else ""
            found.append((name, shrink_by, rank))
    return found
