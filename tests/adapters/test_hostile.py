"""Malicious or damaged files are refused with the reason, and none of their code runs."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from robustcf._io.sandbox import read_apart
from robustcf._io.unpickling import Stub, read_pickle
from robustcf.adapters import Imported
from robustcf.adapters.reading import read
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from robustcf.recommender.matching import Rows, match
from tests._io.test_unpickling import Calls
from tests.adapters.helpers import rows_of, world, write_pairs

# --- pickles ----------------------------------------------------------------------------------


def torch_zip(path: Path, content: bytes, members: dict[str, bytes] | None = None) -> Path:
    """A file as torch.save lays it out, around any pickle."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", content)
        archive.writestr("m/version", b"3\n")
        for name, raw in (members or {}).items():
            archive.writestr(f"m/{name}", raw)
    return path


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "function", [os.system, eval, exec, subprocess.check_output, getattr, __import__, open]
)
def test_a_pth_that_calls_a_function_is_refused_and_not_run(tmp_path, protocol, function):
    witness = tmp_path / "ran"
    text = f"touch {witness}" if function is not eval else f"open({str(witness)!r}, 'w')"
    harm = {"state_dict": {"user": 1}, "config": Calls(function, text), "other_parameter": {}}
    path = torch_zip(tmp_path / "evil.pth", pickle.dumps(harm, protocol=protocol))
    with pytest.raises(DataError, match="refused"):
        read(path)
    assert not witness.exists()


def test_functions_of_other_libraries_become_stubs_and_are_not_called(tmp_path):
    witness = tmp_path / "saved"
    harm = {"a": Calls(np.save, str(witness), [1]), "b": Calls(torch.save, {}, str(witness))}
    found = read_pickle(pickle.dumps(harm), "x")
    assert isinstance(found["a"], Stub)
    assert found["a"].asked_for == "numpy.save"
    assert not list(tmp_path.iterdir())
    assert isinstance(found["b"](1, 2), Stub)


def test_builtins_that_hold_values_are_stubs_and_never_made():
    """Tables of pandas are pickled with slices; a bytearray of a terabyte is not allocated."""
    content = pickle.dumps({"a": slice(1, 2), "b": Calls(bytearray, 10**12), "c": range(3)})
    found = read_pickle(content, "x")
    assert [type(value).__mro__[1] for value in found.values()] == [Stub, Stub, Stub]
    assert found["b"].arguments == (10**12,)
    for name in ("eval", "getattr", "type", "map", "open", "memoryview"):
        with pytest.raises(DataError, match=f"asks for builtins.{name}: refused"):
            read_pickle(f"cbuiltins\n{name}\n.".encode(), "x")


class Thing:
    def __init__(self) -> None:
        self.name, self.numbers = "a", np.arange(3)


def test_what_lies_next_to_stubs_is_read():
    texts = np.array(["[PAD]", "a"])
    objects = np.array(["x", "yy"], dtype=object)
    value = {"thing": Thing(), "texts": texts, "objects": objects, "one": np.str_("t"), "s": {1}}
    for protocol in (2, 4):
        found = read_pickle(pickle.dumps(value, protocol=protocol), "x")
        assert found["thing"].asked_for == f"{__name__}.Thing"
        assert found["thing"].attribute("name") == "a"
        assert found["thing"].attribute("numbers").array.tolist() == [0, 1, 2]
        assert found["thing"].attribute("absent") is None
        assert found["texts"].array.tolist() == ["[PAD]", "a"]
        assert found["objects"].array.tolist() == ["x", "yy"]
        assert (found["one"], found["s"]) == ("t", {1})


def test_stubs_take_what_dicts_and_lists_take():
    class Bag(dict):
        pass

    class Row(list):
        pass

    sys.modules[__name__].Bag, sys.modules[__name__].Row = Bag, Row
    Bag.__qualname__, Row.__qualname__ = "Bag", "Row"
    found = read_pickle(pickle.dumps([Bag(a=1), Row([1, 2, 3])]), "x")
    assert found[0].entries == {"a": 1}
    assert isinstance(found[1], Stub)


def test_damaged_pickles_of_checkpoints(tmp_path):
    whole = pickle.dumps({"a": 1})
    for end in (0, 1, len(whole) - 1):
        with pytest.raises(DataError, match="unreadable pickle"):
            read_pickle(whole[:end], "x")
    with pytest.raises(DataError, match="something"):
        read_pickle(b"Pthing\n.", "x")
    with pytest.raises(DataError, match="text"):
        read_pickle(b"cnumpy.core.multiarray\nscalar\n(I1\nI2\ntR.", "x")
    with pytest.raises(DataError, match="not numbers: refused"):
        read_pickle(pickle.dumps(np.array(["2001-01-01"], dtype="M8[D]")), "x")


