"""The directive ``commands``: the command line, as the commands themselves describe it.

It takes where a click group is, ``module:attribute``, and the name of the program. The group and
every command below it become a section: the usage, the help text, and the options with defaults.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from executed import note_package
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from robustcf.cli.main import commands_of


class Commands(SphinxDirective):
    """All commands of a click group, one section each."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """The sections, from the group down."""
        note_package(self.env)
        place, name = self.arguments
        module, _, attribute = place.partition(":")
        top: click.Command = getattr(importlib.import_module(module), attribute)
        return [self._section(context) for context in _contexts(top, name, None)]

    def _section(self, context: click.Context) -> nodes.section:
        command, path = context.command, context.command_path
        section = nodes.section(ids=[nodes.make_id(path)], names=[nodes.fully_normalize_name(path)])
        section += nodes.title(path, "", nodes.literal(path, path))
        self.state.document.note_implicit_target(section, section)
        usage = command.get_usage(context).removeprefix("Usage: ")
        usage = " ".join(usage.split())
        section += nodes.literal_block(usage, usage, language="text")
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            section += _paragraph(nodes.Text(" ".join(paragraph.split())))
        if isinstance(command, click.Group):
            section += _list_of(command, context)
        options = [option for option in command.params if isinstance(option, click.Option)]
        rows = [_row(option, context) for option in options if not option.hidden]
        section += _table(("option", "meaning", "default"), rows)
        return section


def _contexts(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[click.Context]:
    """The context of a command, then those of its subcommands."""
    context = click.Context(command, parent=parent, info_name=name)
    yield context
    if isinstance(command, click.Group):
        for each, below in commands_of(command).items():
            yield from _contexts(below, each, context)


def _list_of(group: click.Group, context: click.Context) -> nodes.bullet_list:
    """The subcommands of a group, each with its first sentence and a link."""
    found = nodes.bullet_list()
    for name, command in commands_of(group).items():
        path = f"{context.command_path} {name}"
        link = nodes.reference("", "", nodes.literal(name, name), internal=True,
                               refid=nodes.make_id(path))  # fmt: skip
        short = command.get_short_help_str(limit=200)
        found += nodes.list_item("", _paragraph(link, nodes.Text(f": {short}")))
    return found


def _row(option: click.Option, context: click.Context) -> tuple[list[nodes.Node], ...]:
    """Return spellings with their metavar, meaning, default."""
    spellings = ", ".join(option.opts)
    if option.secondary_opts:
        spellings += " / " + ", ".join(option.secondary_opts)
    if not option.is_flag and not option.count:
        spellings += f" {option.make_metavar(context).removesuffix(' RANGE')}"
    default = _default(option, context)
    return (
        [nodes.literal(spellings, spellings)],
        [nodes.Text(option.help or "")],
        [nodes.literal(default, default)] if default else [nodes.Text("")],
    )


def _default(option: click.Option, context: click.Context) -> str:
    """Return the default as a user would type it, or an empty text."""
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.get_default(context)
    if option.required or value is None or value == () or "Sentinel" in type(value).__name__:
        return "required" if option.required else ""
    if isinstance(value, bool):
        on, off = option.opts[0], (option.secondary_opts or [""])[0]
        return on if value else off
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _table(header: tuple[str, ...], rows: list[tuple[list[nodes.Node], ...]]) -> nodes.table:
    group = nodes.tgroup(cols=len(header))
    for width in (34, 52, 14):
        group += nodes.colspec(colwidth=width)
    titles: list[list[nodes.Node]] = [[nodes.Text(title)] for title in header]
    group += nodes.thead("", _cells(titles))
    group += nodes.tbody("", *(_cells(list(row)) for row in rows))
    return nodes.table("", group, classes=["options"])


def _cells(cells: list[list[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", _paragraph(*cell)) for cell in cells))


def _paragraph(*content: nodes.Node) -> nodes.paragraph:
    """A paragraph in which ``--option`` stays as it is."""
    return nodes.paragraph("", "", *content, support_smartquotes=False)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
