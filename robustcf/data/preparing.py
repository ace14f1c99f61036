"""``prepare``: a collection larger than memory in, a folder that training maps out."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf._io.files import json_bytes, unwritable
from robustcf._io.temporary import temporary_folder
from robustcf._io.text import counted
from robustcf.data import splits
from robustcf.data.collection import Collection, find_collection, find_roles
from robustcf.data.columns import Columns
from robustcf.data.engine import Engine
from robustcf.data.layout import FORMAT, MANIFEST, PARTS, VERSION
from robustcf.data.mapped import COLUMNS
from robustcf.data.splits import HoldOut, Strategy
from robustcf.data.times import Moment
from robustcf.errors import DataError, InputError, WriteError

MEMORY = 4 << 30
_BLOCK = 1 << 22  # pairs at once
_HASHED_AT_ONCE = 1 << 22
# Bytes of disk a row while sorting, beside the columns twice: as found, and as written.
_SORT_BYTES = 32

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Prepared:
    """What was made.

    Args:
        path: the folder.
        manifest: the content of its manifest.
    """

    path: Path
    manifest: dict[str, Any]


def prepare(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shards: int = 1,
    seed: int = 0,
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
    eval_users: int | None = None,
    memory: int = MEMORY,
    threads: int = 1,
) -> Prepared:
    """Encode, de-duplicate, filter and split a collection out of core, into a folder.

    The result is what :func:`robustcf.data.load` gives for the same rows in one file with the same
    options: the same ids, labels, times, weights and parts. ``load`` takes the folder like a file,
    and maps it.

    Args:
        source: a file, a folder, a glob or a remote path (fsspec) of Parquet, CSV or TSV files.
        out: the folder to make; it must not exist, or be empty.
        shards: files of each part, each with a range of users of about as many pairs: a process
            that trains on its own range reads its own files.
        seed: of the split.
        user_col: see :func:`robustcf.data.load`, as all that is not explained here.
        item_col: column with the item.
        rating_col: column with the rating.
        time_col: column with the time.
        min_rating: keep pairs rated at least this.
        k_core: the largest subset where users and items have at least k pairs each.
        split: ``random``, ``leave-one-out`` or ``time``.
        test_ratio: share of the pairs for test.
        valid_ratio: share of the rest for valid.
        test_from: with ``time``, the first moment of test.
        valid_from: with ``time``, the first moment of valid.
        eval_users: evaluate on a seeded sample of so many users; None for all.
        memory: bytes that this process may take, about.
        threads: of the engine.

    Returns:
        The folder and its manifest.

    Raises:
        DataError: the collection breaks a rule.
        InputError: an option does, DuckDB is not there, or another process prepares this folder.
        WriteError: the folder cannot be made, or the disk is too small.

    Cost: three looks at the rows and one external sort; on disk, for a while, some 50 bytes a row.
    """
    check_integer("shards", shards)
    check_integer("threads", threads)
    if k_core is not None and k_core < 1:
        raise DataError(f"k-core needs k of at least 1, got {k_core}")
    if eval_users is not None:
        check_integer("eval_users", eval_users)
    how = HoldOut(
        split or "random", seed, test_ratio=test_ratio, valid_ratio=valid_ratio,
        test_from=test_from, valid_from=valid_from,
    )  # fmt: skip
    columns = Columns(
        *(None if c is None else str(c) for c in (user_col, item_col, rating_col, time_col))
    )
    collection = find_collection(os.fspath(source))
    roles = find_roles(collection, columns)
    target = _free_place(Path(out))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(target, "another 'robustcf datasets prepare'") as fresh:
            _free_place(target)  # it may have been made since
            scratch = fresh / "scratch"
            scratch.mkdir()
            engine = Engine(collection, roles, columns, scratch, memory=memory, threads=threads)
            with closing(engine):
                _check_disk(fresh, engine)
                rows = _Found(scratch, collection, engine, min_rating)
                kept = _Kept(rows, k_core)
                labels = _write_labels(fresh, engine, kept)
            how.unit = engine.time_unit
            parts = _split(scratch, rows, kept, how)
            kept.notes += how.notes(_new_in(fresh, labels, parts["train"]), _empty(parts))
            manifest = _write(fresh, rows, kept, parts, shards, labels)
            manifest |= {"name": collection.name, "eval_users": eval_users}
            shutil.rmtree(scratch)
            (fresh / MANIFEST).write_bytes(json_bytes(manifest))
            _to_disk(fresh)
            fresh.chmod(0o755)
            os.replace(fresh, target)
    except WriteError:
        raise
    except OSError as error:
        raise unwritable(target, error) from error
    return Prepared(target, manifest)


def _free_place(out: Path) -> Path:
    place = Path(os.path.realpath(out)) if out.is_symlink() else out
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{out} exists already: choose another --out, or remove it")
    return place


def _check_disk(folder: Path, engine: Engine) -> None:
    """Raise before the long work where the disk is surely too small for it."""
    width = 8 + 8 * bool(engine.values["time"]) + 4 * bool(engine.values["rating"])
    needed = engine.rows * (2 * width + _SORT_BYTES)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WriteError(
            f"{engine.rows:,} rows need about {needed / 1e9:,.1f} GB of disk for a while, and "
            f"{folder.parent} has {free / 1e9:,.1f} GB free: free some space, or choose another "
            "--out"
        )


def _to_disk(folder: Path) -> None:
    """See that the files are on the disk before their folder gets its name."""
    for path in sorted(folder.iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        path.chmod(0o644)


# --- rows -> pairs --------------------------------------------------------------------------


class _Found:
    """The distinct pairs of a collection, sorted, in files of plain numbers; a block at a time."""

    def __init__(
        self, folder: Path, collection: Collection, engine: Engine, min_rating: float | None
    ) -> None:
        self.folder = folder
        self.n_users, self.n_items = engine.counts["user"], engine.counts["item"]
        named = {"time": engine.values["time"], "weight": engine.values["rating"]}
        self.columns = ("user", "item", *(name for name, given in named.items() if given))
        self.notes = list(engine.notes)
        if min_rating is not None and engine.values["rating"] is None:
            raise DataError(
                f"{collection.source}: min_rating = {min_rating:g} needs a rating column and none "
                "was found; name it with rating_col (--rating-col)"
            )
        self.user_degrees = np.zeros(self.n_users, dtype=np.int64)
        self.item_degrees = np.zeros(self.n_items, dtype=np.int64)
        repeated = low = self.pairs = 0
        last = -1
        files = {name: self._path(name).open("wb") for name in self.columns}
        try:
            for rows in engine.sorted_rows():
                keep = np.diff(rows.keys, prepend=last) != 0
                last = int(rows.keys[-1])
                repeated += len(keep) - int(keep.sum())
                if min_rating is not None and rows.weights is not None:
                    enough = rows.weights >= min_rating
                    low += int((keep & ~enough).sum())
                    keep &= enough
                users, items = np.divmod(rows.keys[keep], self.n_items)
                block = {"user": users, "item": items}
                if rows.times is not None:
                    block["time"] = rows.times[keep]
                if rows.weights is not None:
                    block["weight"] = rows.weights[keep]
                for name, file in files.items():
                    file.write(np.ascontiguousarray(block[name], dtype=COLUMNS[name]).data)
                self.user_degrees += np.bincount(users, minlength=self.n_users)
                self.item_degrees += np.bincount(items, minlength=self.n_items)
                self.pairs += len(users)
        finally:
            for file in files.values():
                file.close()
        if repeated:
            self.notes.append(f"{collection.name}: {counted(repeated, 'repeated pair')} dropped")
        if self.pairs == 0:
            raise DataError(
                f"{collection.source}: no rating reaches min_rating = {min_rating:g}; the highest "
                f"is {engine.highest:g}"
            )
        if low:
            self.notes.append(
                f"{collection.name}: {counted(low, 'pair')} rated below {min_rating:g} dropped"
            )

    def _path(self, name: str) -> Path:
        return self.folder / f"found-{name}"

    def blocks(self, names: tuple[str, ...]) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Columns of whole users, about :data:`_BLOCK` pairs at a time."""
        ends = np.cumsum(self.user_degrees)
        start, files = 0, {name: self._path(name).open("rb") for name in names}
        try:
            while start < self.pairs:
                # The last user who still ends within reach, or the one who begins here.
                reach = int(np.searchsorted(ends, start + _BLOCK, side="right")) - 1
                here = int(np.searchsorted(ends, start, side="right"))
                stop = int(ends[max(reach, here)])
                yield {
                    name: np.fromfile(file, dtype=COLUMNS[name], count=stop - start)
                    for name, file in files.items()
                }
                start = stop
        finally:
            for file in files.values():
                file.close()


