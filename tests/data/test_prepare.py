"""prepare: what it makes is what load makes of the same rows, and nothing is left half-made."""

from __future__ import annotations

import builtins
import gzip
import json
import shutil
from collections import namedtuple
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robustcf.data import Split, load, prepare
from robustcf.data.large import prepare as module
from robustcf.data.large.layout import MANIFEST
from robustcf.data.large.opening import check_prepared
from robustcf.data.large.sources import find_collection
from robustcf.errors import DataError, InputError, WriteError

duckdb = pytest.importorskip("duckdb")

MEMORY = 2 << 30


def rows(seed: int, count: int = 900, *, labels: str = "text") -> pd.DataFrame:
    """Rows with repeats, ties in time, and a few who have next to nothing."""
    rng = np.random.default_rng(seed)
    users = (rng.pareto(1.0, count) * 8).astype(int) % 70
    items = (rng.pareto(0.8, count) * 6).astype(int) % 45
    if labels == "text":
        # Sorted as text, not as numbers; some beyond ASCII.
        user_labels = [f"ü{n}" if n % 5 else f"U-{n}" for n in users]
        item_labels = [f"{n:x}" for n in items]
    else:
        user_labels, item_labels = (users * 7919 - 2**40).tolist(), (items * 3).tolist()
    return pd.DataFrame(
        {
            "user": user_labels,
            "item": item_labels,
            "rating": rng.integers(1, 11, count) / 2,
            "timestamp": rng.integers(0, 60, count),
        }
    )


def same(one: Split, two: Split) -> None:
    for part in ("train", "valid", "test"):
        left, right = getattr(one, part), getattr(two, part)
        assert left == right, part
        for name in ("users", "items", "timestamps", "weights", "user_labels", "item_labels"):
            mine, theirs = getattr(left, name), getattr(right, name)
            assert (mine is None) == (theirs is None)
            assert mine is None or mine.dtype.kind == theirs.dtype.kind, name
    assert one.fingerprint == two.fingerprint
    assert one.valid_source == two.valid_source
    assert one.protocol == two.protocol


def made(source: object, out: Path, **options: object) -> Split:
    prepare(source, out, memory=MEMORY, **options)
    check_prepared(out / MANIFEST)
    return load(out)


CASES = [
    dict(),
    dict(min_rating=2.5, k_core=3, seed=7),
    dict(k_core=4, split="leave-one-out", seed=3),
    dict(test_ratio=0.3, valid_ratio=0.2, seed=11, shards=4),
    dict(columns=["user", "item", "timestamp"], split="leave-one-out"),
    dict(columns=["user", "item", "rating"], min_rating=3),
    dict(columns=["user", "item"], split="leave-one-out", k_core=2),
    dict(split="time", k_core=2, min_rating=2),
    dict(split="time", test_ratio=0.4, valid_from=9),
    dict(columns=["user", "item", "timestamp"], split="time", test_from="50", valid_ratio=0.3),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.slow
def test_it_is_what_load_makes_of_the_same_rows(seed, case, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 40)  # many blocks, some of one user
    case = dict(case)
    kind = [".parquet", ".csv", ".tsv"][seed]
    shards = case.pop("shards", 1 + seed)
    frame = rows(seed, labels="number" if seed == 2 else "text")
    frame = frame[case.pop("columns", list(frame.columns))]
    path = tmp_path / f"mine{kind}"
    if kind == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if kind == ".tsv" else ",")
    expected = load(path, cache=False, **case)
    found = made(path, tmp_path / "out", shards=shards, **case)
    same(expected, found)
    assert found.notes == expected.notes
    assert found.name == expected.name
    same(load(tmp_path / "out" / MANIFEST), found)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_files_of_a_collection_count_as_one_in_their_order(seed, tmp_path):
    frame = rows(seed)
    whole = tmp_path / "whole.parquet"
    frame.to_parquet(whole)
    folder = tmp_path / "many"
    for number, part in enumerate(np.array_split(np.arange(len(frame)), 4)):
        place = folder / f"year={2020 + number // 2}" / f"part-{number}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        frame.iloc[part].to_parquet(place)
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-0.parquet.crc").write_text("x")
    expected = load(whole, cache=False, min_rating=2)
    for number, source in enumerate(
        (folder, f"{folder}/*/part-*.parquet", f"file://{folder}", f"{folder}/**/*.parquet")
    ):
        same(expected, made(source, tmp_path / f"out{number}", min_rating=2))


