"""robustcf detect: suspects by their labels, as text, JSON and CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from robustcf.cli.main import run
from robustcf.data import Interactions
from robustcf.poisoning import inject
from tests.poisoning.defences.test_detectors import copies, rare, tastes


def written(folder: Path, pairs: Interactions) -> str:
    path = folder / "pairs.csv"
    lines = [f"u{u},i{i}" for u, i in zip(pairs.users.tolist(), pairs.items.tolist(), strict=True)]
    path.write_text("user,item\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def poisoned(tmp_path: Path) -> tuple[str, list[str], str]:
    train = tastes(0)
    target = int(rare(train, 1)[0])
    both = inject(train, copies(train, 12, np.array([target])))
    return written(tmp_path, both), [f"u{300 + n}" for n in range(12)], f"i{target}"


def test_suspects_are_listed_by_label(poisoned, tmp_path, capsys) -> None:
    path, fakes, target = poisoned
    out = tmp_path / "suspects.csv"
    assert run(["detect", "--dataset", path, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(row["user"] for row in found["suspects"]) == fakes
    assert found["items"] == [target]
    assert found["users"] == 312
    assert found["by"]["twins"] == 12
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["user"] for row in rows) == fakes
    assert {row["flagged by"] for row in rows} == {"twins"}
    assert all(float(row["twins score"]) > 6 for row in rows)


@pytest.mark.parametrize("raw", [False, True])
def test_labels_that_look_like_formulas_are_not_run(poisoned, tmp_path, capsys, raw) -> None:
    path, fakes, _ = poisoned
    text = Path(path).read_text()
    Path(path).write_text(text.replace("\nu", "\n=u"))
    out = tmp_path / "suspects.csv"
    words = ["detect", "--dataset", path, "--out", str(out), "--json"]
    assert run([*words, *(["--raw"] if raw else [])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(row["user"] for row in found["suspects"]) == [f"={name}" for name in fakes]
    with out.open(encoding="utf-8", newline="") as file:
        users = sorted(row["user"] for row in csv.DictReader(file))
    assert users == [f"={name}" if raw else f"'={name}" for name in fakes]


def test_text_and_a_choice_of_detectors(poisoned, capsys) -> None:
    path, _, target = poisoned
    assert run(["detect", "--dataset", path]) == 0
    text = capsys.readouterr().out
    assert "12 of 312 users look fake (pca 0, twins 12, groups 0)" in text
    assert f"items that they promote: {target}" in text
    assert run(["detect", "--dataset", path, "--by", "pca", "groups"]) == 0
    assert "0 of 312 users look fake (pca 0, groups 0)" in capsys.readouterr().out


def test_clean_data_give_an_empty_file_with_a_header(tmp_path, capsys) -> None:
    path, out = written(tmp_path, tastes(1)), tmp_path / "suspects.csv"
    assert run(["detect", "--dataset", path, "--out", str(out)]) == 0
    assert "0 of 300 users look fake" in capsys.readouterr().out
    assert out.read_text() == "user,pairs,flagged by,pca score,twins score,groups score\n"


def test_many_suspects_are_cut_in_the_text(tmp_path, capsys) -> None:
    train = tastes(0)
    both = inject(train, copies(train, 30, rare(train, 1)))
    assert run(["detect", "--dataset", written(tmp_path, both)]) == 0
    assert "... and 10 more: --out FILE has all" in capsys.readouterr().out


def test_wrong_words(tmp_path, capsys) -> None:
    assert run(["detect", "--dataset", "demo", "--by", "nose"]) == 2
    assert "'nose' is not one of" in capsys.readouterr().err
    assert run(["detect", "--dataset", str(tmp_path / "none.csv")]) == 1
    nowhere = tmp_path / "no" / "such" / "folder" / "x.csv"
    (tmp_path / "no").write_text("a file")
    assert run(["detect", "--dataset", written(tmp_path, tastes(2)), "--out", str(nowhere)]) == 1
