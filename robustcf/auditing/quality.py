"""Checks of quality, rows and coverage of the catalogue."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._randomness import stream
from robustcf.auditing.findings import Found, Skip
from robustcf.auditing.subject import CUTOFF, METRIC, Subject, label
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.models.popularity import Popularity
from robustcf.models.spectral import spectral_factors

# Of the fresh model: good on most sets, and takes seconds on a million pairs.
_COLUMNS = 64
_SHOWN = 5


def popularity(subject: Subject) -> Found:
    """Compare NDCG@10 with that of the most popular items."""
    return _against(subject, Popularity(_held_out(subject)).factors(), "popularity")


def fresh(subject: Subject) -> Found:
    """Compare NDCG@10 with that of the smooth start, fit on the same pairs."""
    pairs = _held_out(subject)
    columns = max(1, min(_COLUMNS, pairs.n_users, pairs.n_items))
    users, items = spectral_factors(pairs, columns, stream(subject.seed, "audit"), smooth=True)
    return _against(subject, Factors.of(users, items), "a fresh model")


def leak(subject: Subject) -> Found:
    """Compare NDCG@10 with a fresh model's, and scores of held-out with training items."""
    compared = subject.found(fresh)
    ratio, model = compared.number, subject.model
    train = mean_scores(model.factors, model.known)
    held = mean_scores(model.factors, model.relevant)
    both = np.isfinite(train) & np.isfinite(held)
    share = float((held[both] >= train[both]).mean()) if both.any() else 0.0
    return Found(
        ratio,
        f"NDCG@10 is {ratio:.2f} times a fresh model's; for {share:.0%} of the users, held-out "
        "items score as high as training items.",
        {"users whose held-out items score as high": share},
        error=compared.error,
    )


def norms(subject: Subject) -> Found:
    """Return the longest rows, in median row lengths."""
    model = subject.whole
    found, rows = {}, []
    names = {"users": model.user_labels, "items": model.item_labels}
    for (name, labels), part in zip(names.items(), model.factors, strict=True):
        lengths = part[:, model.free].double().norm(dim=1).cpu().numpy()
        middle = float(np.median(lengths))
        if middle == 0:
            raise Skip(f"more than half of the rows of the {name} are zeros")
        found[name] = float(lengths.max() / middle)
        longest = np.argsort(-lengths, kind="stable")[:_SHOWN]
        rows += [(name, label(labels, n), f"{lengths[n] / middle:.2f}") for n in longest]
    return Found(
        max(found.values()),
        f"The longest user's row is {found['users']:.1f}, the longest item's "
        f"{found['items']:.1f} times the median.",
        found,
        ("", "row", "median lengths"),
        rows,
    )


