"""The text readers against plain loops over lines, and everything they must refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcf.data import id_lists
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


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 23])
def test_blocks_of_lines_do_not_change_the_line_of_an_error(monkeypatch, block):
    monkeypatch.setattr(id_lists, "_BLOCK", block)
    good = b"1 2\n" * 40
    for text, message in (
        (good + b"5\n" + good, "line 41: user 5 has no items"),
        (good + b"\n" + good, "line 41: the line is blank"),
        (good + b"1 x\n" + good, "line 41: not an integer 'x'"),
        (good + b"1 -4\n" + good, "line 41: negative id '-4'"),
        (good + b"1 " + b"9" * 19 + b"\n" + good, "line 41: id too large"),
        (good + b"1 2\r3 4\n" + good, "line 41: a carriage return"),
    ):
        with pytest.raises(DataError, match=message):
            read_adjacency(text, "x")
    with pytest.raises(DataError, match="first"):
        read_counted_lists(b"1 1\n1 1\n5 1\n1 1\n", "x")
    with pytest.raises(DataError, match="first"):
        read_counted_lists(b"1 1\n0\n1 1\n", "x")


def test_id_lists_with_monstrous_numbers():
    for number in (b"9" * 30, b"9" * 5000, "\u0663".encode(), "\u00b2".encode(), b"-1"):
        with pytest.raises(DataError, match="org_id"):
            read_id_list(b"org_id remap_id\na " + number + b"\n", "x")
    names = read_id_list(b"org_id remap_id\n" + b"9" * 30 + b" 0\n7 1\n", "x")
    assert names.tolist() == ["9" * 30, "7"], "text, where a number does not fit"
    wide = b"".join(b"%d %d\n" % (n, n) for n in range(2000)) + b"x" * 50_000 + b" 2000\n"
    with pytest.raises(DataError, match="labels"):
        read_id_list(b"org_id remap_id\n" + wide, "x")
