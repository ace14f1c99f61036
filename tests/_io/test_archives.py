"""Members of archives, and archives that mean harm."""

from __future__ import annotations

import gzip
import os
import tarfile

import pytest

from robustcf._io.limits import raised_limits
from robustcf._io.reading import read_member, read_members
from robustcf.errors import DataError
from tests.hostile.mutations import tar_of, zip_of

NAME = "set/u.data"
both = pytest.mark.parametrize("make", [zip_of, tar_of])


def read_all(path, name):
    return read_members(path, name.__eq__)[name]


@both
def test_a_member_is_read_without_unpacking(tmp_path, make):
    (tmp_path / "a").write_bytes(make({NAME: b"content", "set/README": b"x"}))
    assert read_member(tmp_path / "a", NAME) == read_all(tmp_path / "a", NAME) == b"content"
    with pytest.raises(DataError, match=f"has no member 'two'; it holds '{NAME}'"):
        read_member(tmp_path / "a", "two")
    assert os.listdir(tmp_path) == ["a"]


@both
@pytest.mark.parametrize("name", ["../evil", "set/../../evil", "/etc/evil", "C:\\evil", "..\\evil"])
def test_names_that_lead_out_are_refused(tmp_path, make, name):
    (tmp_path / "a").write_bytes(make({NAME: b"content", name: b"x"}))
    with pytest.raises(DataError, match="leads out"):
        read_member(tmp_path / "a", NAME)


@both
def test_archives_that_grow_without_bound_are_refused(tmp_path, make):
    (tmp_path / "a").write_bytes(make({NAME: bytes(4 << 20), "small": b"x"}))
    with raised_limits(small_bytes=1 << 20):
        for read in (read_member, read_all):
            with pytest.raises(DataError, match="raise the limit"):
                read(tmp_path / "a", NAME)
        with raised_limits(expansion=2000):
            assert read_member(tmp_path / "a", NAME) == bytes(4 << 20)
            assert read_members(tmp_path / "a", lambda name: True)["small"] == b"x"


def tar_with(size_field: bytes) -> bytes:
    raw = bytearray(tarfile.TarInfo(NAME).tobuf(tarfile.USTAR_FORMAT))
    raw[124 : 124 + len(size_field)] = size_field
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    return bytes(raw) + bytes(1024)


SIZES = (b"\xff" * 11 + b"\x00", b"\xff" * 10 + b"\xfe\x00", b"\x80" + b"\0" * 5 + b"\x7f" * 6)
LARGE, LITTLE = ((size).to_bytes(4, "little") for size in (4 << 20, 100))
DAMAGED = {
    "zip cut off": zip_of({NAME: b"content"})[:20],
    "tar cut off": tar_of({NAME: b"content"})[:60],
    "zip that lies about its size": zip_of({NAME: bytes(4 << 20)}).replace(LARGE, LITTLE),
    "bzip2": tar_of({NAME: b"x"}, "w:bz2"),
    "xz": tar_of({NAME: b"x"}, "w:xz"),
    **{f"tar of impossible size {n}": tar_with(size) for n, size in enumerate(SIZES)},
    **{f"packed, {n}": gzip.compress(tar_with(size)) for n, size in enumerate(SIZES)},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_archives_are_refused(tmp_path, name):
    (tmp_path / "a").write_bytes(DAMAGED[name])
    for read in (read_member, read_all):
        with raised_limits(small_bytes=1 << 20), pytest.raises(DataError):
            read(tmp_path / "a", NAME)


@pytest.mark.parametrize(
    "kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
)
def test_folders_links_and_pipes_are_no_files(tmp_path, kind):
    with tarfile.open(tmp_path / "a", "w") as archive:
        entry = tarfile.TarInfo(NAME)
        entry.type, entry.linkname = kind, NAME
        archive.addfile(entry)
    with pytest.raises(DataError, match="regular"):
        read_member(tmp_path / "a", NAME)
    assert read_members(tmp_path / "a", lambda name: True) == {}
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="got a pipe"):
        read_member(tmp_path / "pipe", NAME)
