"""``robustcf audit``, ``harden`` and ``report`` from the command line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robustcf.adapters.reading import read
from robustcf.auditing import audit
from robustcf.data import load
from robustcf.models.spectral import spectral_factors
from robustcf.recommender import Recommender
from robustcf.robustness import harden
from robustcf.testing import labelled_split
from tests.adapters.helpers import library
from tests.auditing.helpers import small_split, small_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Factors that know their pairs, as a file, and the pairs as tables."""
    home = tmp_path_factory.mktemp("source")
    split = small_split()
    left, sizes, right = np.linalg.svd(split.train.csr().toarray(), full_matrices=False)
    np.savez(home / "mine.npz", U=left[:, :12] * sizes[:12], V=right[:12].T)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))
    np.savez(home / "other.npz", U=left[:, :12] * sizes[:12] @ turn, V=right[:12].T @ turn)
    for name, pairs in (("train", split.train), ("test", split.test)):
        lines = [f"{user},{item}" for user, item in zip(pairs.users, pairs.items, strict=True)]
        (home / f"{name}.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    return home


@pytest.fixture
def refused(call):
    def refused(*words):
        code, _, err = call(*words)
        assert code == 1
        return err

    return refused


@pytest.fixture
def audited(call, folder):
    source = ("audit", folder / "mine.npz", "--interactions", folder / "train.csv")
    return lambda *words: call(*source, *words)


def test_an_audit_of_a_file(audited, folder, tmp_path):
    page = tmp_path / "sub" / "a.html"
    words = ("--test", folder / "test.csv", "--no-attack", "--out", page, "--json")
    code, out, err = audited(*words)
    assert code == 0, err
    found = json.loads(out)
    assert found["schema"] == 2
    assert found["page"] == str(page)
    assert found["failed"] is None
    assert {entry["check"] for entry in found["checks"]} >= {"popularity", "int8", "churn"}
    assert "row numbers" in found["source"]
    assert 'id="verdict"' in page.read_text()
    with np.load(folder / "mine.npz") as stored:
        target = Recommender(stored["U"], stored["V"], small_split())
    numbers = {entry["check"]: entry["number"] for entry in found["checks"]}
    for name, number in audit(target, only=["popularity", "int4"]).numbers.items():
        assert numbers[name] == pytest.approx(number)


def test_versions_are_matched_by_their_labels(found, refused, folder, tmp_path):
    """Runs and files with rows in another order are the same version."""
    with np.load(folder / "mine.npz") as stored:
        users, items = stored["U"], stored["V"]
    order = np.random.default_rng(1).permutation(len(items))
    ids = tmp_path / "items.txt"

    def version(name, rows, *more):
        np.savez(tmp_path / f"{name}.npz", U=users, V=rows)
        ids.write_text("\n".join([*map(str, order), *more]))
        words = ("--interactions", folder / "train.csv", "--item-ids", ids)
        found("import", tmp_path / f"{name}.npz", *words, "--out", tmp_path / name)
        return (tmp_path / f"{name}.npz", *words)

    only = ("--only", "churn")
    moved = version("moved", items[order])
    for source, other in (
        (moved, tmp_path / "moved.npz"),
        ((tmp_path / "moved",), tmp_path / "moved"),
        (moved, tmp_path / "moved"),
    ):
        data = found("audit", *source, "--against", other, *only)
        assert data["checks"][0]["number"] == 1.0
    # As many items, but not the same ones: never row against row.
    for extra in ("new", "newer"):
        version(extra, np.vstack([items[order], items[:1]]), extra)
    words = ("audit", tmp_path / "new", "--against", tmp_path / "newer")
    assert "no item 'new'" in refused(*words, *only)


def test_hardened_factors_of_a_run_keep_their_fixed_columns(tmp_path):
    model = small_target(fixed=(1, 3))
    harden(model).export(tmp_path / "s.safetensors")
    assert read(tmp_path / "s.safetensors").fixed == (1, 3)


def test_text_has_verdicts_and_advice(audited):
    code, out, _ = audited("--only", "norms", "coverage", "popularity")
    assert code == 0
    assert out.startswith("! There are no held-out pairs")
    assert "skipped  popularity" in out
    assert "verdict, served by exact search: " in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--fail-under", "coverage=2"), "robustcf: coverage is"),
        (("--fail-under", "norms=0.5"), "robustcf: norms is"),
        (("--fail-on", "popularity"), "robustcf: popularity could not be run: Not run: there are"),
        (("--fail-on", "churn"), "robustcf: churn was not run"),
        (("--fail-under", "churn=1"), "robustcf: churn has no number"),
    ],
)
def test_a_job_can_fail(audited, words, reason):
    only = ("--only", "coverage", "norms", "popularity")
    code, out, err = audited(*only, *words, "--json")
    assert code == 1
    assert err.strip().splitlines()[-1].startswith(reason)
    assert json.loads(out)["failed"]


