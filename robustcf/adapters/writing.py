"""``import_run``: imported factors and interactions in, a run directory out."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from robustcf.adapters.base import Imported
from robustcf.adapters.matching import fit_on_of, match
from robustcf.adapters.smelling import smell
from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.factors import Factors

if TYPE_CHECKING:
    from robustcf.runs import RunDir


def import_run(
    imported: Imported,
    interactions: Any,
    out: str | Path,
    *,
    test: Any = None,
    force: bool = False,
    label: str | None = None,
    progress: bool = False,
    **matching: Any,
) -> RunDir:
    """A run directory of factors from elsewhere: for ``robustcf attack``, ``certify`` and others.

    Rows are put in the order of their labels, as everywhere else in robustcf, so that imports of
    one data set from several libraries can be compared; with a whole split as interactions, in the
    order of that split, so that they compare with runs that were trained on it.

    Args:
        imported: the factors.
        interactions: the pairs they were fit on, see :func:`robustcf.adapters.match`.
        out: the directory; it must not exist yet, or be empty.
        test: held-out pairs to judge by; without, they are judged by what they were fit on.
        force: whether to import factors that fail the smell test too.
        label: what to call it in tables and pictures; None for its source.
        progress: whether the evaluation shows a bar.
        **matching: other options of :func:`robustcf.adapters.match`.

    Raises:
        DataError: ids or counts that do not fit; factors that know nothing of the pairs.
        InputError: there is something at ``out`` already.

    Example:
        >>> import tempfile
        >>> from robustcf.data import checkerboard
        >>> parity, split = np.eye(2)[np.arange(30) % 2], checkerboard()
        >>> mine = Imported(Factors.of(parity[:20], parity), "arrays", "parity")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = import_run(mine, split.train, Path(folder) / "run", test=split.test)
        ...     run.metrics()["test"]["hit_rate@10"]
        1.0
    """
    from robustcf.runs.imported import write_imported

    called = imported.source if label is None else label
    if not called.strip() or not called.isprintable():
        raise InputError(f"a label must be text on one line, got {called!r}")
    split, notes = match(imported, interactions, test, **matching)
    found = smell(imported, split.train)
    if not force:
        found.require()
    said = [*imported.notes, *notes, str(found)]
    if not found.good:
        said.append(f"imported by force although {found.reason}")
    if not len(split.test):
        said.append("no test pairs: judged by the pairs it was fit on")
    factors, split = in_label_order(imported.factors, split)
    if isinstance(interactions, Split) and _same_rows(interactions, split):
        # As whoever else has this split: their runs compare.
        factors = in_rows_of(interactions, factors, split)
        split = dataclasses.replace(interactions, name=split.name)
    facts = {
        "format": imported.format,
        "source": imported.source,
        "sha256": _digest(factors),
        "notes": said,
    }
    return write_imported(
        out,
        factors,
        split,
        label=called,
        fixed=imported.fixed,
        fit_on=fit_on_of(split, matching.get("with_valid")),
        facts=facts,
        progress=progress,
    )


def in_label_order(factors: Factors, split: Split) -> tuple[Factors, Split]:
    """Factors and pairs with rows in the order of their labels; without labels as they are.

    Example:
        >>> pairs = Interactions.from_pairs([0], [1], 1, 2, item_labels=np.array(["b", "a"]))[0]
        >>> none = pairs.take(np.array([False]))
        >>> factors = Factors.of([[1.0]], [[10.0], [20.0]])
        >>> ordered, split = in_label_order(factors, Split("x", pairs, none, none))
        >>> ordered.items.tolist(), split.train.items.tolist()
        ([[20.0], [10.0]], [0])
    """
    sides = {}
    for kind, labels in (("user", split.user_labels), ("item", split.item_labels)):
        count = split.n_users if kind == "user" else split.n_items
        order = np.arange(count) if labels is None else np.argsort(labels, kind="stable")
        place = np.empty(count, dtype=np.int64)
        place[order] = np.arange(count)
        sides[kind] = (order, place, None if labels is None else labels[order])
    if all(np.array_equal(order, np.arange(len(order))) for order, _, _ in sides.values()):
        return factors, split

    def moved(pairs: Interactions) -> Interactions:
        return Interactions(
            sides["user"][1][pairs.users],
            sides["item"][1][pairs.items],
            pairs.n_users,
            pairs.n_items,
            user_labels=sides["user"][2],
            item_labels=sides["item"][2],
        )

    train, valid, test = (moved(part) for part in (split.train, split.valid, split.test))
    ordered = Factors(
        factors.users[torch.from_numpy(sides["user"][0])],
        factors.items[torch.from_numpy(sides["item"][0])],
    )
    return ordered, dataclasses.replace(split, train=train, valid=valid, test=test)


def in_rows_of(split: Split, factors: Factors, own: Split) -> Factors:
    """Factors of another version with their rows in the order of a split, by labels.

    Args:
        split: the order that is wanted.
        factors: rows as in ``own``.
        own: says what these rows are called. Where either has no labels, rows stay as they are.

    Raises:
        InputError: as many users or items, but others.

    Example:
        >>> pairs = Interactions.from_pairs([0], [1], 1, 2, item_labels=np.array(["b", "a"]))[0]
        >>> other = Interactions.from_pairs([0], [1], 1, 2, item_labels=np.array(["a", "b"]))[0]
        >>> one, two = (Split("x", p, *[p.take(np.array([False]))] * 2) for p in (pairs, other))
        >>> in_rows_of(one, Factors.of([[1.0]], [[10.0], [20.0]]), two).items.tolist()
        [[20.0], [10.0]]
    """
    parts = []
    for kind, part in zip(("user", "item"), factors, strict=True):
        wanted, labels = (getattr(each, f"{kind}_labels") for each in (split, own))
        if wanted is None or labels is None or len(wanted) != len(labels):
            parts.append(part)  # other counts are said by who compares
            continue
        place = {label: row for row, label in enumerate(labels.astype(str).tolist())}
        rows = [place.get(label, -1) for label in wanted.astype(str).tolist()]
        if -1 in rows:
            raise InputError(
                f"the other version has no {kind} {str(wanted[rows.index(-1)])!r}: versions of the "
                f"same {kind}s can be compared"
            )
        parts.append(part[torch.tensor(rows)])
    return Factors(*parts)


def _same_rows(given: Split, ordered: Split) -> bool:
    """Whether users and items of a split are those of another, whose rows are in label order."""
    for kind in ("user", "item"):
        own, theirs = (getattr(split, f"{kind}_labels") for split in (given, ordered))
        count = getattr(given, f"n_{kind}s")
        if count != getattr(ordered, f"n_{kind}s"):
            return False
        if theirs is not None:
            mine = np.arange(count) if own is None else np.sort(own)
            if not np.array_equal(mine, theirs):
                return False
    return True


def _digest(factors: Factors) -> str:
    digest = hashlib.sha256()
    for part in factors:
        digest.update(part.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
