"""``match``: which row of the factors is which user and which item of the interactions.

Ids are matched with the labels of the factors' rows. Without labels, each way to number rows that
fits the counts exactly is tried: ids as row numbers, the sorted ids of the training pairs, their
first appearance. Where several fit, the scores of the training pairs decide; where none fits, an
error names the nearest with its counts.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice
from robustcf._io.reading import check_sparse, is_regular
from robustcf._io.sandbox import read_apart
from robustcf.data.columns import Columns
from robustcf.data.formats import read_table
from robustcf.data.interactions import Interactions, Labels
from robustcf.data.memory import is_table, tables_of
from robustcf.data.split import Split
from robustcf.data.tables import Table, to_interactions
from robustcf.errors import DataError, InputError

#: How rows without labels were numbered.
ROWS = ("auto", "number", "sorted", "appearance")
#: Says how well factors fit pairs, higher is better.
Fit = Callable[[Interactions], float]

_Ids = npt.NDArray[np.int64]
_JUDGED = 50_000  # pairs that decide between ways to number rows


class Rows(NamedTuple):
    """The rows of factors: their numbers and labels."""

    n_users: int
    n_items: int
    user_labels: Labels | None = None
    item_labels: Labels | None = None


class Matched(NamedTuple):
    """Interactions with the ids of the factors' rows, and notes for the caller.

    ``caveats`` are the notes on what could void results: left-out pairs, ratings without threshold.
    """

    split: Split
    notes: tuple[str, ...]
    caveats: tuple[str, ...] = ()


def match(
    factors: Rows,
    interactions: Any,
    test: Any = None,
    *,
    rows: str = "auto",
    drop_unknown: bool = False,
    user_col: str | None = None,
    item_col: str | None = None,
    rating_col: str | None = None,
    time_col: str | None = None,
    min_rating: float | None = None,
    name: str | None = None,
    with_valid: bool | None = None,
    fit: Fit | None = None,
) -> Matched:
    """Return interactions as pairs of rows of factors, over the catalogue of the factors.

    Args:
        factors: the rows of the factors.
        interactions: the pairs that they were fit on: a table in memory or a file that
            :func:`robustcf.data.load` takes, a scipy ``.npz``, a users x items matrix, an
            :class:`robustcf.data.Interactions`; or a whole :class:`robustcf.data.Split`.
        test: held-out pairs in the same form, or None.
        rows: the id of row n, for factors without labels: ``number``: n itself; ``sorted``: the
            n-th id of the training pairs in sorted order (pandas categories, numpy unique);
            ``appearance``: in order of appearance (pandas factorize); ``auto``: the one that fits.
        drop_unknown: leave out training pairs of users and items that the factors do not have;
            held-out pairs of ids without a training pair are left out anyway.
        user_col: the column with the user, by name or number.
        item_col: the column with the item.
        rating_col: the column with the rating.
        time_col: the column with the time.
        min_rating: keep only pairs rated at least this.
        name: of the data; None for the name of the file.
        with_valid: whether the validation pairs of a split were fit on too; None for
            :func:`fit_on_of`.
        fit: how well the factors fit pairs, to decide where several numberings of rows are
            possible; None: an error then.

    Raises:
        DataError: ids that the factors do not have, or counts that do not fit.

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
        raise InputError(f"{whole.name} has test pairs of its own: leave test (--test) out")
    if with_valid is not None and whole is None:
        raise InputError("with_valid (--with-valid) is for a data set that has validation pairs")
    found, notes, tables = _pairs(given, columns, min_rating)
    caveats = [*notes, *_ratings(tables, min_rating)]
    known = 2 if whole is not None and fit_on_of(whole, with_valid) != "train" else 1
    sides = {kind: _sides(kind, factors, found, known, rows, tables) for kind in ("user", "item")}
    chosen = _best(sides, found[0], factors, fit)
    parts, dropped = _renumbered(found, chosen, factors, known, drop_unknown=drop_unknown)
    notes = [*caveats, *(f"{kind}s: {side.note}" for kind, side in chosen.items()), *dropped]
    caveats += dropped
    if whole is not None:
        named: dict[str, Any] = dict(zip(("train", "valid", "test"), parts, strict=True))
        split = dataclasses.replace(whole, name=name or whole.name, **named)
        return Matched(split, (*notes, _about_parts(split, with_valid)), tuple(caveats))
    title = name or (Path(interactions).name if _is_path(interactions) else "own data")
    none = parts[0].take(np.zeros(len(parts[0]), dtype=bool))
    held = parts[1] if test is not None else none
    if test is not None and len(held) == 0:
        raise DataError("test has no pairs to judge by: give some, or leave it out")
    split = Split(title, parts[0], none, held, valid_source="none")
    return Matched(split, tuple(notes), tuple(caveats))


