"""implicit: a fitted model, or the ``.npz`` that its ``save`` wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from robustcf._io import files
from robustcf._io.sandbox import Reading
from robustcf.adapters.arrays import Keys, Layout, npz_bytes
from robustcf.adapters.base import Imported, matrix, needs, with_constants
from robustcf.adapters.joining import joined
from robustcf.factors import Factors
from robustcf.models.folding import LEAST_SQUARES, FoldIn
from robustcf.recommender import Recommender

_KEYS = {"user_factors", "item_factors"}


def from_implicit(
    model: Any,
    interactions: Any = None,
    test: Any = None,
    *,
    user_labels: Any = None,
    item_labels: Any = None,
    **joining: Any,
) -> Recommender:
    """Return a fitted implicit model (ALS, BPR, logistic MF), on CPU or GPU, as a recommender.

    implicit knows no ids: rows are those of the matrix that it was fitted on, unless labels are
    given. Its BPR has one bias column (the last), its logistic MF two; they are recognized by the
    constant 1 they are multiplied with, and held fixed.

    Args:
        model: after ``fit``.
        interactions: the pairs that it was fit on, see :func:`robustcf.adapters.joined`; None
            where they are not at hand.
        test: held-out pairs in the same form.
        user_labels: what each row of ``user_items`` is called, or None.
        item_labels: what each column is called, or None.
        **joining: how ids are matched, the label, see :func:`robustcf.adapters.joined`.

    Raises:
        InputError: the model is not fitted, or is no factorization.

    Example:
        >>> import numpy as np
        >>> class Fitted:  # as implicit's BPR is after fit
        ...     user_factors = np.array([[0.5, 1.0], [0.2, 1.0]], np.float32)
        ...     item_factors = np.array([[0.1, 3.0], [0.3, 4.0]], np.float32)
        >>> from_implicit(Fitted()).fixed
        (1,)
    """
    name = type(model).__name__
    needs(model, sorted(_KEYS), f"implicit's {name}")
    users = matrix("user_factors", model.user_factors)
    factors = Factors.of(users, matrix("item_factors", model.item_factors))
    fixed, notes = with_constants(factors, None)
    source = f"implicit {name}"
    found = Imported(factors, "implicit", source, user_labels, item_labels, fixed, notes)
    return joined(found, interactions, test, fold_in=_fold_in(model), **joining)


def _fold_in(model: Any) -> FoldIn | None:
    """Return the least squares that implicit's ALS solves for a user; None for other models."""
    alpha, ridge = getattr(model, "alpha", None), getattr(model, "regularization", None)
    if "AlternatingLeastSquares" not in type(model).__name__ or alpha is None or ridge is None:
        return None
    weights = {"unobserved": 1.0, "curvature": float(alpha) - 1.0, "pull": float(alpha)}
    return FoldIn(LEAST_SQUARES, {**weights, "ridge": float(ridge)})


def is_implicit(names: Iterable[str]) -> bool:
    """Whether an ``.npz`` with arrays of these names was saved by implicit."""
    return set(names) >= _KEYS


def read_implicit(path: Path, found: Reading, *, fixed: Sequence[int] | None = None) -> Imported:
    """Factors from the file that ``model.save(path)`` wrote; written back, implicit loads it."""
    arrays = {name: found.array(name) for name in found.arrays}
    layout = Layout(arrays, str(path), Keys("user_factors", "item_factors"))
    factors, _, _ = layout.factors()
    held, notes = with_constants(factors, fixed)

    def write(other: Factors, target: Path) -> None:
        files.write_bytes(target, npz_bytes({**arrays, **layout.changed(other)}))

    return Imported(factors, "implicit npz", path.name, fixed=held, notes=notes, writer=write)
