"""Read pickles without running them: torch's and RecBole's checkpoints, CIFAR's archives.

A pickle is a program. This reader lets it build dicts, lists, strings, numbers and arrays; no name
is ever imported, those by which numpy spells an array are answered with builders of our own. An
inert :class:`Stub` takes the place of other libraries' objects, which torch's ``weights_only``
would refuse. Functions and classes of Python itself, which only an attack would ask for, are
refused.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
import zipfile
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from robustcf._io.foreign import check_count, data_offset
from robustcf._io.sandbox import Answer, Given, Located
from robustcf.errors import DataError, InputError

# Of Python's own modules, those whose objects libraries keep in a checkpoint. An honest file asks
# for nothing of the others.
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
        if order not in ("<", ">", "=", "|"):
            raise DataError(f"a pickled array has the byte order {order!r}: refused")
        self.dtype = np.dtype(order + self.dtype.str[1:])


class _Array:
    """Stands for numpy.ndarray; ``array`` is made of the pickle's state."""

    array: np.ndarray[Any, Any]

    def __setstate__(self, state: Any) -> None:
        try:
            _, shape, kind, fortran, raw = state
            if not kind.objects:
                flat = np.frombuffer(_bytes(raw), dtype=kind.dtype)
                self.array = flat.reshape(shape, order="F" if fortran else "C").copy()
            elif isinstance(raw, list):
                self.array = np.empty(len(raw), dtype=object)
                self.array[:] = raw
            else:
                raise TypeError("its objects are not a list")
        except (TypeError, ValueError, AttributeError, UnicodeEncodeError) as error:
            raise DataError(f"a pickled array is damaged ({error}): refused") from error


def _bytes(raw: Any) -> bytes:
    content = raw.encode("latin-1") if isinstance(raw, str) else raw
    if not isinstance(content, bytes):  # bytes(n) would make room for n of them
        raise TypeError(f"its content is a {type(raw).__name__}")
    return content


