"""Factors: the pair (U, V) that models produce and everything else reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robustcf._io.reading import parse_json
from robustcf._io.schema import shown
from robustcf._io.text import counted
from robustcf.errors import InputError

#: What can be computed with; torch has others, of 8 bits, that it only stores.
PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def as_tensor(name: str, value: object) -> Tensor:
    """Return a tensor as it is, or one that shares the memory of a numpy array."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or value.itemsize > 8:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{name} must be a tensor or a numpy array of numbers, got {kind}")
    # Torch has native byte order only, and no view of an array that may not be written to.
    native = value.astype(value.dtype.newbyteorder("="), copy=not value.flags.writeable)
    return torch.from_numpy(np.ascontiguousarray(native))


def _floating(name: str, value: object) -> Tensor:
    """Return an array, a list or a tensor as a dense floating-point tensor."""
    if isinstance(value, list | tuple):
        try:
            value = np.asarray(value)
        except ValueError as error:  # rows of several lengths
            raise InputError(f"{name} must be a matrix of numbers ({error})") from error
    tensor = as_tensor(name, value).detach()
    if tensor.layout != torch.strided:
        raise InputError(f"{name} must be a dense matrix, got {tensor.layout}: use .to_dense()")
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise InputError(f"{name} must be a floating-point matrix, got {tensor.dtype}")
    return tensor if tensor.is_floating_point() else tensor.to(torch.float32)


@dataclass(frozen=True, eq=False)
class Factors:
    """User and item embeddings; the score of user u and item i is ``users[u] @ items[i]``.

    Args:
        users: U, n_users x dim, of floating-point numbers: a tensor, or a numpy array.
        items: V, n_items x dim, of the same dtype and on the same device.

    Raises:
        InputError: the tensors are not two matrices that fit each other.

    Cost: none; numpy arrays are not copied.

    Example:
        >>> factors = Factors(torch.ones(2, 3), torch.ones(4, 3))
        >>> factors.n_users, factors.n_items, factors.dim
        (2, 4, 3)
        >>> U, V = factors
        >>> (U @ V.T).shape
        torch.Size([2, 4])
    """

    users: Tensor
    items: Tensor

    def __post_init__(self) -> None:
        for name in ("users", "items"):
            value = as_tensor(name, getattr(self, name))
            object.__setattr__(self, name, value)
            if value.ndim != 2 or not value.is_floating_point():
                raise InputError(
                    f"{name} must be a floating-point matrix, got {value.dtype} of shape "
                    f"{tuple(value.shape)}"
                )
            if value.dtype not in PRECISIONS:
                raise InputError(
                    f"{name} must have 16, 32 or 64 bits per number, got {value.dtype}: convert it"
                )
        if self.users.shape[1] != self.items.shape[1]:
            raise InputError(
                "users and items must have the same number of columns, got "
                f"{self.users.shape[1]} and {self.items.shape[1]}"
            )
        if self.users.dtype != self.items.dtype or self.users.device != self.items.device:
            raise InputError(
                "users and items must share dtype and device, got "
                f"{self.users.dtype} on {self.users.device} and "
                f"{self.items.dtype} on {self.items.device}"
            )

    @classmethod
    def of(cls, users: object, items: object) -> Factors:
        """Return factors of lists and arrays, of whole numbers too, and of two precisions.

        Whole numbers become float32, two precisions the higher one, and gradients are dropped.
        Nothing else is copied. Matrices that are empty or do not fit each other are an InputError.

        Example:
            >>> Factors.of([[1, 2]], np.ones((3, 2)))
            Factors(1 users x 3 items, dim 2, float64)
        """
        U, V = _floating("users", users), _floating("items", items)
        if U.dtype == V.dtype or {U.dtype, V.dtype} - set(PRECISIONS):
            factors = cls(U, V)
        else:
            common = torch.promote_types(U.dtype, V.dtype)
            factors = cls(U.to(common), V.to(common))
        for letter, rows in (("U", factors.n_users), ("V", factors.n_items)):
            if rows == 0:
                raise InputError(f"{letter} has no rows: give at least one user and one item")
        if factors.dim == 0:
            raise InputError("U has no columns: give embeddings of at least one dimension")
        return factors

    def __iter__(self) -> Iterator[Tensor]:
        yield self.users
        yield self.items

    @property
    def n_users(self) -> int:
        """Rows of U."""
        return int(self.users.shape[0])

    @property
    def n_items(self) -> int:
        """Rows of V."""
        return int(self.items.shape[0])

    @property
    def dim(self) -> int:
        """Columns of both."""
        return int(self.users.shape[1])

    def __repr__(self) -> str:
        return (
            f"Factors({self.n_users:,} users x {self.n_items:,} items, dim {self.dim}, "
            f"{str(self.users.dtype).removeprefix('torch.')})"
        )

    def check_finite(self) -> None:
        """Raise an InputError that names the first row with a NaN or an infinity."""
        for name, letter, value in (("users", "U", self.users), ("items", "V", self.items)):
            # A sum is not finite exactly when a summand is not, short of overflow: cheap to ask,
            # and in their own precision 25 times as cheap as in a wider one.
            narrow = value.dtype in (torch.float16, torch.bfloat16)
            if bool(torch.isfinite(value.sum(dtype=torch.float32 if narrow else None))):
                continue
            bad = torch.nonzero((~torch.isfinite(value)).any(dim=1))[:, 0]
            if len(bad):
                row = value[bad[0]]
                raise InputError(
                    f"{name} must be finite, got {row[~torch.isfinite(row)][0].item()} in row "
                    f"{int(bad[0])} ({counted(len(bad), 'such row')} of {letter}): repair or leave "
                    "out these rows"
                )


def read_fixed(facts: Mapping[str, str], source: str) -> tuple[int, ...]:
    """Return the columns held fixed (biases) by the metadata of a safetensors file.

    Example:
        >>> read_fixed({"fixed": "[3, 4]"}, "factors.safetensors"), read_fixed({}, "others")
        ((3, 4), ())
    """
    try:
        found = parse_json(facts.get("fixed", "[]"))
    except InputError:
        found = facts["fixed"]
    if not isinstance(found, list) or any(type(column) is not int for column in found):
        raise InputError(f"{source}: fixed columns must be a list of numbers, got {shown(found)}")
    return tuple(found)
