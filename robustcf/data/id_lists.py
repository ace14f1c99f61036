"""Readers of id lists, vectorised over the bytes of a file (see ``scripts/bench_data.py``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import check_expansion, limits
from robustcf._io.schema import shown
from robustcf.errors import DataError

_NEWLINE, _SPACE, _TAB, _RETURN, _ZERO = 10, 32, 9, 13, 48
_LONGEST_ID = 18  # as many decimal digits as always fit into an int64
_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 23  # bytes parsed at once


def longest_line() -> int:
    """Return the bytes that a line of ids may have; parsing takes thirty times as much memory."""
    return 16 * limits().line_bytes


class RawPairs(NamedTuple):
    """Ids in the order of a file, possibly with repeats."""

    users: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]


#: A block of lines: its first line, the first number of each line, all others, and how many.
_Lines = tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.intp]]


def read_adjacency(data: bytes, source: str) -> RawPairs:
    r"""Parse lines ``user item item ...`` (LF or CRLF, blanks or tabs between the numbers).

    Raises:
        DataError: empty file, blank line, a token that is not an id, or a user without items.

    Example:
        >>> pairs = read_adjacency(b"0 7 3\n2 5\n", "toy.txt")
        >>> pairs.users.tolist(), pairs.items.tolist()
        ([0, 0, 2], [7, 3, 5])
    """
    return _read_lines(data, source, counted=False)


def read_counted_lists(data: bytes, source: str) -> RawPairs:
    """Parse CiteULike's ``users.dat``: line n is user n, ``count item item ...``."""
    return _read_lines(data, source, counted=True)


def _read_lines(data: bytes, source: str, *, counted: bool) -> RawPairs:
    users, items = [], []
    for start, first, others, size in _numbers_by_line(data, source):
        wrong = np.flatnonzero((size == 0) | (counted & (first != size)))
        if len(wrong):
            line, number, got = start + wrong[0] + 1, first[wrong[0]], size[wrong[0]]
            problem = f"user {number} has no items; expected 'user item item ...'"
            if counted:
                problem = f"the first number says {number} items, got {got}; expected at least one"
            raise DataError(f"{source}, line {line}: {problem}; correct the line, or remove it")
        users.append(np.repeat(start + np.arange(len(size)) if counted else first, size))
        items.append(others)
    return RawPairs(np.concatenate(users), np.concatenate(items))


def read_json_lists(data: bytes, source: str) -> RawPairs:
    """Parse a JSON list of lists: entry n holds the items of user n."""
    try:
        lists = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: expected [[item, ...], ...] as JSON ({error})") from None
    if not isinstance(lists, list) or not lists:
        raise DataError(f"{source}: expected a non-empty JSON list with one list of items per user")
    for user, items in enumerate(lists):
        if not isinstance(items, list) or not all(
            type(item) is int and 0 <= item < 10**_LONGEST_ID for item in items
        ):
            raise DataError(
                f"{source}: entry {user} must be a list of item ids of at least 0 with at most "
                f"{_LONGEST_ID} digits, got {shown(items)}"
            )
    lengths = [len(items) for items in lists]
    flat = [item for items in lists for item in items]
    return RawPairs(np.repeat(np.arange(len(lists)), lengths), np.array(flat, dtype=np.int64))


def read_id_list(data: bytes, source: str) -> npt.NDArray[Any]:
    """Parse a ``org_id remap_id`` list: entry n is the original id of n, a number or text."""
    header, *rows = data.decode("utf-8", "replace").splitlines() or [""]
    if header.split() != ["org_id", "remap_id"]:
        raise DataError(f"{source}: expected the header 'org_id remap_id', got {header[:40]!r}")
    names = [""] * len(rows)
    for line, row in enumerate(rows, start=2):
        original, _, mapped = row.strip().rpartition(" ")
        number = int(mapped) if _is_id(mapped) else len(rows)
        if not original or number >= len(rows):
            raise DataError(
                f"{source}, line {line}: expected 'org_id remap_id' with a remap_id from 0 to "
                f"{len(rows) - 1}, got {row[:40]!r}"
            )
        names[number] = original.strip()
    if "" in names:
        raise DataError(f"{source}: no line has remap_id {names.index('')}; each must occur once")
    if all(_is_id(name) and str(int(name)) == name for name in names):
        return np.array([int(name) for name in names])
    width = 4 * max(map(len, names))
    check_expansion(source, f"an array of {len(names):,} labels", width * len(names), len(data))
    return np.array(names)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_ID


