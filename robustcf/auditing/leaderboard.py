"""``leaderboard``: static pages and a Markdown table of entries; they need no server."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from robustcf import __version__
from robustcf._io.files import create_folder
from robustcf._io.text import harmless, markdown
from robustcf.auditing.entries import METRIC, RANKED, Entry, read_entry
from robustcf.auditing.page import template
from robustcf.errors import InputError

_SIZES = (0.02, RANKED, 0.1)
_HEADER = (
    *("", "model", "clean", *(f"at {size:g}" for size in _SIZES), f"certified at {RANKED:g}"),
    *("no labels", "noise", "int8", "hnsw", "factors", "flags"),
)
_TEXTS = (1, 12)
_OF_GROUPS = ("clean", "attacked")
# Columns of the Markdown table.
_SHORT = (0, 1, 2, 3, 4, 5, 6, 12)


@dataclass(frozen=True)
class Board:
    """The entries on one data set that store the same arrays, best first."""

    dataset: str
    surface: str
    entries: tuple[Entry, ...]

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text."""
        return [_row(place, entry) for place, entry in enumerate(self.entries, 1)]

    def frontier(self) -> list[Entry]:
        """Return the entries that no other one exceeds in clean and attacked quality."""
        kept: list[Entry] = []
        for entry in sorted(self.entries, key=lambda e: (-e.facts["clean"][METRIC], -_left(e))):
            if not entry.unreliable and all(_left(entry) > _left(other) for other in kept):
                kept.append(entry)
        return kept


def read_boards(folder: str | Path) -> list[Board]:
    """Read all entries below a folder and order them.

    Entries are ordered by NDCG@10 left at size 0.05, then by clean NDCG@10; those with a red flag
    come last. Data sets, splits and stored arrays are never mixed in one table.
    """
    place = Path(folder)
    paths = sorted(path for path in place.rglob("*.json") if not path.name.startswith("."))
    if not paths:
        raise InputError(f"{place} holds no entries: make one with 'robustcf submit'")
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for path in paths:
        entry = read_entry(path)
        data = entry.facts["dataset"]
        key = (data["name"], data["fingerprint"], entry.facts["surface"])
        groups.setdefault(key, []).append(entry)
    boards = []
    for (name, _, surface), entries in sorted(groups.items()):
        ordered = sorted(
            entries, key=lambda e: (e.unreliable, -_left(e), -e.facts["clean"][METRIC], str(e.path))
        )
        boards.append(Board(name, surface, tuple(ordered)))
    return boards


def markdown_table(boards: Sequence[Board], most: int | None = None) -> str:
    """Return the tables in Markdown, of the first entries of each."""
    parts = []
    for board in boards:
        rows = [[_in_markdown(row[n]) for n in _SHORT] for row in board.rows()[:most]]
        title = f"{board.dataset}, stored: {board.surface}"
        parts.append(f"**{_in_markdown(title)}**\n\n{markdown([_HEADER[n] for n in _SHORT], rows)}")
    return "\n\n".join(parts)


def write_site(boards: Sequence[Board], out: str | Path) -> Path:
    """Write ``index.html`` and a page for each entry into a new folder, and return the index."""
    page = template("leaderboard.html")
    names: dict[Path, str] = {}
    for board in boards:
        for entry in board.entries:
            names[entry.path] = f"entry-{len(names) + 1}.html"
    shared: dict[str, Any] = {"version": __version__, "ranked": f"{RANKED:g}", "texts": _TEXTS}
    title = "Recommenders under attack"
    index = {"title": title, "entry": None, "boards": [_board(one, names) for one in boards]}
    files = {"index.html": page.render(**shared, **index).encode()}
    for board in boards:
        for entry in board.entries:
            shown = {"title": entry.facts["name"], "entry": _shown(entry), "boards": []}
            files[names[entry.path]] = page.render(**shared, **shown).encode()
    create_folder(Path(out), files)
    return Path(out) / "index.html"


def _left(entry: Entry) -> float:
    return entry.attacked() or 0.0


def _row(place: int, entry: Entry) -> tuple[str, ...]:
    facts = entry.facts
    numbers = [
        facts["clean"][METRIC],
        *(entry.attacked(size) for size in _SIZES),
        entry.certified(),
        entry.attacked(key="without_labels"),
        entry.attacked(key="random"),
        *(facts["serving"].get(name) for name in ("int8", "hnsw")),
    ]
    flags = ", ".join(flag["name"] for flag in facts["flags"])
    return (
        "" if entry.unreliable else str(place),
        facts["name"],
        *("" if number is None else f"{number:.4f}" for number in numbers),
        str(facts["model"]["factors"]),
        f"unreliable: {flags}" if entry.unreliable else flags,
    )


def _in_markdown(text: str) -> str:
    plain = harmless(text).replace("\n", " ")
    return "".join(f"\\{sign}" if sign in "\\|`*_[]<>#" else sign for sign in plain)


def _board(board: Board, names: Mapping[Path, str]) -> dict[str, Any]:
    first = board.frontier()
    every = [*first, *(entry for entry in board.entries if entry not in first)]
    points = [(e.facts["clean"][METRIC], _left(e), e.facts["name"]) for e in every]
    frontier = [(x, y) for x, y, _ in points[: len(first)]]
    best = first[0].facts["name"] if first else "none"
    words = f"Clean NDCG@10 against NDCG@10 under attack at {RANKED:g}; the line joins the models"
    return {
        "dataset": board.dataset,
        "surface": board.surface,
        "header": _HEADER,
        "picture": _chart(points, [frontier], "clean NDCG@10", f"attacked at {RANKED:g}"),
        "alternative": f"{words} that no other exceeds in both. Best clean among these: {best}.",
        "rows": [
            {"cells": row, "page": names[entry.path], "unreliable": entry.unreliable}
            for row, entry in zip(board.rows(), board.entries, strict=True)
        ],
    }


