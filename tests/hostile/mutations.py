"""Ways to spoil a file. Each takes a random generator first, and depends on nothing else."""

from __future__ import annotations

import copy
import gzip
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from datetime import date, time
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

# What stands where something else is expected: numbers beyond every type, marks of other formats,
# digits that are none, words that mean something to a reader.
WORDS = [
    b"0", b"-1", b"9" * 20, b"9" * 400, b"1e400", b"-1e308", b"nan", b"inf", b"NaN", b"\0", b'"',
    b",", b"\n", b"\r", b"\r\n", b"\t", b"::", b"\xff\xfe", b"\xef\xbb\xbf", b"'", b"[[", b"{",
    b"18446744073709551616", b"9223372036854775808", b"2024-01-01", b"99999-01-01", b"0001-01-01",
    b"\xe2\x80\xae", b"\x1b[2J", b"user", b"item", b";", b"|", b"%", b"1.5", b"1e19", b"1_000",
    b"0x10", b"True", b"\xd9\xa3", b"\xc2\xb2", b" " * 50, b"a" * 2000,
]  # fmt: skip

# Values for keys of JSON files. The code that sets the traps fills in the paths.
VALUES: list[Any] = [
    None, True, False, 0, 5, -1, 2**31, 2**63, 10**30, 10**400, 1.5, -1e308, 1e308, "", "x",
    "../../../etc/passwd", "/dev/zero", "\0", "\x1b[2J", "\u202e", "\ud800", "ä" * 1000, [],
    [1], [[]], {}, {"a": 1}, ["a", {}], "os:system", [0, 0.1, 0.2, 0.3], "nan", 1e-320,
]  # fmt: skip

NUMBER = re.compile(rb"\d+")


def spoil_bytes(rng: Random, content: bytes) -> bytes:
    """A few bytes flipped, cut, doubled or replaced; knows nothing of the format."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice([1, 2, 4, 8, 40]))
        way = rng.randrange(9)
        if way == 0 and data:
            data[start % len(data)] ^= 1 << rng.randrange(8)
        elif way == 1 and data:
            data[start % len(data)] = rng.choice([0, 255, 127, 128, 10, 44, 34])
        elif way == 2:
            del data[start:]
        elif way == 3:
            data[start:start] = rng.choice(WORDS)
        elif way == 4:
            data[start:end] = rng.choice(WORDS)
        elif way == 5:
            del data[start:end]
        elif way == 6:
            data[start:start] = data[start:end] * rng.choice([1, 2, 50])
        elif way == 7:
            data[start:end] = rng.choice([b"\xff", b"\0", b"\x7f"]) * (end - start)
        elif numbers := list(NUMBER.finditer(data)):
            found = rng.choice(numbers)
            data[found.start() : found.end()] = rng.choice(WORDS)
    return bytes(data)


def spoil_whole(rng: Random, content: bytes) -> bytes:
    """Something else in place of a whole file."""
    ways = [
        b"", b"{", content[: len(content) // 2], b"\xff\xfe\0", b"null", b"[]", b'"x"', b"5",
        b"[" * 100_000, b'{"a":' * 5000, b"NaN", content.replace(b":", b": NaN,", 1),
        b'{"a": 1, "a": 1}', b" " * 100, content * 2, b"1" * 5000, b"\n" * 1000,
        b'{"dataset": ' + b"1" * 5000 + b"}", b"PK\x03\x04" + content, b"\x1f\x8b" + content,
        b"\x93NUMPY" + content, (2**63 - 1).to_bytes(8, "little") + content,
    ]  # fmt: skip
    return rng.choice(ways)


# --- JSON -----------------------------------------------------------------------------------

Place = tuple[str | int, ...]


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Where values are in a JSON value; of a list, the first two."""
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from places(inner, (*at, index))


def replaced(value: Any, at: Place, new: Any = None, *, remove: bool = False) -> Any:
    """A copy with another value at a place, or without one."""
    if not at:
        return new
    found = copy.deepcopy(value)
    inner = found
    for key in at[:-1]:
        inner = inner[key]
    if remove:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    return found


