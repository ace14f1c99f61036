"""Churn: how much the lists, and the vectors behind them, moved between two versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.auditing.outcome import Found
from robustcf.auditing.shape import label
from robustcf.auditing.subject import CUTOFF, Subject, overlap, rows_of
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.topk import TopItems

# Weight of a place in rank-biased overlap: the first ten places have 86 % of it.
PERSISTENCE = 0.9
_SHOWN = 10


def churn(subject: Subject, other: Factors) -> Found:
    """Overlap and rank-biased overlap of top lists, who moved, and how far vectors turned.

    Raises:
        InputError: the other version has other users or items.
    """
    own = subject.whole.factors
    if (own.n_users, own.n_items) != (other.n_users, other.n_items):
        raise InputError(
            f"the other version has {other.n_users} users x {other.n_items} items, this one "
            f"{own.n_users} x {own.n_items}: match their ids first"
        )
    theirs = subject.ranked(rows_of(other, subject.users) if subject.sampled else other)
    kept = overlap(subject.top, theirs)
    biased = rank_biased_overlap(subject.top, theirs)
    turned = turned_rows(own, other)
    mean = float(kept.mean())
    split = subject.whole.split
    moved = np.argsort(kept, kind="stable")[:_SHOWN]
    gone = _places_changed(subject.top, theirs, own.n_items)
    items = np.argsort(-np.abs(gone), kind="stable")[:_SHOWN]
    rows = [
        ("user", label(split.user_labels, int(subject.users[n])), f"keeps {kept[n]:.0%}")
        for n in moved
    ]
    rows += [
        ("item", label(split.item_labels, int(n)), f"{gone[n]:+,d} places in top lists")
        for n in items
        if gone[n]
    ]
    return Found(
        mean,
        f"A top {CUTOFF} keeps {mean:.1%} of its items; rank-biased overlap {biased.mean():.3f}.",
        {
            "overlap@10": mean,
            "rank-biased overlap": float(biased.mean()),
            "users who keep less than half": float((kept < 0.5).mean()),
            "mean cosine of items after alignment": float(turned["items"]),
            "mean cosine of users after alignment": float(turned["users"]),
        },
        ("", "", "moved most"),
        rows,
    )


def rank_biased_overlap(left: TopItems, right: TopItems) -> npt.NDArray[np.float64]:
    """Agreement of two top lists that counts early places more, from 0 to 1.

    ``(1 - p) / (1 - p^n) sum_d p^(d-1) |first d of both| / d`` with p = 0.9: the share of items in
    common at every depth d, weighted by a geometric series, divided by the series' sum over the n
    places that there are.

    Example:
        >>> rank_biased_overlap(np.array([[1, 2]]), np.array([[1, 2]]))
        array([1.])
        >>> rank_biased_overlap(np.array([[1, 2]]), np.array([[2, 1]])).round(3)
        array([0.474])
    """
    depth = left.shape[1]
    common = np.stack(
        [
            ((left[:, :d, None] == right[:, None, :d]) & (left[:, :d, None] >= 0)).sum(axis=(1, 2))
            for d in range(1, depth + 1)
        ],
        axis=1,
    )
    weights = PERSISTENCE ** np.arange(depth)
    shares = common / np.arange(1, depth + 1)
    return np.asarray(shares @ (weights / weights.sum()))


def turned_rows(own: Factors, other: Factors) -> dict[str, float]:
    """Mean cosine of the rows of two versions after the rotation that brings them closest.

    Two trainings differ by a rotation that no score shows, so vectors compare only after it:
    orthogonal Procrustes over the rows of users and items together.
    """
    dim = max(own.dim, other.dim)
    left = {name: _wide(part, dim) for name, part in zip(("users", "items"), own, strict=True)}
    right = {name: _wide(part, dim) for name, part in zip(("users", "items"), other, strict=True)}
    product = sum((left[name].T @ right[name] for name in left), torch.zeros(dim, dim).double())
    first, _, last = torch.linalg.svd(product)
    rotation = first @ last
    return {name: _mean_cosine(left[name] @ rotation, right[name]) for name in left}


def _wide(part: Tensor, dim: int) -> Tensor:
    return torch.nn.functional.pad(part.detach().cpu().double(), (0, dim - part.shape[1]))


def _mean_cosine(left: Tensor, right: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(left, right, dim=1).mean())


def _places_changed(left: TopItems, right: TopItems, n_items: int) -> npt.NDArray[Any]:
    """For each item, in how many more lists it is on the right."""
    counts = [np.bincount(side[side >= 0], minlength=n_items) for side in (left, right)]
    return counts[1] - counts[0]
