"""The report on fake accounts: counts that are right, a certificate that holds, and resuming."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from robustcf import train
from robustcf.cli.main import run
from robustcf.errors import InputError
from robustcf.experiments import poison
from robustcf.experiments.fakes import CLEAN, FakesPlan, FakesReport, fakes_report
from robustcf.models.voting import choose
from robustcf.poisoning import PoisonThreat, RandomItems, Targets, report, retrained
from robustcf.training import TrainConfig


@pytest.fixture(scope="module")
def plan(table) -> FakesPlan:
    return FakesPlan(
        table,
        models=("als",),
        changes={"factors": 4, "iterations": 1},
        attacks=("random", "copy"),
        fakes=(2, 0.1),
        targets=Targets(2),
        seeds=(0, 1),
        ks=(5,),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fakes") / "out"


@pytest.fixture(scope="module")
def found(plan, folder) -> FakesReport:
    return fakes_report(plan, folder)


def test_counts_are_those_of_a_training(found, split):
    assert list(found.sizes.values()) == [2, 9]
    made = RandomItems().attack(split.train, PoisonThreat(2, targets=Targets(2)), seed=1)
    config = TrainConfig.of(model="als", factors=4, iterations=1, seed=1, epochs_chosen=False)
    for name, settings in (("als", config), ("vote", found.vote)):
        exposure = retrained(split, settings, made.profiles, made.targets, ks=(5,)).exposure
        users = exposure["hit_rate@5"] * exposure.n_users
        assert found.users(name, "random", 2)[1] == pytest.approx(users)
        each = found.per_target(name, "random", 2)[2:]
        assert each.max() <= round(users) <= each.sum()


def test_nothing_found_exceeds_the_certificate(found):
    for size in found.sizes:
        for attack in ("random", "copy"):
            assert (found.users("vote", attack, size) <= found.certified(size)).all()


def test_the_report_is_written_and_resumed(found, folder, plan, monkeypatch):
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
    assert found._panel().lines[-1].kind == "bound", "an upper one"
    text = (folder / "report.txt").read_text()
    assert max(map(len, text.splitlines())) <= 100
    # Nothing is trained again but a part whose file is damaged.
    trained = []

    def counted(*args, **options):
        trained.append(args)
        return retrained(*args, **options)

    monkeypatch.setattr(poison, "retrained", counted)
    (folder / "cells" / "als-none-random-2-seed0.json").write_text("{")
    assert str(fakes_report(plan, folder)) == str(found)
    assert len(trained) == 1
    with pytest.raises(InputError, match="another --out"):
        fakes_report(replace(plan, changes={"factors": 5}), folder)


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
        ({"seeds": ()}, "seeds"),
        ({"ks": (0,)}, "cutoff"),
        ({"ks": (5, 10)}, "places"),
        ({"goal": "demote"}, "promotes"),
        ({"defences": ("detect",)}, "promotes"),
        ({"models": ("vote",)}, "another model"),
        ({"preset": "auto"}, "another model"),
    ],
)
def test_plans_are_checked(plan, wrong, word):
    with pytest.raises(InputError, match=word):
        replace(plan, **wrong)


def test_numbers_that_are_the_same_accounts_are_refused(plan, tmp_path):
    with pytest.raises(InputError, match="numbers of accounts"):
        fakes_report(replace(plan, fakes=(9, 0.1)), tmp_path / "out")


def test_the_command(table, split, tmp_path, capsys):
    words = ["fakes", "--dataset", table, "--model", "als", "--set", "factors=4", "--threads", "1"]
    words += ["--attack", "random", "--seeds", "1", "--target", str(split.item_labels[3])]
    words += ["--k", "5", "--set", "groups=9"]
    assert run([*words, "--fakes", "2", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "report.html" in shown
    assert "9 groups vote" in shown
    assert (tmp_path / "out" / "report.html").is_file()
    assert run([*words, "--fakes", "-2", "--out", str(tmp_path / "other")]) == 1
    assert not (tmp_path / "other").exists()


def test_settings_of_the_vote_are_those_without_fakes(found, split):
    assert found.vote == choose(split).config
