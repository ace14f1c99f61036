"""LensKit: a trained scorer of its matrix factorizations."""

from __future__ import annotations

from typing import Any

from robustcf.adapters.base import Imported, check_labels, matrix, needs, vector, with_biases
from robustcf.adapters.joining import joined
from robustcf.recommender import Recommender


def from_lenskit(
    scorer: Any, interactions: Any = None, test: Any = None, **joining: Any
) -> Recommender:
    """Return a trained LensKit scorer as a recommender, with its vocabularies as labels.

    Takes ``ImplicitMFScorer``, ``BiasedMFScorer`` and ``FunkSVDScorer`` (with their bias model) and
    the FlexMF scorers (with LightGCN layers where they have some). LensKit's ALS folds a user in
    again whenever a query brings a history; what is imported are the embeddings that training
    left, which it serves with ``user_embeddings="prefer"``.

    Args:
        scorer: after training.
        interactions: the pairs that it was fit on, see :func:`robustcf.adapters.joined`; None
            where they are not at hand.
        test: held-out pairs in the same form.
        **joining: how ids are matched, the label, see :func:`robustcf.adapters.joined`.

    Raises:
        InputError: it is not trained, or keeps no user embeddings.

    Example:
        >>> import numpy as np
        >>> class Vocabulary:
        ...     def ids(self):
        ...         return np.array(["a", "b"])
        >>> class Trained:  # as lenskit.als.ImplicitMFScorer is after training
        ...     users = items = Vocabulary()
        ...     user_embeddings = item_embeddings = np.eye(2, dtype=np.float32)
        >>> from_lenskit(Trained())
        Recommender(lenskit Trained, 2 users x 2 items, 2 factors, without interactions)
    """
    name = type(scorer).__name__
    inner = getattr(scorer, "model", None)
    if hasattr(inner, "u_embed") and hasattr(inner, "i_embed"):
        users, items = (_layered(inner, side) for side in "ui")
        biases = [getattr(inner, f"{side}_bias", None) for side in "ui"]
        own = [None if bias is None else bias.weight for bias in biases]
    else:
        needs(scorer, ("user_embeddings", "item_embeddings"), f"lenskit's {name}")
        users = matrix("user_embeddings", scorer.user_embeddings)
        items = matrix("item_embeddings", scorer.item_embeddings)
        model = getattr(scorer, "bias", None)
        own = [getattr(model, f"{kind}_biases", None) for kind in ("user", "item")]
    needs(scorer, ("users", "items"), f"lenskit's {name}")
    user_bias = None if own[0] is None else vector("user biases", own[0], len(users))
    item_bias = None if own[1] is None else vector("item biases", own[1], len(items))
    factors, fixed = with_biases(users, items, user_bias, item_bias)
    found = Imported(
        factors,
        "lenskit",
        f"lenskit {name}",
        check_labels("user", scorer.users.ids(), factors.n_users),
        check_labels("item", scorer.items.ids(), factors.n_items),
        fixed,
    )
    return joined(found, interactions, test, **joining)


def _layered(model: Any, side: str) -> Any:
    """FlexMF's vectors: the mean over its LightGCN layers, or the embeddings themselves."""
    layers = getattr(model, f"{side}_layers", None)
    if layers is None:
        return matrix(f"{side}_embed", getattr(model, f"{side}_embed").weight)
    return matrix(f"{side}_layers", layers.sum(0) / (model.layers + 1))