def fit_on_of(split: Split, with_valid: bool | None = None) -> str:
    """Return the parts of a split that factors from elsewhere were probably fit on.

    ``train`` where validation pairs were published apart; ``train and valid`` where they were drawn
    here, since they are in the training file of others. ``with_valid`` overrides this rule.

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
    words += ", not the validation pairs" if not both and len(split.valid) else ""
    judged = f", judged by its {len(split.test):,} test pairs" if len(split.test) else ""
    return f"{split.name}: taken as fit on {words} ({pairs:,}){judged}"


def _parts_of(split: Split, factors: Rows) -> list[Interactions]:
    """Return the parts of a split, with its ids as labels where the factors have labels."""
    labels = {"user_labels": split.user_labels, "item_labels": split.item_labels}
    for name, count in (("user_labels", split.n_users), ("item_labels", split.n_items)):
        if labels[name] is None and getattr(factors, name) is not None:
            labels[name] = np.arange(count)
    return [
        Interactions(part.users, part.items, split.n_users, split.n_items, **labels)
        for part in (split.train, split.valid, split.test)
    ]


class _Side(NamedTuple):
    """The row of each id of the interactions, or -1; the labels of the rows; a note."""

    rows: _Ids
    labels: Labels | None
    note: str


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _pairs(
    given: Sequence[Any], columns: Columns, min_rating: float | None
) -> tuple[list[Interactions], list[str], list[Table]]:
    """Return sets of pairs that share their ids, notes, and the tables they come from."""
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
    if not is_regular(path):
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
            f"{path}: expected a csr, csc or coo matrix of scipy's save_npz ({error!r})"
        ) from error


def _ratings(tables: Sequence[Table], min_rating: float | None) -> list[str]:
    """Return a note where ratings count as positive because no threshold was given."""
    if min_rating is not None or not tables or tables[0].ratings is None:
        return []
    ratings = tables[0].ratings
    low, high = (f"{value:g}" for value in (ratings.min(), ratings.max()))
    if low == high:
        return []
    return [
        f"all {len(ratings):,} ratings, {low} to {high}, count as positive: min_rating "
        "(--min-rating) keeps the high ones"
    ]


def _appearance(tables: Sequence[Table], kind: str, labels: Labels) -> _Ids:
    """Return the labels' places in order of first appearance in the tables."""
    seen: dict[str, int] = {}
    for table in tables:
        coded = getattr(table, f"{kind}s")
        texts = coded.labels.astype(str)
        _, first = np.unique(coded.codes, return_index=True)
        for code in coded.codes[np.sort(first)]:
            seen.setdefault(str(texts[code]), len(seen))
    # Ranks, since labels below a rating threshold were dropped.
    order = np.array([seen[text] for text in labels.astype(str).tolist()], dtype=np.int64)
    places: _Ids = np.argsort(np.argsort(order))
    return places


def _sides(
    kind: str,
    factors: Rows,
    found: Sequence[Interactions],
    known: int,
    rows: str,
    tables: Sequence[Table],
) -> list[_Side]:
    """Return the ways to match the ids of one side with rows; the first ``known`` sets were fit."""
    own, count = getattr(factors, f"{kind}_labels"), getattr(factors, f"n_{kind}s")
    ids: Any = getattr(found[0], f"{kind}_labels")
    many = int(getattr(found[0], f"n_{kind}s"))
    by_place = ids is None or (not tables and own is None)  # a matrix has an order of its own
    if rows not in ("auto", "number") and (by_place or own is not None):
        why = (
            "a matrix has an order of its own" if by_place else f"it contradicts the {kind} labels"
        )
        raise InputError(f"rows={rows!r} (--rows) is for tables without labels: {why}")
    if own is not None and not by_place:
        place = {text: row for row, text in enumerate(own.astype(str).tolist())}
        matched = [place.get(text, -1) for text in ids.astype(str).tolist()]
        return [_Side(np.array(matched, dtype=np.int64), own, "matched by their labels")]
    if by_place:
        if many != count:
            raise DataError(
                f"the interactions have {many:,} {kind}s and the factors {count:,} rows: they must "
                "be equal in number"
            )
        labels = ids if own is None else own
        said = "no labels, the ids are row numbers" if labels is None else "ids are row numbers"
        return [_Side(np.arange(many), labels, said)]
    fit_on = np.zeros(many, dtype=bool)
    for part in found[:known]:
        fit_on[getattr(part, f"{kind}s")] = True
    return _numberings(kind, ids, fit_on, count, rows, tables)


