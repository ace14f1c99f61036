"""``prepare``: turn a collection larger than memory into a folder that training maps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf._io.fetching import sha256_of
from robustcf._io.files import json_bytes, unwritable
from robustcf._io.temporary import temporary_folder
from robustcf.data.holdout import Plan, Strategy, core_degrees, new_in, told
from robustcf.data.interactions import user_ranges
from robustcf.data.large import MANIFEST
from robustcf.data.large.engine import Engine
from robustcf.data.large.mapped import COLUMNS
from robustcf.data.large.opening import FORMAT, VERSION
from robustcf.data.large.sources import find_collection, find_roles
from robustcf.data.split import PARTS, fingerprint_of
from robustcf.data.tables import RowFilter
from robustcf.data.times import Moment
from robustcf.errors import InputError, WriteError

MEMORY = 4 << 30
_BLOCK = 1 << 22  # pairs at once
_SORT_BYTES = 32  # disk per row while sorting, next to the columns as found and as written

_Block = dict[str, npt.NDArray[Any]]


class Prepared(NamedTuple):
    """A prepared folder, and the content of its manifest."""

    path: Path
    manifest: dict[str, Any]


def prepare(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shards: int = 1,
    seed: int = 0,
    split: Strategy | None = None,
    test_ratio: float | None = None,
    valid_ratio: float | None = None,
    test_from: Moment | None = None,
    valid_from: Moment | None = None,
    user_col: str | int | None = None,
    item_col: str | int | None = None,
    rating_col: str | int | None = None,
    time_col: str | int | None = None,
    min_rating: float | None = None,
    k_core: int | None = None,
    eval_users: int | None = None,
    memory: int = MEMORY,
    threads: int = 1,
) -> Prepared:
    """Encode, de-duplicate, filter and split a collection out of core, into a folder.

    The split is that of :func:`robustcf.data.load` for the same rows in one file. ``load`` maps the
    folder. Options that are not listed here are those of ``load``.

    Args:
        source: a file, a folder, a glob or a remote path (fsspec) of Parquet, CSV or TSV files.
        out: the folder to make; it must not exist, or be empty.
        shards: files of each part, each with a range of users of about as many pairs: a process
            that trains on its own range reads its own files.
        seed: seed of the split.
        memory: approximate limit of the memory of this process, in bytes.
        threads: threads of DuckDB.

    Raises:
        DataError: the collection breaks a rule.
        InputError: an option does, DuckDB is missing, or another process prepares this folder.
        WriteError: the folder cannot be made, or the disk is too small.

    Cost: three scans of the rows and one external sort; temporarily 50 bytes of disk per row.
    """
    check_integer("shards", shards)
    check_integer("threads", threads)
    if eval_users is not None:
        check_integer("eval_users", eval_users)
    plan = Plan(
        seed, user_col, item_col, rating_col, time_col, min_rating, k_core,
        split, test_ratio, valid_ratio, test_from, valid_from,
    )  # fmt: skip
    collection = find_collection(os.fspath(source))
    roles = find_roles(collection, plan.columns)
    target = _free_place(Path(out))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(target, "another 'robustcf datasets prepare'") as fresh:
            _free_place(target)  # it may have been made since
            scratch = fresh / "scratch"
            scratch.mkdir()
            engine = Engine(
                collection, roles, plan.columns, scratch, memory=memory, threads=threads
            )
            with closing(engine):
                _check_disk(fresh, engine)
                rated = engine.values["rating"] is not None
                rows = RowFilter(collection.source, plan.min_rating, rated=rated)
                found = _distinct(scratch, engine, rows)
                notes = [*engine.notes, *rows.notes()]
                kept = _Kept(found, plan.k_core)
                labels = _write_labels(fresh, engine, kept)
            notes += kept.notes
            plan.unit = engine.time_unit
            parts = _split(scratch, found, kept, plan)
            empty = [part for part in ("test", "valid") if not len(parts[part])]
            notes += plan.notes(_new_in(fresh, labels, parts["train"]), empty)
            manifest = {
                "format": FORMAT,
                "version": VERSION,
                "name": collection.name,
                "valid_source": "none" if "valid" in empty else "carved",
                "eval_users": eval_users,
                "labels": labels,
                "notes": notes,
                **_write(fresh, parts, _edges(kept.user_degrees, shards)),
            }
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
    """Raise at once where the disk is certainly too small."""
    width = 8 + 8 * bool(engine.values["time"]) + 4 * bool(engine.values["rating"])
    needed = engine.rows * (2 * width + _SORT_BYTES)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WriteError(
            f"{engine.rows:,} rows need about {needed / 1e9:,.1f} GB of disk temporarily, got "
            f"{free / 1e9:,.1f} GB free in {folder.parent}; free some, or choose another --out"
        )


def _to_disk(folder: Path) -> None:
    """Flush the files to disk before their folder gets its name."""
    for path in sorted(folder.iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        path.chmod(0o644)


class _Pairs:
    """Columns of sorted pairs in files of plain numbers, written a block at a time."""

    def __init__(
        self, folder: Path, name: str, columns: tuple[str, ...], n_users: int, n_items: int
    ) -> None:
        self.columns, self._paths = columns, {c: folder / f"{name}-{c}" for c in columns}
        self.user_degrees = np.zeros(n_users, dtype=np.int64)
        self.item_degrees = np.zeros(n_items, dtype=np.int64)
        for path in self._paths.values():
            path.touch()

    def __len__(self) -> int:
        return int(self.user_degrees.sum())

    def add(self, block: _Block) -> None:
        for name, path in self._paths.items():
            with path.open("ab") as file:
                file.write(np.ascontiguousarray(block[name], dtype=COLUMNS[name]).data)
        self.user_degrees += np.bincount(block["user"], minlength=len(self.user_degrees))
        self.item_degrees += np.bincount(block["item"], minlength=len(self.item_degrees))

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self.user_degrees)))

    def between(self, start: int, stop: int, names: Iterable[str]) -> _Block:
        """Return columns of the pairs ``start`` to ``stop - 1``, mapped."""

        def column(name: str) -> npt.NDArray[Any]:
            dtype = np.dtype(COLUMNS[name])
            if start == stop:
                return np.empty(0, dtype=dtype)
            place = start * dtype.itemsize
            return np.memmap(self._paths[name], dtype, "r", offset=place, shape=(stop - start,))

        return {name: column(name) for name in names}

    def blocks(self, *names: str) -> Iterator[_Block]:
        """Yield columns of whole users, about :data:`_BLOCK` pairs at a time."""
        offsets = self.offsets
        for first, last in user_ranges(offsets, _BLOCK):
            yield self.between(int(offsets[first]), int(offsets[last]), names)


def _distinct(folder: Path, engine: Engine, dropped: RowFilter) -> _Pairs:
    """Write the distinct pairs of a collection with the least rating."""
    optional = {"time": engine.values["time"], "weight": engine.values["rating"]}
    columns = ("user", "item", *(name for name, given in optional.items() if given))
    found = _Pairs(folder, "found", columns, engine.counts["user"], engine.counts["item"])
    last = -1
    for rows in engine.sorted_rows():
        first = np.diff(rows["key"], prepend=last) != 0
        last = int(rows["key"][-1])
        dropped.repeated += int((~first).sum())
        block = {name: column[first] for name, column in rows.items()}
        enough = dropped.enough(block.get("weight"), len(block["key"]))
        block = {name: column[enough] for name, column in block.items()}
        block["user"], block["item"] = np.divmod(block["key"], engine.counts["item"])
        found.add(block)
    return found


class _Kept:
    """The users and items that stay, with their new numbers."""

    def __init__(self, found: _Pairs, k_core: int | None) -> None:
        degrees = found.user_degrees, found.item_degrees
        self.notes = []
        if k_core is not None:
            before = told(*degrees)
            blocks = ("user", "item")
            degrees = core_degrees(
                lambda: (tuple(block.values()) for block in found.blocks(*blocks)), degrees, k_core
            )
            self.notes = [f"{k_core}-core: {before} -> {told(*degrees)}"]
        self.stay = {"user": degrees[0] > 0, "item": degrees[1] > 0}
        self.user_degrees = degrees[0][self.stay["user"]]
        self._new = {
            kind: np.cumsum(stay, dtype=np.int64).astype(np.int32) - 1
            for kind, stay in self.stay.items()
        }

    def of(self, block: _Block) -> _Block:
        """Return the pairs of a block that stay, with their new numbers."""
        stay = self.stay["user"][block["user"]] & self.stay["item"][block["item"]]
        return {
            name: self._new[name][column[stay]] if name in self._new else column[stay]
            for name, column in block.items()
        }


def _split(folder: Path, found: _Pairs, kept: _Kept, plan: Plan) -> dict[str, _Pairs]:
    sizes = len(kept.user_degrees), int(kept.stay["item"].sum())
    parts = {part: _Pairs(folder, part, found.columns, *sizes) for part in PARTS}

    def times() -> Iterator[npt.NDArray[Any]]:
        return (kept.of(block)["time"] for block in found.blocks("user", "item", "time"))

    plan.look_at(times if "time" in found.columns else None)
    for block in map(kept.of, found.blocks(*found.columns)):
        for part, chosen in plan.parts(block["user"], block.get("time")).items():
            parts[part].add({name: column[chosen] for name, column in block.items()})
    return parts


def _new_in(folder: Path, labels: dict[str, str], train: _Pairs) -> str:
    """Describe the users and items that are not in train."""
    import pyarrow as pa

    def named(kind: str, ids: npt.NDArray[np.intp]) -> list[object]:
        with pa.memory_map(str(folder / labels[f"{kind}s"])) as file:
            column = pa.ipc.open_file(file).read_all().column(0)
            found: list[object] = column.take(pa.array(ids)).to_pylist()
        return found

    degrees = {"user": train.user_degrees, "item": train.item_degrees}
    return new_in({kind: np.flatnonzero(d == 0) for kind, d in degrees.items()}, named)


def _write_labels(folder: Path, engine: Engine, kept: _Kept) -> dict[str, str]:
    """Write the labels of the users and items that stay, in order, as Arrow files."""
    import pyarrow as pa

    names = {}
    for role, stay in kept.stay.items():
        name = names[f"{role}s"] = f"{role}s.arrow"
        reader, start = engine.labels(role), 0
        with pa.ipc.new_file(folder / name, reader.schema) as writer:
            for batch in reader:
                chosen = stay[start : start + len(batch)]
                start += len(batch)
                writer.write_batch(batch.filter(pa.array(chosen)))
    return names


def _write(folder: Path, parts: dict[str, _Pairs], edges: list[int]) -> dict[str, Any]:
    """Write the files of all parts; returns their entries of the manifest."""
    train = parts["train"]
    n_users, n_items = len(train.user_degrees), len(train.item_degrees)
    described_parts: dict[str, Any] = {}
    for name, part in parts.items():
        places, offsets = part.offsets[edges].tolist(), f"{name}-offsets.arrow"
        _write_arrow(folder / offsets, {"offset": part.offsets})
        files = [f"{name}-{number:05d}.arrow" for number in range(len(edges) - 1)]
        for file, (start, stop) in zip(files, pairwise(places), strict=True):
            _write_arrow(folder / file, part.between(start, stop, part.columns))
        described_parts[name] = {"pairs": len(part), "offsets": offsets, "shards": files}
    columns_of_parts = (
        (len(part), (b[name] for name in ("user", "item") for b in part.blocks(name)))
        for part in parts.values()
    )
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    return {
        "n_users": n_users,
        "n_items": n_items,
        "columns": list(train.columns),
        "shards": edges,
        "parts": described_parts,
        "fingerprint": fingerprint_of(n_users, n_items, columns_of_parts),
        "files": {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in paths
        },
    }


def _edges(degrees: npt.NDArray[np.int64], shards: int) -> list[int]:
    """Return the edges of ranges of users with about as many pairs each."""
    ends = np.cumsum(degrees)
    aims = [ends[-1] * number // shards for number in range(1, shards)]
    return [0, *(int(np.searchsorted(ends, aim)) for aim in aims), len(degrees)]


def _write_arrow(path: Path, columns: _Block) -> None:
    """Write columns as one record batch, which can be mapped as a whole."""
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
