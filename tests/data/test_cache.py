"""The cache of parsed sets: what it keeps, and what becomes of entries that are damaged."""

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


def test_old_entries_make_room(monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path))
    x = Interactions(np.zeros(1000, int), np.arange(1000), 1, 1000)
    monkeypatch.setattr(cache, "_MOST_BYTES", 20_000)
    for n in range(5):
        assert cache.write(f"{n}.parsed", cache.Parsed({"train": x}))
        os.utime(tmp_path / "parsed" / f"{n}.parsed", (n, n))
    left = sorted(path.name for path in (tmp_path / "parsed").iterdir())
    assert left == ["3.parsed", "4.parsed"]


def test_what_a_killed_process_left_is_removed_by_the_next(monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path))
    x = Interactions(np.zeros(3, int), np.arange(3), 1, 3)
    (tmp_path / "parsed").mkdir()
    handle, left = temporary_file(tmp_path / "parsed" / "a.parsed")
    temporary._cleared.clear()  # as in another process
    assert cache.write("b.parsed", cache.Parsed({"train": x}))
    assert left.exists(), "somebody is writing it"
    os.close(handle)
    temporary._cleared.clear()
    assert cache.write("c.parsed", cache.Parsed({"train": x}))
    names = sorted(path.name for path in (tmp_path / "parsed").iterdir())
    assert names == ["b.parsed", "c.parsed"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_flipped_byte_never_crashes_a_load(toy, monkeypatch, tmp_path, seed):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "c"))
    first = load("toy", toy)
    (entry,) = (tmp_path / "c" / "parsed").iterdir()
    whole = entry.read_bytes()
    rng = np.random.default_rng(seed)
    for _ in range(150):
        broken = bytearray(whole)
        broken[rng.integers(len(broken))] ^= 1 << int(rng.integers(8))
        entry.write_bytes(bytes(broken))
        assert load("toy", toy).fingerprint == first.fingerprint


def test_a_damaged_entry_is_parsed_anew_and_mended(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "c"))
    first = load("toy", toy)
    (entry,) = (tmp_path / "c" / "parsed").iterdir()
    for damage in (b"", b"rubbish", entry.read_bytes()[:-30]):
        entry.write_bytes(damage)
        calls = count_parses(monkeypatch)
        mended = load("toy", toy)
        assert mended.fingerprint == first.fingerprint
        assert "it was made again" in mended.notes[-1]
        assert load("toy", toy).fingerprint == first.fingerprint
        assert len(calls) == 1, "parsed anew once, then the mended entry serves"


def test_an_entry_holds_no_pickle(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "c"))
    load("toy", toy)
    (entry,) = (tmp_path / "c" / "parsed").iterdir()
    kinds = ""
    with entry.open("rb") as handle:
        handle.seek(32)  # behind the checksum: arrays, one after the other
        while handle.tell() < entry.stat().st_size:
            kinds += np.load(handle, allow_pickle=False).dtype.kind
    assert set(kinds) <= set("iufU")
    assert len(kinds) == 5, "what it holds, and two arrays a part"


def _rewritten(entry: Path, change) -> bytes:
    """An entry whose arrays are changed and written again as numpy would: nothing is damaged."""
    arrays, buffer = [], io.BytesIO(entry.read_bytes())
    digest = buffer.read(32)
    while buffer.tell() < len(buffer.getvalue()):
        arrays.append(np.load(buffer, allow_pickle=False))
    change(arrays)
    out = io.BytesIO()
    out.write(digest)
    for array in arrays:
        np.save(out, array)
    return out.getvalue()


def _swap_items(arrays) -> None:
    arrays[2][:] = arrays[2][::-1].copy()


def test_an_entry_that_was_altered_is_noticed_thrown_away_and_made_again(
    toy, monkeypatch, tmp_path
):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "c"))
    first = load("toy", toy)
    (entry,) = (tmp_path / "c" / "parsed").iterdir()
    whole = entry.read_bytes()
    assert _rewritten(entry, lambda arrays: None) == whole, "the test knows the format"
    altered = _rewritten(entry, _swap_items)
    assert altered != whole
    entry.write_bytes(altered)
    again = load("toy", toy)
    assert again.fingerprint == first.fingerprint
    assert again.notes[:-1] == first.notes
    assert again.notes[-1] == (
        f"the parsed copy {entry} had been altered or damaged; it was made again"
    )
    assert entry.read_bytes() == whole
    assert load("toy", toy).notes == first.notes, "said once"


def test_an_entry_under_another_name_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path))
    x = Interactions(np.zeros(3, int), np.arange(3), 1, 3)
    assert cache.write("one.parsed", cache.Parsed({"train": x}))
    (tmp_path / "parsed" / "two.parsed").write_bytes(
        (tmp_path / "parsed" / "one.parsed").read_bytes()
    )
    with pytest.raises(cache.DamagedEntry):
        cache.read("two.parsed")
    assert cache.read("two.parsed") is None, "it has been removed"
    assert cache.read("one.parsed")[0]["train"] == x


def test_an_entry_with_the_right_checksum_and_a_wrong_content_is_thrown_away(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path))
    (tmp_path / "parsed").mkdir()
    entry = tmp_path / "parsed" / "a.parsed"
    meta = {"parts": ["train"], "n_users": 1, "n_items": 1, "notes": [], "arrays": ["train.users"]}
    for text in ("no JSON", json.dumps(meta), json.dumps([])):
        content = io.BytesIO()
        np.save(content, np.array(text))
        np.save(content, np.zeros(1, int))
        digest = hashlib.sha256(b"a.parsed" + content.getvalue()).digest()
        entry.write_bytes(digest + content.getvalue())
        with pytest.raises(cache.DamagedEntry):
            cache.read("a.parsed")
        assert not entry.exists()


def test_a_pipe_in_the_cache_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path))
    (tmp_path / "parsed").mkdir()
    os.mkfifo(tmp_path / "parsed" / "a.parsed")
    assert cache.read("a.parsed") is None


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(toy, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "file"))
    assert len(load("toy", toy).train_full) == 5
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / "c"))

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.np.lib.format, "write_array", full_disk)
    assert len(load("toy", toy).train_full) == 5
    assert list((tmp_path / "c" / "parsed").iterdir()) == []


def _write_entry(folder: str, key: str, size: int) -> None:
    os.environ["ROBUSTCF_CACHE"] = folder
    x = Interactions(np.zeros(size, int), np.arange(size), 1, size)
    for _ in range(8):
        assert cache.write(key, cache.Parsed({"train": x}))
        stored = cache.read(key)
        assert stored is not None
        assert len(stored[0]["train"]) == size


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
