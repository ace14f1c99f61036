"""Hardening: an equivalent factorization, and the choice of rank and shrinking by trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf._checks import check_epsilons, check_integer, check_number
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.groups import exposure, overlap, shares
from robustcf.metrics.topk import TopItems, top_items
from robustcf.models.gauge import Gauge, shrink, truncate
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.measuring import measure
from robustcf.robustness.quantization import quantize
from robustcf.robustness.table import CERTIFICATE, PAIRWISE

Ids = npt.NDArray[np.int64]

SIZES = (0.05, 0.1)
KEPT = 0.97
# Fewer steps than the headline attack order candidates alike.
STEPS = 20
PROMISED = 0.02
# Shrinkings, and with each the shares of the columns that are kept (None: all).
_RANKS: dict[float, tuple[float | None, ...]] = {
    0.0: (None, 0.75, 0.5, 0.375, 0.25),
    0.5: (None, 0.75, 0.5),
}
METRIC = "ndcg@10"
_AS_IT_IS = "as it is"
# Side effects are measured on the lists of at most so many users.
_MOST_USERS = 20_000


def harden(
    model: Recommender,
    *,
    shrink_by: float = 0.0,
    rank: int | None = None,
    serve: str | None = None,
    by_trial: bool = False,
) -> Recommender:
    """Return an equivalent factorization (same rankings) that is usually more robust.

    The balanced gauge removes the common item direction and balances U and V, see
    :mod:`robustcf.models.gauge`. That usually raises the certificate, without a guarantee. Fixed
    columns stay as they are.

    Args:
        model: the recommender.
        shrink_by: amount by which each singular value of the scores is reduced, in units of their
            median; 0 keeps every ranking.
        rank: number of the strongest directions of the scores to keep; None for all.
        serve: ``stored`` users, or ``fold-in``, computed from their histories
            (:meth:`robustcf.Recommender.serving`), which changes rankings; None for as it is.
        by_trial: whether to try several values of rank and shrink_by and keep the best
            (:func:`harden_by_trial`). Validation pairs decide, or training pairs if the model was
            fit on them; test pairs never do.

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
    if by_trial:
        if shrink_by or rank is not None:
            raise InputError("by_trial chooses shrink_by and rank itself: leave them out")
        served = model if serve is None else model.serving(serve)
        return served.with_factors(harden_by_trial(judged_to_choose(served))[0].factors)
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
    own = "stored" if model.histories is None else "fold-in"
    return model.with_factors(Factors(*parts)).serving(own if serve is None else serve)


def judged_to_choose(model: Recommender) -> Recommender:
    """Return a model judged by pairs that it may be chosen by: never by those reported on."""
    valid = model.fit_on == "train" and len(model.split.valid) > 0
    return model.judged_by("valid" if valid else "train")


