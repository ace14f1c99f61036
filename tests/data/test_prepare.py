"""prepare makes the split that load makes of the same rows, and leaves nothing unfinished."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections import namedtuple
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robustcf.data import Split, load, prepare
from robustcf.data.large import MANIFEST
from robustcf.data.large import prepare as module
from robustcf.data.large.engine import Engine
from robustcf.data.large.opening import check_prepared
from robustcf.data.large.sources import find_collection
from robustcf.errors import DataError, InputError, WriteError
from tests.data.toy import rows, same

duckdb = pytest.importorskip("duckdb")

MEMORY = 2 << 30


def made(source: object, out: Path, **options: object) -> Split:
    prepare(source, out, memory=MEMORY, **options)
    check_prepared(out / MANIFEST)
    return load(out)


def written(frame: pd.DataFrame, path: Path) -> Path:
    """Write a table in the format of its suffix."""
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def compared(path: Path, **options: object) -> tuple[Split, Split]:
    """The splits of load and prepare, which must be the same."""
    expected = load(path, cache=False, **options)
    found = made(path, path.with_suffix(".out"), **options)
    same(expected, found)
    return expected, found


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
def test_it_makes_the_split_of_load(seed, case, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 40)  # many blocks, some of one user
    case = dict(case)
    kind = [".parquet", ".csv", ".tsv"][seed]
    shards = case.pop("shards", 1 + seed)
    frame = rows(seed, labels="number" if seed == 2 else "text")
    frame = frame[case.pop("columns", list(frame.columns))]
    path = written(frame, tmp_path / f"mine{kind}")
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
    with pytest.raises(DataError, match="folder"):
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
    "dates": ["2024-05-01", *(f"2024-05-01{end}" for end in (" 12:30", "T12:30Z", "T12:30+02:00"))],
    "numbers as text": ["5", "-7", "12", "0"],
}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("kind", [".parquet", ".csv"])
def test_times_are_read_as_load_reads_them(name, kind, tmp_path):
    frame = pd.DataFrame({"user": [1, 1, 2, 2], "item": [1, 2, 1, 2], "time": TIMES[name]})
    path = written(frame, tmp_path / f"mine{kind}")
    expected, found = compared(path, time_col="time", split="time", test_ratio=0.3)
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
        compared(written(changed, tmp_path / f"mine{number}.parquet"))


def test_text_that_looks_like_numbers_and_other_separators(tmp_path):
    for number, users in enumerate((["10", "9", "-3", "9"], ["007", "7", "10", "9"])):
        frame = pd.DataFrame({"user": users, "item": [1, 2, 3, 4]})
        compared(written(frame, tmp_path / f"mine{number}.csv"))
    bare, recbole = tmp_path / "bare.csv", tmp_path / "recbole.inter"
    rows(4)[["item", "timestamp", "user"]].to_csv(bare, index=False, header=False, sep=";")
    compared(bare, user_col=2, item_col=0, time_col=1)
    recbole.write_text('user_id:token\titem_id:token\n"a"\tx\n"a"\ty\nb"\tx\nb"\tz\n')
    compared(recbole)


def test_optional_columns_that_hold_something_else_are_left_out_with_a_note(tmp_path):
    frame = rows(0).assign(rating="good", timestamp="01/02/2024")
    path = written(frame, tmp_path / "mine.csv")
    found = made(path, tmp_path / "out")
    assert found.train.weights is None
    assert found.train.timestamps is None
    assert sum("column was left out" in note for note in found.notes) == 2
    for role, column in (("rating", "rating"), ("time", "timestamp")):
        with pytest.raises(DataError, match="repair"):
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
    with pytest.raises(DataError, match="altered"):
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


# --- errors ---------------------------------------------------------------------------------


def csv(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(source: object, folder: Path, word: str, kind: type = DataError, **options) -> None:
    """Prepare into a folder that holds its sources, which must fail and leave nothing."""
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(kind, match=word):
        prepare(source, folder / "out", **{"memory": MEMORY, **options})
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a,b\n1,2\n", "no user column"),
        ("user,b\n1,2\n", "no item column"),
        ("user,item\n1,2\n,3\n4,\n", "1 rows have no user id"),
        ("user,item\n1,2\n3,nan\n", "1 rows have no item id"),
        ("user,item\n1,2\n1,2,3\n", "cannot be read"),
        ("user,item,x\n1,2,3\n1\n", "cannot be read"),
        ("user,item\n", "no rows"),
        ("", "empty"),
        ("user,item\n" + "x" * 5000 + ",1\n", "longer than 1000 characters"),
        ("user,item\na\x07b,1\n", "control characters"),
        ("user,item\n" + "x" * 3_000_000 + ",1\n", "cannot be read|line"),
        ("x" * 3_000_000, "a line is longer than"),
        ('user,item\n"a,1\nb,2\n', "cannot be read|control characters"),
        (",".join(["user", "item", *("x" * 10_000)]) + "\n1,2\n", "10,002 columns"),
        ("us\udcffer,item\n1,2\n", "UTF-8"),
        ("user,item\n\udcff\udcfe,2\n", "cannot be read"),
    ],
    ids=range(16),
)
def test_a_text_that_is_not_a_table_is_refused(text, word, tmp_path):
    (tmp_path / "bad.csv").write_bytes(text.encode(errors="surrogateescape"))
    refused(tmp_path / "bad.csv", tmp_path, word)


GOOD = pd.DataFrame({"user": [1, 2], "item": [1, 2]})


@pytest.mark.parametrize(
    ("second", "word"),
    [
        (GOOD.assign(user=["007", "x"]), r"b.parquet has 'user' \(text\)"),
        (GOOD[["user"]], "no item column"),
        (GOOD.assign(rating=1), "same columns of the same types"),
        ("PAR1 no parquet PAR1", "b.parquet: not a readable"),
        ("user,item\n1,2\n", "one kind, got .csv and .parquet"),
    ],
    ids=range(5),
)
def test_files_that_do_not_belong_together_are_refused(second, word, tmp_path):
    GOOD.to_parquet(tmp_path / "a.parquet")
    if isinstance(second, pd.DataFrame):
        second.to_parquet(tmp_path / "b.parquet")
    else:
        csv(tmp_path / ("b.csv" if second.startswith("user") else "b.parquet"), second)
    refused(tmp_path, tmp_path, word)


def test_bad_sources_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, text in (
        ("other/readme.md", "hello"),
        ("odd/a[1].csv", "user,item\n1,2\n"),
        ("packed/a.parquet.gz", "x"),
        ("two/a.csv", "user,item\n1,2\n"),
        ("two/b.csv", "item,user\n1,2\n"),
        ("keys/a=1/a.csv", "user,item\n1,2\n"),
        ("keys/b=1/a.csv", "user,item\n1,2\n"),
    ):
        csv(tmp_path / name, text)
    for source, word in (
        (tmp_path / "empty", "found none"),
        (tmp_path / "other", "it holds 'readme.md'"),
        (tmp_path / "gone", "no such file or folder"),
        (f"{tmp_path}/gone*.csv", "found none"),
        (tmp_path / "odd", "rename it"),
        (tmp_path / "packed", "unpack the file"),
        (tmp_path / "two", "same columns"),
        (tmp_path / "keys", "same keys in the folders"),
        ("/dev/null", "a pipe or a device"),
    ):
        refused(source, tmp_path, word)


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ([1.5, 2.0], "not whole"),
        ([True, False], "bool"),
        ([b"a", b"b"], "binary"),
        (pd.date_range("2024", periods=2), "timestamp"),
    ],
)
def test_ids_of_other_types_are_refused(column, word, tmp_path):
    pd.DataFrame({"user": column, "item": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", tmp_path, word)


@pytest.fixture
def table(tmp_path) -> Path:
    rows(0).to_parquet(tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (dict(shards=0), "shards"),
        (dict(k_core=0), "k-core"),
        (dict(k_core=500), "no pair is left in the 500-core of"),
        (dict(min_rating=99.0), "no rating reaches min_rating = 99; the highest is 5"),
        (dict(test_ratio=0.0), "between 0 and 1"),
        (dict(split="by magic"), "split"),
        (dict(split="time", test_from=60), "test_from"),
        (dict(eval_users=0), "eval_users"),
        (dict(memory=1), "memory must be at least 1.5 GB"),
        (dict(user_col="who"), "no column 'who'"),
        (dict(threads=0), "threads"),
    ],
)
def test_bad_options_are_refused(options, word, table):
    refused(table, table.parent, word, InputError, **options)


def test_a_missing_rating_column_is_an_error(tmp_path):
    GOOD.to_parquet(tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", tmp_path, "needs a rating column", min_rating=3)


def test_existing_files_are_not_overwritten(table):
    (table.parent / "out").mkdir()
    (table.parent / "out" / "mine").write_text("precious")
    for out in (table.parent / "out", table):
        with pytest.raises(InputError, match="exists already"):
            prepare(table, out, memory=MEMORY)
    assert (table.parent / "out" / "mine").read_text() == "precious"
    (table.parent / "free").mkdir()
    prepare(table, table.parent / "free", memory=MEMORY)


def raising(error: BaseException):
    def fails(*_: object) -> None:
        raise error

    return fails


def test_a_disk_that_is_too_small_is_said_before_the_work(table, monkeypatch):
    Usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(9, 9, 1000))
    refused(table, table.parent, "900 rows need about .* GB of disk.*--out", WriteError)


@pytest.mark.parametrize(
    ("error", "arguments", "kind", "word"),
    [
        (OSError, (28, "it failed"), WriteError, r"out cannot be written \(it failed\)"),
        (OSError, (13, "it failed"), WriteError, r"out cannot be written \(it failed\)"),
        (KeyboardInterrupt, (), KeyboardInterrupt, "^$"),
    ],
)
def test_a_failure_leaves_nothing(error, arguments, kind, word, table, monkeypatch):
    monkeypatch.setattr(module, "_write_arrow", raising(error(*arguments)))
    refused(table, table.parent, word, kind)


@pytest.mark.parametrize(
    ("error", "text", "expected", "word"),
    [
        ("OutOfMemoryException", "some reason", InputError, "more with --memory"),
        ("IOException", "some reason", DataError, "cannot be read"),
        ("IOException", "No space left on device", WriteError, "not enough disk"),
        ("OutOfMemoryException", "max_temp_directory_size", WriteError, "not enough disk"),
    ],
)
def test_errors_of_the_engine_say_what_to_do(error, text, expected, word, table, monkeypatch):
    monkeypatch.setattr(Engine, "_number_labels", raising(getattr(duckdb, error)(text)))
    refused(table, table.parent, word, expected)


def test_without_duckdb_it_says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    refused(table, table.parent, r"pip install 'robustcf\[large\]'", InputError)


def test_a_second_prepare_of_the_same_folder_is_refused(table, monkeypatch):
    split_rows, met, folder = module._split, [], table.parent

    def meanwhile(*arguments: object) -> object:
        if not met:
            met.append(True)
            with pytest.raises(InputError, match="another"):
                prepare(table, folder / "out", memory=MEMORY)
            prepare(table, folder / "elsewhere", memory=MEMORY)
        return split_rows(*arguments)

    monkeypatch.setattr(module, "_split", meanwhile)
    prepare(table, folder / "out", memory=MEMORY)
    assert sorted(path.name for path in folder.iterdir()) == ["a.parquet", "elsewhere", "out"]
    same(load(folder / "out"), load(folder / "elsewhere"))


def test_labels_that_differ_by_leading_blanks_are_counted(tmp_path):
    text = "user,item\n" + "".join(
        f"{blank}u{n},{n + len(blank)}\n" for n in range(5) for blank in ("", " ")
    )
    (tmp_path / "a.csv").write_text(text)
    expected, found = compared(tmp_path / "a.csv")
    for split in (expected, found):
        assert split.n_users == 5
        told = "a.csv: leading blanks of 5 user cells dropped; 5 labels became equal"
        assert split.notes[0].startswith(told)
    quoted = text.replace(" u3", '" u3"')
    (tmp_path / "b.csv").write_text(quoted)
    assert load(tmp_path / "b.csv").n_users == 6
    assert "5 labels" in made(tmp_path / "b.csv", tmp_path / "b").notes[0]
