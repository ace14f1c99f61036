"""Checks of what moves the lists: ties, noise, attacks, fewer bits, indexes, another version."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf.attacks.certificates.bounds import top_radii
from robustcf.auditing.findings import Found, Skip
from robustcf.auditing.subject import CUTOFF, METRIC, Subject, label, overlap
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.topk import TopItems
from robustcf.robustness import Threat, measure
from robustcf.robustness.quantization import quantize

# Certified radii want a product in float64 and more: fewer users, by this many scores. A thousand
# of them tell a share to three points.
FEW, LEAST, FEW_SCORES = 5_000, 500, 100_000_000
ROUNDING, NOISE = 1e-4, 0.1
CERTIFIED = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
PROMISED = 0.01
# An index is asked for this many items more than needed, because seen ones are left out after it.
_ASKED = 200
_QUERIES = 5_000
# Weight of a place in rank-biased overlap: the first ten places have 86 % of it.
_PERSISTENCE = 0.9
_SHOWN = 10


def near_ties(subject: Subject) -> Found:
    """Count users whose first item a perturbation of the size of a rounding error replaces."""
    model = subject.model
    few = min(FEW, max(LEAST, FEW_SCORES // model.n_items))
    users, looked_at = subject.few(few, "audit ties")
    budgets = Threat().row_moves(model)
    radii = {
        k: top_radii(model.factors, budgets, users, subject.seen, k, fixed=model.fixed)
        for k in (1, 10)
    }
    share = float((radii[1] <= ROUNDING).mean())
    details = {
        f"{name} radius of the top {k}": None if np.isinf(value) else value
        for k, found in radii.items()
        for name, value in (
            ("median", float(np.median(found))),
            ("lowest twentieth, largest", float(np.quantile(found, 0.05, method="lower"))),
        )
    }
    middle = float(np.median(radii[10]))
    return Found(
        share,
        f"The first item of {share:.1%} of the users hangs by a hundredth of a percent; half of "
        f"all top 10 hold up to {middle:.2g} median row lengths{looked_at}.",
        {"users": len(users), **details},
    )


def noise(subject: Subject) -> Found:
    """Measure what random directions take."""
    threat = Threat(knowledge="none")
    result = measure(subject.model, "random", threat, (0.0, NOISE), (CUTOFF,), seed=subject.seed)
    clean, left = (float(value) for value in result.curve[METRIC])
    return Found(
        _share(left, clean),
        f"NDCG@10 falls from {clean:.4f} to {left:.4f}.",
        {"clean": clean, "left": left, "size": NOISE},
    )


def attack(subject: Subject) -> Found:
    """Run the headline attack on the whole model."""
    _attacks(subject)
    model = subject.whole
    if subject.large:
        raise Skip(
            f"{model.n_users:,} x {model.n_items:,} scores are too many to attack in minutes: "
            "import the run and use robustcf attack"
        )
    sizes = (0.0, subject.size)
    result = measure(
        model, "auto", None, sizes, (CUTOFF,), seed=subject.seed, progress=subject.progress
    )
    subject.results["attack"] = result
    clean, left = (float(value) for value in result.curve[METRIC])
    size = float(result.curve.epsilons[1])
    details = {"clean": clean, "joint": left, "size": size, "knowledge": result.threat.knowledge}
    rows = [("clean", f"{clean:.4f}"), (f"attacked at {size:g}, joint", f"{left:.4f}")]
    without_labels = None if result.with_data is None else result.with_data.curve
    for name, words, curve in (
        ("per user", "each user's worst over all attacks", result.per_user),
        ("without labels", "by an attacker without the labels", without_labels),
        ("random", "random directions", result.control),
    ):
        if curve is not None:
            details[name] = float(curve[METRIC][1])
            rows.append((words, f"{details[name]:.4f}"))
    return Found(
        _share(left, clean),
        f"At size {size:g}, NDCG@10 falls from {clean:.4f} to {left:.4f}.",
        details,
        ("NDCG@10", ""),
        rows,
    )


def certificate(subject: Subject) -> Found:
    """Return what is certified at a hundredth of the median row length."""
    _attacks(subject)
    result = measure(subject.model, "certificate", None, CERTIFIED, (CUTOFF,))
    subject.results["certificate"] = result
    sizes = [float(size) for size in result.curve.epsilons]
    values = [float(value) for value in result.curve[METRIC]]
    left = values[sizes.index(PROMISED)]
    return Found(
        _share(left, values[0]),
        f"At size {PROMISED:g}, at least {left:.4f} of {values[0]:.4f} is certain.",
        {"sizes": sizes, "certified ndcg@10": values},
        ("size", "certified NDCG@10"),
        [(f"{size:g}", f"{value:.4f}") for size, value in zip(sizes, values, strict=True)],
    )


def in_bits(subject: Subject, kind: str) -> Found:
    """Rank by factors rounded to ``kind``."""
    model = subject.model
    try:
        rounded = quantize(model.factors, kind, model.fixed)
    except InputError as error:
        raise Skip(str(error)) from error
    return _served(subject, rounded, " Biases are kept in full precision." if model.fixed else "")


def by_cosine(subject: Subject) -> Found:
    """Rank by items' rows scaled to length 1, as an index of cosines does."""
    users, items = subject.model.factors
    lengths = items.norm(dim=1, keepdim=True)
    return _served(subject, Factors(users, items / torch.where(lengths > 0, lengths, 1.0)))