def spoil_value(rng: Random, value: Any, more: tuple[Any, ...] = ()) -> tuple[str, Any]:
    """Another JSON value, with one key replaced, removed, added or nested; and what was done."""
    everywhere = list(places(value))
    at = rng.choice(everywhere)
    name = ".".join(map(str, at)) or "all"
    way = rng.randrange(10)
    if way == 0 and at:
        return f"without {name}", replaced(value, at, remove=True)
    if way == 1 and isinstance(value, dict):
        return "one key more", {**value, "zzz": rng.choice(VALUES)}
    if way == 2:
        deep: Any = 1
        for _ in range(rng.choice([70, 300])):
            deep = rng.choice([{"a": deep}, [deep]])
        return f"{name} nested", replaced(value, at, deep)
    if way == 3:
        return f"{name} long", replaced(value, at, [1] * 20_000)
    if way == 4:
        other = rng.choice(everywhere)
        inner = value
        for key in other:
            inner = inner[key]
        return f"{name} from elsewhere", replaced(value, at, copy.deepcopy(inner))
    new = rng.choice([*VALUES, *more])
    return f"{name} = {new!r:.40}" if new != 10**400 else name, replaced(value, at, new)


def spoil_json(rng: Random, content: bytes, more: tuple[Any, ...] = ()) -> tuple[str, bytes]:
    """A JSON file with another value, see :func:`spoil_value`."""
    what, value = spoil_value(rng, json.loads(content), more)
    return what, json.dumps(value).encode()


# --- archives -------------------------------------------------------------------------------


def saved(write: Callable[[io.BytesIO], Any]) -> bytes:
    """What a function writes to a file."""
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def zip_of(members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tar_of(members: dict[str, bytes], mode: Any = "w:gz") -> bytes:
    """A tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def spoil_gzip(rng: Random, content: bytes) -> bytes:
    """A gzip file whose content is spoilt, or grows a thousandfold."""
    inner = gzip.decompress(content)
    if rng.random() < 0.02:
        # A file may consist of many members: a gigabyte of sound lines, made in no time.
        block = inner.split(b"\n", 1)[-1] * 600
        return content + gzip.compress(block) * ((1 << 30) // len(block))
    return gzip.compress(spoil_bytes(rng, inner), 1)


def spoil_zip(rng: Random, content: bytes) -> bytes:
    """A sound zip archive, one of whose members is spoilt, absent, another's, twice or huge."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    way = rng.random()
    if way < 0.6:
        members[name] = spoil_bytes(rng, members[name])
    elif way < 0.75:
        members[name] = members[rng.choice(list(members))]
    elif way < 0.85:
        del members[name]
    elif way < 0.86:
        members[name] += bytes(70 << 20)
    else:
        members[rng.choice(["../x", "/x", "a" * 300, "x\0y", name + "/"])] = members[name]
    kinds = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]
    return zip_of(members, rng.choice([*kinds[:2], *kinds]))


def spoil_tar(rng: Random, content: bytes) -> bytes:
    """A tar archive with another value in one of its headers, and a checksum that fits."""
    packed = content[:2] == b"\x1f\x8b"
    raw = bytearray(gzip.decompress(content) if packed else content)
    headers = [at for at in range(0, len(raw) - 511, 512) if raw[at + 257 : at + 262] == b"ustar"]
    at = rng.choice(headers)
    start, length = rng.choice([(0, 100), (124, 12), (124, 12), (156, 1), (345, 155), (100, 8)])
    if start == 124:
        sizes = [b"77777777777\0", b"\xff" * 12, b"\x80" + b"\0" * 7 + b"\x7f\xff\xff\xff"]
        new = rng.choice([*sizes, b"00000000000\0", b"-1000000000\0"])
    elif start == 156:
        new = rng.choice([b"S", b"x", b"g", b"L", b"K", b"1", b"2", b"3", b"5", b"6", b"7", b"A"])
    else:
        new = rng.randbytes(length)
    raw[at + start : at + start + len(new)] = new
    raw[at + 148 : at + 156] = b" " * 8
    raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])
    return gzip.compress(bytes(raw), 1) if packed else bytes(raw)