def _encode(text: Any, encoding: Any = "latin-1") -> bytes:
    """Return bytes, as Python 3 spells them in the older protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DataError("a pickle asks for an encoding other than latin-1: refused")
    return text.encode("latin-1")


def _scalar(kind: Any, raw: Any = b"") -> Any:
    """Return a number or text of numpy's as Python's own."""
    if not isinstance(kind, _Type) or kind.objects:
        raise DataError("a pickled scalar is neither a number nor text: refused")
    return np.frombuffer(_bytes(raw), dtype=kind.dtype)[0].item()


class _Dict(dict[Any, Any]):
    """An OrderedDict, without its attributes (torch's ``_metadata``)."""

    def __setstate__(self, state: Any) -> None:
        pass


_KNOWN: _Names = {
    **{
        (f"numpy.{core}.multiarray", name): builder
        for core in ("core", "_core")
        for name, builder in (("_reconstruct", lambda *_: _Array()), ("scalar", _scalar))
    },
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
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
        """Take any arguments."""

    def __call__(self, *arguments: Any, **named: Any) -> Stub:
        """Return a stub: calls have no effect."""
        return Stub(*arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        """Take a value, as a list or a set would."""

    extend = add = append

    def attribute(self, name: str) -> Any:
        """Return the attribute that the object would have, or None."""
        for values in self.state if isinstance(self.state, tuple) else (self.state,):
            if isinstance(values, dict) and name in values:
                return values[name]
        return None


def _build(reader: Any) -> None:
    """Give a state to our own builders and stubs alone: others would be changed by it."""
    if not isinstance(reader.stack[-2], Stub | _Type | _Array | _Dict):
        raise DataError("gives a state to something that has none: refused")
    pickle._Unpickler.dispatch[pickle.BUILD[0]](reader)


def _bytearray(reader: Any) -> None:
    """Make no room for more bytes than there are."""
    length = int.from_bytes(reader.read(8), "little")
    if length > len(reader.content):
        raise DataError(f"claims {length} bytes, more than it has: refused")
    reader.append(bytearray(reader.read(length)))


# The unpickler written in Python: its faster twin makes room for as many memo entries as a pickle
# claims to have.
class _Reader(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: _build,
        pickle.BYTEARRAY8[0]: _bytearray,
    }

    def __init__(
        self, content: bytes, names: _Names, persistent: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")
        self.content = content
        self._names, self._persistent = names, persistent

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._names:
            return self._names[module, name]
        # Older protocols spell modules as Python 2 did.
        top = IMPORT_MAPPING.get(module, module).partition(".")[0]
        own = top in sys.stdlib_module_names or top in ("nt", "posix")
        if own and top not in _HARMLESS and not (top == "builtins" and name in _HOLDERS):
            raise DataError(
                f"asks for {module}.{name}: refused and not run, a file of numbers has no use for "
                "it; do not trust its source"
            )
        return type(name.rpartition(".")[2], (Stub,), {"asked_for": f"{module}.{name}"})

    def persistent_load(self, identity: Any) -> Any:
        if self._persistent is None:
            raise DataError("refers to something outside of itself: refused")
        return self._persistent(identity)


def read_pickle(
    content: bytes,
    name: str,
    names: _Names | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the value of a pickle in which objects of other libraries become :class:`Stub` s.

    Args:
        content: the pickle's bytes; a DataError where they are damaged, or ask for Python's own.
        name: the source, for messages.
        names: ``(module, name)`` -> builder to use instead of a stub.
        persistent: answers the references to data outside of the pickle, as torch writes them.

    Example:
        >>> read_pickle(pickle.dumps({"a": np.arange(2)}), "example")["a"].array.tolist()
        [0, 1]
    """
    try:
        return _Reader(content, {**_KNOWN, **(names or {})}, persistent).load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    except MemoryError:
        raise  # the limit of the process that this runs in
    except Exception as error:
        # A damaged pickle can fail in any way; none of them ran anything of its own.
        raise DataError(f"{name}: unreadable pickle ({type(error).__name__}: {error})") from error


# --- torch and RecBole ------------------------------------------------------------------------

_STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2",
    "BFloat16Storage": "bfloat16", "LongStorage": "<i8", "IntStorage": "<i4",
    "ShortStorage": "<i2", "CharStorage": "|i1", "ByteStorage": "|u1", "BoolStorage": "|b1",
}  # fmt: skip
#: Embeddings after propagation, in checkpoints of RecBole's graph models.
RESTORED = ("restore_user_e", "restore_item_e")


@dataclass(frozen=True)
class _Tensor:
    """A tensor as the pickle describes it."""

    dtype: str
    key: str
    numel: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dense(self) -> bool:
        """Whether it lies row after row."""
        steps = [math.prod(self.shape[n + 1 :]) for n in range(len(self.shape))]
        sizes = zip(self.shape, self.stride, steps, strict=True)
        return all(length <= 1 or step == own for length, step, own in sizes)


def read_torch(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Read the state dict of a file of ``torch.save``, or of RecBole's trainer."""
    (one,) = given
    root, members, content = _opened(one)
    names = {
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
        ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    }
    found, facts = _found(read_pickle(content, one.name, names, _storage))
    check_count(len(found))
    whole: dict[str, str] = {}
    for name, tensor in found.items():
        called = f"the tensor {name[:60]!r}"
        member = members.get(f"{root}data/{tensor.key}")
        if member is None:
            raise DataError(f"{called} has no bytes in the file")
        place = data_offset(one.file, member)
        start = tensor.offset * Located(0, 0, tensor.dtype, ()).itemsize
        where = Located(one.number, place + start, tensor.dtype, tensor.shape)
        if tensor.dense:
            if start + where.nbytes > member.file_size:
                raise DataError(f"{called} promises more than its storage has")
            if where.nbytes == member.file_size:
                where = replace(where, crc=member.CRC)
                whole[name] = member.filename
            answer.arrays[name] = where
        elif math.prod(tensor.shape) > tensor.numel:
            raise DataError(f"{called} shows its numbers more than once: refused")
        elif tensor.dtype == "bfloat16":
            raise InputError(f"{called} is a view: save it .contiguous()")
        else:
            one.file.seek(place)
            flat = np.frombuffer(one.file.read(member.file_size), tensor.dtype)
            steps = tuple(step * flat.itemsize for step in tensor.stride)
            view = np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, steps)
            answer.put(name, np.ascontiguousarray(view))
    answer.facts |= {**facts, "whole": whole}


def _opened(one: Given) -> tuple[str, dict[str, zipfile.ZipInfo], bytes]:
    """Return the folder inside of a torch file, its members, and its pickle."""
    try:
        with zipfile.ZipFile(one.file) as archive:
            members = {entry.filename: entry for entry in archive.infolist()}
            pickles = [name for name in members if name.endswith("/data.pkl")]
            if len(pickles) != 1 or any(entry.compress_type for entry in members.values()):
                raise DataError("a zip archive, but not one that torch.save writes")
            root = pickles[0].removesuffix("data.pkl")
            order = f"{root}byteorder"
            if order in members and archive.read(order).strip() != b"little":
                raise DataError("its numbers are big-endian: save it again here")
            return root, members, archive.read(pickles[0])
    except zipfile.BadZipFile as error:
        raise DataError(
            f"not a readable file of torch.save ({error}); load one of before torch 1.6 with torch "
            "and save it again"
        ) from error


def _found(value: Any) -> tuple[dict[str, _Tensor], dict[str, Any]]:
    """Return the tensors in a saved value by name, and facts about it."""
    if isinstance(value, Stub):
        return {}, {"object": value.asked_for[:200]}
    if not isinstance(value, dict):
        return {}, {}
    facts: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    if {"config", "state_dict", "other_parameter"} <= set(value):
        settings = ("model", "USER_ID_FIELD", "ITEM_ID_FIELD")
        facts["recbole"] = {name: _setting(value["config"], name) for name in settings}
        other = value["other_parameter"]
        kept = {n: other.get(n) for n in RESTORED} if isinstance(other, dict) else {}
        if kept and all(type(each) is _Tensor for each in kept.values()):
            facts["restored"] = True
        else:
            kept = {}
    inner = (value.get(name) for name in ("state_dict", "model_state_dict", "model"))
    state = next((each for each in inner if isinstance(each, dict)), value)
    tensors = {k: v for k, v in state.items() if isinstance(k, str) and type(v) is _Tensor}
    return kept | tensors, facts


def _setting(config: Any, name: str) -> str | None:
    """Return a setting of RecBole's Config, of which only the state is there."""
    values = config.attribute("final_config_dict") if isinstance(config, Stub) else config
    found = values.get(name) if isinstance(values, dict) else None
    return found[:200] if isinstance(found, str) else None


def _storage(identity: Any) -> tuple[str, str, int]:
    """Return type, key and length of a storage that the pickle refers to."""
    try:
        word, kind, key, _, numel = identity
        name = kind.asked_for.rpartition(".")[2]
        if word != "storage" or not isinstance(key, str) or type(numel) is not int or numel < 0:
            raise ValueError
    except (TypeError, ValueError, AttributeError):
        raise DataError("a tensor refers to a storage that torch does not write: refused") from None
    if name not in _STORAGES:
        raise DataError(f"a tensor is stored as {name[:60]}, not as numbers: refused")
    return _STORAGES[name], key, numel


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    """Return a tensor, if it lies within its storage."""
    try:
        dtype, key, numel = storage
        shape, steps = tuple(size), tuple(stride)
        sizes = (offset, *shape, *steps)
        good = all(type(n) is int and 0 <= n < 2**62 for n in sizes) and len(shape) == len(steps)
        last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        if not good or len(shape) > 8 or (math.prod(shape) and last >= numel):
            raise ValueError
    except (TypeError, ValueError):
        raise DataError("a tensor promises more numbers than its storage has: refused") from None
    return _Tensor(dtype, key, numel, offset, shape, steps)


def read_tokens(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Read the tokens of some ``columns`` of a dataset that RecBole saved, by their number."""
    (one,) = given
    dataset = read_pickle(one.file.read(), one.name)
    tokens = dataset.attribute("field2id_token") if isinstance(dataset, Stub) else None
    if not isinstance(tokens, dict):
        raise DataError("not a dataset that RecBole saved (it has no field2id_token)")
    for column in options["columns"]:
        found = getattr(tokens.get(column), "array", None)
        if found is None:
            names = [str(name)[:60] for name in list(tokens)[:12]]
            raise DataError(f"has no tokens of {column!r}, got {names}")
        answer.put(column, np.array([str(token) for token in found.tolist()]))


# --- CIFAR ------------------------------------------------------------------------------------


def read_images(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Read a dict of CIFAR's: arrays, lists of numbers as arrays, lists of text as facts."""
    (one,) = given
    found = read_pickle(one.file.read(), one.name)
    if not isinstance(found, dict):
        raise DataError(f"expected a dict, got {type(found).__name__}")
    for key, value in found.items():
        name = key.decode("latin-1") if isinstance(key, bytes) else key
        if not isinstance(name, str):
            continue
        if isinstance(value, _Array):
            if value.array.dtype.kind not in "biuf":
                raise DataError(f"the array {name[:60]!r} holds text or objects, not numbers")
            answer.put(name, value.array)
        elif isinstance(value, list) and all(type(entry) is int for entry in value):
            answer.put(name, np.array(value, dtype=np.int64))
        elif isinstance(value, list):
            texts = [e.decode("latin-1") if isinstance(e, bytes) else str(e) for e in value]
            answer.facts[name] = [text[:200] for text in texts]
