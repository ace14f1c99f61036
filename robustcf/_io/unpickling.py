"""Reading pickles without running what is in them: CIFAR's archives, other libraries' checkpoints.

A pickle is a program. These readers let it build dicts, lists, strings, numbers and arrays, and no
name is ever imported: those by which numpy spells an array are answered with builders of our own.
:func:`read_pickle` refuses every other name. :func:`read_with_stubs` puts an inert :class:`Stub` in
the place of other libraries' objects, so that what lies next to them can be read, and refuses
functions and classes of Python itself, which only an attack would ask for.
"""

from __future__ import annotations

import codecs
import io
import pickle
import sys
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Callable, Mapping
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
            flat = np.frombuffer(_bytes(raw), dtype=kind.dtype)
            self.array = flat.reshape(shape, order="F" if fortran else "C").copy()
        except (TypeError, ValueError, AttributeError, UnicodeEncodeError) as error:
            raise DataError(f"a pickled array is damaged ({error}): refused") from error


def _bytes(raw: Any) -> bytes:
    content = raw.encode("latin-1") if isinstance(raw, str) else raw
    if not isinstance(content, bytes):  # bytes(n) would make room for n of them
        raise TypeError(f"its content is a {type(raw).__name__}")
    return content


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


# --- with stubs -------------------------------------------------------------------------------

# Of Python's own modules, those whose objects libraries keep in a checkpoint. Of the others, a
# file of numbers has no business asking for anything.
_HARMLESS = frozenset(
    {"argparse", "collections", "copyreg", "datetime", "enum", "functools", "logging", "pathlib"}
    | {"re", "typing", "types", "uuid", "zoneinfo", "weakref"}
)
# Of the builtins, classes that only hold values: tables of pandas are made with them.
_HOLDERS = frozenset({"object", "slice", "bytearray", "range", "complex"})


class Stub:
    """Stands for an object of a class that is not imported: what it was made from, and its state.

    Args:
        *arguments: what the pickle hands to the class.
        **named: the same by name.
    """

    asked_for = ""
    state: Any = None

    def __new__(cls, *arguments: Any, **named: Any) -> Stub:
        """Take whatever is given."""
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Keep it, and do nothing."""
        self.arguments = arguments
        self.entries: dict[Any, Any] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Stub:
        """A call of something that is not there has no effect."""
        return Stub(*arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__.setdefault("entries", {})[key] = value

    def append(self, value: Any) -> None:
        """As a list would."""

    def extend(self, values: Any) -> None:
        """As a list would."""

    def add(self, value: Any) -> None:
        """As a set would."""

    def attribute(self, name: str) -> Any:
        """What the object would have under this name, or None."""
        state = self.state
        for values in state if isinstance(state, tuple) else (state,):
            if isinstance(values, dict) and name in values:
                return values[name]
        return None


class _Dict(dict[Any, Any]):
    """An OrderedDict; what else hangs on it (torch's ``_metadata``) is forgotten."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Texts(_Type):
    """Stands for numpy.dtype where text is allowed too; of objects, only lists are taken."""

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        self.objects = text in ("O8", "O4", "O")
        is_text = isinstance(text, str) and text[:1] in "US" and text[1:].isdecimal()
        self.dtype = np.dtype(text) if is_text else np.dtype("u1")
        if not is_text and not self.objects:
            super().__init__(name)

    def __setstate__(self, state: Any) -> None:
        if not self.objects:
            super().__setstate__(state)


class _AnyArray(_Array):
    """Stands for numpy.ndarray; of an array of objects, the list behind it."""

    def __setstate__(self, state: Any) -> None:
        kind, raw = (state[2], state[4]) if isinstance(state, tuple) and len(state) == 5 else (0, 0)
        if getattr(kind, "objects", False) and isinstance(raw, list):
            self.array = np.empty(len(raw), dtype=object)
            self.array[:] = raw
            return
        super().__setstate__(state)


def _scalar(kind: Any, raw: Any = b"") -> Any:
    """A number or text of numpy's, as Python's own."""
    if not isinstance(kind, _Texts) or kind.objects:
        raise DataError("a pickled scalar is no number and no text: refused")
    return np.frombuffer(_bytes(raw), dtype=kind.dtype)[0].item()


_STUB_NAMES: dict[tuple[str, str], Any] = {
    **{
        (f"numpy.{core}.multiarray", name): builder
        for core in ("core", "_core")
        for name, builder in (("_reconstruct", lambda *_: _AnyArray()), ("scalar", _scalar))
    },
    ("numpy", "ndarray"): _AnyArray,
    ("numpy", "dtype"): _Texts,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _Dict,
    **{
        (module, name): kind
        for module in ("builtins", "__builtin__")
        for name, kind in (("set", set), ("frozenset", frozenset), ("list", list), ("dict", dict))
    },
}


class _StubbingReader(pickle._Unpickler):
    def __init__(
        self,
        content: bytes,
        names: Mapping[tuple[str, str], Any],
        persistent: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")
        self._names, self._persistent = {**_STUB_NAMES, **names}, persistent

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._names:
            return self._names[module, name]
        # Older protocols spell modules as Python 2 did.
        top = IMPORT_MAPPING.get(module, module).partition(".")[0]
        own = top in sys.stdlib_module_names or top in ("nt", "posix")
        holder = top == "builtins" and name in _HOLDERS
        if own and top not in _HARMLESS and not holder:
            raise DataError(
                f"asks for {module}.{name}: refused, a file of factors has no use for it and "
                "nothing of it has been run; do not trust where it comes from"
            )
        return type(name.rpartition(".")[2], (Stub,), {"asked_for": f"{module}.{name}"})

    def persistent_load(self, identity: Any) -> Any:
        if self._persistent is None:
            raise DataError("refers to something outside of itself: refused")
        return self._persistent(identity)


def read_with_stubs(
    content: bytes,
    name: str,
    names: Mapping[tuple[str, str], Any] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """The value of a pickle in which objects of other libraries become inert :class:`Stub` s.

    Args:
        content: the pickle's bytes.
        name: where they come from, for messages.
        names: ``(module, name)`` -> what to build for it instead of a stub.
        persistent: answers the references to data outside of the pickle, as torch writes them.

    Raises:
        DataError: the pickle is damaged, or asks for a function or class of Python itself; nothing
            of it has been run.

    Example:
        >>> import decimal
        >>> read_with_stubs(pickle.dumps({"a": np.arange(2)}), "example")["a"].array.tolist()
        [0, 1]
        >>> read_with_stubs(pickle.dumps(decimal.Decimal), "example")
        Traceback (most recent call last):
        robustcf.errors.DataError: example: asks for decimal.Decimal: refused, a file of factors has
        no use for it and nothing of it has been run; do not trust where it comes from
    """
    try:
        return _StubbingReader(content, names or {}, persistent).load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    except Exception as error:
        raise DataError(f"{name}: no readable pickle ({type(error).__name__}: {error})") from error