def test_a_remote_collection_of_text_is_read_through_fsspec(tmp_path):
    import fsspec

    frame = rows(5)
    frame.to_csv(tmp_path / "whole.csv", index=False)
    memory = fsspec.filesystem("memory")
    for number, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        text = frame.iloc[part].to_csv(index=False).encode()
        name = f"/robustcf-test/part{number}.csv"
        with memory.open(name + ".gz" * (number == 1), "wb") as file:
            file.write(gzip.compress(text) if number == 1 else text)
    try:
        found = made("memory://robustcf-test", tmp_path / "out")
    finally:
        memory.rm("/robustcf-test", recursive=True)
    same(load(tmp_path / "whole.csv", cache=False), found)
    with pytest.raises(DataError, match="no such file or folder"):
        find_collection("memory://robustcf-test-gone")
    with pytest.raises(DataError, match="cannot be listed|not there"):
        find_collection("nosuchprotocol://bucket/x")


def test_a_key_of_folders_can_be_the_time(tmp_path):
    frame = rows(0)[["user", "item"]]
    days = np.arange(len(frame)) % 3
    for day in range(3):
        place = tmp_path / "many" / f"date=2024-05-0{day + 1}"
        place.mkdir(parents=True)
        frame[days == day].to_parquet(place / "a.parquet")
    found = made(tmp_path / "many", tmp_path / "out", split="leave-one-out")
    first = pd.Timestamp("2024-05-01").value // 1000
    expected = frame.assign(day=days).groupby(["user", "item"], as_index=False)["day"].max()
    oracle = {
        (user, item): first + day * 86_400_000_000
        for user, item, day in expected.itertuples(index=False)
    }
    for part in (found.train, found.valid, found.test):
        for user, item, time in zip(part.users, part.items, part.timestamps, strict=True):
            key = part.user_labels[user], part.item_labels[item]
            assert oracle.pop(key) == time
    assert not oracle


TIMES = {
    "fractions": [1.5, 2.25, 0.1234567, 3e6],
    "whole as floats": [4.0, 7.0, 5.0, 1e15],
    "dates": [
        "2024-05-01",
        "2024-05-01 12:30",
        "2024-05-01T12:30:15Z",
        "2024-05-01T12:30:15+02:00",
    ],
    "numbers as text": ["5", "-7", "12", "0"],
}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("kind", [".parquet", ".csv"])
def test_times_are_read_as_load_reads_them(name, kind, tmp_path):
    frame = pd.DataFrame({"user": [1, 1, 2, 2], "item": [1, 2, 1, 2], "time": TIMES[name]})
    path = tmp_path / f"mine{kind}"
    frame.to_parquet(path) if kind == ".parquet" else frame.to_csv(path, index=False)
    options = dict(time_col="time", split="time", test_ratio=0.3)
    expected, found = load(path, cache=False, **options), made(path, tmp_path / "out", **options)
    same(expected, found)
    assert found.notes == expected.notes, "the first times of the parts, in their unit"


def test_types_of_parquet_are_read_as_load_reads_them(tmp_path):
    count = 40
    frame = pd.DataFrame(
        {
            "user": np.arange(count, dtype=np.uint64) % 7 + np.uint64(2**63),
            "item": (np.arange(count) % 11).astype(float),
            "rating": np.arange(count, dtype=np.int8) % 5,
            "time": pd.date_range("2024-01-01", periods=count, freq="7h", tz="Europe/Paris"),
        }
    )
    for number, changed in enumerate(
        (frame, frame.assign(user=frame["item"].astype(int).astype("category"), time=1))
    ):
        path = tmp_path / f"mine{number}.parquet"
        changed.to_parquet(path)
        same(load(path, cache=False), made(path, tmp_path / f"out{number}"))


def test_text_that_looks_like_numbers_is_one_thing_or_the_other(tmp_path):
    for number, users in enumerate((["10", "9", "-3", "9"], ["007", "7", "10", "9"])):
        path = tmp_path / f"mine{number}.csv"
        pd.DataFrame({"user": users, "item": [1, 2, 3, 4]}).to_csv(path, index=False)
        same(load(path, cache=False), made(path, tmp_path / f"out{number}"))


def test_columns_by_number_and_other_separators(tmp_path):
    frame = rows(4)
    path = tmp_path / "bare.csv"
    frame[["item", "timestamp", "user"]].to_csv(path, index=False, header=False, sep=";")
    named = dict(user_col=2, item_col=0, time_col=1)
    same(load(path, cache=False, **named), made(path, tmp_path / "out", **named))
    path = tmp_path / "recbole.inter"
    text = 'user_id:token\titem_id:token\n"a"\tx\n"a"\ty\nb"\tx\nb"\tz\n'
    path.write_text(text)
    same(load(path, cache=False), made(path, tmp_path / "out2"))


