"""``read``: files of factors in, an Imported out; name and content tell what a file is.

Files are parsed in a process of their own (:mod:`robustcf._io.sandbox`), and nothing in them runs.
"""

from __future__ import annotations

import dataclasses
import io
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robustcf._io import files
from robustcf._io.reading import open_regular
from robustcf._io.sandbox import Reading, read_apart
from robustcf._io.temporary import temporary_file
from robustcf._io.unpickling import RESTORED
from robustcf.adapters.imported import (
    Imported,
    joined,
    matrix,
    vector,
    with_biases,
    with_constants,
)
from robustcf.adapters.parquet import SPARK, is_parquet, read_parquet
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors, read_fixed
from robustcf.recommender import Recommender
from robustcf.recommender.labels import read_cells

Source = str | os.PathLike[str]

#: RecBole's models whose score is the product of user_embedding and item_embedding as stored.
PLAIN_RECBOLE = ("BPR", "LINE")
GRAPH_NOTE = "embeddings are those after propagation"
_SIDES = ("user", "item")
_IMPLICIT = ("user_factors", "item_factors")
_FOREIGN = "robustcf._io.foreign"
_KNOWN = (
    "one file (.npz or .safetensors with two matrices, implicit's .npz, .pth or .pt), a folder of "
    "Spark's ALS, or two .npy or Parquet files, users first"
)


def read(
    source: Source | Sequence[Source],
    *,
    user_key: str | None = None,
    item_key: str | None = None,
    user_bias_key: str | None = None,
    item_bias_key: str | None = None,
    id_key: str | None = None,
    vector_key: str | None = None,
    fixed: Sequence[int] | None = None,
    user_ids: Source | None = None,
    item_ids: Source | None = None,
    dataset_file: Source | None = None,
) -> Imported:
    """Read factors from the files of another library; nothing in them is run.

    Args:
        source: a file or folder, or two of them, users first.
        user_key: the name of the users' matrix in a file of named arrays; None for the usual one.
        item_key: the name of the items' matrix.
        user_bias_key: the name of the users' biases.
        item_bias_key: the name of the items' biases.
        id_key: the column of ids in Parquet.
        vector_key: the column of vectors in Parquet.
        fixed: columns that are biases, from 0; None holds those fixed that are constant in one of
            the factors; an empty list none.
        user_ids: a file with the label of each user row: one per line, CSV, or ``.npy``.
        item_ids: the same for items.
        dataset_file: the dataset that RecBole saved, for its tokens.

    Raises:
        DataError: a file is damaged or hostile.
        InputError: the kind of file is unknown, or an option does not fit it.

    Cost: that of reading, and a check that all numbers are finite. Example: :func:`from_files`.
    """
    paths = _paths(source)
    path, suffix = paths[0], paths[0].suffix.lower()
    keys = Keys(user_key, item_key, user_bias_key, item_bias_key)
    named = dict(zip((f"{name}_key" for name in Keys._fields), keys, strict=True))
    columns = {"id_key": id_key, "vector_key": vector_key}
    used: Mapping[str, Any] = named
    if len(paths) == 1 and all((path / name).is_dir() for name in SPARK):
        paths = [path / name for name in SPARK]
    if len(paths) == 2 and all(map(is_parquet, paths)):
        found = read_parquet(*paths, id_key=id_key, vector_key=vector_key, fixed=fixed)
        used = columns
    elif len(paths) == 2 and all(each.suffix.lower() == ".npy" for each in paths):
        found, used = _two_npy(paths, fixed), {}
    elif len(paths) == 2:
        got = " and ".join(each.name for each in paths)
        raise InputError(f"two files must be .npy and .npy or Parquet and Parquet, got {got}")
    elif suffix == ".npz":
        content = read_apart(f"{_FOREIGN}:read_npz", [path])
        implicit = set(_IMPLICIT) <= set(content.arrays) and not any(keys)
        found = _npz(path, content, Keys(*_IMPLICIT) if implicit else keys, fixed, implicit)
        used = {} if implicit else named
    elif suffix == ".safetensors":
        found = _safetensors(path, keys, fixed)
    elif suffix in (".pth", ".pt"):
        content = read_apart("robustcf._io.unpickling:read_torch", [path])
        if "recbole" in content.facts:
            found = _recbole(path, content, dataset_file, keys, fixed)
            used = {**named, "dataset_file": dataset_file}
        else:
            found = _state(path, content, keys, fixed)
    else:
        raise InputError(f"{path}: expected {_KNOWN}")
    given = {**named, **columns, "dataset_file": dataset_file}
    idle = [name for name, value in given.items() if value is not None and name not in used]
    if idle:
        raise InputError(f"{', '.join(idle)} means nothing for {found.format}: leave it out")
    labels = {}
    for kind, file in (("user", user_ids), ("item", item_ids)):
        if file is not None and getattr(found, f"{kind}_labels") is not None:
            raise InputError(
                f"{found.source} has {kind} ids of its own: leave {kind}_ids (--{kind}-ids) out"
            )
        if file is not None:
            rows = getattr(found.factors, f"n_{kind}s")
            labels[f"{kind}_labels"] = _ids(Path(file), rows)
    return dataclasses.replace(found, **labels)


