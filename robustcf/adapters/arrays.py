"""Files of named arrays: npz, npy and safetensors, parsed in a process of their own."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._io import files
from robustcf._io.sandbox import Reading, read_apart
from robustcf.adapters.base import Imported, matrix, vector, with_biases, with_constants
from robustcf.errors import InputError
from robustcf.factors import Factors, read_fixed

Array = npt.NDArray[Any]
Named = Mapping[str, Any]

#: The readers that run in a process of their own.
FOREIGN = "robustcf._io.foreign"
# Pairs of names that mean users and items, in lower case.
_PAIRS = (("u", "v"), ("p", "q"))


def read_npy(path: Path) -> Array:
    """Return the array of a ``.npy`` file.

    Raises:
        DataError: damaged, an array of objects, or a header that promises more than there is.
    """
    return read_apart(f"{FOREIGN}:read_npy", [path]).array("array")


def read_npz(path: Path, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Return the arrays of a ``.npz`` file, all or those named.

    Raises:
        DataError: damaged, an array of objects, or sizes that the file cannot hold.
    """
    found = read_apart(f"{FOREIGN}:read_npz", [path])
    return {name: found.array(name) for name in found.arrays if names is None or name in names}


def tensor_of(found: Reading, name: str) -> Tensor:
    """Return an array that was read as a tensor."""
    tensor = torch.from_numpy(found.array(name))
    return tensor.view(torch.bfloat16) if found.arrays[name].dtype == "bfloat16" else tensor


def find_pair(
    arrays: Named, source: str, user_key: str | None = None, item_key: str | None = None
) -> tuple[str, str]:
    """The names of the two matrices of factors: those given, or found by what they are called.

    Raises:
        InputError: there is no such array, or not exactly one for users and one for items.

    Example:
        >>> find_pair({"U": np.ones((2, 2)), "V": np.ones((3, 2)), "k": np.ones(1)}, "here")
        ('U', 'V')
    """
    for key in (user_key, item_key):
        if key is not None and key not in arrays:
            raise InputError(f"{source} has no {key!r}; there are {_listed(arrays)}")
    matrices = [name for name, value in arrays.items() if _is_factor(value)]
    sides: list[str] = []
    for side, given in (("user", user_key), ("item", item_key)):
        if given is not None:
            sides.append(given)
            continue
        named = [name for name in matrices if side in name.lower() and "bias" not in name.lower()]
        for pair in _PAIRS:
            letters = {name.lower(): name for name in matrices}
            if not named and set(pair) <= set(letters):
                named = [letters[pair[0 if side == "user" else 1]]]
        if len(named) != 1:
            raise InputError(
                f"{source}: found {len(named)} matrices for the {side}s among "
                f"{_listed(arrays)}: name it with {side}_key (--{side}-key)"
            )
        sides += named
    return sides[0], sides[1]


def _is_factor(value: Any) -> bool:
    tensor = hasattr(value, "is_floating_point")
    floating = value.is_floating_point() if tensor else value.dtype.kind == "f"
    return bool(floating and value.ndim == 2 and value.shape[1] > 1)


def _listed(arrays: Named) -> str:
    shown = [f"{name} {'x'.join(map(str, value.shape)) or '1'}" for name, value in arrays.items()]
    return ", ".join(shown[:20]) + (", ..." if len(shown) > 20 else "") or "no arrays"


def find_bias(arrays: Named, side: str, given: str | None, source: str) -> str | None:
    """The name of the users' or items' biases: that given, or the one called so; None for none."""
    if given is not None:
        if given not in arrays:
            raise InputError(f"{source} has no {given!r}; there are {_listed(arrays)}")
        return given
    named = [name for name in arrays if side in name.lower() and "bias" in name.lower()]
    if len(named) > 1:
        raise InputError(
            f"{source}: {', '.join(named)} may be the biases of the {side}s: name one with "
            f"{side}_bias_key (--{side}-bias-key)"
        )
    return named[0] if named else None


class Keys(NamedTuple):
    """Names of the arrays that matter; None for those that are to be found by their name."""

    users: str | None = None
    items: str | None = None
    user_bias: str | None = None
    item_bias: str | None = None


