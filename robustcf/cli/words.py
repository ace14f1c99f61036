"""Words of the command line that click does not know: names, lists of values, amounts of memory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import click

from robustcf._registry import Table, meant


class NameOf(click.ParamType):  # type: ignore[type-arg]
    """A name out of a table, or ``module:Class`` of the user's own.

    Args:
        table: where the names are.
        others: more names that the option takes.
        elsewhere: name -> what to use for it instead, where it has another place.
    """

    name = "name"

    def __init__(
        self, table: Table[Any], *others: str, elsewhere: Mapping[str, str] | None = None
    ) -> None:
        """Keep the names; no class is imported."""
        self.table, self.others, self.elsewhere = table, others, elsewhere or {}

    @property
    def names(self) -> list[str]:
        """All names, without those of entry points."""
        return [*self.table, *self.others]

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The names, as help shows them."""
        return f"[{'|'.join(self.names)}|module:Class]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if there is such an entry; its class is imported later."""
        if value not in self.names and ":" not in value and not self._is_entry_point(value):
            if value in self.elsewhere:
                self.fail(f"for {value!r} use {self.elsewhere[value]}.", param, ctx)
            known, other = ", ".join(self.names), meant(value)
            hint = f" Did you mean {other}?" if other else ""
            self.fail(f"{value!r} is not one of {known}, or module:Class.{hint}", param, ctx)
        return str(value)

    def _is_entry_point(self, value: str) -> bool:
        from importlib.metadata import entry_points

        return any(point.name == value for point in entry_points(group=self.table.group))


class ListCommand(click.Command):
    """A command whose repeatable options take many values at once: ``--epsilons 0 0.1 0.2``.

    Options that may go without their value take the next word only where it is one of their
    choices: ``--relative RUN`` is ``--relative`` and an argument.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Spell ``--name a b c`` as ``--name a --name b --name c`` before click reads it."""
        lists = {
            spelling
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.multiple
            for spelling in parameter.opts
        }
        optional = {
            spelling: parameter
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.metavar == "[own]"
            for spelling in parameter.opts
        }
        spelled: list[str] = []
        current = ""
        words = list(args)
        for place, word in enumerate(words):
            if word in optional and words[place + 1 : place + 2] != ["own"]:
                word = f"{word}={optional[word].flag_value}"
            if word.startswith("-") and not _is_number(word):
                spelled.append(word)
                current = word if word in lists else ""
            elif current and spelled[-1] != current:
                spelled += [current, word]
            else:
                spelled.append(word)
        return super().parse_args(ctx, spelled)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """An amount of memory: ``4GB``, ``1500MB`` or a number of bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """As a number of bytes; GB are those of 2**30."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]?)i?B?", str(value), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is no amount of memory such as 4GB or 1500MB", param, ctx)
        power = " KMGT".index(match.group(2).upper() or " ")
        return int(float(match.group(1)) * 1024**power)


class FiniteRange(click.FloatRange):
    """A number within bounds; unlike click's own, NaN and infinities are refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


class Finite(type(click.FLOAT)):  # type: ignore[misc]
    """A number; unlike click's own, NaN and infinities are refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


def _finite(
    kind: Any, number: float, param: click.Parameter | None, ctx: click.Context | None
) -> float:
    if not math.isfinite(number):
        kind.fail(f"expected a finite number, got {number}.", param, ctx)
    return number


FINITE = Finite()
#: Seeds are numbers of 63 bits.
SEED = click.IntRange(0, 2**63 - 1)
