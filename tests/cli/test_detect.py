"""robustcf detect: suspects by their labels, as text, JSON and CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from robustcf.poisoning import inject
from tests.poisoning.defences.test_detectors import copies, rare, tastes


def written(folder, pairs):
    path = folder / "pairs.csv"
    lines = [f"u{u},i{i}" for u, i in zip(pairs.users.tolist(), pairs.items.tolist(), strict=True)]
    path.write_text("user,item\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def poisoned(tmp_path):
    train = tastes(0)
    target = int(rare(train, 1)[0])
    both = inject(train, copies(train, 12, np.array([target])))
    return written(tmp_path, both), [f"u{300 + n}" for n in range(12)], f"i{target}"


def read(out):
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def users_in(out):
    return sorted(row["user"] for row in read(out))


def test_suspects_are_listed_by_label(call, found, poisoned, tmp_path):
    path, fakes, target = poisoned
    out = tmp_path / "suspects.csv"
    facts = found("detect", "--dataset", path, "--out", out)
    assert sorted(row["user"] for row in facts["suspects"]) == users_in(out) == fakes
    assert (facts["items"], facts["users"], facts["by"]["twins"]) == ([target], 312, 12)
    rows = read(out)
    assert {row["flagged by"] for row in rows} == {"twins"}
    assert all(float(row["twins score"]) > 6 for row in rows)
    text = call("detect", "--dataset", path)[1]
    assert "12 of 312 users look fake (pca 0, twins 12, groups 0)" in text
    assert "items that they promote:" in text
    assert f"{target}" in text.partition("items that they promote:")[2]
    assert facts["held by"][0]["suspects"] == 12
    text = call("detect", "--dataset", path, "--by", "pca", "groups")[1]
    assert "0 of 312 users look fake (pca 0, groups 0)" in text


@pytest.mark.parametrize("raw", [False, True])
def test_labels_that_look_like_formulas_are_not_run(found, poisoned, tmp_path, raw):
    path, fakes, _ = poisoned
    Path(path).write_text(Path(path).read_text().replace("\nu", "\n=u"))
    out = tmp_path / "suspects.csv"
    facts = found("detect", "--dataset", path, "--out", out, *(["--raw"] if raw else []))
    assert sorted(row["user"] for row in facts["suspects"]) == [f"={name}" for name in fakes]
    assert users_in(out) == [f"={name}" if raw else f"'={name}" for name in fakes]


def test_clean_data_give_an_empty_file_with_a_header(call, tmp_path):
    path, out = written(tmp_path, tastes(1)), tmp_path / "suspects.csv"
    assert "0 of 300 users look fake" in call("detect", "--dataset", path, "--out", out)[1]
    assert out.read_text() == "user,pairs,flagged by,pca score,twins score,groups score\n"


def test_many_suspects_are_cut_in_the_text(call, tmp_path):
    train = tastes(0)
    both = inject(train, copies(train, 30, rare(train, 1)))
    text = call("detect", "--dataset", written(tmp_path, both))[1]
    assert "... and 10 more: --out FILE has all" in text


def test_wrong_words(call, tmp_path):
    assert call("detect", "--dataset", "demo", "--by", "nose")[0] == 2
    assert call("detect", "--dataset", tmp_path / "none.csv")[0] == 1
    (tmp_path / "no").write_text("a file")
    words = ["--dataset", written(tmp_path, tastes(2)), "--out", tmp_path / "no" / "x.csv"]
    assert call("detect", *words)[0] == 1
