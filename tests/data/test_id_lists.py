"""The text readers against plain loops over lines, and everything they must refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.data.id_lists import (
    read_adjacency,
    read_counted_lists,
    read_id_list,
    read_json_lists,
)
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
    for line in text.splitlines():  # the oracle: how everybody reads these files
        user, *items = (int(token) for token in line.split())
        expected += [(user, item) for item in items]
    assert as_pairs(read_adjacency(text.encode(), "x")) == expected


@given(rows=st.lists(st.lists(ids, min_size=1, max_size=6), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_counted_lists_and_json_lists_read_the_same_as_a_loop(rows):
    expected = [(user, item) for user, items in enumerate(rows) for item in items]
    counted = "\n".join(" ".join(map(str, [len(items), *items])) for items in rows)
    assert as_pairs(read_counted_lists(counted.encode(), "x")) == expected
    assert as_pairs(read_json_lists(json.dumps(rows).encode(), "x")) == expected


def test_a_byte_order_mark_is_passed_over():
    assert as_pairs(read_adjacency(b"\xef\xbb\xbf0 1\n", "x")) == [(0, 1)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "toy.txt: the file is empty"),
        (b" \r\n\n", "toy.txt: the file is empty"),
        (b"0 1\n1 two\n", r"toy.txt, line 2: not an integer 'two'"),
        (b"0 1\n1 2.5 3\n", r"toy.txt, line 2: not an integer '2.5'"),
        (b"0 1\n1 -2\n", r"toy.txt, line 2: negative id '-2'"),
        (b"0 1\n\n2 3\n", r"toy.txt, line 2: the line is blank"),
        (b"0 1\n1\n2 3\n", r"toy.txt, line 2: user 1 has no items"),
        (b"0 1\n1 1234567890123456789\n", r"line 2: id too large '1234567890123456789'"),
        (b"0 1\r1 2\r", r"toy.txt, line 1: a carriage return without a line feed"),
        (b"0 1\r\n1 2\r3 4\r\n", r"toy.txt, line 2: a carriage return without"),
        (b"0 1\n1 99999999999999999999\n", r"toy.txt, line 2: id too large"),
        (b"user,item\n1,2\n", r"toy.txt, line 1: not an integer 'user,item'"),
        ("0 1\n1 é\n".encode(), r"toy.txt, line 2: not an integer 'é'"),
        (b"0 1\n1 nan\n", r"toy.txt, line 2: not an integer 'nan'"),
    ],
)
def test_adjacency_names_file_and_line_of_what_it_refuses(data, message):
    with pytest.raises(DataError, match=message):
        read_adjacency(data, "toy.txt")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"2 1 5\n3 1 2\n", r"line 2: the first number says 3 items"),
        (b"2 1 5\n0\n", r"line 2: the first number says 0 items"),
        (b"0 4\n", r"line 1: the first number says 0 items"),
    ],
)
def test_counted_lists_refuse_wrong_counts(data, message):
    with pytest.raises(DataError, match=message):
        read_counted_lists(data, "users.dat")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[[1, 2", "not valid JSON"),
        (b"{}", "non-empty JSON list"),
        (b"[]", "non-empty JSON list"),
        (b"[[1], 2]", "entry 1 must be a list of item ids"),
        (b"[[1], [-2]]", "entry 1 must be a list of item ids"),
        (b"[[1.0]]", "entry 0 must be"),
        (b"[[true]]", "entry 0 must be"),
    ],
)
def test_json_lists_refuse(data, message):
    with pytest.raises(DataError, match=message):
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
