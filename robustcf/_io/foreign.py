"""Readers of other libraries' files, for the process that parses them: :mod:`robustcf._io.sandbox`.

Nothing here loads torch, and nothing that a file names is imported or run.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from robustcf._io.limits import MOST_ARRAYS, MOST_HEADER
from robustcf._io.reading import array_header, open_zip, quiet_headers
from robustcf._io.sandbox import Answer, Given, Located
from robustcf._io.unpickling import Stub, read_pickle, read_with_stubs
from robustcf.errors import DataError, InputError

# What safetensors and torch call types -> what numpy does.
_SAFE_TYPES = {
    "BF16": "bfloat16",
    "BOOL": "bool",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
# Models of RecBole whose score is the product of user_embedding and item_embedding as stored.
RESTORED = ("restore_user_e", "restore_item_e")


# --- numpy ------------------------------------------------------------------------------------


def read_npy(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """One array of each file: ``array``, or ``users`` and ``items`` of two."""
    names = ("array",) if len(given) == 1 else ("users", "items")
    for name, one in zip(names, given, strict=True):
        _npy(name, one.file, one.size, answer, (one.number, 0))


def read_npz(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """All arrays of an ``.npz`` file by name."""
    (one,) = given
    with open_zip(one.file, one.name) as archive:
        _check_count(len(archive.infolist()))
        for member in archive.infolist():
            stored = member.compress_type == zipfile.ZIP_STORED
            place = (one.number, _data_offset(one.file, member)) if stored else (-1, 0)
            with archive.open(member) as stream:
                name, size = member.filename.removesuffix(".npy"), member.file_size
                _npy(name, stream, size, answer, place, member.CRC)


def _data_offset(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin, by the header in front of them."""
    place = file.tell()
    file.seek(member.header_offset + 26)
    name, extra = np.frombuffer(file.read(4), "<u2").tolist()
    file.seek(place)
    return int(member.header_offset + 30 + name + extra)


@quiet_headers()
def _npy(
    name: str, stream: Any, size: int, answer: Answer, place: tuple[int, int], crc: int = -1
) -> None:
    """Say where an array lies; one that is packed, or of another byte order, is written out.

    ``place`` is the number of the file, or -1 where it is packed, and where the array begins there.
    """
    number, offset = place
    shape, fortran, dtype = array_header(stream, name, size)
    start = stream.tell()
    plain = dtype.newbyteorder("<") == dtype and dtype.kind in "fiub" and dtype.names is None
    if number >= 0 and plain:
        where = Located(number, offset + start, dtype.name, shape, fortran, crc, start)
        answer.arrays[name] = where if start + where.nbytes == size else replace(where, crc=-1)
        return
    stream.seek(0)
    array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    answer.put(name, array)


def _check_count(count: int) -> None:
    if count > MOST_ARRAYS:
        raise DataError(f"holds {count:,} arrays, expected at most {MOST_ARRAYS:,}")


# --- safetensors ------------------------------------------------------------------------------


