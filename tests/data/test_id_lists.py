"""The text readers against plain loops over lines, and everything they must refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.data import id_lists
from robustcf.data.id_lists import read_adjacency, read_counted_lists, read_id_list, read_json_lists
from robustcf.errors import DataError

ids = st.integers(0, 10**18 - 1)
lists = st.lists(st.tuples(ids, st.lists(ids, min_size=1, max_size=6)), min_size=1, max_size=8)


def as_pairs(raw) -> list[tuple[int, int]]:
    return list(zip(raw.users.tolist(), raw.items.tolist(), strict=True))


@given(
    rows=lists,
    ending=st.sampled_from(["\n", "\r\n"]),
    gap=st.sampled_from([" ", "  ", "\t"]),
    last=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_adjacency_reads_what_a_loop_over_lines_reads(rows, ending, gap, last):
    text = ending.join(gap.join(map(str, [user, *items])) for user, items in rows)
    text += ending if last else ""
    expected = []
    for line in text.splitlines():  # the oracle: the usual reader of these files
        user, *items = (int(token) for token in line.split())
        expected += [(user, item) for item in items]
    assert as_pairs(read_adjacency(text.encode(), "x")) == expected


@given(rows=st.lists(st.lists(ids, min_size=1, max_size=6), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_counted_lists_and_json_lists_read_the_same_as_a_loop(rows):
    expected = [(user, item) for user, items in enumerate(rows) for item in items]
    counted = "\n".join(" ".join(map(str, [len(items), *items])) for items in rows)
    assert as_pairs(read_counted_lists(counted.encode(), "x")) == expected
    assert as_pairs(read_json_lists(json.dumps(rows).encode(), "x")) == expected


def test_a_byte_order_mark_is_passed_over():
    assert as_pairs(read_adjacency(b"\xef\xbb\xbf0 1\n", "x")) == [(0, 1)]


GOOD = b"1 2\n" * 40


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 23])
@pytest.mark.parametrize(
    ("read", "data", "message"),
    [
        (read_adjacency, b"", "toy.txt: the file is empty"),
        (read_adjacency, b" \r\n\n", "toy.txt: the file is empty"),
        (read_adjacency, b"0 1\n1 two\n", "toy.txt, line 2: not an integer 'two'"),
        (read_adjacency, GOOD + b"1 2.5 3\n" + GOOD, "toy.txt, line 41: not an integer '2.5'"),
        (read_adjacency, GOOD + b"1 -2\n" + GOOD, "toy.txt, line 41: negative id '-2'"),
        (read_adjacency, GOOD + b"\n" + GOOD, "toy.txt, line 41: the line is blank"),
        (read_adjacency, GOOD + b"5\n" + GOOD, "toy.txt, line 41: user 5 has no items"),
        (read_adjacency, GOOD + b"1 1234567890123456789\n2 1", "line 41: id too large '123456789"),
        (read_adjacency, b"0 1\n1 99999999999999999999\n", "toy.txt, line 2: id too large"),
        (read_adjacency, b"0 1\r1 2\r", "line 1: a carriage return without a line feed"),
        (read_adjacency, GOOD + b"1 2\r3 4\r\n", "toy.txt, line 41: a carriage return without"),
        (read_adjacency, b"user,item\n1,2\n", "toy.txt, line 1: not an integer 'user,item'"),
        (read_adjacency, "0 1\n1 é\n".encode(), "toy.txt, line 2: not an integer 'é'"),
        (read_counted_lists, b"2 1 5\n3 1 2\n", "line 2: the first number says 3 items"),
        (read_counted_lists, b"2 1 5\n0\n1 1\n", "line 2: the first number says 0 items"),
        (read_counted_lists, b"0 4\n", "line 1: the first number says 0 items"),
        (read_counted_lists, b"1 1\n1 1\n5 1\n1 1\n", "line 3: the first number says 5 items"),
    ],
)
def test_bad_lines_are_refused_by_number(monkeypatch, block, read, data, message):
    monkeypatch.setattr(id_lists, "_BLOCK", block)
    with pytest.raises(DataError, match=message):
        read(data, "toy.txt")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"[[1, 2", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"{}", "non-empty"),
        (b"[]", "non-empty"),
        (b"[[1], 2]", "entry 1"),
        (b"[[1], [-2]]", "entry 1"),
        (b"[[1.0]]", "entry 0"),
        (b"[[1e5]]", "entry 0"),
        (b"[[true]]", "entry 0"),
        (b"[[[1]]]", "entry 0"),
        (b"[[" + b"9" * 25 + b"]]", "entry 0"),
        (b"[[1], [" + b"9" * 4000 + b"]]", "entry 1"),
        (b"[[" + b"9" * 10_000 + b"]]", "JSON|entry 0"),
    ],
    ids=range(13),
)
def test_json_lists_refuse(data, word):
    with pytest.raises(DataError, match=word):
        read_json_lists(data, "x.json")


def test_id_lists_may_be_numbers_or_text():
    assert read_id_list(b"org_id remap_id\n12 1\n7 0\n", "x").tolist() == [7, 12]
    text = read_id_list(b"org_id remap_id\r\nb c 0\r\n007 1\r\n", "x")
    assert text.tolist() == ["b c", "007"]
    assert text.dtype.kind == "U"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected the header"),
        (b"id new\n1 0\n", "expected the header 'org_id remap_id', got 'id new'"),
        (b"org_id remap_id\n1\n", "line 2: expected"),
        (b"org_id remap_id\n1 1\n", "line 2: expected.*from 0 to 0"),
        (b"org_id remap_id\n1 0\n2 0\n", "no line has remap_id 1"),
    ],
)
def test_id_lists_refuse(data, message):
    with pytest.raises(DataError, match=message):
        read_id_list(data, "x")


def test_values_are_exact_at_the_limits():
    raw = read_adjacency(b"2147483646 0 999999999999999999\n", "x")
    assert raw.items.tolist() == [0, 10**18 - 1]
    assert raw.users.dtype == np.int64


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_of_lines_make_no_difference(monkeypatch, seed, block):
    rng = np.random.default_rng(seed)
    lines = [[n, *rng.integers(10**6, size=rng.integers(1, 9))] for n in range(50)]
    data = b"\r\n".join(b" ".join(b"%d" % number for number in line) for line in lines)
    counted = b"\n".join(
        b" ".join(b"%d" % number for number in [len(line) - 1, *line[1:]]) for line in lines
    )
    expected = [(line[0], item) for line in lines for item in line[1:]]
    monkeypatch.setattr(id_lists, "_BLOCK", block)
    for read, text in ((read_adjacency, data), (read_counted_lists, counted)):
        pairs = read(text, "x")
        assert list(zip(pairs.users.tolist(), pairs.items.tolist(), strict=True)) == expected


def test_id_lists_with_monstrous_numbers():
    for number in (b"9" * 30, b"9" * 5000, "\u0663".encode(), "\u00b2".encode(), b"-1"):
        with pytest.raises(DataError, match="org_id"):
            read_id_list(b"org_id remap_id\na " + number + b"\n", "x")
    names = read_id_list(b"org_id remap_id\n" + b"9" * 30 + b" 0\n7 1\n", "x")
    assert names.tolist() == ["9" * 30, "7"], "text, where a number does not fit"
    wide = b"".join(b"%d %d\n" % (n, n) for n in range(2000)) + b"x" * 50_000 + b" 2000\n"
    with pytest.raises(DataError, match="labels"):
        read_id_list(b"org_id remap_id\n" + wide, "x")