def popularity_bias(subject: Subject) -> Found:
    """Compare how often the most popular 1 % of items is recommended and interacted with."""
    degrees = subject.known.item_degrees
    popular = np.argsort(-degrees, kind="stable")[: max(1, len(degrees) // 100)]
    shown = subject.top[subject.top >= 0]
    if len(shown) == 0:
        raise Skip("no user has an item left to recommend")
    share = float(np.isin(shown, popular).mean())
    taken = float(degrees[popular].sum() / degrees.sum())
    return Found(
        share / taken,
        f"The {len(popular):,} most popular items take {share:.0%} of all places in a top "
        f"{CUTOFF} and have {taken:.0%} of the interactions.",
        {"items": len(popular), "share of places": share, "share of pairs": taken},
    )


def hubs(subject: Subject) -> Found:
    """Return the share of users whose list has the most recommended item."""
    whole = subject.whole
    counts = np.bincount(subject.top[subject.top >= 0], minlength=whole.n_items)
    listed = max(1, int((subject.top >= 0).any(axis=1).sum()))
    degrees = whole.known.item_degrees if whole.has_interactions else None
    rows = [
        (
            label(whole.item_labels, n),
            f"{counts[n] / listed:.1%}",
            "-" if degrees is None else f"{degrees[n] / max(1, whole.n_users):.1%}",
        )
        for n in np.argsort(-counts, kind="stable")[:_SHOWN].tolist()
    ]
    share = float(counts.max(initial=0) / listed)
    return Found(
        share,
        f"The most recommended item is in the top {CUTOFF} of {share:.1%} of the users.",
        {"lists": listed},
        ("most recommended", "in lists of", "training pairs with"),
        rows,
    )


def coverage(subject: Subject) -> Found:
    """Return how much of the catalogue is in some user's top list."""
    n_items = subject.whole.n_items
    shown = np.unique(subject.top[subject.top >= 0])
    possible = min(n_items, len(subject.top) * CUTOFF)
    never = np.setdiff1d(np.arange(n_items), shown)
    rows = []
    if subject.whole.has_interactions:
        degrees = subject.whole.known.item_degrees
        never = never[np.argsort(-degrees[never], kind="stable")]
        labels = subject.whole.item_labels
        rows = [(label(labels, n), f"{degrees[n]:,}") for n in never[:_SHOWN].tolist()]
    return Found(
        len(shown) / possible,
        f"{len(shown):,} of {n_items:,} items are in some top {CUTOFF} of {subject.words}.",
        {"items shown": len(shown), "items": n_items, "could be shown": possible},
        ("never recommended", "training pairs") if rows else (),
        rows,
    )


def untrained(subject: Subject) -> Found:
    """Count rows without interactions, of zeros, or that are copies of another row."""
    model = subject.whole
    degrees: dict[str, npt.NDArray[np.int64] | None] = {"users": None, "items": None}
    if model.has_interactions:
        degrees = {"users": model.known.user_degrees, "items": model.known.item_degrees}
    bad = total = 0
    rows = []
    for (name, pairs), part in zip(degrees.items(), model.factors, strict=True):
        own = part[:, model.free]
        zero = (own == 0).all(dim=1).cpu().numpy()
        without = np.zeros(len(own), dtype=bool) if pairs is None else pairs == 0
        kinds = (without, zero, copies(own) & ~zero)
        told = [f"{kind.sum():,}" for kind in kinds]
        rows.append((name, *(["-", *told[1:]] if pairs is None else told), f"{len(own):,}"))
        bad += int(np.logical_or.reduce(kinds).sum())
        total += len(own)
    return Found(
        bad / total,
        f"{bad:,} of {total:,} rows are untrained.",
        {"rows": bad, "of": total},
        ("", "no interaction", "all zeros", "copies", "rows"),
        rows,
    )


def copies(part: Tensor) -> npt.NDArray[np.bool_]:
    """Return which rows are equal to another one."""
    array = np.ascontiguousarray(part.detach().cpu().float().numpy())
    words = array.view(np.dtype((np.void, array.dtype.itemsize * array.shape[1]))).ravel()
    _, first, counts = np.unique(words, return_inverse=True, return_counts=True)
    return np.asarray(counts[first] > 1)


def mean_scores(factors: Factors, pairs: Interactions) -> npt.NDArray[np.float64]:
    """Return each user's mean score over their pairs; NaN for users without."""
    sums = np.zeros(factors.n_users)
    step = max(1, 2**22 // max(1, factors.dim))
    for start in range(0, len(pairs), step):
        ids = (each[start : start + step] for each in (pairs.users, pairs.items))
        users, items = (torch.from_numpy(np.asarray(each, dtype=np.int64)) for each in ids)
        scores = (factors.users[users].double() * factors.items[items].double()).sum(dim=1)
        sums += np.bincount(users.numpy(), scores.cpu().numpy(), minlength=len(sums))
    counts = pairs.user_degrees
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _held_out(subject: Subject) -> Interactions:
    """Return the training pairs, where there are held-out pairs."""
    known = subject.known
    if subject.whole.part == "train":
        raise Skip("there are no held-out pairs: give some with --test FILE")
    return known


def ratio_error(above: npt.NDArray[np.float64], below: npt.NDArray[np.float64]) -> float:
    """Return the standard error of the ratio of two means over the same users."""
    mean = float(below.mean())
    if not mean:
        return 0.0
    rest = above - above.mean() / mean * below
    return float(rest.std() / mean / len(rest) ** 0.5)


def _against(subject: Subject, other: Factors, name: str) -> Found:
    own = subject.clean
    theirs = subject.model.evaluate((CUTOFF,), subject.rows_of(other))
    difference = own.per_user[METRIC] - theirs.per_user[METRIC]
    ratio = own[METRIC] / theirs[METRIC] if theirs[METRIC] else np.inf
    return Found(
        float(min(ratio, 1e6)),
        f"NDCG@10 is {own[METRIC]:.4f}; {name} has {theirs[METRIC]:.4f}.",
        {
            "ndcg@10": own[METRIC],
            f"ndcg@10 of {name}": theirs[METRIC],
            "difference": float(difference.mean()),
            "standard error": float(difference.std() / max(1, len(difference)) ** 0.5),
        },
        ("", "NDCG@10", "Recall@10"),
        [
            (who, f"{report[METRIC]:.4f}", f"{report['recall@10']:.4f}")
            for who, report in (("this model", own), (name, theirs))
        ],
        ratio_error(own.per_user[METRIC], theirs.per_user[METRIC]),
    )
