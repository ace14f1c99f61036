"""Read pickles without running what is in them: CIFAR's archives, other libraries' checkpoints.

A pickle is a program. This reader lets it build dicts, lists, strings, numbers and arrays; no name
is ever imported, those by which numpy spells an array are answered with builders of our own.
:func:`read_pickle` refuses every other name. :func:`read_with_stubs` puts an inert :class:`Stub` in
the place of other libraries' objects, which torch's ``weights_only`` would refuse, and refuses
functions and classes of Python itself, which only an attack would ask for.
"""

from __future__ import annotations

import io
import pickle
import sys
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robustcf.errors import DataError

_ENTRIES_PER_BYTE = 8
_ORDERS = ("<", ">", "=", "|")
# Of Python's own modules, those whose objects libraries keep in a checkpoint. Of the others, a
# file of numbers has no business asking for anything.
_HARMLESS = frozenset(
    {"argparse", "collections", "copyreg", "datetime", "enum", "functools", "logging", "pathlib"}
    | {"re", "typing", "types", "uuid", "zoneinfo", "weakref"}
)
# Of the builtins, classes that only hold values: tables of pandas are made with them.
_HOLDERS = frozenset({"object", "slice", "bytearray", "range", "complex"})

_Names = Mapping[tuple[str, str], Any]


class _Type:
    """Stands for numpy.dtype: numbers, text, or objects, of which only lists are taken."""

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        self.objects = text in ("O8", "O4", "O")
        self.dtype = np.dtype(text if isinstance(text, str) and not self.objects else "u1")
        if not isinstance(text, str) or self.dtype.kind not in "biufUS":
            raise DataError(f"a pickled array holds {text!r}, not numbers: refused")

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in _ORDERS:
            raise DataError(f"a pickled array has the byte order {order!r}: refused")
        self.dtype = np.dtype(order + self.dtype.str[1:])


class _Array:
    """Stands for numpy.ndarray; ``array`` is what the pickle's state described."""

    array: np.ndarray[Any, Any]

    def __setstate__(self, state: Any) -> None:
        try:
            _, shape, kind, fortran, raw = state
            if kind.objects and isinstance(raw, list):
                self.array = np.empty(len(raw), dtype=object)
                self.array[:] = raw
                return
            if kind.objects:
                raise TypeError("its objects are no list")
            flat = np.frombuffer(_bytes(raw), dtype=kind.dtype)
            self.array = flat.reshape(shape, order="F" if fortran else "C").copy()
        except (TypeError, ValueError, AttributeError, UnicodeEncodeError) as error:
            raise DataError(f"a pickled array is damaged ({error}): refused") from error


def _bytes(raw: Any) -> bytes:
    content = raw.encode("latin-1") if isinstance(raw, str) else raw
    if not isinstance(content, bytes):  # bytes(n) would make room for n of them
        raise TypeError(f"its content is a {type(raw).__name__}")
    return content


def _encode(text: Any, encoding: Any = "latin-1") -> bytes:
    """How Python 3 spells bytes in the older protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DataError("a pickle asks for an encoding other than latin-1: refused")
    return text.encode("latin-1")


def _scalar(kind: Any, raw: Any = b"") -> Any:
    """A number or text of numpy's, as Python's own."""
    if not isinstance(kind, _Type) or kind.objects:
        raise DataError("a pickled scalar is no number and no text: refused")
    return np.frombuffer(_bytes(raw), dtype=kind.dtype)[0].item()


class _Dict(dict[Any, Any]):
    """An OrderedDict; what else hangs on it (torch's ``_metadata``) is forgotten."""

    def __setstate__(self, state: Any) -> None:
        pass


_ARRAYS: _Names = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}
_CONTAINERS: _Names = {
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("collections", "OrderedDict"): _Dict,
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (set, frozenset, list, dict)
    },
}


class Stub:
    """Stands for an object of a class that is not imported: its arguments and its state."""

    asked_for = ""
    state: Any = None
    arguments: tuple[Any, ...]
    entries: dict[Any, Any]

    def __new__(cls, *arguments: Any, **named: Any) -> Stub:
        """Keep the arguments, and do nothing."""
        made = super().__new__(cls)
        made.arguments, made.entries = arguments, {}
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Take whatever is given."""

    def __call__(self, *arguments: Any, **named: Any) -> Stub:
        """A call of something that is not there has no effect."""
        return Stub(*arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        """As a list or a set would."""

    extend = add = append

    def attribute(self, name: str) -> Any:
        """What the object would have under this name, or None."""
        for values in self.state if isinstance(self.state, tuple) else (self.state,):
            if isinstance(values, dict) and name in values:
                return values[name]
        return None


# The unpickler written in Python: its faster twin makes room for as many memo entries as a pickle
# claims to have.
class _Reader(pickle._Unpickler):
    def __init__(
        self, content: bytes, names: _Names, stubs: bool, persistent: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")
        self._names, self._stubs, self._persistent = names, stubs, persistent

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._names:
            return self._names[module, name]
        if not self._stubs:
            raise DataError(
                f"a pickle asks for {module}.{name}: refused, only arrays, lists, dicts, strings "
                "and numbers are read; take the archive from its official source"
            )
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


def read_pickle(content: bytes, name: str) -> Any:
    """Return the value of a pickle of plain values and arrays of numbers, or raise a DataError.

    Example:
        >>> read_pickle(pickle.dumps({"labels": [1, 2]}), "example")
        {'labels': [1, 2]}
    """
    return _read(name, lambda: _Plain(content)(_Reader(content, _ARRAYS, False, None).load()))


def read_with_stubs(
    content: bytes,
    name: str,
    names: _Names | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the value of a pickle in which objects of other libraries become :class:`Stub` s.

    Args:
        content: the pickle's bytes; a DataError where they are damaged, or ask for Python's own.
        name: where they come from, for messages.
        names: ``(module, name)`` -> what to build for it instead of a stub.
        persistent: answers the references to data outside of the pickle, as torch writes them.

    Example:
        >>> read_with_stubs(pickle.dumps({"a": np.arange(2)}), "example")["a"].array.tolist()
        [0, 1]
    """
    known = {**_ARRAYS, **_CONTAINERS, **(names or {})}
    return _read(name, _Reader(content, known, True, persistent).load)


def _read(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    except Exception as error:
        # A damaged pickle can fail in any way; none of them ran anything of its own.
        raise DataError(f"{name}: no readable pickle ({type(error).__name__}: {error})") from error


class _Plain:
    """Takes arrays out of their builders, and refuses all else that is not plain."""

    def __init__(self, content: bytes) -> None:
        # A list that holds another twice, which holds another twice, and so on, has more entries
        # than anybody can write out.
        self.left = _ENTRIES_PER_BYTE * len(content)

    def __call__(self, value: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise DataError("a pickle holds far more than it is long: refused")
        if isinstance(value, _Array):
            if value.array.dtype.kind not in "biuf":
                raise DataError("a pickled array holds text or objects, not numbers: refused")
            return value.array
        if isinstance(value, dict):
            return {self(key): self(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(entry) for entry in value]
        if value is None or isinstance(value, (str, bytes, int, float)):
            return value
        raise DataError(f"a pickle holds a {type(value).__name__}: refused")