def _numberings(
    kind: str,
    ids: Labels,
    fit_on: npt.NDArray[np.bool_],
    count: int,
    rows: str,
    tables: Sequence[Table],
) -> list[_Side]:
    """Return the ways to number rows that fit their count; a DataError with the nearest if none."""
    ways: list[_Side] = []
    misses: list[tuple[int, str]] = []
    if rows in ("auto", "number"):
        whole = ids.dtype.kind == "i"
        inside = (ids >= 0) & (ids < count) if whole else np.zeros(len(ids), dtype=bool)
        if inside[fit_on].all():
            numbers = np.where(inside, ids if whole else -1, -1).astype(np.int64)
            return [_Side(numbers, None, "no labels, the ids are row numbers")]
        outside = int((~inside[fit_on]).sum())
        span = f"{str(ids[fit_on][0])!r} to {str(ids[fit_on][-1])!r}"
        misses.append(
            (
                outside,
                f"as row numbers from 0 to {count - 1:,}, {outside:,} of the ids, {span}, fail",
            )
        )
    later = int((~fit_on).sum())
    orders: list[tuple[str, str, npt.NDArray[np.bool_]]] = []
    every = [(fit_on, "training pairs"), (np.ones(len(ids), dtype=bool), "all pairs")]
    for among, words in every if later else every[:1]:
        if rows in ("auto", "sorted"):
            orders.append(("sorted", f"the sorted ids of the {words}", among))
            if rows == "auto" and ids.dtype.kind == "i":
                orders.append(("text", f"the ids, sorted as text, of the {words}", among))
        if rows in ("auto", "appearance"):
            told = f"the ids, in order of first appearance, of the {words}"
            orders.append(("appearance", told, among))
    for name, words, among in orders:
        chosen, many = ids[among], int(among.sum())
        if many != count:
            only = f", of which {later:,} only in held-out pairs" if among.all() and later else ""
            misses.append((abs(many - count), f"{words} are {many:,}{only}"))
            continue
        place = np.arange(count)
        if name == "appearance":
            place = _appearance(tables, kind, chosen)
        elif name == "text":
            place = np.argsort(np.argsort(chosen.astype(str), kind="stable"))
        if any(np.array_equal(place, way.rows[among]) for way in ways):
            continue
        labels = np.empty_like(chosen)
        labels[place] = chosen
        matched = np.full(len(ids), -1, dtype=np.int64)
        matched[among] = place
        ways.append(_Side(matched, labels, f"no labels, rows taken as {words}"))
    if ways:
        return ways
    nearest = "; ".join(dict.fromkeys(text for _, text in sorted(misses)[:2]))
    raise DataError(
        f"the factors have {count:,} {kind} rows without labels, and no numbering fits: {nearest}. "
        f"Give {kind}_labels (--{kind}-ids FILE), or say how rows were numbered (--rows)"
    )


def _best(
    sides: dict[str, list[_Side]], pairs: Interactions, factors: Rows, fit: Fit | None
) -> dict[str, _Side]:
    """Return the ways that fit the scores of the training pairs best, if there are several."""
    several = [kind for kind, ways in sides.items() if len(ways) > 1]
    if several and fit is None:
        told = " or ".join(way.note.removeprefix("no labels, ") for way in sides[several[0]])
        raise DataError(
            f"{several[0]}s have no labels: {told}; say how rows were numbered with rows (--rows)"
        )
    combined = [dict(zip(sides, ways, strict=True)) for ways in product(*sides.values())]
    if len(combined) == 1 or fit is None:
        return combined[0]
    step = max(1, len(pairs) // _JUDGED)

    def judged(ways: dict[str, _Side]) -> float:
        users, items = ways["user"].rows[pairs.users], ways["item"].rows[pairs.items]
        keep = (users >= 0) & (items >= 0)
        shape = factors.n_users, factors.n_items
        return fit(Interactions.from_pairs(users[keep][::step], items[keep][::step], *shape)[0])

    best = max(combined, key=judged)
    return {
        kind: side._replace(note=f"{side.note} (of {len(sides[kind])} orders that fit, the best)")
        if kind in several
        else side
        for kind, side in best.items()
    }


def _renumbered(
    found: Sequence[Interactions],
    sides: dict[str, _Side],
    factors: Rows,
    known: int,
    *,
    drop_unknown: bool,
) -> tuple[list[Interactions], list[str]]:
    """Return sets of pairs by rows, and notes on pairs left out."""
    words = []
    for kind, side in sides.items():
        used = np.unique(np.concatenate([getattr(part, f"{kind}s") for part in found[:known]]))
        lacking = used[side.rows[used] < 0]
        if len(lacking):
            first = str(getattr(found[0], f"{kind}_labels")[lacking[0]])
            many = f"{len(lacking):,} of {len(used):,} {kind}s"
            words.append(f"{many} (the first is {first!r})")
    if words and not drop_unknown:
        raise DataError(
            f"the interactions have {' and '.join(words)} that the factors do not have: are they "
            "of the same data? --drop-unknown (drop_unknown=True) leaves their pairs out"
        )
    parts, notes = [], []
    labels = {f"{kind}_labels": side.labels for kind, side in sides.items()}
    for number, pairs in enumerate(found):
        users, items = sides["user"].rows[pairs.users], sides["item"].rows[pairs.items]
        keep = (users >= 0) & (items >= 0)
        dropped = int((~keep).sum())
        if len(pairs) and not keep.any():
            raise DataError("the factors have none of the users and items of the interactions")
        if dropped:
            held = "pairs" if number < known else "held-out pairs"
            notes.append(
                f"{dropped:,} {held} of users or items that the factors do not have: left out"
            )
        times = None if pairs.timestamps is None else pairs.timestamps[keep]
        named: dict[str, Any] = {**labels, "timestamps": times}
        parts.append(
            Interactions(users[keep], items[keep], factors.n_users, factors.n_items, **named)
        )
    return parts, notes
