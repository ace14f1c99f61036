"""The report on fake accounts: counts that are right, a certificate that holds, and resuming."""

from __future__ import annotations

import json

import pytest

from robustcf import train
from robustcf.cli.main import run
from robustcf.errors import InputError
from robustcf.experiments import fakes as module
from robustcf.experiments.fakes import CLEAN, FakesPlan, FakesReport, fakes_report
from robustcf.models.voting import choose
from robustcf.poisoning import PoisonThreat, RandomItems, Targets, report, retrained
from robustcf.training import TrainConfig

CONFIG = TrainConfig.of(model="als", factors=4, iterations=1)
PLAN = FakesPlan((2, 0.1), ("random", "copy"), 2, "rare", 2, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fakes") / "out"


@pytest.fixture(scope="module")
def found(split, folder) -> FakesReport:
    return fakes_report(split, CONFIG, PLAN, folder)


def test_counts_are_those_of_a_training(found, split):
    assert found.sizes == (2, 9)
    made = RandomItems().attack(split.train, PoisonThreat(2, targets=Targets(2)), seed=1)
    for name, config in (("als", CONFIG.replace(seed=1)), ("vote", found.vote)):
        exposure = retrained(split, config, made.profiles, made.targets, ks=(5,)).exposure
        users = exposure["hit_rate@5"] * exposure.n_users
        assert found.users(name, "random", 2)[1] == pytest.approx(users)


def test_nothing_found_exceeds_the_certificate(found):
    for size in found.sizes:
        for attack in PLAN.attacks:
            assert (found.users("vote", attack, size) <= found.certified(size)).all()


def test_the_report_is_written_and_resumed(found, folder, split, monkeypatch):
    facts = json.loads((folder / "report.json").read_text())
    assert len(facts["results"]) == 2 * 2 * (1 + 2 * 2)
    assert facts["findings"] == found.findings()
    page = (folder / "report.html").read_text()
    assert "<script" not in page
    assert "http" not in page.partition("</style>")[2].partition("<footer>")[0].replace(
        "http-equiv", ""
    )
    for title, header, rows in found.tables():
        assert title in page
        assert len({len(row) for row in (header, *rows)}) == 1
    text = (folder / "report.txt").read_text()
    assert max(map(len, text.splitlines())) <= 100
    # Nothing is trained again but a part whose file is damaged.
    trained = []
    real = module.retrained

    def counted(*args, **options):
        trained.append(args)
        return real(*args, **options)

    monkeypatch.setattr(module, "retrained", counted)
    (folder / "cells" / "als-random-2-seed0.json").write_text("{")
    again = fakes_report(split, CONFIG, PLAN, folder)
    assert len(trained) == 1
    assert str(again) == str(found)
    with pytest.raises(InputError, match="another --out"):
        fakes_report(split, CONFIG.replace(lr=0.5), PLAN, folder)


def test_through_a_recommender(split):
    model = train(split, "als", factors=4, iterations=1)
    found = report(model, [2], attacks=["random"], targets=1, seeds=1, k=5)
    assert found.users("als", CLEAN).shape == (1,)
    assert "certified" in str(found)
    with pytest.raises(InputError, match="trained"):
        report(train(split, "vote", cap=0.2, damping=0.3))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"fakes": (0,)}, "fakes"),
        ({"fakes": ()}, "fakes"),
        ({"fakes": (1, 1)}, "fakes"),
        ({"attacks": ("other",)}, "poisoning"),
        ({"seeds": 0}, "seeds"),
        ({"k": 0}, "k"),
        ({"targets": 0}, "targets"),
    ],
)
def test_plans_are_checked(wrong, word):
    with pytest.raises(InputError, match=word):
        FakesPlan(**{**vars(PLAN), **wrong})


def test_the_command(table, tmp_path, capsys):
    words = ["fakes", "--dataset", table, "--model", "als", "--set", "factors=4", "--threads", "1"]
    words += ["--attack", "random", "--seeds", "1", "--targets", "1", "--k", "5"]
    assert run([*words, "--fakes", "2", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "report.html" in shown
    assert (tmp_path / "out" / "report.html").is_file()
    assert run([*words, "--fakes", "-2", "--out", str(tmp_path / "other")]) == 1
    assert not (tmp_path / "other").exists()


def test_settings_of_the_vote_are_those_without_fakes(found, split):
    assert found.vote == choose(split).config