def from_files(
    source: Source | Sequence[Source],
    interactions: Any = None,
    test: Any = None,
    *,
    check: bool = True,
    label: str | None = None,
    matching: Mapping[str, Any] | None = None,
    **reading: Any,
) -> Recommender:
    """Return the factors in files of another library as a recommender; nothing in them is run.

    ``source`` and ``reading`` are those of :func:`read`, ``matching`` is a dict of options of
    :func:`robustcf.recommender.matching.match`. Other arguments: :func:`joined`.

    Example:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "mine.npz")
        ...     np.savez(file, U=np.eye(3, 2), V=np.eye(4, 2))
        ...     from_files(file)
        Recommender(mine.npz, 3 users x 4 items, 2 factors, without interactions)
    """
    found = read(source, **reading)
    return joined(found, interactions, test, check=check, label=label, **(matching or {}))


def _paths(source: Source | Sequence[Source]) -> list[Path]:
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    if not 1 <= len(given) <= 2:
        raise InputError(f"a source is one path, or two (users, items), got {len(given)}")
    paths = [Path(os.fspath(each)).expanduser() for each in given]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder; expected {_KNOWN}")
    return paths


def _ids(path: Path, rows: int) -> Any:
    """Return ids in the order of rows: of an ``.npy`` array, lines of text, or CSV of pandas.

    A header and a column of row numbers are recognized and left out.
    """
    if path.suffix.lower() == ".npy":
        return np.atleast_1d(read_apart(f"{_FOREIGN}:read_npy", [path]).array("array"))
    cells = read_cells(path)
    body = cells[1:] if len(cells) == rows + 1 else cells
    if len(body) != rows:
        raise DataError(f"{path}: {len(body):,} ids and {rows:,} rows of factors do not match")
    columns = list(zip(*body, strict=True))
    if len(columns) == 1:
        return list(columns[0])
    numbers = [str(n) for n in range(rows)]
    index = [n for n, column in enumerate(columns) if sorted(column) == sorted(numbers)]
    if len(columns) != 2 or not index:
        what = f"{len(columns)} columns"
        raise DataError(f"{path}: expected a column of ids, or ids and row numbers, got {what}")
    # Where both could be row numbers, pandas writes its own first, under an empty name.
    labels, order = columns[1 - index[0]], [int(number) for number in columns[index[0]]]
    return [labels[place] for place in np.argsort(order).tolist()]


# --- named arrays -------------------------------------------------------------------------------


class Keys(NamedTuple):
    """Names of the arrays that matter; None for those that are to be found by their name."""

    user: str | None = None
    item: str | None = None
    user_bias: str | None = None
    item_bias: str | None = None


