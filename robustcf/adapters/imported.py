"""Imported: factors of another library, their labels and biases; ``joined`` makes a recommender."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf._io.text import counted
from robustcf.adapters.aligning import alignment, mean_place
from robustcf.data.interactions import Labels, checked_labels
from robustcf.data.tables import check_label, whole_numbers
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from robustcf.models.folding import FoldIn
from robustcf.recommender import FactorScorer, Recommender
from robustcf.recommender.matching import Rows, fit_on_of, match
from robustcf.recommender.saved import PLAIN, write_plain

Writer = Callable[[Factors, Path], None]


@dataclass(frozen=True, eq=False)
class Imported:
    """Factors from elsewhere, ready to be matched with interactions.

    Args:
        factors: finite embeddings; biases are columns of them.
        format: the kind of source: ``implicit npz``, ``cornac`` and so on.
        source: the file or the class, for messages and labels.
        user_labels: label per row of U: a list, an array, a dict of rows, or None.
        item_labels: the same for V.
        fixed: bias columns, which no attack, budget or certificate may change.
        notes: findings and assumptions of the import, in sentences.
        writer: writes other factors of the same shape in the format of the source, or None.

    Example:
        >>> Imported(Factors.of(np.eye(3, 2), np.eye(4, 2)), "arrays", "mine")
        Imported(arrays: 3 users x 4 items, dim 2, float64, rows without labels)
    """

    factors: Factors
    format: str
    source: str
    user_labels: Any = None
    item_labels: Any = None
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
        dim = self.factors.dim
        if any(not 0 <= column < dim for column in fixed):
            raise InputError(f"fixed columns must be in [0, {dim}), got {list(fixed)}")
        if len(fixed) == dim:
            raise InputError(f"{self.source}: all {dim} columns are biases, expected an embedding")
        object.__setattr__(self, "fixed", fixed)

    def write_back(self, factors: Factors, path: str | Path) -> None:
        """Write factors of the same shape and fixed columns in the format of the source.

        ``path`` is a new file with the suffix of the source, or a new folder, without a suffix,
        where the source was two files or a folder; any other ``.npz`` or ``.safetensors`` file gets
        two matrices, ``users`` and ``items``.
        """
        ours, theirs = ((f.n_users, f.n_items, f.dim) for f in (self.factors, factors))
        if ours != theirs:
            raise InputError(f"factors to write must have the shape {ours}, got {theirs}")
        factors.check_finite()
        held = list(self.fixed)
        for before, after in zip(self.factors, factors, strict=True):
            if not torch.equal(before[:, held], after[:, held].to(before.dtype)):
                raise InputError(f"columns {held} are held fixed: write them as they were read")
        target = Path(path)
        if target.exists():
            raise InputError(f"{target} exists already: choose another name")
        folders = self.format in ("npy", "parquet", "spark als")
        own = "" if folders else Path(self.source).suffix.lower()
        suffix = target.suffix.lower()
        if self.writer is not None and suffix == own:
            self.writer(factors, target)
        elif suffix in PLAIN:
            write_plain(factors, self.fixed, target)
        else:
            like = "" if self.writer is None else f"{own or 'no suffix (a folder)'}, "
            raise InputError(f"expected a name with {like}{' or '.join(PLAIN)}, got {target.name}")

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


def joined(
    imported: Imported,
    interactions: Any = None,
    test: Any = None,
    *,
    check: bool = True,
    label: str | None = None,
    fold_in: FoldIn | None = None,
    serve: str = "stored",
    **matching: Any,
) -> Recommender:
    """Return a recommender of imported factors and their training pairs.

    All functions ``from_*`` end here, and pass these options on.

    Args:
        imported: the factors.
        interactions: the training pairs: a DataFrame or another table, a file, a users x items
            matrix, an :class:`robustcf.data.Interactions`, a :class:`robustcf.data.Split`, or None.
        test: held-out pairs in the same form; None to evaluate on the training pairs.
        check: whether to refuse factors that fail the alignment check.
        label: the name in tables and plots; None for the source.
        fold_in: how a new user is embedded; None for a softmax over the catalogue.
        serve: ``stored`` users, or ``fold-in``: see :meth:`robustcf.Recommender.serving`.
        **matching: how ids are matched, see :func:`robustcf.recommender.matching.match`: ``rows``,
            ``drop_unknown``, ``user_col``, ``item_col``, ``min_rating``, ``name``, ``with_valid``.

    Raises:
        DataError: ids or counts that do not fit; factors that fail the alignment check.

    Example:
        >>> from robustcf.data import checkerboard
        >>> parity, split = np.eye(2)[np.arange(30) % 2], checkerboard()
        >>> mine = Imported(Factors.of(parity[:20], parity), "arrays", "parity")
        >>> joined(mine, split.train, split.test).evaluate()["hit_rate@10"]
        1.0
    """
    called = imported.source if label is None else label
    if not called.strip() or not called.isprintable():
        raise InputError(f"a label must be text on one line, got {called!r}")
    factors = imported.factors
    facts: dict[str, Any] = {"source": imported.source, "format": imported.format}
    scorer = FactorScorer(factors, imported.fixed, fold_in)
    labels = {"user_labels": imported.user_labels, "item_labels": imported.item_labels}
    if interactions is None:
        given = [name for name, value in {"test": test, **matching}.items() if value is not None]
        given += ["serve='fold-in'"] * (serve != "stored")
        if given:
            raise InputError(f"{', '.join(given)} needs interactions, and none were given")
        return Recommender.of(
            scorer,
            None,
            label=called,
            item_counts=np.zeros(factors.n_items, dtype=np.int64),
            training={**facts, "notes": list(imported.notes)},
            origin=imported,
            **labels,
        )
    rows = Rows(factors.n_users, factors.n_items, **labels)
    place = functools.partial(mean_place, factors)
    split, notes, caveats = match(rows, interactions, test, fit=place, **matching)
    found = alignment(factors, split.train)
    if check:
        found.require()
    said = [*imported.notes, *notes, str(found)]
    if not len(split.test):
        said.append("no test pairs: judged by the pairs it was fit on")
    return Recommender.of(
        scorer,
        split,
        fit_on=fit_on_of(split, matching.get("with_valid")),
        label=called,
        training={**facts, "notes": said, "alignment": found.reason, "caveats": list(caveats)},
        origin=imported,
    ).serving(serve)


# --- labels -------------------------------------------------------------------------------------


def check_labels(kind: str, values: Any, rows: int) -> Labels:
    """Return labels (a list, an array, or a dict of label -> row) as unique integers or text."""
    if isinstance(values, Mapping):
        order = {int(row): label for label, row in values.items()}
        if sorted(order) != list(range(rows)) or len(values) != rows:
            raise DataError(
                f"the {kind} map has {len(values):,} entries for {len(order):,} of {rows:,} rows "
                f"of factors: each row needs exactly one {kind}"
            )
        values = [order[row] for row in range(rows)]
    entries = values.tolist() if isinstance(values, np.ndarray) else list(values)
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, int | str | bytes | np.integer):
            why = ": float ids lose digits; save them as integers or text"
            why = why if isinstance(entry, float) else ""
            raise DataError(f"{kind} ids must be integers or text, got {entry!r}{why}")
    try:
        texts = [e.decode() if isinstance(e, bytes) else str(e) for e in entries]
    except UnicodeDecodeError as error:
        raise DataError(f"{kind} ids must be text in UTF-8 ({error})") from error
    for text in texts:
        check_label("the factors", kind, text)
    # As in tables of interactions: numbers where that loses nothing, so "007" stays text.
    numbers = whole_numbers(np.array(texts, dtype=object), typed=False)
    return checked_labels(kind, np.array(texts) if numbers is None else numbers, rows)


# --- matrices and biases ------------------------------------------------------------------------


def _on_cpu(value: Any) -> Any:
    """Return a tensor or an array on the CPU."""
    for method in ("detach", "cpu", "to_numpy"):  # torch, then implicit's matrices on a GPU
        if hasattr(value, method) and not isinstance(value, np.ndarray):
            value = getattr(value, method)()
    return value if isinstance(value, Tensor) else np.asarray(value)


def matrix(name: str, value: Any, *, copy: bool = True) -> Tensor:
    """Return any matrix of floating-point numbers as a CPU tensor of 32 or 64 bits.

    A live model may go on learning, so numpy arrays are copied; those of a file need not be.
    """
    array = _on_cpu(value)
    floating = array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"
    if not floating or array.ndim != 2:
        got = f"{array.dtype} of shape {tuple(array.shape)}"
        raise InputError(f"{name} must be a matrix of floating-point numbers, got {got}")
    if isinstance(array, Tensor):
        return array.to(torch.float64 if array.dtype == torch.float64 else torch.float32)
    precision = np.float64 if array.dtype.itemsize > 4 else np.float32
    return torch.from_numpy(np.array(array, dtype=precision, copy=copy or None))


def vector(name: str, value: Any, rows: int) -> Tensor:
    """Return biases as a tensor of one number per row; a matrix of one column is one too."""
    array = _on_cpu(value)
    numbers = isinstance(array, Tensor) or array.dtype.kind in "fiu"
    if not numbers or math.prod(array.shape) != rows:
        got = f"{array.dtype} of shape {tuple(array.shape)}"
        raise InputError(f"{name} must have one number for each of the {rows:,} rows, got {got}")
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(array.astype(np.float64))
    return tensor.reshape(-1).double()


def with_biases(
    users: Tensor, items: Tensor, user_bias: Tensor | None, item_bias: Tensor | None
) -> tuple[Factors, tuple[int, ...]]:
    """Return factors with biases as columns, and which columns these are.

    The score ``u.v + b_u + b_i`` is the product of ``(u, b_u, 1)`` and ``(v, 1, b_i)``.
    """
    dim, dtype = users.shape[1], users.dtype
    if user_bias is not None:
        users = torch.cat([users, user_bias.to(dtype)[:, None]], dim=1)
        items = torch.cat([items, torch.ones(len(items), 1, dtype=items.dtype)], dim=1)
    if item_bias is not None:
        users = torch.cat([users, torch.ones(len(users), 1, dtype=dtype)], dim=1)
        items = torch.cat([items, item_bias.to(dtype)[:, None]], dim=1)
    factors = Factors.of(users, items)
    return factors, tuple(range(dim, factors.dim))


def with_constants(
    factors: Factors, fixed: Sequence[int] | None = None, known: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the fixed columns and notes: given and known ones, or the constant ones.

    A column in which all users, or all items, have the same number other than 0 belongs to a bias.

    Example:
        >>> with_constants(Factors.of([[0.1, 1.0], [0.2, 1.0]], [[0.3, 7.0], [0.4, 8.0]]))
        ((1,), ('column 1 is constant, so it is a bias: held fixed',))
    """
    if fixed is not None:
        return (*fixed, *known), ()
    constant = torch.zeros(factors.dim, dtype=torch.bool)
    for part in factors:
        if len(part) > 1:
            # Most columns show in their first rows that they are not constant.
            likely = (part[:100] == part[:1]).all(dim=0) & (part[0] != 0)
            columns = torch.nonzero(likely)[:, 0]
            constant[columns] |= (part[:, columns] == part[:1, columns]).all(dim=0)
    found = tuple(torch.nonzero(constant)[:, 0].tolist())
    if not found or len(found) == factors.dim:
        return (), ()
    one = "column {} is constant, so it is a bias: held fixed"
    several = "columns {} are constant, so they are biases: held fixed"
    return found, ((one if len(found) == 1 else several).format(", ".join(map(str, found))),)
