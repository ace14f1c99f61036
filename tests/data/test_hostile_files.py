"""Malicious data files: limits on memory, and errors that name the problem."""

from __future__ import annotations

import datetime
import gzip
import io
import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robustcf._io.limits import raised_limits
from robustcf.data import load, loading
from robustcf.data.columns import Columns
from robustcf.data.formats import read_table
from robustcf.data.tables import to_interactions
from robustcf.errors import DataError
from robustcf.recommender.matching import Rows, match

SMALL = {"small_bytes": 1 << 20}
HEADER = b"user,item,rating,timestamp\n"


def rows(n):
    return b"".join(b"%d,%d,3,%d\n" % (k % 7, k % 5, k) for k in range(n))


@pytest.mark.parametrize("name", ["a.csv.gz", "a.tsv.gz", "a.inter.gz", "a.dat.gz", "a.txt.gz"])
def test_packed_tables_that_grow_without_bound_are_refused(tmp_path, name):
    line = {"csv": b"1,1\n", "dat": b"1::1\n", "txt": b"1 1\n"}.get(name[2:5], b"1\t1\n")
    head = b"user" + line[1:-2] + b"item\n" if name[2:5] not in ("dat", "txt") else b""
    (tmp_path / name).write_bytes(gzip.compress(head + line * 700_000))
    with raised_limits(**SMALL), pytest.raises(DataError, match="unpacked"):
        load(tmp_path / name, cache=False)


@pytest.mark.parametrize("where", ["first", "later"])
def test_a_line_without_end_is_refused(tmp_path, where):
    long = b"1" * (2 << 20)
    (tmp_path / "a.csv").write_bytes(long if where == "first" else HEADER + rows(9) + long)
    with pytest.raises(DataError, match="longer"):
        load(tmp_path / "a.csv")
    (tmp_path / "a.txt").write_bytes(long if where == "first" else b"1 2\n" + b"1 " * (1 << 20))
    refused = pytest.raises(DataError, match="longer")
    with raised_limits(line_bytes=1 << 16), refused:
        load(tmp_path / "a.txt")


def test_a_line_without_end_is_refused_before_all_of_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "sha256_of", None)  # reads the whole file
    for name in ("a.csv", "a.dat", "a.txt"):
        with (tmp_path / name).open("wb") as handle:
            handle.truncate(1 << 40)  # sparse: no byte of it is on the disk
        with pytest.raises(DataError, match="longer"):
            load(tmp_path / name)


def test_a_table_of_too_many_columns_is_refused(tmp_path):
    names = ["user", "item", *(f"c{n}" for n in range(10_000))]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n")
    with pytest.raises(DataError, match="columns"):
        load(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(",".join(names[:20]) + "\n" + ",".join("1" * 20) + "\n")
    with raised_limits(columns=19), pytest.raises(DataError, match="LIMITS=columns=20"):
        load(tmp_path / "b.csv")
    with raised_limits(columns=20):
        assert len(load(tmp_path / "b.csv").train) == 1


def test_messages_do_not_hold_a_megabyte(tmp_path):
    long = "c" * 100_000
    (tmp_path / "a.csv").write_text(f"user,{long}\n1,2\n")
    (tmp_path / "b.csv").write_text(f"user,item,rating\n1,2,{long}\n")
    for name, options in (("a.csv", {}), ("b.csv", {"rating_col": "rating"})):
        with pytest.raises(DataError, match="ccc") as refusal:
            load(tmp_path / name, **options)
        assert len(str(refusal.value)) < 1000


def test_carriage_returns_end_lines(tmp_path):
    (tmp_path / "a.csv").write_bytes((HEADER + rows(50)).replace(b"\n", b"\r"))
    (tmp_path / "b.csv").write_bytes(HEADER + rows(50))
    assert load(tmp_path / "a.csv").fingerprint == load(tmp_path / "b.csv").fingerprint


# --- labels ---------------------------------------------------------------------------------


def test_one_long_label_may_not_widen_all_others_without_bound(tmp_path):
    names = [f"user{n}" for n in range(3000)]
    frame = pd.DataFrame({"user": [*names, "x" * 999], "item": 1})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with raised_limits(small_bytes=1 << 20, expansion=10):
        with pytest.raises(DataError, match="labels"):
            read_table(tmp_path / "a.csv", Columns())
        frame[:-1].to_csv(tmp_path / "b.csv", index=False)
        assert len(read_table(tmp_path / "b.csv", Columns()).users.labels) == 3000


def test_labels_of_several_files_are_measured_together(tmp_path):
    frame = pd.DataFrame({"user": [f"user{n}" for n in range(3000)], "item": 1})
    frame.to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"user": ["x" * 999], "item": [1]}).to_csv(tmp_path / "b.csv", index=False)
    with raised_limits(small_bytes=1 << 20, expansion=10):
        tables = [read_table(tmp_path / name, Columns()) for name in ("a.csv", "b.csv")]
        with pytest.raises(DataError, match="array"):
            to_interactions(tables)


