"""One member of an archive, and archives that mean harm."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile

import pytest

from robustcf._io.limits import raised_limits
from robustcf._io.reading import read_member, read_members
from robustcf.errors import DataError


def make_zip(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, f"content of {name}")
    return path


def make_tar(path, names, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name in names:
            data = f"content of {name}".encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_member_is_read_without_unpacking(tmp_path, make):
    archive = make(tmp_path / "a.archive", ["set/u.data", "set/README"])
    assert read_member(archive, "set/u.data") == b"content of set/u.data"
    assert [p.name for p in tmp_path.iterdir()] == ["a.archive"]


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("name", ["../evil", "set/../../evil", "/etc/evil", "C:\\evil", "..\\evil"])
def test_names_that_lead_out_are_refused(tmp_path, make, name):
    archive = make(tmp_path / "a.archive", ["set/u.data", name])
    with pytest.raises(DataError, match="leads out of the archive; refused"):
        read_member(archive, "set/u.data")
    assert [p.name for p in tmp_path.iterdir()] == ["a.archive"]


def test_missing_members_and_broken_archives(tmp_path):
    archive = make_zip(tmp_path / "a.zip", ["one"])
    with pytest.raises(DataError, match="has no member 'two'; it holds 'one'"):
        read_member(archive, "two")
    (tmp_path / "b.zip").write_bytes(archive.read_bytes()[:20])
    with pytest.raises(DataError, match="not a readable zip or tar archive"):
        read_member(tmp_path / "b.zip", "one")
    whole = make_tar(tmp_path / "c.tar.gz", ["one"]).read_bytes()
    (tmp_path / "d.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a readable zip or tar archive"):
        read_member(tmp_path / "d.tar.gz", "one")


def test_a_folder_is_not_a_file(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        folder = tarfile.TarInfo("set")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    with pytest.raises(DataError, match="not a regular file"):
        read_member(tmp_path / "a.tar", "set")


def pack_zip(path, size):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/u.data", bytes(size))
        archive.writestr("small", b"x")


def pack_tar(path, size):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("set/u.data", bytes(size)), ("small", b"x")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize("make", [pack_zip, pack_tar])
def test_archives_that_grow_without_bound_are_refused(tmp_path, make):
    make(tmp_path / "a", 4 << 20)
    with raised_limits(small_bytes=1 << 20):
        for read in (read_member, lambda path, name: read_members(path, name.__eq__)):
            with pytest.raises(DataError, match="takes at least .* raise the limit"):
                read(tmp_path / "a", "set/u.data")
        with raised_limits(expansion=1000):
            assert read_member(tmp_path / "a", "set/u.data") == bytes(4 << 20)
            assert read_members(tmp_path / "a", lambda name: True)["small"] == b"x"


def test_a_zip_member_that_lies_about_its_size_is_refused(tmp_path):
    pack_zip(tmp_path / "a.zip", 4 << 20)
    raw = (tmp_path / "a.zip").read_bytes()
    lied = raw.replace((4 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert raw.count((4 << 20).to_bytes(4, "little")) == 2
    (tmp_path / "a.zip").write_bytes(lied)
    with (
        raised_limits(small_bytes=1 << 20),
        pytest.raises(DataError, match="not a readable zip or tar archive"),
    ):
        read_member(tmp_path / "a.zip", "set/u.data")


def _tar_with(size_field: bytes, kind: bytes = b"0") -> bytes:
    entry = tarfile.TarInfo("set/u.data")
    raw = bytearray(entry.tobuf(tarfile.USTAR_FORMAT))
    raw[124 : 124 + len(size_field)] = size_field
    raw[156:157] = kind
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    return bytes(raw)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "size", [b"\xff" * 11 + b"\x00", b"\xff" * 10 + b"\xfe\x00", b"\x80" + b"\0" * 5 + b"\x7f" * 6]
)
def test_tar_members_of_impossible_sizes_are_refused(tmp_path, size, packed):
    raw = _tar_with(size) + bytes(1024)
    (tmp_path / "a").write_bytes(gzip.compress(raw) if packed else raw)
    for read in (read_member, lambda path, name: read_members(path, name.__eq__)):
        with pytest.raises(DataError):
            read(tmp_path / "a", "set/u.data")


def test_tar_members_that_are_links_are_no_files(tmp_path):
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        with tarfile.open(tmp_path / "a", "w") as archive:
            entry = tarfile.TarInfo("set/u.data")
            entry.type, entry.linkname = kind, "set/u.data"
            archive.addfile(entry)
        with pytest.raises(DataError, match="is not a regular file"):
            read_member(tmp_path / "a", "set/u.data")
        assert read_members(tmp_path / "a", lambda name: True) == {}


def test_archives_packed_in_other_ways_are_refused(tmp_path):
    for mode in ("w:bz2", "w:xz"):
        with tarfile.open(tmp_path / "a", mode):
            pass
        with pytest.raises(DataError, match="not a readable zip or tar archive"):
            read_member(tmp_path / "a", "x")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="got a pipe"):
        read_member(tmp_path / "pipe", "x")
