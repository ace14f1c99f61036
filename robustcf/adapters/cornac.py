"""Cornac: a fitted matrix factorization."""

from __future__ import annotations

from typing import Any

from robustcf.adapters.base import Imported, labels_of_map, matrix, needs, vector, with_biases
from robustcf.adapters.base import with_constants as constants
from robustcf.adapters.joining import joined
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import Recommender


def from_cornac(
    model: Any, interactions: Any = None, test: Any = None, **joining: Any
) -> Recommender:
    """Return a fitted Cornac model as a recommender, with its own ids as labels.

    Models with ``u_factors`` and ``i_factors`` (BPR, WBPR, MF, NMF) bring their biases, which
    become columns held fixed; those with ``U`` and ``V`` (WMF, PMF) have none. Any other model that
    Cornac serves by the dot product of user and item vectors is taken through
    ``get_user_vectors`` and ``get_item_vectors``.

    Args:
        model: after ``fit``.
        interactions: the pairs that it was fit on, see :func:`robustcf.adapters.joined`; None
            where they are not at hand.
        test: held-out pairs in the same form.
        **joining: how ids are matched, the label, see :func:`robustcf.adapters.joined`.

    Raises:
        InputError: it is not fitted, or its scores are no dot product.

    Example:
        >>> import numpy as np
        >>> class Fitted:  # as cornac.models.BPR is after fit
        ...     u_factors, i_factors = np.ones((2, 3)), np.ones((4, 3))
        ...     i_biases = np.arange(4.0)
        ...     uid_map, iid_map = {"ann": 0, "bob": 1}, {"a": 0, "b": 1, "c": 2, "d": 3}
        >>> from_cornac(Fitted())
        Recommender(cornac Fitted, 2 users x 4 items, 4 factors, 1 column held fixed, without
        interactions)
    """
    name = type(model).__name__
    factors: Factors
    notes: tuple[str, ...] = ()
    if hasattr(model, "u_factors"):
        needs(model, ("u_factors", "i_factors"), f"cornac's {name}")
        users, items = matrix("u_factors", model.u_factors), matrix("i_factors", model.i_factors)
        biases = {}
        for side, rows in (("u", len(users)), ("i", len(items))):
            own = getattr(model, f"{side}_biases", None)
            if own is not None and getattr(model, "use_bias", True):
                biases[side] = vector(f"{side}_biases", own, rows)
        mean = getattr(model, "global_mean", None)
        if "u" in biases and mean:
            biases["u"] = biases["u"] + float(mean)
        factors, fixed = with_biases(users, items, biases.get("u"), biases.get("i"))
    elif hasattr(model, "U") and hasattr(model, "V"):
        needs(model, ("U", "V"), f"cornac's {name}")
        factors, fixed = Factors.of(matrix("U", model.U), matrix("V", model.V)), ()
    elif hasattr(model, "get_user_vectors") and hasattr(model, "get_item_vectors"):
        measure = str(model.get_vector_measure())
        if "dot" not in measure.lower():
            raise InputError(f"cornac's {name} ranks by {measure}, not by the dot product")
        factors = Factors.of(
            matrix("user vectors", model.get_user_vectors()),
            matrix("item vectors", model.get_item_vectors()),
        )
        fixed, notes = constants(factors, None)
    else:
        raise InputError(
            f"a cornac {name} has no factors: give a fitted matrix factorization (BPR, MF, WMF, "
            "PMF, NMF), or take its vectors yourself and use robustcf.Recommender"
        )
    maps = {}
    for side, rows in (("uid", factors.n_users), ("iid", factors.n_items)):
        own = getattr(model, f"{side}_map", None)
        if own is None:
            own = getattr(getattr(model, "train_set", None), f"{side}_map", None)
        kind = "user" if side == "uid" else "item"
        maps[kind] = None if own is None else labels_of_map(kind, own, rows)
    source = f"cornac {name}"
    found = Imported(factors, "cornac", source, maps["user"], maps["item"], fixed, notes)
    return joined(found, interactions, test, **joining)
