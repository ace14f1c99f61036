"""Injection of fake users into training data, and files of their profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.files import csv_bytes, not_inert, read_json, write_bytes
from robustcf._io.schema import NAME, check_kind, either, list_of, record, whole
from robustcf.data.columns import Columns
from robustcf.data.formats import read_table
from robustcf.data.interactions import Interactions, Labels
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.poisoning.threat import ItemIds, invalid_profile

_FAKE = "fake"
_HEADER = b"user,item\n"
_ITEMS = list_of(either(NAME, whole()))
_PUBLISHED = record({"target_items": _ITEMS, "fake_users": record({}, others=_ITEMS)})


def inject(train: Interactions, profiles: Sequence[ItemIds]) -> Interactions:
    """Return training pairs with fake users appended: ids from ``n_users`` on, with new labels.

    A fake pair has the largest weight and the latest time of the data.

    Example:
        >>> from robustcf.data import checkerboard
        >>> train = checkerboard().train
        >>> both = inject(train, [np.array([0, 3])])
        >>> both.n_users - train.n_users, both.items_of(train.n_users).tolist()
        (1, [0, 3])
    """
    for profile in profiles:
        if (wrong := invalid_profile(np.asarray(profile), train.n_items)) is not None:
            raise InputError(f"a profile must be a list of different item ids, got {wrong}")
    fakes = np.repeat(np.arange(len(profiles)), [len(profile) for profile in profiles])
    items = np.concatenate([np.empty(0, np.int64), *profiles]).astype(np.int64)

    def longer(values: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        if values is None or len(values) == 0:
            return values
        return np.concatenate((values, np.full(len(items), values.max(), values.dtype)))

    return Interactions(
        np.concatenate((train.users, train.n_users + fakes)),
        np.concatenate((train.items, items)),
        train.n_users + len(profiles),
        train.n_items,
        user_labels=_more_labels(train.user_labels, len(profiles)),
        item_labels=train.item_labels,
        timestamps=longer(train.timestamps),
        weights=longer(train.weights),
    )


def inject_split(split: Split, profiles: Sequence[ItemIds]) -> Split:
    """Return a split with fake users in train alone."""
    return with_train(split, inject(split.train, profiles)) if len(profiles) else split


def with_train(split: Split, train: Interactions) -> Split:
    """Return the split with other training pairs, of the same users or more."""
    if train.n_users == split.n_users and train.user_labels is split.user_labels:
        return replace(split, train=train)

    def wider(pairs: Interactions) -> Interactions:
        # A new object, since the pairs of a prepared set lie in files.
        return Interactions(
            pairs.users,
            pairs.items,
            train.n_users,
            pairs.n_items,
            user_labels=train.user_labels,
            item_labels=pairs.item_labels,
            timestamps=pairs.timestamps,
            weights=pairs.weights,
        )

    return replace(split, train=train, valid=wider(split.valid), test=wider(split.test))


def _more_labels(labels: Labels | None, count: int) -> Labels | None:
    if labels is None or count == 0:
        return labels
    if labels.dtype.kind in "iu":
        kind = np.uint64 if labels.dtype == np.uint64 else np.int64
        first = int(labels.max()) + 1 if len(labels) else 0
        if first + count - 1 <= np.iinfo(kind).max:
            more = np.arange(first, first + count, dtype=kind)
        else:  # no larger integers: the smallest free ones
            more = np.setdiff1d(np.arange(len(labels) + count, dtype=kind), labels)[:count]
        return np.concatenate((labels, more))
    prefix = _FAKE
    while np.any(np.char.startswith(labels, prefix)):
        prefix += "_"
    return np.concatenate((labels, [f"{prefix}{number}" for number in range(count)]))


def write_profiles(
    path: Path, profiles: Sequence[ItemIds], train: Interactions, *, raw: bool = False
) -> None:
    """Write profiles as CSV with a line ``user,item`` per pair, items by their labels.

    :func:`read_profiles` restores them, except for empty profiles among others and labels that are
    ``nan`` or begin with a space. Formulas in labels are escaped unless ``raw`` is set.
    """
    labels = train.item_labels
    rows = [
        {"user": f"{_FAKE}{number}", "item": int(item) if labels is None else labels[item].item()}
        for number, profile in enumerate(profiles)
        for item in profile
    ]
    write_bytes(path, csv_bytes(rows, raw=raw) if rows else _HEADER)


def read_targets(path: str | Path) -> tuple[str, ...]:
    """Return the labels of the targets in a file of profiles, none if it is a table."""
    if Path(path).suffix != ".json":
        return ()
    content = read_json(Path(path))
    check_kind(Path(path), content, _PUBLISHED)
    return tuple(map(str, content["target_items"]))


def _published(path: Path) -> list[tuple[str, list[str]]]:
    """Return the accounts of a published file, ``{"target_items": [...], "fake_users": {...}}``."""
    content = read_json(path)
    check_kind(path, content, _PUBLISHED)
    return [(name, [str(item) for item in held]) for name, held in content["fake_users"].items()]


def read_profiles(path: str | Path, train: Interactions) -> tuple[ItemIds, ...]:
    """Return the profiles of a file, in its order.

    A table is that of :func:`write_profiles`. JSON is ``{"target_items": [...], "fake_users":
    {name: [items]}}``, as published with PamaCF (NeurIPS 2024, arXiv:2410.22844); its accounts may
    name an item several times. Items are named by the labels of ``train``, or by id if it has none.

    Raises:
        DataError: a table lacks the columns ``user`` and ``item``.
        InputError: JSON of another form, an item is unknown, or a row of a table is repeated.

    Example:
        >>> import tempfile
        >>> from robustcf.data import checkerboard
        >>> train = checkerboard().train
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_profiles(Path(folder) / "a.csv", [np.array([1, 2])], train)
        ...     [profile.tolist() for profile in read_profiles(Path(folder) / "a.csv", train)]
        [[1, 2]]
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size == len(_HEADER) and path.read_bytes() == _HEADER:
        return ()
    accounts = _published(path) if path.suffix == ".json" else None
    if accounts is None:
        table = read_table(path, Columns(user="user", item="item"))
        names = table.items.labels.astype(str).tolist()
    else:
        names = sorted({item for _, held in accounts for item in held})
    labels = np.arange(train.n_items) if train.item_labels is None else train.item_labels
    known = {label: item for item, label in enumerate(labels.astype(str).tolist())}
    # Escaped by write_profiles, or as they are.
    ids = [known.get(not_inert(name), known.get(name)) for name in names]
    if None in ids:
        unknown = str(names[ids.index(None)])[:60]
        raise InputError(f"{path}: profiles must have items of this data set, got {unknown!r}")
    if accounts is not None:
        found = dict(zip(names, ids, strict=True))
        return tuple(np.unique([found[item] for item in held]) for _, held in accounts if held)
    items = np.array(ids, dtype=np.int64)[table.items.codes]
    codes = table.users.codes
    rows = np.argsort(codes, kind="stable")
    each = np.split(rows, np.flatnonzero(np.diff(codes[rows])) + 1)
    profiles = []
    # In the order of the file: as labels, fake10 sorts before fake2.
    for mine in sorted(each, key=lambda rows: int(rows[0])):
        profile = np.sort(items[mine])
        if np.any(profile[1:] == profile[:-1]):
            label = str(table.users.labels[codes[mine[0]]])[:60]
            raise InputError(f"{path}: the fake user {label!r} has an item twice: leave one out")
        profiles.append(profile)
    return tuple(profiles)
