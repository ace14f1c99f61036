"""Checks of who loses: quality, attack, certificate, serving and churn by group."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf.auditing import stability
from robustcf.auditing.findings import Found, Skip
from robustcf.auditing.subject import CUTOFF, METRIC, Ids, Subject
from robustcf.metrics.evaluate import MetricReport
from robustcf.metrics.groups import (
    Estimate,
    Groups,
    average_popularity,
    calibration,
    exposure,
    gini,
    overlap,
    shares,
)
from robustcf.metrics.topk import TopItems
from robustcf.robustness import measure

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: One measure: words, and users with their values.
Measured = tuple[str, Ids, Values]
# Certificates of groups of items take one run each.
_CERTIFIED = 6


def user_groups(subject: Subject) -> Found:
    """Compare NDCG@10 of groups of users with that of all."""
    clean = _clean(subject)
    parts = _parts(subject, "user")
    measured = [("NDCG@10", clean.users, clean.per_user[METRIC]), *_curves(subject)]
    for words, queries, lists in _lists(subject):
        measured.append((words, queries, overlap(subject.top[queries], lists)))
    rows, ratios = [], {}
    for partition in parts:
        for name, members in partition:
            kept = [values[members[users]] for _, users, values in measured]
            rows.append(_row(partition, name, members, measured, map(Estimate.of, kept)))
            if len(kept[0]) and clean[METRIC]:
                ratios[name] = float(kept[0].mean()) / clean[METRIC], kept[0]
    return _found(subject, rows, ratios, "NDCG@10", clean[METRIC])


def item_groups(subject: Subject) -> Found:
    """Compare the exposure of groups of items with their share of the training pairs."""
    known, whole = subject.known, subject.whole
    parts = _parts(subject, "item")
    shown, degrees = exposure(subject.top, whole.n_items), known.item_degrees
    if not shown.any():
        raise Skip("no user has an item left to recommend")
    rows, ratios, clean = [], {}, _clean(subject)
    for partition in parts:
        given, taken = shares(shown, partition), shares(degrees, partition)
        quality_of = subject.model.by_items([partition], (CUTOFF,))
        attacked = {}
        if "attack" in subject.results:
            factors = subject.results["attack"].curve.attacked[-1]
            attacked = whole.by_items([partition], (CUTOFF,), factors)
        for name, members in partition:
            measured = [
                (words, *found[name][METRIC])
                for words, found in (("NDCG@10", quality_of), ("attacked", attacked))
                if METRIC in found.get(name, {})
            ]
            certified = _certified(subject, partition, members) if measured else None
            measured += [("certified", *certified)] if certified else []
            for words, queries, lists in _lists(subject):
                kept = _kept_places(subject.top[queries], lists, members)
                measured.append((words, queries[np.isfinite(kept)], kept[np.isfinite(kept)]))
            estimates = (Estimate.of(values) for _, _, values in measured)
            row = _row(partition, name, members, measured, estimates)
            row |= {"share of pairs": taken[name], "share of exposure": given[name]}
            rows.append(row)
            if taken[name]:
                ratios[name] = given[name] / taken[name], np.zeros(0)
    popularity = Groups.made("popularity", known)[0]
    users = subject.users
    spread = calibration(subject.top, users, known, popularity)
    details = {
        "gini of exposure": gini(shown),
        "gini of training pairs": gini(degrees),
        "average recommendation popularity": average_popularity(subject.top, degrees),
        "average popularity of training pairs": float((degrees**2).sum() / max(1, degrees.sum())),
        "calibration (divergence of popularity groups)": Estimate.of(spread).value,
    }
    found = _found(subject, rows, ratios, "share of exposure over share of pairs", clean[METRIC])
    told = (
        f" The Gini coefficient of exposure is {details['gini of exposure']:.2f}, that of the "
        f"training pairs {details['gini of training pairs']:.2f}."
    )
    return dataclasses.replace(
        found, sentence=found.sentence + told, details={**found.details, **details}
    )


def _clean(subject: Subject) -> MetricReport:
    _ = subject.known
    return subject.clean


def _parts(subject: Subject, kind: str) -> list[Groups]:
    found = [part for part in subject.groups if part.kind == kind]
    if not found:
        raise Skip(f"there are no groups of {kind}s")
    return [part.taken(subject.users) for part in found] if kind == "user" else found


def _curves(subject: Subject) -> Iterator[Measured]:
    """Yield values per user under the attack and of the certificate, for the ranked users."""
    for name, check in (("attack", stability.attack), ("certificate", stability.certificate)):
        try:
            subject.found(check)
        except Skip:
            continue
        curve = subject.results[name].curve
        place = curve.epsilons.index(stability.PROMISED) if name == "certificate" else -1
        words = "attacked" if name == "attack" else "certified"
        yield words, curve.users, curve.per_user[METRIC][place]


def _lists(subject: Subject) -> Iterator[tuple[str, Ids, TopItems]]:
    """Yield the lists of each way of serving that is asked for, and of the other version."""
    if subject.against is not None:
        subject.found(stability.churn)
    for name in (*(way for way in subject.serve if way != "exact"), "churn"):
        if name in subject.served:
            words = "kept from the other version" if name == "churn" else f"kept as {name}"
            yield words, *subject.served[name]


def _certified(subject: Subject, partition: Groups, members: Mask) -> tuple[Ids, Values] | None:
    """Return certified NDCG@10 that counts the items of one group alone."""
    some = subject.model.judging_items(members)
    if not subject.attack or some is None or len(partition.names) > _CERTIFIED:
        return None
    curve = measure(some, "certificate", None, (0.0, stability.PROMISED), (CUTOFF,)).curve
    return curve.users, curve.per_user[METRIC][1]


def _kept_places(exact: TopItems, lists: TopItems, members: Mask) -> Values:
    """Return per user the share of the places of some items that stays; NaN without places."""
    own = (exact >= 0) & members[exact]
    kept = (exact[:, :, None] == lists[:, None, :]).any(axis=2) & own
    with np.errstate(invalid="ignore"):
        return np.asarray(kept.sum(axis=1) / own.sum(axis=1))


def _row(
    partition: Groups,
    name: str,
    members: Mask,
    measured: list[Measured],
    estimates: Iterable[Estimate],
) -> dict[str, Any]:
    found = dict(zip((words for words, *_ in measured), estimates, strict=True))
    told = {words: estimate._asdict() for words, estimate in found.items()}
    return {"by": partition.by, "group": name, "size": int(members.sum()), "measures": told}


def _found(
    subject: Subject,
    rows: list[dict[str, Any]],
    ratios: dict[str, tuple[float, Values]],
    what: str,
    clean: float,
) -> Found:
    """Return the finding: the worst group over all, and a table."""
    if not ratios:
        raise Skip("no group has users to judge by")
    worst = min(ratios, key=lambda name: ratios[name][0])
    number, values = ratios[worst]
    error = float(values.std() / clean / len(values) ** 0.5) if len(values) and clean else 0.0
    names = list(dict.fromkeys(key for row in rows for key in row["measures"]))
    more = [key for key in ("share of pairs", "share of exposure") if key in rows[0]]
    table = [
        [
            *(row["by"], row["group"], f"{row['size']:,}"),
            *(f"{row[key]:.1%}" for key in more),
            *(str(Estimate(**row["measures"][n])) if n in row["measures"] else "-" for n in names),
        ]
        for row in rows
    ]
    others = []
    for name in names[1:]:
        told = [(_left(row["measures"], name, names[0]), row["group"]) for row in rows]
        known = [(left, group) for left, group in told if left is not None]
        if known:
            left, group = min(known)
            others.append(f"{name}: {group} keeps {left:.0%}")
    of_all = " times that of all users" if what == "NDCG@10" else ""
    sentence = f"The worst group is {worst}: {what} is {number:.2f}{of_all}."
    if others:
        sentence += f" Least is left, {'; '.join(others)}."
    return Found(
        number,
        sentence,
        {"worst": worst, "groups": rows},
        ("by", "group", "members", *more, *names),
        table,
        error,
    )


def _left(measures: dict[str, dict[str, Any]], name: str, clean: str) -> float | None:
    """Return the share that a measure leaves: of clean quality, or of a list."""
    value, whole = (measures.get(key, {}).get("value") for key in (name, clean))
    if value is None or name.startswith("kept"):
        return value
    return float(value / whole) if whole else None
