"""Trained models of other libraries, read through their attributes: none is imported here.

Each function says where a library keeps factors, biases and ids, and ends in
:func:`robustcf.adapters.joined`, whose arguments it takes: ``interactions``, ``test`` and options.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustcf._io.unpickling import RESTORED
from robustcf.adapters.imported import (
    Imported,
    joined,
    matrix,
    vector,
    with_biases,
    with_constants,
)
from robustcf.adapters.reading import GRAPH_NOTE, PLAIN_RECBOLE, Keys, Layout
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.folding import LEAST_SQUARES, FoldIn
from robustcf.recommender import Recommender


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

    implicit has no ids: rows are those of its matrix, unless labels are given. The bias columns of
    BPR (one) and logistic MF (two) are held fixed. Other arguments: :func:`joined`.

    Example:
        >>> from types import SimpleNamespace
        >>> left, right = np.array([[0.5, 1], [0.2, 1]]), np.array([[0.1, 3], [0.3, 4]])
        >>> fitted = SimpleNamespace(user_factors=left, item_factors=right)  # as implicit's BPR is
        >>> from_implicit(fitted).fixed
        (1,)
    """
    name = type(model).__name__
    _needs(model, ("item_factors", "user_factors"), f"implicit's {name}")
    labels = {"user_labels": user_labels, "item_labels": item_labels}
    found = _imported("implicit", name, model.user_factors, model.item_factors, **labels)
    alpha, ridge = getattr(model, "alpha", None), getattr(model, "regularization", None)
    fold_in = None
    if "AlternatingLeastSquares" in name and alpha is not None and ridge is not None:
        # The least squares that implicit's ALS solves for a user.
        weights = {"unobserved": 1.0, "curvature": float(alpha) - 1.0, "pull": float(alpha)}
        fold_in = FoldIn(LEAST_SQUARES, {**weights, "ridge": float(ridge)})
    return joined(found, interactions, test, fold_in=fold_in, **joining)


def from_cornac(
    model: Any, interactions: Any = None, test: Any = None, **joining: Any
) -> Recommender:
    """Return a fitted Cornac model as a recommender, with its own ids as labels.

    Biases of BPR, WBPR, MF and NMF become columns held fixed; WMF and PMF have none. Any other
    model that ranks by the dot product is read by ``get_user_vectors`` and ``get_item_vectors``.
    Other arguments: :func:`joined`.

    Example:
        >>> class Fitted:  # as cornac.models.BPR is after fit
        ...     u_factors, i_factors, i_biases = np.eye(2, 3), np.eye(4, 3), np.arange(4.0)
        ...     uid_map, iid_map = {"ann": 0, "bob": 1}, {"a": 0, "b": 1, "c": 2, "d": 3}
        >>> from_cornac(Fitted()).user_labels.tolist()
        ['ann', 'bob']
    """
    name = type(model).__name__
    biases: Any = [None, None]
    if hasattr(model, "u_factors"):
        _needs(model, ("u_factors", "i_factors"), f"cornac's {name}")
        users, items = model.u_factors, model.i_factors
        if getattr(model, "use_bias", True):
            biases = [getattr(model, f"{side}_biases", None) for side in "ui"]
        mean = getattr(model, "global_mean", None)
        if biases[0] is not None and mean:
            biases[0] = np.asarray(biases[0], dtype=np.float64) + float(mean)
    elif hasattr(model, "U") and hasattr(model, "V"):
        _needs(model, ("U", "V"), f"cornac's {name}")
        users, items = model.U, model.V
    elif hasattr(model, "get_user_vectors") and hasattr(model, "get_item_vectors"):
        measure = str(model.get_vector_measure())
        if "dot" not in measure.lower():
            raise InputError(f"cornac's {name} ranks by {measure}, not by the dot product")
        users, items, biases = model.get_user_vectors(), model.get_item_vectors(), None
    else:
        raise InputError(
            f"a cornac {name} has no factors: expected a fitted BPR, MF, WMF, PMF or NMF; or use "
            "robustcf.Recommender with its vectors"
        )
    labels: dict[str, Any] = {}
    for kind, ids in (("user", "uid_map"), ("item", "iid_map")):
        own = getattr(model, ids, None)
        fitted_on = getattr(model, "train_set", None)
        labels[f"{kind}_labels"] = getattr(fitted_on, ids, None) if own is None else own
    found = _imported("cornac", name, users, items, biases, **labels)
    return joined(found, interactions, test, **joining)


