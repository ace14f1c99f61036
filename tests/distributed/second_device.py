"""A simulated second device: tensors that report another device and are kept on the CPU.

An operation whose tensors are on two devices is an error, as on a GPU; a copy from one device to
the other is counted. So code that falls back to the CPU, or copies without saying so, shows on a
machine without a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")  # a type that every torch knows, and has no numbers for
_COPY = ("aten._to_copy.default", "aten.copy_.default")


class There(Tensor):
    """A tensor on the second device; ``numbers`` has its content."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> There:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(),
            dtype=numbers.dtype, device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.numbers = numbers
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of the second device's mode")


class SecondDevice(TorchDispatchMode):
    """While it is entered, tensors can be made on the second device and computed with there."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()  # numbers in one copy

    def copied(self, source: Tensor) -> None:
        """Count a copy from one device to the other."""
        way = "back" if isinstance(source, There) else "there"
        self.copies[way] += 1
        self.largest[way] = max(self.largest[way], source.numel())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = str(func)
        tensors = [part for part in tree_flatten((args, kwargs))[0] if isinstance(part, Tensor)]
        there = [part for part in tensors if isinstance(part, There)]
        asked = kwargs.get("device")
        onto = None if asked is None else torch.device(asked).type
        if onto == DEVICE.type:
            kwargs["device"] = torch.device("cpu")
        target = bool(there) if onto is None else onto == DEVICE.type
        if name in _COPY and there and (len(there) < len(tensors) or not target):
            self.copied(tensors[-1])
        elif there:
            # Tensors of one number mix with everything, as they do on a GPU.
            strangers = [part for part in tensors if not isinstance(part, There) and part.ndim]
            if strangers:
                raise RuntimeError(
                    f"{name} got tensors on two devices: "
                    f"{[(type(part).__name__, tuple(part.shape)) for part in tensors]}"
                )
        inner = tree_map(lambda part: part.numbers if isinstance(part, There) else part, args)
        rest = tree_map(lambda part: part.numbers if isinstance(part, There) else part, kwargs)
        found = func(*inner, **rest)
        if func._schema.is_mutable:
            return _same_places(func, args, kwargs, found)
        if not target:
            return found
        return tree_map(lambda part: There(part) if isinstance(part, Tensor) else part, found)


def _same_places(func: Any, args: Any, kwargs: Any, found: Any) -> Any:
    """What an operation in place returns: the very tensors that it changed."""
    changed = [
        (args[n] if n < len(args) else kwargs.get(argument.name))
        for n, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if isinstance(found, tuple | list):
        return type(found)(changed)
    return changed[0] if isinstance(found, Tensor) else found


@contextmanager
def second_device() -> Iterator[SecondDevice]:
    """The mode; its ``copies`` count what went from one device to the other."""
    made, moved, listed = torch.tensor, Tensor.to, Tensor.tolist

    def tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        return made(data, dtype=dtype).to(device or "cpu")

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = [*args, *kwargs.values()]
        device, dtype = self.device, self.dtype
        for part in given:
            if isinstance(part, Tensor):
                device, dtype = part.device, part.dtype
            elif isinstance(part, torch.dtype):
                dtype = part
            elif isinstance(part, torch.device | str):
                device = torch.device(part)
        if device.type == self.device.type:
            return moved(self, dtype)
        mode.copied(self)
        numbers = moved(content(self), dtype).clone()
        return numbers if device.type == "cpu" else There(numbers)

    def tolist(self: Tensor) -> Any:
        if isinstance(self, There):
            mode.copied(self)
        return listed(content(self))

    # They ask for the device themselves, before the mode could say that it knows it.
    torch.tensor, Tensor.to, Tensor.tolist = tensor, to, tolist  # type: ignore[assignment,method-assign]
    try:
        with SecondDevice() as mode:
            yield mode
    finally:
        torch.tensor, Tensor.to, Tensor.tolist = made, moved, listed  # type: ignore[method-assign]


def content(tensor: Tensor) -> Tensor:
    """The numbers of a tensor, wherever it is."""
    return tensor.numbers if isinstance(tensor, There) else tensor
