"""Open prepared sets: a folder in, a Split over memory maps out; shards are checked when used."""

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
from robustcf.data.large import MANIFEST
from robustcf.data.large.layout import AGAIN, Manifest, read_manifest
from robustcf.data.large.mapped import COLUMNS, LabelSource, MappedInteractions, joined
from robustcf.data.split import PARTS, EvaluationProtocol, Split, check_disjoint
from robustcf.errors import DataError, InputError

_Columns = dict[str, npt.NDArray[Any]]
_HASHED_AT_ONCE = 1 << 22


class PreparedSplit(Split):
    """A split over memory maps. Its parts are checked against each other shard by shard."""

    def _check_disjoint(self) -> None:
        if not all(isinstance(getattr(self, part), MappedInteractions) for part in PARTS):
            super()._check_disjoint()

    @cached_property
    def fingerprint(self) -> str:
        """See :attr:`Split.fingerprint`; that of the manifest, or else of the pairs."""
        known: str | None = self.__dict__.get("known_fingerprint")
        return super().fingerprint if known is None else known


def open_prepared(file: Path) -> PreparedSplit:
    """Return the split that a manifest describes; pairs are read, and checked, when asked for.

    Cost: the files of offsets, eight bytes per user and part.
    """
    return _split_of(_Folder(read_manifest(file)))


def _split_of(folder: _Folder) -> PreparedSplit:
    facts = folder.manifest.facts
    labels: dict[str, Any] = {
        f"{kind}_labels": folder.labels(kind, facts[f"n_{kind}s"]) for kind in ("user", "item")
    }
    parts = {
        part: MappedInteractions(
            folder.reader(part), folder.offsets[part], facts["n_items"], **labels
        )
        for part in PARTS
    }
    carved = len(parts["valid"]) > 0
    split = PreparedSplit(
        facts["name"],
        **parts,
        valid_source=facts.get("valid_source", "carved" if carved else "none"),
        notes=tuple(facts.get("notes", ())),
        sources={MANIFEST: folder.manifest.digest},
        protocol=EvaluationProtocol(
            test=("train", "valid") if carved else ("train",), users=facts.get("eval_users")
        ),
    )
    split.__dict__["known_fingerprint"] = facts.get("fingerprint")
    return split


def check_prepared(file: Path) -> PreparedSplit:
    """Open a prepared set and check every file and the fingerprint, at the cost of reading all."""
    folder = _Folder(read_manifest(file))
    split = _split_of(folder)
    for shard in range(len(folder.manifest.shards)):
        folder.shard(shard)
    for kind in ("user_labels", "item_labels"):
        getattr(split, kind)
    computed = Split.fingerprint.func(split)  # type: ignore[attr-defined]
    if computed != split.fingerprint:
        raise DataError(
            f"{file}: fingerprint must be {computed}, that of the pairs, got "
            f"{split.fingerprint}; {AGAIN}"
        )
    return split