def from_lenskit(
    scorer: Any, interactions: Any = None, test: Any = None, **joining: Any
) -> Recommender:
    """Return a trained LensKit scorer as a recommender, with its vocabularies as labels.

    Takes ``ImplicitMFScorer``, ``BiasedMFScorer`` and ``FunkSVDScorer`` (with biases) and FlexMF
    scorers (with LightGCN layers). Of LensKit's ALS, which folds users in per query, the embeddings
    of training are taken (``user_embeddings="prefer"``). Other arguments: :func:`joined`.

    Example:
        >>> from types import SimpleNamespace
        >>> vocabulary = SimpleNamespace(ids=lambda: np.array(["a", "b"]))
        >>> class Trained:  # as lenskit.als.ImplicitMFScorer is after training
        ...     users = items = vocabulary
        ...     user_embeddings = item_embeddings = np.eye(2)
        >>> from_lenskit(Trained())
        Recommender(lenskit Trained, 2 users x 2 items, 2 factors, without interactions)
    """
    name = type(scorer).__name__
    inner = getattr(scorer, "model", None)
    if hasattr(inner, "u_embed") and hasattr(inner, "i_embed"):
        users, items = (_layered(inner, side) for side in "ui")
        biases = [getattr(getattr(inner, f"{side}_bias", None), "weight", None) for side in "ui"]
    else:
        _needs(scorer, ("user_embeddings", "item_embeddings"), f"lenskit's {name}")
        users, items = scorer.user_embeddings, scorer.item_embeddings
        model = getattr(scorer, "bias", None)
        biases = [getattr(model, f"{kind}_biases", None) for kind in ("user", "item")]
    _needs(scorer, ("users", "items"), f"lenskit's {name}")
    labels = {"user_labels": scorer.users.ids(), "item_labels": scorer.items.ids()}
    found = _imported("lenskit", name, users, items, biases, **labels)
    return joined(found, interactions, test, **joining)


def _layered(model: Any, side: str) -> Any:
    """Return FlexMF's vectors: the mean over its LightGCN layers, or the embeddings themselves."""
    layers = getattr(model, f"{side}_layers", None)
    if layers is None:
        return getattr(model, f"{side}_embed").weight
    return layers.sum(0) / (model.layers + 1)


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

    The ids of ``dataset``, a ``lightfm.data.Dataset``, become labels. ``user_features`` and
    ``item_features`` are the matrices of the fit, if any. Other arguments: :func:`joined`.

    Example:
        >>> class Fitted:  # as lightfm.LightFM is after fit
        ...     user_embeddings = item_embeddings = np.eye(3, 2)
        ...     def get_user_representations(self, features=None):
        ...         return np.zeros(3), self.user_embeddings
        ...     get_item_representations = get_user_representations
        >>> from_lightfm(Fitted()).fixed
        (2, 3)
    """
    _needs(model, ("user_embeddings", "item_embeddings"), "a LightFM model")
    user_bias, users = model.get_user_representations(user_features)
    item_bias, items = model.get_item_representations(item_features)
    labels = {}
    if dataset is not None:
        user_map, _, item_map, _ = dataset.mapping()
        for kind, own, rows, given in (
            ("user", user_map, len(users), user_features),
            ("item", item_map, len(items), item_features),
        ):
            if len(own) != rows and given is None:
                raise InputError(
                    f"expected {len(own):,} {kind}s of the dataset, got {rows:,} rows: give the "
                    f"{kind}_features of the fit"
                )
            labels[f"{kind}_labels"] = own
    found = _imported("lightfm", "LightFM", users, items, (user_bias, item_bias), **labels)
    return joined(found, interactions, test, **joining)


def from_rectools(
    model: Any, interactions: Any = None, test: Any = None, *, dataset: Any, **joining: Any
) -> Recommender:
    """Return a fitted rectools model as a recommender, the ids of its ``dataset`` as labels.

    Takes models with ``get_vectors`` (ImplicitALS, ImplicitBPR, LightFM and DSSM wrappers) or
    ``user_factors`` and ``item_factors`` (PureSVD). Bias columns are held fixed. Other arguments:
    :func:`joined`.

    Example:
        >>> from types import SimpleNamespace
        >>> ids = SimpleNamespace(external_ids=np.array([7, 9]))
        >>> fitted_on = SimpleNamespace(user_id_map=ids, item_id_map=ids)
        >>> fitted = SimpleNamespace(get_vectors=lambda: (np.eye(2), np.eye(2)))
        >>> from_rectools(fitted, dataset=fitted_on).item_labels.tolist()
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
        raise InputError(f"a rectools {name} has no vectors: expected a fitted vector model")
    labels = {}
    for kind, rows in (("user", len(users)), ("item", len(items))):
        ids = getattr(dataset, f"{kind}_id_map").external_ids
        # Ids without interactions come last and have no vector.
        hot = getattr(dataset, f"n_hot_{kind}s", len(ids)) == rows
        labels[f"{kind}_labels"] = ids[:rows] if hot else ids
    found = _imported("rectools", name, users, items, **labels)
    return joined(found, interactions, test, **joining)


