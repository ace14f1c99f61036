"""Plain files, strict JSON, bounded content, headers that tell the truth."""

from __future__ import annotations

import gzip
import io
import os
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest

from robustcf._io.files import read_arrays
from robustcf._io.limits import raised_limits
from robustcf._io.reading import (
    open_content,
    open_regular,
    open_zip,
    parse_json,
    read_array,
    read_arrays_of,
    read_content,
    read_json,
    read_plain,
)
from robustcf.errors import DataError, InputError
from robustcf.estimators import read_matrix
from tests.hostile.mutations import saved, zip_of


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder with one thing of each kind."""
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "to device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("pipe", "a pipe"), ("/dev/zero", "a device"), ("/dev/null", "a device")),
        *(("", "a folder"), ("to device", "a device")),
    ],
)
def test_only_regular_files_are_opened_and_nothing_is_waited_for(places, name, kind):
    with pytest.raises(DataError, match=f"got {kind}"):
        open_regular(places / name)
    with pytest.raises(DataError, match=f"got {kind}"):
        read_plain(places / name, follow=True)


def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(OSError, match="No such device"):
            open_regular(Path("socket"))


def test_plain_files(places):
    assert read_plain(places / "file", 5) == b"12345"
    assert read_plain(places / "link", 5, follow=True) == b"12345"
    for path, most, word in (
        (places / "file", 4, "at most 4 bytes"),
        (places / "link", 9, "is a link"),
        (places / "absent", 9, "is not there"),
        (places / "file" / "below", 9, "is not there"),
        (Path("a\x00b"), 9, "not a name"),
        (places / ("x" * 999), 9, "cannot be read .*too long"),
    ):
        with pytest.raises(InputError, match=word):
            read_plain(path, most)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    (tmp_path / "a").touch(mode=0)
    with pytest.raises(InputError, match="Permission denied"):
        read_plain(tmp_path / "a", 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("NaN", "not a number of JSON"),
        ("[-Infinity]", "not a number of JSON"),
        ("1e999", "too large"),
        ("1" * 5000, "Exceeds the limit"),
        ('{"a": 1, "a": 1}', "twice"),
        ("[" * 65 + "]" * 65, "deeper than 64"),
        ('{"a":' * 65 + "1" + "}" * 65, "deeper than 64"),
        ("[" * 10**6, "deeper than 64"),
        (b"\xff", "not UTF-8"),
    ],
    ids=lambda value: repr(value[:10]),
)
def test_strange_json(text, message):
    with pytest.raises(InputError, match=message):
        parse_json(text)


def test_json_of_64_levels_is_read():
    assert parse_json("[" * 64 + "]" * 64)
    assert parse_json(b'{"a": [1, 2.5, "x", null, true]}') == {"a": [1, 2.5, "x", None, True]}


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]", b"null", b"root:TOPSECRET", None])
def test_what_is_no_json_object_is_refused_and_not_quoted(tmp_path, content):
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_json(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)
    assert "TOPSECRET" not in str(caught.value)


def test_content_comes_unpacked_and_whole(tmp_path):
    text = os.urandom(700_000)
    (tmp_path / "a.bin").write_bytes(text)
    (tmp_path / "b.GZ").write_bytes(gzip.compress(text[:400_000]) + gzip.compress(text[400_000:]))
    assert read_content(tmp_path / "a.bin") == text
    assert read_content(tmp_path / "b.GZ") == text


def test_a_packed_file_may_not_grow_without_bound(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    with raised_limits(small_bytes=1 << 20):
        with pytest.raises(DataError, match="unpacked"):
            read_content(tmp_path / "a.gz")
        with open_content(tmp_path / "a.gz") as stream:
            assert stream.read(1 << 19) == bytes(1 << 19), "what is allowed comes"
        with raised_limits(expansion=2000):
            assert len(read_content(tmp_path / "a.gz")) == 8 << 20
    plain = tmp_path / "a"
    plain.write_bytes(bytes(2 << 20))
    with raised_limits(small_bytes=1, expansion=1):
        assert len(read_content(plain)) == 2 << 20, "a plain file is what it is"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_are_measured_across_blocks(tmp_path, end):
    short, long = b"x" * 600_000, b"x" * 800_001
    for lines, fine in (
        ([short, short, short], True),
        ([long], False),
        ([short, long], False),
        ([b"a"] * 1000 + [long, b"a"], False),
        ([b"a" * 100] * 20_000, True),
    ):
        (tmp_path / "f").write_bytes(end.join(lines))
        with open_content(tmp_path / "f", longest_line=800_000) as stream:
            if fine:
                assert stream.read() == end.join(lines)
            else:
                with pytest.raises(DataError, match="longer"):
                    stream.read()


# --- arrays -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(1000000, 1000000)", "(3, 2)", "(-1, -8)"])
def test_an_array_that_declares_more_than_there_is_is_refused(tmp_path, shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(40)
    (tmp_path / "a.npy").write_bytes(raw)
    (tmp_path / "a.npz").write_bytes(zip_of({"a.npy": raw}))
    for read, name in ((read_array, "a.npy"), (read_arrays_of, "a.npz")):
        with pytest.raises(DataError, match="header declares"):
            read(tmp_path / name)


def test_arrays_are_read_as_numpy_reads_them(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(3, 4)),
        "b": np.asfortranarray(rng.integers(9, size=(2, 3))),
        "c": np.array(["x", "yz"]),
        "d": np.zeros((0, 7)),
        "e": np.array(5),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        assert np.array_equal(read_array(tmp_path / f"{name}.npy"), array)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "all.npz", **arrays)
        found = read_arrays_of(tmp_path / "all.npz")
        assert found.keys() == arrays.keys()
        assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
        assert read_arrays_of(tmp_path / "all.npz", ("b", "z")).keys() == {"b"}


def test_arrays_that_grow_beyond_the_limit_are_refused_unless_left_alone(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", small=np.ones(3), large=np.zeros(1 << 20))
    with raised_limits(small_bytes=1 << 20):
        with pytest.raises(DataError, match="large, small"):
            read_arrays_of(tmp_path / "a.npz")
        assert read_arrays_of(tmp_path / "a.npz", ["small"])["small"].tolist() == [1, 1, 1]
        with raised_limits(expansion=2000):
            assert len(read_arrays_of(tmp_path / "a.npz")["large"]) == 1 << 20


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code", [0x110000, 0xFFFFFFFF, 0xD800])
def test_text_of_impossible_characters_is_refused(tmp_path, code, order):
    text = np.frombuffer(np.array([65, code], f"{order}u4").tobytes(), f"{order}U2")
    np.save(tmp_path / "a.npy", text)
    np.savez(tmp_path / "a.npz", names=text)
    for read, name in ((read_array, "a.npy"), (read_arrays_of, "a.npz")):
        with pytest.raises(DataError, match="impossible characters"):
            read(tmp_path / name)
    fine = np.array(["a", "\U0001f600"], f"{order}U3")
    np.save(tmp_path / "b.npy", fine)
    assert read_array(tmp_path / "b.npy").tolist() == fine.tolist()


def test_no_array_is_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{}]))
    with pytest.raises(DataError, match="objects"):
        read_arrays_of(tmp_path / "a.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(method):
    with pytest.raises(DataError, match=f"method {method}"):
        open_zip(io.BytesIO(zip_of({"a": bytes(1000)}, method)), "x.zip")


def of_python_2(array):
    """An array as numpy wrote it under Python 2, where long integers ended in L."""
    content = saved(lambda file: np.save(file, array))
    header = content[10 : 10 + int.from_bytes(content[8:10], "little")]
    old = header.replace(b"(3, 4)", b"(3L, 4L)").replace(b"    ", b"  ", 1)
    assert len(old) == len(header)
    return content.replace(header, old)


def test_headers_of_python_2_are_read_without_a_word(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    (tmp_path / "a.npy").write_bytes(of_python_2(array))
    (tmp_path / "a.npz").write_bytes(zip_of({"a.npy": of_python_2(array)}))
    assert np.array_equal(read_array(tmp_path / "a.npy"), array)
    for read in (read_arrays_of, read_arrays):
        assert np.array_equal(read(tmp_path / "a.npz")["a"], array)
    with pytest.warns(UserWarning, match="created"):
        np.load(tmp_path / "a.npy")
    parts = {"format": b"dia", "offsets": np.array([0, 1, 2]), "shape": np.array([3, 4])}
    members = {
        f"{name}.npy": saved(lambda file, part=part: np.save(file, part))
        for name, part in parts.items()
    }
    (tmp_path / "b.npz").write_bytes(zip_of({**members, "data.npy": of_python_2(array)}))
    assert read_matrix(tmp_path / "b.npz").shape == (3, 4)
