"""``match``: which row of the factors is which user and which item of the interactions.

Ids are never guessed. Where the factors say what their rows are called, ids are matched by that
name. Where they do not, the ids are row numbers, unless the caller says how rows were numbered.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice
from robustcf._io.reading import check_sparse
from robustcf._io.sandbox import read_apart
from robustcf.data.columns import Columns
from robustcf.data.formats import read_table
from robustcf.data.interactions import Interactions, Labels
from robustcf.data.memory import is_table, tables_of
from robustcf.data.split import Split
from robustcf.data.tables import Table, to_interactions
from robustcf.errors import DataError, InputError

#: How rows without labels were numbered.
ROWS = ("number", "sorted", "appearance")

_Ids = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """The rows of factors: how many there are, and what they are called."""

    n_users: int
    n_items: int
    user_labels: Labels | None = None
    item_labels: Labels | None = None


class Matched(NamedTuple):
    """Interactions with the ids of the factors' rows, and what is to be said about it."""

    split: Split
    notes: tuple[str, ...]


def match(
    factors: Rows,
    interactions: Any,
    test: Any = None,
    *,
    rows: str = "number",
    drop_unknown: bool = False,
    user_col: str | None = None,
    item_col: str | None = None,
    rating_col: str | None = None,
    time_col: str | None = None,
    min_rating: float | None = None,
    name: str | None = None,
    with_valid: bool | None = None,
) -> Matched:
    """Return interactions as pairs of rows of factors, whose catalogue counts.

    Args:
        factors: the rows of the factors.
        interactions: the pairs that they were fit on: a table in memory or a file that
            :func:`robustcf.data.load` takes, a scipy ``.npz``, a users x items matrix, an
            :class:`robustcf.data.Interactions`; or a whole :class:`robustcf.data.Split`.
        test: held-out pairs in the same form, or None.
        rows: what row n is where factors have no labels: the id n (``number``), or the n-th id,
            ``sorted`` or by first ``appearance``. That is how pandas categories and numpy's unique,
            and pandas factorize, number ids.
        drop_unknown: leave out pairs of users and items that the factors do not have.
        user_col: the column with the user, by name or number.
        item_col: the column with the item.
        rating_col: the column with the rating.
        time_col: the column with the time.
        min_rating: keep only pairs rated at least this.
        name: of the data; None for the name of the file.
        with_valid: whether the validation pairs of a split were fit on too; None for
            :func:`fit_on_of`.

    Raises:
        DataError: ids that the factors do not have, or counts that do not fit.

    Cost: that of reading, and a sort of the ids.

    Example:
        >>> rows = Rows(2, 3, item_labels=np.array(["a", "b", "c"]))
        >>> match(rows, np.array([[1, 0, 0], [0, 1, 1]])).notes
        ('users: no labels, the ids are row numbers', 'items: ids are row numbers')
    """
    check_choice("rows", rows, ROWS)
    columns = Columns(user_col, item_col, rating_col, time_col)
    whole = interactions if isinstance(interactions, Split) else None
    if whole is None:
        given = [interactions] if test is None else [interactions, test]
    elif test is None:
        given = _parts_of(whole, factors)
    else:
        raise InputError(
            f"{whole.name} has test pairs of its own: leave test (--test) out, or give the pairs "
            "that the factors were fit on as a file too"
        )
    if with_valid is not None and whole is None:
        raise InputError("with_valid (--with-valid) is for a data set that has validation pairs")
    found, notes, tables = _pairs(given, columns, min_rating)
    counts = {"user": factors.n_users, "item": factors.n_items}
    sides = {
        kind: _side(kind, getattr(factors, f"{kind}_labels"), count, found[0], rows, tables)
        for kind, count in counts.items()
    }
    parts, dropped = _renumbered(found, sides, factors, drop_unknown)
    notes += [f"{kind}s: {side.note}" for kind, side in sides.items()]
    if dropped:
        notes.append(f"{dropped:,} pairs of users or items that the factors do not have: left out")
    if whole is not None:
        train, valid, held = parts
        named = dataclasses.replace(
            whole, name=name or whole.name, train=train, valid=valid, test=held
        )
        return Matched(named, (*notes, _about_parts(named, with_valid)))
    title = name or (Path(interactions).name if _is_path(interactions) else "own data")
    none = parts[0].take(np.zeros(len(parts[0]), dtype=bool))
    held = parts[1] if test is not None else none
    if test is not None and len(held) == 0:
        raise DataError("test has no pairs to judge by: give some, or leave it out")
    return Matched(Split(title, parts[0], none, held, valid_source="none"), tuple(notes))


