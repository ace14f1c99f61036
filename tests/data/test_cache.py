"""The cache of parsed sets: its content, and damaged entries."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from robustcf._io import temporary
from robustcf._io.fetching import SourceFile
from robustcf._io.temporary import temporary_file
from robustcf.data import cache, load, loading
from robustcf.data.interactions import Interactions
from tests.data.toy import sha256, toy_manifest


def count_parses(monkeypatch) -> list[int]:
    calls: list[int] = []
    real = loading._parse_named
    monkeypatch.setattr(loading, "_parse_named", lambda *a: calls.append(1) or real(*a))
    return calls


@pytest.fixture
def parsed(monkeypatch, tmp_path) -> Path:
    """The folder of an empty cache."""
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "c"))
    (tmp_path / "c" / "parsed").mkdir(parents=True)
    return tmp_path / "c" / "parsed"


def of_pairs(count: int) -> cache.Parsed:
    return cache.Parsed({"train": Interactions(np.zeros(count, int), np.arange(count), 1, count)})


def test_a_set_is_parsed_once_and_again_when_its_file_changes(toy, monkeypatch, register):
    calls = count_parses(monkeypatch)
    first = load("toy", toy)
    assert load("toy", toy).fingerprint == first.fingerprint
    assert len(calls) == 1
    load("toy", toy, cache=False)
    assert len(calls) == 2
    changed = b"0 0 1 2\n1 1 2\n"
    (toy / "toy" / "train.txt").write_bytes(changed)
    train = (SourceFile("train.txt", "adjacency", (sha256(changed),)),)
    register(toy_manifest(parts={**toy_manifest().parts, "train": train}))
    assert load("toy", toy).train_full.items_of(1).tolist() == [1, 2]
    assert len(calls) == 3


def test_own_tables_go_through_the_cache_with_everything_they_carry(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("user,item,rating,ts\na,x,5,1\na,y,4,2\nb,x,3,3\nb,x,3,3\n")
    first = load(path)
    monkeypatch.setattr(loading, "read_table", None)  # a second parse would fail
    second = load(path)
    assert second.train == first.train
    assert second.test == first.test
    assert second.notes == first.notes
    assert first.notes[0] == "a.csv: 1 repeated pair dropped"
    assert second.train.weights is not None
    monkeypatch.undo()
    assert len(load(path, min_rating=4).user_labels) == 1, "other options, other entry"


def test_the_cache_tells_files_of_one_name_and_their_roles_apart(tmp_path):
    for folder, text in (("one", "user,item\na,1\na,2\n"), ("two", "user,item\na,3\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text(text)
    train, test = tmp_path / "one" / "x.csv", tmp_path / "two" / "x.csv"
    split = load(train, test_file=test)
    assert set(split.sources) == {"train/x.csv", "test/x.csv"}
    train.write_text("user,item\na,1\na,2\nb,1\nb,2\n")
    assert load(train, test_file=test).n_users == 2, "the edit is seen"
    assert load(train).n_interactions == 4


def test_the_cache_tells_columns_apart(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("user,item,other\na,1,7\na,2,8\n")
    assert load(path).item_labels.tolist() == [1, 2]
    assert load(path, item_col="other").item_labels.tolist() == [7, 8]


def test_the_oldest_entries_are_removed(monkeypatch, parsed):
    monkeypatch.setattr(cache, "_MOST_BYTES", 20_000)
    for n in range(5):
        assert cache.write(f"{n}.parsed", of_pairs(1000))
        os.utime(parsed / f"{n}.parsed", (n, n))
    assert sorted(path.name for path in parsed.iterdir()) == ["3.parsed", "4.parsed"]


def test_leftovers_of_a_killed_process_are_removed_by_the_next(parsed):
    handle, left = temporary_file(parsed / "a.parsed")
    temporary._cleared.clear()  # as in another process
    assert cache.write("b.parsed", of_pairs(3))
    assert left.exists(), "it is still being written"
    os.close(handle)
    temporary._cleared.clear()
    assert cache.write("c.parsed", of_pairs(3))
    assert sorted(path.name for path in parsed.iterdir()) == ["b.parsed", "c.parsed"]


def _arrays(content: bytes) -> list[np.ndarray]:
    """The arrays of an entry, behind its checksum."""
    found, buffer = [], io.BytesIO(content)
    buffer.seek(32)
    while buffer.tell() < len(content):
        found.append(np.load(buffer, allow_pickle=False))
    return found


def _content(digest: bytes, arrays: list[np.ndarray]) -> bytes:
    out = io.BytesIO()
    out.write(digest)
    for array in arrays:
        np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_damaged_or_altered_entry_is_removed_and_made_again(toy, monkeypatch, parsed, seed):
    first = load("toy", toy)
    (entry,) = parsed.iterdir()
    whole = entry.read_bytes()
    arrays = _arrays(whole)
    assert {array.dtype.kind for array in arrays} <= set("iufU"), "no pickle"
    assert len(arrays) == 5, "facts, and two arrays per part"
    assert _content(whole[:32], arrays) == whole, "the test knows the format"
    arrays[2] = arrays[2][::-1]
    damages = [b"", b"rubbish", whole[:-30], _content(whole[:32], arrays)]
    rng = np.random.default_rng(seed)
    for _ in range(100):
        flipped = bytearray(whole)
        flipped[rng.integers(len(flipped))] ^= 1 << int(rng.integers(8))
        damages.append(bytes(flipped))
    calls = count_parses(monkeypatch)
    for damage in damages:
        assert damage != whole
        entry.write_bytes(damage)
        again = load("toy", toy)
        assert again.fingerprint == first.fingerprint
        assert again.notes[:-1] == first.notes
        assert again.notes[-1].startswith(f"the parsed copy {entry} had been altered or damaged")
        assert entry.read_bytes() == whole
    assert load("toy", toy).notes == first.notes, "said once"
    assert len(calls) == len(damages)


def test_an_entry_under_another_name_is_noticed(parsed):
    assert cache.write("one.parsed", of_pairs(3))
    (parsed / "two.parsed").write_bytes((parsed / "one.parsed").read_bytes())
    with pytest.raises(cache.DamagedEntry):
        cache.read("two.parsed")
    assert cache.read("two.parsed") is None, "it has been removed"
    assert cache.read("one.parsed") == of_pairs(3)


def test_an_entry_with_the_right_checksum_and_a_wrong_content_is_removed(parsed):
    meta = {"parts": ["train"], "n_users": 1, "n_items": 1, "notes": [], "arrays": ["train.users"]}
    for text in ("no JSON", json.dumps(meta), json.dumps([])):
        content = _content(b"", [np.array(text), np.zeros(1, int)])
        digest = hashlib.sha256(b"a.parsed" + content).digest()
        (parsed / "a.parsed").write_bytes(digest + content)
        with pytest.raises(cache.DamagedEntry):
            cache.read("a.parsed")
        assert not (parsed / "a.parsed").exists()


def test_a_pipe_in_the_cache_is_not_waited_for(parsed):
    os.mkfifo(parsed / "a.parsed")
    assert cache.read("a.parsed") is None


def test_a_cache_that_cannot_be_written_is_ignored(toy, monkeypatch, parsed, tmp_path):
    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        assert len(load("toy", toy).train_full) == 5
    assert list(parsed.iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "file"))
    assert len(load("toy", toy).train_full) == 5


def _write_entry(folder: str, key: str, size: int) -> None:
    os.environ["ROBUSTCF_CACHE"] = folder
    for _ in range(8):
        assert cache.write(key, of_pairs(size))
        stored = cache.read(key)
        assert stored is not None
        assert len(stored.parts["train"]) == size


@pytest.mark.slow
def test_two_processes_may_write_the_same_entry(tmp_path):
    context = multiprocessing.get_context("spawn")
    arguments = (str(tmp_path), "same.parsed", 50_000)
    workers = [context.Process(target=_write_entry, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert [path.name for path in (tmp_path / "parsed").iterdir()] == ["same.parsed"]
