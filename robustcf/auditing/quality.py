"""Checks of a model as it is: its quality, its rows, and what it shows of the catalogue."""

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

# Of the fresh model: enough to be good on most sets, and seconds on a million pairs.
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
    """Tell whether the quality, next to a fresh model's, is too good for held-out pairs."""
    ratio = subject.found(fresh).number
    model = subject.model
    train = mean_scores(model.factors, model.known)
    held = mean_scores(model.factors, model.relevant)
    both = np.isfinite(train) & np.isfinite(held)
    share = float((held[both] >= train[both]).mean()) if both.any() else 0.0
    return Found(
        ratio,
        f"NDCG@10 is {ratio:.2f} times a fresh model's; for {share:.0%} of the users, held-out "
        "items score as high as training items.",
        {"users whose held-out items score as high": share},
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
    """Compare how often the most popular hundredth of the items is shown and is taken."""
    degrees = subject.whole.known.item_degrees
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


def coverage(subject: Subject) -> Found:
    """Return how much of the catalogue is in some user's top list."""
    n_items = subject.whole.n_items
    shown = np.unique(subject.top[subject.top >= 0])
    possible = min(n_items, len(subject.top) * CUTOFF)
    return Found(
        len(shown) / possible,
        f"{len(shown):,} of {n_items:,} items are in the top {CUTOFF} of {subject.words}.",
        {"items shown": len(shown), "items": n_items, "could be shown": possible},
    )


def untrained(subject: Subject) -> Found:
    """Count rows without interactions, of zeros, or that are copies of another row."""
    model = subject.whole
    degrees = {"users": model.known.user_degrees, "items": model.known.item_degrees}
    bad = total = 0
    rows = []
    for (name, pairs), part in zip(degrees.items(), model.factors, strict=True):
        own = part[:, model.free]
        zero = (own == 0).all(dim=1).cpu().numpy()
        kinds = (pairs == 0, zero, copies(own) & ~zero)
        rows.append((name, *(f"{kind.sum():,}" for kind in kinds), f"{len(own):,}"))
        bad += int(np.logical_or.reduce(kinds).sum())
        total += len(own)
    return Found(
        bad / total,
        f"{bad:,} of {total:,} rows.",
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
        users, items = pairs.users[start : start + step], pairs.items[start : start + step]
        left = factors.users[torch.from_numpy(np.asarray(users, dtype=np.int64))]
        right = factors.items[torch.from_numpy(np.asarray(items, dtype=np.int64))]
        scores = (left.double() * right.double()).sum(dim=1).cpu().numpy()
        np.add.at(sums, users, scores)
    counts = pairs.user_degrees
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _held_out(subject: Subject) -> Interactions:
    """Return the training pairs, where there are others to compare with."""
    if subject.whole.part == "train":
        raise Skip("there are no held-out pairs: give some with --test FILE")
    return subject.whole.known


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
    )
