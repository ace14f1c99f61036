"""Torch: a module or a state dict by the names of its tensors, live or from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from robustcf.adapters.arrays import Keys, Layout
from robustcf.adapters.base import Imported, with_constants
from robustcf.adapters.checkpoint import Checkpoint, state_of
from robustcf.adapters.joining import joined
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import Recommender


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

    Only right where the score is the product of the two embeddings (and biases): what else the
    module does, layers say, is not imported; a note names the tensors that were not used.

    Args:
        model: a module, or its ``state_dict()``.
        interactions: the pairs that it was fit on, see :func:`robustcf.adapters.joined`; None
            where they are not at hand.
        test: held-out pairs in the same form.
        user_key: the name of the users' matrix; None where exactly one is called after users.
        item_key: the same for items.
        user_bias_key: the name of the users' biases, if any.
        item_bias_key: the same for items.
        user_labels: what each row is called, or None.
        item_labels: the same for items.
        padding: rows at the start of both that are no user and no item.
        **joining: how ids are matched, the label, see :func:`robustcf.adapters.joined`.

    Example:
        >>> import torch
        >>> class Mine(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.user, self.item = torch.nn.Embedding(3, 2), torch.nn.Embedding(4, 2)
        >>> found = from_torch(Mine(), user_key="user.weight", item_key="item.weight")
        >>> found.factors
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
    factors, held, notes = layout.factors()
    fixed, about = (held, ()) if held else with_constants(factors, None)
    said = (*notes, *about)
    found = Imported(factors, "torch", f"torch {name}", user_labels, item_labels, fixed, said)
    return joined(found, interactions, test, **joining)


def read_state(
    path: Path,
    checkpoint: Checkpoint,
    keys: Keys | None = None,
    *,
    fixed: Sequence[int] | None = None,
    skip: int = 0,
    kind: str = "torch state dict",
) -> Imported:
    """Factors from a state dict in a torch file."""
    stored = state_of(checkpoint.value, str(path))
    names = Layout(stored, str(path), keys).names
    used = [name for name in names if name is not None]
    # The others are named in notes, and not read.
    arrays = {n: checkpoint.tensor(stored[n]) if n in used else v for n, v in stored.items()}
    layout = Layout(arrays, str(path), names, skip=skip)
    factors, held, notes = layout.factors()
    held, about = (held, ()) if held and fixed is None else with_constants(factors, fixed, held)

    def write(other: Factors, target: Path) -> None:
        changed = layout.changed(other)
        checkpoint.copy(target, {name: (stored[name], changed[name]) for name in changed})

    return Imported(factors, kind, path.name, fixed=held, notes=(*notes, *about), writer=write)