def fit_on_of(split: Split, with_valid: bool | None = None) -> str:
    """Return the parts of a split that factors from elsewhere are taken to be fit on.

    ``train`` where validation pairs were published apart. Those that were drawn here are in the
    training file of others: then it is ``train and valid``. ``with_valid`` overrides this rule.

    Example:
        >>> from robustcf.data import load
        >>> fit_on_of(load("demo")), fit_on_of(load("demo"), with_valid=False)
        ('train and valid', 'train')
    """
    drawn = split.valid_source != "published" if with_valid is None else with_valid
    return "train and valid" if drawn and len(split.valid) else "train"


def _about_parts(split: Split, with_valid: bool | None) -> str:
    both = fit_on_of(split, with_valid) != "train"
    pairs = len(split.train) + (len(split.valid) if both else 0)
    words = "its training and validation pairs" if both else "its training pairs"
    if not both and len(split.valid):
        words += ", not the validation pairs"
    judged = f", judged by its {len(split.test):,} test pairs" if len(split.test) else ""
    return f"{split.name}: taken as fit on {words} ({pairs:,}){judged}"


def _parts_of(split: Split, factors: Rows) -> list[Interactions]:
    """Return the parts of a split; with labels where the factors have some to be matched by."""
    labels = {"user_labels": split.user_labels, "item_labels": split.item_labels}
    for name, count in (("user_labels", split.n_users), ("item_labels", split.n_items)):
        if labels[name] is None and getattr(factors, name) is not None:
            labels[name] = np.arange(count)  # the ids of a set without labels are its numbers
    return [
        Interactions(part.users, part.items, split.n_users, split.n_items, **labels)
        for part in (split.train, split.valid, split.test)
    ]


class _Side(NamedTuple):
    """For each id of the interactions its row, or -1; what the rows are called; how that was."""

    rows: _Ids
    labels: Labels | None
    note: str


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _pairs(
    given: Sequence[Any], columns: Columns, min_rating: float | None
) -> tuple[list[Interactions], list[str], list[Table]]:
    """Return sets of pairs that share their ids; where they come from tables, these too."""
    if all(is_table(each) for each in given):
        tables = tables_of(dict(zip(("train", "test"), given, strict=False)), "own data", columns)
    elif all(_is_path(each) and Path(each).suffix.lower() != ".npz" for each in given):
        tables = [read_table(_existing(each), columns) for each in given]
    elif min_rating is not None or any(columns.__dict__.values()):
        raise InputError("columns and min_rating are for tables: a matrix has neither")
    else:
        return [_matrix(each) for each in given], [], []
    sets, notes = to_interactions(tables, min_rating)
    return sets, notes, tables


def _existing(value: Any) -> Path:
    path = Path(value).expanduser()
    if not path.is_file():
        raise DataError(f"{path}: no such file of interactions")
    return path


def _matrix(value: Any) -> Interactions:
    if isinstance(value, Interactions):
        return value
    if isinstance(value, Split):
        raise InputError("a split is given whole, as interactions, or part by part: split.test")
    if not _is_path(value):
        return Interactions.from_csr(value)
    if Path(value).suffix.lower() != ".npz":
        raise InputError(f"{value}: give two files of one kind, tables or matrices")
    return Interactions.from_csr(_sparse(_existing(value)))


