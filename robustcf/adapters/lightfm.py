"""LightFM: a fitted model, with features folded into the vectors."""

from __future__ import annotations

from typing import Any

from robustcf.adapters.base import Imported, labels_of_map, matrix, needs, vector, with_biases
from robustcf.adapters.joining import joined
from robustcf.errors import InputError
from robustcf.recommender import Recommender


def from_lightfm(
    model: Any,
    interactions: Any = None,
    test: Any = None,
    *,
    dataset: Any = None,
    user_features: Any = None,
    item_features: Any = None,
    **joining: Any,
) -> Recommender:
    """Return a fitted LightFM model as a recommender; its two biases become fixed columns.

    Args:
        model: a fitted ``lightfm.LightFM``.
        interactions: the pairs that it was fit on, see :func:`robustcf.adapters.joined`; None
            where they are not at hand.
        test: held-out pairs in the same form.
        dataset: the ``lightfm.data.Dataset`` that numbered users and items; its ids become labels.
        user_features: the matrix that the model was fitted with, if any.
        item_features: the same for items.
        **joining: how ids are matched, the label, see :func:`robustcf.adapters.joined`.

    Raises:
        InputError: it is not fitted, or has a row for each feature and the features were not given.

    Example:
        >>> import numpy as np
        >>> class Fitted:  # as lightfm.LightFM is after fit
        ...     user_embeddings = item_embeddings = np.eye(3, 2)
        ...     def get_user_representations(self, features=None):
        ...         return np.zeros(3), self.user_embeddings
        ...     get_item_representations = get_user_representations
        >>> from_lightfm(Fitted())
        Recommender(lightfm LightFM, 3 users x 3 items, 4 factors, 2 columns held fixed, without
        interactions)
    """
    needs(model, ("user_embeddings", "item_embeddings"), "a LightFM model")
    user_bias, users = model.get_user_representations(user_features)
    item_bias, items = model.get_item_representations(item_features)
    U, V = matrix("user representations", users), matrix("item representations", items)
    factors, fixed = with_biases(
        U, V, vector("user biases", user_bias, len(U)), vector("item biases", item_bias, len(V))
    )
    labels: dict[str, Any] = {"user": None, "item": None}
    if dataset is not None:
        user_map, _, item_map, _ = dataset.mapping()
        for kind, numbers, rows, given in (
            ("user", user_map, len(U), user_features),
            ("item", item_map, len(V), item_features),
        ):
            if len(numbers) != rows and given is None:
                raise InputError(
                    f"the LightFM model has {rows:,} {kind} rows and its dataset {len(numbers):,} "
                    f"{kind}s: it was fitted with features, give {kind}_features"
                )
            labels[kind] = labels_of_map(kind, numbers, rows)
    name = "lightfm LightFM"
    found = Imported(factors, "lightfm", name, labels["user"], labels["item"], fixed)
    return joined(found, interactions, test, **joining)
