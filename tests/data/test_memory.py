"""Data in memory: load makes the same split of a frame and of a file with its rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from robustcf.data import Interactions, Split, load, split_pairs
from robustcf.errors import DataError
from tests.data.toy import rows, same


def polars(frame: pd.DataFrame):
    return pytest.importorskip("polars").DataFrame(frame.to_dict("list"))


def duckdb(frame: pd.DataFrame):
    return pytest.importorskip("duckdb").sql("SELECT * FROM frame")


def only(method: str):
    """Tables with one method of Arrow's: the interchange protocol, or the PyCapsule interface."""

    def of(frame: pd.DataFrame):
        table = pa.Table.from_pandas(frame)
        call = {method: lambda self, *args, **kwargs: getattr(table, method)(*args, **kwargs)}
        return type("Only", (), call)()

    return of


FORMS = {
    "pandas": lambda frame: frame,
    "pandas, any index": lambda frame: frame.set_axis([7] * len(frame)),
    "pandas, arrow types": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "pandas, nullable types": lambda frame: frame.convert_dtypes(),
    "pandas, objects": lambda frame: frame.astype(object),
    "pandas, categories": lambda frame: frame.astype({"user": "category", "item": "category"}),
    "arrow": pa.Table.from_pandas,
    "arrow reader": lambda frame: pa.Table.from_pandas(frame).to_reader(max_chunksize=100),
    "capsule": only("__arrow_c_stream__"),
    "interchange": only("__dataframe__"),
    "polars": polars,
    "duckdb": duckdb,
}
CASES = [
    dict(),
    dict(min_rating=2.5, k_core=3, seed=7),
    dict(split="leave-one-out", seed=3),
    dict(test_ratio=0.3, valid_ratio=0.2, seed=11),
    dict(split="time"),
    dict(split="time", test_from=50, valid_from="41", k_core=2),
    dict(user_col="item", item_col="USER", rating_col="timestamp", time_col="rating", eval_users=9),
]


@pytest.mark.parametrize("labels", ["text", "numbers"])
@pytest.mark.parametrize(
    ("form", "case"),
    [(form, case) for form in FORMS for case in (CASES if form == "pandas" else CASES[1::4])],
    ids=str,
)
def test_a_frame_is_split_as_its_file(form, labels, case, tmp_path):
    frame = rows(labels=labels)
    before = frame.copy()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = load(tmp_path / "rows.csv", cache=False, name="own data", **case)
    found = load(FORMS[form](frame), **case)
    same(expected, found)
    assert found.name == "own data"
    told = [note.replace("rows.csv", "own data") for note in expected.notes]
    assert list(found.notes) == told
    assert dict(found.sources) == {}
    pd.testing.assert_frame_equal(frame, before)


def test_text_stays_text_and_numbers_stay_numbers():
    split = load(pd.DataFrame({"user": ["10", "9", "10"], "item": [10, 9, 9]}), name="shop")
    assert split.name == "shop"
    assert split.user_labels.tolist() == ["10", "9"], "in a file they would be numbers"
    assert split.item_labels.tolist() == [9, 10]
    assert split.item_labels.dtype == np.int64


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.array([3, 1, 2], dtype=np.int8), [1, 2, 3]),
        (np.array([3, 1, 2], dtype=np.uint64), [1, 2, 3]),
        ([3.0, 1.0, 2.0], [1, 2, 3]),
        (pd.array([3, 1, 2], dtype="Int64"), [1, 2, 3]),
        (pd.array([3.0, 1.0, 2.0], dtype="Float64"), [1, 2, 3]),
        (pd.Series([3, 1, 2], dtype=object), [1, 2, 3]),
        (pd.Series([3, 1.0, np.int64(2)], dtype=object), [1, 2, 3]),
        (pd.Categorical([3, 1, 2], categories=[9, 3, 2, 1]), [1, 2, 3]),
        (pd.Categorical(["c", "a", "b"], categories=["z", "c", "b", "a"]), ["a", "b", "c"]),
        (pd.array(["c", "a", "b"], dtype="string"), ["a", "b", "c"]),
        (pd.array(["c", "a", "b"], dtype="string[pyarrow]"), ["a", "b", "c"]),
        (pd.Series(["007", "7", "1e3"], dtype=object), ["007", "1e3", "7"]),
        (pd.Series([b"c", b"a", b"b"], dtype=object), ["a", "b", "c"]),
        (np.array([2**64 - 1, 1, 2], dtype=np.uint64), ["1", "18446744073709551615", "2"]),
        ([2**70, 1, 2], ["1", "1180591620717411303424", "2"]),
    ],
    ids=str,
)
def test_labels_of_every_type(column, expected):
    split = load(pd.DataFrame({"user": column, "item": [1, 1, 1]}))
    assert split.user_labels.tolist() == expected


