"""Who may import whom: downwards only. The map is in the README."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "robustcf"

# Room -> the rooms it may import. A room that is not listed here has no place in the house yet.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "randomness": {"errors"},
    "data": {"errors", "randomness"},
    "estimators": {"errors"},
    "factors": {"errors"},
    "files": {"errors"},
    "losses": {"errors"},
    "settings": {"errors"},
    "config": {"errors", "settings"},
    "runtime": {"errors", "randomness"},
    "regularizers": {"errors", "estimators"},
    "models": {"errors", "randomness", "data", "factors", "losses"},
    "metrics": {"errors", "data", "factors"},
    "attacks": {"errors", "randomness", "data", "factors", "losses"},
    "gauge": {"factors"},
    "adversarial": {"errors", "data", "factors", "losses", "models", "attacks"},
    "optim": {"errors"},
    "presets": {"errors", "config"},
    "fitting": {
        *("errors", "factors", "models", "regularizers", "estimators", "optim", "adversarial"),
    },
    "training": {
        *("errors", "randomness", "runtime", "config", "data", "factors", "losses", "models"),
        *("metrics", "regularizers", "presets", "adversarial", "gauge", "fitting"),
    },
    "robustness": {
        *("errors", "files", "config", "data", "factors", "metrics", "models", "attacks"),
    },
    "attack_settings": {"errors", "robustness"},
    "statistics": {"errors"},
    "comparison": {"errors", "randomness", "statistics"},
    "saved_curves": {"errors", "config", "files"},
    "certificates": {"errors", "data", "factors", "metrics", "attacks", "robustness"},
    # Of data, vision takes the downloader, the archive reader and the places files live in: image
    # sets are fetched and checked as interactions are. Nothing else of the recommender side.
    "vision": {"errors", "randomness", "runtime", "estimators", "files", "settings", "data"},
}
TOP = {"runs", "plots", "recommending", "sweeps", "cli", "__main__"}


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "robustcf":
                names = [f"robustcf.{alias.name}" for alias in node.names]
            else:
                names = [node.module]
        rooms |= {name.split(".")[1] for name in names if name.startswith("robustcf.")}
    return rooms - {"__version__"}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_imports_point_downwards(path):
    room = room_of(path)
    if room in TOP or path == PACKAGE / "__init__.py":
        return
    assert room in MAY_IMPORT, f"{room} has no place in the house: add it to the map"
    assert imported_rooms(path) - {room} <= MAY_IMPORT[room]


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import robustcf", {"numpy", "torch", "pandas", "scipy"}),
        ("import robustcf.vision", {"pandas", "scipy", "matplotlib", "requests", "sklearn", "PIL"}),
        ("import robustcf.data", {"torch", "pandas", "scipy", "matplotlib", "requests"}),
        ("import robustcf.studies.comparison", {"torch", "pandas", "scipy", "matplotlib"}),
        ("import robustcf.runs.saved", {"torch", "pandas", "scipy", "matplotlib"}),
    ],
)
def test_importing_one_room_does_not_load_the_house(statement, absent):
    code = f"import sys; {statement}; print(*(set(sys.modules) & {absent!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# CIFAR's archives are pickles: this module reads them, and builds arrays and plain values only.
READS_PICKLES = PACKAGE / "vision" / "unpickling.py"


@pytest.mark.parametrize("path", sorted((PACKAGE / "vision").rglob("*.py")), ids=lambda p: p.name)
def test_vision_takes_only_the_fetching_of_files_from_data(path):
    text = path.read_text(encoding="utf-8")
    taken = set(re.findall(r"robustcf\.data\.?(\w*)", text))
    assert taken <= {"archives", "catalog", "download", "places"}


def test_no_asserts_and_no_pickle_in_the_package():
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno}: raise an error instead"
            if path == READS_PICKLES:
                continue
            if isinstance(node, ast.Import):
                assert all(alias.name != "pickle" for alias in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert node.module != "pickle", path
