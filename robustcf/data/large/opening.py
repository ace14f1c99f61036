"""Prepared sets on disk: the checked manifest, and a Split over memory maps of the folder.

The layout is described in the guide *Large data*, so that any engine can write it. Shards are
checked on first use.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Mapping
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io import schema
from robustcf._io.limits import check_expansion
from robustcf._io.reading import open_plain, parse_json, read_plain
from robustcf._io.schema import check_kind, list_of, matching, nullable, record, shown, whole
from robustcf.data.interactions import Labels, checked_labels, user_ranges
from robustcf.data.large import MANIFEST
from robustcf.data.large.mapped import COLUMNS, LabelSource, MappedInteractions, joined
from robustcf.data.split import PARTS, EvaluationProtocol, Split, check_disjoint
from robustcf.errors import DataError, InputError

FORMAT, VERSION = "robustcf prepared set", 1

_AGAIN = "prepare the set again, or copy the folder anew"
_Columns = dict[str, npt.NDArray[Any]]
_MOST = 2**31 - 1
_FILE_NAME = matching("the plain name of a file in the folder", "[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SHA256 = matching("64 hexadecimal digits", "[0-9a-f]{64}")
_PART = record({"pairs": whole(), "offsets": _FILE_NAME, "shards": list_of(_FILE_NAME, 1)})
_KIND = record(
    {
        "name": schema.NAME,
        "n_users": whole(1, _MOST),
        "n_items": whole(1, _MOST),
        "columns": list_of(schema.choice(*COLUMNS), 2, len(COLUMNS)),
        "shards": list_of(whole(0, _MOST), 2),
        "parts": record(dict.fromkeys(PARTS, _PART)),
        "files": record({}, others=record({"bytes": whole()}, {"sha256": _SHA256})),
    },
    {
        "labels": record({}, {"users": nullable(_FILE_NAME), "items": nullable(_FILE_NAME)}),
        "valid_source": schema.choice("published", "carved", "none"),
        "eval_users": nullable(whole(1)),
        "fingerprint": nullable(_SHA256),
        "notes": list_of(schema.TEXT),
    },
)


def _check_manifest(file: Path, facts: Any) -> None:
    """Raise for a manifest of another format or version, or one that contradicts itself."""
    found = facts.get("format") if isinstance(facts, dict) else facts
    if found != FORMAT:
        raise DataError(f"{file}: format must be {FORMAT!r} for a prepared set, got {shown(found)}")
    if facts.get("version") != VERSION:
        raise DataError(
            f"{file}: version must be {VERSION}, got {shown(facts.get('version'))}: written for "
            "another version of robustcf; update robustcf, or prepare the set again"
        )
    check_kind(file, facts, _KIND)

    def check(fine: bool, key: str, expected: str, got: object) -> None:
        if not fine:
            raise DataError(f"{file}: {key} must be {expected}, got {shown(got)}; {_AGAIN}")

    columns, edges, n_users = facts["columns"], facts["shards"], facts["n_users"]
    once = {"user", "item"} <= set(columns) and len(set(columns)) == len(columns)
    check(once, "columns", "user, item and others, each once", columns)
    ascending = edges[0] == 0 and edges[-1] == n_users and sorted(edges) == edges
    check(ascending, "shards", f"users from 0 to {n_users}, ascending", edges)
    check(facts["parts"]["train"]["pairs"] > 0, "parts.train.pairs", "at least 1", 0)
    labels = facts.get("labels", {})  # may have other keys, of any kind
    names = [labels[kind] for kind in ("users", "items") if labels.get(kind) is not None]
    for part in PARTS:
        offsets, shards = facts["parts"][part]["offsets"], facts["parts"][part]["shards"]
        count = len(edges) - 1
        check(len(shards) == count, f"parts.{part}.shards", f"{count} names", shards)
        names += [offsets, *shards]
    differ = len(set(names)) == len(names) and MANIFEST not in names
    check(differ, "names of files", "different", sorted(names))
    # Every listed file is opened, including those that no part names.
    for name in facts["files"]:
        check(_FILE_NAME.fits(name), "names of files", _FILE_NAME.words, name)
    for name in names:
        check(name in facts["files"], "files", f"an object that says how long {name!r} is", None)


class PreparedSplit(Split):
    """A split over memory maps. Its parts are checked against each other shard by shard."""

    def _check_disjoint(self) -> None:
        if not all(isinstance(getattr(self, part), MappedInteractions) for part in PARTS):
            super()._check_disjoint()

    @cached_property
    def fingerprint(self) -> str:
        """See :attr:`Split.fingerprint`; that of the manifest, or else of the pairs."""
        known: str | None = vars(self).get("known_fingerprint")
        return super().fingerprint if known is None else known


def open_prepared(file: Path) -> PreparedSplit:
    """Return the split that a manifest describes; pairs are read, and checked, on use.

    Cost: the files of offsets, eight bytes per user and split.
    """
    return _Folder(file).split()


def check_prepared(file: Path) -> PreparedSplit:
    """Open a prepared set and check every file and the fingerprint, at the cost of reading all."""
    folder = _Folder(file)
    split = folder.split()
    for shard in range(len(folder.shards)):
        folder.shard(shard)
    for kind in ("user_labels", "item_labels"):
        getattr(split, kind)
    computed = Split.fingerprint.func(split)  # type: ignore[attr-defined]
    if computed != split.fingerprint:
        raise DataError(
            f"{file}: fingerprint must be {computed}, that of the pairs, got "
            f"{split.fingerprint}; {_AGAIN}"
        )
    return split


class _Folder:
    """The files of a prepared set, each checked on first use."""

    def __init__(self, file: Path) -> None:
        try:
            content = read_plain(file)
            facts = parse_json(content)
            _check_manifest(file, facts)
        except DataError:
            raise
        except InputError as error:
            reason = str(error) if str(file) in str(error) else f"{file}: {error}"
            raise DataError(reason) from error
        self.folder, self.facts = file.parent, facts
        self.digest = hashlib.sha256(content).hexdigest()
        self.shards = list(pairwise(facts["shards"]))  # ranges of users
        self._read: dict[int, dict[str, _Columns]] = {}
        # Before anything is read, so that a missing file is reported at once.
        for name in facts["files"]:
            os.close(self._open(name))

    def split(self) -> PreparedSplit:
        facts, n_items = self.facts, self.facts["n_items"]
        labels: dict[str, Any] = {
            f"{kind}_labels": LabelSource(partial(self._read_labels, name, kind))
            for kind in ("user", "item")
            if (name := facts.get("labels", {}).get(f"{kind}s")) is not None
        }
        parts = {
            part: MappedInteractions(
                partial(self._read_column, part), self.offsets[part], n_items, **labels
            )
            for part in PARTS
        }
        carved = len(parts["valid"]) > 0
        masked = ("train", "valid") if carved else ("train",)
        split = PreparedSplit(
            facts["name"],
            **parts,
            valid_source=facts.get("valid_source", "carved" if carved else "none"),
            notes=tuple(facts.get("notes", ())),
            sources={MANIFEST: self.digest},
            protocol=EvaluationProtocol(test=masked, users=facts.get("eval_users")),
        )
        vars(split)["known_fingerprint"] = facts.get("fingerprint")
        return split

    def _refused(self, name: str, problem: str) -> DataError:
        return DataError(f"{self.folder / name}: {problem}; {_AGAIN}")

    def _open(self, name: str) -> int:
        """Return the descriptor of a file that has the length of the manifest."""
        expected = self.facts["files"][name]["bytes"]
        try:
            descriptor = open_plain(self.folder / name)
        except InputError as error:
            raise DataError(f"{error}; {_AGAIN}") from error
        size = os.fstat(descriptor).st_size
        if size != expected:
            os.close(descriptor)
            said = f"expected {expected:,} bytes, as the manifest says, got {size:,}"
            raise self._refused(name, said)
        return descriptor

    def _mapped(self, name: str) -> mmap.mmap:
        """Return a file, mapped, with the length and the checksum of the manifest."""
        facts = self.facts["files"][name]
        with os.fdopen(self._open(name), "rb", buffering=0) as file:
            if facts["bytes"] == 0:
                raise self._refused(name, "expected an Arrow file, got an empty one")
            if "sha256" in facts:
                # Read, not hashed through the map, whose pages would stay in memory.
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != facts["sha256"]:
                    said = f"its sha256 must be {facts['sha256']}, got {digest}"
                    raise self._refused(name, f"{said}: it was altered or damaged")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _table(self, name: str) -> Any:
        """Return the table in an Arrow file, over its map."""
        import pyarrow as pa

        mapped = self._mapped(name)
        try:
            table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            reason = " ".join(str(error).split())[:200]
            raise self._refused(name, f"no readable Arrow file ({reason})") from error
        return table

    def _column(self, name: str, table: Any, column: str) -> Any:
        """Return a column of a table, without nulls."""
        if table.schema.names.count(column) != 1:
            raise self._refused(name, f"must have one column {column!r}, got {table.schema.names}")
        if table.column(column).null_count:
            raise self._refused(name, f"column {column!r} must have no nulls")
        return table.column(column)

    def _columns(self, name: str, wanted: Mapping[str, Any], rows: int) -> _Columns:
        """Return columns of numbers of given types and length, without a copy where possible."""
        import pyarrow as pa

        table, found = self._table(name), {}
        for column, dtype in wanted.items():
            array = self._column(name, table, column)
            if array.type != pa.from_numpy_dtype(dtype):
                said = f"column {column!r} must be {np.dtype(dtype)}, got {array.type}"
                raise self._refused(name, said)
            if len(array) != rows:
                said = f"column {column!r} must have {rows:,} rows, as the manifest says"
                raise self._refused(name, f"{said}, got {len(array):,}")
            plain = [chunk.to_numpy(zero_copy_only=True) for chunk in array.chunks]
            found[column] = plain[0] if len(plain) == 1 else joined(plain, dtype, rows)
        return found

    @cached_property
    def offsets(self) -> dict[str, npt.NDArray[np.int64]]:
        """The offsets of the users' pairs, in each split."""
        found = {}
        for part in PARTS:
            name, pairs = (self.facts["parts"][part][key] for key in ("offsets", "pairs"))
            offsets = self._columns(name, {"offset": np.int64}, self.facts["n_users"] + 1)["offset"]
            if offsets[0] != 0 or offsets[-1] != pairs or np.any(offsets[1:] < offsets[:-1]):
                said = f"offsets must ascend from 0 to the {pairs:,} pairs of {part}"
                raise self._refused(name, f"{said}, got {offsets[0]:,} to {offsets[-1]:,}")
            found[part] = offsets
        return found

    def _read_labels(self, name: str, kind: str) -> Labels:
        import pyarrow as pa
        import pyarrow.compute as pc

        count = self.facts[f"n_{kind}s"]
        column = self._column(name, self._table(name), "label")
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if not text and column.type != pa.int64():
            raise self._refused(name, f"column 'label' must be int64 or text, got {column.type}")
        if text:
            longest = pc.max(pc.utf8_length(column)).as_py() or 0
            size, path = self.facts["files"][name]["bytes"], self.folder / name
            check_expansion(path, f"an array of {count:,} labels", 4 * longest * count, size)
            array = np.array(column.to_pylist(), dtype=f"<U{max(longest, 1)}")
        else:
            array = column.to_numpy()
        try:
            return checked_labels(kind, array, count)
        except DataError as error:
            raise self._refused(name, str(error)) from error

    def _read_column(self, part: str, name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
        """Return pairs of a column, over all shards; see :data:`ReadColumn`."""
        if name not in self.facts["columns"]:
            return None
        pieces = []
        for number, (first, last) in enumerate(self.shards):
            begin, end = (int(self.offsets[part][user]) for user in (first, last))
            low, high = max(start, begin), min(stop, end)
            if low < high:
                pieces.append(self.shard(number)[part][name][low - begin : high - begin])
        return pieces[0] if len(pieces) == 1 else joined(pieces, COLUMNS[name], stop - start)

    def shard(self, number: int) -> dict[str, _Columns]:
        """Return the columns of all parts of a shard; checked the first time."""
        if number not in self._read:
            first, last = self.shards[number]
            wanted = {column: COLUMNS[column] for column in self.facts["columns"]}
            parts, sets = {}, {}
            for part in PARTS:
                name = self.facts["parts"][part]["shards"][number]
                places = self.offsets[part][first : last + 1]
                places = places - places[0]
                columns = parts[part] = self._columns(name, wanted, int(places[-1]))
                self._check_order(name, columns, places, first)
                sets[part] = MappedInteractions(
                    lambda name, start, stop, columns=columns: columns[name][start:stop],  # type: ignore[misc]
                    places,
                    self.facts["n_items"],
                    first_user=first,
                )
            check_disjoint(str(self.folder), sets, _AGAIN, first)
            self._read[number] = parts
        return self._read[number]

    def _check_order(
        self, name: str, columns: _Columns, places: npt.NDArray[np.int64], first: int
    ) -> None:
        """Raise unless pairs are those of the offsets, sorted, each once, with ids that exist."""
        n_items = self.facts["n_items"]
        for start, stop in user_ranges(places):
            span = slice(int(places[start]), int(places[stop]))
            users, items = columns["user"][span], columns["item"][span]
            expected = np.repeat(np.arange(start, stop) + first, np.diff(places[start : stop + 1]))
            low, high = items.min(initial=0), items.max(initial=0)
            problem = ""
            if not np.array_equal(users, expected):
                problem = "column 'user' must ascend and have as many pairs per user as the offsets"
            elif low < 0 or high >= n_items:
                got = low if low < 0 else high
                problem = f"column 'item' must be at least 0 and below {n_items:,}, got {got:,}"
            elif np.any((items[1:] <= items[:-1]) & (users[1:] == users[:-1])):
                problem = "column 'item' must ascend within each user, each item once"
            elif "weight" in columns and not np.isfinite(columns["weight"][span]).all():
                problem = "column 'weight' must be finite"
            if problem:
                raise self._refused(name, problem)
