"""Checks of stability: ties, noise, attacks, another version."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf.attacks.certificates.bounds import top_radii
from robustcf.auditing.findings import Found, Skip
from robustcf.auditing.quality import ratio_error
from robustcf.auditing.subject import CUTOFF, METRIC, Subject, label
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.groups import overlap
from robustcf.metrics.topk import TopItems
from robustcf.robustness import RobustnessCurve, Threat, measure

# Certified radii are slow: fewer users, by this many scores.
FEW, LEAST, FEW_SCORES = 5_000, 500, 100_000_000
ROUNDING, NOISE = 1e-4, 0.1
CERTIFIED = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
PROMISED = 0.01
# More attack sizes of the picture, in sizes of the headline attack.
_MULTIPLES = (0.25, 0.5, 2.0)
# Weight of a place in rank-biased overlap: the first ten places have 86 % of it.
_PERSISTENCE = 0.9
_SHOWN = 10


def near_ties(subject: Subject) -> Found:
    """Count users whose first item a perturbation of the size of a rounding error replaces."""
    model = subject.model
    few = min(FEW, max(LEAST, FEW_SCORES // model.n_items))
    users, looked_at = subject.few(few, "audit ties")
    threat = Threat().on(model)
    budgets = threat.row_moves(model)
    how: dict[str, Any] = {"fixed": model.fixed, "folded": threat.folded(model, budgets, 0.0)}
    details: dict[str, float | None] = {"users": len(users)}
    radii = {}
    for k in (1, 10):
        found = top_radii(model.factors, budgets, users, subject.seen, k, **how)
        low = np.quantile(found, 0.05, method="lower")
        for name, value in (("median", np.median(found)), ("lowest twentieth, largest", low)):
            details[f"{name} radius of the top {k}"] = None if np.isinf(value) else float(value)
        radii[k] = found
    share = float((radii[1] <= ROUNDING).mean())
    return Found(
        share,
        f"The first item of {share:.1%} of the users flips under a 0.01 % perturbation; half of "
        f"the top-10 lists do not change up to {np.median(radii[10]):.2g} row lengths{looked_at}.",
        details,
    )


def noise(subject: Subject) -> Found:
    """Measure the loss under random directions."""
    _needs_pairs(subject)
    threat = Threat(knowledge="none")
    result = measure(subject.model, "random", threat, (0.0, NOISE), (CUTOFF,), seed=subject.seed)
    clean, left = (float(value) for value in result.curve[METRIC])
    return Found(
        _share(left, clean),
        f"NDCG@10 falls from {clean:.4f} to {left:.4f}.",
        {"clean": clean, "left": left, "size": NOISE},
        error=_curve_error(result.curve, 1),
    )


def attack(subject: Subject) -> Found:
    """Run the headline attack on the whole model."""
    _attacks(subject)
    model = subject.whole
    if subject.large:
        many = f"{model.n_users:,} x {model.n_items:,} scores are too many to attack in minutes"
        raise Skip(f"{many}: import the run and use robustcf attack")
    how: dict[str, Any] = {"seed": subject.seed, "progress": False, "by": ()}
    result = measure(model, "auto", None, (0.0, subject.size), (CUTOFF,), **how)
    subject.results["attack"] = result
    sizes = tuple(subject.size * multiple for multiple in _MULTIPLES)
    more = measure(model, "auto", None, sizes, (CUTOFF,), **how)
    clean, left = (float(value) for value in result.curve[METRIC])
    size = float(result.curve.epsilons[1])
    details = {"clean": clean, "joint": left, "size": size, "knowledge": result.threat.knowledge}
    details |= {"unit": result.threat.unit}
    rows = [("clean", f"{clean:.4f}"), (f"attacked at {size:g}, joint", f"{left:.4f}")]
    without = None if result.with_data is None else result.with_data.curve
    for name, words, curve in (
        ("without labels", "by an attacker without the held-out pairs", without),
        ("random", "random directions", result.control),
    ):
        if curve is not None:
            details[name] = float(curve[METRIC][1])
            rows.append((words, f"{details[name]:.4f}"))
    knows = "and the training pairs" if model.part == "train" else "and the held-out pairs"
    told = f"to {left:.4f} for an attacker who knows the embeddings {knows}"
    words = f"attacked, embeddings {knows} known"
    subject.curves.append(_curve(result.curve, words, "attack", more.curve))
    if without is not None and more.with_data is not None:
        other = "the embeddings and the training pairs alone"
        told += f", and to {details['without labels']:.4f} for one who knows {other}"
        words = "attacked, embeddings and training pairs known"
        subject.curves.append(_curve(without, words, "attack", more.with_data.curve))
    if result.control is not None:
        subject.curves.append(_curve(result.control, "random directions", "random", more.control))
    return Found(
        _share(left, clean),
        f"At size {size:g}, NDCG@10 falls from {clean:.4f} {told}.",
        details,
        ("NDCG@10", ""),
        rows,
        _curve_error(result.curve, 1),
    )


def moved(subject: Subject) -> Found:
    """Return the share of places that the headline attack gives to other items, and these items."""
    subject.found(attack)
    lists, model = subject.attacked, subject.whole
    kept = overlap(subject.top, lists)
    change = _places(subject, lists) - _places(subject, subject.top)
    rows = [
        (label(model.item_labels, n), f"{change[n]:+,d}")
        for n in np.argsort(-np.abs(change), kind="stable")[:_SHOWN].tolist()
        if change[n]
    ]
    share = float(1 - kept.mean())
    return Found(
        share,
        f"The headline attack replaces {share:.1%} of the places in the top {CUTOFF}.",
        {},
        ("moved most", "places in top lists"),
        rows,
        float(kept.std() / len(kept) ** 0.5),
    )


def certificate(subject: Subject) -> Found:
    """Certify NDCG@10 at a hundredth of each row's length."""
    _attacks(subject)
    result = measure(subject.model, "certificate", None, CERTIFIED, (CUTOFF,))
    subject.results["certificate"] = result
    subject.curves.append(_curve(result.curve, "certified lower bound", "certificate"))
    sizes = [float(size) for size in result.curve.epsilons]
    values = [float(value) for value in result.curve[METRIC]]
    left = values[sizes.index(PROMISED)]
    return Found(
        _share(left, values[0]),
        f"At size {PROMISED:g}, at least {left:.4f} of {values[0]:.4f} is certain.",
        {"sizes": sizes, "certified ndcg@10": values},
        ("size", "certified NDCG@10"),
        [(f"{size:g}", f"{value:.4f}") for size, value in zip(sizes, values, strict=True)],
        _curve_error(result.curve, sizes.index(PROMISED)),
    )


