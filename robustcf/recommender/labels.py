"""LabelIndex: what a caller's users and items are called, and their ids."""

from __future__ import annotations

import csv
import difflib
import itertools
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf._io.reading import read_content
from robustcf._io.schema import shown
from robustcf.data.interactions import Labels
from robustcf.errors import DataError, InputError
from robustcf.metrics.groups import Groups

Ids = npt.NDArray[np.int64]


class LabelIndex:
    """Labels of users or of items, both ways; without labels the ids themselves are the labels.

    Example:
        >>> index = LabelIndex("user", np.array(["ann", "bob"]), 2)
        >>> index.ids("bob").tolist(), index.labels(np.array([0])).tolist()
        ([1], ['ann'])
        >>> index.ids(["anna"])
        Traceback (most recent call last):
        robustcf.errors.InputError: unknown user 'anna'; did you mean 'ann'?
    """

    def __init__(self, kind: str, labels: Labels | None, count: int) -> None:
        self.kind, self._labels, self.count = kind, labels, count

    @cached_property
    def _places(self) -> dict[Any, int]:
        known = [] if self._labels is None else self._labels.tolist()
        return {label: place for place, label in enumerate(known)}

    def labels(self, ids: Ids) -> npt.NDArray[Any]:
        """Return the labels of some ids."""
        return ids if self._labels is None else self._labels[ids]

    def find(self, label: object) -> int:
        """Return the id of a label, or -1."""
        if isinstance(label, np.generic):
            label = label.item()
        if type(label) is bool or isinstance(label, float):
            return -1
        if self._labels is None:
            return label if isinstance(label, int) and 0 <= label < self.count else -1
        try:
            return self._places.get(label, -1)
        except TypeError:  # unhashable: a list or a dict
            return -1

    def ids(self, values: object, *, known_only: bool = True) -> Ids:
        """Return the ids of one label or of several; -1 if unknown and not ``known_only``."""
        labels = listed(values)
        found = np.fromiter(map(self.find, labels), dtype=np.int64, count=len(labels))
        if known_only and (found < 0).any():
            raise self._unknown([labels[n] for n in np.flatnonzero(found < 0).tolist()])
        return found

    def _unknown(self, labels: list[Any]) -> InputError:
        first = labels[0].item() if isinstance(labels[0], np.generic) else labels[0]
        more = f" and {len(labels) - 1:,} more" if len(labels) > 1 else ""
        if self._labels is None:
            expected = f"; the {self.kind}s are 0 to {self.count - 1}"
        else:
            expected = self._hint(first)
        return InputError(f"unknown {self.kind} {shown(first)}{more}{expected}")

    def _hint(self, label: object) -> str:
        """Return what was probably meant: the same text as another type, or a similar label."""
        other: object = str(label)
        if isinstance(label, str) and label.lstrip("-").isdecimal():
            other = int(label)
        if self.find(other) >= 0:
            kinds = {int: "integers", str: "text"}
            return f"; {self.kind} labels are {kinds[type(other)]} here: did you mean {other!r}?"
        names = map(str, itertools.islice(self._places, 100_000))
        close = difflib.get_close_matches(str(label), list(names), n=1)
        return f"; did you mean {close[0]!r}?" if close else ""


def listed(values: object) -> list[Any]:
    """Return one label, or labels in any form, as a list.

    Example:
        >>> listed("ann"), listed(np.array([1, 2])), listed(("a", "b"))
        (['ann'], [1, 2], ['a', 'b'])
    """
    if isinstance(values, str | bytes | int | float | np.generic):
        return [values]
    if hasattr(values, "tolist"):  # numpy and pandas
        found = values.tolist()
        return found if isinstance(found, list) else [found]
    if hasattr(values, "to_list"):  # Polars
        return list(values.to_list())
    if isinstance(values, Iterable) and not isinstance(values, dict):
        return list(values)
    raise InputError(f"expected a label or a list of labels, got {type(values).__name__}")


def read_cells(path: Path) -> list[list[str]]:
    """Return the rows of a CSV or TSV file, or lines of text as rows of one cell."""
    try:
        lines = read_content(path).decode("utf-8-sig").splitlines()
        while lines and not lines[-1].strip():
            lines.pop()
        tabs = path.suffix.lower() in (".tsv", ".tab")
        cells = list(csv.reader(lines, delimiter="\t" if tabs else ",", strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not readable as text, one id per line ({error})") from error
    if len({len(row) for row in cells}) > 1:  # ids with commas, one per line
        return [[line] for line in lines]
    return cells


def read_groups(path: Path, index: LabelIndex) -> tuple[Groups, int]:
    """Return the groups in a CSV file of label and group, and the number of unknown labels.

    A header is left out.
    """
    cells = read_cells(path)
    if not cells or len(cells[0]) != 2:
        got = f"{len(cells[0])} columns" if cells else "nothing"
        raise DataError(f"{path}: expected two columns, {index.kind} and group, got {got}")
    found, unknown = {}, 0
    for number, (text, group) in enumerate(cells):
        other = int(text) if text.lstrip("-").isdecimal() else text
        label = text if index.find(text) >= 0 else other
        if index.find(label) >= 0:
            found[label] = group
        else:
            unknown += number > 0
    if not found:
        raise DataError(f"{path}: names none of the {index.kind}s; the first is {cells[0][0]!r}")
    return Groups.of(index.kind, found, index, path.stem), unknown