def tensor_pickle(size, stride, offset=0, numel=6, kind="FloatStorage", word="storage"):
    """The pickle of {'user': tensor, 'item': tensor}, with any shape that one likes."""
    out = io.BytesIO()
    number = lambda n: b"\x8a\x08" + struct.pack("<q", n)  # noqa: E731
    numbers = lambda values: b"(" + b"".join(map(number, values)) + b"t"  # noqa: E731
    out.write(b"\x80\x02}(")
    for name in (b"user", b"item"):
        out.write(b"X" + struct.pack("<i", len(name)) + name)
        out.write(b"ctorch._utils\n_rebuild_tensor_v2\n(")
        out.write(b"(X" + struct.pack("<i", len(word)) + word.encode())
        out.write(b"ctorch\n" + kind.encode() + b"\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu")
        out.write(number(numel) + b"tQ" + number(offset) + numbers(size) + numbers(stride))
        out.write(b"\x89N" + b"tR")
    out.write(b"u.")
    return out.getvalue()


def test_shapes_within_their_storage_are_read(tmp_path):
    numbers = np.arange(6, dtype="<f4").tobytes()
    path = torch_zip(tmp_path / "a.pth", tensor_pickle((3, 2), (2, 1)), {"data/0": numbers})
    assert read(path).factors.users.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "shape",
    [
        dict(size=(10**9, 10**9), stride=(10**9, 1)),
        dict(size=(10**9, 10**9), stride=(0, 0)),
        dict(size=(3, 2), stride=(2, 1), offset=1),
        dict(size=(3, 2), stride=(-2, 1), offset=4),
        dict(size=(3, 2), stride=(2,)),
        dict(size=(3, 2), stride=(2, 1), word="elsewhere"),
        dict(size=(3, 2), stride=(2, 1), numel=-6),
        dict(size=(3, 2), stride=(2, 1), kind="system"),
    ],
)
def test_shapes_beyond_their_storage_are_refused(tmp_path, shape):
    path = torch_zip(tmp_path / "a.pth", tensor_pickle(**shape), {"data/0": b"\0" * 24})
    with pytest.raises(DataError, match="refused"):
        read(path)


def test_storages_that_are_not_there_or_cut_off(tmp_path):
    content = tensor_pickle((10**6, 10**6), (10**6, 1), numel=10**12)
    for members in ({}, {"data/0": b"\0" * 24}):
        with pytest.raises(DataError, match="no bytes|promises"):
            read(torch_zip(tmp_path / "a.pth", content, members))
    good = torch_zip(tmp_path / "b.pth", tensor_pickle((3, 2), (2, 1)), {"data/0": b"\0" * 24})
    raw = bytearray(good.read_bytes())
    raw[raw.index(b"\0" * 24)] = 1  # the checksum of the archive tells
    good.write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        read(good)


def test_files_that_are_no_torch_files(tmp_path):
    path = tmp_path / "a.pth"

    def archive():
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("other", b"x")

    for write, word in (
        (lambda: path.write_bytes(b"nothing of the kind"), "torch.save"),
        (archive, "torch.save"),
        (lambda: torch_zip(path, pickle.dumps({"a": 1}), {"byteorder": b"big"}), "big-endian"),
        (lambda: torch.save(torch.nn.Linear(2, 2), path), "state_dict"),
        (lambda: torch.save([1, 2], path), "state_dict"),
        (lambda: torch.save({"user": torch.empty(0, 2), "item": torch.ones(1, 2)}, path), "rows"),
    ):
        write()
        with pytest.raises(InputError, match=word):
            read(path)
    found = read_apart("robustcf._io.unpickling:read_torch", [path])
    assert found.array("user").shape == (0, 2)


# --- arrays -----------------------------------------------------------------------------------


def test_npz_with_objects_is_refused_and_not_unpickled(tmp_path):
    witness = tmp_path / "ran"
    harm = np.array([Calls(os.system, f"touch {witness}")], dtype=object)
    np.savez(tmp_path / "a.npz", user_factors=harm, item_factors=np.ones((2, 2)))
    with pytest.raises(DataError, match="array of objects"):
        read(tmp_path / "a.npz")
    np.savez(tmp_path / "pairs.npz", format=np.array(b"csr"), shape=harm, data=harm)
    with pytest.raises(DataError, match="array of objects"):
        match(Rows(40, 30), tmp_path / "pairs.npz")
    assert not witness.exists()


def header(shape, dtype="<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("shape", [(10**9, 10**9), (10**6, 64), (2**62, 2)])
def test_headers_that_promise_more_than_there_is(tmp_path, shape):
    content = header(shape) + b"\0" * 64
    (tmp_path / "u.npy").write_bytes(content)
    np.save(tmp_path / "i.npy", np.ones((2, 2)))
    with pytest.raises(DataError, match="header"):
        read([tmp_path / "u.npy", tmp_path / "i.npy"])
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("U.npy", content)
    with pytest.raises(DataError, match="header"):
        read(tmp_path / "a.npz")


def test_an_archive_that_would_grow_without_bound(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("U.npy", header((2**20, 20)) + bytes(80 << 20))
    assert (tmp_path / "a.npz").stat().st_size < 1 << 20
    with pytest.raises(DataError, match="ROBUSTCF_LIMITS"):
        read(tmp_path / "a.npz")


HUGE = b'{"U":{"dtype":"F32","shape":[1000000000,1000000000],"data_offsets":[0,8]}}'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npz", b"PK nothing"),
        ("U.npy", b"\x93NUMPY\x01\x00\x04\x00{[(\n"),
        ("U.npy", b"\x93NUMPY\x09\x00\x04\x00{[(\n"),
        ("a.safetensors", struct.pack("<Q", 2**60) + b"{}"),
        ("a.safetensors", struct.pack("<Q", len(HUGE)) + HUGE + b"\0" * 8),
    ],
)
def test_damaged_arrays(tmp_path, name, content):
    path = tmp_path / name
    if name == "U.npy":
        path = tmp_path / "a.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, content)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError):
        read(path)


