"""Prepared sets: a folder in, a Split over memory maps out; a shard is checked when first used."""

from __future__ import annotations

import hashlib
import mmap
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import check_expansion
from robustcf._io.reading import open_plain
from robustcf.data.interactions import Interactions, Labels, checked_labels, user_ranges
from robustcf.data.layout import AGAIN, MANIFEST, PARTS, Manifest, read_manifest
from robustcf.data.mapped import COLUMNS, LabelSource, MappedInteractions, joined
from robustcf.data.split import EvaluationProtocol, Split, shared_pairs
from robustcf.errors import DataError, InputError

_HASHED_AT_ONCE = 1 << 22
_OFFSETS = {"offset": np.dtype(np.int64)}


class PreparedSplit(Split):
    """A split over memory maps. Its parts are checked against each other shard by shard."""

    def _check_disjoint(self) -> None:
        if not all(isinstance(getattr(self, part), MappedInteractions) for part in PARTS):
            super()._check_disjoint()

    @cached_property
    def fingerprint(self) -> str:
        """See :attr:`Split.fingerprint`; as the manifest says, or else of the pairs."""
        known: str | None = self.__dict__.get("known_fingerprint")
        return super().fingerprint if known is None else known


def open_prepared(file: Path) -> PreparedSplit:
    """The split that a manifest describes; its pairs are read when they are asked for.

    Args:
        file: the manifest.

    Raises:
        DataError: manifest or files are not what they must be. What concerns the pairs of a shard
            is found when the shard is first used.

    Cost: the files of offsets, eight bytes a user and part.
    """
    manifest = read_manifest(file)
    facts = manifest.facts
    folder = _Folder(manifest)
    labels = {kind: folder.labels(f"{kind}s", facts[f"n_{kind}s"]) for kind in ("user", "item")}
    parts = {
        part: MappedInteractions(
            _Part(folder, part),
            folder.offsets[part],
            facts["n_items"],
            user_labels=labels["user"],
            item_labels=labels["item"],
        )
        for part in PARTS
    }
    known = ("train", "valid") if len(parts["valid"]) else ("train",)
    split = PreparedSplit(
        facts["name"],
        parts["train"],
        parts["valid"],
        parts["test"],
        valid_source=facts.get("valid_source", "carved" if len(parts["valid"]) else "none"),
        notes=tuple(facts.get("notes", ())),
        sources={MANIFEST: manifest.digest},
        protocol=EvaluationProtocol(test=known, users=facts.get("eval_users")),
    )
    object.__setattr__(split, "known_fingerprint", facts.get("fingerprint"))
    return split


def check_prepared(file: Path) -> PreparedSplit:
    """Open a prepared set and check all of it: every file, and the fingerprint.

    Raises:
        DataError: something is not what the manifest says.

    Cost: one look at all bytes.
    """
    split = open_prepared(file)
    columns = split.train._columns  # type: ignore[attr-defined]
    for shard in range(len(columns.folder.manifest.shards)):
        columns.folder.shard(shard)
    for kind in ("user_labels", "item_labels"):
        getattr(split, kind)
    computed = Split.fingerprint.func(split)  # type: ignore[attr-defined]
    if computed != split.fingerprint:
        raise DataError(
            f"{file}: fingerprint must be {computed}, that of the pairs, got "
            f"{split.fingerprint}; {AGAIN}"
        )
    return split


