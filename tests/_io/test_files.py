"""Files are there whole or not at all, and what is damaged is said to be."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robustcf._io.files import (
    CheckpointFiles,
    create_folder,
    csv_bytes,
    inert,
    json_bytes,
    not_inert,
    read_arrays,
    read_facts,
    read_json,
    read_tensors,
    write_arrays,
    write_bytes,
    write_json,
    write_tensors,
)
from robustcf.errors import InputError


class Fails(Exception):
    """What goes wrong in between."""


def fail(*_: Any) -> None:
    raise Fails


def test_bytes_are_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"one", b"", b"two"):
        write_bytes(path, content)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["a"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes(tmp_path / "a", b"old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(Fails):
        write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_appears_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "deep" / "run", tmp_path / "empty"):
        create_folder(target, {"a": b"1", "b": b"2"})
        assert {path.name: path.read_bytes() for path in target.iterdir()} == {"a": b"1", "b": b"2"}
        assert target.stat().st_mode & 0o777 == 0o755
    assert os.listdir(tmp_path / "deep") == ["run"]


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    create_folder(tmp_path / "run", {"a": b"1"})
    (tmp_path / "file").write_bytes(b"x")
    for name in ("run", "file"):
        with pytest.raises(InputError, match="exists already"):
            create_folder(tmp_path / name, {"a": b"2"})
    assert (tmp_path / "run" / "a").read_bytes() == b"1"


def test_a_folder_that_fails_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustcf._io.files.write_bytes", fail)
    with pytest.raises(Fails):
        create_folder(tmp_path / "run", {"a": b"1"})
    assert os.listdir(tmp_path) == []


def test_json(tmp_path: Path) -> None:
    values = {"a": [1, 2.5, None, True], "ü": {"b": "c"}}
    write_json(tmp_path / "x.json", values)
    assert read_json(tmp_path / "x.json") == values
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Out of range"):
            json_bytes({"a": bad})


def test_csv() -> None:
    rows = [{"a": 1, "b": "x,y"}, {"a": None, "b": 'say "z"'}]
    assert csv_bytes(rows) == b'a,b\n1,"x,y"\n,"say ""z"""\n'
    assert csv_bytes([]) == b""
    assert csv_bytes([{"a": 1}, {"b": 2, "a": 3}]) == b"a,b\n1,\n3,2\n"


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "'=", "''-"])
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe(begin: str) -> None:
    text = f"{begin}cmd|' /C calc'!A1"
    (row,) = csv.DictReader(io.StringIO(csv_bytes([{"a": text, "b": -1.5}]).decode(), newline=""))
    assert row == {"a": f"'{text}", "b": "-1.5"}
    assert not_inert(row["a"]) == text
    (row,) = csv.DictReader(io.StringIO(csv_bytes([{"a": text}], raw=True).decode(), newline=""))
    assert row == {"a": text}
    assert csv_bytes([{text: 1}]).startswith((b"'", b"\"'"))


@pytest.mark.parametrize(
    "value", [-1, 1.5, -2e-9, None, "-1", "+3.5", "-1e-9", "a=b", "'quoted'", "", "x\t=1", "ü"]
)
def test_numbers_and_other_text_are_written_as_they_are(value: Any) -> None:
    assert inert(value) is value
    assert csv_bytes([{"a": value, "b": 0}]) == csv_bytes([{"a": value, "b": 0}], raw=True)


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with pytest.raises(InputError, match="is not there"):
        read_arrays(path)
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array([1.5], dtype=np.float32)}
    write_arrays(path, arrays)
    found = read_arrays(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is not a readable npz"):
        read_arrays(path)
    np.savez(path, a=np.array([{"x": 1}], dtype=object))
    with pytest.raises(InputError, match="pickle"):
        read_arrays(path)


def test_tensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.randn(3, dtype=torch.float64)}
    write_tensors(path, tensors, {"what": "facts"})
    found, facts = read_tensors(path)
    assert facts == read_facts(path) == {"what": "facts"}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    path.write_bytes(b"nothing of the kind")
    for read in (read_tensors, read_facts):
        with pytest.raises(InputError, match="is not a readable safetensors"):
            read(path)
        with pytest.raises(InputError, match="is not there"):
            read(tmp_path / "absent")


@pytest.mark.parametrize(
    "cut", [lambda w: (w, w), lambda w: (w[:3], w[2:]), lambda w: (w[:2], w[2:])]
)
def test_tensors_that_share_numbers_are_written(tmp_path: Path, cut: Any) -> None:
    users, items = cut(torch.randn(5, 3))
    write_tensors(tmp_path / "a", {"users": users, "items": items}, {})
    write_tensors(tmp_path / "b", {"users": users.clone(), "items": items.clone()}, {})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found, _ = read_tensors(tmp_path / "a")
    assert torch.equal(found["users"], users)
    assert torch.equal(found["items"], items)


def test_checkpoints_are_kept_by_stage(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path, every=0.0)
    assert files.load("train") is None
    strided = torch.arange(6.0).reshape(2, 3).T
    files.save("train", {"users": strided}, {"epoch": 1}, final=False)
    files.save("refit", {"users": torch.ones(1)}, {"epoch": 9}, final=True)
    tensors, facts = files.load("train")
    assert torch.equal(tensors["users"], strided)
    assert facts == {"epoch": 1}
    assert files.load("refit")[1] == {"epoch": 9}
    (tmp_path / "other").write_bytes(b"stays")
    files.clear()
    assert os.listdir(tmp_path) == ["other"]


def test_checkpoints_are_not_saved_too_often(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path, every=3600.0)
    files.save("train", {"users": torch.ones(1)}, {"epoch": 1}, final=False)
    assert files.load("train") is None
    files.save("train", {"users": torch.ones(1)}, {"epoch": 2}, final=True)
    assert files.load("train")[1] == {"epoch": 2}
    files.last -= 3601.0
    files.save("train", {"users": torch.ones(1)}, {"epoch": 3}, final=False)
    assert files.load("train")[1] == {"epoch": 3}