def by_index(subject: Subject, kind: str) -> Found:
    """Rank by an approximate index of faiss."""
    if importlib.util.find_spec("faiss") is None:
        raise Skip("faiss is not installed: pip install 'robustcf[serving]'")
    users, items = (part.float().cpu().numpy() for part in subject.model.factors)
    queries, looked_at = subject.few(_QUERIES, "audit queries")
    asked = min(len(items), _ASKED + CUTOFF)
    _, found = _index(kind, items).search(np.ascontiguousarray(users[queries]), asked)
    lists = np.full((len(found), CUTOFF), -1, dtype=np.int64)
    for row, user in enumerate(queries.tolist()):
        have = set(subject.seen.items_of(user).tolist())
        kept = [item for item in found[row].tolist() if item >= 0 and item not in have]
        lists[row, : min(CUTOFF, len(kept))] = kept[:CUTOFF]
    shares = overlap(subject.top[queries], lists)
    recall = float(shares.mean())
    return Found(
        recall,
        f"It finds {recall:.1%} of the exact top {CUTOFF}{looked_at}.",
        {"users": len(queries), "worst twentieth": float(np.quantile(shares, 0.05))},
    )


def churn(subject: Subject) -> Found:
    """Compare top lists and vectors with those of another version.

    Raises:
        InputError: the other version has other users or items.
    """
    model, other = subject.whole, subject.against
    if other is None:
        raise Skip("there is no other version to compare with: give one with --against")
    if (model.n_users, model.n_items) != (other.n_users, other.n_items):
        raise InputError(
            f"the other version has {other.n_users} users x {other.n_items} items, this one "
            f"{model.n_users} x {model.n_items}: match their ids first"
        )
    theirs = subject.ranked(subject.rows_of(other))
    kept = overlap(subject.top, theirs)
    biased = float(rank_biased_overlap(subject.top, theirs).mean())
    turned = turned_rows(model.factors, other)
    mean = float(kept.mean())
    before, after = (
        np.bincount(side[side >= 0], minlength=model.n_items) for side in (subject.top, theirs)
    )
    gone = after - before
    rows = [
        ("user", label(model.user_labels, int(subject.users[n])), f"keeps {kept[n]:.0%}")
        for n in np.argsort(kept, kind="stable")[:_SHOWN]
    ]
    rows += [
        ("item", label(model.item_labels, int(n)), f"{gone[n]:+,d} places in top lists")
        for n in np.argsort(-np.abs(gone), kind="stable")[:_SHOWN]
        if gone[n]
    ]
    return Found(
        mean,
        f"A top {CUTOFF} keeps {mean:.1%} of its items; rank-biased overlap {biased:.3f}.",
        {
            "overlap@10": mean,
            "rank-biased overlap": biased,
            "users who keep less than half": float((kept < 0.5).mean()),
            "mean cosine of items after alignment": turned["items"],
            "mean cosine of users after alignment": turned["users"],
        },
        ("", "", "moved most"),
        rows,
    )


def rank_biased_overlap(left: TopItems, right: TopItems) -> npt.NDArray[np.float64]:
    """Return the agreement of top lists that counts early places more, from 0 to 1.

    ``(1 - p) / (1 - p^n) sum_d p^(d-1) |first d of both| / d`` over the n places, with p = 0.9
    (doi:10.1145/1852102.1852106).

    Example:
        >>> rank_biased_overlap(np.array([[1, 2]]), np.array([[1, 2]]))
        array([1.])
        >>> rank_biased_overlap(np.array([[1, 2]]), np.array([[2, 1]])).round(3)
        array([0.474])
    """
    depths = np.arange(1, left.shape[1] + 1)
    same = (left[:, :, None] == right[:, None, :]) & (left[:, :, None] >= 0)
    common = np.stack([same[:, :d, :d].sum(axis=(1, 2)) for d in depths], axis=1)
    weights = _PERSISTENCE ** (depths - 1)
    return np.asarray((common / depths) @ (weights / weights.sum()))


def turned_rows(own: Factors, other: Factors) -> dict[str, float]:
    """Return the mean cosine of the rows of two versions after the best rotation.

    Two trainings differ by a rotation that no score shows: orthogonal Procrustes over the rows of
    users and items together undoes it.
    """
    dim = max(own.dim, other.dim)
    left, right = (
        [torch.nn.functional.pad(p.detach().cpu().double(), (0, dim - p.shape[1])) for p in each]
        for each in (own, other)
    )
    first, _, last = torch.linalg.svd(left[0].T @ right[0] + left[1].T @ right[1])
    return {
        name: float(torch.nn.functional.cosine_similarity(a @ (first @ last), b, dim=1).mean())
        for name, a, b in zip(("users", "items"), left, right, strict=True)
    }


def _attacks(subject: Subject) -> None:
    if not subject.attack:
        raise Skip("left out, as asked for")


def _share(left: float, clean: float) -> float:
    if clean == 0.0:
        raise Skip("NDCG@10 is 0 already: there is nothing to lose")
    return left / clean


def _served(subject: Subject, factors: Factors, more: str = "") -> Found:
    kept = overlap(subject.top, subject.ranked(factors))
    same, mean = float((kept == 1.0).mean()), float(kept.mean())
    return Found(
        mean,
        f"{mean:.1%} of the exact top {CUTOFF} stay; {same:.0%} of the users keep all of it.{more}",
        {"users with the same set": same, "worst twentieth": float(np.quantile(kept, 0.05))},
    )


def _index(kind: str, items: npt.NDArray[np.float32]) -> Any:
    import faiss  # an extra

    index: Any
    dim = items.shape[1]
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = 64
    else:
        cells = max(1, min(4 * int(len(items) ** 0.5), len(items) // 39 or 1))
        quantizer = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFFlat(quantizer, dim, cells, faiss.METRIC_INNER_PRODUCT)
        index.train(items)
        index.nprobe = max(1, cells // 8)
    index.add(items)
    return index
