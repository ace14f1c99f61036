"""One member of an archive, and archives that mean harm."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from robustcf._io.reading import read_member
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