def test_optional_columns_that_hold_something_else_are_left_out_with_a_note(tmp_path):
    path = tmp_path / "mine.csv"
    frame = rows(0).assign(rating="good", timestamp="01/02/2024")
    frame.to_csv(path, index=False)
    found = made(path, tmp_path / "out")
    assert found.train.weights is None
    assert found.train.timestamps is None
    assert sum("column was left out" in note for note in found.notes) == 2
    for role, column in (("rating", "rating"), ("time", "timestamp")):
        with pytest.raises(DataError, match="must hold .*repair it, or leave it out"):
            prepare(path, tmp_path / role, memory=MEMORY, **{f"{role}_col": column})
    nested = rows(0).assign(rating=[[1]] * 900)
    nested.to_parquet(tmp_path / "nested.parquet")
    assert "left out" in made(tmp_path / "nested.parquet", tmp_path / "out3").notes[0]
    with pytest.raises(DataError, match="holds list.*convert it"):
        prepare(tmp_path / "nested.parquet", tmp_path / "o", rating_col="rating", memory=MEMORY)


def test_shards_are_ranges_of_users_with_about_as_many_pairs(tmp_path):
    rows(0, 3000).to_parquet(tmp_path / "mine.parquet")
    split = made(tmp_path / "mine.parquet", tmp_path / "out", shards=3)
    facts = json.loads((tmp_path / "out" / MANIFEST).read_text())
    edges = facts["shards"]
    assert (edges[0], edges[-1], len(edges)) == (0, split.n_users, 4)
    one = made(tmp_path / "mine.parquet", tmp_path / "one")
    same(one, split)
    for first, last in pairwise(edges):
        assert split.train.between(first, last) == one.train.between(first, last)
    many = made(tmp_path / "mine.parquet", tmp_path / "many", shards=80)  # more than users
    same(one, many)


def test_a_range_of_one_shard_reads_that_shard_alone(tmp_path):
    rows(0, 3000).to_parquet(tmp_path / "mine.parquet")
    prepare(tmp_path / "mine.parquet", tmp_path / "out", shards=3, memory=MEMORY)
    edges = json.loads((tmp_path / "out" / MANIFEST).read_text())["shards"]
    path = tmp_path / "out" / "train-00002.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    split = load(tmp_path / "out")
    part = split.train.between(edges[0], edges[1])
    assert len(part.items) == len(part)
    full = split.train_full.between(edges[1], edges[2])
    assert len(full.items) == len(full)
    with pytest.raises(DataError, match=r"train-00002.arrow: its sha256 must be .* altered"):
        split.train.between(edges[1], edges[3]).items  # noqa: B018


def test_pairs_are_mapped_and_not_copied(tmp_path):
    rows(0, 3000).to_parquet(tmp_path / "mine.parquet")
    split = made(tmp_path / "mine.parquet", tmp_path / "out")
    for name in ("users", "items", "timestamps", "weights"):
        column = getattr(split.train, name)
        owner = column
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        assert not isinstance(owner, np.ndarray), f"{name} lies in memory of numpy"
        assert not column.flags.writeable
    part = split.train.between(3, 9)
    assert np.shares_memory(part.items, split.train.items)


# --- what is refused ------------------------------------------------------------------------


