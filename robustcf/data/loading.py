"""``load``: a name, a file or data in memory in, a Split out."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from robustcf._io.fetching import LocatedFile, Policy, locate, obtain, sha256_of
from robustcf._io.limits import limits
from robustcf._io.reading import check_first_line, read_content, read_member
from robustcf._io.text import counted
from robustcf.data import cache as parsed_cache
from robustcf.data import catalog, memory, readers, splits, synthetic
from robustcf.data.cache import Parsed
from robustcf.data.catalog import Manifest
from robustcf.data.columns import Columns, kind_of
from robustcf.data.frames import SEPARATORS
from robustcf.data.interactions import Interactions
from robustcf.data.layout import manifest_of
from robustcf.data.prepared import open_prepared
from robustcf.data.readers import RawPairs
from robustcf.data.split import EvaluationProtocol, Split
from robustcf.data.splits import HoldOut, Strategy
from robustcf.data.tables import (
    Table,
    of_ids,
    read_ratings,
    read_table,
    to_interactions,
)
from robustcf.data.times import Moment
from robustcf.errors import DataError

Parts = dict[str, Interactions]

_ID_READERS: Mapping[str, Callable[[bytes, str], RawPairs]] = {
    "adjacency": readers.read_adjacency,
    "counted-lists": readers.read_counted_lists,
    "json-lists": readers.read_json_lists,
}


def load(
    source: Any,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    seed: int = 0,
    *,
    user_col: str | int | None = None,
    item_col: str | int | None = None,
    rating_col: str | int | None = None,
    time_col: str | int | None = None,
    min_rating: float | None = None,
    k_core: int | None = None,
    split: Strategy | None = None,
    test_ratio: float | None = None,
    valid_ratio: float | None = None,
    test_from: Moment | None = None,
    valid_from: Moment | None = None,
    valid_file: str | os.PathLike[str] | None = None,
    test_file: str | os.PathLike[str] | None = None,
    valid: Any = None,
    test: Any = None,
    name: str | None = None,
    eval_users: int | None = None,
    cache: bool | Literal["read"] = True,
    policy: Policy | None = None,
) -> Split:
    """Load a data set by name, or your own: a file, a table in memory, or a matrix.

    Names: ``demo``, ``ml-1m``, ``yelp2018``, ``citeulike`` (= ``citeulike-t``),
    ``citeulike-a``, ``gowalla``, ``ml-100k``. A path may end in ``.csv``, ``.tsv``,
    ``.parquet``, ``.inter`` or ``.dat`` (a table with a user and an item column) or ``.txt``
    (``user item item ...`` per line), each with ``.gz`` or without. It may also be a folder that
    :func:`robustcf.data.prepare` made, or its manifest: that is mapped, not read.

    A table in memory is a pandas DataFrame, or anything with the Arrow PyCapsule interface or the
    DataFrame interchange protocol: Polars, PyArrow, DuckDB. Its labels keep their types: whole
    numbers are int64 labels, text stays text. (In a file, ``7`` is a number.) A users x items
    matrix of scipy or numpy has an interaction for each entry that is not 0; rows and columns are
    the ids. :class:`Interactions` are split as they are.

    Args:
        source: what to load.
        data_dir: the first folder to look in, and the one to download into.
        download: whether a missing file may be fetched.
        seed: of whatever part of the split is drawn at random.
        user_col: column with the user (found by its usual names when not given); a number
            counts columns from 0 in a file without a header line.
        item_col: column with the item.
        rating_col: column with the rating.
        time_col: column with the time (seconds, or dates).
        min_rating: keep only pairs rated at least this (own data and ``ml-100k``); the values of
            a matrix are its ratings.
        k_core: keep the largest subset where users and items have at least k pairs each.
        split: ``random`` (default), ``leave-one-out`` (each user's latest pair, by time where
            there is one) or ``time`` (one cut in time for all users).
        test_ratio: share of the pairs for test, default 0.1: of each user's at random, or with
            ``time`` the latest of all.
        valid_ratio: share of the remaining pairs for valid, default 0.1.
        test_from: with ``time``, test begins here instead: an ISO date, a datetime, or a number
            in the unit of the time column. A date without a time zone is in UTC. Where the column
            holds whole numbers, a date is compared with them as seconds since 1970, or milli-,
            micro- or nanoseconds if that is their size.
        valid_from: with ``time``, valid begins here.
        valid_file: a file of its own for valid, instead of drawing it.
        test_file: a file of its own for test.
        valid: like ``valid_file``, for data in memory.
        test: like ``test_file``, for data in memory.
        name: what to call your own data; default the name of the file, or ``own data``.
        eval_users: evaluate on a seeded sample of so many users; None for all, or as a prepared
            set says.
        cache: keep the parsed set, so that the next load is quick; ``read``: use what is kept,
            and keep nothing. Data in memory are not kept.
        policy: patience of downloads.

    Returns:
        The split; ``split.notes`` says what was dropped on the way. After a cut in time, users
        and items that are new in valid or test stay, without pairs in train, and a note names
        some.

    Raises:
        DataError: what was read breaks a rule; the message names file and line where it can.
        DownloadError: a file is missing and cannot be fetched.

    Cost: a first load parses (Yelp2018: well under a second), later ones read the cache.

    Example:
        >>> split = load("demo")
        >>> len(split.train), len(split.valid), len(split.test)
        (80846, 9067, 10087)

        >>> import pandas as pd
        >>> plays = pd.DataFrame({"user": ["ann", "ann", "bob", "bob"], "track": [1, 2, 1, 3]})
        >>> load(plays.assign(time=[1, 2, 3, 4]), split="time", test_from=4).notes
        ('cut in time: valid from 3, test from 4',
         "not in train, only after the cut: 1 user ('bob') and 1 item (3)")
    """
    columns = {
        "user_col": user_col,
        "item_col": item_col,
        "rating_col": rating_col,
        "time_col": time_col,
    }
    cut = {
        "split": split,
        "test_ratio": test_ratio,
        "valid_ratio": valid_ratio,
        "test_from": test_from,
        "valid_from": valid_from,
    }
    files = {"valid_file": valid_file, "test_file": test_file}
    tables = {"valid": valid, "test": test}
    own = columns | {"min_rating": min_rating, "k_core": k_core} | cut | files | tables
    options = _Options(columns, min_rating, k_core, seed, cut)
    if not isinstance(source, str | os.PathLike):
        _refuse_given("data in memory", files, "give tables as test and valid")
        parts = _parts(source, **tables)
        return _load_memory(parts, name or "own data", options).with_eval_users(eval_users)
    place = os.fspath(source)
    manifest = catalog.find(place)
    if manifest is not None:
        _refuse_options(manifest, own | {"name": name})
        named = _load_named(manifest, data_dir, download, options, cache, policy)
        return named.with_eval_users(eval_users)
    path = Path(place).expanduser()
    if (prepared := manifest_of(path)) is not None:
        _refuse_prepared(path, own | {"name": name})
        return open_prepared(prepared).with_eval_users(eval_users)
    if not path.is_file():
        raise DataError(catalog.unknown_name(place))
    _refuse_given("a file", tables, "give files as test_file and valid_file")
    paths = {k: Path(v).expanduser() for k, v in _parts(path, valid_file, test_file).items()}
    return _load_own(paths, name or path.name, options, cache).with_eval_users(eval_users)


@dataclass(frozen=True)
class _Options:
    """What was said about own data; None where nothing was."""

    columns: Mapping[str, str | int | None]
    min_rating: float | None
    k_core: int | None
    seed: int
    cut: Mapping[str, Any]

    def roles(self) -> Columns:
        return Columns(*(None if c is None else str(c) for c in self.columns.values()))

    def hold_out(self) -> HoldOut:
        rest = {key: value for key, value in self.cut.items() if key != "split"}
        return HoldOut(self.cut["split"] or "random", self.seed, **rest)


def _given(options: Mapping[str, Any]) -> str:
    return ", ".join(name for name, value in options.items() if value is not None)


def _refuse_given(what: str, options: Mapping[str, Any], advice: str) -> None:
    if given := _given(options):
        raise DataError(f"{given} cannot be used with {what}: {advice}")


def _parts(train: Any, valid: Any, test: Any) -> dict[str, Any]:
    held = {"valid": valid, "test": test}
    return {"train": train, **{part: held[part] for part in held if held[part] is not None}}


def _check_given_parts(parts: Mapping[str, Any], options: _Options, suffix: str) -> None:
    """Raise where parts that are given do not go with each other, or with an option."""
    if "test" not in parts:
        if "valid" in parts:
            raise DataError(
                f"valid{suffix} needs test{suffix} too: validation pairs alone do not make a split"
            )
        return
    allowed = () if "valid" in parts else ("valid_ratio",)
    refused = {key: value for key, value in options.cut.items() if key not in allowed}
    if given := _given({"k_core": options.k_core, **refused}):
        raise DataError(
            f"{given} cannot be combined with test{suffix}: the given data are the split"
        )


def _refuse_prepared(path: Path, own: Mapping[str, Any]) -> None:
    if given := _given(own):
        raise DataError(
            f"{path} is a prepared set, filtered and split already; {given} cannot be "
            "used with it: give them to 'robustcf datasets prepare'"
        )


# Its ratings have times, and no split of it is the published one.
_ML_100K = ("min_rating", "split", "test_ratio", "valid_ratio", "test_from", "valid_from")


# --- named sets -----------------------------------------------------------------------------


def _refuse_options(manifest: Manifest, own: Mapping[str, Any]) -> None:
    allowed = _ML_100K if manifest.name == "ml-100k" else ()
    if given := _given({name: value for name, value in own.items() if name not in allowed}):
        raise DataError(
            f"{manifest.name} is a named set with a fixed protocol; {given} cannot be "
            "used with it: give the path of a file to split data your own way"
        )


def _load_named(
    manifest: Manifest,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
    own: _Options,
    cache: bool | Literal["read"],
    policy: Policy | None,
) -> Split:
    if manifest.layout == "generated":
        return synthetic.demo(own.seed)
    folder = None if data_dir is None else Path(data_dir)
    files = {
        part: obtain(manifest, alternatives, folder, download=download, policy=policy)
        for part, alternatives in manifest.parts.items()
    }
    labels = {
        f"{kind} labels": found
        for kind, alternatives in manifest.labels.items()
        if (found := locate(manifest, alternatives, folder)) is not None
    }
    sources = {file.path.name: file.sha256 for file in (*files.values(), *labels.values())}

    def parse() -> Parsed:
        return Parsed(*_parse_named(manifest, files, labels, own.min_rating))

    options = {"min_rating": own.min_rating, "least_per_user": manifest.least_per_user}
    parts, notes, _ = _through_cache(manifest.name, sources, options, parse, cache)
    if own.min_rating is None:  # a threshold changes the counts, by design
        _check_counts(manifest, parts)
    if manifest.layout == "pairs":
        return own.hold_out().split(manifest.name, parts["pairs"], notes, sources)
    if "valid" in parts:
        return Split(
            manifest.name,
            parts["train"],
            parts["valid"],
            parts["test"],
            valid_source="published",
            notes=notes,
            sources=sources,
            # Published figures on such a set leave its validation pairs among the candidates.
            protocol=EvaluationProtocol(test=("train",)),
        )
    train, valid = splits.carve_valid(parts["train"], own.seed)
    return Split(manifest.name, train, valid, parts["test"], notes=notes, sources=sources)


def _parse_named(
    manifest: Manifest,
    files: Mapping[str, LocatedFile],
    labels: Mapping[str, LocatedFile],
    min_rating: float | None,
) -> tuple[Parts, tuple[str, ...]]:
    notes: list[str] = []
    if manifest.name == "ml-100k":
        file = files["pairs"]
        table = read_ratings(_bytes_of(file), str(file.path))
        (pairs,), notes = to_interactions([table], min_rating)
        return {"pairs": pairs}, tuple(notes)

    raw = {
        part: _ID_READERS[file.source.format](_bytes_of(file), str(file.path))
        for part, file in files.items()
    }
    n_users = 1 + max(int(pairs.users.max()) for pairs in raw.values())
    n_items = 1 + max(int(pairs.items.max()) for pairs in raw.values())
    if manifest.layout == "pairs":
        pairs = _dedupe(
            files["pairs"].path.name, raw["pairs"], n_users, n_items, notes, own_ids=True
        )
        pairs = _drop_unused(manifest, pairs, notes)
        return {"pairs": pairs}, tuple(notes)

    names = {
        kind: readers.read_id_list(_bytes_of(file), str(file.path)) for kind, file in labels.items()
    }
    parts = {
        part: _dedupe(
            files[part].path.name,
            pairs,
            n_users,
            n_items,
            notes,
            user_labels=names.get("users labels"),
            item_labels=names.get("items labels"),
        )
        for part, pairs in raw.items()
    }
    return parts, tuple(notes)


def _dedupe(
    name: str,
    raw: RawPairs,
    n_users: int,
    n_items: int,
    notes: list[str],
    *,
    own_ids: bool = False,
    **labels: Any,
) -> Interactions:
    if own_ids:  # renumbering may follow: let the ids of the file survive as labels
        labels = {"user_labels": np.arange(n_users), "item_labels": np.arange(n_items)}
    pairs, repeats = Interactions.from_pairs(raw.users, raw.items, n_users, n_items, **labels)
    if repeats:
        notes.append(f"{name}: {counted(repeats, 'repeated pair')} dropped")
    return pairs


def _drop_unused(manifest: Manifest, pairs: Interactions, notes: list[str]) -> Interactions:
    enough = splits.at_least(pairs, manifest.least_per_user)
    if enough.n_users < pairs.n_users:
        notes.append(
            f"{counted(pairs.n_users - enough.n_users, 'user')} with fewer than "
            f"{manifest.least_per_user} items dropped"
        )
    used = splits.compact(enough)
    if used.n_items < enough.n_items:
        notes.append(
            f"{enough.n_items - used.n_items:,} of {enough.n_items:,} item ids never occur and "
            "were dropped; the original ids are kept as labels"
        )
    return used


def _check_counts(manifest: Manifest, parts: Parts) -> None:
    first = next(iter(parts.values()))
    got = {"users": first.n_users, "items": first.n_items}
    got |= {part: len(pairs) for part, pairs in parts.items()}
    wrong = [
        f"{what}: expected {manifest.counts[what]:,}, got {count:,}"
        for what, count in got.items()
        if manifest.counts[what] != count
    ]
    if wrong:
        raise DataError(
            f"{manifest.name} does not have the counts of its manifest ({'; '.join(wrong)}); the "
            "files are not the published ones: delete them and fetch them again"
        )


def _bytes_of(file: LocatedFile) -> bytes:
    member = file.source.member
    return file.path.read_bytes() if member is None else read_member(file.path, member)


# --- own data -------------------------------------------------------------------------------


def _load_own(
    files: Mapping[str, Path], name: str, own: _Options, cache: bool | Literal["read"]
) -> Split:
    _check_given_parts(files, own, "_file")
    for part, path in files.items():
        if not path.is_file():
            raise DataError(f"{path}: no such file (given for {part})")
        _check_first_line(path)
    checksums = {part: sha256_of(path) for part, path in files.items()}
    names = [path.name for path in files.values()]
    # Files of one name in several folders must not pass for one.
    sources = {
        path.name if names.count(path.name) == 1 else f"{part}/{path.name}": checksums[part]
        for part, path in files.items()
    }
    columns = own.roles()
    options = {"columns": repr(columns), "min_rating": own.min_rating}

    def parse() -> Parsed:
        tables = [read_own_table(path, columns) for path in files.values()]
        return _parsed(files, tables, own.min_rating)

    parsed = _through_cache(str(files["train"]), checksums, options, parse, cache)
    return _split(name, parsed, own, sources)


def _load_memory(parts: Mapping[str, Any], name: str, own: _Options) -> Split:
    _check_given_parts(parts, own, "")
    for part, source in parts.items():
        memory.check_in_memory(part, source)
    matrices = {part: memory.is_matrix(source) for part, source in parts.items()}
    if len(set(matrices.values())) > 1:
        given = ", ".join(f"{part}: {type(source).__name__}" for part, source in parts.items())
        raise DataError(f"give all parts as tables, or all as matrices, got {given}")
    if not matrices["train"]:
        tables = memory.tables_of(parts, name, own.roles())
        return _split(name, _parsed(parts, tables, own.min_rating), own, {})
    _refuse_given("a matrix", own.columns, "it has no columns; leave them out")
    found, notes = memory.pairs_of(parts, name, own.min_rating)
    return _split(name, Parsed(found, tuple(notes)), own, {})


def _parsed(parts: Iterable[str], tables: list[Table], min_rating: float | None) -> Parsed:
    sets, notes = to_interactions(tables, min_rating)
    return Parsed(dict(zip(parts, sets, strict=True)), tuple(notes), tables[0].time_unit)


def _split(name: str, parsed: Parsed, own: _Options, sources: Mapping[str, str]) -> Split:
    """Make a split of parts that are given, or of all pairs."""
    parts, notes = parsed.parts, parsed.notes
    if "test" not in parts:
        pairs = parts["train"]
        if own.k_core is not None:
            before = pairs
            pairs = splits.k_core(_labelled(pairs), own.k_core)
            notes = (*notes, f"{own.k_core}-core: {before!r} -> {pairs!r}")
        how = own.hold_out()
        how.unit = parsed.unit
        return how.split(name, pairs, notes, sources)
    notes = (*notes, *_about_cold(parts))
    if "valid" in parts:
        return Split(
            name, parts["train"], parts["valid"], parts["test"],
            valid_source="published", notes=notes, sources=sources,
        )  # fmt: skip
    ratio = own.cut["valid_ratio"]
    ratio = splits.RATIO if ratio is None else ratio
    train, valid = splits.carve_valid(parts["train"], own.seed, ratio)
    return Split(name, train, valid, parts["test"], notes=notes, sources=sources)


def _labelled(pairs: Interactions) -> Interactions:
    """The same pairs with their ids as labels, where they have none: renumbering may follow."""
    return replace(
        pairs,
        user_labels=np.arange(pairs.n_users) if pairs.user_labels is None else pairs.user_labels,
        item_labels=np.arange(pairs.n_items) if pairs.item_labels is None else pairs.item_labels,
    )


def _about_cold(parts: Parts) -> tuple[str, ...]:
    users = int((parts["train"].user_degrees == 0).sum())
    items = int((parts["train"].item_degrees == 0).sum())
    if not users and not items:
        return ()
    return (f"{users:,} users and {items:,} items are not in train, only in the other files",)


def _check_first_line(path: Path) -> None:
    """Refuse what is one line without end before its checksum is computed: that reads all of it."""
    kind = kind_of(path)
    if kind == ".txt" or SEPARATORS.get(kind) is not None:
        longest = readers.longest_line() if kind == ".txt" else limits().line_bytes
        with suppress(OSError, EOFError, zlib.error):  # said better by whoever reads it
            check_first_line(path, longest)


def read_own_table(path: Path, columns: Columns) -> Table:
    """The rows of a file of any kind that :func:`load` takes by its path."""
    if kind_of(path) != ".txt":
        return read_table(path, columns)
    try:
        data = read_content(path, longest_line=readers.longest_line())
    except (OSError, EOFError, zlib.error) as error:
        kind = "gzip" if path.suffix.lower() == ".gz" else "text"
        raise DataError(f"{path}: not a readable {kind} file ({error})") from error
    pairs = readers.read_adjacency(data, str(path))
    return of_ids(str(path), pairs.users, pairs.items, path.stat().st_size)


def _through_cache(
    name: str,
    sources: Mapping[str, str],
    options: Mapping[str, Any],
    parse: Callable[[], Parsed],
    enabled: bool | Literal["read"],
) -> Parsed:
    if not enabled:
        return parse()
    key = parsed_cache.key_of(name, sources, options)
    damaged: tuple[str, ...] = ()
    try:
        stored = parsed_cache.read(key)
    except parsed_cache.DamagedEntry as entry:
        stored = None
        damaged = (f"the parsed copy {entry} had been altered or damaged; it was made again",)
    if stored is not None:
        return stored
    parsed = parse()
    if enabled != "read":
        parsed_cache.write(key, *parsed)
    return parsed._replace(notes=(*parsed.notes, *damaged))
