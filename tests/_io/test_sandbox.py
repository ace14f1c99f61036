"""Files made to hurt: the parser's process is hurt, and the caller gets one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from robustcf._io import sandbox
from robustcf._io.limits import raised_limits
from robustcf._io.sandbox import Located, read_apart
from robustcf.adapters.reading import read
from robustcf.errors import DataError, InputError
from robustcf.recommender.matching import Rows, match

FOREIGN = "robustcf._io.foreign"


def torch_file(path, content, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a/data.pkl", content)
        for name, value in members.items():
            archive.writestr(f"a/data/{name}", value)
    return path


MEASURED = """
import resource, sys
from pathlib import Path
from robustcf.errors import DataError, InputError
from robustcf._io.limits import raised_limits
from robustcf._io.sandbox import read_apart
options = {"users": 1, "id_key": None, "vector_key": None}
try:
    with raised_limits(small_bytes=1 << 20):
        read_apart(sys.argv[1], [Path(name) for name in sys.argv[2:]], options)
    print("read")
except (DataError, InputError):
    print("refused")
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def refused_within(most, reader, *paths):
    """Whether files are refused, by a parser that took less than so many bytes."""
    command = [sys.executable, "-c", MEASURED, f"robustcf._io.{reader}", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    outcome, largest = done.stdout.split()
    return outcome == "refused" and int(largest) < most


# --- what it reads ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["float32", "<f8", "float16", "int64", "uint8", "bool", ">f4"])
def test_arrays_come_out_as_they_went_in(tmp_path, kind, order):
    array = np.asarray(np.arange(12).reshape(3, 4) % 5, dtype=kind, order=order)
    np.save(tmp_path / "a.npy", array)
    found = read_apart(f"{FOREIGN}:read_npy", [tmp_path / "a.npy"]).array("array")
    assert np.array_equal(found, array)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", x=array, text=np.array(["ä", "bc"]), one=np.array(7.0))
        read_back = read_apart(f"{FOREIGN}:read_npz", [tmp_path / "a.npz"])
        assert np.array_equal(read_back.array("x"), array)
        assert read_back.array("text").tolist() == ["ä", "bc"]
        assert read_back.array("one").shape == ()


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tensors_come_out_as_they_went_in(tmp_path, kind):
    from safetensors.torch import save_file

    state = {"user": torch.randn(5, 3).to(kind), "item": torch.randn(4, 3).to(kind)}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pth")
    for name in ("a.safetensors", "a.pth"):
        found = read(tmp_path / name)
        assert torch.equal(found.factors.users.to(kind), state["user"])


def test_views_of_a_storage_are_read(tmp_path):
    base = torch.arange(24.0).reshape(6, 4)
    torch.save({"user": base[1:3], "item": base.T[:, :3].T}, tmp_path / "a.pth")
    found = read(tmp_path / "a.pth")
    assert torch.equal(found.factors.users, base[1:3])
    torch.save({"user": base.T, "item": torch.ones(2, 6)}, tmp_path / "b.pth")
    assert torch.equal(read(tmp_path / "b.pth").factors.users, base.T)


# --- what it survives -------------------------------------------------------------------------

BOMBS = {
    "a length of its own choosing": b"\x80\x05\x96" + struct.pack("<Q", 3 << 30) + b".",
    "a long of many digits": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"1" * 50 + b".",
    "lists of one value": (
        b"\x80\x02c__builtin__\nlist\nq\x00(" + b"K\x01" * 60_000 + b"lq\x01"
        + b"h\x00h\x01\x85R" * 30_000 + b"."
    ),
    "encodings of one text": (
        b"\x80\x02c_codecs\nencode\nq\x00X" + struct.pack("<I", 200_000) + b"a" * 200_000 + b"q\x01"
        + b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R" * 30_000 + b"."
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_asks_for_more_memory_than_it_has(tmp_path, name):
    path = torch_file(tmp_path / "a.pth", BOMBS[name])
    assert refused_within(1 << 30, "unpickling:read_torch", path)
    words = {"a long of many digits": "pickle", "a length of its own choosing": "claims"}
    with pytest.raises(DataError, match=words.get(name, "reader_bytes=")) as error:
        read(path)
    assert "\n" not in str(error.value)


def stride_zero(folder):
    """One row that claims to be forty million users."""
    users = torch.ones(1, 4).expand(40_000_000, 4)
    torch.save({"user": users, "item": torch.ones(3, 4)}, folder / "a.pth")
    return folder / "a.pth"


def rebuilt(folder):
    """A state for a tensor's description, which has fields of its own: it must not change them."""
    good = io.BytesIO()
    torch.save({"user": torch.ones(2, 4), "item": torch.ones(3, 4)}, good)
    with zipfile.ZipFile(good) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        content, data = archive.read(name), f"{name.removesuffix('data.pkl')}data/"
        members = [n for n in archive.namelist() if n.startswith(data)]
        storages = {n.removeprefix(data): archive.read(n) for n in members}
    # After the first tensor is rebuilt (REDUCE, memoized), set its state.
    state = pickle.dumps({"shape": (10**9, 4), "stride": (0, 1)}, protocol=2)[2:-1]
    at = content.index(b"R", content.index(b"_rebuild_tensor_v2"))
    hostile = content[: at + 1] + state + b"b" + content[at + 1 :]
    return torch_file(folder / "a.pth", hostile, **storages)


def tensors(*entries, **facts):
    """A safetensors file whose header says anything."""
    names = ("users", "items")

    def write(folder):
        header = {**facts, **dict(zip(names, entries, strict=False))}
        text = json.dumps(header if entries else []).encode()
        content = len(text).to_bytes(8, "little") + text + bytes(32)
        (folder / "a.safetensors").write_bytes(content)
        return folder / "a.safetensors"

    return write


def entry(shape, begin, end):
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


SOUND = entry([2, 4], 0, 32)
HOSTILE = {
    "nested": lambda folder: torch_file(
        folder / "a.pth", b"\x80\x02}N" + b"\x85" * 200_000 + b"Ns."
    ),
    "stride zero": stride_zero,
    "rebuilt": rebuilt,
    "nested facts": tensors(SOUND, SOUND, __metadata__={"fixed": "[" * 100_000}),
    "far offsets": tensors(entry([0, 4], 10**30, 10**30)),
    "far end": tensors(entry([2, 4], 0, 10**30)),
    "negative": tensors(entry([-1, 4], 0, 0)),
    "text for a shape": tensors(entry(["a"], 0, 0)),
    "number for a type": tensors({"dtype": 7}),
    "a list": tensors(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_promise_anything(tmp_path, name):
    with pytest.raises((DataError, InputError)):
        read(HOSTILE[name](tmp_path))


@pytest.mark.slow
def test_parquet_of_constant_vectors(tmp_path):
    rows = 400_000
    values = pa.array(np.full(rows, 0.5, np.float32))
    wide = pa.ListArray.from_arrays(pa.array(np.arange(0, rows + 1, 4000, dtype=np.int32)), values)
    table = pa.table({"id": np.arange(len(wide)), "features": wide})
    users, items = tmp_path / "u.parquet", tmp_path / "i.parquet"
    pq.write_table(table, users, row_group_size=10)
    pq.write_table(pa.concat_tables([table] * 100), items, row_group_size=100)
    assert items.stat().st_size < 3_000_000
    with raised_limits(small_bytes=1 << 20), pytest.raises(DataError):
        read([users, items])
    assert refused_within(1 << 30, "parquet:read_vectors", users, items)


def test_a_sparse_matrix_of_a_shape_that_nobody_has(tmp_path):
    np.savez(
        tmp_path / "a.npz", format=np.array(b"csc"), shape=np.array([2**31, 80]),
        data=np.ones(1), indices=np.zeros(1, dtype=np.int64),
        indptr=np.r_[0, np.ones(80, dtype=np.int64)],
    )  # fmt: skip
    with pytest.raises(DataError):
        match(Rows(2**31, 80), tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".pth", ".safetensors", ".parquet"])
def test_pipes_are_refused_and_not_waited_for(tmp_path, suffix):
    pipe = tmp_path / f"a{suffix}"
    os.mkfifo(pipe)
    source = [pipe, pipe] if suffix in (".npy", ".parquet") else pipe
    with pytest.raises(DataError, match="pipe"):
        read(source)


def test_ids_that_are_no_list(tmp_path):
    np.savez(tmp_path / "a.npz", U=np.eye(3, 2), V=np.eye(4, 2))
    np.save(tmp_path / "ids.npy", np.array(7))
    os.mkfifo(tmp_path / "ids.txt")
    for ids in ("ids.npy", "ids.txt"):
        with pytest.raises(DataError):
            read(tmp_path / "a.npz", user_ids=tmp_path / ids)


# --- children that fail -----------------------------------------------------------------------

CHILDREN = {
    "dies": "os.kill(os.getpid(), 9)",
    "crashes": "os.kill(os.getpid(), 11)",
    "exits": "os._exit(3)",
    "says nothing": "os._exit(0)",
    "says too much": "sys.stdout.write('x' * (17 << 20)); sys.stdout.flush(); os._exit(0)",
    "speaks in tongues": "sys.stdout.write('{]'); sys.stdout.flush(); os._exit(0)",
    "says another thing": "sys.stdout.write('[1]'); sys.stdout.flush(); os._exit(0)",
    "takes memory": "held = [bytearray(1 << 26) for _ in range(100)]",
    "takes time": "while True: pass",
    "fills the disk": "answer.memory.write(bytes(1 << 28))",
    "opens files": "held = [open('/dev/null') for _ in range(200)]",
    "lies about an array": "answer.arrays['a'] = Located(0, 0, '<f8', (10**9,))",
    "lies about a type": "answer.arrays['a'] = Located(0, 0, '|O', (1,))",
    "lies about a file": "answer.arrays['a'] = Located(5, 0, '<f8', (1,))",
    "lies about a place": "answer.arrays['a'] = Located(0, -8, '<f8', (1,))",
    "lies about text": "answer.arrays['a'] = Located(0, 0, '<U999999', (1,))",
}


@pytest.mark.parametrize("what", CHILDREN)
def test_whatever_the_child_does_the_caller_gets_one_line(tmp_path, monkeypatch, what):
    (tmp_path / "mischief.py").write_text(
        "import os, sys\nfrom robustcf._io.sandbox import Located\n"
        f"def read(given, answer, options):\n    {CHILDREN[what]}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a.bin").write_bytes(bytes(64))
    with raised_limits(reader_seconds=1), pytest.raises(DataError) as error:
        read_apart("mischief:read", [tmp_path / "a.bin"])
    assert str(tmp_path / "a.bin") in str(error.value)
    assert "\n" not in str(error.value)


def test_the_child_inherits_nothing_but_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    (tmp_path / "mischief.py").write_text(
        "import os\n"
        "def read(given, answer, options):\n"
        "    answer.facts['environment'] = dict(os.environ)\n"
        "    answer.facts['open'] = sorted(int(n) for n in os.listdir('/proc/self/fd'))\n"
        "    answer.facts['cwd'] = os.getcwd()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a.bin").write_bytes(bytes(64))
    with open(tmp_path / "private", "w") as private:
        os.set_inheritable(private.fileno(), True)
        facts = read_apart("mischief:read", [tmp_path / "a.bin"]).facts
    assert "SECRET" not in facts["environment"]
    assert facts["cwd"] == "/"
    assert len(facts["open"]) <= 7  # three streams, the file, the memory, the listing itself


def test_without_children_the_same_readers_run_here(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.os, "name", "nt")
    np.savez(tmp_path / "a.npz", U=np.eye(3, 2), V=np.eye(4, 2))
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_in_a_child", None)
        found = read_apart(f"{FOREIGN}:read_npz", [tmp_path / "a.npz"])
    assert np.array_equal(found.array("U"), np.eye(3, 2))


def test_a_file_that_changes_meanwhile_is_cut_off(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(1000))
    found = read_apart(f"{FOREIGN}:read_npy", [tmp_path / "a.npy"])
    os.truncate(tmp_path / "a.npy", 500)
    with pytest.raises(DataError, match="cut off"):
        found.array("array")


def test_arrays_lie_within_their_file():
    Located(0, 8, "<f4", (2, 3)).check("a", [32, 0])
    for wrong in (
        Located(0, 9, "<f4", (2, 3)),
        Located(0, 8, "<f4", (2, -3)),
        Located(0, 0, "<f4", (1,) * 9),
        Located(1, 0, "<f4", (1,)),
        Located(-1, 0, "<f4", (1,)),
        Located(0, 0, "<c8", (1,)),
        Located(0, 0.0, "<f4", (1,)),
    ):
        with pytest.raises(DataError):
            wrong.check("a", [32, 0])
