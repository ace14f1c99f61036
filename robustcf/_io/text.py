"""Text that is safe to show: counts, names of files, tables, control characters spelt out."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

#: Columns of a line of text, at most.
WIDTH = 100
_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
# Unicode's categories of control, format, surrogate and other invisible characters.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_STYLE = "text-align:left;padding:2px 10px 2px 0"


def digest_name(name: str, settings: Any) -> str:
    """Return a short file name that different settings never share.

    Example:
        >>> digest_name("fgm-bce", {"epsilons": [0, 0.1]})
        'fgm-bce-ba5a1956'
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return f"{name.replace(':', '.')}-{digest}"


def counted(number: int, thing: str) -> str:
    """Return a number of things, one or several.

    Example:
        >>> counted(1, "epoch"), counted(2000, "pair")
        ('1 epoch', '2,000 pairs')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def harmless(text: str) -> str:
    r"""Return text with its control characters spelt out, but for ends of lines and tabs.

    Labels from strangers must not control a terminal or reverse the text around them.

    Example:
        >>> harmless("a" + chr(27) + "[2J")
        'a\\x1b[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        mark.encode("unicode_escape").decode()
        if unicodedata.category(mark) in _UNSEEN and mark not in "\n\t"
        else mark
        for mark in text
    )


def wrapped(text: str, indent: int = 0) -> str:
    """Return text with long lines wrapped, the further lines indented; long words stay whole.

    Example:
        >>> print(wrapped("word " * 30, indent=2)[90:])
        word word
          word word word word word word word word word word
    """
    how = {"width": WIDTH, "subsequent_indent": " " * indent, **_WHOLE_WORDS}
    return "\n".join(
        textwrap.fill(line, **how) if len(line) > WIDTH else line for line in text.split("\n")
    )


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)
) -> str:
    """Return columns aligned with blanks: those in ``left`` to the left, numbers to the right.

    Sentences of a last column in ``left`` are wrapped within their column.

    Example:
        >>> print(aligned(["model", "ndcg"], [["als", "0.5"]]))
        model  ndcg
        als     0.5
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    last = len(widths) - 1
    room = max(WIDTH - sum(widths[:-1]) - 2 * last, 30) if last in left else 0

    def line(cells: Sequence[str]) -> str:
        parts = cells[last:]
        if len(parts[0]) > room > 0:
            parts = textwrap.wrap(parts[0], room, **_WHOLE_WORDS)
        padded = [
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip([*cells[:last], parts[0]], widths, strict=True))
        ]
        further = (" " * (sum(widths[:-1]) + 2 * last) + part for part in parts[1:])
        return "\n".join(["  ".join(padded).rstrip(), *further])

    return "\n".join(map(line, (header, *rows)))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown.

    Example:
        >>> print(markdown(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def latex(
    header: Sequence[str], rows: Sequence[Sequence[str]], bold: Collection[tuple[int, int]] = ()
) -> str:
    r"""Return a table in LaTeX, for the package booktabs; ``bold`` are places (row, column).

    Example:
        >>> print(latex(["reg", "0.1"], [["max_norm", "0.5"]], bold=[(0, 1)]))
        \begin{tabular}{lr}
        \toprule
        reg & 0.1 \\
        \midrule
        max\_norm & \textbf{0.5} \\
        \bottomrule
        \end{tabular}
    """

    def line(cells: Sequence[str], row: int = -1) -> str:
        shown = [re.sub(r"[&%$#_{}]", r"\\\g<0>", cell) for cell in cells]
        marked = (rf"\textbf{{{c}}}" if (row, n) in bold else c for n, c in enumerate(shown))
        return " & ".join(marked) + r" \\"

    begin = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}"
    body = map(line, rows, range(len(rows)))
    rules = [r"\toprule", line(header), r"\midrule", *body, r"\bottomrule"]
    return "\n".join([begin, *rules, r"\end{tabular}"])


def facts_table(facts: Mapping[str, str]) -> str:
    """Return names and values as an HTML table of two columns; the empty name is the title."""
    title = f"<strong>{_escaped(facts[''])}</strong>" if "" in facts else ""
    rows = "".join(
        f"<tr>{_cell('th', name)}{_cell('td', value)}</tr>" for name, value in facts.items() if name
    )
    return f"<div>{title}<table>{rows}</table></div>"


def rows_table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Return an HTML table with a header and, above it, a caption."""
    head = "".join(_cell("th", name) for name in header)
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    return (
        f"<div>{_escaped(caption)}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        "</div>"
    )


def _cell(tag: str, text: str) -> str:
    return f'<{tag} style="{_STYLE}">{_escaped(text)}</{tag}>'


def _escaped(text: str) -> str:
    return escape(harmless(text))