def _shown(entry: Entry) -> dict[str, Any]:
    facts, rows = entry.facts, []
    for row in facts["attacked"]:
        cells = [row["value"], row.get("random"), row.get("without_labels")]
        cells.append(entry.certified(row["epsilon"]))
        rows.append([f"{row['epsilon']:g}", *("" if c is None else f"{c:.4f}" for c in cells)])
    lines = {
        words: [(row["epsilon"], row[key]) for row in facts[part] or () if row.get(key) is not None]
        for words, part, key in (
            ("attacked", "attacked", "value"),
            ("random directions", "attacked", "random"),
            ("attacked, no labels", "attacked", "without_labels"),
            ("certified", "certified", "value"),
        )
    }
    ends = [(*line[-1], words) for words, line in lines.items() if line]
    data, model, trained = facts["dataset"], facts["model"], facts.get("training") or {}
    about = {
        "authors": facts["authors"],
        "paper": facts.get("paper"),
        "code": facts.get("code"),
        "notes": facts.get("notes"),
        "data set": f"{data['name']} (fingerprint {data['fingerprint'][:12]})",
        "stored arrays": facts["surface"],
        "model": f"{model['kind']}, {model['factors']} factors, {model['parameters']:,} "
        f"parameters, stored and measured in {model['precision']}",
        "training": None
        if trained.get("seconds") is None
        else f"{trained['seconds']:.0f} s, {trained['machine']}",
        "fake accounts": ", ".join(f"{k} {v:g}" for k, v in (facts.get("fakes") or {}).items()),
        "attack": facts["attack"],
        "other clean metrics": ", ".join(f"{k} {v:.4f}" for k, v in facts["clean"].items()),
        "versions": ", ".join(f"{k} {v}" for k, v in facts["versions"].items()),
    }
    groups = [
        [group, *("" if (c := own.get(key)) is None else f"{c:.4f}" for key in _OF_GROUPS)]
        for group, own in facts["groups"].items()
    ]
    header = ("size", "attacked", "random directions", "attacked, no labels", "certified")
    return {
        "flags": facts["flags"],
        "tables": [(header, rows), *([(("group", *_OF_GROUPS), groups)] if groups else [])],
        "picture": _chart(ends, list(lines.values()), "size of the attack", "NDCG@10"),
        "alternative": "NDCG@10 against the size of attacks, random directions and certificates.",
        "facts": [(name, value) for name, value in about.items() if value],
        "commands": facts["commands"],
        "verify": f"robustcf verify {shlex.quote(entry.path.name)}",
    }


def _chart(
    points: Sequence[tuple[float, float, str]],
    lines: Sequence[Sequence[tuple[float, float]]],
    across: str,
    up: str,
) -> Markup:
    """Return a small picture as inline SVG, in the colours of the page.

    Of labels that would overlap, the first is drawn; every point has its own as a tooltip.
    """
    width, height, left, below = 640.0, 320.0, 56.0, 44.0
    spots = [(x, y) for x, y, _ in points] + [spot for line in lines for spot in line]
    xs, ys = ([spot[n] for spot in spots] or [0.0, 1.0] for n in (0, 1))
    ticks_x, ticks_y = _ticks(min(xs), max(xs)), _ticks(0.0, max(ys))
    low, span_x = ticks_x[0], ticks_x[-1] - ticks_x[0]
    span_y = ticks_y[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across_ = left + (x - low) / span_x * (width - left - 20)
        return round(across_, 1), round((height - below) * (1 - y / span_y) + 8, 1)

    parts = []
    for y in ticks_y:
        level = place(low, y)[1]
        parts.append(f'<line x1="{left}" x2="{width}" y1="{level}" y2="{level}" opacity=".2"/>')
        parts.append(_text(left - 6, level + 4, f"{y:g}", "end"))
    foot = height - below + 24
    parts += [_text(place(x, 0.0)[0], foot, f"{x:g}", "middle") for x in ticks_x]
    parts.append(_text((width + left) / 2, height - 4, across, "middle"))
    parts.append(_text(left, 3, up, "start"))
    for line in lines:
        for one, two in pairwise(line):
            (x1, y1), (x2, y2) = place(*one), place(*two)
            parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke-width="2"/>')
    taken: list[tuple[float, float, float]] = []
    for x, y, label in points:
        at = place(x, y)
        words = escape(harmless(label))
        spot = f'<circle cx="{at[0]}" cy="{at[1]}" r="5" fill="currentColor">'
        parts.append(f"{spot}<title>{words}</title></circle>")
        side = "end" if at[0] > width * 0.7 else "start"
        shift = -5 if side == "end" else 5
        begin = at[0] + shift - (7.0 * len(label[:40]) if side == "end" else 0.0)
        box = (begin, begin + 7.0 * len(label[:40]), at[1])
        if all(box[0] > b or box[1] < a or abs(box[2] - y) > 12 for a, b, y in taken):
            taken.append(box)
            parts.append(_text(at[0] + shift, at[1] - 6, label[:40], side))
    body = "".join(parts)
    frame = f'viewBox="0 -10 {width:g} {height + 10:g}"'
    return Markup(
        f'<svg {frame} stroke="currentColor" font-size="12" role="presentation">{body}</svg>'
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers around a range.

    Example:
        >>> _ticks(0.03, 0.2)
        [0.0, 0.05, 0.1, 0.15, 0.2]
    """
    rough = max(high - low, 1e-3) / 4
    unit: float = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * n, 10) for n in range(first, max(last, first + 1) + 1)]


def _text(x: float, y: float, words: str, anchor: str) -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text {place} stroke="none" fill="currentColor">{escape(harmless(words))}</text>'