def _sparse(path: Path) -> Any:
    """Return a matrix that scipy's ``save_npz`` wrote."""
    from scipy import sparse  # slow to import

    found = read_apart("robustcf._io.foreign:read_npz", [path])
    try:
        arrays = {name: found.array(name) for name in found.arrays}
        kind = arrays["format"].item()
        name = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
        rows, columns = shape = tuple(int(n) for n in arrays["shape"])
        check_sparse(path, rows, columns, len(arrays["data"]), path.stat().st_size)
        if name == "coo":
            places = (arrays["row"], arrays["col"])
            return sparse.coo_array((arrays["data"], places), shape=shape)
        maker = {"csr": sparse.csr_array, "csc": sparse.csc_array}[name]
        matrix = maker((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        matrix.check_format(full_check=True)
        return matrix
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise DataError(
            f"{path}: not a users x items matrix that scipy's save_npz wrote, csr, csc or coo "
            f"({type(error).__name__}: {error})"
        ) from error


def _appearance(tables: Sequence[Table], kind: str, labels: Labels) -> _Ids:
    """Return for each label how many others appear before it in the tables."""
    seen: dict[str, int] = {}
    for table in tables:
        coded = getattr(table, f"{kind}s")
        texts = coded.labels.astype(str)
        _, first = np.unique(coded.codes, return_index=True)
        for code in coded.codes[np.sort(first)]:
            seen.setdefault(str(texts[code]), len(seen))
    # Labels that were dropped since (a rating threshold) leave no hole.
    order = np.array([seen[text] for text in labels.astype(str).tolist()], dtype=np.int64)
    places: _Ids = np.argsort(np.argsort(order))
    return places


def _side(
    kind: str,
    own: Labels | None,
    count: int,
    found: Interactions,
    rows: str,
    tables: Sequence[Table],
) -> _Side:
    """Match the ids of one side with rows: by label, by number, or by their place in order."""
    ids: Labels | None = getattr(found, f"{kind}_labels")
    many = int(getattr(found, f"n_{kind}s"))
    # A matrix, and what was made of one, has an order of its own; ids in files have none.
    if ids is None or (not tables and own is None):
        if rows != "number":
            raise InputError(
                f"rows={rows!r} (--rows) is for tables: a matrix has an order of its own"
            )
        if many != count:
            raise DataError(
                f"the interactions have {many:,} {kind}s and the factors {count:,} rows: they do "
                "not belong together"
            )
        labels = ids if own is None else own
        said = "no labels, the ids are row numbers" if labels is None else "ids are row numbers"
        return _Side(np.arange(many), labels, said)
    if own is not None:
        if rows != "number":
            raise InputError(
                f"the factors say what their {kind} rows are called: rows={rows!r} (--rows) "
                "contradicts that, leave it out"
            )
        place = {text: row for row, text in enumerate(own.astype(str).tolist())}
        matched = [place.get(text, -1) for text in ids.astype(str).tolist()]
        return _Side(np.array(matched, dtype=np.int64), own, "matched by their labels")
    if rows == "number":
        return _numbered(kind, ids, count)
    order = np.arange(many) if rows == "sorted" else _appearance(tables, kind, ids)
    words = "the ids" if rows == "sorted" else "first appearance"
    if many != count:
        raise DataError(
            f"the interactions have {many:,} distinct {kind} ids and the factors {count:,} rows: "
            f"rows in the order of {words} need equal counts"
        )
    labels = np.empty_like(ids)
    labels[order] = ids
    return _Side(order, labels, f"no labels, rows taken in the order of {words}")


def _numbered(kind: str, ids: Labels, count: int) -> _Side:
    ways = f"give {kind}_labels (--{kind}-ids FILE), or say how rows were numbered (--rows)"
    if ids.dtype.kind != "i":
        raise DataError(
            f"the factors do not say which row is which {kind}, and the {kind} ids of the "
            f"interactions are no row numbers (the first is {str(ids[0])!r}): {ways}"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= count:
        from_one = low == 1 and high == count
        hint = " (do they count from 1? then --rows sorted may be meant)" if from_one else ""
        raise DataError(
            f"the factors have {count:,} {kind} rows, 0 to {count - 1:,}, and the interactions "
            f"have {kind} ids from {low:,} to {high:,}{hint}: {ways}"
        )
    return _Side(ids.astype(np.int64), None, "no labels, the ids are row numbers")


def _renumbered(
    found: Sequence[Interactions], sides: dict[str, _Side], factors: Rows, drop_unknown: bool
) -> tuple[list[Interactions], int]:
    words = []
    for kind, side in sides.items():
        lacking = np.flatnonzero(side.rows < 0)
        if len(lacking):
            first = str(getattr(found[0], f"{kind}_labels")[lacking[0]])
            many = f"{len(lacking):,} of {len(side.rows):,} {kind}s"
            words.append(f"{many} (the first is {first!r})")
    if words and not drop_unknown:
        raise DataError(
            f"the interactions have {' and '.join(words)} that the factors have no row for: are "
            "they of the same data? --drop-unknown (drop_unknown=True) leaves their pairs out"
        )
    parts, dropped = [], 0
    labels = {f"{kind}_labels": side.labels for kind, side in sides.items()}
    for pairs in found:
        users, items = sides["user"].rows[pairs.users], sides["item"].rows[pairs.items]
        keep = (users >= 0) & (items >= 0)
        dropped += int((~keep).sum())
        if len(pairs) and not keep.any():
            raise DataError("the factors have none of the users and items of the interactions")
        parts.append(
            Interactions(users[keep], items[keep], factors.n_users, factors.n_items, **labels)
        )
    return parts, dropped
