"""``load``: make a Split of a named set, a file or data in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from robustcf._io.fetching import LocatedFile, Policy, locate, obtain, sha256_of
from robustcf._io.reading import is_regular, read_member
from robustcf._io.text import counted
from robustcf.data import catalog, synthetic
from robustcf.data.cache import Parsed, cached
from robustcf.data.catalog import Manifest
from robustcf.data.formats import PUBLISHED, PUBLISHED_TABLES, read_table, refuse_endless_line
from robustcf.data.holdout import Plan, Strategy, compact
from robustcf.data.holdout import k_core as core_of
from robustcf.data.id_lists import RawPairs, read_id_list
from robustcf.data.interactions import Interactions, sized
from robustcf.data.large import manifest_of
from robustcf.data.split import PARTS, EvaluationProtocol, Split, ValidSource
from robustcf.data.tables import Table, to_interactions
from robustcf.data.times import Moment
from robustcf.errors import DataError

Parts = dict[str, Interactions]
_Cache = bool | Literal["read"]

_COLUMNS = ("user_col", "item_col", "rating_col", "time_col")
_CUT = ("split", "test_ratio", "valid_ratio", "test_from", "valid_from")


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
    cache: _Cache = True,
    policy: Policy | None = None,
) -> Split:
    """Load a data set by name, or your own: a file, a table in memory, or a matrix.

    Names: ``demo``, ``ml-1m``, ``yelp2018``, ``citeulike`` (= ``citeulike-t``), ``citeulike-a``,
    ``gowalla``, ``ml-100k``. A path may end in ``.csv``, ``.tsv``, ``.parquet``, ``.inter`` or
    ``.dat`` (a table with a user and an item column) or ``.txt`` (``user item item ...`` per line),
    each with ``.gz`` or without, or be a folder of :func:`robustcf.data.prepare`, which is mapped.

    A table in memory is a pandas DataFrame, or has the Arrow PyCapsule interface or the DataFrame
    interchange protocol (Polars, PyArrow, DuckDB). Its text labels stay text; in a file, ``7`` is a
    number. A users x items matrix (scipy, numpy) has an interaction for each nonzero entry; its
    ids are rows and columns. :class:`Interactions` are split as they are.

    Args:
        source: name, path, table, matrix or Interactions.
        data_dir: the first folder to look in, and the one to download into.
        download: whether a missing file may be fetched.
        seed: seed of the random parts of the split.
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
        test_ratio: share of the pairs for test (default 0.1): drawn from those of each user, or
            with ``time`` the latest of all users.
        valid_ratio: share of the remaining pairs for valid, default 0.1.
        test_from: with ``time``, test begins here instead: an ISO date (UTC by default), a
            datetime, or a number in the unit of the time column. Whole numbers are compared with a
            date as seconds since 1970, or milli-, micro- or nanoseconds, by their size.
        valid_from: with ``time``, valid begins here.
        valid_file: a file of its own for valid, instead of drawing it.
        test_file: a file of its own for test.
        valid: like ``valid_file``, for data in memory.
        test: like ``test_file``, for data in memory.
        name: name of your own data; default the name of the file, or ``own data``.
        eval_users: number of users to evaluate on, a seeded sample; None for all, or the sample of
            a prepared set.
        cache: keep the parsed file for later loads; ``read``: use entries, but write none.
        policy: timeouts and retries of downloads.

    Returns:
        The split; ``split.notes`` tells the dropped rows. After a cut in time, users and items
        without pairs in train stay, and a note names some.

    Raises:
        DataError: the data break a rule; the message names file and line if possible.
        DownloadError: a file is missing and cannot be fetched.

    Cost: a first load parses (Yelp2018: well under a second), later ones read the cache.

    Example:
        >>> import pandas as pd
        >>> plays = pd.DataFrame({"user": ["ann", "ann", "bob", "bob"], "track": [1, 2, 1, 3]})
        >>> load(plays.assign(time=[1, 2, 3, 4]), split="time", test_from=4).notes
        ('cut in time: valid from 3, test from 4',
         "not in train, only after the cut: 1 user ('bob') and 1 item (3)")
    """
    plan = Plan(
        seed, user_col, item_col, rating_col, time_col, min_rating, k_core,
        split, test_ratio, valid_ratio, test_from, valid_from,
    )  # fmt: skip
    files = {"valid_file": valid_file, "test_file": test_file}
    tables = {"valid": valid, "test": test}
    options = plan.options(*_COLUMNS, "min_rating", "k_core", *_CUT)
    own = {**options, **files, **tables, "name": name}

    def loaded() -> Split:
        if not isinstance(source, str | os.PathLike):
            _refuse(files, "cannot be used with data in memory: give tables as test and valid")
            return _load_memory(_parts(source, valid, test), name or "own data", plan)
        place = os.fspath(source)
        if (manifest := catalog.find(place)) is not None:
            _refuse_options(manifest, own)
            if manifest.layout == "generated":
                return synthetic.demo(seed)
            return _load_named(manifest, data_dir, download, plan, cache, policy)
        path = Path(place).expanduser()
        if (prepared := manifest_of(path)) is not None:
            why = f"cannot be used with {path}, a prepared set, which is split already"
            _refuse(own, f"{why}: give them to 'robustcf datasets prepare'")
            from robustcf.data.large.opening import open_prepared  # rarely needed

            return open_prepared(prepared)
        if not is_regular(path):
            raise DataError(catalog.unknown_name(place))
        _refuse(tables, "cannot be used with a file: give files as test_file and valid_file")
        parts = _parts(path, valid_file, test_file)
        paths = {part: Path(file).expanduser() for part, file in parts.items()}
        return _load_files(paths, name or path.name, plan, cache)

    return loaded().with_eval_users(eval_users)


def _refuse(options: Mapping[str, Any], why: str) -> None:
    if given := ", ".join(name for name, value in options.items() if value is not None):
        raise DataError(f"{given} {why}")


def _parts(train: Any, valid: Any, test: Any) -> dict[str, Any]:
    parts = {"train": train, "valid": valid, "test": test}
    return {part: given for part, given in parts.items() if part == "train" or given is not None}


def _refuse_options(manifest: Manifest, own: Mapping[str, Any]) -> None:
    # Ratings have times, and no published split.
    formats = {file.format for files in manifest.parts.values() for file in files}
    allowed = ("min_rating", *_CUT) if formats & set(PUBLISHED_TABLES) else ()
    why = f"cannot be used with {manifest.name}, a named set with a fixed protocol"
    refused = {name: value for name, value in own.items() if name not in allowed}
    _refuse(refused, f"{why}: give the path of a file to split data your own way")


def _load_named(
    manifest: Manifest,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
    plan: Plan,
    cache: _Cache,
    policy: Policy | None,
) -> Split:
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
    options = {"min_rating": plan.min_rating, "least_per_user": manifest.least_per_user}

    def parse() -> Parsed:
        return _parse_named(manifest, files, labels, plan.min_rating)

    parsed = cached(manifest.name, sources, options, parse, cache)
    if plan.min_rating is None:  # a threshold changes the counts, by design
        _check_counts(manifest, parsed.parts)
    if manifest.layout == "pairs":
        return plan.apply(manifest.name, parsed.parts["pairs"], parsed.notes, sources)
    # Published figures on a set with validation pairs leave these among the candidates.
    protocol = EvaluationProtocol(test=("train",)) if "valid" in parsed.parts else None
    return _of_parts(manifest.name, parsed, plan, sources, protocol)


def _of_parts(
    name: str,
    parsed: Parsed,
    plan: Plan,
    sources: Mapping[str, str],
    protocol: EvaluationProtocol | None = None,
) -> Split:
    """Return the split of given parts; a missing valid is carved out of train."""
    parts, notes, _ = parsed
    source: ValidSource = "published" if "valid" in parts else "carved"
    if source == "carved":
        parts = {**parts, **plan.carve_valid(parts["train"])}
    train, valid, test = (parts[part] for part in PARTS)
    return Split(name, train, valid, test, source, notes, sources, protocol)


def _parse_named(
    manifest: Manifest,
    files: Mapping[str, LocatedFile],
    labels: Mapping[str, LocatedFile],
    min_rating: float | None,
) -> Parsed:
    notes: list[str] = []
    if "pairs" in files and (read := PUBLISHED_TABLES.get(files["pairs"].source.format)):
        table = read(_bytes_of(files["pairs"]), str(files["pairs"].path))
        (pairs,), notes = to_interactions([table], min_rating)
        return Parsed({"pairs": pairs}, tuple(notes))

    raw = {
        part: PUBLISHED[file.source.format](_bytes_of(file), str(file.path))
        for part, file in files.items()
    }
    n_users, n_items = (
        1 + max(int(getattr(pairs, kind).max()) for pairs in raw.values())
        for kind in ("users", "items")
    )
    names = {kind: read_id_list(_bytes_of(f), str(f.path)) for kind, f in labels.items()}
    if manifest.layout == "pairs":  # pairs may be renumbered: the ids of the file become labels
        names = {"users labels": np.arange(n_users), "items labels": np.arange(n_items)}

    def distinct(part: str, pairs: RawPairs) -> Interactions:
        found, repeats = Interactions.from_pairs(
            *pairs, n_users, n_items,
            user_labels=names.get("users labels"), item_labels=names.get("items labels"),
        )  # fmt: skip
        if repeats:
            notes.append(f"{files[part].path.name}: {counted(repeats, 'repeated pair')} dropped")
        return found

    parts = {part: distinct(part, pairs) for part, pairs in raw.items()}
    if manifest.layout == "pairs":
        parts["pairs"] = _drop_unused(manifest.least_per_user, parts["pairs"], notes)
    return Parsed(parts, tuple(notes))


def _drop_unused(least: int, pairs: Interactions, notes: list[str]) -> Interactions:
    enough = compact(pairs.take(pairs.user_degrees[pairs.users] >= least), items=False)
    if enough.n_users < pairs.n_users:
        few = counted(pairs.n_users - enough.n_users, "user")
        notes.append(f"{few} with fewer than {least} items dropped")
    used = compact(enough)
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
            f"{manifest.name} must have the counts of its manifest ({'; '.join(wrong)}); delete "
            "the files and fetch them again"
        )


def _bytes_of(file: LocatedFile) -> bytes:
    member = file.source.member
    return file.path.read_bytes() if member is None else read_member(file.path, member)


def _load_files(files: Mapping[str, Path], name: str, plan: Plan, cache: _Cache) -> Split:
    _check_given_parts(files, plan, "_file")
    for part, path in files.items():
        if not is_regular(path):
            raise DataError(f"{path}: no such file (given for {part})")
        refuse_endless_line(path)
    checksums = {part: sha256_of(path) for part, path in files.items()}
    names = [path.name for path in files.values()]
    # Files in several folders may have one name.
    sources = {
        path.name if names.count(path.name) == 1 else f"{part}/{path.name}": checksums[part]
        for part, path in files.items()
    }

    def parse() -> Parsed:
        return _parsed(files, [read_table(path, plan.columns) for path in files.values()], plan)

    options = {"columns": repr(plan.columns), "min_rating": plan.min_rating}
    parsed = cached(str(files["train"]), checksums, options, parse, cache)
    return _split(name, parsed, plan, sources)


def _load_memory(parts: Mapping[str, Any], name: str, plan: Plan) -> Split:
    from robustcf.data import memory  # rarely needed

    _check_given_parts(parts, plan, "")
    for part, source in parts.items():
        memory.check_in_memory(part, source)
    matrices = {part: memory.is_matrix(source) for part, source in parts.items()}
    if len(set(matrices.values())) > 1:
        given = ", ".join(f"{part}: {type(source).__name__}" for part, source in parts.items())
        raise DataError(f"give all parts as tables, or all as matrices, got {given}")
    if matrices["train"]:
        _refuse(plan.options(*_COLUMNS), "cannot be used with a matrix; leave them out")
        found, notes = memory.pairs_of(parts, name, plan.min_rating)
        return _split(name, Parsed(found, tuple(notes)), plan, {})
    tables = memory.tables_of(parts, name, plan.columns)
    return _split(name, _parsed(parts, tables, plan), plan, {})


def _check_given_parts(parts: Mapping[str, Any], plan: Plan, suffix: str) -> None:
    """Raise where given parts do not go with each other, or with an option."""
    if "test" in parts:
        refused = [n for n in ("k_core", *_CUT) if n != "valid_ratio" or "valid" in parts]
        why = f"cannot be combined with test{suffix}: the given data are the split"
        _refuse(plan.options(*refused), why)
    elif "valid" in parts:
        raise DataError(f"valid{suffix} needs test{suffix} too")


def _parsed(parts: Iterable[str], tables: list[Table], plan: Plan) -> Parsed:
    sets, notes = to_interactions(tables, plan.min_rating)
    return Parsed(dict(zip(parts, sets, strict=True)), tuple(notes), tables[0].time_unit)


def _split(name: str, parsed: Parsed, plan: Plan, sources: Mapping[str, str]) -> Split:
    """Return the split of parts that are given, or of all pairs."""
    train, notes = parsed.parts["train"], parsed.notes
    if "test" in parsed.parts:
        users, items = ((d == 0).sum() for d in (train.user_degrees, train.item_degrees))
        if users or items:
            cold = f"{users:,} users and {items:,} items are not in train, only in the other files"
            parsed = parsed._replace(notes=(*notes, cold))
        return _of_parts(name, parsed, plan, sources)
    if plan.k_core is not None:
        # Users and items are renumbered: without labels, their ids become labels.
        sizes = {"user_labels": train.n_users, "item_labels": train.n_items}
        missing: dict[str, Any] = {
            kind: np.arange(count) for kind, count in sizes.items() if getattr(train, kind) is None
        }
        core = core_of(replace(train, **missing), plan.k_core)
        before, after = (sized(len(each), each.n_users, each.n_items) for each in (train, core))
        train, notes = core, (*notes, f"{plan.k_core}-core: {before} -> {after}")
    plan.unit = parsed.unit
    return plan.apply(name, train, notes, sources)