def test_a_failed_check_fails_the_job(audited, tmp_path):
    (tmp_path / "strict.toml").write_text("[coverage]\nwarn = 5\nfail = 3\n")
    words = ("--only", "coverage", "--thresholds", tmp_path / "strict.toml")
    code, out, err = audited(*words, "--fail-on", "coverage")
    assert code == 1
    assert "fail     coverage" in out
    assert "robustcf: coverage failed" in err
    words = ("--only", "coverage", "norms", "--fail-on", "norms", "--fail-under", "norms=100")
    assert audited(*words)[0] == 0


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (("--only", "int9"), "did you mean 'int8'", 2),
        (("--fail-on", "x"), "unknown check 'x'", 2),
        (("--fail-under", "int8"), "--fail-under", 2),
        (("--fail-under", "int8=a"), "CHECK=NUMBER", 2),
        (("--size", "0"), "--size", 2),
        (("--fixed", "x"), "--fixed", 2),
        (("--thresholds", "none.toml"), "none.toml", 1),
    ],
)
def test_bad_words_are_refused(audited, words, reason, code):
    got, _, err = audited(*words)
    assert (got, reason in err) == (code, True)


def test_factors_alone_or_of_other_pairs_are_refused(call, refused, folder, tmp_path):
    code, out, _ = call("audit", folder / "mine.npz", "--serve", "int8", "--json")
    alone = json.loads(out)
    verdicts = {check["check"]: check["verdict"] for check in alone["checks"]}
    assert (code, alone["subject"]["pairs"], alone["serve"]) == (0, None, ["int8"])
    assert {verdicts[name] for name in ("popularity", "attack")} == {"skipped"}
    assert "skipped" not in {verdicts[name] for name in ("int8", "near_ties", "norms", "hubs")}
    assert "interactions" in refused("audit", folder / "mine.npz", "--test", folder / "test.csv")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", U=rng.normal(size=(40, 4)), V=rng.normal(size=(30, 4)))
    words = ("audit", tmp_path / "noise.npz", "--interactions", folder / "train.csv")
    assert "--force" in refused(*words, "--only", "norms")
    code, out, _ = call(*words, "--only", "norms", "--force")
    assert (code, "! The alignment check was skipped" in out) == (0, True)


@pytest.mark.slow
def test_hardened_factors_come_back_in_their_format(call, folder, tmp_path):
    out = tmp_path / "safer.npz"
    pairs = ("--interactions", folder / "train.csv", "--valid", folder / "test.csv")
    code, text, err = call("harden", folder / "mine.npz", *pairs, "--out", out)
    assert code == 0, err
    assert "* " in text
    assert "cosine search gets far worse" in text
    before, after = read(folder / "mine.npz"), read(out)
    assert after.factors.users.shape == before.factors.users.shape
    assert after.format == before.format


def test_the_gauge_alone_changes_no_ranking(call, folder, tmp_path):
    code, text, _ = call("harden", folder / "mine.npz", "--out", tmp_path / "g.npz")
    assert (code, "same rankings" in text) == (0, True)
    U, V = read(folder / "mine.npz").factors
    A, B = read(tmp_path / "g.npz").factors
    # Up to a shift of each user's scores, which no ranking shows.
    difference = (U @ V.T - A @ B.T).numpy()
    assert np.ptp(difference, axis=1).max() < 1e-5


