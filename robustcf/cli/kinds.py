"""Types of options that click does not have: names, lists of values, amounts of memory."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from robustcf._checks import near
from robustcf._registry import Table, meant


class NameOf(click.ParamType):  # type: ignore[type-arg]
    """A name out of a table or of some others, or ``module:Class``; no class is imported.

    ``elsewhere`` maps names that belong to another command to that command; with ``paths``, files
    and folders are accepted too, and paths with ``{seed}``.
    """

    name = "name"

    def __init__(
        self,
        table: Table[Any],
        *others: str,
        elsewhere: Mapping[str, str] | None = None,
        paths: bool = False,
    ) -> None:
        self.table, self.elsewhere, self.paths = table, elsewhere or {}, paths
        self.names = [*table, *others]

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the names, as help shows them."""
        return f"[{'|'.join(self.names)}|module:Class{'|PATH' if self.paths else ''}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name if there is such an entry."""
        if self.paths and ("{seed}" in value or os.path.exists(value)):
            return str(value)
        if value not in self.names and ":" not in value and not self._is_entry_point(value):
            if value in self.elsewhere:
                self.fail(f"for {value!r} use {self.elsewhere[value]}.", param, ctx)
            known, other = ", ".join(self.names), meant(value)
            hint = f"; did you mean {other}?" if other else near(value, self.names)
            self.fail(f"{value!r} is not one of {known}, or module:Class{hint or '.'}", param, ctx)
        return str(value)

    def _is_entry_point(self, value: str) -> bool:
        from importlib.metadata import entry_points

        return any(point.name == value for point in entry_points(group=self.table.group))


class Choice(click.Choice):  # type: ignore[type-arg]
    """One of several words; an error suggests the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word."""
        if value not in self.choices:
            words = f"{value!r} is not one of {', '.join(map(repr, self.choices))}"
            self.fail(f"{words}{near(value, self.choices) or '.'}", param, ctx)
        return str(value)


class ListCommand(click.Command):
    """A command whose repeatable options take many values at once: ``--epsilons 0 0.1 0.2``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Spell ``--name a b c`` as ``--name a --name b --name c`` before click reads it."""
        given = [option for option in self.params if isinstance(option, click.Option)]
        lists = {word for option in given if option.multiple for word in option.opts}
        spelled: list[str] = []
        current = ""
        for word in args:
            if word.startswith("-") and not _is_number(word):
                spelled.append(word)
                current = word if word in lists else ""
            elif current and spelled[-1] != current:
                spelled += [current, word]
            else:
                spelled.append(word)
        return super().parse_args(ctx, spelled)


def _is_number(word: str) -> bool:
    with suppress(ValueError):
        float(word)
        return True
    return False


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """An amount of memory: ``4GB``, ``1500MB`` or a number of bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes; a GB has 2**30."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]?)i?B?", str(value), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not an amount of memory such as 4GB or 1500MB", param, ctx)
        power = " KMGT".index(match.group(2).upper() or " ")
        return int(float(match.group(1)) * 1024**power)


class Fakes(click.ParamType):  # type: ignore[type-arg]
    """A number of fake users, or a share of the genuine ones in percent."""

    name, metavar = "fakes", "N|P%..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return an integer, or a share as a float."""
        from robustcf.poisoning.threat import parse_fakes  # imports numpy

        return parse_fakes(value)


class Finite(type(click.FLOAT)):  # type: ignore[misc]
    """A number; unlike click's own, NaN and infinities are refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, got {number}.", param, ctx)
        return number


class FiniteRange(click.FloatRange, Finite):
    """A finite number within bounds."""


FINITE = Finite()
#: A share of something, neither none nor all of it.
SHARE = FiniteRange(0, 1, min_open=True, max_open=True)
COUNT = click.IntRange(min=1)
#: Seeds are numbers of 63 bits.
SEED = click.IntRange(0, 2**63 - 1)
