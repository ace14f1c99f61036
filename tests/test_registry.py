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
def test_every_name_of_a_table_is_a_class_of_its_kind(table: Table[Any]) -> None:
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


def test_what_is_no_name_is_not_in_a_table() -> None:
    assert "svd" not in MODELS
    assert None not in MODELS
    assert "robustcf.models.factorizations:BPRMF" not in MODELS


def test_listing_the_tables_imports_nothing_large() -> None:
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


def test_a_class_of_ones_own_is_found_in_the_folder_one_is_in(folder: Path) -> None:
    (folder / "mine_rcf.py").write_text(MODULE, encoding="utf-8")
    assert str(folder) not in sys.path
    found = MODELS["mine_rcf:Mine"]
    assert issubclass(found, BPRMF)
    assert found.name == "mine"
    assert sys.path[-1] == str(folder), "last: nothing of it takes another module's place"
    assert MODELS["mine_rcf:Mine"] is found
    assert sys.path.count(str(folder)) == 1


def test_a_class_in_a_package_is_found(folder: Path) -> None:
    (folder / "pack_rcf").mkdir()
    (folder / "pack_rcf" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "pack_rcf" / "deep.py").write_text(MODULE, encoding="utf-8")
    assert MODELS["pack_rcf.deep:Mine"].__module__ == "pack_rcf.deep"


def test_an_installed_class_is_found_from_anywhere(folder: Path) -> None:
    assert MODELS["robustcf.models.factorizations:BPRMF"] is BPRMF


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_rcf:X", "model 'nowhere_rcf:X' cannot be imported .*No module named 'nowhere"),
        ("mine_rcf:Nobody", "mine_rcf has no 'Nobody': give module:Class"),
        ("mine_rcf:", "mine_rcf has no '': give module:Class"),
        (":Mine", "model ':Mine' cannot be imported"),
        (":", "model ':' cannot be imported"),
        ("mine_rcf.deep:X", "model 'mine_rcf.deep:X' cannot be imported .*not a package"),
        ("mine_rcf:value", "mine_rcf:value must be a subclass of robustcf.models.base.Model to"),
        ("builtins:int", "builtins:int must be a subclass of robustcf.models.base.Model to serve"),
        ("robustcf.objectives:BPR", "to serve as a model, got <class 'robustcf.objectives.bpr.BPR"),
        ("needs_rcf:X", "model 'needs_rcf:X' cannot be imported .*No module named 'absent_rcf'"),
    ],
)
def test_what_is_no_class_of_the_kind_is_said(folder: Path, name: str, message: str) -> None:
    (folder / "mine_rcf.py").write_text(MODULE, encoding="utf-8")
    (folder / "needs_rcf.py").write_text("import absent_rcf\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        MODELS[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_rcf:X", "run from the folder of nowhere_rcf.py, or set PYTHONPATH"),
        ("no_rcf.deep:X", "run from the folder that the package no_rcf is in, or set PYTHONPATH"),
        ("needs_rcf:X", "needs_rcf is there, but something that it imports is not; install that"),
        ("wants_rcf:X", r"cannot import name 'absent' .*: wants_rcf is there, but something"),
        ("wrong_rcf:X", r"syntax error in it \(.*wrong_rcf.py, line 2\): "),
        ("leads_rcf:X", r"syntax error in it \(.*wrong_rcf.py, line 2\): "),
        ("mine_rcf.py:Mine", "give module:Class; did you mean mine_rcf:Mine?"),
        ("./pack/mine_rcf.py:Mine", "did you mean pack.mine_rcf:Mine?"),
        ("mine_rcf.Mine", "or module:Class, got 'mine_rcf.Mine'; did you mean 'mine_rcf:Mine'?"),
    ],
)
def test_why_a_module_cannot_be_imported_is_said(folder: Path, name: str, message: str) -> None:
    (folder / "mine_rcf.py").write_text(MODULE, encoding="utf-8")
    (folder / "needs_rcf.py").write_text("import absent_rcf\n", encoding="utf-8")
    (folder / "wants_rcf.py").write_text("from math import absent\n", encoding="utf-8")
    (folder / "wrong_rcf.py").write_text("x = 1\nclass X(:\n", encoding="utf-8")
    (folder / "leads_rcf.py").write_text("import wrong_rcf\n", encoding="utf-8")
    with pytest.raises(InputError, match=message.replace("?", r"\?")) as caught:
        MODELS[name]
    found = "nowhere" in name or "no_rcf" in name
    assert ("PYTHONPATH" in str(caught.value)) == found, "only where it is not found"


def test_an_error_in_ones_own_module_is_ones_own(folder: Path) -> None:
    (folder / "broken_rcf.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        MODELS["broken_rcf:X"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ultragc", "got 'ultragc'; did you mean 'ultragcn'?"),
        ("bprmf", "got 'bprmf'; did you mean 'bpr-mf'?"),
        ("", "got ''"),
        ("zzz", "got 'zzz'"),
        (None, "got None"),
        (3, "got 3"),
    ],
)
def test_unknown_names_list_the_known_ones_and_suggest(name: Any, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        MODELS[name]
    known = ", ".join(MODELS)
    assert str(caught.value) == f"model must be one of {known}, or module:Class, {hint}"


# --- entry points ---------------------------------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """As if packages with these entry points were installed."""

    def entry_points(*, group: str) -> EntryPoints:
        return EntryPoints(points).select(group=group)

    monkeypatch.setattr("robustcf._registry.entry_points", entry_points)


def test_an_installed_package_adds_a_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(InputError, match="model must be one of ultragcn"):
        MODELS["elsewhere"]
    # Such a name is no entry of the table: reading a configuration does not import it.
    assert "theirs" not in MODELS


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("builtins:int", "theirs must be a subclass of robustcf.models.base.Model to serve as a"),
        ("absent_rcf:X", "model 'theirs' of an installed package cannot be imported .*absent_rcf"),
        ("builtins:nothing", "model 'theirs' of an installed package cannot be imported"),
    ],
)
def test_an_entry_point_that_is_none_is_said(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, EntryPoint("theirs", value, "robustcf.models"))
    with pytest.raises(InputError, match=message):
        MODELS["theirs"]


def test_the_real_entry_points_are_asked() -> None:
    table: Table[Any] = Table("nothing", {}, "builtins:object")
    assert table.group == "robustcf.nothings"
    with pytest.raises(InputError, match="nothing must be one of"):
        table["anything"]
    assert issubclass(MODELS["bpr-mf"], Model)