def from_recbole(
    model: Any, interactions: Any = None, test: Any = None, *, dataset: Any, **joining: Any
) -> Recommender:
    """Return a RecBole model as a recommender, with the tokens of its ``dataset`` as labels.

    Graph models (LightGCN, NGCF, SGL, NCL, DGCF, SpectralCF) are taken after propagation, BPR and
    LINE as stored. Row 0, padding, is left out. Other arguments: :func:`joined`.

    Example:
        >>> from types import SimpleNamespace
        >>> class BPR:  # as recbole's
        ...     user_embedding, item_embedding = torch.nn.Embedding(3, 2), torch.nn.Embedding(4, 2)
        >>> tokens = {"u": np.array(["[PAD]", "ann", "bob"]), "i": np.array(["[PAD]", *"xyz"])}
        >>> numbered = SimpleNamespace(uid_field="u", iid_field="i", field2id_token=tokens)
        >>> from_recbole(BPR(), dataset=numbered)
        Recommender(recbole BPR, 2 users x 3 items, 2 factors, without interactions)
    """
    name = type(model).__name__
    graph = all(hasattr(model, each) for each in RESTORED)
    if not graph and name not in PLAIN_RECBOLE:
        raise InputError(
            f"expected {', '.join(PLAIN_RECBOLE)} or a graph model of recbole, got {name}: if it "
            "scores by the product of two embeddings, use from_torch with their names and padding=1"
        )
    notes: tuple[str, ...] = ()
    if graph:
        users, items = _propagated(model, name)
        notes = (GRAPH_NOTE,)
    else:
        users, items = model.user_embedding.weight, model.item_embedding.weight
    tokens, fields = dataset.field2id_token, (dataset.uid_field, dataset.iid_field)
    labels = {
        f"{kind}_labels": tokens[field][1:]
        for kind, field in zip(("user", "item"), fields, strict=True)
    }
    both = (users[1:], items[1:])
    found = _imported("recbole", name, *both, (None, None), notes, **labels)
    return joined(found, interactions, test, **joining)


def _propagated(model: Any, name: str) -> tuple[Any, Any]:
    """Return the embeddings of a graph model after propagation."""
    takes = inspect.signature(model.forward).parameters
    graph = [model.train_graph] if list(takes) == ["graph"] else []
    if len(takes) != len(graph):
        raise InputError(
            f"recbole's {name} propagates with unknown arguments ({', '.join(takes)}): call it and "
            "use robustcf.Recommender"
        )
    was_training = bool(getattr(model, "training", False))
    model.eval()
    try:
        with torch.no_grad():
            found = model.forward(*graph)
    finally:
        model.train(was_training)
    return found[0], found[1]


def from_torch(
    model: Any,
    interactions: Any = None,
    test: Any = None,
    *,
    user_key: str | None = None,
    item_key: str | None = None,
    user_bias_key: str | None = None,
    item_bias_key: str | None = None,
    user_labels: Any = None,
    item_labels: Any = None,
    padding: int = 0,
    **joining: Any,
) -> Recommender:
    """Return the embeddings of a torch module, or of a state dict, as a recommender.

    The score must be the product of the two embeddings (and biases); a note names unused tensors.
    The keys name matrices and biases; None to find them by their names. ``padding`` rows at the
    start of both are left out. Other arguments: :func:`joined`.

    Example:
        >>> state = {"first": torch.ones(3, 2), "second": torch.rand(4, 2)}
        >>> from_torch(state, user_key="first", item_key="second").factors
        Factors(3 users x 4 items, dim 2, float32)
    """
    state = model.state_dict() if hasattr(model, "state_dict") else model
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(
            f"from_torch takes a module or a state dict of tensors, got {type(model).__name__}"
        )
    name = type(model).__name__ if state is not model else "state dict"
    keys = Keys(user_key, item_key, user_bias_key, item_bias_key)
    layout = Layout(dict(state), name, keys, skip=padding)
    labels = {"user_labels": user_labels, "item_labels": item_labels}
    found = layout.imported("torch", f"torch {name}", **labels)
    return joined(found, interactions, test, **joining)


def _imported(
    library: str,
    name: str,
    users: Any,
    items: Any,
    biases: Sequence[Any] | None = None,
    notes: tuple[str, ...] = (),
    **labels: Any,
) -> Imported:
    """Return the factors of a model; without ``biases``, constant columns count as biases."""
    U, V = matrix("user factors", users), matrix("item factors", items)
    if biases is None:
        factors = Factors.of(U, V)
        fixed, notes = with_constants(factors)
    else:
        own = [
            None if bias is None else vector(f"{kind} biases", bias, len(part))
            for kind, bias, part in zip(("user", "item"), biases, (U, V), strict=True)
        ]
        factors, fixed = with_biases(U, V, *own)
    return Imported(factors, library, f"{library} {name}", fixed=fixed, notes=notes, **labels)


def _needs(thing: object, names: Sequence[str], what: str) -> None:
    """Raise unless an object has these attributes, and they are not None."""
    lacking = [name for name in names if getattr(thing, name, None) is None]
    if lacking:
        raise InputError(f"{what} must be trained and have {', '.join(lacking)}: train it first")
