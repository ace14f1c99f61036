"""A table of the users of a data set who look fake."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._io.files import csv_bytes, write_bytes
from robustcf.data.split import Split
from robustcf.poisoning.defences.detectors import AllDetectors, beyond_chance, union


def find_suspects(split: Split, by: Collection[str] = ()) -> dict[str, Any]:
    """Return the users who look fake by the named detectors (all by default), ready for JSON.

    The items that they promote are included: those that the detectors name, or else those that
    more suspects hold than popularity explains. Pairs of all splits are used.

    Example:
        >>> from robustcf.data import load
        >>> sorted(find_suspects(load("demo"), by=["pca"]))
        ['by', 'dataset', 'held by', 'items', 'suspects', 'users']
    """
    pairs = split.train_full.union(split.test)
    found = {
        detector.name: detector.detect(pairs)
        for detector in AllDetectors().detectors
        if not by or detector.name in by
    }
    together = union(list(found.values()))
    items, held = together.items, pairs.csr()[together.flagged]
    if len(items) == 0 and held.nnz:
        items = beyond_chance(held, pairs.item_degrees)
    holders = np.asarray(held[:, items].sum(axis=0)).ravel().astype(int)
    order = np.argsort(-holders / np.maximum(pairs.item_degrees[items], 1), kind="stable")
    suspects = [
        {
            "user": _label(pairs.user_labels, user),
            "pairs": int(pairs.user_degrees[user]),
            "flagged by": [key for key, each in found.items() if each.flagged[user]],
            **{f"{key} score": round(float(each.scores[user]), 4) for key, each in found.items()},
        }
        for user in together.flagged.nonzero()[0].tolist()
    ]
    return {
        "dataset": split.name,
        "users": pairs.n_users,
        "suspects": suspects,
        "items": [_label(pairs.item_labels, item) for item in items[order].tolist()],
        "held by": [
            {"suspects": int(holders[n]), "users": int(pairs.item_degrees[items[n]])} for n in order
        ],
        "by": {key: int(each.flagged.sum()) for key, each in found.items()},
    }


def write_suspects(facts: dict[str, Any], path: str, *, raw: bool = False) -> None:
    """Write the suspects of :func:`find_suspects` as CSV, with formulas in labels escaped."""
    rows = [{**row, "flagged by": " ".join(row["flagged by"])} for row in facts["suspects"]]
    head = ("user", "pairs", "flagged by", *(f"{key} score" for key in facts["by"]))
    content = csv_bytes(rows, raw=raw) if rows else (",".join(head) + "\n").encode()
    write_bytes(Path(path), content)


def _label(labels: Any, place: int) -> Any:
    return place if labels is None else labels[place].item()
