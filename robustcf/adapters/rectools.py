"""rectools: a fitted vector model and the dataset it was fitted on."""

from __future__ import annotations

import inspect
from typing import Any

from robustcf.adapters.base import Imported, check_labels, matrix, with_constants
from robustcf.adapters.joining import joined
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import Recommender


def from_rectools(
    model: Any, interactions: Any = None, test: Any = None, *, dataset: Any, **joining: Any
) -> Recommender:
    """Return a fitted rectools model as a recommender, the dataset's external ids as labels.

    Takes whatever has ``get_vectors`` (ImplicitALS, ImplicitBPR, LightFM and DSSM wrappers) or
    ``user_factors`` and ``item_factors`` (PureSVD). Biases are columns of such vectors; they are
    recognized by the constant they are multiplied with, and held fixed.

    Args:
        model: after ``fit``.
        interactions: the pairs that it was fit on, see :func:`robustcf.adapters.joined`; None
            where they are not at hand.
        test: held-out pairs in the same form.
        dataset: the rectools dataset that it was fitted on, for its ids.
        **joining: how ids are matched, the label, see :func:`robustcf.adapters.joined`.

    Raises:
        InputError: the model has no vectors, or does not rank by their dot product.

    Example:
        >>> import numpy as np
        >>> class Ids:
        ...     external_ids = np.array([7, 9])
        >>> class Dataset:
        ...     user_id_map = item_id_map = Ids()
        >>> class Fitted:  # as rectools.models.ImplicitALSWrapperModel is after fit
        ...     def get_vectors(self):
        ...         return np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)
        >>> from_rectools(Fitted(), dataset=Dataset()).item_labels.tolist()
        [7, 9]
    """
    name = type(model).__name__
    distance = getattr(model, "u2i_dist", None)
    measure = str(getattr(distance, "name", distance)).upper()
    if distance is not None and "DOT" not in measure:
        raise InputError(f"rectools' {name} ranks by {measure}, not by the dot product")
    if hasattr(model, "get_vectors"):
        takes = inspect.signature(model.get_vectors).parameters
        users, items = model.get_vectors(*([dataset] if "dataset" in takes else []))
    elif hasattr(model, "user_factors") and hasattr(model, "item_factors"):
        users, items = model.user_factors, model.item_factors
    else:
        raise InputError(
            f"a rectools {name} has no vectors: give a fitted vector model (ImplicitALS, "
            "ImplicitBPR, LightFM, PureSVD, DSSM)"
        )
    factors = Factors.of(matrix("user vectors", users), matrix("item vectors", items))
    fixed, notes = with_constants(factors, None)
    labels = []
    for kind, rows in (("user", factors.n_users), ("item", factors.n_items)):
        ids = getattr(dataset, f"{kind}_id_map").external_ids
        # Ids without interactions, known by their features alone, come last and have no vector.
        if getattr(dataset, f"n_hot_{kind}s", len(ids)) == rows:
            ids = ids[:rows]
        labels.append(check_labels(kind, ids, rows))
    source = f"rectools {name}"
    found = Imported(factors, "rectools", source, labels[0], labels[1], fixed, notes)
    return joined(found, interactions, test, **joining)