def test_bad_words_of_harden(call, folder, tmp_path):
    new, there = tmp_path / "n.npz", tmp_path / "there.npz"
    there.write_bytes(b"")
    for words, reason in (
        (("--out", new, "--valid", "x.csv"), "--valid needs --interactions"),
        (("--out", there), "exists already"),
    ):
        code, _, err = call("harden", folder / "mine.npz", *words)
        assert (code > 0, reason in err, new.exists()) == (True, True, False)


def test_runs_are_sources(found, refused, trained):
    data = found("audit", trained, "--only", "popularity", "int8", "--no-attack")
    assert data["subject"]["held_out"] > 0
    assert "--interactions" in refused("audit", trained, "--interactions", "x.csv")


def test_reports(found, refused, trained, tmp_path):
    page = tmp_path / "r.html"
    runs = (Path(trained).parent, trained)
    assert len(found("report", *runs, "--no-attack", "--out", page)["runs"]) == 2
    assert page.read_text().count('id="verdict"') == 2
    (tmp_path / "empty").mkdir()
    said = refused("report", tmp_path / "empty", "--out", page)
    assert "neither a run nor the folder of a sweep" in said


def test_a_saved_recommender_is_hardened_into_tensors(found, refused, tmp_path):
    split = labelled_split()
    model = Recommender(*spectral_factors(split.train, 4, np.random.default_rng(0)), split)
    source = model.save(tmp_path / "model")
    out = tmp_path / "s.safetensors"
    assert found("harden", source, "--by-trial", "--out", out)["judged_by"] == "valid"
    assert read(out).factors.n_items == split.n_items
    found("harden", source, "--rank", "2", "--out", tmp_path / "s.npz")
    expected = harden(model, rank=2).factors
    assert np.array_equal(read(tmp_path / "s.npz").factors.items.numpy(), expected.items.numpy())
    assert ".safetensors" in refused("harden", source, "--out", tmp_path / "s.txt")


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "audit.md"


def block(start, kind="bash"):
    """The first block of code of a kind after a text of the guide."""
    return GUIDE.read_text().split(start)[1].split(f"```{kind}\n")[1].split("```")[0]


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """Text ids in CSV files, and an ALS model fit as the guide says, in the current folder."""
    library("implicit")
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    monkeypatch.chdir(tmp_path)
    split = load("demo")
    rng = np.random.default_rng(0)
    names = np.array([f"u{n}" for n in rng.permutation(10**5)[: split.n_users]])
    titles = np.array([f'"A", {n}' for n in rng.permutation(10**5)[: split.n_items]])
    for part in ("train", "valid", "test"):
        pairs = getattr(split, part)
        pairs = pairs.take(pairs.users < 200)
        table = pd.DataFrame({"user": names[pairs.users], "item": titles[pairs.items]})
        table.sample(frac=1, random_state=0).to_csv(f"{part}.csv", index=False)
    table = pd.read_csv("train.csv")
    users, items = table["user"].astype("category"), table["item"].astype("category")
    matrix = csr_matrix((np.ones(len(table)), (users.cat.codes, items.cat.codes)))
    model = AlternatingLeastSquares(factors=16, iterations=5, random_state=0, num_threads=1)
    model.fit(matrix, show_progress=False)
    model.save("als.npz")
    return model


@pytest.mark.slow
def test_the_five_minutes_of_the_guide(call, own_files):
    """The commands of the page, on files that were made as the page says: no failed attempt."""
    commands = block("## Audit your implicit model in five minutes").splitlines()
    assert len(commands) == 3
    for line in commands:
        program, *words = shlex.split(line)
        assert program == "robustcf"
        code, out, err = call(*words)
        assert (code, bool(out)) == (0, True), err
    assert 'id="verdict"' in Path("after.html").read_text()
    assert "sorted ids of the training pairs" in Path("audit.html").read_text()
    from implicit.cpu.als import AlternatingLeastSquares

    again = AlternatingLeastSquares.load("safer.npz")
    assert again.user_factors.shape == own_files.user_factors.shape