class Layout:
    """The factors among named arrays; ``skip`` rows at their start are padding.

    Example:
        >>> Layout({"U": np.ones((2, 2)), "V": np.ones((3, 2)), "k": np.ones(1)}, "here").names
        Keys(user='U', item='V', user_bias=None, item_bias=None)
    """

    def __init__(
        self, arrays: Mapping[str, Any], source: str, keys: Keys | None = None, skip: int = 0
    ) -> None:
        self.arrays, self.source, self.skip = arrays, source, skip
        given = keys or Keys()
        for key in given:
            if key is not None and key not in arrays:
                raise InputError(f"{source} has no {key!r}; there are {self._listed()}")
        self.keys = (given.user or self._matrix("user"), given.item or self._matrix("item"))
        self.biases = (given.user_bias or self._bias("user"), given.item_bias or self._bias("item"))
        self.names = Keys(*self.keys, *self.biases)

    def _matrix(self, side: str) -> str:
        names = [name for name, value in self.arrays.items() if _is_factor(value)]
        found = [own for own in names if side in own.lower() and "bias" not in own.lower()]
        letters = {name.lower(): name for name in names}
        for pair in ("uv", "pq"):
            if not found and set(pair) <= set(letters):
                found = [letters[pair[side == "item"]]]
        if len(found) != 1:
            raise InputError(
                f"{self.source}: found {len(found)} matrices for the {side}s among "
                f"{self._listed()}: name it with {side}_key (--{side}-key)"
            )
        return found[0]

    def _bias(self, side: str) -> str | None:
        found = [name for name in self.arrays if side in name.lower() and "bias" in name.lower()]
        if len(found) > 1:
            raise InputError(
                f"{self.source}: {', '.join(found)} may be the biases of the {side}s: name one "
                f"with {side}_bias_key (--{side}-bias-key)"
            )
        return found[0] if found else None

    def _listed(self) -> str:
        all_ = [f"{name} {'x'.join(map(str, a.shape)) or '1'}" for name, a in self.arrays.items()]
        return ", ".join(all_[:20]) + (", ..." if len(all_) > 20 else "") or "no arrays"

    def imported(
        self,
        format: str,
        name: str,
        fixed: Sequence[int] | None = None,
        write: Callable[[dict[str, Any], Path], None] | None = None,
        *,
        tell: bool = True,
        **labels: Any,
    ) -> Imported:
        """Return the factors, with notes on used and unused arrays (``tell``).

        ``fixed`` are bias columns; None for biases by name, or constant columns. ``write`` writes
        matrices by name, in the types of the source, to a path.
        """
        U, V = (matrix(key, self.arrays[key], copy=False)[self.skip :] for key in self.keys)
        if U.shape[1] != V.shape[1]:
            turned = "; are they transposed?" if U.shape[0] == V.shape[0] else ""
            raise InputError(
                f"{self.source}: expected as many columns in {self.keys[0]} and {self.keys[1]}, "
                f"got {U.shape[1]} and {V.shape[1]}{turned}"
            )
        biases = [
            vector(key, self.arrays[key], len(part) + self.skip)[self.skip :] if key else None
            for key, part in zip(self.biases, (U, V), strict=True)
        ]
        factors, held = with_biases(U, V, *biases)
        about: tuple[str, ...] = ()
        if fixed is not None or not held:
            held, about = with_constants(factors, fixed, held)
        notes = (*(self._notes() if tell else ()), *about)

        def write_back(other: Factors, target: Path) -> None:
            if write is not None:
                write(self._changed(other), target)

        writer = None if write is None else write_back
        return Imported(factors, format, name, fixed=held, notes=notes, writer=writer, **labels)

    def _notes(self) -> list[str]:
        notes = [f"users are {self.keys[0]}, items are {self.keys[1]}"]
        biases = [name for name in self.biases if name is not None]
        if biases:
            notes.append(f"biases are {' and '.join(biases)}: held fixed")
        left = [name for name in self.arrays if name not in (*self.keys, *biases)]
        if left:
            notes.append(f"not used: {', '.join(left[:12])}{', ...' if len(left) > 12 else ''}")
        return notes

    def _changed(self, factors: Factors) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for key, part in zip(self.keys, factors, strict=True):
            old = self.arrays[key]
            rows = part[:, : old.shape[1]].cpu()
            changed[key] = (
                torch.cat([old[: self.skip], rows.to(old.dtype)])
                if isinstance(old, Tensor)
                else np.concatenate([old[: self.skip], rows.numpy().astype(old.dtype)])
            )
        return changed


def _is_factor(value: Any) -> bool:
    tensor = hasattr(value, "is_floating_point")
    floating = value.is_floating_point() if tensor else value.dtype.kind == "f"
    return bool(floating and value.ndim == 2 and value.shape[1] > 1)


def _tensor(found: Reading, name: str) -> Tensor:
    tensor = torch.from_numpy(found.array(name))
    return tensor.view(torch.bfloat16) if found.arrays[name].dtype == "bfloat16" else tensor


# --- formats ------------------------------------------------------------------------------------


def _npz(
    path: Path, content: Reading, keys: Keys, fixed: Sequence[int] | None, implicit: bool
) -> Imported:
    arrays = {name: content.array(name) for name in content.arrays}

    def write(changed: dict[str, Any], target: Path) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **{**arrays, **changed})
        files.write_bytes(target, buffer.getvalue())

    layout = Layout(arrays, str(path), keys)
    kind = "implicit npz" if implicit else "npz"
    return layout.imported(kind, path.name, fixed, write, tell=not implicit)


def _safetensors(path: Path, keys: Keys, fixed: Sequence[int] | None) -> Imported:
    content = read_apart(f"{_FOREIGN}:read_safetensors", [path])
    tensors = {name: _tensor(content, name) for name in content.arrays}
    facts = content.facts["metadata"]
    if fixed is None and "fixed" in facts:  # a file of a run of ours
        fixed = read_fixed(facts, str(path))

    def write(changed: dict[str, Any], target: Path) -> None:
        whole = {name: tensor.contiguous() for name, tensor in {**tensors, **changed}.items()}
        files.write_tensors(target, whole, facts)

    return Layout(tensors, str(path), keys).imported("safetensors", path.name, fixed, write)


