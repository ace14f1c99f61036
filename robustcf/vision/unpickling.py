"""Reading CIFAR's pickles without running what is in them.

A pickle is a program. This reader lets it build dicts, lists, strings, numbers and arrays of
numbers, and refuses everything else before it is looked up: no name is ever imported. The three
names by which numpy spells an array are answered with builders of our own.
"""

from __future__ import annotations

import codecs
import io
import pickle
from typing import Any

import numpy as np

from robustcf.errors import DataError

_KINDS = "biuf"
_ORDERS = ("<", ">", "=", "|")
_ENTRIES_A_BYTE = 8


class _Type:
    """Stands for numpy.dtype while an array is put together."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.dtype = _number_type(name)

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        order = order.decode("latin-1") if isinstance(order, bytes) else order
        if order not in _ORDERS:
            raise DataError(f"a pickled array has the byte order {order!r}: refused")
        self.dtype = np.dtype(order + self.dtype.str[1:])


class _Array:
    """Stands for numpy.ndarray; ``array`` is what the pickle's state described."""

    array: np.ndarray[Any, Any]

    def __setstate__(self, state: Any) -> None:
        try:
            _, shape, kind, fortran, raw = state
            content = raw.encode("latin-1") if isinstance(raw, str) else raw
            if not isinstance(content, bytes):  # bytes(n) would make room for n of them
                raise TypeError(f"its content is a {type(raw).__name__}")
            flat = np.frombuffer(content, dtype=kind.dtype)
            self.array = flat.reshape(shape, order="F" if fortran else "C").copy()
        except (TypeError, ValueError, AttributeError, UnicodeEncodeError) as error:
            raise DataError(f"a pickled array is damaged ({error}): refused") from error


def _number_type(name: Any) -> np.dtype[Any]:
    text = name.decode("latin-1") if isinstance(name, bytes) else name
    kind = np.dtype(text) if isinstance(text, str) else np.dtype(object)
    if kind.kind not in _KINDS:
        raise DataError(f"a pickled array holds {text!r}, not numbers: refused")
    return kind


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any = "latin-1") -> bytes:
    """How Python 3 spells bytes in the older protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DataError("a pickle asks for an encoding other than latin-1: refused")
    return codecs.encode(text, "latin-1")


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


# The unpickler written in Python: its faster twin makes room for as many memo entries as a pickle
# claims to have.
class _Reader(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise DataError(
                f"a pickle asks for {module}.{name}: refused, only arrays, lists, dicts, strings "
                "and numbers are read; take the archive from its official source"
            ) from None


def read_pickle(content: bytes, name: str) -> Any:
    """The value of a pickle that builds nothing but plain values and arrays of numbers.

    Args:
        content: the pickle's bytes.
        name: where they come from, for messages.

    Raises:
        DataError: the pickle is damaged, or asks for anything else; nothing of it has been run.

    Example:
        >>> read_pickle(pickle.dumps({"labels": [1, 2]}), "example")
        {'labels': [1, 2]}
    """
    try:
        value = _Reader(io.BytesIO(content), encoding="latin-1").load()
        return _Plain(_ENTRIES_A_BYTE * len(content))(value)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    except Exception as error:
        # A damaged pickle can fail in any way; none of them ran anything of its own.
        raise DataError(f"{name}: no readable pickle ({type(error).__name__}: {error})") from error


class _Plain:
    """Arrays out of their builders, and a last look that nothing else came through.

    Args:
        most: entries. A list that holds another twice, which holds another twice, and so on, has
            more than anybody can write out.
    """

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, value: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise DataError("a pickle holds far more than it is long: refused")
        if isinstance(value, _Array):
            return value.array
        if isinstance(value, dict):
            return {self(key): self(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(entry) for entry in value]
        if value is None or isinstance(value, (str, bytes, int, float)):
            return value
        raise DataError(f"a pickle holds a {type(value).__name__}: refused")
