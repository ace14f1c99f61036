"""``load``: a name or a file in, a Split out."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from robustcf.data import cache as parsed_cache
from robustcf.data import catalog, readers, splits, synthetic
from robustcf.data.catalog import Manifest
from robustcf.data.columns import Columns, kind_of
from robustcf.data.frames import SEPARATORS
from robustcf.data.interactions import Interactions
from robustcf.data.layout import manifest_of
from robustcf.data.prepared import open_prepared
from robustcf.data.readers import RawPairs
from robustcf.data.split import EvaluationProtocol, Split
from robustcf.data.splits import Strategy
from robustcf.data.tables import (
    Table,
    of_ids,
    read_ratings,
    read_table,
    to_interactions,
)
from robustcf.errors import DataError
from robustcf.fetching.archives import read_member
from robustcf.fetching.download import Policy
from robustcf.fetching.places import LocatedFile, locate, obtain, sha256_of
from robustcf.support.bounded import check_first_line, read_content
from robustcf.support.limits import limits
from robustcf.support.naming import counted

Parts = dict[str, Interactions]

_ID_READERS: Mapping[str, Callable[[bytes, str], RawPairs]] = {
    "adjacency": readers.read_adjacency,
    "counted-lists": readers.read_counted_lists,
    "json-lists": readers.read_json_lists,
}


def load(
    name_or_path: str | os.PathLike[str],
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
    valid_file: str | os.PathLike[str] | None = None,
    test_file: str | os.PathLike[str] | None = None,
    eval_users: int | None = None,
    cache: bool | Literal["read"] = True,
    policy: Policy | None = None,
) -> Split:
    """Load a data set by name, or your own by path.

    Names: ``demo``, ``ml-1m``, ``yelp2018``, ``citeulike`` (= ``citeulike-t``),
    ``citeulike-a``, ``gowalla``, ``ml-100k``. A path may end in ``.csv``, ``.tsv``,
    ``.parquet``, ``.inter`` or ``.dat`` (a table with a user and an item column) or ``.txt``
    (``user item item ...`` a line), each with ``.gz`` or without. It may also be a folder that
    :func:`robustcf.data.prepare` made, or its manifest: that is mapped, not read.

    Args:
        name_or_path: what to load.
        data_dir: the first folder to look in, and the one to download into.
        download: whether a missing file may be fetched.
        seed: of whatever part of the split is drawn at random.
        user_col: column with the user (found by its usual names when not given); a number
            counts columns from 0 in a file without a header line.
        item_col: column with the item.
        rating_col: column with the rating.
        time_col: column with the time (seconds, or dates).
        min_rating: keep only pairs rated at least this (tables and ``ml-100k``).
        k_core: keep the largest subset where users and items have at least k pairs each.
        split: ``random`` (default) or ``leave-one-out`` (by time where there is one).
        test_ratio: share of each user's pairs for test, default 0.1.
        valid_ratio: share of what is left for valid, default 0.1.
        valid_file: a file of its own for valid, instead of drawing it.
        test_file: a file of its own for test.
        eval_users: evaluate on a seeded sample of so many users; None for all, or as a prepared
            set says.
        cache: keep the parsed set, so that the next load is quick; ``read``: use what is kept,
            and keep nothing.
        policy: patience of downloads.

    Returns:
        The split; ``split.notes`` says what was dropped on the way.

    Raises:
        DataError: what was read breaks a rule; the message names file and line where it can.
        DownloadError: a file is missing and cannot be fetched.

    Cost: a first load parses (Yelp2018: well under a second), later ones read the cache.

    Example:
        >>> split = load("demo")
        >>> len(split.train), len(split.valid), len(split.test)
        (80846, 9067, 10087)
    """
    own = {
        "user_col": user_col,
        "item_col": item_col,
        "rating_col": rating_col,
        "time_col": time_col,
        "min_rating": min_rating,
        "k_core": k_core,
        "split": split,
        "test_ratio": test_ratio,
        "valid_ratio": valid_ratio,
        "valid_file": valid_file,
        "test_file": test_file,
    }
    name = os.fspath(name_or_path)
    manifest = catalog.find(name)
    if manifest is not None:
        _refuse_options(manifest, own)
        named = _load_named(manifest, data_dir, download, seed, min_rating, cache, policy)
        return named.with_eval_users(eval_users)
    path = Path(name).expanduser()
    if (prepared := manifest_of(path)) is not None:
        _refuse_prepared(path, own)
        return open_prepared(prepared).with_eval_users(eval_users)
    if not path.is_file():
        raise DataError(catalog.unknown_name(name))
    columns = Columns(
        *(None if c is None else str(c) for c in (user_col, item_col, rating_col, time_col))
    )
    files = {"train": path}
    if valid_file is not None:
        files["valid"] = Path(valid_file).expanduser()
    if test_file is not None:
        files["test"] = Path(test_file).expanduser()
    loaded = _load_own(
        files, columns, min_rating, k_core, seed, split, test_ratio, valid_ratio, cache
    )
    return loaded.with_eval_users(eval_users)


def _refuse_prepared(path: Path, own: Mapping[str, Any]) -> None:
    given = [name for name, value in own.items() if value is not None]
    if given:
        raise DataError(
            f"{path} is a prepared set, filtered and split already; {', '.join(given)} cannot be "
            "used with it: give them to 'robustcf datasets prepare'"
        )


# --- named sets -----------------------------------------------------------------------------


def _refuse_options(manifest: Manifest, own: Mapping[str, Any]) -> None:
    allowed = {"min_rating"} if manifest.name == "ml-100k" else set()
    given = [name for name, value in own.items() if value is not None and name not in allowed]
    if given:
        raise DataError(
            f"{manifest.name} is a named set with a fixed protocol; {', '.join(given)} cannot be "
            "used with it: give the path of a file to split data your own way"
        )


def _load_named(
    manifest: Manifest,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
    seed: int,
    min_rating: float | None,
    cache: bool | Literal["read"],
    policy: Policy | None,
) -> Split:
    if manifest.layout == "generated":
        return synthetic.demo(seed)
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

    def parse() -> tuple[Parts, tuple[str, ...]]:
        return _parse_named(manifest, files, labels, min_rating)

    options = {"min_rating": min_rating, "least_per_user": manifest.least_per_user}
    parts, notes = _through_cache(manifest.name, sources, options, parse, cache)
    if min_rating is None:  # a threshold changes the counts, by design
        _check_counts(manifest, parts)
    if manifest.layout == "pairs":
        return splits.split_pairs(manifest.name, parts["pairs"], seed, notes=notes, sources=sources)
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
    train, valid = splits.carve_valid(parts["train"], seed)
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


# --- own files ------------------------------------------------------------------------------


def _load_own(
    files: Mapping[str, Path],
    columns: Columns,
    min_rating: float | None,
    k_core: int | None,
    seed: int,
    strategy: Strategy | None,
    test_ratio: float | None,
    valid_ratio: float | None,
    cache: bool | Literal["read"],
) -> Split:
    given_test = "test" in files
    if "valid" in files and not given_test:
        raise DataError("valid_file needs test_file too: a file for valid alone is no split")
    refused = {"k_core": k_core, "split": strategy, "test_ratio": test_ratio}
    if "valid" in files:
        refused["valid_ratio"] = valid_ratio
    given = [option for option, value in refused.items() if value is not None]
    if given_test and given:
        raise DataError(
            f"{', '.join(given)} cannot be combined with given files: the files are the split"
        )
    for part, path in files.items():
        if not path.is_file():
            raise DataError(f"{path}: no such file (given for {part})")
        _check_first_line(path)
    name = files["train"].name
    checksums = {part: sha256_of(path) for part, path in files.items()}
    names = [path.name for path in files.values()]
    # Files of one name in several folders must not pass for one.
    sources = {
        path.name if names.count(path.name) == 1 else f"{part}/{path.name}": checksums[part]
        for part, path in files.items()
    }
    options = {"columns": repr(columns), "min_rating": min_rating}

    def parse() -> tuple[Parts, tuple[str, ...]]:
        tables = [read_own_table(path, columns) for path in files.values()]
        sets, notes = to_interactions(tables, min_rating)
        return dict(zip(files, sets, strict=True)), tuple(notes)

    parts, notes = _through_cache(str(files["train"]), checksums, options, parse, cache)
    if not given_test:
        pairs = parts["train"]
        if k_core is not None:
            before = pairs
            pairs = splits.k_core(pairs, k_core)
            notes = (*notes, f"{k_core}-core: {before!r} -> {pairs!r}")
        ratios = {"test_ratio": test_ratio, "valid_ratio": valid_ratio}
        chosen = {key: value for key, value in ratios.items() if value is not None}
        return splits.split_pairs(
            name, pairs, seed, strategy=strategy or "random", notes=notes, sources=sources, **chosen
        )
    if "valid" in parts:
        notes = (*notes, *_about_cold(parts))
        return Split(
            name, parts["train"], parts["valid"], parts["test"],
            valid_source="published", notes=notes, sources=sources,
        )  # fmt: skip
    notes = (*notes, *_about_cold(parts))
    ratio = 0.1 if valid_ratio is None else valid_ratio
    train, valid = splits.carve_valid(parts["train"], seed, ratio)
    return Split(name, train, valid, parts["test"], notes=notes, sources=sources)


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
    parse: Callable[[], tuple[Parts, tuple[str, ...]]],
    enabled: bool | Literal["read"],
) -> tuple[Parts, tuple[str, ...]]:
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
    parts, notes = parse()
    if enabled != "read":
        parsed_cache.write(key, parts, notes)
    return parts, (*notes, *damaged)
