"""Own tables: every format, any labels, and every way they can be wrong."""

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
    assert "a.csv: 1 repeated pairs dropped" in split.notes
    assert everything(split) == {("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")}
    liked = load(path, min_rating=4)
    assert everything(liked) == {("a", "y"), ("b", "x"), ("b", "y")}
    assert "a.csv: 1 pairs rated below 4 dropped" in liked.notes


def test_dates_are_seconds(tmp_path):
    text = (
        "user,item,date\na,x,1970-01-02\na,y,1970-01-01 00:00:05\nb,x,1970-01-01T00:00:07+00:00\n"
    )
    split = load(write(tmp_path / "a.csv", text))
    assert split.train_full.union(split.test).timestamps.tolist() == [86400, 5, 7]
    frame = pd.DataFrame(
        {"user": ["a", "a"], "item": [1, 2], "time": pd.to_datetime(["2000-01-01", "2000-01-02"])}
    )
    frame.to_parquet(tmp_path / "a.parquet")
    both = load(tmp_path / "a.parquet")
    assert both.train.union(both.test).timestamps.tolist() == [946684800, 946771200]


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
        (HEAD + "a,1,good,5\n", {}, "column 'rating' must hold numbers, got 'good' in data row 1"),
        (HEAD + "a,1,,5\n", {}, "column 'rating' must hold numbers"),
        (HEAD + "a,1,3,noon\n", {}, "column 'time' must hold times, got 'noon' in data row 1"),
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
    with pytest.raises(DataError, match="not a readable .parquet file"):
        load(tmp_path / "a.parquet")
    (tmp_path / "a.csv.gz").write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match="not a readable .csv file"):
        load(tmp_path / "a.csv.gz")
    (tmp_path / "a.txt.gz").write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match="not a readable gzip file"):
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
    with pytest.raises(DataError, match="k_core cannot be combined"):
        load(train, test_file=test, k_core=2)
    with pytest.raises(DataError, match="no such file .given for test"):
        load(train, test_file=tmp_path / "absent.csv")


def test_weights_are_the_ratings(tmp_path):
    text = "user,item,rating\na,1,2.5\na,2,4\n"
    split = load(write(tmp_path / "a.csv", text))
    np.testing.assert_array_equal(split.train.union(split.test).weights, [2.5, 4.0])