def read_safetensors(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """All tensors of a safetensors file, and its metadata."""
    (one,) = given
    length = int.from_bytes(one.file.read(8), "little")
    if length > min(one.size, MOST_HEADER):
        raise DataError("not a readable safetensors file (its header is too long)")
    header = json.loads(one.file.read(length))
    facts = header.pop("__metadata__", {})
    _check_count(len(header))
    for name, entry in header.items():
        if entry["dtype"] not in _SAFE_TYPES:
            continue  # 8-bit floats and the like: not used
        begin, end = entry["data_offsets"]
        where = Located(
            one.number, 8 + length + begin, _SAFE_TYPES[entry["dtype"]], tuple(entry["shape"])
        )
        if end - begin != where.nbytes:
            raise DataError(f"the tensor {name[:60]!r} has other offsets than its shape needs")
        answer.arrays[name] = where
    answer.facts["metadata"] = {
        str(key): str(value)[:10_000] for key, value in facts.items() if len(key) <= 1000
    }


# --- torch ------------------------------------------------------------------------------------


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
        return all(
            length <= 1 or step == own
            for length, step, own in zip(self.shape, self.stride, steps, strict=True)
        )


def read_torch(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """The state dict of a file of ``torch.save``, or what RecBole's trainer saved."""
    (one,) = given
    root, members, content = _opened(one)
    names = {
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
        ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    }
    found, facts = _found(read_with_stubs(content, one.name, names, _storage))
    _check_count(len(found))
    whole: dict[str, str] = {}
    for name, tensor in found.items():
        member = members.get(f"{root}data/{tensor.key}")
        if member is None:
            raise DataError(f"the tensor {name[:60]!r} has no bytes in the file")
        place = _data_offset(one.file, member)
        start = tensor.offset * Located(0, 0, tensor.dtype, ()).itemsize
        where = Located(one.number, place + start, tensor.dtype, tensor.shape)
        if tensor.dense:
            if start + where.nbytes > member.file_size:
                raise DataError(f"the tensor {name[:60]!r} promises more than its storage has")
            if where.nbytes == member.file_size:
                where = replace(where, crc=member.CRC)
                whole[name] = member.filename
            answer.arrays[name] = where
        elif math.prod(tensor.shape) > tensor.numel:
            raise DataError(f"the tensor {name[:60]!r} shows its numbers more than once: refused")
        elif tensor.dtype == "bfloat16":
            raise InputError(f"the tensor {name[:60]!r} is a view: save it .contiguous()")
        else:
            one.file.seek(place)
            flat = np.frombuffer(one.file.read(member.file_size), tensor.dtype)
            steps = tuple(step * flat.itemsize for step in tensor.stride)
            view = np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, steps)
            answer.put(name, np.ascontiguousarray(view))
    answer.facts |= {**facts, "whole": whole}


def _opened(one: Given) -> tuple[str, dict[str, zipfile.ZipInfo], bytes]:
    """The folder inside of a torch file, its members, and its pickle."""
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
    """The tensors of what was saved, by name, and what it is."""
    if isinstance(value, Stub):
        return {}, {"object": value.asked_for[:200]}
    facts: dict[str, Any] = {}
    if isinstance(value, dict) and {"config", "state_dict", "other_parameter"} <= set(value):
        config = value["config"]
        facts["recbole"] = {
            name: _setting(config, name) for name in ("model", "USER_ID_FIELD", "ITEM_ID_FIELD")
        }
        other = value["other_parameter"]
        kept = {n: other.get(n) for n in RESTORED} if isinstance(other, dict) else {}
        if all(isinstance(each, _Tensor) for each in kept.values()) and kept:
            facts["restored"] = True
            tensors = {name: each for name, each in kept.items() if isinstance(each, _Tensor)}
            return tensors | _state(value), facts
    return _state(value), facts


def _state(value: Any) -> dict[str, _Tensor]:
    if not isinstance(value, dict):
        return {}
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(value.get(name), dict):
            value = value[name]
            break
    return {k: v for k, v in value.items() if isinstance(k, str) and type(v) is _Tensor}


def _setting(config: Any, name: str) -> str | None:
    """A setting of RecBole's Config, of which only the state is there."""
    values = config.attribute("final_config_dict") if isinstance(config, Stub) else config
    found = values.get(name) if isinstance(values, dict) else None
    return found[:200] if isinstance(found, str) else None


def _storage(identity: Any) -> tuple[str, str, int]:
    """What a reference of the pickle to a storage says."""
    try:
        word, kind, key, _, numel = identity
        name = kind.asked_for.rpartition(".")[2]
        if word != "storage" or not isinstance(key, str) or type(numel) is not int or numel < 0:
            raise ValueError
    except (TypeError, ValueError, AttributeError):
        raise DataError("a tensor refers to no storage that torch writes: refused") from None
    if name not in _STORAGES:
        raise DataError(f"a tensor is stored as {name[:60]}: refused, numbers are read")
    return _STORAGES[name], key, numel


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    """A tensor, if it lies within its storage."""
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
    """The tokens of some columns of a dataset that RecBole saved, by their number."""
    (one,) = given
    dataset = read_with_stubs(one.file.read(), one.name)
    tokens = dataset.attribute("field2id_token") if isinstance(dataset, Stub) else None
    if not isinstance(tokens, dict):
        raise DataError("not a dataset that RecBole saved (it has no field2id_token)")
    for column in options["columns"]:
        found = getattr(tokens.get(column), "array", None)
        if found is None:
            names = [str(name)[:60] for name in list(tokens)[:12]]
            raise DataError(f"has no tokens of {column!r}, got {names}")
        answer.put(column, np.array([str(token) for token in found.tolist()]))


# --- Parquet ----------------------------------------------------------------------------------


def check_parquet(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Walk through a Parquet file's metadata, some of which ends the process that looks at it."""
    import pyarrow.parquet

    metadata = pyarrow.parquet.ParquetFile(given[0].file).metadata
    for n in range(metadata.num_row_groups):
        group = metadata.row_group(n)
        for column in range(group.num_columns):
            group.column(column)


def read_vectors(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Ids and vectors of users and of items: some files each.

    Options: ``users``, how many of the files are the users'; ``id_key`` and ``vector_key``.
    """
    parts = {"users": given[: options["users"]], "items": given[options["users"] :]}
    for side, part in parts.items():
        if not part:
            continue
        _vectors(side, part, answer, options["id_key"], options["vector_key"])


def _vectors(
    side: str, given: Sequence[Given], answer: Answer, id_key: str | None, vector_key: str | None
) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    tables = [pq.ParquetFile(one.file).read(use_threads=False) for one in given]
    table = pa.concat_tables(tables)
    lists = [field.name for field in table.schema if _is_list(field.type)]
    others = [field.name for field in table.schema if field.name not in lists]
    vectors = _one(table, "vector", vector_key, lists)
    ids = _one(table, "id", id_key, others)
    column, kind = table[vectors], table[vectors].type
    if not _is_list(kind):
        raise DataError(f"vectors must be lists of numbers, got {kind}")
    if not pa.types.is_floating(kind.value_type):
        raise DataError(f"vectors must hold floating-point numbers, got {kind}")
    if column.null_count or len(column) == 0:
        raise DataError(
            f"{column.null_count} rows have no vector" if len(column) else "has no rows"
        )
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1:
        raise DataError(f"vectors must have one length, got {sorted(lengths)[:5]}: repair them")
    flat = pc.list_flatten(column)
    if flat.null_count:
        raise DataError(f"{flat.null_count} numbers are missing in the vectors")
    answer.put(side, np.asarray(flat.to_numpy()).reshape(len(column), lengths[0]))
    answer.put(f"{side} ids", _ids(table[ids]))
    answer.facts[side] = {
        "ids": ids,
        "vectors": vectors,
        "id_type": str(table[ids].type),
        "value_type": str(kind.value_type),
        "list": "fixed" if pa.types.is_fixed_size_list(kind) else str(kind).partition("<")[0],
        "left": [name for name in table.column_names if name not in (ids, vectors)][:12],
    }


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _one(table: Any, what: str, given: str | None, found: list[str]) -> str:
    if given is not None:
        if given not in table.column_names:
            raise InputError(f"has no column {given!r}; there are {table.column_names[:12]}")
        return given
    if len(found) != 1:
        raise InputError(
            f"expected one column of {what}s, found {found[:12] or 'none'} among "
            f"{table.column_names[:12]}: name it with {what}_key (--{what}-key)"
        )
    return found[0]


def _ids(column: Any) -> Any:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if column.null_count:
        raise DataError(f"{column.null_count} rows have no id")
    if pa.types.is_integer(kind):
        return np.asarray(column.cast(kind).to_numpy())
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        why = ": float ids lose digits, save them as integers" if pa.types.is_floating(kind) else ""
        raise DataError(f"ids must be integers or text, got {kind}{why}")
    return np.array(column.cast(pa.large_string()).to_pylist())


# --- pickles of image sets --------------------------------------------------------------------


def read_images(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """A dict of CIFAR's: arrays as they are, lists of numbers as arrays, lists of text as facts."""
    (one,) = given
    found = read_pickle(one.file.read(), one.name)
    if not isinstance(found, dict):
        raise DataError(f"expected a dict, got {type(found).__name__}")
    for key, value in found.items():
        name = key.decode("latin-1") if isinstance(key, bytes) else key
        if not isinstance(name, str):
            continue
        if isinstance(value, np.ndarray):
            answer.put(name, value)
        elif isinstance(value, list) and all(type(entry) is int for entry in value):
            answer.put(name, np.array(value, dtype=np.int64))
        elif isinstance(value, list):
            texts = [e.decode("latin-1") if isinstance(e, bytes) else str(e) for e in value]
            answer.facts[name] = [text[:200] for text in texts]
