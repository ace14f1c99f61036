"""Checks of the embeddings themselves, and of what of the catalogue is shown."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from robustcf.auditing.outcome import Found, Skip
from robustcf.auditing.subject import CUTOFF, Subject
from robustcf.data.interactions import Labels

_SHOWN = 5


def norms(subject: Subject) -> Found:
    """The longest rows, in median row lengths."""
    model = subject.whole
    found = {}
    rows = []
    for name, part in zip(("users", "items"), model.factors, strict=True):
        lengths = part[:, model.free].double().norm(dim=1).cpu().numpy()
        middle = float(np.median(lengths))
        if middle == 0:
            raise Skip(f"more than half of the rows of the {name} are zeros")
        labels = model.split.user_labels if name == "users" else model.split.item_labels
        found[name] = float(lengths.max() / middle)
        longest = np.argsort(-lengths, kind="stable")[:_SHOWN]
        rows += [(name, label(labels, n), f"{lengths[n] / middle:.2f}") for n in longest]
    ratio = max(found.values())
    return Found(
        ratio,
        f"The longest user's row is {found['users']:.1f}, the longest item's "
        f"{found['items']:.1f} times the median.",
        found,
        ("", "row", "median lengths"),
        rows,
    )


def popularity_bias(subject: Subject) -> Found:
    """How often the most popular hundredth of the items is shown, next to how often it is taken."""
    degrees = subject.whole.known.item_degrees
    popular = np.argsort(-degrees, kind="stable")[: max(1, len(degrees) // 100)]
    shown = subject.top[subject.top >= 0]
    if len(shown) == 0:
        raise Skip("nobody has an item left to be shown")
    share = float(np.isin(shown, popular).mean())
    taken = float(degrees[popular].sum() / degrees.sum())
    return Found(
        share / taken,
        f"The {len(popular):,} most popular items take {share:.0%} of all places in a top "
        f"{CUTOFF} and have {taken:.0%} of the interactions.",
        {"items": len(popular), "share of places": share, "share of pairs": taken},
    )


def coverage(subject: Subject) -> Found:
    """How much of the catalogue is in somebody's top list."""
    n_items = subject.whole.factors.n_items
    shown = np.unique(subject.top[subject.top >= 0])
    possible = min(n_items, len(subject.top) * CUTOFF)
    share = len(shown) / possible
    return Found(
        share,
        f"{len(shown):,} of {n_items:,} items are in the top {CUTOFF} of {subject.words}.",
        {"items shown": len(shown), "items": n_items, "could be shown": possible},
    )


def untrained(subject: Subject) -> Found:
    """Rows without interactions, of zeros, or that are copies of another row."""
    model = subject.whole
    degrees = {"users": model.known.user_degrees, "items": model.known.item_degrees}
    bad = total = 0
    rows = []
    for name, part in zip(("users", "items"), model.factors, strict=True):
        own = part[:, model.free]
        without = degrees[name] == 0
        zero = (own == 0).all(dim=1).cpu().numpy()
        twins = copies(own) & ~zero
        rows.append(
            (name, f"{without.sum():,}", f"{zero.sum():,}", f"{twins.sum():,}", f"{len(own):,}")
        )
        bad += int((without | zero | twins).sum())
        total += len(own)
    return Found(
        bad / total,
        f"{bad:,} of {total:,} rows.",
        {"rows": bad, "of": total},
        ("", "no interaction", "all zeros", "copies", "rows"),
        rows,
    )


def copies(part: Tensor) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows are equal to an earlier or a later one.

    Example:
        >>> import torch
        >>> copies(torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])).tolist()
        [True, False, True]
    """
    array = np.ascontiguousarray(part.detach().cpu().float().numpy())
    words = array.view(np.dtype((np.void, array.dtype.itemsize * array.shape[1]))).ravel()
    _, first, counts = np.unique(words, return_inverse=True, return_counts=True)
    return counts[first] > 1


def label(labels: Labels | None, row: int) -> str:
    """What a row is called."""
    return str(row) if labels is None else str(labels[row])