class Layout:
    """Where in a file of named arrays the factors are, and how to put others in their place.

    Args:
        arrays: name -> array or tensor.
        source: for messages.
        keys: names of the factors and biases.
        skip: rows at the start that are padding.
    """

    def __init__(
        self,
        arrays: Named,
        source: str,
        keys: Keys | None = None,
        skip: int = 0,
    ) -> None:
        """Find the names."""
        given = keys or Keys()
        self.arrays, self.source, self.skip = arrays, source, skip
        self.keys = find_pair(arrays, source, given.users, given.items)
        self.biases = (
            find_bias(arrays, "user", given.user_bias, source),
            find_bias(arrays, "item", given.item_bias, source),
        )

    @property
    def names(self) -> Keys:
        """All names, as they were given or found."""
        return Keys(*self.keys, *self.biases)

    def factors(self) -> tuple[Factors, tuple[int, ...], tuple[str, ...]]:
        """Factors, their fixed columns, and notes on what was found and what is left aside."""
        U, V = (matrix(key, self.arrays[key], copy=False)[self.skip :] for key in self.keys)
        if U.shape[1] != V.shape[1]:
            turned = "; are they transposed?" if U.shape[0] == V.shape[0] else ""
            raise InputError(
                f"{self.source}: {self.keys[0]} has {U.shape[1]} columns and {self.keys[1]} "
                f"{V.shape[1]}: factors share their columns{turned}"
            )
        own = [
            None if key is None else vector(key, self.arrays[key], len(part) + self.skip)
            for key, part in zip(self.biases, (U, V), strict=True)
        ]
        cut = [None if bias is None else bias[self.skip :] for bias in own]
        factors, fixed = with_biases(U, V, *cut)
        used = [name for name in (*self.keys, *self.biases) if name is not None]
        notes = [f"users are {self.keys[0]}, items are {self.keys[1]}"]
        if any(self.biases):
            words = " and ".join(name for name in self.biases if name is not None)
            notes.append(f"biases are {words}: held fixed")
        left = [name for name in self.arrays if name not in used]
        if left:
            notes.append(f"not used: {', '.join(left[:12])}{', ...' if len(left) > 12 else ''}")
        return factors, fixed, tuple(notes)

    def changed(self, factors: Factors) -> dict[str, Any]:
        """The matrices with other factors in them, in the types in which they came."""
        dim = int(self.arrays[self.keys[0]].shape[1])
        return {
            key: _in_place_of(self.arrays[key], part[:, :dim], self.skip)
            for key, part in zip(self.keys, factors, strict=True)
        }


def _in_place_of(old: Any, rows: Tensor, skip: int) -> Any:
    if isinstance(old, Tensor):
        return torch.cat([old[:skip], rows.to(old.dtype).cpu()])
    return np.concatenate([old[:skip], rows.cpu().numpy().astype(old.dtype)])


def read_named(
    path: Path,
    keys: Keys | None = None,
    *,
    fixed: Sequence[int] | None = None,
    found: Reading | None = None,
) -> Imported:
    """Factors from a ``.npz`` or ``.safetensors`` file of named matrices, parsed here or before."""
    facts: dict[str, str] = {}
    arrays: dict[str, Any]
    if path.suffix.lower() == ".npz":
        found = read_apart(f"{FOREIGN}:read_npz", [path]) if found is None else found
        arrays, kind = {name: found.array(name) for name in found.arrays}, "npz"
    else:
        found = read_apart(f"{FOREIGN}:read_safetensors", [path])
        arrays, kind = {name: tensor_of(found, name) for name in found.arrays}, "safetensors"
        facts = found.facts["metadata"]
    layout = Layout(arrays, str(path), keys)
    factors, held, notes = layout.factors()
    if fixed is None and "fixed" in facts:  # a file of a run of ours
        fixed = read_fixed(facts, str(path))
    held, about = (held, ()) if held and fixed is None else with_constants(factors, fixed, held)

    def write(other: Factors, target: Path) -> None:
        content = {**arrays, **layout.changed(other)}
        if kind == "npz":
            files.write_bytes(target, npz_bytes(content))
        else:
            whole = {name: tensor.contiguous() for name, tensor in content.items()}
            files.write_tensors(target, whole, facts)

    return Imported(factors, kind, path.name, fixed=held, notes=(*notes, *about), writer=write)


def read_two_npy(users: Path, items: Path, *, fixed: Sequence[int] | None = None) -> Imported:
    """Factors from two ``.npy`` files, users first."""
    found = read_apart(f"{FOREIGN}:read_npy", [users, items])
    U, V = found.array("users"), found.array("items")
    layout = Layout({"users": U, "items": V}, f"{users} and {items}", Keys("users", "items"))
    factors, _, _ = layout.factors()
    held, notes = with_constants(factors, fixed)

    def write(other: Factors, target: Path) -> None:
        arrays = layout.changed(other)
        contents = {}
        for path, key in ((users, "users"), (items, "items")):
            buffer = io.BytesIO()
            np.save(buffer, arrays[key], allow_pickle=False)
            contents[path.name] = buffer.getvalue()
        if len(contents) < 2:  # one name in two folders
            contents = dict(zip(("users.npy", "items.npy"), contents.values(), strict=False))
        files.create_folder(target, contents)

    return Imported(factors, "npy", users.name, fixed=held, notes=notes, writer=write)


def npz_bytes(arrays: Named) -> bytes:
    """Arrays as an uncompressed ``.npz``, as numpy's ``savez`` and implicit write it."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()
