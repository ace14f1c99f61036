"""``read``: files of factors in, an Imported out; name and content tell what a file is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._io.reading import read_content
from robustcf._io.sandbox import read_apart
from robustcf.adapters.arrays import FOREIGN, Keys, read_named, read_npy, read_two_npy
from robustcf.adapters.base import Imported, check_labels
from robustcf.adapters.implicit import is_implicit, read_implicit
from robustcf.adapters.joining import joined
from robustcf.adapters.parquet import SPARK, is_parquet, read_parquet
from robustcf.adapters.pytorch import read_state
from robustcf.adapters.recbole import read_recbole
from robustcf.errors import DataError, InputError
from robustcf.recommender import Recommender

Source = str | os.PathLike[str]

_TORCH = (".pth", ".pt")
_KNOWN = (
    "an implicit .npz, .npz or .safetensors with two matrices, .pth or .pt, a folder of Spark's "
    "ALS, or two files, users first: .npy and .npy, Parquet and Parquet"
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
        user_key: the name of the users' matrix in a file of named arrays; None for finding it.
        item_key: the name of the items' matrix.
        user_bias_key: the name of the users' biases.
        item_bias_key: the name of the items' biases.
        id_key: the column of ids in Parquet.
        vector_key: the column of vectors in Parquet.
        fixed: columns that are biases, from 0; None holds those fixed that are constant in one of
            the factors; an empty list none.
        user_ids: a file with what each row of the users is called: text, one a line, or ``.npy``.
        item_ids: the same for items.
        dataset_file: the dataset that RecBole saved, for its tokens.

    Raises:
        DataError: a file is damaged, hostile, or holds what factors cannot hold.
        InputError: it cannot be told what the file is, or an option does not fit it.

    Cost: that of reading, and a check that all numbers are finite.

    Example:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "mine.npz")
        ...     np.savez(file, U=np.eye(3, 2), V=np.eye(4, 2))
        ...     read(file)
        Imported(npz: 3 users x 4 items, dim 2, float64, rows without labels)
    """
    paths = _paths(source)
    keys = {
        "user_key": user_key,
        "item_key": item_key,
        "user_bias_key": user_bias_key,
        "item_bias_key": item_bias_key,
    }
    named = Keys(*keys.values())
    columns = {"id_key": id_key, "vector_key": vector_key}
    found: Imported
    used: tuple[str, ...] = ("fixed",)
    if len(paths) == 2:
        if all(is_parquet(path) for path in paths):
            found = read_parquet(*paths, id_key=id_key, vector_key=vector_key, fixed=fixed)
            used += tuple(columns)
        elif all(path.suffix.lower() == ".npy" for path in paths):
            found = read_two_npy(*paths, fixed=fixed)
        else:
            raise InputError(
                f"two files must be .npy and .npy or Parquet and Parquet, got {paths[0].name} and "
                f"{paths[1].name}"
            )
    else:
        (path,) = paths
        suffix = path.suffix.lower()
        if path.is_dir() and all((path / name).is_dir() for name in SPARK):
            users, items = (path / name for name in SPARK)
            found = read_parquet(users, items, id_key=id_key, vector_key=vector_key, fixed=fixed)
            used += tuple(columns)
        elif suffix == ".npz":
            content = read_apart(f"{FOREIGN}:read_npz", [path])
            if is_implicit(content.arrays) and not any(keys.values()):
                found = read_implicit(path, content, fixed=fixed)
            else:
                found = read_named(path, named, fixed=fixed, found=content)
                used += tuple(keys)
        elif suffix == ".safetensors":
            found = read_named(path, named, fixed=fixed)
            used += tuple(keys)
        elif suffix in _TORCH:
            content = read_apart(f"{FOREIGN}:read_torch", [path])
            used += tuple(keys)
            if "recbole" in content.facts:
                tokens = None if dataset_file is None else Path(dataset_file)
                found = read_recbole(path, content, tokens, named, fixed=fixed)
                used += ("dataset_file",)
            else:
                found = read_state(path, content, named, fixed=fixed)
        else:
            raise InputError(f"{path}: expected {_KNOWN}")
    given = {**keys, **columns, "dataset_file": dataset_file}
    idle = [name for name, value in given.items() if value is not None and name not in used]
    if idle:
        raise InputError(f"{', '.join(idle)} means nothing for {found.format}: leave it out")
    return _labelled(found, user_ids, item_ids)


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

    Args:
        source: a file or folder, or two of them, users first, see :func:`read`.
        interactions: the pairs that they were fit on, see :func:`robustcf.adapters.joined`.
        test: held-out pairs in the same form.
        check: whether to refuse factors that do not know the pairs.
        label: what to call it; None for the name of the file.
        matching: how ids are matched, see :func:`robustcf.recommender.matching.match`.
        **reading: other options of :func:`read`.

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


def _labelled(found: Imported, user_ids: Source | None, item_ids: Source | None) -> Imported:
    labels: dict[str, Any] = {}
    for kind, file, rows in (
        ("user", user_ids, found.factors.n_users),
        ("item", item_ids, found.factors.n_items),
    ):
        if file is None:
            continue
        if getattr(found, f"{kind}_labels") is not None:
            raise InputError(
                f"{found.source} has {kind} ids of its own: leave {kind}_ids (--{kind}-ids) out"
            )
        labels[f"{kind}_labels"] = check_labels(kind, _ids(Path(file)), rows)
    return dataclasses.replace(found, **labels) if labels else found


def _ids(path: Path) -> Any:
    """Ids in the order of rows: an array of numbers or text, or lines of text."""
    if path.suffix.lower() == ".npy":
        return np.atleast_1d(read_npy(path))
    try:
        lines = read_content(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no readable text, one id a line ({error})") from error
    return lines
