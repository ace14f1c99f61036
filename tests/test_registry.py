"""Tables: their own names, module:Class from the folder one is in, entry points, and errors."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from robustcf._registry import ADVERSARIES, ATTACKS, MODELS, OBJECTIVES, REGULARIZERS, Table
from robustcf.errors import InputError
from robustcf.models import BPRMF, Model

ALL = [MODELS, OBJECTIVES, REGULARIZERS, ADVERSARIES, ATTACKS]
MODULE = "from robustcf.models import BPRMF\n\nclass Mine(BPRMF):\n    name = 'mine'\n\nvalue = 3\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty folder to be in, which is not on the path yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if "_rcf" in name:
            del sys.modules[name]


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.kind)
def test_every_name_of_a_table_is_a_class_of_its_kind(table):
    names = list(table)
    assert names
    for name in names:
        assert name in table
        found = table[name]
        assert isinstance(found, type)
        base = table._base.partition(":")
        assert base[2] in [parent.__name__ for parent in found.__mro__]
        # What is in the table is found by its full name too, and passes the check there.
        assert table[table._entries[name]] is found
    assert table.group == f"robustcf.{table.kind}s"
    for other in ("svd", None, "robustcf.models.factorizations:BPRMF"):
        assert other not in table


def test_listing_the_tables_imports_nothing_large():
    code = (
        "import sys; from robustcf._registry import MODELS, ATTACKS; "
        "print(list(MODELS), list(ATTACKS)); "
        "print([m for m in ('numpy', 'torch', 'scipy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, heavy = done.stdout.splitlines()
    assert "ultragcn" in names
    assert heavy == "[]"


# --- module:Class ---------------------------------------------------------------------------


def test_a_class_of_ones_own_is_found_in_the_folder_one_is_in(folder):
    (folder / "mine_rcf.py").write_text(MODULE, encoding="utf-8")
    (folder / "pack_rcf").mkdir()
    (folder / "pack_rcf" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "pack_rcf" / "deep.py").write_text(MODULE, encoding="utf-8")
    assert str(folder) not in sys.path
    found = MODELS["mine_rcf:Mine"]
    assert issubclass(found, BPRMF)
    assert sys.path[-1] == str(folder), "last, so that it does not shadow other modules"
    assert MODELS["mine_rcf:Mine"] is found
    assert MODELS["pack_rcf.deep:Mine"].__module__ == "pack_rcf.deep"
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nowhere_rcf:X", "folder of nowhere_rcf.py"),
        ("no_rcf.deep:X", "package no_rcf is in"),
        ("mine_rcf:Missing", "has no 'Missing'"),
        ("mine_rcf:", "has no ''"),
        (":Mine", "cannot be imported"),
        (":", "cannot be imported"),
        ("mine_rcf.deep:X", "not a package"),
        ("mine_rcf:value", "must be a subclass"),
        ("builtins:int", "must be a subclass"),
        ("robustcf.objectives:BPR", "to serve as a model"),
        ("needs_rcf:X", "something that it imports is not"),
        ("wants_rcf:X", "something that it imports is not"),
        ("wrong_rcf:X", r"syntax error in it \(.*wrong_rcf.py, line 2"),
        ("leads_rcf:X", r"syntax error in it \(.*wrong_rcf.py, line 2"),
        ("mine_rcf.py:Mine", "did you mean mine_rcf:Mine"),
        ("./pack/mine_rcf.py:Mine", "did you mean pack.mine_rcf:Mine"),
        ("mine_rcf.Mine", "did you mean 'mine_rcf:Mine'"),
        ("ultragc", "did you mean 'ultragcn'"),
        ("bprmf", "did you mean 'bpr-mf'"),
        *((name, "model must be one of ultragcn") for name in ("", "zzz", None, 3)),
    ],
)
def test_what_is_no_class_of_the_kind_is_said(folder, name, word):
    for module, content in {
        "mine_rcf": MODULE,
        "needs_rcf": "import absent_rcf\n",
        "wants_rcf": "from math import absent\n",
        "wrong_rcf": "x = 1\nclass X(:\n",
        "leads_rcf": "import wrong_rcf\n",
    }.items():
        (folder / f"{module}.py").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=word) as caught:
        MODELS[name]
    unfound = str(name).startswith(("nowhere", "no_rcf"))
    assert ("PYTHONPATH" in str(caught.value)) == (unfound or name == "mine_rcf.deep:X")


def test_an_error_in_ones_own_module_is_ones_own(folder):
    (folder / "broken_rcf.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        MODELS["broken_rcf:X"]


# --- entry points ---------------------------------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """As if packages with these entry points were installed."""

    def entry_points(*, group: str) -> EntryPoints:
        return EntryPoints(points).select(group=group)

    monkeypatch.setattr("robustcf._registry.entry_points", entry_points)


def test_an_installed_package_adds_a_name(folder, monkeypatch):
    (folder / "plugin_rcf.py").write_text(MODULE, encoding="utf-8")
    sys.path.append(str(folder))
    installed(
        monkeypatch,
        EntryPoint("theirs", "plugin_rcf:Mine", "robustcf.models"),
        EntryPoint("elsewhere", "plugin_rcf:Mine", "robustcf.attacks"),
        EntryPoint("ultragcn", "plugin_rcf:Mine", "robustcf.models"),
    )
    assert "plugin_rcf" not in sys.modules
    assert MODELS["theirs"].__module__ == "plugin_rcf"
    assert MODELS["ultragcn"].__module__ == "robustcf.models.factorizations", "ours come first"
    with pytest.raises(InputError, match="ultragcn"):
        MODELS["elsewhere"]
    # Such a name is not an entry of the table: reading a configuration does not import it.
    assert "theirs" not in MODELS


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("builtins:int", "must be a subclass"),
        ("absent_rcf:X", "installed package"),
        ("builtins:nothing", "installed package"),
    ],
)
def test_an_entry_point_that_is_none_is_said(value, word, monkeypatch):
    installed(monkeypatch, EntryPoint("theirs", value, "robustcf.models"))
    with pytest.raises(InputError, match=word):
        MODELS["theirs"]


def test_the_real_entry_points_are_asked():
    table: Table[Any] = Table("nothing", {}, "builtins:object")
    assert table.group == "robustcf.nothings"
    with pytest.raises(InputError, match="nothing"):
        table["anything"]
    assert issubclass(MODELS["bpr-mf"], Model)