def churn(subject: Subject) -> Found:
    """Compare top lists and vectors with those of another version."""
    model, other = subject.whole, subject.against
    if other is None:
        raise Skip("there is no other version to compare with: give one with --against")
    shapes = [f"{each.n_users} users x {each.n_items} items" for each in (other, model)]
    if shapes[0] != shapes[1]:
        words = f"the other version has {shapes[0]}, this one {shapes[1]}"
        raise InputError(f"{words}: match their ids first")
    theirs = subject.ranked(subject.rows_of(other))
    subject.served["churn"] = np.arange(len(theirs)), theirs
    kept = overlap(subject.top, theirs)
    biased = float(rank_biased_overlap(subject.top, theirs).mean())
    turned = turned_rows(model.factors, other)
    mean = float(kept.mean())
    gone = _places(subject, theirs) - _places(subject, subject.top)
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
        float(kept.std() / len(kept) ** 0.5),
    )


def rank_biased_overlap(left: TopItems, right: TopItems) -> npt.NDArray[np.float64]:
    """Return the agreement of top lists that counts early places more, from 0 to 1.

    ``(1 - p) / (1 - p^n) sum_d p^(d-1) |first d of both| / d`` over the n places, with p = 0.9
    (doi:10.1145/1852102.1852106).

    Example:
        >>> rank_biased_overlap(np.array([[1, 2]]), np.array([[2, 1]])).round(3)
        array([0.474])
    """
    depths = np.arange(1, left.shape[1] + 1)
    same = (left[:, :, None] == right[:, None, :]) & (left[:, :, None] >= 0)
    common = np.stack([same[:, :d, :d].sum(axis=(1, 2)) for d in depths], axis=1)
    weights = _PERSISTENCE ** (depths - 1)
    return np.asarray((common / depths) @ (weights / weights.sum()))


def turned_rows(own: Factors, other: Factors) -> dict[str, float]:
    """Return the mean cosine of the rows of two versions after the best rotation (Procrustes)."""
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


def _needs_pairs(subject: Subject) -> None:
    _ = subject.known


def _attacks(subject: Subject) -> None:
    _needs_pairs(subject)
    if not subject.attack:
        raise Skip("left out on request")


def _places(subject: Subject, lists: TopItems) -> npt.NDArray[np.int64]:
    """Return the number of top lists that each item is in."""
    return np.bincount(lists[lists >= 0], minlength=subject.whole.n_items)


def _curve(
    curve: RobustnessCurve, name: str, kind: str, more: RobustnessCurve | None = None
) -> dict[str, object]:
    """Return a curve for the picture, with the sizes of another one between its own."""
    points = {
        float(size): float(value)
        for each in (curve, more)
        if each is not None
        for size, value in zip(each.epsilons, each[METRIC], strict=True)
    }
    sizes = sorted(points)
    values = [points[size] for size in sizes]
    return {"name": name, "kind": kind, "axis": curve.threat.axis, "sizes": sizes, METRIC: values}


def _curve_error(curve: RobustnessCurve, place: int) -> float:
    """Return the standard error of the share of a metric that is left."""
    per_user = curve.per_user[METRIC]
    return ratio_error(per_user[place], per_user[0])


def _share(left: float, clean: float) -> float:
    if clean == 0.0:
        raise Skip("NDCG@10 is 0 already: there is nothing to lose")
    return left / clean
