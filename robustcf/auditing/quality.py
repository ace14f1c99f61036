"""Checks of quality: against popularity, against a fresh model, and whether pairs were held out."""

from __future__ import annotations

import numpy as np
import torch

from robustcf._randomness import stream
from robustcf.auditing.outcome import Found, Skip
from robustcf.auditing.subject import Subject, rows_of
from robustcf.data.interactions import Interactions
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport
from robustcf.models.popularity import Popularity
from robustcf.models.spectral import spectral_factors

# Of the fresh model: enough to be good on most sets, and seconds on a million pairs.
COLUMNS = 64
METRIC = "ndcg@10"


def against_popularity(subject: Subject) -> Found:
    """NDCG@10 next to that of the most popular items."""
    _needs_held_out(subject)
    return _against(subject, Popularity(subject.whole.known).factors(), "popularity")


def against_fresh(subject: Subject) -> Found:
    """NDCG@10 next to that of the smooth start, fit on the same pairs."""
    _needs_held_out(subject)
    pairs = subject.whole.known
    columns = max(1, min(COLUMNS, pairs.n_users, pairs.n_items))
    users, items = spectral_factors(pairs, columns, stream(subject.seed, "audit"), smooth=True)
    return _against(subject, Factors.of(users, items), "a fresh model")


def leak(subject: Subject, fresh: Found) -> Found:
    """Whether the quality, next to a fresh model's, is too good for pairs that were held out."""
    ratio = fresh.number
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


def mean_scores(
    factors: Factors, pairs: Interactions
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Each user's mean score over their pairs; NaN for users without.

    Example:
        >>> pairs = Interactions.from_pairs([0, 0], [0, 1], 2, 2)[0]
        >>> mean_scores(Factors(torch.ones(2, 1), torch.tensor([[1.0], [3.0]])), pairs)
        array([ 2., nan])
    """
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


def _against(subject: Subject, other: Factors, name: str) -> Found:
    own = subject.clean
    theirs = subject.model.evaluate((10,), _same_users(subject, other))
    difference = own.per_user[METRIC] - theirs.per_user[METRIC]
    error = float(difference.std() / max(1, len(difference)) ** 0.5)
    ratio = own[METRIC] / theirs[METRIC] if theirs[METRIC] else np.inf
    return Found(
        float(min(ratio, 1e6)),
        f"NDCG@10 is {own[METRIC]:.4f}; {name} has {theirs[METRIC]:.4f}.",
        {
            "ndcg@10": own[METRIC],
            f"ndcg@10 of {name}": theirs[METRIC],
            "difference": float(difference.mean()),
            "standard error": error,
        },
        ("", "NDCG@10", "Recall@10"),
        [_row("this model", own), _row(name, theirs)],
    )


def _row(name: str, report: MetricReport) -> tuple[str, ...]:
    return (name, f"{report[METRIC]:.4f}", f"{report['recall@10']:.4f}")


def _same_users(subject: Subject, other: Factors) -> Factors:
    return rows_of(other, subject.users) if subject.sampled else other


def _needs_held_out(subject: Subject) -> None:
    if subject.whole.part == "train":
        raise Skip("there are no held-out pairs: give some with --test FILE")
