"""Small tables for notebooks: everything that comes from outside is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from robustcf._io.naming import harmless

_STYLE = "text-align:left;padding:2px 10px 2px 0"


def _escaped(text: str) -> str:
    """Text that neither ends a tag nor reverses the text around it."""
    return escape(harmless(text))


def facts_table(facts: Mapping[str, str]) -> str:
    """Return names and values as a table of two columns; the empty name is the title.

    Example:
        >>> facts_table({"": "Model", "size": "<3"}).count("&lt;3")
        1
    """
    title = f"<strong>{_escaped(facts[''])}</strong>" if "" in facts else ""
    head, cell = (f'<{tag} style="{_STYLE}">' for tag in ("th", "td"))
    rows = "".join(
        f"<tr>{head}{_escaped(name)}</th>{cell}{_escaped(value)}</td></tr>"
        for name, value in facts.items()
        if name
    )
    return f"<div>{title}<table>{rows}</table></div>"


def rows_table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Return a table with a header and, above it, a caption.

    Example:
        >>> rows_table(["size"], [["0.1"]], "auto").startswith("<div>auto")
        True
    """
    head = "".join(f'<th style="{_STYLE}">{_escaped(cell)}</th>' for cell in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_STYLE}">{_escaped(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f"<div>{_escaped(caption)}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        "</div>"
    )