@dataclass(frozen=True)
class Hardened:
    """A candidate of :func:`harden_by_trial`: NDCG@10, and what it costs.

    Args:
        clean: without attack.
        joint: under the pairwise attack, one value per epsilon.
        certified: the lower bound at epsilon 0.02.
        overlap: share of the top 10 of the factors as they are that stays.
        popular: share of the places in top lists that the most popular 1 % of items take.
        coverage: share of the catalogue in some top list.
        worst_users: NDCG@10 of the worst third of users by activity, over that of all.
        tail: exposure of the least popular items, over their share of the training pairs.
        int8: share of its own exact top 10 that stays in 8 bits; ``int4`` and ``cosine`` likewise.
    """

    name: str
    shrink_by: float
    rank: int | None
    clean: float
    joint: tuple[float, ...]
    certified: float
    overlap: float
    popular: float
    coverage: float
    worst_users: float
    tail: float
    int8: float
    int4: float
    cosine: float

    @property
    def left(self) -> float:
        """NDCG@10 under attack, mean over the epsilons."""
        return sum(self.joint) / len(self.joint)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def _price(model: Recommender, before: TopItems, users: Ids) -> dict[str, Any]:
    """Return the side effects of factors on the lists of some users, ``before`` of those as is."""
    known, factors = model.known, model.factors

    def ranked(other: Factors) -> TopItems:
        return top_items(other, users, 10, model.seen)

    own, degrees = ranked(factors), known.item_degrees
    popular = np.argsort(-degrees, kind="stable")[: max(1, len(degrees) // 100)]
    parts = model.groups(["activity", "popularity"])
    given, taken = (shares(v, parts[1]) for v in (exposure(own, model.n_items), degrees))
    lengths = factors.items.norm(dim=1, keepdim=True)
    cosine = Factors(factors.users, factors.items / torch.where(lengths > 0, lengths, 1.0))
    served = {kind: quantize(factors, kind, model.fixed) for kind in ("int8", "int4")}
    report = model.evaluate((10,), by=parts[:1])
    worst = [row.value or 0.0 for row in report.groups if row.metric == METRIC]
    return {
        "overlap": float(overlap(before, own).mean()),
        "popular": float(np.isin(own[own >= 0], popular).mean()),
        "coverage": report["coverage@10"],
        "worst_users": min(worst, default=0.0) / (report[METRIC] or 1.0),
        "tail": given.get("tail", 0.0) / (taken.get("tail", 0.0) or 1.0),
        **{
            name: float(overlap(own, ranked(other)).mean())
            for name, other in {**served, "cosine": cosine}.items()
        },
    }


def harden_by_trial(
    model: Recommender,
    *,
    sizes: Sequence[float] = SIZES,
    kept: float = KEPT,
    steps: int = STEPS,
    step: Callable[[str], None] | None = None,
) -> tuple[Recommender, list[Hardened], Hardened]:
    """Choose the most robust of several hardened models.

    Candidates are the factors as they are, the balanced gauge, and with it several ranks and
    shrinkings. Of those that keep the clean quality, the one with the highest NDCG@10 under the
    pairwise attack (joint), mean over the epsilons, is chosen.

    Args:
        model: the recommender; judged by validation pairs, never by those that you will report on.
        sizes: epsilons of the attack, in lengths of each row.
        kept: the share of the clean NDCG@10 that must stay.
        steps: steps of the attack.
        step: called with the name of each candidate before it is tried.

    Returns:
        The hardened model, all candidates (the factors as they are first), and the choice.

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
    users = np.arange(model.n_users)[:: -(-model.n_users // _MOST_USERS)]
    before = top_items(model.factors, users, 10, model.seen)
    for name, shrink_by, rank in _candidates(len(model.free)):
        if step is not None:
            step(name)
        other = model if name == _AS_IT_IS else harden(model, shrink_by=shrink_by, rank=rank)
        attacked = measure(other, PAIRWISE, None, epsilons, (10,), steps=steps, control=False)
        certified = measure(other, CERTIFICATE, None, (0.0, PROMISED), (10,)).curve[METRIC]
        clean, *joint = (float(value) for value in attacked.curve[METRIC])
        told: dict[str, Any] = {"name": name, "shrink_by": shrink_by, "rank": rank, "clean": clean}
        told |= {"joint": tuple(joint), "certified": float(certified[-1])}
        found = Hardened(**told, **_price(other, before, users))
        tried.append((found, other))
    floor = kept * tried[0][0].clean
    good = [entry for entry in tried if entry[0].clean >= floor]
    chosen, best = max(good, key=lambda entry: entry[0].left)
    return best, [entry for entry, _ in tried], chosen


def _candidates(columns: int) -> list[tuple[str, float, int | None]]:
    found: list[tuple[str, float, int | None]] = [(_AS_IT_IS, 0.0, None)]
    for shrink_by, kept in _RANKS.items():
        ranks = {None if share is None else max(1, round(share * columns)) for share in kept}
        for rank in sorted(ranks - {columns}, key=lambda rank: -(rank or columns)):
            name = "balanced"
            name += "" if rank is None else f", {rank} directions"
            name += f", shrunk by {shrink_by:g}" if shrink_by else ""
            found.append((name, shrink_by, rank))
    return found
