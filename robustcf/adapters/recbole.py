"""RecBole: a trained model with its dataset, or the checkpoint that its trainer saved.

Row 0 of every table is padding and is left out. Graph models score propagated embeddings, which
are a function of their parameters: those are taken, never the layer they start from.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from robustcf._io.foreign import RESTORED
from robustcf._io.sandbox import Reading, read_apart
from robustcf.adapters.arrays import FOREIGN, Keys, tensor_of
from robustcf.adapters.base import Imported, check_labels, matrix
from robustcf.adapters.joining import joined
from robustcf.adapters.pytorch import read_state
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from robustcf.recommender import Recommender

# Models whose score is the product of user_embedding and item_embedding, as they are stored.
_PLAIN = ("BPR", "LINE")
_GRAPH_NOTE = "embeddings are those after propagation"


def from_recbole(
    model: Any, interactions: Any = None, test: Any = None, *, dataset: Any, **joining: Any
) -> Recommender:
    """Return a RecBole model as a recommender, with the tokens of its dataset as labels.

    BPR and LINE are taken as they are; graph models (LightGCN, NGCF, SGL, NCL, DGCF, SpectralCF)
    after propagation.

    Args:
        model: a trained general recommender of RecBole.
        interactions: the pairs that it was fit on, see :func:`robustcf.adapters.joined`; None
            where they are not at hand.
        test: held-out pairs in the same form.
        dataset: the dataset that it was made with.
        **joining: how ids are matched, the label, see :func:`robustcf.adapters.joined`.

    Raises:
        InputError: a model whose score is no product of two embeddings.

    Example:
        >>> import numpy as np
        >>> class BPR(torch.nn.Module):  # as recbole's BPR
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.user_embedding = torch.nn.Embedding(3, 2)
        ...         self.item_embedding = torch.nn.Embedding(4, 2)
        >>> class Dataset:  # as recbole's, after it has numbered its tokens
        ...     uid_field, iid_field = "user_id", "item_id"
        ...     field2id_token = {
        ...         "user_id": np.array(["[PAD]", "ann", "bob"]),
        ...         "item_id": np.array(["[PAD]", "x", "y", "z"]),
        ...     }
        >>> from_recbole(BPR(), dataset=Dataset())
        Recommender(recbole BPR, 2 users x 3 items, 2 factors, without interactions)
    """
    name = type(model).__name__
    was_training = bool(getattr(model, "training", False))
    model.eval()
    try:
        with torch.no_grad():
            users, items, notes = _scored(model, name)
    finally:
        model.train(was_training)
    U, V = (matrix(side, value)[1:] for side, value in (("users", users), ("items", items)))
    tokens = dataset.field2id_token
    found = Imported(
        Factors.of(U, V),
        "recbole",
        f"recbole {name}",
        check_labels("user", tokens[dataset.uid_field][1:], len(U)),
        check_labels("item", tokens[dataset.iid_field][1:], len(V)),
        notes=notes,
    )
    return joined(found, interactions, test, **joining)


def _scored(model: Any, name: str) -> tuple[Any, Any, tuple[str, ...]]:
    if all(hasattr(model, each) for each in RESTORED):
        takes = inspect.signature(model.forward).parameters
        graph = [model.train_graph] if list(takes) == ["graph"] else []
        if len(takes) != len(graph):
            raise InputError(
                f"recbole's {name} propagates with arguments that are not known here "
                f"({', '.join(takes)}): call it yourself and use robustcf.Recommender"
            )
        found = model.forward(*graph)
        return found[0], found[1], (_GRAPH_NOTE,)
    if name in _PLAIN:
        return model.user_embedding.weight, model.item_embedding.weight, ()
    raise InputError(
        f"the score of recbole's {name} is not known to be a product of two embeddings: "
        f"{', '.join(_PLAIN)} and graph models are; if yours is, use from_torch with the names of "
        "its tensors and padding=1"
    )


def read_recbole(
    path: Path,
    found: Reading,
    dataset_file: Path | None = None,
    keys: Keys | None = None,
    *,
    fixed: Sequence[int] | None = None,
) -> Imported:
    """Factors from a RecBole checkpoint, with tokens of its saved dataset where that is given.

    Args:
        path: of the checkpoint.
        found: what was read of it.
        dataset_file: what RecBole's ``save_dataset`` wrote, or None.
        keys: names of tensors of the state dict, for models that are not known.
        fixed: columns that are biases; None to find constant ones.

    Raises:
        DataError: the file has no propagated embeddings, and the model needs them.
    """
    settings = found.facts["recbole"]
    name = settings["model"] or "unknown model"
    given = any(keys or ())
    if not given and found.facts.get("restored"):
        U, V = (matrix(each, tensor_of(found, each))[1:] for each in RESTORED)
        read = Imported(Factors.of(U, V), "recbole pth", path.name, notes=(_GRAPH_NOTE,))
    elif not given and name not in _PLAIN:
        raise DataError(
            f"{path}: a checkpoint of {name}, whose scores are not known to be the product of the "
            "embeddings stored in it (graph models score propagated ones): load it with RecBole "
            "and use robustcf.adapters.from_recbole(model, dataset=dataset), or name two tensors "
            "by user_key and item_key (--user-key, --item-key) if they are"
        )
    else:
        if not given:
            keys = Keys("user_embedding.weight", "item_embedding.weight")
        read = read_state(path, found, keys, fixed=fixed, skip=1, kind="recbole pth")
    notes = (*read.notes, f"RecBole's {name}; row 0 is padding and was left out")
    labels: dict[str, Any] = {}
    if dataset_file is not None:
        columns = [
            settings[f"{kind.upper()}_ID_FIELD"] or f"{kind}_id" for kind in ("user", "item")
        ]
        tokens = read_apart(f"{FOREIGN}:read_tokens", [dataset_file], {"columns": columns})
        for kind, column in zip(("user", "item"), columns, strict=True):
            rows = read.factors.n_users if kind == "user" else read.factors.n_items
            labels[f"{kind}_labels"] = check_labels(kind, tokens.array(column)[1:], rows)
    return dataclasses.replace(read, notes=notes, **labels)