DAYS = [date(2024, 5, 3), date(2024, 5, 1), date(2024, 5, 2), date(2024, 5, 4)]


@pytest.mark.parametrize(
    "times",
    [
        pd.to_datetime(DAYS),
        pd.to_datetime(DAYS).as_unit("ns"),
        pd.to_datetime(DAYS).tz_localize("Europe/Berlin"),
        pd.Series(DAYS, dtype=object),
        pd.Series(DAYS, dtype=pd.ArrowDtype(pa.date32())),
        pd.Series(pd.to_datetime(DAYS)).astype(pd.ArrowDtype(pa.timestamp("ms"))),
        pd.Series([str(day) for day in DAYS]),
        pd.Series([str(day) for day in DAYS], dtype="category"),
        pd.Series([f"{day}T12:00:00Z" for day in DAYS], dtype="string"),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["pandas", "arrow"])
def test_dates_cut_in_time(form, times):
    frame = pd.DataFrame({"user": ["a", "a", "b", "b"], "item": [3, 1, 2, 4], "time": times})
    for cut in (
        "2024-05-03T18:00",
        "2024-05-03 20:00+02:00",
        datetime(2024, 5, 3, 18),
        datetime(2024, 5, 3, 18, tzinfo=UTC),
        np.datetime64("2024-05-03T18"),
        pd.Timestamp("2024-05-03 18:00"),
    ):
        split = load(FORMS[form](frame), split="time", test_from=cut, valid_from="2024-05-01 18:00")
        assert split.item_labels[split.test.items].tolist() == [4]
        assert split.item_labels[split.valid.items].tolist() == [3, 2]
        assert split.notes[0].endswith("test from 2024-05-03T18:00:00")
    with pytest.raises(DataError, match="date"):
        load(frame, split="time", test_from=1714521600)


def test_polars_types():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "user": pl.Series(["b", "a", "b", "c"], dtype=pl.Categorical),
            "item": pl.Series(["x", "y", "z", "x"], dtype=pl.Enum(["z", "y", "x"])),
            "date": [datetime(2024, 5, day) for day in (1, 2, 3, 4)],
            "tags": [["a"], [], ["b"], []],
        }
    )
    split = load(frame, split="time", test_from="2024-05-04")
    assert split.user_labels.tolist() == ["a", "b", "c"]
    assert split.item_labels.tolist() == ["x", "y", "z"]
    assert split.test.users.tolist() == [2]
    with pytest.raises(DataError, match="collect"):
        load(frame.lazy())
    with pytest.raises(DataError, match="flatten"):
        load(frame, item_col="tags")


def test_test_and_valid_tables_are_as_files(tmp_path):
    parts = {
        "train": pd.DataFrame({"user": ["a", "a", "b", "b"], "item": [1, 2, 1, 2]}),
        "valid": pd.DataFrame({"user": ["a"], "item": [3]}),
        "test": pd.DataFrame({"user": ["b", "new"], "item": [4, 1]}),
    }
    files = {part: tmp_path / f"{part}.csv" for part in parts}
    for part, frame in parts.items():
        frame.to_csv(files[part], index=False)
    expected = load(files["train"], valid_file=files["valid"], test_file=files["test"])
    found = load(parts["train"], valid=parts["valid"], test=pa.Table.from_pandas(parts["test"]))
    same(expected, found)
    assert found.valid_source == "published"
    assert found.notes == expected.notes
    carved = load(parts["train"], test=parts["test"], valid_ratio=0.4, seed=4)
    same(load(files["train"], test_file=files["test"], valid_ratio=0.4, seed=4), carved)


TRAIN = pd.DataFrame({"user": [1, 1, 2], "item": [1, 2, 1]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(valid=TRAIN), "valid needs test"),
        (dict(test=TRAIN, split="time", k_core=2), "k_core, split cannot be combined"),
        (dict(test=TRAIN, valid=TRAIN, valid_ratio=0.2), "valid_ratio cannot be combined"),
        (dict(test=TRAIN), "in both train and test"),
        (dict(test=TRAIN.astype(str)), "one type in all tables.*own data.*own data .test."),
        (dict(test=TRAIN.rename(columns={"item": "x"})), "own data .test.: found no item column"),
        (dict(test=np.eye(2)), "all as tables|all parts as tables.*ndarray"),
        (dict(test=[1, 2]), "got list for test"),
        (dict(test="test.csv"), "got str for test"),
        (dict(test_file="test.csv"), "test_file cannot be used"),
    ],
    ids=str,
)
def test_bad_combinations_of_tables(options, message):
    with pytest.raises(DataError, match=message):
        load(TRAIN, **options)