def _two_npy(paths: Sequence[Path], fixed: Sequence[int] | None) -> Imported:
    users, items = paths
    content = read_apart(f"{_FOREIGN}:read_npy", [users, items])
    arrays = {side: content.array(side) for side in ("users", "items")}
    same = users.name == items.name  # in two folders
    names = ("users.npy", "items.npy") if same else (users.name, items.name)

    def write(changed: dict[str, Any], target: Path) -> None:
        contents = {}
        for name, array in zip(names, changed.values(), strict=True):
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            contents[name] = buffer.getvalue()
        files.create_folder(target, contents)

    layout = Layout(arrays, f"{users} and {items}", Keys("users", "items"))
    return layout.imported("npy", users.name, fixed, write, tell=False)


def _state(
    path: Path,
    content: Reading,
    keys: Keys,
    fixed: Sequence[int] | None,
    skip: int = 0,
    kind: str = "torch state dict",
) -> Imported:
    """Return the factors of a state dict in a torch file."""
    if "object" in content.facts:
        raise DataError(
            f"{path}: expected a state dict, got a whole {content.facts['object']}: save its "
            "state_dict()"
        )
    stored = {name: where for name, where in content.arrays.items() if name not in RESTORED}
    if not stored:
        raise DataError(f"{path}: holds no state dict: save model.state_dict()")
    names = Layout(stored, str(path), keys).names
    # The others are named in notes, and not read.
    arrays = {n: _tensor(content, n) if n in names else where for n, where in stored.items()}

    def write(changed: dict[str, Any], target: Path) -> None:
        whole = content.facts["whole"]
        shared = [name for name in changed if name not in whole]
        if shared:
            raise InputError(
                f"{path}: {shared[0]} shares its storage with another tensor: write it with torch"
            )
        bits = {
            whole[name]: tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            for name, tensor in changed.items()
        }
        _copy(path, target, bits)

    return Layout(arrays, str(path), names, skip).imported(kind, path.name, fixed, write)


def _copy(source: Path, target: Path, changes: Mapping[str, bytes]) -> None:
    """Write a torch file again with other bytes in some of its storages, member by member."""
    handle, temporary = temporary_file(target)
    try:
        with (
            os.fdopen(handle, "wb") as file,
            open_regular(source) as content,
            zipfile.ZipFile(content) as old,
        ):
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
                for entry in old.infolist():
                    if entry.compress_type != zipfile.ZIP_STORED:
                        raise DataError(f"{source}: changed while it was read")
                    new.writestr(entry.filename, changes.get(entry.filename) or old.read(entry))
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _recbole(
    path: Path,
    content: Reading,
    dataset_file: Source | None,
    keys: Keys,
    fixed: Sequence[int] | None,
) -> Imported:
    """Return the factors of a RecBole checkpoint, with the tokens of its dataset if given."""
    settings = content.facts["recbole"]
    name = settings["model"] or "unknown model"
    if not any(keys) and content.facts.get("restored"):
        U, V = (matrix(each, _tensor(content, each))[1:] for each in RESTORED)
        found = Imported(Factors.of(U, V), "recbole pth", path.name, notes=(GRAPH_NOTE,))
    elif not any(keys) and name not in PLAIN_RECBOLE:
        raise DataError(
            f"{path}: the scores of {name} may not be products of the stored embeddings: load it "
            "with RecBole and use robustcf.adapters.from_recbole(model, dataset=dataset), or name "
            "two tensors by user_key and item_key (--user-key, --item-key)"
        )
    else:
        own = keys if any(keys) else Keys("user_embedding.weight", "item_embedding.weight")
        found = _state(path, content, own, fixed, skip=1, kind="recbole pth")
    notes = (*found.notes, f"RecBole's {name}; row 0 is padding and was left out")
    labels: dict[str, Any] = {}
    if dataset_file is not None:
        columns = [settings[f"{kind.upper()}_ID_FIELD"] or f"{kind}_id" for kind in _SIDES]
        options = {"columns": columns}
        tokens = read_apart("robustcf._io.unpickling:read_tokens", [Path(dataset_file)], options)
        for kind, column in zip(_SIDES, columns, strict=True):
            labels[f"{kind}_labels"] = tokens.array(column)[1:]
    return dataclasses.replace(found, notes=notes, **labels)
