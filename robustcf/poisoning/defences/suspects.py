"""Which users of a data set look fake, as a table."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from robustcf._io.files import csv_bytes, write_bytes
from robustcf.data.split import Split
from robustcf.poisoning.defences.detectors import AllDetectors, union


def find_suspects(split: Split, by: Collection[str] = ()) -> dict[str, Any]:
    """Return the users who look fake and the items that they promote, ready for JSON.

    Args:
        split: the data; all pairs count.
        by: names of detectors; none for all.

    Example:
        >>> from robustcf.data import load
        >>> sorted(find_suspects(load("demo"), by=["pca"]))
        ['by', 'dataset', 'items', 'suspects', 'users']
    """
    pairs = split.train_full.union(split.test)
    found = {
        detector.name: detector.detect(pairs)
        for detector in AllDetectors().detectors
        if not by or detector.name in by
    }
    together = union(list(found.values()))
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
        "items": [_label(pairs.item_labels, item) for item in together.items.tolist()],
        "by": {key: int(each.flagged.sum()) for key, each in found.items()},
    }


def write_suspects(facts: dict[str, Any], path: str, *, raw: bool = False) -> None:
    """Write what :func:`find_suspects` found as CSV, labels that look like formulas escaped."""
    rows = [{**row, "flagged by": " ".join(row["flagged by"])} for row in facts["suspects"]]
    head = ("user", "pairs", "flagged by", *(f"{key} score" for key in facts["by"]))
    content = csv_bytes(rows, raw=raw) if rows else (",".join(head) + "\n").encode()
    write_bytes(Path(path), content)


def _label(labels: Any, place: int) -> Any:
    return place if labels is None else labels[place].item()
