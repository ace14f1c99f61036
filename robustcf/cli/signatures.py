"""Options made from the arguments of functions and the fields of configurations.

Name, type, default and help of an option are those of the argument that it sets; its help is the
first sentence about it in the docstring. They are read from the source text, because ``--help``
must not wait for torch to be imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click

from robustcf.cli.kinds import FINITE, SEED, Choice

_PACKAGE = Path(__file__).resolve().parents[1]
_KINDS: Mapping[str, Any] = {"int": click.INT, "float": FINITE}
# The placeholder of an option's value in help, by the end of its name.
_METAVARS = {
    "_dir": "DIR",
    "_file": "FILE",
    "_ids": "FILE",
    "_col": "COL",
    "_from": "WHEN",
    "_key": "NAME",
    "epsilons": "E...",
    "ks": "K...",
    "fakes": "N...",
    "only": "CHECK...",
    "serve": "WAY...",
}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Argument(NamedTuple):
    """An argument as it is declared; a default that is not a literal is None."""

    annotation: str
    default: Any
    words: str


@cache
def arguments(place: str) -> dict[str, Argument]:
    """Return the arguments of a function, or the fields of a dataclass, by name.

    Args:
        place: ``module:name``, the module relative to the package.

    Example:
        >>> arguments("robustness.threat:Threat")["side"].default
        'both'
    """
    module, _, name = place.partition(":")
    node = _statement(module, name)
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        raise LookupError(f"options of the command line are those of {place}, which is missing")
    words = _entries(ast.get_docstring(node) or "")
    return {
        key: Argument(
            ast.unparse(kind) if kind else "", _literal(module, default), words.get(key, "")
        )
        for key, kind, default in _declared(node)
    }


def values(place: str) -> tuple[str, ...]:
    """Return the names in a constant: the items of a tuple, or the keys of a dict.

    Example:
        >>> values("robustness.threat:UNITS")
        ('own', 'relative', 'absolute')
    """
    module, _, name = place.partition(":")
    found = _literal(module, ast.Name(name))
    if not isinstance(found, tuple):
        raise LookupError(f"choices of the command line are those of {place}, which cannot be read")
    return found


def options(place: str, *names: str, unset: bool = False, **types: Any) -> Decorator:
    """Return a decorator that adds an option for each of some arguments.

    Args:
        place: see :func:`arguments`.
        names: ``name``, or ``name=option`` where the option has another name. The command gets a
            list under the name of the argument, and other values under that of the option.
        unset: whether the default is None, for settings that a preset decides.
        types: name -> the type of its option, where the annotation does not give it; a text is
            the place of a constant with its choices, see :func:`values`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        known = arguments(place)
        for spelled in reversed(names):
            name, _, option = spelled.partition("=")
            kind = types.get(name)
            kind = Choice(values(kind)) if isinstance(kind, str) else kind
            function = _option(name, option or name, known[name], kind, unset=unset)(function)
        return function

    return decorate


def _option(name: str, option: str, argument: Argument, kind: Any, *, unset: bool) -> Decorator:
    annotation = argument.annotation.replace(" | None", "")
    is_list = re.match(r"(tuple|Sequence)\[(\w+)", annotation)
    spelling = f"--{option.replace('_', '-')}"
    default = None if unset else argument.default
    text = f"{argument.words}."
    if annotation == "bool" and kind is None:
        both = f"{spelling}/--no-{spelling[2:]}" if argument.default else spelling
        default = None if argument.default else False
        return click.option(both, default=default, is_flag=True, help=text)
    if kind is None:
        kind = SEED if name == "seed" else _KINDS.get(is_list[2] if is_list else annotation)
    if is_list:
        default = default or ()
    choice = isinstance(kind, click.Choice)
    return click.option(
        spelling,
        name if is_list else option.replace("-", "_"),
        type=kind,
        default=default,
        show_default=default not in (None, ()),
        multiple=bool(is_list),
        metavar=getattr(kind, "metavar", None)
        or next((v for k, v in _METAVARS.items() if name.endswith(k) and not choice), None),
        help=text,
    )


@cache
def _source(module: str) -> str:
    path = _PACKAGE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text(encoding="utf-8")


def _statement(module: str, name: str) -> ast.stmt | None:
    """Return the top-level statement that defines a name; the rest is not parsed."""
    text = _source(module)
    begin = re.search(rf"^(?:class |def |){name}\b(?!\.)", text, re.MULTILINE)
    if begin is None:
        return None
    end = re.compile(r"\n(?=[^\s)\]}])").search(text, begin.end())
    return ast.parse(text[begin.start() : end.start() if end else None]).body[0]


def _declared(
    node: ast.ClassDef | ast.FunctionDef,
) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    if isinstance(node, ast.ClassDef):
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                yield line.target.id, line.annotation, line.value
        return
    taken = node.args
    none = [None] * (len(taken.args) - len(taken.defaults))
    defaults = [*none, *taken.defaults, *taken.kw_defaults]
    for argument, default in zip([*taken.args, *taken.kwonlyargs], defaults, strict=True):
        yield argument.arg, argument.annotation, default


def _literal(module: str, node: ast.expr | None) -> Any:
    """Evaluate an expression of literals and constants of its module; None for any other."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict | ast.Tuple):
        parts = node.keys if isinstance(node, ast.Dict) else node.elts
        found = tuple(_literal(module, part) for part in parts)
        return None if None in found else found
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        return _literal(module, node.slice)
    return _constant(module, node.id) if isinstance(node, ast.Name) else None


def _constant(module: str, name: str) -> Any:
    line = _statement(module, name)
    if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Tuple):  # A, B = BOTH
        first = ast.unparse(line.targets[0].elts[0]) == name
        return (_literal(module, line.value) or (None,))[0] if first else None
    if isinstance(line, ast.Assign | ast.AnnAssign):
        return _literal(module, line.value)
    imported = rf"^from robustcf\.([\w.]+) import (?:\([^)]*|[^(\n]*)\b{name}\b"
    found = re.search(imported, _source(module), re.MULTILINE)
    return _constant(found[1], name) if found else None


def _entries(docstring: str) -> dict[str, str]:
    """Return argument -> the first sentence about it, as plain text without its full stop."""
    _, found, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0] if found else ""
    entries = re.findall(r"^    (\w+): (.+?)(?=^    \w|\Z)", section, re.MULTILINE | re.DOTALL)
    return {name: _plain(" ".join(text.split())) for name, text in entries}


def _plain(text: str) -> str:
    is_value = text.startswith("``")  # values are spelled as they are
    text = re.sub(r":\w+:`(?:[\w.]*\.)?(\w+)`|``(.*?)``", r"\1\2", text)
    text = re.split(r"\.(?: |$)", text)[0].replace("None for", "default:")
    return text if is_value else text[:1].upper() + text[1:]
