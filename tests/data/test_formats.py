"""Own tables: every format, any labels, and errors."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from robustcf.data import load
from robustcf.errors import DataError


def write(path, text: str):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def everything(split):
    """All pairs by label, as a set."""
    pairs = split.train.union(split.valid).union(split.test)
    users, items = split.user_labels[pairs.users], split.item_labels[pairs.items]
    return set(zip(users.tolist(), items.tolist(), strict=True))


ROWS = [("ann", 7), ("ann", 3), ("ann", 5), ("bob", 7), ("bob", 3), ("cy", 9)]


@pytest.mark.parametrize(
    ("name", "header", "separator"),
    [
        ("a.csv", "user_id,item_id", ","),
        ("a.csv.gz", "userId,movieId", ","),
        ("a.CSV", "User,Item", ","),
        ("a.tsv", "user\titem", "\t"),
        ("a.inter", "user_id:token\titem_id:token", "\t"),
        ("a.inter.gz", "user_id:token\titem_id:token", "\t"),
    ],
)
def test_text_tables_of_every_kind_give_the_same_pairs(tmp_path, name, header, separator):
    lines = [header, *(f"{user}{separator}{item}" for user, item in ROWS)]
    split = load(write(tmp_path / name, "\n".join(lines) + "\n"))
    assert everything(split) == set(ROWS)
    assert split.user_labels.tolist() == ["ann", "bob", "cy"]
    assert split.item_labels.tolist() == [3, 5, 7, 9]
    assert split.name == name


def test_parquet_and_adjacency_text(tmp_path):
    pd.DataFrame(ROWS, columns=["uid", "asin"]).to_parquet(tmp_path / "a.parquet")
    assert everything(load(tmp_path / "a.parquet")) == set(ROWS)
    for name in ("a.txt", "b.txt.gz"):
        split = load(write(tmp_path / name, "10 4 6 8\n99999999999 4 8\n"))
        assert everything(split) == {(10, 4), (10, 6), (10, 8), (99999999999, 4), (99999999999, 8)}


def test_columns_by_name_and_by_number(tmp_path):
    text = "when,who,what\n1,a,x\n2,a,y\n3,b,x\n"
    split = load(write(tmp_path / "a.csv", text), user_col="who", item_col="WHAT", time_col="when")
    assert everything(split) == {("a", "x"), ("a", "y"), ("b", "x")}
    assert split.train_full.union(split.test).timestamps.tolist() == [1, 2, 3]
    bare = write(tmp_path / "b.csv", "1,a,x\n2,a,y\n3,b,x\n")
    assert everything(load(bare, user_col=1, item_col=2)) == everything(split)
    assert everything(load(bare, user_col="1", item_col="2")) == everything(split)


def test_movielens_dat_files(tmp_path):
    path = write(tmp_path / "a.dat", "1::10::5::100\n1::11::2::300\n1::12::4::200\n2::10::4::1\n")
    assert everything(load(path)) == {(1, 10), (1, 11), (1, 12), (2, 10)}
    good = load(path, rating_col=2, min_rating=4)
    assert everything(good) == {(1, 10), (1, 12), (2, 10)}
    latest = load(path, split="leave-one-out").test
    assert latest.item_labels[latest.items].tolist() == [11]
    assert latest.weights.tolist() == [2]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["007", "7", "8"], ["007", "7", "8"]),
        (["10", "9", "-3"], [-3, 9, 10]),
        (["1e3", "2", "3"], ["1e3", "2", "3"]),
        (["NA", "null", "None"], ["NA", "None", "null"]),
        (["é", "日本", "a b"], ["a b", "é", "日本"]),
        (["99999999999999999999", "1", "2"], ["1", "2", "99999999999999999999"]),
    ],
)
def test_no_label_is_changed_by_being_read(tmp_path, labels, expected):
    text = "user,item\n" + "".join(
        f"{label},{n}\n{label},{n + 1}\n" for n, label in enumerate(labels)
    )
    assert load(write(tmp_path / "a.csv", text)).user_labels.tolist() == expected


def test_names_are_found_without_case_blanks_and_punctuation(tmp_path):
    split = load(write(tmp_path / "a.csv", "User-ID;ISBN;Book-Rating\n1;007;5\n1;008;9\n"))
    assert split.item_labels.tolist() == ["007", "008"]
    assert split.train.union(split.test).weights.tolist() == [5, 9]


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("a.csv", "user, item\na, 1\na, 2\n", [1, 2]),
        # In RecBole's files, quotes are characters.
        ("a.inter", 'user_id:token\titem_id:token\na\t"Heroes\na\tx"\n', ['"Heroes', 'x"']),
        ("a.csv", "\ufeffuser,item\na,1\na,2\n", [1, 2]),
    ],
)
def test_blanks_quotes_and_marks_are_read_as_meant(tmp_path, name, text, labels):
    assert load(write(tmp_path / name, text)).item_labels.tolist() == labels


def test_optional_columns_that_are_spoilt_are_left_out_and_said(tmp_path):
    path = write(tmp_path / "a.csv", "user,item,rating,time\na,1,,5\na,2,3,noon\n")
    split = load(path)
    assert split.train.weights is None
    assert split.train.timestamps is None
    assert "the rating column was left out" in split.notes[0]
    assert "got an empty cell in data row 1" in split.notes[0]
    assert "got 'noon' in data row 2" in split.notes[1]


def test_times_keep_their_order_whatever_their_unit(tmp_path):
    nano = 1_700_000_000_000_000_000
    text = "user,item,ts\n" + "".join(f"a,{n},{nano + n}\n" for n in range(9))
    split = load(write(tmp_path / "a.csv", text), split="leave-one-out")
    assert split.item_labels[split.test.items].tolist() == [8]
    assert split.test.timestamps.tolist() == [nano + 8]
    text = "user,item,ts\na,1,5.1\na,2,5.9\na,3,5.5\n"
    split = load(write(tmp_path / "b.csv", text), split="leave-one-out")
    assert split.item_labels[split.test.items].tolist() == [2]
    stamps = pd.to_datetime(["2024-01-01 00:00:00.000002", "2024-01-01 00:00:00.000001"])
    pd.DataFrame({"user": ["a", "a"], "item": [1, 2], "time": stamps}).to_parquet(
        tmp_path / "c.parquet"
    )
    split = load(tmp_path / "c.parquet", split="leave-one-out")
    assert split.item_labels[split.test.items].tolist() == [1]


@pytest.mark.parametrize(
    ("users", "labels"),
    [
        (np.array([2**64 - 1, 5], np.uint64), ["18446744073709551615", "5"]),
        ([1e20, 3.0], ["1e+20", "3.0"]),
        ([1.0, 2.0], [1, 2]),
        ([bytes(range(16)), b"\xff" * 16], [bytes(range(16)).hex(), "ff" * 16]),
        ([b"x", b"y"], ["x", "y"]),
        ([True, False], ["False", "True"]),
    ],
    ids=str,
)
def test_parquet_labels_of_other_types(tmp_path, users, labels):
    pd.DataFrame({"user": users, "item": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet").user_labels.tolist() == labels


def test_an_index_of_pandas_is_a_column_and_parquet_may_be_packed(tmp_path):
    indexed = pd.DataFrame({"user": ["a", "a"], "item": [1, 2]}).set_index("user")
    indexed.to_parquet(tmp_path / "i.parquet")
    (tmp_path / "z.parquet.gz").write_bytes(gzip.compress((tmp_path / "i.parquet").read_bytes()))
    for name in ("i.parquet", "z.parquet.gz"):
        assert load(tmp_path / name).user_labels.tolist() == ["a"]


def test_repeats_are_dropped_counted_and_said_and_the_latest_rating_counts(tmp_path):
    text = "user,item,rating,timestamp\na,x,5,10\na,x,1,20\na,y,4,5\nb,x,5,5\nb,y,5,5\n"
    path = write(tmp_path / "a.csv", text)
    split = load(path)
    assert "a.csv: 1 repeated pair dropped" in split.notes
    assert everything(split) == {("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")}
    liked = load(path, min_rating=4)
    assert everything(liked) == {("a", "y"), ("b", "x"), ("b", "y")}
    assert "a.csv: 1 pair rated below 4 dropped" in liked.notes


def test_dates_are_microseconds(tmp_path):
    dates = ["1970-01-02", "1970-01-01 00:00:05", "1970-01-01T00:00:07+00:00"]
    text = "user,item,date\n" + "".join(f"a,{n},{date}\n" for n, date in enumerate(dates))
    split = load(write(tmp_path / "a.csv", text))
    seconds = split.train_full.union(split.test).timestamps / 1e6
    assert seconds.tolist() == [86400, 5, 7]
    times = pd.to_datetime(["2000-01-01", "2000-01-02"])
    frame = pd.DataFrame({"user": ["a", "a"], "item": [1, 2], "time": times})
    frame.to_parquet(tmp_path / "a.parquet")
    both = load(tmp_path / "a.parquet")
    assert both.train.union(both.test).timestamps.tolist() == [946684800_000_000, 946771200_000_000]


def test_k_core_says_what_it_did(tmp_path):
    text = "user,item\na,x\na,y\nb,x\nb,y\nc,z\n"
    split = load(write(tmp_path / "a.csv", text), k_core=2)
    assert split.user_labels.tolist() == ["a", "b"]
    assert any(note.startswith("2-core") for note in split.notes)


def test_given_files_share_their_labels(tmp_path):
    train = write(tmp_path / "train.csv", "user,item\na,1\na,2\nb,1\nb,2\n")
    valid = write(tmp_path / "valid.csv", "user,item\na,3\n")
    test = write(tmp_path / "test.csv", "user,item\nb,4\nnew,1\n")
    split = load(train, valid_file=valid, test_file=test)
    assert split.valid_source == "published"
    assert split.user_labels.tolist() == ["a", "b", "new"]
    assert split.item_labels.tolist() == [1, 2, 3, 4]
    assert split.test.users.tolist() == [1, 2]
    assert set(split.sources) == {"train.csv", "valid.csv", "test.csv"}
    carved = load(train, test_file=test)
    assert carved.valid_source == "carved"
    assert len(carved.train) == len(carved.valid) == 2
    assert "1 users and 1 items are not in train, only in the other files" in carved.notes
    assert "1 users and 2 items are not in train, only in the other files" in split.notes
    half = load(write(tmp_path / "t.csv", "user,item\n" + "a,%d\n" * 8 % (*range(10, 18),)),
                test_file=test, valid_ratio=0.5)  # fmt: skip
    assert len(half.valid) == 4


def test_labels_that_are_numbers_in_one_file_and_text_in_another(tmp_path):
    train = write(tmp_path / "train.csv", "user,item\n1,1\n1,2\n2,1\n")
    test = write(tmp_path / "test.csv", "user,item\nx,1\n")
    assert load(train, test_file=test).user_labels.tolist() == ["1", "2", "x"]


HEAD = "user,item,rating,time\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the file is empty"),
        ("user,item\n", {}, "the file has no rows"),
        ("who,item\na,1\n", {}, "no user column; its columns are 'who', 'item'"),
        ("user,what\na,1\n", {}, "no item column"),
        ("1,2\n3,4\n", {}, "no user column"),
        ("user,item\na,1\n", {"user_col": "name"}, "no column 'name'"),
        ("1,2\n3,4\n", {"user_col": 0, "item_col": 5}, "column 5"),
        ("user,item\na,1\n,2\n", {}, "no user id.*data row 2"),
        ("user,item\na,1\nb,nan\n", {}, "no item id.*data row 2"),
        (HEAD + "a,1,good,5\n", {"rating_col": "rating"}, "'good' in data row 1"),
        (HEAD + "a,1,,5\n", {"rating_col": "rating"}, "an empty cell"),
        (HEAD + "a,1,3,noon\n", {"time_col": "time"}, "'noon' in data row 1"),
        (HEAD + "a,1,3,5\n", {"min_rating": 4}, "the highest is 3"),
        ("user,item\na,1\n", {"min_rating": 4}, "needs a rating column"),
        ("user,item\na,1\nb,2\n", {"k_core": 2}, "no pair is left in the 2-core"),
        ("user,item\na,1\na,2\n", {"test_ratio": 1.5}, "between 0 and 1"),
        ("user,item\na,1\na,2\n", {"test_ratio": 0.0}, "between 0 and 1"),
        ('user,item\n"a,1\n', {}, "not a readable .csv file"),
        (HEAD + "a,1,3,01/02/2024\n", {"time_col": "time"}, "ISO dates such as"),
        ('user,item\na,"x\nb,y\nc,z"\nd,q\n', {}, "is a quote left open"),
        ("user,item\n" + "a" * 1001 + ",1\n", {}, "longer than 1000 characters"),
        ("user,item\n1,2\n", {"user_col": 0, "item_col": 1}, "looks like one"),
        ("0,1\n1,2\n", {"user_col": 0, "item_col": 1}, "looks like one"),
        (HEAD + "a,1,x,5\n", {"min_rating": 3}, "needs a rating column"),
    ],
)
def test_bad_tables_are_refused_with_a_reason(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message) as failure:
        load(write(tmp_path / "a.csv", text), **options)
    assert "\n" not in str(failure.value)


SPOILT = bytearray(gzip.compress(b"0 1 2\n" * 100, mtime=0))
SPOILT[14] ^= 0xFF


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.xlsx", b"x", "cannot tell how to read it"),
        ("a.parquet", b"not parquet at all", "readable"),
        ("a.csv.gz", b"not gzip at all", "readable"),
        ("a.txt.gz", b"not gzip at all", "readable"),
        ("a.txt.gz", bytes(SPOILT), "readable"),
        ("a.txt.gz", bytes(SPOILT[:20]), "readable"),
        ("a.csv", b"user,item\n\xff\xfe,1\n", "readable"),
    ],
)
def test_bad_files_are_refused_with_a_reason(tmp_path, name, content, word):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=word):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (dict(test_file="test.csv", valid_file="v.csv"), "both train and test.*'a', item 2"),
        (dict(valid_file="test.csv"), "valid_file needs test_file"),
        (
            dict(test_file="test.csv", k_core=2, split="random", test_ratio=0.2),
            "k_core, split, test_ratio cannot be combined",
        ),
        (
            dict(test_file="test.csv", valid_file="v.csv", valid_ratio=0.2),
            "valid_ratio cannot be combined",
        ),
        (dict(test_file="test.csv", valid_ratio=0.0), "between 0 and 1"),
        (dict(test_file="absent.csv"), "given for test"),
    ],
)
def test_bad_combinations_of_given_files(tmp_path, monkeypatch, options, word):
    monkeypatch.chdir(tmp_path)
    for name, text in (("train", "a,1\na,2\nb,1\n"), ("test", "a,2\n"), ("v", "b,2\n")):
        write(tmp_path / f"{name}.csv", f"user,item\n{text}")
    with pytest.raises(DataError, match=word):
        load("train.csv", **options)


@pytest.mark.parametrize(
    ("cell", "labels", "noted"),
    [
        ("1", ["1"], False),
        (" 1", ["1"], True),
        ("  1", ["1"], True),
        ('" 1"', [" 1", "1"], False),
        (' " 1"', [" 1", "1"], False),
        (' "1"', ["1"], False),
        ("1 ", ["1", "1 "], False),
    ],
)
def test_blanks_in_front_of_a_label(tmp_path, cell, labels, noted):
    """Unquoted blanks are dropped; a note is made where that merges two labels."""
    others = "".join(f"i{item},q{user}\n" for user in range(4) for item in range(4))
    (tmp_path / "x.csv").write_text(f"item,user\ni1,{cell}\ni2,1\n{others}")
    split = load(tmp_path / "x.csv")
    assert [label for label in split.user_labels.tolist() if "q" not in label] == labels
    assert any("blank" in note for note in split.notes) == noted


def test_blanks_behind_every_comma_are_not_noted_and_merged_labels_are_counted(tmp_path):
    cells = [(user, item) for user in range(4) for item in range(4)]
    style = "user, item\n" + "".join(f"q{user}, i{item}\n" for user, item in cells)
    split = load(write(tmp_path / "x.csv", style))
    assert split.item_labels.tolist() == ["i0", "i1", "i2", "i3"]
    assert split.notes == ()
    merged = "user,item\n" + "".join(f"{' ' * (item % 2)}q{user},i{item}\n" for user, item in cells)
    split = load(write(tmp_path / "x.csv", merged))
    assert split.user_labels.tolist() == ["q0", "q1", "q2", "q3"]
    (note,) = split.notes
    assert "8 user cells" in note
    assert "4 labels" in note