def test_tables_do_not_go_with_files_and_named_sets(tmp_path):
    TRAIN.to_csv(tmp_path / "a.csv", index=False)
    for source, options in ((tmp_path / "a.csv", {}), ("demo", {"name": "mine"})):
        with pytest.raises(DataError, match="cannot be used"):
            load(source, test=TRAIN, **options)
    assert load(tmp_path / "a.csv", name="mine").name == "mine"


def with_users(*users: object) -> pd.DataFrame:
    return pd.DataFrame({"user": pd.Series(users, dtype=object), "item": range(len(users))})


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"who": ["a"], "item": [1]}), "no user column; its columns are 'who', 'item"),
        (pd.DataFrame({"user": ["a"], "what": [1]}), "no item column.*item_col$"),
        (pd.DataFrame([[1, 2], [1, 3]]), "no user column; its columns are '0', '1'"),
        (pd.DataFrame(), "no rows"),
        (pd.DataFrame({"user": [], "item": []}), "no rows"),
        (pa.table({"user": pa.array([], pa.int64()), "item": pa.array([], pa.int64())}), "no rows"),
        (pd.DataFrame([[1, 2, 3]], columns=["user", "item", "user"]), "'user' more than once"),
        (pd.DataFrame([[1, 2, 3]], columns=["user", 1, "1"]), "'1' more than once"),
        (pa.table([[1], [2], [3]], names=["user", "item", "x"]).append_column(
            "x", pa.array([1])), "'x' more than once"),
        (pd.DataFrame({"user": [1, np.nan], "item": [1, 2]}), "no user id.*data row 2"),
        (pd.DataFrame({"user": ["a", None], "item": [1, 2]}), "no user id.*data row 2"),
        (pd.DataFrame({"user": pd.array([1, None], "Int64"), "item": [1, 2]}), "data row 2"),
        (pa.table({"user": [1, 2], "item": [None, 2]}), "no item id.*data row 1"),
        (pd.DataFrame({"user": pd.Categorical(["a", None]), "item": [1, 2]}), "data row 2"),
        (with_users(None, None), "2 rows have no user id"),
        (with_users(1, "a", pd.NA), "no user id.*data row 3"),
        (with_users(1, 2, "1"), "1 and '1', the same as text; make them one type"),
        (with_users(1, "x"), "one type.*int in data row 1 and str in data row 2"),
        (with_users("x", b"x"), "one type"),
        (with_users(1, True), "one type.*bool in data row 2"),
        (with_users(1.0, True), "one type"),
        (pd.DataFrame({"user": pd.Categorical([1, "1"]), "item": [1, 2]}), "same as text"),
        (pd.DataFrame({"user": [1.5, 2], "item": [1, 2]}), "whole.*'1.5' in data row 1"),
        (pd.DataFrame({"user": [1.0, np.inf], "item": [1, 2]}), "whole.*data row 2"),
        (pd.DataFrame({"user": [1.0, 2.0**53], "item": [1, 2]}), "whole.*data row 2"),
        (pd.DataFrame({"user": [True, False], "item": [1, 2]}), "whole numbers or text.*'True'"),
        (pd.DataFrame({"user": pd.array([True], "boolean"), "item": [1]}), "whole.*'True'"),
        (pa.table({"user": [True], "item": [1]}), "whole.*'True'"),
        (pd.DataFrame({"user": pd.to_datetime(DAYS), "item": 1}), "whole.*2024-05-03"),
        (pd.DataFrame({"user": DAYS, "item": 1}), "whole.*2024-05-03"),
        (with_users(Decimal(1), Decimal(2)), "whole numbers or text"),
        (with_users(["a"], ["b"]), r"whole numbers or text.*\['a'\].*data row 1"),
        (with_users("a", {"b": 1}), "one type.*dict in data row 2"),
        (with_users(np.arange(2), np.arange(2)), "whole numbers or text"),
        (pa.table({"user": [["a"], ["b"]], "item": [1, 2]}), "flatten"),
        (pa.table({"user": [{"a": 1}], "item": [1]}), "flatten"),
        (with_users("a\nb"), "control characters"),
        (pd.Series([1, 2]), "got Series"),
        ([("a", 1)], "expected a name, a path, a table.*got list"),
        ({"user": [1], "item": [2]}, "expected a name.*got dict"),
        (None, "got NoneType"),
        (7, "got int"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_tables_are_refused_with_a_reason(frame, message):
    with pytest.raises(DataError, match=message) as failure:
        load(frame)
    assert "\n" not in str(failure.value)


def test_lazy_tables_are_refused():
    for method in ("toPandas", "compute", "collect"):
        lazy = type("LazyFrame", (), {method: lambda self: None})()
        with pytest.raises(DataError, match=rf"got LazyFrame.*\.{method}\(\)"):
            load(lazy)


def test_a_stream_that_breaks_is_an_error_of_the_data():
    def batches():
        yield pa.record_batch({"user": [1], "item": [2]})
        raise RuntimeError("the server\nwent away")

    schema = pa.schema({"user": pa.int64(), "item": pa.int64()})
    with pytest.raises(DataError, match="server went away"):
        load(pa.RecordBatchReader.from_batches(schema, batches()))


def test_columns_of_any_name_are_named_by_it():
    frame = pd.DataFrame([[1, "a"], [1, "b"], [2, "a"]], columns=[10, ("x", "y")])
    split = load(frame, user_col=10, item_col="('x', 'y')")
    assert split.user_labels.tolist() == [1, 2]
    assert split.item_labels.tolist() == ["a", "b"]
    with pytest.raises(DataError, match="column"):
        load(frame, user_col=0, item_col=10)


def test_optional_columns_that_do_not_fit_are_left_out_with_a_note():
    frame = rows(count=20).assign(rating="good", timestamp=[[1]] * 20)
    split = load(frame)
    assert split.train.weights is None
    assert split.train.timestamps is None
    assert sum("left out" in note for note in split.notes) == 2
    with pytest.raises(DataError, match="numbers"):
        load(frame, rating_col="rating")
    with pytest.raises(DataError, match="time_col"):
        load(frame, split="time")


# --- matrices -------------------------------------------------------------------------------


def matrix(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 6, (30, 20)) * (rng.random((30, 20)) < 0.3)
    values[7] = 0  # a user without an interaction stays a row
    return values


@pytest.mark.parametrize(
    "form",
    [np.asarray, sparse.csr_matrix, sparse.coo_array, sparse.csc_array, Interactions.from_csr],
)
@pytest.mark.parametrize(
    "case", [dict(), dict(seed=3, test_ratio=0.3), dict(split="leave-one-out", seed=1)], ids=str
)
def test_a_matrix_is_split_as_its_pairs(form, case):
    pairs = Interactions.from_csr(matrix())
    seed, strategy = case.get("seed", 0), case.get("split", "random")
    expected = split_pairs("x", pairs, seed, strategy=strategy, test_ratio=case.get("test_ratio"))
    found = load(form(matrix()), name="x", **case)
    same(found, expected)
    assert (found.n_users, found.n_items) == (30, 20)
    assert found.user_labels is None
    assert found.notes == expected.notes


def test_values_of_a_matrix_are_its_ratings():
    found = load(sparse.csr_array(matrix()), min_rating=4)
    liked = found.train_full.union(found.test)
    np.testing.assert_array_equal(liked.csr().toarray() > 0, matrix() >= 4)
    assert "rated below 4 dropped" in found.notes[0]
    with pytest.raises(DataError, match="no rating reaches"):
        load(matrix(), min_rating=9)
    with pytest.raises(DataError, match="needs ratings"):
        load(matrix() > 0, min_rating=1)


def test_a_core_of_a_matrix_keeps_its_rows_as_labels():
    found = load(matrix(), k_core=5)
    assert len(found.user_labels) < 30
    kept = found.train_full.union(found.test)
    assert matrix()[found.user_labels[kept.users], found.item_labels[kept.items]].all()
    assert kept.user_degrees.min() >= 5


def test_matrices_for_test_and_valid_are_those_of_from_csr():
    whole, (rows_, columns) = matrix(), np.nonzero(matrix())
    masks = [np.zeros(whole.shape, bool) for _ in range(3)]
    for n, cell in enumerate(zip(rows_, columns, strict=True)):
        masks[n % 3][cell] = True
    train, valid, test = (whole * mask for mask in masks)
    expected = Split.from_csr(train, test=test, valid=valid)
    found = load(train, valid=Interactions.from_csr(valid), test=sparse.csr_array(test))
    assert found.fingerprint == expected.fingerprint
    assert found.valid_source == "published"
    for source, options, word in (
        (train, dict(test=test[:5]), "users"),
        (train, dict(user_col="user", time_col=0), "user_col"),
        (train, dict(split="time"), "time_col"),
        (np.arange(3), {}, "matrix"),
        (np.zeros((2, 2)), {}, "needed"),
    ):
        with pytest.raises(DataError, match=word):
            load(source, **options)


def test_interactions_with_times_are_cut_in_time():
    frame = rows(labels="numbers")
    whole = load(frame, split="time")
    pairs = whole.train_full.union(whole.test)
    same(load(pairs, split="time"), whole)
