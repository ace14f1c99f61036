"""``robustcf audit``, ``harden`` and ``report`` from the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import save_npz

from robustcf.adapters.reading import read
from robustcf.auditing import audit
from robustcf.cli.main import run
from robustcf.data import load
from robustcf.experiments import RunDir
from robustcf.experiments.run import RunConfig
from robustcf.models.spectral import spectral_factors
from robustcf.recommender import Recommender
from robustcf.robustness import harden
from robustcf.testing import labelled_split
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
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


def command(capsys, *words):
    code = run([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def done(capsys, *words):
    code, out, err = command(capsys, *words)
    assert code == 0, err
    return out


def refused(capsys, *words):
    code, _, err = command(capsys, *words)
    assert code == 1
    return err


def audited(capsys, folder, *words):
    source = ("audit", folder / "mine.npz", "--interactions", folder / "train.csv")
    return command(capsys, *source, *words)


def test_an_audit_of_a_file(capsys, folder, tmp_path):
    page = tmp_path / "sub" / "a.html"
    code, out, err = audited(
        capsys, folder, "--test", folder / "test.csv", "--no-attack", "--out", page, "--json"
    )
    found = json.loads(out)
    assert code == 0, err
    assert found["schema"] == 1
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


def test_versions_are_matched_by_their_labels(capsys, folder, tmp_path):
    """Runs and files with rows in another order are the same version."""
    with np.load(folder / "mine.npz") as stored:
        users, items = stored["U"], stored["V"]
    order = np.random.default_rng(1).permutation(len(items))
    ids = tmp_path / "items.txt"

    def version(name, rows, *more):
        np.savez(tmp_path / f"{name}.npz", U=users, V=rows)
        ids.write_text("\n".join([*map(str, order), *more]))
        words = ("--interactions", folder / "train.csv", "--item-ids", ids)
        out = ("--out", tmp_path / name)
        done(capsys, "import", tmp_path / f"{name}.npz", *words, *out)
        return (tmp_path / f"{name}.npz", *words)

    only = ("--only", "churn", "--json")
    moved = version("moved", items[order])
    for source, other in (
        (moved, tmp_path / "moved.npz"),
        ((tmp_path / "moved",), tmp_path / "moved"),
        (moved, tmp_path / "moved"),
    ):
        out = done(capsys, "audit", *source, "--against", other, *only)
        assert json.loads(out)["checks"][0]["number"] == 1.0
    # As many items, but not the same ones: never row against row.
    for extra in ("new", "newer"):
        version(extra, np.vstack([items[order], items[:1]]), extra)
    assert "no item 'new'" in refused(
        capsys, "audit", tmp_path / "new", "--against", tmp_path / "newer", *only
    )


def test_hardened_factors_of_a_run_keep_their_fixed_columns(tmp_path):
    model = small_target(fixed=(1, 3))
    harden(model).export(tmp_path / "s.safetensors")
    assert read(tmp_path / "s.safetensors").fixed == (1, 3)


def test_text_has_verdicts_and_advice(capsys, folder):
    code, out, _ = audited(capsys, folder, "--only", "norms", "coverage", "popularity")
    assert code == 0
    assert out.startswith("! There are no held-out pairs")
    assert "skipped  popularity" in out
    assert "verdict: " in out


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
def test_a_job_can_fail(capsys, folder, words, reason):
    only = ("--only", "coverage", "norms", "popularity")
    code, out, err = audited(capsys, folder, *only, *words, "--json")
    assert code == 1
    assert err.strip().splitlines()[-1].startswith(reason)
    assert json.loads(out)["failed"]


def test_a_failed_check_fails_the_job(capsys, folder, tmp_path):
    (tmp_path / "strict.toml").write_text("[coverage]\nwarn = 5\nfail = 3\n")
    words = ("--only", "coverage", "--thresholds", tmp_path / "strict.toml")
    code, out, err = audited(capsys, folder, *words, "--fail-on", "coverage")
    assert code == 1
    assert "fail     coverage" in out
    assert "robustcf: coverage failed" in err
    words = ("--only", "coverage", "norms", "--fail-on", "norms", "--fail-under", "norms=100")
    assert audited(capsys, folder, *words)[0] == 0


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
def test_bad_words_are_refused(capsys, folder, words, reason, code):
    got, _, err = audited(capsys, folder, *words)
    assert got == code
    assert reason in err


def test_embeddings_without_pairs_are_no_subject(capsys, folder):
    assert "--interactions PAIRS" in refused(capsys, "audit", folder / "mine.npz")


def test_factors_that_know_nothing_want_force(capsys, folder, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", U=rng.normal(size=(40, 4)), V=rng.normal(size=(30, 4)))
    words = ("audit", tmp_path / "noise.npz", "--interactions", folder / "train.csv")
    assert "--force" in refused(capsys, *words, "--only", "norms")
    code, out, _ = command(capsys, *words, "--only", "norms", "--force")
    assert code == 0
    assert "! The alignment check was skipped" in out


@pytest.mark.slow
def test_hardened_factors_come_back_in_their_format(capsys, folder, tmp_path):
    out = tmp_path / "safer.npz"
    code, text, err = command(
        capsys, "harden", folder / "mine.npz", "--interactions", folder / "train.csv",
        "--valid", folder / "test.csv", "--out", out,
    )  # fmt: skip
    assert code == 0, err
    assert "* " in text
    assert "cosine search gets far worse" in text
    before, after = read(folder / "mine.npz"), read(out)
    assert after.factors.users.shape == before.factors.users.shape
    assert after.format == before.format


def test_the_gauge_alone_changes_no_score(capsys, folder, tmp_path):
    code, text, _ = command(capsys, "harden", folder / "mine.npz", "--out", tmp_path / "g.npz")
    assert code == 0
    assert "same rankings" in text
    U, V = read(folder / "mine.npz").factors
    A, B = read(tmp_path / "g.npz").factors
    # Up to a shift of each user's scores, which no ranking shows.
    difference = (U @ V.T - A @ B.T).numpy()
    assert np.ptp(difference, axis=1).max() < 1e-5


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--valid", "x.csv"), "--valid needs --interactions"),
        (("--out", "{there}"), "exists already"),
    ],
)
def test_bad_words_of_harden(capsys, folder, tmp_path, words, reason):
    there = tmp_path / "there.npz"
    there.write_bytes(b"")
    filled = [word.replace("{there}", str(there)) for word in words]
    out = [] if "--out" in words else ["--out", tmp_path / "n.npz"]
    code, _, err = command(capsys, "harden", folder / "mine.npz", *filled, *out)
    assert code != 0
    assert reason in err
    assert not (tmp_path / "n.npz").exists()


@pytest.fixture(scope="module")
def our_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "first"
    config = RunConfig("demo", train=TrainConfig.of(model="ultragcn", dim=8, epochs=1, refit="no"))
    made = RunDir.create(path, config, load("demo"))
    made.write(fit_split(load("demo"), config.train))
    return path


def test_runs_of_our_own_are_sources(capsys, our_run):
    words = ("--only", "popularity", "int8", "--no-attack", "--json")
    out = done(capsys, "audit", our_run, *words)
    assert json.loads(out)["subject"]["held_out"] > 0
    assert "--interactions" in refused(capsys, "audit", our_run, "--interactions", "x.csv")


@pytest.mark.slow
def test_a_report_of_several_runs(capsys, our_run, tmp_path):
    page = tmp_path / "r.html"
    words = ("report", our_run.parent, our_run, "--no-attack", "--out", page, "--json")
    out = done(capsys, *words)
    assert len(json.loads(out)["runs"]) == 2
    assert page.read_text().count('id="verdict"') == 2


def test_a_report_of_nothing_is_refused(capsys, tmp_path):
    assert "neither a run nor the folder of a sweep" in refused(
        capsys, "report", tmp_path, "--out", tmp_path / "r.html"
    )


def test_a_saved_recommender_is_hardened_into_tensors(capsys, tmp_path):
    split = labelled_split()
    model = Recommender(*spectral_factors(split.train, 4, np.random.default_rng(0)), split)
    source = model.save(tmp_path / "model")
    out = tmp_path / "s.safetensors"
    said = done(capsys, "harden", source, "--out", out, "--json")
    assert json.loads(said)["judged_by"] == "valid"
    assert read(out).factors.n_items == split.n_items
    assert ".safetensors" in refused(capsys, "harden", source, "--out", tmp_path / "s.npz")


@pytest.mark.slow
def test_the_five_minutes_of_the_guide(capsys, tmp_path, monkeypatch):
    """The commands of the page, on files that were made as the page says."""
    library("implicit")
    from implicit.als import AlternatingLeastSquares

    split = load("demo")
    parts = {name: getattr(split, name).csr()[:200] for name in ("train", "valid", "test")}
    model = AlternatingLeastSquares(factors=16, iterations=5, random_state=0, num_threads=1)
    model.fit(parts["train"].copy(), show_progress=False)
    monkeypatch.chdir(tmp_path)
    model.save("als.npz")
    for name, pairs in parts.items():
        save_npz(f"{name}.npz", pairs)
    guide = Path(__file__).parents[2] / "docs" / "guides" / "audit.md"
    part = guide.read_text().split("## Audit your implicit model in five minutes")[1]
    commands = part.split("```bash\n")[1].split("```")[0].splitlines()
    assert len(commands) == 3
    for line in commands:
        program, *words = shlex.split(line)
        assert program == "robustcf"
        out = done(capsys, *words)
        assert out
    assert 'id="verdict"' in Path("after.html").read_text()
    again = type(model).load("safer.npz")
    assert again.user_factors.shape == model.user_factors.shape