class _Part:
    """The columns of one part, over all shards."""

    def __init__(self, folder: _Folder, part: str) -> None:
        self.folder, self.part = folder, part

    def column(self, name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
        if name not in self.folder.manifest.columns:
            return None
        pieces = []
        offsets = self.folder.offsets[self.part]
        for number, (first, last) in enumerate(self.folder.manifest.shards):
            begin, end = int(offsets[first]), int(offsets[last])
            low, high = max(start, begin), min(stop, end)
            if low < high:
                pieces.append(
                    self.folder.shard(number)[self.part][name][low - begin : high - begin]
                )
        if len(pieces) == 1:
            return pieces[0]
        return joined(iter(pieces), COLUMNS[name], stop - start)


class _Folder:
    """The files of a prepared set, each checked when it is first opened."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._shards: dict[int, dict[str, dict[str, npt.NDArray[Any]]]] = {}
        # Before anything is read: what is missing is known at once.
        for name in manifest.facts["files"]:
            self._check_size(name)

    def _path(self, name: str) -> Path:
        return self.manifest.folder / name

    def _check_size(self, name: str) -> None:
        expected = self.manifest.facts["files"][name]["bytes"]
        try:
            descriptor = open_plain(self._path(name))
        except InputError as error:
            raise DataError(f"{error}; {AGAIN}") from error
        size = os.fstat(descriptor).st_size
        os.close(descriptor)
        if size != expected:
            raise DataError(
                f"{self._path(name)}: expected {expected:,} bytes, as the manifest says, got "
                f"{size:,}; {AGAIN}"
            )

    def _mapped(self, name: str) -> mmap.mmap:
        """A file, mapped, with the length and the checksum that the manifest says."""
        self._check_size(name)
        path, facts = self._path(name), self.manifest.facts["files"][name]
        descriptor = open_plain(path)
        try:
            if facts["bytes"] == 0:
                raise DataError(f"{path}: expected an Arrow file, got an empty one; {AGAIN}")
            if "sha256" in facts:
                found = hashlib.sha256()
                # Read, not looked at through the map: pages that are hashed need not stay.
                with os.fdopen(os.dup(descriptor), "rb", buffering=0) as file:
                    while block := file.read(_HASHED_AT_ONCE):
                        found.update(block)
                if found.hexdigest() != facts["sha256"]:
                    raise DataError(
                        f"{path}: its sha256 must be {facts['sha256']}, as the manifest says, got "
                        f"{found.hexdigest()}: it was altered or damaged; {AGAIN}"
                    )
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    def _batches(self, name: str) -> list[Any]:
        """The record batches of an Arrow file, over its map."""
        import pyarrow as pa

        path, mapped = self._path(name), self._mapped(name)
        try:
            reader = pa.ipc.open_file(pa.py_buffer(mapped))
            batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
            for batch in batches:
                batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{path}: no readable Arrow file ({reason}); {AGAIN}") from error
        return batches

    def _columns(
        self, name: str, wanted: dict[str, np.dtype[Any]], rows: int
    ) -> dict[str, npt.NDArray[Any]]:
        """Columns of numbers, of given types and length, without a copy where they are whole."""
        import pyarrow as pa

        path, batches = self._path(name), self._batches(name)
        found = {}
        for column, dtype in wanted.items():
            arrays = []
            for batch in batches:
                place = batch.schema.get_field_index(column)
                kind = None if place < 0 else batch.schema.field(place).type
                if kind is None or kind != pa.from_numpy_dtype(dtype):
                    raise DataError(
                        f"{path}: column {column!r} must be {dtype}, got "
                        f"{'none' if kind is None else kind}; {AGAIN}"
                    )
                if batch.column(place).null_count:
                    raise DataError(f"{path}: column {column!r} must have no nulls; {AGAIN}")
                arrays.append(batch.column(place).to_numpy(zero_copy_only=True))
            count = sum(map(len, arrays))
            if count != rows:
                raise DataError(
                    f"{path}: column {column!r} must have {rows:,} rows, as the manifest says, "
                    f"got {count:,}; {AGAIN}"
                )
            found[column] = arrays[0] if len(arrays) == 1 else joined(iter(arrays), dtype, rows)
        return found

    @cached_property
    def offsets(self) -> dict[str, npt.NDArray[np.int64]]:
        """Where each user's pairs begin and end, in each part."""
        facts, found = self.manifest.facts, {}
        for part in PARTS:
            name, pairs = facts["parts"][part]["offsets"], facts["parts"][part]["pairs"]
            offsets = self._columns(name, _OFFSETS, facts["n_users"] + 1)["offset"]
            if offsets[0] != 0 or offsets[-1] != pairs or np.any(offsets[1:] < offsets[:-1]):
                raise DataError(
                    f"{self._path(name)}: offsets must ascend from 0 to the {pairs:,} pairs of "
                    f"{part}, got {offsets[0]:,} to {offsets[-1]:,}; {AGAIN}"
                )
            found[part] = offsets
        return found

    def labels(self, kind: str, count: int) -> LabelSource | None:
        """The labels of ``users`` or ``items``, or None."""
        name = self.manifest.labels(kind)
        return None if name is None else LabelSource(lambda: self._read_labels(name, kind, count))

    def _read_labels(self, name: str, kind: str, count: int) -> Labels:
        import pyarrow as pa

        path, batches = self._path(name), self._batches(name)
        types = {batch.schema.field("label").type for batch in batches if _has_label(batch)}
        text = types <= {pa.string(), pa.large_string()}
        if len(types) != 1 or not (text or types == {pa.int64()}):
            got = " and ".join(sorted(map(str, types))) or "none"
            raise DataError(f"{path}: column 'label' must be int64 or text, got {got}; {AGAIN}")
        columns = [batch.column(batch.schema.get_field_index("label")) for batch in batches]
        if any(column.null_count for column in columns):
            raise DataError(f"{path}: column 'label' must have no nulls; {AGAIN}")
        if text:
            import pyarrow.compute as pc

            longest = max((pc.max(pc.utf8_length(c)).as_py() or 0 for c in columns), default=0)
            size = self.manifest.facts["files"][name]["bytes"]
            what = f"an array of {count:,} labels"
            check_expansion(path, what, 4 * longest * count, size)
            width = f"<U{max(longest, 1)}"
            arrays = [np.array(column.to_pylist(), dtype=width) for column in columns]
        else:
            arrays = [column.to_numpy(zero_copy_only=True) for column in columns]
        labels = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        try:
            return checked_labels(kind.removesuffix("s"), labels, count)
        except DataError as error:
            raise DataError(f"{path}: {error}; {AGAIN}") from error

    def shard(self, number: int) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """The columns of all parts of a shard; checked the first time."""
        if number not in self._shards:
            first, last = self.manifest.shards[number]
            names = {part: self.manifest.facts["parts"][part]["shards"][number] for part in PARTS}
            wanted = {column: np.dtype(COLUMNS[column]) for column in self.manifest.columns}
            parts = {}
            for part, name in names.items():
                places = self.offsets[part][first : last + 1]
                columns = self._columns(name, wanted, int(places[-1] - places[0]))
                self._check_order(self._path(name), columns, places - places[0], first)
                parts[part] = columns
            self._check_apart(parts, first, last)
            self._shards[number] = parts
        return self._shards[number]

    def _check_order(
        self,
        path: Path,
        columns: dict[str, npt.NDArray[Any]],
        places: npt.NDArray[np.int64],
        first: int,
    ) -> None:
        """Raise unless pairs are those of the offsets, sorted, each once, with ids that exist."""
        n_items = self.manifest.facts["n_items"]
        for start, stop in user_ranges(places):
            span = slice(int(places[start]), int(places[stop]))
            users, items = columns["user"][span], columns["item"][span]
            expected = np.repeat(
                np.arange(first + start, first + stop), np.diff(places[start : stop + 1])
            )
            if not np.array_equal(users, expected):
                raise DataError(
                    f"{path}: column 'user' must ascend and have as many pairs of each user as "
                    f"the offsets say; {AGAIN}"
                )
            if len(items) and (items.min() < 0 or items.max() >= n_items):
                bad = items.min() if items.min() < 0 else items.max()
                raise DataError(
                    f"{path}: column 'item' must be at least 0 and below {n_items:,}, got {bad:,}; "
                    f"{AGAIN}"
                )
            if np.any((items[1:] <= items[:-1]) & (users[1:] == users[:-1])):
                raise DataError(
                    f"{path}: column 'item' must ascend within each user, each item once; {AGAIN}"
                )
            if "weight" in columns and not np.isfinite(columns["weight"][span]).all():
                raise DataError(f"{path}: column 'weight' must be finite; {AGAIN}")

    def _check_apart(
        self, parts: dict[str, dict[str, npt.NDArray[Any]]], first: int, last: int
    ) -> None:
        sets: dict[str, Interactions] = {}
        for part, columns in parts.items():
            places = self.offsets[part][first : last + 1]
            sets[part] = MappedInteractions(
                _Loaded(columns),
                places - places[0],
                self.manifest.facts["n_items"],
                first_user=first,
            )
        for left, right in (("train", "valid"), ("train", "test"), ("valid", "test")):
            small, large = sorted((sets[left], sets[right]), key=len)
            count, pair = shared_pairs(small, large) if len(small) else (0, None)
            if pair is not None:
                raise DataError(
                    f"{self.manifest.folder}: {count} pairs are in both {left} and {right}, the "
                    f"first is user {first + pair[0]}, item {pair[1]}; {AGAIN}"
                )


class _Loaded:
    """Columns of one shard."""

    def __init__(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        self.columns = columns

    def column(self, name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
        return self.columns[name][start:stop] if name in self.columns else None


def _has_label(batch: Any) -> bool:
    return bool(batch.schema.get_field_index("label") >= 0)
