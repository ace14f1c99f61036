"""Checks of stability and of attacks: near-ties, noise, the strongest attack, the certificate."""

from __future__ import annotations

import numpy as np

from robustcf.attacks.certificates.bounds import top_radii
from robustcf.auditing.outcome import Found, Skip
from robustcf.auditing.subject import FEW, FEW_SCORES, LEAST, MOST_SCORES, Subject
from robustcf.robustness import Threat, measure
from robustcf.robustness.measuring import Result

METRIC = "ndcg@10"
ROUNDING = 1e-4
NOISE = 0.1
SIZE = 0.05
CERTIFIED = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
PROMISED = 0.01


def near_ties(subject: Subject) -> Found:
    """Who has a first item that a perturbation of the size of a rounding error replaces."""
    model = subject.model
    few = min(FEW, max(LEAST, FEW_SCORES // model.factors.n_items))
    users = subject.few(few, "audit ties")
    budgets = Threat().row_budgets(model)
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
        f"all top 10 hold up to {middle:.2g} median row lengths{subject.out_of(users)}.",
        {"users": len(users), **details},
    )


def noise(subject: Subject) -> Found:
    """What random directions take."""
    result = measure(
        subject.model, "random", Threat(knowledge="none"), (0.0, NOISE), (10,), seed=subject.seed
    )
    clean, left = (float(value) for value in result.curve[METRIC])
    return Found(
        _share(left, clean),
        f"NDCG@10 falls from {clean:.4f} to {left:.4f}.",
        {"clean": clean, "left": left, "size": NOISE},
    )


def attacked(subject: Subject, size: float, progress: bool = False) -> Result:
    """The headline attack on the whole model.

    Raises:
        Skip: it is too large to be attacked in minutes.
    """
    factors = subject.whole.factors
    if factors.n_users * factors.n_items > MOST_SCORES:
        raise Skip(
            f"{factors.n_users:,} x {factors.n_items:,} scores are too many to attack in minutes: "
            "import the run and use robustcf attack"
        )
    return measure(
        subject.whole, "auto", None, (0.0, size), (10,), seed=subject.seed, progress=progress
    )


def under_attack(result: Result) -> Found:
    """What the headline attack leaves."""
    clean, left = (float(value) for value in result.curve[METRIC])
    size = float(result.curve.epsilons[1])
    details = {"clean": clean, "joint": left, "size": size, "knowledge": result.threat.knowledge}
    rows = [("clean", f"{clean:.4f}"), (f"attacked at {size:g}, joint", f"{left:.4f}")]
    if result.per_user is not None:
        details["per user"] = float(result.per_user[METRIC][1])
        rows.append(("each user's worst over all attacks", f"{details['per user']:.4f}"))
    if result.with_data is not None:
        details["without labels"] = float(result.with_data.curve[METRIC][1])
        rows.append(("by somebody without the labels", f"{details['without labels']:.4f}"))
    if result.control is not None:
        details["random"] = float(result.control[METRIC][1])
        rows.append(("random directions", f"{details['random']:.4f}"))
    return Found(
        _share(left, clean),
        f"At size {size:g}, NDCG@10 falls from {clean:.4f} to {left:.4f}.",
        details,
        ("NDCG@10", ""),
        rows,
    )


def certified(subject: Subject) -> Result:
    """Certified lower bounds at several sizes."""
    return measure(subject.model, "certificate", None, CERTIFIED, (10,))


def certificate(result: Result) -> Found:
    """What is certified at a hundredth of the median row length."""
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


def _share(left: float, clean: float) -> float:
    if clean == 0.0:
        raise Skip("NDCG@10 is 0 already: there is nothing to lose")
    return left / clean
