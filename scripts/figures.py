"""Write the tables of README and docs from the files in ``results/``.

    python scripts/figures.py
    python scripts/figures.py --check

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. With ``--check``
nothing is written, and a page whose table is not that of the file ends the script with an error.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from robustcf.auditing.leaderboard import markdown_table, read_boards

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
BOARD = RESULTS / "leaderboard" / "README.md"
PAGES = (ROOT / "README.md", BOARD, *sorted((ROOT / "docs").rglob("*.md")))
_TABLE = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
# Setting of the demo -> how it is shown, where that differs.
SHOWN = {
    "softmax MF": "softmax MF, the default",
    "robust preset, fold-in": "robust preset, users not stored",
}
ATTACKED = (0.02, 0.05, 0.1)


def _json(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def robustness(sizes: Iterable[float] = ATTACKED, certified: Iterable[float] = (0.05,)) -> str:
    """MovieLens-1M under the headline attack."""
    found = _json("robustness-ml-1m.json")["auto"]
    at = {size: found["epsilons"].index(size) for size in (0.0, *sizes, *certified)}
    rows = []
    for name, curves in found["ndcg@10"].items():
        values = [curves["attack"][at[size]] for size in (0.0, *sizes)]
        values += [curves["certificate"][at[size]] for size in certified]
        written = "items" if "fold-in" in name else "users, items"
        rows.append([SHOWN.get(name, name), written, *(f"{value:.4f}" for value in values)])
    head = ["NDCG@10", "may be written", "clean", *(f"at {size:g}" for size in sizes)]
    return _markdown([*head, *(f"certified at {size:g}" for size in certified)], rows)


def seeds() -> str:
    """The first table of the sweep: the headline attack, means over seeds."""
    text = (RESULTS / "sweep-ml-1m.md").read_text(encoding="utf-8")
    return re.search(r"(\| ndcg@10.*\n(?:\|.*\n)+)", text)[1]  # type: ignore[index]


def quality() -> str:
    """The presets on test, and what training cost."""
    head = ["on test", "Recall@20", "NDCG@20", "CPU seconds", "peak GB", "command"]
    rows = [
        [
            name,
            f"{row['recall@20']:.4f}",
            f"{row['ndcg@20']:.4f}",
            f"{row['CPU seconds']:.0f}",
            f"{row['peak GB']:.1f}",
            f"`{row['command']}`",
        ]
        for name, row in _json("quality.json").items()
    ]
    return _markdown(head, rows)


def leaderboard(most: int | None = None) -> str:
    """The leaderboard, or the first rows of its largest table."""
    boards = read_boards(RESULTS / "leaderboard")
    if most is not None:
        boards = [max(boards, key=lambda board: len(board.entries))]
    text = markdown_table(boards, most).strip() + "\n"
    return text if most is None else text.split("\n\n", 1)[1]  # without the title


TABLES: dict[str, Callable[[], str]] = {
    "readme": robustness,
    "robustness": lambda: robustness((0.01, *ATTACKED, 0.2), (0.02, 0.05)),
    "seeds": seeds,
    "quality": quality,
    "leaderboard": leaderboard,
    "leaderboard-first": lambda: leaderboard(2),
}


def filled(text: str) -> str:
    """Return a page with its tables written anew."""
    return _TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    stale = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            stale.append(str(path.relative_to(ROOT)))
            if not options.check:
                path.write_text(new, encoding="utf-8")
    if stale and options.check:
        raise SystemExit(f"tables differ from results/: {', '.join(stale)}; run scripts/figures.py")
    print(f"written: {', '.join(stale)}" if stale else "all tables are those of results/")


if __name__ == "__main__":
    main()
