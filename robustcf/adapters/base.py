"""Imported: factors of another library, what their rows are called, which columns are biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf._io.text import counted
from robustcf.data.interactions import Labels
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors

_LONGEST_LABEL = 1000

Writer = Callable[[Factors, Path], None]


@dataclass(frozen=True, eq=False)
class Imported:
    """Factors from elsewhere, ready to be matched with interactions.

    Args:
        factors: finite embeddings; biases are columns of them.
        format: what they were read from: ``implicit npz``, ``cornac`` and so on.
        source: the file or the class, for messages and labels.
        user_labels: what each row of U is called, or None where the source does not say.
        item_labels: the same for V.
        fixed: columns that hold a bias and the constant it is multiplied with: no attack, budget
            or certificate may move them.
        notes: what was found, assumed or left aside on the way, in sentences for a person.
        writer: writes other factors of the same shape in the format of the source, or None.

    Raises:
        InputError: factors that are not finite.
        DataError: labels that repeat, are no integers or text, or do not fit the rows.

    Cost: a check that all numbers are finite, and a sort of the labels.

    Example:
        >>> found = Imported(Factors.of(np.eye(3, 2), np.eye(4, 2)), "arrays", "mine")
        >>> found
        Imported(arrays: 3 users x 4 items, dim 2, float64, rows without labels)
    """

    factors: Factors
    format: str
    source: str
    user_labels: Labels | None = None
    item_labels: Labels | None = None
    fixed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    writer: Writer | None = None

    def __post_init__(self) -> None:
        self.factors.check_finite()
        for kind, rows in (("user", self.factors.n_users), ("item", self.factors.n_items)):
            labels = getattr(self, f"{kind}_labels")
            if labels is not None:
                object.__setattr__(self, f"{kind}_labels", check_labels(kind, labels, rows))
        fixed = tuple(sorted({int(column) for column in self.fixed}))
        if any(not 0 <= column < self.factors.dim for column in fixed):
            raise InputError(
                f"fixed columns must be in [0, {self.factors.dim}), got {list(fixed)}: columns are "
                "counted from 0"
            )
        if len(fixed) == self.factors.dim:
            raise InputError(
                f"{self.source}: all {self.factors.dim} columns are biases: there is no embedding "
                "to attack or certify"
            )
        object.__setattr__(self, "fixed", fixed)
        object.__setattr__(self, "notes", tuple(self.notes))

    def write_back(self, factors: Factors, path: str | Path) -> None:
        """Write other factors in the format that these came in.

        Args:
            factors: of the same shape, with the same fixed columns.
            path: the new file; a new folder where the source was two files or a folder.

        Raises:
            InputError: the format cannot be written, the factors do not fit, or there is something
                at the path already.
        """
        if self.writer is None:
            raise InputError(
                f"factors from {self.format} cannot be written back: write them where you read "
                "them, or import a file"
            )
        ours, theirs = self.factors, factors
        shapes = [(f.n_users, f.n_items, f.dim) for f in (ours, theirs)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"factors to write must have the shape of those that were read, {shapes[0]}, got "
                f"{shapes[1]} (users, items, columns)"
            )
        theirs.check_finite()
        held = list(self.fixed)
        for before, after in zip(ours, theirs, strict=True):
            if not torch.equal(before[:, held], after[:, held].to(before.dtype)):
                raise InputError(
                    f"columns {held} are held fixed and must be written as they were read"
                )
        target = Path(path)
        if target.exists():
            raise InputError(f"{target} exists already: choose another name")
        self.writer(factors, target)

    def __repr__(self) -> str:
        f = self.factors
        held = f", {counted(len(self.fixed), 'column')} held fixed" if self.fixed else ""
        named = [k for k in ("user", "item") if getattr(self, f"{k}_labels") is not None]
        rows = f"{' and '.join(named)} labels" if named else "rows without labels"
        kind = str(f.users.dtype).removeprefix("torch.")
        return (
            f"Imported({self.format}: {f.n_users:,} users x {f.n_items:,} items, dim {f.dim}, "
            f"{kind}{held}, {rows})"
        )


def check_labels(kind: str, values: Any, rows: int) -> Labels:
    """Labels as an array of integers or of text, one for each row, none twice.

    Args:
        kind: ``user`` or ``item``, for messages.
        values: a list, an array or anything that numpy makes one of.
        rows: how many there must be.

    Raises:
        DataError: any of that does not hold.

    Example:
        >>> check_labels("user", ["b", "a"], 2).tolist()
        ['b', 'a']
        >>> check_labels("item", [1.0, 2.0], 2)
        Traceback (most recent call last):
        robustcf.errors.DataError: item ids must be integers or text, got 1.0: float ids lose digits
        and say nothing of what they were; save them as integers or text
    """
    entries = values.tolist() if isinstance(values, np.ndarray) else list(values)
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, int | str | bytes | np.integer):
            why = (
                ": float ids lose digits and say nothing of what they were; save them as integers "
                "or text"
                if isinstance(entry, float)
                else ""
            )
            raise DataError(f"{kind} ids must be integers or text, got {entry!r}{why}")
    if len(entries) != rows:
        raise DataError(
            f"there are {len(entries):,} {kind} ids and {rows:,} rows of factors: they do not "
            "belong together"
        )
    try:
        texts = [e.decode() if isinstance(e, bytes) else str(e) for e in entries]
    except UnicodeDecodeError as error:
        raise DataError(f"{kind} ids must be text in UTF-8 ({error})") from error
    for text in texts:
        if len(text) > _LONGEST_LABEL or not text.isprintable():
            raise DataError(
                f"the {kind} id {text[:40]!r} is longer than {_LONGEST_LABEL} characters or holds "
                "control characters: is it another column?"
            )
    if len(set(texts)) != len(texts):
        seen: set[str] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        raise DataError(f"{kind} ids must differ, got {twice!r} more than once")
    # As in tables of interactions: numbers where that loses nothing, so "007" stays text.
    try:
        numbers = np.array([int(text) for text in texts], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(texts, dtype=str)
    same = all(map(str.__eq__, map(str, numbers.tolist()), texts))
    return numbers if same else np.array(texts, dtype=str)


def labels_of_map(kind: str, numbers: Mapping[Any, Any], rows: int) -> Labels:
    """Labels in the order of rows, from a dict that maps each to its row.

    Example:
        >>> labels_of_map("user", {"b": 1, "a": 0}, 2).tolist()
        ['a', 'b']
    """
    order: dict[int, Any] = {}
    for label, row in numbers.items():
        order[int(row)] = label
    if sorted(order) != list(range(rows)) or len(numbers) != rows:
        raise DataError(
            f"the {kind} map has {len(numbers):,} entries for {len(order):,} numbers, and there "
            f"are {rows:,} rows of factors: each row needs exactly one {kind}"
        )
    return check_labels(kind, [order[row] for row in range(rows)], rows)


def matrix(name: str, value: Any, *, copy: bool = True) -> Tensor:
    """Anybody's matrix of floating-point numbers as a tensor on the CPU, 32 or 64 bits wide.

    Args:
        name: for messages.
        value: the matrix.
        copy: whether numpy's are copied: a live model may go on learning, a file does not.

    Example:
        >>> matrix("users", np.ones((2, 3), np.float16)).dtype
        torch.float32
    """
    for method in ("detach", "cpu", "to_numpy"):  # torch, then implicit's matrices on a GPU
        if hasattr(value, method) and not isinstance(value, np.ndarray):
            value = getattr(value, method)()
    array = value if isinstance(value, Tensor) else np.asarray(value)
    floating = array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"
    if not floating or array.ndim != 2:
        raise InputError(
            f"{name} must be a matrix of floating-point numbers, got {array.dtype} of shape "
            f"{tuple(array.shape)}"
        )
    if isinstance(array, Tensor):
        wide = torch.float64 if array.dtype == torch.float64 else torch.float32
        return array.to(wide)
    precision = np.float64 if array.dtype.itemsize > 4 else np.float32
    own = np.array(array, dtype=precision) if copy else np.asarray(array, dtype=precision)
    return torch.from_numpy(own)


def vector(name: str, value: Any, rows: int) -> Tensor:
    """Biases as a tensor of one number for each row; a matrix of one column is one too."""
    for method in ("detach", "cpu", "to_numpy"):
        if hasattr(value, method) and not isinstance(value, np.ndarray):
            value = getattr(value, method)()
    array = value if isinstance(value, Tensor) else np.asarray(value)
    numbers = isinstance(array, Tensor) or array.dtype.kind in "fiu"
    if not numbers or math.prod(array.shape) != rows:
        raise InputError(
            f"{name} must have one number for each of the {rows:,} rows, got {array.dtype} of "
            f"shape {tuple(array.shape)}"
        )
    if isinstance(array, Tensor):
        return array.reshape(-1).double()
    return torch.from_numpy(np.array(array, dtype=np.float64)).reshape(-1)


def with_biases(
    users: Tensor,
    items: Tensor,
    user_bias: Tensor | None = None,
    item_bias: Tensor | None = None,
) -> tuple[Factors, tuple[int, ...]]:
    """Factors with biases as columns, and which columns these are.

    The score ``u.v + b_u + b_i`` is the product of ``(u, b_u, 1)`` and ``(v, 1, b_i)``. The two
    columns are no embedding: they are held fixed.

    Args:
        users: embeddings of the users.
        items: embeddings of the items.
        user_bias: b_u for each user, or None.
        item_bias: b_i for each item, or None.

    Example:
        >>> U, V = torch.ones(2, 1), torch.ones(3, 1)
        >>> factors, fixed = with_biases(U, V, item_bias=torch.tensor([0.0, 1.0, 2.0]))
        >>> (factors.users @ factors.items.T).tolist(), fixed
        ([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], (1,))
    """
    left, right = [users], [items]
    for mine, bias, its in ((left, user_bias, right), (right, item_bias, left)):
        if bias is None:
            continue
        other = items if mine is left else users
        mine.append(bias.to(users.dtype)[:, None])
        its.append(torch.ones(len(other), 1, dtype=other.dtype))
    dim = users.shape[1]
    if user_bias is None and item_bias is None:
        return Factors.of(users, items), ()
    factors = Factors.of(torch.cat(left, dim=1), torch.cat(right, dim=1))
    return factors, tuple(range(dim, factors.dim))


def constant_columns(factors: Factors) -> tuple[int, ...]:
    """Columns in which all users, or all items, have the same number other than 0.

    No training leaves such a column by accident: it is what a bias is multiplied with.

    Example:
        >>> constant_columns(Factors.of([[0.1, 1.0], [0.2, 1.0]], [[0.3, 7.0], [0.4, 8.0]]))
        (1,)
    """
    found = torch.zeros(factors.dim, dtype=torch.bool)
    for part in factors:
        if len(part) > 1:
            # Most columns show in their first rows that they are not constant.
            likely = (part[:100] == part[:1]).all(dim=0) & (part[0] != 0)
            columns = torch.nonzero(likely)[:, 0]
            found[columns] |= (part[:, columns] == part[:1, columns]).all(dim=0)
    return tuple(int(column) for column in torch.nonzero(found)[:, 0])


def with_constants(
    factors: Factors, fixed: Sequence[int] | None, known: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The fixed columns as they were given, or as :func:`constant_columns` finds them; with notes.

    Args:
        factors: with biases in their columns.
        fixed: what was given; None to find them.
        known: columns that are biases in any case.

    Example:
        >>> plain = Factors.of([[0.1, 1.0], [0.2, 1.0]], [[0.3, 7.0], [0.4, 8.0]])
        >>> with_constants(plain, None)
        ((1,), ('column 1 is constant, so it is a bias: held fixed',))
    """
    if fixed is not None:
        return (*fixed, *known), ()
    found = constant_columns(factors)
    if not found or len(found) == factors.dim:
        return (), ()
    named = ", ".join(map(str, found))
    many = len(found) > 1
    return found, (
        f"column{'s' if many else ''} {named} {'are' if many else 'is'} constant, so "
        f"{'they are biases' if many else 'it is a bias'}: held fixed",
    )


@contextmanager
def readable(name: object, kind: str, advice: str = "") -> Iterator[None]:
    """One error for the many ways in which reading a damaged file can fail.

    Example:
        >>> with readable("a.npz", "npz file"):
        ...     raise EOFError("cut off")
        Traceback (most recent call last):
        robustcf.errors.DataError: a.npz: no readable npz file (cut off)
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # parsers raise what they like
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{name}: no readable {kind} ({reason}){advice}") from error


def needs(thing: object, names: Iterable[str], what: str) -> None:
    """Raise unless an object has these attributes, and they are not None."""
    lacking = [name for name in names if getattr(thing, name, None) is None]
    if lacking:
        raise InputError(
            f"{what} must be trained and have {', '.join(lacking)}, got a "
            f"{type(thing).__name__} without: train it first, or see whether it is a factorization"
        )