def _numbers_by_line(data: bytes, source: str) -> Iterator[_Lines]:
    """Yield the numbers of the file, a block of whole lines at a time."""
    data = data.removeprefix(_BOM).rstrip()
    if not data:
        raise DataError(f"{source}: the file is empty; expected at least one line of ids")
    start = line = 0
    while start < len(data):
        # Up to the last line end within a block, or else the end of a longer line.
        end = data.rfind(b"\n", start, start + _BLOCK) if start + _BLOCK < len(data) else len(data)
        if end < 0:
            end = data.find(b"\n", start + _BLOCK)
        end = len(data) if end < 0 else end
        lines = _parse_block(data, start, end, line, source)
        yield lines
        start, line = end + 1, line + len(lines[-1])


def _parse_block(data: bytes, start: int, end: int, line_of_start: int, source: str) -> _Lines:
    text = np.frombuffer(data, dtype=np.uint8, count=end - start, offset=start)
    # uint8 wraps around: bytes below '0' become larger than 9 too.
    is_digit = (text - np.uint8(_ZERO)) < 10
    is_newline = text == _NEWLINE
    fine = is_digit | is_newline | (text == _SPACE) | (text == _TAB) | (text == _RETURN)
    # A lone carriage return may be an old line end: as a blank it would merge users silently.
    fine[:-1] &= (text[:-1] != _RETURN) | is_newline[1:]
    if not fine.all():
        raise _bad_token(data, start + int(np.flatnonzero(~fine)[0]), source)

    edges = np.flatnonzero(np.diff(is_digit, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    lengths = ends - starts
    values = np.zeros(len(starts), dtype=np.int64)
    for place in range(min(int(lengths.max(initial=0)), _LONGEST_ID)):
        here = np.flatnonzero(lengths > place)
        values[here] = values[here] * 10 + (text[starts[here] + place] - _ZERO)
    too_big = np.flatnonzero(lengths > _LONGEST_ID)
    if len(too_big):
        raise _bad_token(data, start + int(starts[too_big[0]]), source)

    line_ends = np.append(np.flatnonzero(is_newline), len(text))
    last = np.searchsorted(starts, line_ends)
    count = np.diff(last, prepend=0)
    if np.any(count == 0):
        line = line_of_start + int(np.flatnonzero(count == 0)[0]) + 1
        raise DataError(f"{source}, line {line}: the line is blank; remove it")
    first = np.zeros(len(values), dtype=bool)
    first[last - count] = True
    return line_of_start, values[first], values[~first], count - 1


def _bad_token(data: bytes, position: int, source: str) -> DataError:
    line = data.count(b"\n", 0, position) + 1
    if data[position] == _RETURN:
        problem = "a carriage return without a line feed; convert the line ends to LF or CRLF"
        return DataError(f"{source}, line {line}: {problem}")
    begin = max(data.rfind(mark, 0, position) for mark in (b"\n", b" ", b"\t")) + 1
    token = data[begin : begin + 40].split(maxsplit=1)[0].decode("utf-8", "replace")
    problem = "not an integer"
    if token.lstrip("-").isdigit():
        problem = "negative id" if token.startswith("-") else "id too large"
    return DataError(
        f"{source}, line {line}: {problem} {token!r}; expected integers of at least 0 with at "
        f"most {_LONGEST_ID} digits, separated by blanks"
    )