def csv(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


HOSTILE = {
    "no such column": ("a,b\n1,2\n", "found no user column"),
    "no item column": ("user,b\n1,2\n", "found no item column"),
    "null ids": ("user,item\n1,2\n,3\n4,\n", "1 rows have no user id"),
    "nan ids": ("user,item\n1,2\n3,nan\n", "1 rows have no item id"),
    "ragged, long": ("user,item\n1,2\n1,2,3\n", "cannot be read"),
    "ragged, short": ("user,item,x\n1,2,3\n1\n", "cannot be read"),
    "no rows": ("user,item\n", "there are no rows"),
    "empty": ("", "the file is empty"),
    "huge label": ("user,item\n" + "x" * 5000 + ",1\n", "longer than 1000 characters"),
    "control characters": ("user,item\na\x07b,1\n", "control characters"),
    "endless line": ("user,item\n" + "x" * 3_000_000 + ",1\n", "cannot be read|line"),
    "endless header": ("x" * 3_000_000, "a line is longer than"),
    "an open quote": ('user,item\n"a,1\nb,2\n', "cannot be read|control characters"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_that_is_no_table_is_refused(name, tmp_path):
    text, message = HOSTILE[name]
    path = csv(tmp_path / "bad.csv", text)
    with pytest.raises(DataError, match=message):
        prepare(path, tmp_path / "out", memory=MEMORY)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv"]


def test_too_many_columns_are_refused(tmp_path):
    path = csv(tmp_path / "bad.csv", ",".join(["user", "item", *("x" * 10_000)]) + "\n1,2\n")
    with pytest.raises(DataError, match="10,002 columns"):
        prepare(path, tmp_path / "out", memory=MEMORY)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "header.csv").write_bytes(b"us\xffer,item\n1,2\n")
    (tmp_path / "body.csv").write_bytes(b"user,item\n\xff\xfe,2\n")
    for name, message in (("header", "not UTF-8"), ("body", "cannot be read")):
        with pytest.raises(DataError, match=message):
            prepare(tmp_path / f"{name}.csv", tmp_path / "out", memory=MEMORY)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    good = pd.DataFrame({"user": [1, 2], "item": [1, 2]})

    def folder(name: str, second: pd.DataFrame) -> Path:
        (tmp_path / name).mkdir()
        good.to_parquet(tmp_path / name / "a.parquet")
        second.to_parquet(tmp_path / name / "b.parquet")
        return tmp_path / name

    text = good.assign(user=["007", "x"])
    with pytest.raises(DataError, match=r"same types, but .*b.parquet has 'user' \(text\)"):
        prepare(folder("types", text), tmp_path / "out", memory=MEMORY)
    with pytest.raises(DataError, match="found no item column"):
        prepare(folder("names", good[["user"]]), tmp_path / "out", memory=MEMORY)
    with pytest.raises(DataError, match="same columns of the same types"):
        prepare(folder("more", good.assign(rating=1)), tmp_path / "out", memory=MEMORY)
    csv(tmp_path / "two" / "a.csv", "user,item\n1,2\n")
    csv(tmp_path / "two" / "b.csv", "item,user\n1,2\n")
    with pytest.raises(DataError, match="same columns"):
        prepare(tmp_path / "two", tmp_path / "out", memory=MEMORY)
    csv(tmp_path / "types" / "c.csv", "user,item\n1,2\n")
    with pytest.raises(DataError, match="files of one kind, got .csv and .parquet"):
        prepare(tmp_path / "types", tmp_path / "out", memory=MEMORY)
    csv(tmp_path / "keys" / "a=1" / "a.csv", "user,item\n1,2\n")
    csv(tmp_path / "keys" / "b=1" / "a.csv", "user,item\n1,2\n")
    with pytest.raises(DataError, match="same keys in the folders"):
        prepare(tmp_path / "keys", tmp_path / "out", memory=MEMORY)
    (tmp_path / "types" / "c.csv").unlink()
    (tmp_path / "types" / "b.parquet").write_bytes(b"PAR1 no parquet PAR1")
    with pytest.raises(DataError, match="b.parquet: not a readable"):
        prepare(tmp_path / "types", tmp_path / "out", memory=MEMORY)


def test_sources_that_are_none_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    csv(tmp_path / "other" / "readme.md", "hello")
    csv(tmp_path / "odd" / "a[1].csv", "user,item\n1,2\n")
    csv(tmp_path / "packed" / "a.parquet.gz", "x")
    for source, message in (
        (tmp_path / "empty", "found none"),
        (tmp_path / "other", "found none; it holds 'readme.md'"),
        (tmp_path / "gone", "no such file or folder"),
        (f"{tmp_path}/gone*.csv", "found none"),
        (tmp_path / "odd", "rename it"),
        (tmp_path / "packed", "unpack the file"),
        ("/dev/null", "got a pipe or a device"),
    ):
        with pytest.raises(DataError, match=message):
            prepare(source, tmp_path / "out", memory=MEMORY)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.5, 2.0], "not whole"),
        ([True, False], "holds bool.*convert it"),
        ([b"a", b"b"], "holds binary.*convert it"),
        (pd.date_range("2024", periods=2), "holds timestamp.*convert it"),
    ],
)
def test_ids_of_other_types_are_refused(column, message, tmp_path):
    pd.DataFrame({"user": column, "item": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(shards=0), "shards must be"),
        (dict(k_core=0), "k-core needs k"),
        (dict(k_core=500), "no pair is left in the 500-core of Interactions"),
        (dict(min_rating=99.0), "no rating reaches min_rating = 99; the highest is 5"),
        (dict(test_ratio=0.0), "between 0 and 1, got 0.0"),
        (dict(valid_ratio=1.0), "between 0 and 1, got 1.0"),
        (dict(split="by magic"), "split must be one of"),
        (dict(split="time", test_from=60), "test_from must lie within the times"),
        (dict(test_from=30), "test_from needs split='time'"),
        (dict(eval_users=0), "eval_users must be"),
        (dict(memory=1), "memory must be at least 1.5 GB"),
        (dict(user_col="who"), "has no column 'who'"),
        (dict(threads=0), "threads must be"),
    ],
)
def test_options_that_are_none_are_refused(options, message, tmp_path):
    rows(0).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        prepare(tmp_path / "a.parquet", tmp_path / "out", **{"memory": MEMORY, **options})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet"]