# --- numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("rating", ["1e39", "-1e39", "9" * 50, "1e308", "1e400", "9" * 5000, "inf"])
def test_ratings_that_overflow_are_named_or_left_out(tmp_path, rating):
    (tmp_path / "a.csv").write_text(f"user,item,rating\n1,2,3\n1,3,{rating}\n2,2,1\n")
    split = load(tmp_path / "a.csv", cache=False)
    assert "the rating column was left out" in split.notes[0]
    assert split.train.weights is None
    for options in ({"rating_col": "rating"}, {"rating_col": "rating", "min_rating": 1.0}):
        with pytest.raises(DataError, match="numbers"):
            load(tmp_path / "a.csv", cache=False, **options)


@pytest.mark.parametrize(
    "time",
    ["9223372036854775808", "18446744073709551615", "1e19", "-1e19", "1e300", "9" * 400, "1e400"],
)
def test_times_that_overflow_are_named_or_left_out(tmp_path, time):
    (tmp_path / "a.csv").write_text(f"user,item,timestamp\n1,2,3\n1,3,{time}\n2,2,1\n")
    split = load(tmp_path / "a.csv", cache=False)
    assert "the time column was left out" in split.notes[0]
    with pytest.raises(DataError, match="column 'timestamp' (must hold times.*row 2|holds object)"):
        load(tmp_path / "a.csv", cache=False, time_col="timestamp")


def test_times_at_the_edge_are_kept(tmp_path):
    edge = [-(2**63), 2**63 - 1, 0]
    pd.DataFrame({"user": 1, "item": [1, 2, 3], "time": edge}).to_csv(tmp_path / "a.csv")
    assert read_table(tmp_path / "a.csv", Columns()).times.tolist() == edge


@pytest.mark.parametrize("number", ["9223372036854775808", "9" * 30, "-5", "1e5", "9" * 999, "1.0"])
def test_ids_of_any_size_are_labels(tmp_path, number):
    (tmp_path / "a.csv").write_text(f"user,item\n{number},2\n{number},3\n7,{number}\n")
    split = load(tmp_path / "a.csv", cache=False)
    assert sorted(map(str, split.user_labels)) == sorted([number, "7"])


def test_numbers_and_dates_in_one_time_column_are_refused(tmp_path):
    lines = "1,2,5\n" * 300_000 + "1,3,2024-01-01\n"  # pandas guesses two types
    (tmp_path / "a.csv").write_text("user,item,time\n" + lines)
    with pytest.raises(DataError, match="column"):
        load(tmp_path / "a.csv", time_col="time", cache=False)


# --- Parquet --------------------------------------------------------------------------------

PLAIN = pa.array([1, 1, 2])
NESTED = [
    pa.array([[1], [2, 3], None]),
    pa.array([{"a": 1}, {"a": 2}, None]),
    pa.array([[(1, 2)], [], None], type=pa.map_(pa.int64(), pa.int64())),
    pa.array([[1.0, 2.0]] * 3, type=pa.list_(pa.float64(), 2)),
]


@pytest.mark.parametrize("nested", NESTED, ids=lambda array: str(array.type).split("<")[0])
@pytest.mark.parametrize("role", ["user", "item", "rating", "time"])
def test_nested_columns_are_named_or_left_out(tmp_path, nested, role):
    columns = {"user": PLAIN, "item": pa.array([4, 5, 4]), "rating": PLAIN, "time": PLAIN}
    pq.write_table(pa.table(columns | {role: nested}), tmp_path / "a.parquet")
    if role in ("user", "item"):
        with pytest.raises(DataError, match=f"column '{role}' holds .*, expected one plain value"):
            load(tmp_path / "a.parquet")
        return
    split = load(tmp_path / "a.parquet")
    assert f"the {role} column was left out" in split.notes[0]
    with pytest.raises(DataError, match=f"column '{role}' holds .*, expected one plain value"):
        load(tmp_path / "a.parquet", **{f"{role}_col": role})


@pytest.mark.parametrize(
    "array",
    [
        pa.array([datetime.time(1)] * 3),
        pa.array([10**15] * 3, type=pa.timestamp("ms")),
        pa.array([2**64 - 1] * 3, type=pa.uint64()),
        pa.array([b"\xff\x00"] * 3, type=pa.binary(2)),
        pa.array(["x"] * 3).dictionary_encode(),
        pa.array([10**15] * 3, type=pa.duration("us")),
        pa.nulls(3),
        pa.array([[1], [2], [3]]),
    ],
    ids=lambda array: str(array.type),
)
@pytest.mark.parametrize("role", ["rating", "time"])
def test_columns_of_odd_types_are_read_or_named(tmp_path, array, role):
    columns = {"user": PLAIN, "item": pa.array([4, 5, 4]), role: array}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    notes = load(tmp_path / "a.parquet", cache=False).notes
    if any(f"the {role} column was left out" in note for note in notes):
        with pytest.raises(DataError, match=f"column '{role}'"):
            load(tmp_path / "a.parquet", cache=False, **{f"{role}_col": role})
    else:
        load(tmp_path / "a.parquet", cache=False, **{f"{role}_col": role})