# --- parquet ----------------------------------------------------------------------------------


def tables(tmp_path, ids, vectors, kind=None):
    column = pa.array(vectors, type=kind or pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": ids, "features": column}), tmp_path / "u.parquet")
    good = pa.array([[1.0, 2.0]], type=pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": [1], "features": good}), tmp_path / "i.parquet")
    return [tmp_path / "u.parquet", tmp_path / "i.parquet"]


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        ([1, 2], [[1.0, 2.0], [1.0]], r"one length, got \[1, 2\]"),
        ([1, 2], [[1.0, 2.0], None], "1 rows have no vector"),
        ([1, 2], [[1.0, 2.0], [1.0, None]], "1 numbers are missing"),
        ([1, 1], [[1.0, 2.0], [1.0, 2.0]], "user labels must differ, got 1 more"),
        ([1.0, 2.0], [[1.0, 2.0], [1.0, 2.0]], "got double: float ids lose digits"),
        ([1, None], [[1.0, 2.0], [1.0, 2.0]], "1 rows have no id"),
        ([True, False], [[1.0, 2.0], [1.0, 2.0]], "integers or text, got bool"),
        (["a", "b\n"], [[1.0, 2.0], [1.0, 2.0]], "control characters"),
        (["a", "b" * 2000], [[1.0, 2.0], [1.0, 2.0]], "short text|longer"),
        (pa.array([], pa.int64()), [], "has no rows"),
    ],
)
def test_hostile_parquet(tmp_path, ids, vectors, message):
    with pytest.raises(DataError, match=message):
        read(tables(tmp_path, ids, vectors))


def test_ids_beyond_64_bits(tmp_path):
    ids = pa.array([2**64 - 1, 2], type=pa.uint64())
    found = read(tables(tmp_path, ids, [[1.0, 2.0], [1.5, 3.0]]))
    assert found.user_labels.tolist() == [str(2**64 - 1), "2"]


def test_parquet_of_other_kinds(tmp_path):
    with pytest.raises(DataError, match="floating-point"):
        read(tables(tmp_path, [1], [[1, 2]], pa.list_(pa.int64())))
    with pytest.raises(DataError, match="numbers"):
        read(tables(tmp_path, [1], [[1.0, 2.0]]), vector_key="id", id_key="id")
    with pytest.raises(InputError, match="must be finite"):
        read(tables(tmp_path, [1, 2], [[1.0, float("nan")], [1.0, 2.0]]))
    paths = tables(tmp_path, [1, 2], [[1.0, 2.0], [1.0, 3.0]])
    paths[0].write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(DataError, match="not readable"):
        read(paths)


# --- labels -----------------------------------------------------------------------------------


def test_labels_are_text_and_nothing_else(tmp_path):
    """A label that a page could take for a script stays the text that it is."""
    U, V, split = world()
    names = [f"<script>alert({n})</script>" for n in range(30)]
    mine = Imported(Factors.of(U, V), "x", "y", item_labels=np.array(names))
    pairs = write_pairs(tmp_path / "p.csv", split.train, item_names=names)
    found = match(rows_of(mine), pairs).split
    assert found.item_labels.tolist() == names


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, 2.0], "got 1.0: float ids lose digits"),
        ([True, False], "got True"),
        ([None, "a"], "got None"),
        (["a", "a"], "got 'a' more than once"),
        ([1, "1"], "got 1 more than once"),
        ([b"\xff", b"a"], "text in UTF-8"),
        (["a"], "n_users = 2, got 1"),
    ],
)
def test_labels_that_are_none(labels, message):
    factors = Factors.of(np.eye(2), np.eye(3, 2))
    with pytest.raises(DataError, match=message):
        Imported(factors, "x", "y", user_labels=labels)


def test_labels_are_numbers_where_that_loses_nothing():
    factors = Factors.of(np.eye(2), np.eye(3, 2))
    found = Imported(factors, "x", "y", user_labels=["10", "9"], item_labels=["7", "07", "x"])
    assert found.user_labels.dtype == np.int64
    assert found.item_labels.tolist() == ["7", "07", "x"]
    big = Imported(factors, "x", "y", user_labels=[2**70, 1])
    assert big.user_labels.tolist() == [str(2**70), "1"]