# --- arrays, tensors, tables ----------------------------------------------------------------


def odd_array(rng: Random, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array that is not what was expected in place of another."""
    ways: list[Callable[[], np.ndarray[Any, Any]]] = [
        lambda: like.astype("f4"), lambda: like.astype(str), lambda: like[:0], lambda: like[None],
        lambda: like.ravel(), lambda: like.astype(complex), lambda: like.astype("f2"),
        lambda: like[::-1], lambda: like - like.dtype.type(7), lambda: like.reshape(-1)[:1],
        lambda: np.array(rng.choice([-1, 0, 10**9, 2**62])), lambda: np.zeros((0, 5)),
        lambda: np.zeros((5, 0)), lambda: np.array(["csr"]), lambda: np.array(b"coo"),
        lambda: np.full(like.shape, rng.choice([0, 1, -1, 100])).astype(like.dtype),
        lambda: np.array([rng.choice([-5, 1, 10**12, 3]) for _ in range(rng.randint(0, 4))]),
        lambda: np.array([np.nan, np.inf]), lambda: np.full(like.shape, np.nan),
        lambda: np.full(like.shape, 1e308), lambda: np.array([True, False]),
        lambda: np.full(like.shape, rng.choice([10**6, 10**12, -(10**12), 2**62])),
        lambda: np.zeros((3,) * rng.randint(0, 6), "u1"), lambda: np.zeros(4, "M8[s]"),
        lambda: np.zeros(3, [("a", "f8")]), lambda: np.array([{}], dtype=object),
        lambda: np.zeros(30_000_000, "i1"), lambda: np.full(like.shape, 3e38, "f4"),
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        try:
            return rng.choice(ways)()
        except (ValueError, TypeError, IndexError):
            return np.zeros((2, 2))


def nudged(rng: Random, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same array with a few other values: right in shape and type, and wrong."""
    if like.dtype.kind not in "iuf" or not like.size:
        return odd_array(rng, like)
    extreme = [-1, 0, 1, 7, 10**4, 10**6, 2**31 - 1, -(2**31), 2**62]
    with np.errstate(all="ignore"):
        found = like.copy()
        for _ in range(rng.choice([1, 1, 2, 5])):
            value = np.array(rng.choice(extreme)).astype(like.dtype)
            found.reshape(-1)[rng.randrange(like.size)] = value
    return found


def spoil_npz(rng: Random, content: bytes) -> bytes:
    """A sound ``.npz`` file with an array that is absent, odd, or one too many."""
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    name = rng.choice(list(arrays))
    like = arrays[name]
    if rng.random() < 0.15:
        del arrays[name]
    else:
        arrays[name] = (nudged if rng.random() < 0.5 else odd_array)(rng, like)
    if rng.random() < 0.2:
        new = rng.choice(["U", "V", "x", "y", "format", "shape", "data", "users"])
        arrays[new] = odd_array(rng, like)
    return saved(lambda file: np.savez_compressed(file, **arrays))


def spoil_npy(rng: Random, content: bytes) -> bytes:
    """A sound ``.npy`` file that holds another array."""
    like = np.load(io.BytesIO(content))
    return saved(lambda file: np.save(file, odd_array(rng, like)))


def odd_tensor(rng: Random, like: torch.Tensor) -> torch.Tensor:
    """A tensor that is not what was expected in place of another."""
    ways: list[Callable[[], torch.Tensor]] = [
        lambda: like.to(torch.float8_e4m3fn), lambda: like.to(torch.float8_e5m2),
        lambda: like.int(), lambda: like.double(), lambda: like.half(), lambda: like.bool(),
        lambda: like.to(torch.complex64), lambda: like.bfloat16(), lambda: like[None],
        lambda: like.reshape(like.shape[0], -1)[:, :0], lambda: like[:1], lambda: like[:0],
        lambda: torch.full(like.shape, float("nan")), lambda: torch.full(like.shape, 3e38),
        lambda: torch.full(like.shape, float("inf")), lambda: like + 10**9,
        lambda: torch.zeros(0), lambda: torch.tensor(1.0), lambda: like.reshape(-1),
        lambda: -like, lambda: torch.zeros_like(like),
    ]  # fmt: skip
    try:
        return rng.choice(ways)().contiguous()
    except (RuntimeError, IndexError, TypeError):
        return torch.zeros(2, 2)


def tensor_header(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and what follows."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def with_header(header: Any, rest: bytes) -> bytes:
    """A safetensors file of these."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def spoil_tensors(rng: Random, content: bytes, more: tuple[Any, ...] = ()) -> tuple[str, bytes]:
    """A safetensors file with an odd tensor, an odd header, or other facts."""
    header, rest = tensor_header(content)
    facts = header.get("__metadata__", {})
    way = rng.random()
    if way < 0.25:
        what, value = spoil_value(rng, header)
        return f"header: {what}", with_header(value, rest)
    if way < 0.55 and "state" in facts:
        what, state = spoil_value(rng, json.loads(facts["state"]), more)
        facts["state"] = rng.choice([json.dumps(state)] * 20 + ["", "{", "5"])
        return f"state: {what}", with_header(header, rest)
    try:
        tensors = load_tensors(content)
    except SafetensorError:
        return "bytes", spoil_bytes(rng, content)
    name = rng.choice(list(tensors))
    if rng.random() < 0.2:
        del tensors[name]
        return f"without {name}", save_tensors(tensors, metadata=facts)
    like = tensors[name]
    if like.dtype in (torch.float32, torch.int64) and rng.random() < 0.4:
        tensors[name] = torch.from_numpy(np.ascontiguousarray(nudged(rng, like.numpy())))
    else:
        tensors[name] = odd_tensor(rng, like)
    return f"odd {name}", save_tensors(tensors, metadata=facts)


def odd_column(rng: Random, rows: int) -> Any:
    """Return a Parquet column of an unexpected type."""
    ways: list[Callable[[], Any]] = [
        lambda: pa.array([rng.choice([None, 1, 2**62, -5]) for _ in range(rows)]),
        lambda: pa.array([["a"], None] * rows)[:rows], lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array([[(1, 2)]] * rows, type=pa.map_(pa.int64(), pa.int64())),
        lambda: pa.array([Decimal("1.5")] * rows), lambda: pa.array([date(2020, 1, 1)] * rows),
        lambda: pa.array([time(1)] * rows), lambda: pa.nulls(rows),
        lambda: pa.array([10**15] * rows, type=pa.timestamp("ms")),
        lambda: pa.array([10**18] * rows, type=pa.timestamp("ns", tz="UTC")),
        lambda: pa.array([b"\xff\0"] * rows, type=pa.binary(2)),
        lambda: pa.array(["a", "b"] * rows)[:rows].dictionary_encode(),
        lambda: pa.array([1.5, float("nan"), float("inf")] * rows)[:rows],
        lambda: pa.array([True, False] * rows)[:rows],
        lambda: pa.array([2**64 - 1] * rows, type=pa.uint64()),
        lambda: pa.array(np.ones(rows, "f2")), lambda: pa.array(list(range(rows))),
        lambda: pa.array(["x" * rng.choice([1, 999, 5000])] * rows),
        lambda: pa.array([[1.0, 2.0]] * rows, type=pa.list_(pa.float64(), 2)),
        lambda: pa.array([10**15] * rows, type=pa.duration("us")),
        lambda: pa.array(["a"] * rows, type=pa.large_string()),
        lambda: pa.array([b"a"] * rows, type=pa.large_binary()),
    ]  # fmt: skip
    return rng.choice(ways)()


def spoil_parquet(rng: Random, content: bytes) -> bytes:
    """A sound Parquet file with odd columns."""
    rows = rng.randint(1, 30)
    names = ["user", "item", "rating", "timestamp"]
    if rng.random() < 0.1:
        names = ["user", "user", "item", "timestamp"]
    columns = [
        odd_column(rng, rows) if rng.random() < 0.5 else pa.array(list(range(rows))) for _ in names
    ]
    table = pa.table(columns, names=names)
    return saved(lambda file: pq.write_table(table, file, compression="gzip"))