def test_a_rating_that_is_not_there_is_asked_for(tmp_path):
    rows(0)[["user", "item"]].to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="min_rating = 3 needs a rating column"):
        prepare(tmp_path / "a.parquet", tmp_path / "out", min_rating=3, memory=MEMORY)


def test_what_is_there_is_not_written_over(tmp_path):
    rows(0).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        prepare(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)
    with pytest.raises(InputError, match="exists already"):
        prepare(tmp_path / "a.parquet", tmp_path / "a.parquet", memory=MEMORY)
    assert (tmp_path / "out" / "mine").read_text() == "precious"
    (tmp_path / "free").mkdir()
    prepare(tmp_path / "a.parquet", tmp_path / "free", memory=MEMORY)


def test_a_disk_that_is_too_small_is_said_before_the_work(tmp_path, monkeypatch):
    rows(0).to_parquet(tmp_path / "a.parquet")
    Usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(9, 9, 1000))
    with pytest.raises(WriteError, match="900 rows need about .* GB of disk.*--out"):
        prepare(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet"]


@pytest.mark.parametrize("number", [28, 13])
def test_a_disk_that_fails_is_said_and_nothing_is_left(number, tmp_path, monkeypatch):
    rows(0).to_parquet(tmp_path / "a.parquet")

    def fails(*_: object) -> None:
        raise OSError(number, "it failed")

    monkeypatch.setattr(module, "_write_arrow", fails)
    with pytest.raises(WriteError, match=r"out cannot be written \(it failed\)"):
        prepare(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet"]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        ("OutOfMemoryException", InputError, "give more with --memory"),
        ("IOException", DataError, "cannot be read"),
    ],
)
def test_errors_of_the_engine_say_what_to_do(error, expected, message, tmp_path, monkeypatch):
    from robustcf.data.large.engine import Engine

    rows(0).to_parquet(tmp_path / "a.parquet")

    def fails(*_: object) -> None:
        raise getattr(duckdb, error)("some reason")

    monkeypatch.setattr(Engine, "_number_labels", fails)
    with pytest.raises(expected, match=message):
        prepare(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)


def test_no_space_of_the_engine_is_said(tmp_path, monkeypatch):
    from robustcf.data.large.engine import Engine

    rows(0).to_parquet(tmp_path / "a.parquet")
    for kind, text in (
        (duckdb.IOException, "No space left on device"),
        (duckdb.OutOfMemoryException, "max_temp_directory_size reached"),
    ):

        def fails(*_: object, kind: type = kind, text: str = text) -> None:
            raise kind(text)

        monkeypatch.setattr(Engine, "_number_labels", fails)
        with pytest.raises(WriteError, match="not enough disk"):
            prepare(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)


def test_without_duckdb_it_says_what_to_install(tmp_path, monkeypatch):
    rows(0).to_parquet(tmp_path / "a.parquet")
    real = builtins.__import__

    def without(name: str, *more: object, **options: object) -> object:
        if name == "duckdb":
            raise ImportError("no duckdb")
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'robustcf\[large\]'"):
        prepare(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)


def test_stopping_leaves_nothing(tmp_path, monkeypatch):
    rows(0).to_parquet(tmp_path / "a.parquet")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet"]


def test_a_second_prepare_of_the_same_folder_is_told_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first is at its work, the second is refused; the first is not disturbed."""
    rows(0).to_csv(tmp_path / "rows.csv", index=False)
    split_rows, met = module._split, []

    def meanwhile(*arguments: object) -> object:
        if not met:
            met.append(True)
            with pytest.raises(InputError, match="another"):
                prepare(tmp_path / "rows.csv", tmp_path / "out", memory=MEMORY)
            prepare(tmp_path / "rows.csv", tmp_path / "elsewhere", memory=MEMORY)
        return split_rows(*arguments)

    monkeypatch.setattr(module, "_split", meanwhile)
    prepare(tmp_path / "rows.csv", tmp_path / "out", memory=MEMORY)
    assert met
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "out", "rows.csv"]
    same(load(tmp_path / "out"), load(tmp_path / "elsewhere"))