@pytest.mark.slow
def test_the_action_of_the_guide_fails_on_a_regression(own_files, tmp_path):
    """Its script as a plain shell script: it passes unchanged and fails with spoilt embeddings."""
    script = block("This GitHub Action", "yaml").split("run: |\n")[1].split("      - uses")[0]
    program = tmp_path / "bin" / "robustcf"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m robustcf "$@"\n')
    program.chmod(0o755)
    room = {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    def shell(text):
        how = {"env": os.environ | room, "capture_output": True, "text": True, "check": False}
        return subprocess.run(["bash", "-e", "-c", textwrap.dedent(text)], **how)

    first = script.replace("--against audit-main.json --fail-on worse", "")
    done = shell(first.replace("> audit.json", "> audit-main.json"))
    assert done.returncode == 0, done.stderr
    same = shell(script)
    assert same.returncode == 0, same.stderr
    with np.load("als.npz") as stored:
        arrays = dict(stored)
    noise = np.random.default_rng(0).normal(size=arrays["item_factors"].shape).astype("f4")
    arrays["item_factors"] += noise * arrays["item_factors"].std()
    np.savez("als.npz", **arrays)
    worse = shell(script)
    assert worse.returncode == 1
    assert "is worse" in worse.stderr
    assert json.loads(Path("audit.json").read_text())["failed"]


def test_groups_of_files_cards_and_earlier_audits(call, folder, tmp_path, found):
    users, items = tmp_path / "country.csv", tmp_path / "kind.csv"
    lines = [f"{n},{'north' if n % 2 else 'south'}" for n in range(40)]
    users.write_text("\n".join(["user,country", *lines, "99,west"]))
    items.write_text("\n".join(f"{n},{'old' if n < 15 else 'new'}" for n in range(30)))
    source = ("audit", folder / "mine.npz", "--interactions", folder / "train.csv")
    more = ("--user-groups", users, "--item-groups", items, "--only", "user_groups", "item_groups")
    card = tmp_path / "card.md"
    data = found(*source, *more, "--no-attack", "--card", card)
    groups = {row["group"] for check in data["checks"] for row in check["details"]["groups"]}
    assert {"north", "south", "old", "new", "tail"} <= groups
    assert any("1 unknown users" in caveat for caveat in data["caveats"])
    assert "north" in card.read_text()
    last = tmp_path / "last.json"
    last.write_text(json.dumps(data))
    again = found(*source, *more, "--no-attack", "--against", last, "--fail-on", "worse")
    assert [row["worse"] for row in again["compared"]] == [False, False]
    for text, word in (("a,b,c\n", "two columns"), ("x,y\n", "none of the")):
        users.write_text(text)
        code, _, err = call(*source, *more)
        assert (code, word in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (("--fail-on", "worse"), "--against LAST.json", 2),
        (("--serve", "int9"), "a way to serve", 1),
        (("--serve", "hnsw:links=x"), "integer", 1),
        (("--against", "last.json"), "last.json", 1),
        (("--user-groups", "none.csv"), "none.csv", 1),
    ],
)
def test_bad_words_of_serving_and_comparing(audited, words, reason, code):
    got, _, err = audited(*words)
    assert (got, reason in err) == (code, True)


def test_ratings_without_a_threshold_are_a_caveat(call, folder, tmp_path):
    table = pd.read_csv(folder / "train.csv")
    table["rating"] = np.arange(len(table)) % 5 + 1
    table.to_csv(tmp_path / "rated.csv", index=False)
    source = ("audit", folder / "mine.npz", "--interactions", tmp_path / "rated.csv")
    code, out, _ = call(*source, "--only", "norms", "--out", tmp_path / "a.html")
    assert (code, "! All 240 ratings, 1 to 5, count as positive" in out) == (0, True)
    assert "count as positive" in (tmp_path / "a.html").read_text()
