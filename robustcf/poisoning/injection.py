"""Fake users put into training data, and their profiles as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.files import csv_bytes, not_inert, write_bytes
from robustcf.data.columns import Columns
from robustcf.data.formats import read_table
from robustcf.data.interactions import Interactions, Labels
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.poisoning.threat import ItemIds

_FAKE = "fake"
# A file of no profiles.
_HEADER = b"user,item\n"


def inject(train: Interactions, profiles: Sequence[ItemIds]) -> Interactions:
    """Return training pairs with fake users behind the genuine ones: ids from ``n_users`` on.

    A fake pair has the largest weight and the latest time of the data; labels of fakes are new.

    Example:
        >>> from robustcf.data import checkerboard
        >>> train = checkerboard().train
        >>> both = inject(train, [np.array([0, 3])])
        >>> both.n_users - train.n_users, both.items_of(train.n_users).tolist()
        (1, [0, 3])
    """
    for profile in profiles:
        ids = np.asarray(profile)
        valid = ids.ndim == 1 and ids.dtype.kind in "iu"
        if not valid or (len(ids) and not 0 <= ids.min() <= ids.max() < train.n_items):
            raise InputError(f"a profile must be a list of item ids in [0, {train.n_items})")
        if len(np.unique(ids)) != len(ids):
            raise InputError("a profile must have each item once")
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
    """Return a split with fake users in train; valid and test stay the genuine users'."""
    return with_train(split, inject(split.train, profiles)) if len(profiles) else split


def with_train(split: Split, train: Interactions) -> Split:
    """Return the split with other training pairs, of the same users or more."""
    if train.n_users == split.n_users and train.user_labels is split.user_labels:
        return replace(split, train=train)

    def wider(pairs: Interactions) -> Interactions:
        # Made anew: the pairs of a prepared set lie in files, and take no other number of users.
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
        else:  # none above: the smallest that nobody has
            more = np.setdiff1d(np.arange(len(labels) + count, dtype=kind), labels)[:count]
        return np.concatenate((labels, more))
    prefix = _FAKE
    while np.any(np.char.startswith(labels, prefix)):
        prefix += "_"
    return np.concatenate((labels, [f"{prefix}{number}" for number in range(count)]))


def write_profiles(
    path: Path, profiles: Sequence[ItemIds], train: Interactions, *, raw: bool = False
) -> None:
    """Write profiles as CSV, one line for each pair: ``user,item``, items by their labels.

    :func:`read_profiles` gives them back, but for what a table cannot hold: an empty profile among
    others, and items whose label is ``nan`` or begins with a space. A label that a spreadsheet
    would run as a formula gets an apostrophe in front, unless ``raw`` is set.
    """
    labels = train.item_labels
    rows = [
        {"user": f"{_FAKE}{number}", "item": int(item) if labels is None else labels[item].item()}
        for number, profile in enumerate(profiles)
        for item in profile
    ]
    write_bytes(path, csv_bytes(rows, raw=raw) if rows else _HEADER)


def read_profiles(path: str | Path, train: Interactions) -> tuple[ItemIds, ...]:
    """Profiles from a table with the columns ``user`` and ``item``: see :func:`write_profiles`.

    They come in the order of the file; a header alone is no profiles. Items go by the labels of
    ``train``, or by id where it has none.

    Raises:
        DataError: it is not such a table.
        InputError: an item is unknown, or a fake user has one twice.

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
    table = read_table(path, Columns(user="user", item="item"))
    names = table.items.labels.astype(str)
    labels = np.arange(train.n_items) if train.item_labels is None else train.item_labels
    known = {label: item for item, label in enumerate(labels.astype(str).tolist())}
    # As write_profiles writes them; a file from elsewhere may have them as they are.
    ids = [known.get(not_inert(name), known.get(name)) for name in names.tolist()]
    if None in ids:
        raise InputError(
            f"{path}: there is no item {str(names[ids.index(None)])[:60]!r} in the data: profiles "
            "must be of this data set's items"
        )
    items = np.array(ids, dtype=np.int64)[table.items.codes]
    codes = table.users.codes
    rows = np.argsort(codes, kind="stable")
    each = np.split(rows, np.flatnonzero(np.diff(codes[rows])) + 1)
    profiles = []
    # In the order of the file, which is not that of the labels: fake10 sorts before fake2.
    for mine in sorted(each, key=lambda rows: int(rows[0])):
        profile = np.sort(items[mine])
        if np.any(profile[1:] == profile[:-1]):
            label = str(table.users.labels[codes[mine[0]]])[:60]
            raise InputError(f"{path}: the fake user {label!r} has an item twice: leave one out")
        profiles.append(profile)
    return tuple(profiles)
