"""The next writer clears the leftovers of a killed process, but not files still being written."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from robustcf._io import temporary
from robustcf._io.files import create_folder, write_bytes
from robustcf._io.temporary import (
    alone_in,
    clear_leftovers,
    put_aside,
    temporary_file,
    temporary_folder,
)
from robustcf.errors import InputError

# Stops inside of a write: after the bytes, before the renaming.
WRITER = """
import os, sys, time
from pathlib import Path
from robustcf._io import files
def stop(*_):
    print("there", flush=True)
    time.sleep(60)
os.replace = stop
if sys.argv[2] == "file":
    files.write_bytes(Path(sys.argv[1]), b"new")
else:
    files.create_folder(Path(sys.argv[1]), {"a": b"1"})
"""


def writer(path: Path, kind: str) -> subprocess.Popen[str]:
    """Another process that is in the middle of writing to a path."""
    command = [sys.executable, "-c", WRITER, str(path), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.stdout.close()
    return process


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_of_a_killed_process_are_cleared(tmp_path: Path, kind: str) -> None:
    process = writer(tmp_path / "x", kind)
    (hidden,) = os.listdir(tmp_path)
    # While the process is running, other writers leave its file alone.
    assert clear_leftovers(tmp_path) == []
    write_bytes(tmp_path / "other", b"1")
    create_folder(tmp_path / "run", {"a": b"1"})
    process.kill()
    process.wait()
    assert clear_leftovers(tmp_path) == [tmp_path / hidden]
    assert sorted(os.listdir(tmp_path)) == ["other", "run"]


def write(kind: str, path: Path) -> None:
    if kind == "file":
        write_bytes(path, b"whole")
    else:
        create_folder(path, {"a": b"1"})


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_first_write_of_a_process_clears_its_folder(tmp_path: Path, kind: str) -> None:
    process = writer(tmp_path / "x", "file")
    process.kill()
    process.wait()
    write(kind, tmp_path / "x")
    assert os.listdir(tmp_path) == ["x"]


def test_only_our_own_names_are_cleared(tmp_path: Path) -> None:
    names = [".x", ".x.swp", ".x.robustcf-tmp", "x.0123456789abcdef.robustcf-tmp", ".git"]
    for name in names:
        (tmp_path / name).write_text("")
    assert clear_leftovers(tmp_path) == []
    assert clear_leftovers(tmp_path / "absent") == []
    link = tmp_path / ".x.0123456789abcdef.robustcf-tmp"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("")
    link.symlink_to(tmp_path / "folder")
    assert clear_leftovers(tmp_path) == [link]  # the link, and not what it leads to
    assert (tmp_path / "folder" / "mine").exists()
    assert sorted(names) == sorted(set(os.listdir(tmp_path)) - {"folder"})
    os.mkfifo(link)  # which is not waited for
    assert clear_leftovers(tmp_path) == [link]


def test_a_file_that_was_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may clear a file after it is made and before it is locked."""
    lock, cleared = temporary._lock, []

    def late(descriptor: int) -> bool | None:
        if not cleared:
            cleared.extend(os.listdir(tmp_path))
            for name in cleared:
                (tmp_path / name).unlink()
        return lock(descriptor)

    monkeypatch.setattr(temporary, "_lock", late)
    descriptor, path = temporary_file(tmp_path / "x")
    assert path.name not in cleared
    assert os.path.samestat(os.fstat(descriptor), path.stat())
    os.close(descriptor)


def test_folders(tmp_path: Path) -> None:
    with temporary_folder(tmp_path / "x") as folder:
        (folder / "a").write_text("")
        assert clear_leftovers(tmp_path) == []
    assert os.listdir(tmp_path) == []
    (tmp_path / "old").mkdir()
    aside = put_aside(tmp_path / "old")
    assert clear_leftovers(tmp_path) == [aside]


@pytest.mark.parametrize("file", ["", ".lock"])
def test_two_cannot_be_alone(tmp_path: Path, file: str) -> None:
    with (
        alone_in(tmp_path, "another thing", file=file),
        pytest.raises(InputError, match="thing"),
        alone_in(tmp_path, "another thing", file=file, wait=0.1),
    ):
        pass
    with alone_in(tmp_path, "another thing", file=file):
        assert os.listdir(tmp_path) == ([file] if file else [])


def test_without_locks_nothing_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".x.0123456789abcdef.robustcf-tmp").write_text("")
    monkeypatch.setattr(temporary, "fcntl", None)
    assert clear_leftovers(tmp_path) == []
    write_bytes(tmp_path / "a", b"1")
    create_folder(tmp_path / "b", {"a": b"1"})
    with alone_in(tmp_path, "x"), alone_in(tmp_path, "x"):
        pass
    assert len(os.listdir(tmp_path)) == 3


def test_long_names(tmp_path: Path) -> None:
    write_bytes(tmp_path / ("ü" * 120), b"1")
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize("name", ["run", "a.b", "x" * 250, "run.0123456789abcdef.robustcf-tmp"])
def test_leftovers_of_one_name_alone(tmp_path: Path, name: str) -> None:
    left = {}
    for other in (name, "other", "run.more"):
        handle, left[other] = temporary_file(tmp_path / other)
        os.close(handle)
    assert clear_leftovers(tmp_path, name) == [left[name]]
    assert sorted(tmp_path.iterdir()) == sorted(path for n, path in left.items() if n != name)


def test_a_folder_is_made_by_one_process_at_a_time(tmp_path: Path) -> None:
    path, sole = tmp_path / "made", "another command"
    with temporary_folder(path, sole) as fresh:
        for _ in range(2):
            with pytest.raises(InputError, match=sole), temporary_folder(path, sole):
                pass
            assert fresh.is_dir()
        with temporary_folder(tmp_path / "other", sole):
            pass
        assert clear_leftovers(tmp_path) == []
        os.replace(fresh, path)
        with temporary_folder(path, sole) as second:  # which is not the first one's to remove
            assert second == fresh
    assert [entry.name for entry in tmp_path.iterdir()] == ["made"]


def test_the_end_of_one_leaves_the_folder_of_the_next(tmp_path: Path) -> None:
    path, sole = tmp_path / "made", "another command"
    with ExitStack() as second:
        with temporary_folder(path, sole) as fresh:
            os.replace(fresh, path)
            again = second.enter_context(temporary_folder(path, sole))
        assert again.is_dir()


def test_a_folder_that_a_kill_left_is_made_anew(tmp_path: Path) -> None:
    path, sole = tmp_path / "made", "another command"
    with temporary_folder(path, sole) as fresh:
        left = fresh
    left.mkdir()
    (left / "half").touch()
    with temporary_folder(path, sole) as fresh:
        assert list(fresh.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