class _Kept:
    """Which users and items stay, with their new numbers."""

    def __init__(self, found: _Found, k_core: int | None) -> None:
        self.users, self.items = found.user_degrees > 0, found.item_degrees > 0
        self.pairs, self.notes = found.pairs, list(found.notes)
        self.user_degrees = found.user_degrees
        if k_core is not None:
            before = self._words()
            self._shrink(found, k_core)
            if self.pairs == 0:
                raise DataError(
                    f"no pair is left in the {k_core}-core of {before}; choose a smaller k"
                )
            self.notes.append(f"{k_core}-core: {before} -> {self._words()}")
        self.user_degrees = self.user_degrees[self.users]
        self.new_user = np.cumsum(self.users, dtype=np.int64).astype(np.int32) - 1
        self.new_item = np.cumsum(self.items, dtype=np.int64).astype(np.int32) - 1
        self.n_users, self.n_items = int(self.users.sum()), int(self.items.sum())

    def _words(self) -> str:
        users, items = int(self.users.sum()), int(self.items.sum())
        return f"Interactions({self.pairs:,} pairs, {users:,} users x {items:,} items)"

    def _shrink(self, found: _Found, k: int) -> None:
        """Take away users and items of too few pairs until none is left: the largest such set."""
        users, items = found.user_degrees, found.item_degrees
        while True:
            enough_users, enough_items = users >= k, items >= k
            if np.array_equal(enough_users, users > 0) and np.array_equal(enough_items, items > 0):
                break
            self.users, self.items = enough_users, enough_items
            users, items = np.zeros_like(users), np.zeros_like(items)
            for block in found.blocks(("user", "item")):
                stay = self.stays(block)
                users += np.bincount(block["user"][stay], minlength=found.n_users)
                items += np.bincount(block["item"][stay], minlength=found.n_items)
        self.users, self.items = users > 0, items > 0
        self.pairs, self.user_degrees = int(users.sum()), users

    def stays(self, block: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
        """Which pairs of a block stay."""
        stay: npt.NDArray[np.bool_] = self.users[block["user"]] & self.items[block["item"]]
        return stay


# --- pairs -> parts -------------------------------------------------------------------------


class _Part:
    """The columns of a part, written to files of plain numbers one block after another."""

    def __init__(
        self, folder: Path, part: str, columns: tuple[str, ...], n_users: int, n_items: int
    ) -> None:
        self.paths = {name: folder / f"{part}-{name}" for name in columns}
        self.files: dict[str, BinaryIO] = {n: path.open("wb") for n, path in self.paths.items()}
        self.degrees = np.zeros(n_users, dtype=np.int64)
        self.item_degrees = np.zeros(n_items, dtype=np.int64)

    def add(self, block: dict[str, npt.NDArray[Any]], chosen: npt.NDArray[np.bool_]) -> None:
        for name, file in self.files.items():
            file.write(np.ascontiguousarray(block[name][chosen]).data)
        self.degrees += np.bincount(block["user"][chosen], minlength=len(self.degrees))
        self.item_degrees += np.bincount(block["item"][chosen], minlength=len(self.item_degrees))

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self.degrees)))

    def column(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Pairs of a column, mapped."""
        dtype = np.dtype(COLUMNS[name])
        if start == stop:
            return np.empty(0, dtype=dtype)
        place = start * dtype.itemsize
        return np.memmap(self.paths[name], dtype, "r", offset=place, shape=(stop - start,))


def _split(folder: Path, found: _Found, kept: _Kept, how: HoldOut) -> dict[str, _Part]:
    sizes = kept.n_users, kept.n_items
    parts = {part: _Part(folder, part, found.columns, *sizes) for part in PARTS}
    try:
        how.look_at(None if "time" not in found.columns else lambda: _times(found, kept))
        for block in found.blocks(found.columns):
            stay = kept.stays(block)
            pairs = {name: column[stay] for name, column in block.items()}
            pairs["user"] = kept.new_user[pairs["user"]]
            pairs["item"] = kept.new_item[pairs["item"]]
            users, times = pairs["user"], pairs.get("time")
            in_test = how.hold_out("test", users, times)
            in_valid = np.zeros_like(in_test)
            rest = ~in_test
            in_valid[rest] = how.hold_out(
                "valid", users[rest], None if times is None else times[rest]
            )
            for part, chosen in (
                ("train", rest & ~in_valid),
                ("valid", in_valid),
                ("test", in_test),
            ):
                parts[part].add(pairs, chosen)
    finally:
        for written in parts.values():
            written.close()
    return parts


def _times(found: _Found, kept: _Kept) -> Iterator[npt.NDArray[np.int64]]:
    """The times of the pairs that stay, a block at a time."""
    for block in found.blocks(("user", "item", "time")):
        yield block["time"][kept.stays(block)]


def _empty(parts: dict[str, _Part]) -> list[str]:
    return [part for part in ("test", "valid") if not parts[part].degrees.any()]


def _new_in(folder: Path, labels: dict[str, str], train: _Part) -> str:
    """The users and items that are not in train, in words."""
    import pyarrow as pa

    new = []
    for kind, degrees in (("user", train.degrees), ("item", train.item_degrees)):
        ids = np.flatnonzero(degrees == 0)
        with pa.memory_map(str(folder / labels[f"{kind}s"])) as file:
            column = pa.ipc.open_file(file).read_all().column(0)
            examples = column.take(pa.array(ids[: splits.EXAMPLES])).to_pylist()
        new.append(splits.named(len(ids), kind, examples))
    return " and ".join(filter(None, new))


# --- files ----------------------------------------------------------------------------------


def _write_labels(folder: Path, engine: Engine, kept: _Kept) -> dict[str, str]:
    """The labels of those who stay, in order, as Arrow files."""
    import pyarrow as pa

    names = {}
    for role, stay in (("user", kept.users), ("item", kept.items)):
        name = names[f"{role}s"] = f"{role}s.arrow"
        reader, start = engine.labels(role), 0
        with pa.ipc.new_file(folder / name, reader.schema) as writer:
            for batch in reader:
                chosen = stay[start : start + len(batch)]
                start += len(batch)
                writer.write_batch(batch.filter(pa.array(chosen)))
    return names


def _write(
    folder: Path,
    found: _Found,
    kept: _Kept,
    parts: dict[str, _Part],
    shards: int,
    labels: dict[str, str],
) -> dict[str, Any]:
    """The files of all parts; returns the manifest."""
    edges = _edges(kept.user_degrees, shards)
    described: dict[str, Any] = {}
    for name, part in parts.items():
        offsets = part.offsets
        _write_arrow(folder / f"{name}-offsets.arrow", {"offset": offsets})
        files = []
        for number, (first, last) in enumerate(pairwise(edges)):
            files.append(f"{name}-{number:05d}.arrow")
            start, stop = int(offsets[first]), int(offsets[last])
            columns = {column: part.column(column, start, stop) for column in found.columns}
            _write_arrow(folder / files[-1], columns)
        described[name] = {
            "pairs": int(offsets[-1]),
            "offsets": f"{name}-offsets.arrow",
            "shards": files,
        }
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": "",
        "n_users": kept.n_users,
        "n_items": kept.n_items,
        "columns": list(found.columns),
        "valid_source": "carved" if described["valid"]["pairs"] else "none",
        "shards": edges,
        "parts": described,
        "labels": labels,
        "eval_users": None,
        "notes": kept.notes,
        "fingerprint": _fingerprint(kept, parts),
        "files": {
            path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths
        },
    }


def _edges(degrees: npt.NDArray[np.int64], shards: int) -> list[int]:
    """Where the users of each shard begin and end: about as many pairs in each."""
    ends = np.cumsum(degrees)
    aims = [ends[-1] * number // shards for number in range(1, shards)]
    return [0, *(int(np.searchsorted(ends, aim)) for aim in aims), len(degrees)]


def _write_arrow(path: Path, columns: dict[str, npt.NDArray[Any]]) -> None:
    """Columns as one record batch, which a reader can map whole."""
    import pyarrow as pa

    arrays = [
        pa.Array.from_buffers(
            pa.from_numpy_dtype(column.dtype), len(column), [None, pa.py_buffer(column)]
        )
        for column in columns.values()
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)


def _fingerprint(kept: _Kept, parts: dict[str, _Part]) -> str:
    """That of :attr:`robustcf.data.Split.fingerprint`."""
    digest = hashlib.sha256(f"{kept.n_users},{kept.n_items}".encode())
    for name in PARTS:
        part = parts[name]
        digest.update(f";{int(part.degrees.sum())};".encode())
        for column in ("user", "item"):
            _hash_file(digest, part.paths[column])
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    _hash_file(digest, path)
    return digest.hexdigest()


def _hash_file(digest: Any, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASHED_AT_ONCE):
            digest.update(block)
