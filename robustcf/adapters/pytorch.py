"""Torch: a module or a state dict by the names of its tensors, live or from a file."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustcf._io.foreign import RESTORED
from robustcf._io.reading import open_regular
from robustcf._io.sandbox import Reading
from robustcf.adapters.arrays import Keys, Layout, tensor_of
from robustcf.adapters.base import Imported, with_constants
from robustcf.adapters.joining import joined
from robustcf.errors import DataError, InputError
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
    found: Reading,
    keys: Keys | None = None,
    *,
    fixed: Sequence[int] | None = None,
    skip: int = 0,
    kind: str = "torch state dict",
) -> Imported:
    """Factors from a state dict in a torch file.

    Raises:
        DataError: a whole module was saved, or something else.
    """
    if "object" in found.facts:
        raise DataError(
            f"{path}: a whole object of {found.facts['object']} was saved, which only its own code "
            "can read: save its state_dict() instead"
        )
    stored = {name: where for name, where in found.arrays.items() if name not in RESTORED}
    if not stored:
        raise DataError(f"{path}: holds no state dict: save model.state_dict()")
    names = Layout(stored, str(path), keys).names
    used = [name for name in names if name is not None]
    # The others are named in notes, and not read.
    arrays = {n: tensor_of(found, n) if n in used else where for n, where in stored.items()}
    layout = Layout(arrays, str(path), names, skip=skip)
    factors, held, notes = layout.factors()
    held, about = (held, ()) if held and fixed is None else with_constants(factors, fixed, held)

    def write(other: Factors, target: Path) -> None:
        changed = layout.changed(other)
        whole = found.facts["whole"]
        shared = [name for name in changed if name not in whole]
        if shared:
            raise InputError(
                f"{path}: {shared[0]} shares its storage with another tensor and cannot be written "
                "back: change it with torch"
            )
        bits = {
            whole[name]: tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            for name, tensor in changed.items()
        }
        _copy(path, target, bits)

    return Imported(factors, kind, path.name, fixed=held, notes=(*notes, *about), writer=write)


def _copy(source: Path, target: Path, changes: Mapping[str, bytes]) -> None:
    """Write a torch file again with other bytes in some of its storages."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    try:
        with (
            open_regular(source) as file,
            zipfile.ZipFile(file) as old,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as new,
        ):
            for entry in old.infolist():
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise DataError(f"{source}: changed while it was read")
                content = changes.get(entry.filename)
                new.writestr(entry.filename, old.read(entry) if content is None else content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
