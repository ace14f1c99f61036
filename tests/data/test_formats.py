"""Own tables: every format, any labels, and every way they can be wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

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


def test_parquet(tmp_path):
    frame = pd.DataFrame(ROWS, columns=["uid", "asin"])
    frame.to_parquet(tmp_path / "a.parquet")
    assert everything(load(tmp_path / "a.parquet")) == set(ROWS)


def test_adjacency_text_and_its_gz(tmp_path):
    for name in ("a.txt", "b.txt.gz"):
        split = load(write(tmp_path / name, "10 4 6 8\n3 4 8\n"))
        assert everything(split) == {(10, 4), (10, 6), (10, 8), (3, 4), (3, 8)}


def test_columns_by_name_and_by_number(tmp_path):
    text = "when,who,what\n1,a,x\n2,a,y\n3,b,x\n"
    split = load(write(tmp_path / "a.csv", text), user_col="who", item_col="WHAT", time_col="when")
    assert everything(split) == {("a", "x"), ("a", "y"), ("b", "x")}
    assert split.train_full.union(split.test).timestamps.tolist() == [1, 2, 3]
    bare = write(tmp_path / "b.csv", "1,a,x\n2,a,y\n3,b,x\n")
    assert everything(load(bare, user_col=1, item_col=2)) == everything(split)
    assert everything(load(bare, user_col="1", item_col="2")) == everything(split)


def test_double_colon_files_as_movielens_has_them(tmp_path):
    path = write(tmp_path / "ratings.dat", "1::10::5::100\n1::11::2::101\n2::10::4::102\n")
    assert everything(load(path)) == {(1, 10), (1, 11), (2, 10)}
    good = load(path, rating_col=2, min_rating=4)
    assert everything(good) == {(1, 10), (2, 10)}


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
    path = write(tmp_path / "a.csv", "User-ID;ISBN;Book-Rating\n1;007;5\n1;008;9\n")
    split = load(path)
    assert split.item_labels.tolist() == ["007", "008"]
    assert split.train.union(split.test).weights.tolist() == [5, 9]


def test_blanks_behind_commas_are_no_part_of_labels(tmp_path):
    assert load(write(tmp_path / "a.csv", "user, item\na, 1\na, 2\n")).item_labels.tolist() == [
        1,
        2,
    ]


def test_quotes_are_characters_where_nobody_quotes(tmp_path):
    path = write(tmp_path / "a.inter", 'user_id:token\titem_id:token\na\t"Heroes\na\tx"\n')
    assert load(path).item_labels.tolist() == ['"Heroes', 'x"']


def test_a_byte_order_mark_in_a_header_is_passed_over(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufeffuser,item\na,1\na,2\n".encode())
    assert load(tmp_path / "a.csv").user_labels.tolist() == ["a"]


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


def test_movielens_dat_files_have_their_times(tmp_path):
    path = write(tmp_path / "ratings.dat", "1::10::5::100\n1::11::2::300\n1::12::4::200\n")
    split = load(path, split="leave-one-out")
    assert split.item_labels[split.test.items].tolist() == [11]
    assert split.test.weights.tolist() == [2]


def test_parquet_in_odd_shapes(tmp_path):
    big = pd.DataFrame({"user": np.array([2**64 - 1, 5], np.uint64), "item": [1, 2]})
    big.to_parquet(tmp_path / "big.parquet")
    assert load(tmp_path / "big.parquet").user_labels.tolist() == ["18446744073709551615", "5"]
    pd.DataFrame({"user": [1e20, 3.0], "item": [1, 2]}).to_parquet(tmp_path / "f.parquet")
    assert load(tmp_path / "f.parquet").user_labels.tolist() == ["1e+20", "3.0"]
    ids = [bytes(range(16)), b"\xff" * 16]
    pd.DataFrame({"user": ids, "item": [b"x", b"y"]}).to_parquet(tmp_path / "b.parquet")
    split = load(tmp_path / "b.parquet")
    assert split.user_labels.tolist() == [ids[0].hex(), "ff" * 16]
    assert split.item_labels.tolist() == ["x", "y"]
    indexed = pd.DataFrame({"user": ["a", "a"], "item": [1, 2]}).set_index("user")
    indexed.to_parquet(tmp_path / "i.parquet")
    assert load(tmp_path / "i.parquet").user_labels.tolist() == ["a"]
    (tmp_path / "z.parquet.gz").write_bytes(gzip.compress((tmp_path / "i.parquet").read_bytes()))
    assert load(tmp_path / "z.parquet.gz").n_interactions == 2


def test_labels_with_control_characters_are_refused(tmp_path):
    pd.DataFrame({"user": ["a", "a\0"], "item": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="control characters"):
        load(tmp_path / "a.parquet")


def test_adjacency_ids_may_be_large(tmp_path):
    split = load(write(tmp_path / "a.txt", "99999999999 5 6\n"))
    assert split.user_labels.tolist() == [99999999999]


@pytest.mark.parametrize(
    "users", [[1.0, 1.0, 2.0], [b"x".decode(), "y", "y"], [True, False, False]]
)
def test_parquet_labels_of_other_types(tmp_path, users):
    pd.DataFrame({"user": users, "item": [1, 2, 3]}).to_parquet(tmp_path / "a.parquet")
    split = load(tmp_path / "a.parquet")
    assert split.user_labels.dtype.kind in "iU"
    assert len(split.user_labels) == 2


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
    text = (
        "user,item,date\na,x,1970-01-02\na,y,1970-01-01 00:00:05\nb,x,1970-01-01T00:00:07+00:00\n"
    )
    split = load(write(tmp_path / "a.csv", text))
    assert split.train_full.union(split.test).timestamps.tolist() == [
        86400_000_000,
        5_000_000,
        7_000_000,
    ]
    frame = pd.DataFrame(
        {"user": ["a", "a"], "item": [1, 2], "time": pd.to_datetime(["2000-01-01", "2000-01-02"])}
    )
    frame.to_parquet(tmp_path / "a.parquet")
    both = load(tmp_path / "a.parquet")
    assert both.train.union(both.test).timestamps.tolist() == [946684800_000_000, 946771200_000_000]


def test_leave_one_out_by_time(tmp_path):
    text = "user,item,ts\na,x,3\na,y,1\na,z,2\nb,x,9\n"
    split = load(write(tmp_path / "a.csv", text), split="leave-one-out")
    assert split.item_labels[split.test.items].tolist() == ["x"]
    assert split.item_labels[split.valid.items].tolist() == ["z"]


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
        ("who,item\na,1\n", {}, "found no user column; its columns are 'who', 'item'.*--user-col"),
        ("user,what\na,1\n", {}, "found no item column"),
        ("1,2\n3,4\n", {}, "found no user column.*numbers from 0 if there is no header"),
        ("user,item\na,1\n", {"user_col": "name"}, "has no column 'name' for the user"),
        ("1,2\n3,4\n", {"user_col": 0, "item_col": 5}, "column 5 was asked for.*has 2 columns"),
        ("user,item\na,1\n,2\n", {}, "1 rows have no user id, the first is data row 2"),
        ("user,item\na,1\nb,nan\n", {}, "1 rows have no item id, the first is data row 2"),
        (
            HEAD + "a,1,good,5\n",
            {"rating_col": "rating"},
            "column 'rating' must hold numbers, got 'good' in data row 1",
        ),
        (HEAD + "a,1,,5\n", {"rating_col": "rating"}, "must hold numbers, got an empty cell"),
        (
            HEAD + "a,1,3,noon\n",
            {"time_col": "time"},
            "column 'time' must hold times, got 'noon' in data row 1",
        ),
        (
            HEAD + "a,1,3,5\n",
            {"min_rating": 4},
            "no rating reaches min_rating = 4; the highest is 3",
        ),
        ("user,item\na,1\n", {"min_rating": 4}, "min_rating = 4 needs a rating column"),
        ("user,item\na,1\nb,2\n", {"k_core": 2}, "no pair is left in the 2-core"),
        ("user,item\na,1\na,2\n", {"test_ratio": 1.5}, "between 0 and 1, got 1.5"),
        ("user,item\na,1\na,2\n", {"test_ratio": 0.0}, "between 0 and 1, got 0"),
        ('user,item\n"a,1\n', {}, "not a readable .csv file"),
        (HEAD + "a,1,3,01/02/2024\n", {"time_col": "time"}, "ISO dates such as"),
        ('user,item\na,"x\nb,y\nc,z"\nd,q\n', {}, "is a quote left open"),
        ("user,item\n" + "a" * 1001 + ",1\n", {}, "longer than 1000 characters"),
        ("user,item\n1,2\n", {"user_col": 0, "item_col": 1}, "looks like one.*give the names"),
        ("0,1\n1,2\n", {"user_col": 0, "item_col": 1}, "looks like one"),
        (HEAD + "a,1,x,5\n", {"min_rating": 3}, "needs a rating column"),
    ],
)
def test_bad_tables_are_refused_with_a_reason(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message) as failure:
        load(write(tmp_path / "a.csv", text), **options)
    assert "\n" not in str(failure.value)


def test_bad_files_are_refused_with_a_reason(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(DataError, match=r"cannot tell how to read it.*\.parquet"):
        load(tmp_path / "a.xlsx")
    (tmp_path / "a.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match="readable"):
        load(tmp_path / "a.parquet")
    (tmp_path / "a.csv.gz").write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match="not a readable .csv file"):
        load(tmp_path / "a.csv.gz")
    spoilt = bytearray(gzip.compress(b"0 1 2\n" * 100))
    spoilt[14] ^= 0xFF
    for data in (b"not gzip at all", bytes(spoilt), bytes(spoilt[:20])):
        (tmp_path / "a.txt.gz").write_bytes(data)
        with pytest.raises(DataError, match="not a readable"):
            load(tmp_path / "a.txt.gz")
    (tmp_path / "a.csv").write_bytes(b"user,item\n\xff\xfe,1\n")
    with pytest.raises(DataError, match="not a readable .csv file"):
        load(tmp_path / "a.csv")
    with pytest.raises(DataError, match="no data set or file is called"):
        load(tmp_path / "absent.csv")


def test_bad_combinations_of_given_files(tmp_path):
    train = write(tmp_path / "train.csv", "user,item\na,1\na,2\nb,1\n")
    test = write(tmp_path / "test.csv", "user,item\na,2\n")
    with pytest.raises(DataError, match="1 pairs are in both train and test.*'a', item 2"):
        load(train, test_file=test, valid_file=write(tmp_path / "v.csv", "user,item\nb,2\n"))
    with pytest.raises(DataError, match="valid_file needs test_file"):
        load(train, valid_file=test)
    with pytest.raises(DataError, match="k_core, split, test_ratio cannot be combined"):
        load(train, test_file=test, k_core=2, split="random", test_ratio=0.2)
    with pytest.raises(DataError, match="valid_ratio cannot be combined"):
        load(train, test_file=test, valid_file=test, valid_ratio=0.2)
    with pytest.raises(DataError, match="between 0 and 1, got 0.0"):
        load(train, test_file=test, valid_ratio=0.0)
    with pytest.raises(DataError, match="no such file .given for test"):
        load(train, test_file=tmp_path / "absent.csv")


def test_weights_are_the_ratings(tmp_path):
    text = "user,item,rating\na,1,2.5\na,2,4\n"
    split = load(write(tmp_path / "a.csv", text))
    np.testing.assert_array_equal(split.train.union(split.test).weights, [2.5, 4.0])


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
def test_blanks_in_front_of_a_label(
    tmp_path: Path, cell: str, labels: list[str], noted: bool
) -> None:
    """Unquoted they are a matter of style; where that makes two labels one, a note says so."""
    others = "".join(f"i{item},q{user}\n" for user in range(4) for item in range(4))
    (tmp_path / "x.csv").write_text(f"item,user\ni1,{cell}\ni2,1\n{others}")
    split = load(tmp_path / "x.csv")
    assert [label for label in split.user_labels.tolist() if "q" not in label] == labels
    assert any("blank" in note for note in split.notes) == noted


def test_blanks_behind_every_comma_are_not_noted(tmp_path: Path) -> None:
    rows = "".join(f"q{user}, i{item}\n" for user in range(4) for item in range(4))
    (tmp_path / "x.csv").write_text("user, item\n" + rows)
    split = load(tmp_path / "x.csv")
    assert split.item_labels.tolist() == ["i0", "i1", "i2", "i3"]
    assert split.notes == ()


def test_labels_at_the_beginning_of_lines_and_many_blanks_are_counted(tmp_path: Path) -> None:
    rows = "".join(f"{' ' * (item % 2)}q{user},i{item}\n" for user in range(4) for item in range(4))
    (tmp_path / "x.csv").write_text("user,item\n" + rows)
    split = load(tmp_path / "x.csv")
    assert split.user_labels.tolist() == ["q0", "q1", "q2", "q3"]
    (note,) = split.notes
    assert "8 user cells" in note
    assert "4 labels" in note
