"""Rows in one order: by their labels, or as another recommender has them."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import FactorScorer, Recommender


def ordered(model: Recommender, like: Split | None = None) -> Recommender:
    """Return a recommender with rows in the order of labels, or of a split with the same rows.

    Recommenders of one data set from several libraries then have the same ids. Rows without labels
    stay as they are.
    """
    factors, split = in_label_order(model.factors, model.split)
    if like is not None and _same_rows(like, split):
        factors = in_rows_of(like, factors, split)
        split = dataclasses.replace(like, name=split.name)
    if split is model.split:
        return model
    return Recommender.of(
        FactorScorer(factors, model.fixed, model.fold_in),
        split,
        part=model.part,
        mask=model.mask,
        fit_on=model.fit_on,
        label=model.label,
        training=model.training,
    )


def in_label_order(factors: Factors, split: Split) -> tuple[Factors, Split]:
    """Return factors and pairs with rows in the order of their labels, where they have labels."""
    both = {"user_labels": split.user_labels, "item_labels": split.item_labels}
    orders = [
        np.arange(count) if labels is None else np.argsort(labels, kind="stable")
        for labels, count in zip(both.values(), (split.n_users, split.n_items), strict=True)
    ]
    if all(np.array_equal(order, np.arange(len(order))) for order in orders):
        return factors, split
    places = [np.argsort(order) for order in orders]
    named = {
        name: None if labels is None else labels[order]
        for (name, labels), order in zip(both.items(), orders, strict=True)
    }
    train, valid, test = (
        Interactions(
            places[0][part.users], places[1][part.items], split.n_users, split.n_items, **named
        )
        for part in (split.train, split.valid, split.test)
    )
    rows = (torch.from_numpy(order) for order in orders)
    moved = Factors(*(part[own] for part, own in zip(factors, rows, strict=True)))
    return moved, dataclasses.replace(split, train=train, valid=valid, test=test)


def in_rows_of(split: Split, factors: Factors, own: Split) -> Factors:
    """Return factors with rows as in ``own`` in the order of a split, by labels.

    Where either has no labels, rows stay as they are; an InputError where labels differ.
    """
    parts = []
    for kind, part in zip(("user", "item"), factors, strict=True):
        wanted, labels = (getattr(each, f"{kind}_labels") for each in (split, own))
        if wanted is None or labels is None or len(wanted) != len(labels):
            parts.append(part)  # a comparison refuses other counts
            continue
        place = {label: row for row, label in enumerate(labels.astype(str).tolist())}
        rows = [place.get(label, -1) for label in wanted.astype(str).tolist()]
        if -1 in rows:
            missing = str(wanted[rows.index(-1)])
            raise InputError(
                f"the other version has no {kind} {missing!r}: expected the same {kind}s"
            )
        parts.append(part[torch.tensor(rows)])
    return Factors(*parts)


def _same_rows(given: Split, own: Split) -> bool:
    """Return whether two splits have the same users and items, in any order of their rows."""
    for kind in ("user", "item"):
        mine, theirs = (getattr(split, f"{kind}_labels") for split in (own, given))
        count = getattr(given, f"n_{kind}s")
        if count != getattr(own, f"n_{kind}s"):
            return False
        if mine is not None:  # in order, see in_label_order
            wanted = np.arange(count) if theirs is None else np.sort(theirs)
            if not np.array_equal(mine, wanted):
                return False
    return True