class _Folder:
    """The files of a prepared set, each checked when it is first opened."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._shards: dict[int, dict[str, _Columns]] = {}
        # Before anything is read: a missing file is known at once.
        for name in manifest.facts["files"]:
            os.close(self._open(name))

    def _refused(self, name: str, problem: str) -> DataError:
        return DataError(f"{self.manifest.folder / name}: {problem}; {AGAIN}")

    def _open(self, name: str) -> int:
        """Return the descriptor of a file that has the length of the manifest."""
        expected = self.manifest.facts["files"][name]["bytes"]
        try:
            descriptor = open_plain(self.manifest.folder / name)
        except InputError as error:
            raise DataError(f"{error}; {AGAIN}") from error
        size = os.fstat(descriptor).st_size
        if size != expected:
            os.close(descriptor)
            said = f"expected {expected:,} bytes, as the manifest says, got {size:,}"
            raise self._refused(name, said)
        return descriptor

    def _mapped(self, name: str) -> mmap.mmap:
        """Return a file, mapped, with the length and the checksum of the manifest."""
        facts = self.manifest.facts["files"][name]
        descriptor = self._open(name)
        try:
            if facts["bytes"] == 0:
                raise self._refused(name, "expected an Arrow file, got an empty one")
            if "sha256" in facts:
                found = hashlib.sha256()
                # Read, not looked at through the map: pages that are hashed need not stay.
                with os.fdopen(os.dup(descriptor), "rb", buffering=0) as file:
                    while block := file.read(_HASHED_AT_ONCE):
                        found.update(block)
                if found.hexdigest() != facts["sha256"]:
                    said = f"its sha256 must be {facts['sha256']}, got {found.hexdigest()}"
                    raise self._refused(name, f"{said}: it was altered or damaged")
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    def _column(self, batches: list[Any], name: str, column: str) -> list[Any]:
        """Return a column of record batches, without nulls; an empty list where it is missing."""
        places = [batch.schema.get_field_index(column) for batch in batches]
        arrays = [b.column(place) for b, place in zip(batches, places, strict=True) if place >= 0]
        if any(array.null_count for array in arrays):
            raise self._refused(name, f"column {column!r} must have no nulls")
        return arrays

    def _batches(self, name: str) -> list[Any]:
        """Return the record batches of an Arrow file, over its map."""
        import pyarrow as pa

        mapped = self._mapped(name)
        try:
            reader = pa.ipc.open_file(pa.py_buffer(mapped))
            batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
            for batch in batches:
                batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            reason = " ".join(str(error).split())[:200]
            raise self._refused(name, f"no readable Arrow file ({reason})") from error
        return batches

    def _columns(self, name: str, wanted: dict[str, Any], rows: int) -> _Columns:
        """Return columns of numbers of given types and length, without a copy where possible."""
        import pyarrow as pa

        batches, found = self._batches(name), {}
        for column, dtype in wanted.items():
            arrays = self._column(batches, name, column)
            wrong = [str(a.type) for a in arrays if a.type != pa.from_numpy_dtype(dtype)]
            if wrong or len(arrays) != len(batches):
                got = (*wrong, "none")[0]
                said = f"column {column!r} must be {np.dtype(dtype)}, got {got}"
                raise self._refused(name, said)
            count = sum(map(len, arrays))
            if count != rows:
                said = f"column {column!r} must have {rows:,} rows, as the manifest says"
                raise self._refused(name, f"{said}, got {count:,}")
            plain = [array.to_numpy(zero_copy_only=True) for array in arrays]
            found[column] = plain[0] if len(plain) == 1 else joined(plain, dtype, rows)
        return found

    @cached_property
    def offsets(self) -> dict[str, npt.NDArray[np.int64]]:
        """Where each user's pairs begin and end, in each part."""
        facts, found = self.manifest.facts, {}
        for part in PARTS:
            name, pairs = facts["parts"][part]["offsets"], facts["parts"][part]["pairs"]
            offsets = self._columns(name, {"offset": np.int64}, facts["n_users"] + 1)["offset"]
            if offsets[0] != 0 or offsets[-1] != pairs or np.any(offsets[1:] < offsets[:-1]):
                said = f"offsets must ascend from 0 to the {pairs:,} pairs of {part}"
                raise self._refused(name, f"{said}, got {offsets[0]:,} to {offsets[-1]:,}")
            found[part] = offsets
        return found

    def labels(self, kind: str, count: int) -> LabelSource | None:
        """Return the labels of ``user`` or ``item``, or None."""
        name = self.manifest.facts.get("labels", {}).get(f"{kind}s")
        return None if name is None else LabelSource(lambda: self._read_labels(name, kind, count))

    def _read_labels(self, name: str, kind: str, count: int) -> Labels:
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = self._column(self._batches(name), name, "label")
        types = {column.type for column in columns}
        text = types <= {pa.string(), pa.large_string()}
        if len(types) != 1 or not (text or types == {pa.int64()}):
            got = " and ".join(sorted(map(str, types))) or "none"
            raise self._refused(name, f"column 'label' must be int64 or text, got {got}")
        if text:
            longest = max((pc.max(pc.utf8_length(c)).as_py() or 0 for c in columns), default=0)
            size = self.manifest.facts["files"][name]["bytes"]
            path = self.manifest.folder / name
            check_expansion(path, f"an array of {count:,} labels", 4 * longest * count, size)
            width = f"<U{max(longest, 1)}"
            arrays = [np.array(column.to_pylist(), dtype=width) for column in columns]
        else:
            arrays = [column.to_numpy(zero_copy_only=True) for column in columns]
        labels = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        try:
            return checked_labels(kind, labels, count)
        except DataError as error:
            raise self._refused(name, str(error)) from error

    def reader(self, part: str) -> Any:
        """Return the reader of the columns of a part, over all shards."""

        def column(name: str, start: int, stop: int) -> npt.NDArray[Any] | None:
            if name not in self.manifest.facts["columns"]:
                return None
            pieces = []
            offsets = self.offsets[part]
            for number, (first, last) in enumerate(self.manifest.shards):
                begin, end = int(offsets[first]), int(offsets[last])
                low, high = max(start, begin), min(stop, end)
                if low < high:
                    here = self.shard(number)[part][name]
                    pieces.append(here[low - begin : high - begin])
            return pieces[0] if len(pieces) == 1 else joined(pieces, COLUMNS[name], stop - start)

        return column

    def shard(self, number: int) -> dict[str, _Columns]:
        """Return the columns of all parts of a shard; checked the first time."""
        if number not in self._shards:
            first, last = self.manifest.shards[number]
            facts = self.manifest.facts
            wanted = {column: COLUMNS[column] for column in facts["columns"]}
            parts: dict[str, _Columns] = {}
            sets: dict[str, Interactions] = {}
            for part in PARTS:
                name, places = facts["parts"][part]["shards"][number], self.offsets[part]
                places = places[first : last + 1] - places[first]
                columns = parts[part] = self._columns(name, wanted, int(places[-1]))
                self._check_order(name, columns, places, first)
                sets[part] = MappedInteractions(
                    lambda name, start, stop, columns=columns: columns[name][start:stop],  # type: ignore[misc]
                    places,
                    facts["n_items"],
                    first_user=first,
                )
            check_disjoint(str(self.manifest.folder), sets, AGAIN, first)
            self._shards[number] = parts
        return self._shards[number]

    def _check_order(
        self, name: str, columns: _Columns, places: npt.NDArray[np.int64], first: int
    ) -> None:
        """Raise unless pairs are those of the offsets, sorted, each once, with ids that exist."""
        n_items = self.manifest.facts["n_items"]
        for start, stop in user_ranges(places):
            span = slice(int(places[start]), int(places[stop]))
            users, items = columns["user"][span], columns["item"][span]
            expected = np.arange(first + start, first + stop)
            if not np.array_equal(users, np.repeat(expected, np.diff(places[start : stop + 1]))):
                said = "column 'user' must ascend and have as many pairs per user as the offsets"
                raise self._refused(name, said)
            if len(items) and (items.min() < 0 or items.max() >= n_items):
                bad = items.min() if items.min() < 0 else items.max()
                said = f"column 'item' must be at least 0 and below {n_items:,}, got {bad:,}"
                raise self._refused(name, said)
            if np.any((items[1:] <= items[:-1]) & (users[1:] == users[:-1])):
                said = "column 'item' must ascend within each user, each item once"
                raise self._refused(name, said)
            if "weight" in columns and not np.isfinite(columns["weight"][span]).all():
                raise self._refused(name, "column 'weight' must be finite")
