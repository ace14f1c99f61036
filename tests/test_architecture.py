"""Who may import whom: downwards only. The map is in docs/architecture.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import robustcf

PACKAGE = Path(__file__).resolve().parent.parent / "robustcf"

# From the ground up: a room may import any room below it that is listed for it, and no other. A
# room that is not listed has no place in the house yet.
GROUND = {"errors", "_ground"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    # What is private to the package: _io, _registry (which names classes as text), and so on.
    "_ground": {"errors"},
    "factors": GROUND,
    "data": GROUND,
    "estimators": GROUND,
    "regularizers": GROUND | {"estimators"},
    "objectives": GROUND | {"data"},
    "metrics": GROUND | {"data", "factors"},
    "models": GROUND | {"data", "factors", "objectives", "metrics"},
    # Recommenders of any origin; new users are folded in by a model's objective.
    "recommender": GROUND | {"data", "factors", "objectives", "models", "metrics"},
    "attacks": GROUND | {"data", "factors", "objectives", "metrics"},
    "training": GROUND
    | {
        *("data", "estimators", "factors", "regularizers", "objectives", "models", "metrics"),
        *("recommender", "attacks"),
    },
    "robustness": GROUND
    | {"data", "factors", "objectives", "models", "metrics", "recommender", "attacks"},
    "poisoning": GROUND | {"data", "factors", "objectives", "models", "metrics", "training"},
    # Other libraries' factors; none of those libraries is imported, see tests/adapters.
    "adapters": GROUND | {"data", "factors", "models", "recommender"},
    "experiments": GROUND
    | {
        *("data", "metrics", "models", "recommender", "training", "poisoning", "robustness"),
        "adapters",
    },
    "auditing": GROUND
    | {"data", "factors", "models", "metrics", "recommender", "attacks", "robustness"},
    # What plug-ins are tested by: the contract of a recommender.
    "testing": GROUND | {"data", "recommender"},
    # Of experiments, vision takes the folders alone, see below: it knows nothing of recommenders.
    "vision": GROUND | {"estimators", "experiments"},
    # The top: parse, call one function, format.
    "cli": GROUND
    | {
        *("data", "estimators", "factors", "recommender", "attacks", "models", "training"),
        *("poisoning", "robustness", "experiments", "adapters", "auditing", "vision"),
    },
    "__main__": {"cli"},
}


def room_of(path: Path) -> str:
    return _room(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))


def _room(name: str) -> str:
    return "_ground" if name.startswith("_") and not name.startswith("__") else name


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    for_types = {
        child
        for node in nodes
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in nodes:
        if node in for_types or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            whole = node.module == "robustcf"
            names = [f"robustcf.{name}" for name in names] if whole else [node.module]
        rooms |= {_room(name.split(".")[1]) for name in names if name.startswith("robustcf.")}
    return rooms - {"__version__"}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_imports_point_downwards(path):
    room = room_of(path)
    if path == PACKAGE / "__init__.py":
        return
    assert room in MAY_IMPORT, f"{room} has no place in the house: add it to the map"
    assert imported_rooms(path) - {room} <= MAY_IMPORT[room]


def test_the_house_has_floors():
    """Rooms can be put in an order in which imports point one way: no room leads back to itself."""
    below: set[str] = set()
    left = dict(MAY_IMPORT)
    while left:
        ready = {room for room, needs in left.items() if needs <= below}
        assert ready, f"these rooms import each other in a circle: {sorted(left)}"
        below |= ready
        left = {room: needs for room, needs in left.items() if room not in ready}


def test_every_room_is_on_the_map():
    rooms = {
        room_of(path)
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__"} == set(MAY_IMPORT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import robustcf", {"numpy", "torch", "pandas", "scipy"}),
        ("import robustcf.vision", {"pandas", "scipy", "matplotlib", "requests", "sklearn", "PIL"}),
        ("import robustcf.data", {"torch", "pandas", "scipy", "matplotlib", "requests"}),
        ("import robustcf.experiments.comparison", {"torch", "pandas", "scipy", "matplotlib"}),
        ("import robustcf.adapters", {"torch", "numpy", "pandas", "scipy", "implicit", "cornac"}),
        ("import robustcf.experiments.saved", {"torch", "pandas", "scipy", "matplotlib"}),
        ("import robustcf.robustness.curves", {"torch", "pandas", "scipy", "matplotlib"}),
    ],
)
def test_importing_one_room_does_not_load_the_house(statement, absent):
    assert not loaded(statement) & absent


def loaded(statement: str) -> set[str]:
    """Every module that a fresh interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_next_to_nothing():
    assert dir(robustcf) == robustcf.__all__
    assert {"Recommender", "train", "open", "load", "measure"} <= set(robustcf.__all__)
    assert len(robustcf.__all__) <= 16  # few enough to read
    modules = loaded("import robustcf; assert dir(robustcf) == robustcf.__all__")
    assert not modules & {"numpy", "torch", "pandas", "scipy", "click"}
    own = {name for name in modules if name.split(".")[0] == "robustcf"}
    assert own == {"robustcf"} | {"robustcf._cpus", "robustcf._lazy"}


@pytest.mark.parametrize("name", robustcf.__all__)
def test_every_name_leads_somewhere(name):
    assert getattr(robustcf, name).__module__.startswith("robustcf.")


@pytest.mark.slow
def test_measuring_a_recommender_loads_no_training():
    modules = loaded("from robustcf import Recommender, measure")
    own = {name for name in modules if name.split(".")[0] == "robustcf"}
    rooms = {name.split(".")[1] for name in own if "." in name}
    assert not rooms & {"training", "poisoning", "experiments", "auditing", "vision"}
    assert len(own) <= 70, sorted(own)


@pytest.mark.slow
def test_commands_load_what_they_need(tmp_path):
    """Each command, run to its end, has loaded at most 110 modules of ours."""
    count = "print('modules', sum(name.split('.')[0] == 'robustcf' for name in sys.modules))"
    code = f"import sys\nfrom robustcf.cli.main import run\nassert run(sys.argv[1:]) == 0\n{count}"
    common = ["--dataset", "demo", "--model", "als"]
    fakes = ["--attack", "random", "--fakes", "5", "--targets", "1", "--seeds", "1"]
    for words in (
        ["train", *common, "--set", "factors=4", "--out", "run"],
        ["attack", "run", "--epsilons", "0", "0.1"],
        ["audit", "run", "--out", "audit.html"],
        ["poison", *common, *fakes, "--out", "grid"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True, text=True, cwd=tmp_path, check=True,
        )  # fmt: skip
        assert int(done.stdout.split()[-1]) <= 110, words[0]


# Some files are pickles: this module reads them, and builds arrays, plain values and inert stubs.
READS_PICKLES = PACKAGE / "_io" / "unpickling.py"


@pytest.mark.parametrize("path", sorted((PACKAGE / "vision").rglob("*.py")), ids=lambda p: p.name)
def test_vision_takes_only_the_base_of_runs(path):
    taken = set(re.findall(r"robustcf\.experiments\.?(\w*)", path.read_text(encoding="utf-8")))
    assert taken <= {"folders", "records"}


def test_no_asserts_and_no_pickle_in_the_package():
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno}: raise an error instead"
            if isinstance(node, ast.Import | ast.ImportFrom) and path != READS_PICKLES:
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert "pickle" not in names, path