@pytest.mark.parametrize("packed", [False, True])
def test_text_of_parquet_is_read_as_before(tmp_path, packed):
    users = [f"u{n % 13}" for n in range(80_000)]
    frame = pd.DataFrame({"user": users, "item": np.arange(80_000) % 17, "date": "2024-05-01"})
    frame.to_csv(tmp_path / "a.csv", index=False)
    target = tmp_path / ("a.parquet.gz" if packed else "a.parquet")
    buffer = io.BytesIO()
    frame.to_parquet(buffer, row_group_size=30_000)
    target.write_bytes(gzip.compress(buffer.getvalue()) if packed else buffer.getvalue())
    read, expected = read_table(target, Columns()), read_table(tmp_path / "a.csv", Columns())
    for one, other in ((read.users, expected.users), (read.items, expected.items)):
        assert np.array_equal(one.labels[one.codes], other.labels[other.codes])
    assert np.array_equal(read.times, expected.times)


def test_a_parquet_file_of_many_equal_rows_is_refused(tmp_path):
    rows = 1 << 20
    table = pa.table({"user": pa.repeat(1, rows), "item": pa.repeat(1, rows)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with raised_limits(**SMALL), pytest.raises(DataError, match="takes"):
        load(tmp_path / "a.parquet")


def test_a_long_label_that_is_repeated_is_not_written_out(tmp_path):
    rows = 200_000
    long = pa.DictionaryArray.from_arrays(pa.repeat(0, rows).cast(pa.int32()), ["x" * 100_000])
    table = pa.table({"user": long, "item": range(rows)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)  # plain text to a reader
    assert pq.read_schema(tmp_path / "a.parquet").field("user").type == pa.string()
    # 20 GB, written out.
    with pytest.raises(DataError, match="characters"):
        load(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("table", "word"),
    [
        (pa.table([PLAIN, PLAIN, PLAIN], names=["user", "user", "item"]), "column"),
        (pa.table({"user": pa.nulls(3, pa.binary(1 << 20)), "item": PLAIN}), "label"),
        (pa.table({"user": PLAIN[:0], "item": PLAIN[:0]}), "no rows"),
    ],
    ids=["repeated name", "monstrous width", "empty"],
)
def test_bad_parquet_files_are_refused(tmp_path, table, word):
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=word):
        load(tmp_path / "a.parquet")


def test_a_parquet_file_whose_counts_contradict_its_schema_ends_no_process(tmp_path):
    """The column says that it is never null, and has counted nulls: pyarrow calls abort()."""
    content = io.BytesIO()
    table = pa.table({"user": [1, 2, 3], "item": [4, 5, 6]})
    pq.write_table(table, content, store_schema=False)
    optional, required = b"\x25\x02\x18\x04user", b"\x25\x00\x18\x04user"
    assert optional in content.getvalue()
    (tmp_path / "a.parquet").write_bytes(content.getvalue().replace(optional, required))
    with pytest.raises(DataError):
        load(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.parquet", "a.csv.gz", "a.dat"])
def test_a_pipe_is_not_a_data_file(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="got a pipe"):
        load(tmp_path / name)
    if not name.endswith(".txt"):
        with pytest.raises(DataError, match="regular"):
            read_table(tmp_path / name, Columns())
    (tmp_path / "train.csv").write_bytes(HEADER + rows(20))
    with pytest.raises(DataError, match="got a pipe"):
        load(tmp_path / "train.csv", test_file=tmp_path / name)
    with pytest.raises(DataError, match="got a pipe"):
        match(Rows(7, 5), tmp_path / name)


# --- with the limits as they are ------------------------------------------------------------

BOMBS = """
    import gzip, os, resource, sys
    from pathlib import Path
    from robustcf.data import load
    from robustcf.errors import RobustcfError
    from robustcf.estimators import read_matrix

    folder = Path(sys.argv[1])
    block = gzip.compress(b"1,1\\n" * (1 << 22))
    (folder / "bomb.csv.gz").write_bytes(gzip.compress(b"user,item\\n") + block * 40)
    (folder / "bomb.txt.gz").write_bytes(gzip.compress(b"1 1\\n" * (1 << 22)) * 40)
    (folder / "columns.csv").write_text(",".join(f"c{n}" for n in range(1_000_000)) + "\\n")
    mtx = "%%MatrixMarket matrix coordinate real general\\n"
    for n in (10**12, 10**8):
        (folder / f"{n}.mtx").write_text(f"{mtx}{n} {n} 1\\n1 1 1.5\\n")
    with (folder / "line.csv").open("wb") as handle:
        handle.truncate(1 << 30)
    import pandas, pyarrow.parquet, scipy.sparse  # noqa: loaded before memory is measured
    room = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (room + (1 << 30),) * 2)
    for path in sorted(folder.iterdir()):
        try:
            (read_matrix if path.suffix == ".mtx" else load)(path)
            print(path.name, "was read")
        except RobustcfError as error:
            print("refused" if "raise the limit" in str(error) else error)
"""


@pytest.mark.slow
def test_bombs_are_refused_within_a_gigabyte(tmp_path):
    code = textwrap.dedent(BOMBS)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.splitlines() == ["refused"] * 6, done.stdout + done.stderr
