"""Readers of numpy's and safetensors' files, for the child of :mod:`robustcf._io.sandbox`.

Others are in ``parquet`` and ``unpickling``. A reader takes the open files, an answer to
fill and options. Nothing here loads torch, and nothing that a file names is imported or run.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from robustcf._io.limits import MOST_ARRAYS, MOST_HEADER, NUMBERS
from robustcf._io.reading import array_header, array_values, open_zip
from robustcf._io.sandbox import Answer, Given, Located
from robustcf.errors import DataError

# Types as safetensors and as numpy writes them.
_SAFE_TYPES = {"BF16": "bfloat16", "BOOL": "|b1", "I8": "|i1", "U8": "|u1"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "FIU" for size in (2, 4, 8)
}


# --- numpy ------------------------------------------------------------------------------------


def read_npy(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Read one array per file: ``array``, or ``users`` and ``items`` of two."""
    names = ("array",) if len(given) == 1 else ("users", "items")
    for name, one in zip(names, given, strict=True):
        _add(answer, name, one.file, one.size, (one.number, 0))


def read_npz(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Read all arrays of an ``.npz`` file by name."""
    (one,) = given
    with open_zip(one.file, one.name) as archive:
        check_count(len(archive.infolist()))
        for member in archive.infolist():
            stored = member.compress_type == zipfile.ZIP_STORED
            place = (one.number, data_offset(one.file, member)) if stored else None
            with archive.open(member) as stream:
                name = member.filename.removesuffix(".npy")
                _add(answer, name, stream, member.file_size, place, member.CRC)


def data_offset(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of a stored member begin, by the header in front of them."""
    place = file.tell()
    file.seek(member.header_offset + 26)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    file.seek(place)
    return member.header_offset + 30 + name + extra


def _add(
    answer: Answer, name: str, stream: Any, size: int, place: tuple[int, int] | None, crc: int = -1
) -> None:
    """Say where an array lies; write it out if it is packed, text or of another byte order.

    ``place`` is the number of the file and where the array begins there; None where it is packed.
    """
    shape, fortran, dtype = array_header(stream, name, size)
    start = stream.tell()
    if place is not None and NUMBERS.fullmatch(dtype):
        where = Located(place[0], place[1] + start, dtype, shape, fortran, crc, start)
        answer.arrays[name] = where if start + where.nbytes == size else replace(where, crc=-1)
        return
    stream.seek(0)
    array = array_values(stream, name)
    if array.dtype.kind == "S":
        import numpy as np

        array = np.char.decode(array, "utf-8")
    answer.put(name, array)


def check_count(count: int) -> None:
    """Raise where a file has more arrays than the limit."""
    if count > MOST_ARRAYS:
        raise DataError(f"holds {count:,} arrays, expected at most {MOST_ARRAYS:,}")


# --- safetensors ------------------------------------------------------------------------------


def read_safetensors(given: Sequence[Given], answer: Answer, options: Mapping[str, Any]) -> None:
    """Read all tensors of a safetensors file, and its metadata."""
    (one,) = given
    length = int.from_bytes(one.file.read(8), "little")
    if length > min(one.size, MOST_HEADER):
        raise DataError("not a readable safetensors file (its header is too long)")
    header = json.loads(one.file.read(length))
    facts = header.pop("__metadata__", {})
    check_count(len(header))
    for name, entry in header.items():
        if entry["dtype"] not in _SAFE_TYPES:
            continue  # 8-bit floats and the like: not used
        begin, end = entry["data_offsets"]
        dtype, shape = _SAFE_TYPES[entry["dtype"]], tuple(entry["shape"])
        where = Located(one.number, 8 + length + begin, dtype, shape)
        if end - begin != where.nbytes:
            raise DataError(f"the tensor {name[:60]!r} has other offsets than its shape needs")
        answer.arrays[name] = where
    answer.facts["metadata"] = {
        str(key): str(value)[:10_000] for key, value in facts.items() if len(key) <= 1000
    }
