"""The search for settings: what it chooses, its clock, going on, presets in files."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from robustcf.cli.main import run as robustcf
from robustcf.cli.train import train as train_command
from robustcf.data import Interactions, Split, checkerboard
from robustcf.data.split import shared_pairs
from robustcf.errors import InputError, TrainingError
from robustcf.experiments import RunDir
from robustcf.training.portfolio import Size, moves, portfolio
from robustcf.training.presets import choose, read_preset
from robustcf.training.search import Found, Trial, search, tune_to_file, validation_parts

module = sys.modules["robustcf.training.search"]


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Trials that take no time: their values come from a function, their seconds from another."""
    how: dict[str, Any] = {
        "value": lambda settings: 0.1,
        "seconds": lambda settings: 1.0,
        "made": [],
    }

    def measured(self: Any, settings: dict[str, Any], stage: str) -> Trial:
        how["made"].append(settings)
        value, seconds = how["value"](settings), how["seconds"](settings)
        trial = Trial(settings, value, None, seconds, stage, len(self.parts))
        if trial.beats(self.best):
            self.best = trial
        return trial

    monkeypatch.setattr(module._Search, "measured", measured)
    return how


def test_the_best_on_valid_is_chosen_a_baseline_too(clockwork: dict[str, Any]) -> None:
    clockwork["value"] = lambda settings: 0.3 if settings["model"] == "popularity" else 0.2
    found = search(checkerboard())
    assert found.settings == {"model": "popularity"}
    assert found.summary()["baseline"]
    assert {t.settings["model"] for t in found.trials} >= {
        "popularity", "als", "ease", "softmax-mf", "bpr-mf", "ultragcn",
    }  # fmt: skip


def test_it_climbs_one_setting_at_a_time(clockwork: dict[str, Any]) -> None:
    """The values have one top, away from the portfolio: temperature 0.33, 16 columns."""

    def value(settings: dict[str, Any]) -> float:
        if settings["model"] != "softmax-mf" or settings["epochs"] == 0:
            return 0.01
        far = abs(np.log(settings["temperature"] / 0.4)) + abs(np.log2(settings["dim"] / 10))
        return 1.0 / (1.0 + far + (settings.get("weighting") == "damped"))

    clockwork["value"] = value
    found = search(checkerboard(), minutes=60)
    assert found.settings["dim"] == 10
    assert found.settings["temperature"] == pytest.approx(0.4, rel=0.13)
    assert "weighting" not in found.settings
    assert not found.summary()["baseline"]
    assert found.best.value == max(t.value for t in found.trials)


def test_the_clock_ends_it(clockwork: dict[str, Any]) -> None:
    clockwork["seconds"] = lambda settings: 20.0
    short = search(checkerboard(), minutes=1)
    assert 1 < len(short.trials) <= 4
    assert short.seconds <= 60 + 20
    # Ten times what the best took, at least a minute.
    clockwork["seconds"] = lambda settings: 0.5
    assert search(checkerboard(), minutes=60).seconds <= 60.5


def test_what_would_take_too_long_is_left_out(clockwork: dict[str, Any]) -> None:
    clockwork["seconds"] = lambda s: 500.0 if s["model"] == "ease" else 0.1
    made = [t.settings["model"] for t in search(checkerboard(), minutes=5).trials]
    # The first of its kind could not be known; nothing after it fits.
    assert made.count("ease") == 1


def test_a_stopped_search_goes_on_to_the_same_end(clockwork: dict[str, Any]) -> None:
    clockwork["value"] = lambda s: 0.1 + 0.001 * len(str(sorted(s.items())))
    clockwork["seconds"] = lambda s: 0.3
    whole = search(checkerboard())
    kept: list[Trial] = []

    class Killed(Exception):
        pass

    def record(trials: Any) -> None:
        kept[:] = trials
        if len(trials) == 7:
            raise Killed

    with pytest.raises(Killed):
        search(checkerboard(), record=record)
    done = [Trial(**json.loads(json.dumps(trial.as_dict()))) for trial in kept]
    clockwork["made"].clear()
    again = search(checkerboard(), done=done)
    assert again == whole
    assert len(clockwork["made"]) == len(whole.trials) - 7


Users = dict[str, list[list[float]]]


def race(
    monkeypatch: pytest.MonkeyPatch, values: Users, done: Any = ()
) -> tuple[Any, list[tuple[str, int]]]:
    """A search whose models have these values: user by user, part by part. And what it trained."""
    parts: list[Any] = [type("Part", (), {"number": number})() for number in range(3)]
    trained: list[tuple[str, int]] = []

    def on_part(self: Any, settings: dict[str, Any], part: Any) -> Any:
        trained.append((settings["model"], part.number))
        return np.array(values[settings["model"]][part.number])

    state = module._Search(checkerboard(), 1000.0, 0, "cpu", done, lambda trials, best: None)
    state.parts = parts
    monkeypatch.setattr(module._Search, "on_part", on_part)
    return state, trained


def test_what_is_clearly_behind_is_not_trained_for_all_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values: Users = {
        "popularity": [[0.2, 0.4], [0.2, 0.4], [0.2, 0.4]],
        # Behind by 0.15 on the first part, with a standard error of 0.05 / sqrt(2).
        "ease": [[0.1, 0.2], [9.0, 9.0], [9.0, 9.0]],
        # Behind on the first part, but within its error: users disagree. Ahead on the whole.
        "als": [[0.0, 0.58], [0.4, 0.4], [0.6, 0.4]],
        # Behind after the second part.
        "bpr-mf": [[0.1, 0.55], [0.2, 0.2], [9.0, 9.0]],
    }
    state, trained = race(monkeypatch, values)
    trials = {name: state.attempt({"model": name}, "portfolio") for name in values}
    assert trained == [
        *[("popularity", part) for part in range(3)],
        ("ease", 0),
        *[("als", part) for part in range(3)],
        *[("bpr-mf", part) for part in range(2)],
    ]
    assert [trial.parts for trial in trials.values()] == [3, 1, 3, 2]
    assert trials["ease"].value == pytest.approx(0.3 - 0.15)
    assert trials["ease"].error == pytest.approx(0.05 / 2**0.5)
    als = (0.29 + 0.4 + 0.5) / 3
    assert trials["als"].value == pytest.approx(als)
    # As far behind the best as it was on the parts that both have.
    gaps = np.array([0.1, -0.03, -0.2, -0.2])
    assert trials["bpr-mf"].value == pytest.approx(als + gaps.mean())
    assert trials["bpr-mf"].error == pytest.approx(gaps.std() / 2)
    assert state.best is trials["als"]


def test_users_of_an_earlier_search_are_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a search that goes on gives up what it would have given up."""
    values: Users = {
        "als": [[0.4, 0.6]] * 3,
        "ease": [[0.3, 0.52]] * 3,
        "bpr-mf": [[0.2, 0.3]] * 3,
    }
    done = [Trial({"model": "als"}, 0.5, None, 1.0, "portfolio", 3)]
    state, trained = race(monkeypatch, values, done)
    trials = [state.attempt({"model": name}, "portfolio") for name in values]
    assert trained == [*[("als", part) for part in range(3)], ("ease", 0), ("bpr-mf", 0)]
    assert trials[0] == done[0]
    assert [trial.parts for trial in trials] == [3, 1, 1]
    assert trials[1].value == pytest.approx(0.41)


def test_what_was_given_up_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial that it lost against is not come to this time: it is trained for all parts."""
    values: Users = {"ease": [[0.3, 0.5]] * 3}
    als = Trial({"model": "als", "dim": 8}, 0.5, None, 5000.0, "portfolio", 3)
    ease = Trial({"model": "ease"}, 0.45, 0.01, 1.0, "portfolio", 1)
    state, trained = race(monkeypatch, values, [als, ease])
    state.limit = 10.0
    state.trials.append(Trial({"model": "als", "dim": 8, "ridge": 1.0}, None, None, 9.0, "x", 3))
    assert state.attempt(dict(als.settings), "portfolio") is None
    trial = state.attempt(dict(ease.settings), "portfolio")
    assert (trial.parts, trial.value) == (3, pytest.approx(0.4))
    assert state.best is trial
    assert len(trained) == 3


def test_ctrl_c_ends_the_search_and_not_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> Any:
        return type("Trained", (), {"interrupted": True})()

    monkeypatch.setattr(module, "fit_split", stopped)
    with pytest.raises(KeyboardInterrupt):
        search(checkerboard())


def test_tables_say_what_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    values: Users = {"als": [[0.4, 0.6]] * 3, "ease": [[0.3, 0.52]] * 3}
    state, _ = race(monkeypatch, values)
    for name in values:
        state.attempt({"model": name}, "portfolio")
    lines = Found({"model": "als"}, tuple(state.trials), 3, 1.0).table().splitlines()
    assert [line.endswith("(given up)") for line in lines] == [False, False, True]


def test_ease_is_exact_where_that_fits_into_memory() -> None:
    def widths(users: int, items: int) -> set[int]:
        size = Size(users=users, items=items, pairs=10 * users)
        return {entry["dim"] for entry in portfolio(size) if entry["model"] == "ease"}

    assert widths(900, 3_000) == {900}
    assert widths(1_000_000, 2_000) == {256}
    assert widths(5_000, 9_000) == {256}
    wide = {"model": "ease", "dim": 512, "ridge": 9.0}
    made = [move(wide) for move in moves(wide, Size(1_000_000, 2_000, 10**7))]
    assert max(entry["dim"] for entry in made if entry is not None) == 512


@pytest.mark.parametrize(
    ("settings", "key", "wanted"),
    [
        ({"model": "ease", "dim": 30, "ridge": 9.0}, "dim", {15, 40}),
        ({"model": "ease", "dim": 40, "ridge": 9.0}, "dim", {20}),
        ({"model": "als", "dim": 4, "ridge": 1.0, "unobserved": 0.1}, "dim", {8}),
        ({"model": "als", "dim": 5, "ridge": 1.0, "unobserved": 0.1}, "dim", {4, 10}),
        ({"model": "bpr-mf", "dim": 4, "epochs": 1, "reg_weight": 1.0}, "epochs", {2}),
        ({"model": "bpr-mf", "dim": 4, "epochs": 48, "reg_weight": 1.0}, "epochs", {24, 64}),
    ],
)
def test_moves_end_at_a_limit_and_not_before(
    settings: dict[str, Any], key: str, wanted: set[int]
) -> None:
    """Columns at most the smaller side: of EASE these are the exact ones."""
    made = [move(settings) for move in moves(settings, Size(users=40, items=70, pairs=200))]
    found = {each[key] for each in made if each is not None} - {settings[key]}
    assert found == wanted


def test_diverged_trials_are_kept_and_never_chosen(clockwork: dict[str, Any]) -> None:
    clockwork["value"] = lambda s: None if s["model"] == "als" else 0.2
    found = search(checkerboard())
    assert found.settings["model"] != "als"
    assert "not finite" in found.table()
    clockwork["value"] = lambda s: None
    with pytest.raises(TrainingError, match="diverged"):
        search(checkerboard())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_for_real_it_is_at_least_as_good_as_each_baseline(seed: int) -> None:
    """Two tastes with noise: the pattern is learnt, and popularity is not the answer."""
    rng = np.random.default_rng(seed)
    chances = np.where(np.arange(150)[:, None] % 3 == np.arange(80) % 3, 0.4, 0.03)
    users, items = np.nonzero(rng.random((150, 80)) < chances)
    pairs = Interactions.from_pairs(users, items, 150, 80)[0]
    split = split_of(pairs, seed)
    found = search(split, minutes=0.1, seed=seed)
    by_model: dict[str, float] = {}
    for trial in found.trials:
        by_model[trial.settings["model"]] = max(
            by_model.get(trial.settings["model"], 0.0), trial.value or 0.0
        )
    assert found.best.value == max(by_model.values())
    assert found.best.value > 1.5 * by_model["popularity"]
    errors = [trial.error for trial in found.trials[1:]]
    assert all(error is not None and error >= 0 for error in errors)


def split_of(pairs: Interactions, seed: int, strategy: Any = "random") -> Split:
    from robustcf.data import split_pairs

    return split_pairs("mine", pairs, seed=seed, strategy=strategy)


def some_pairs(seed: int, timed: bool = False) -> Interactions:
    """Some users have many pairs, some few."""
    rng = np.random.default_rng(seed)
    dense = rng.random((40, 50)) < np.linspace(0.1, 0.8, 40)[:, None]
    users, items = np.nonzero(dense)
    times = rng.permutation(len(users)) if timed else None
    return Interactions(users, items, *dense.shape, timestamps=times)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("split_seed", [0, 1, 2, 3])
def test_no_validation_part_is_that_of_another_seed(
    split_seed: int, seed: int, timed: bool
) -> None:
    parts = validation_parts(split_of(some_pairs(0, timed), split_seed), seed)
    assert len(parts) == 3
    for one, other in combinations([part.valid for part in parts], 2):
        # By chance, parts of a tenth have a tenth in common; users with few pairs add to it.
        assert shared_pairs(one, other)[0] < 0.4 * len(one)
    assert max(part.valid.user_degrees.max() for part in parts[1:]) > 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_parts_of_leave_one_out_leave_one_out(seed: int) -> None:
    split = split_of(some_pairs(seed), seed, "leave-one-out")
    parts = validation_parts(split, seed)
    assert len({part.valid.items.tobytes() for part in parts}) == 3
    for part in parts:
        np.testing.assert_array_equal(part.valid.user_degrees, split.valid.user_degrees)
    # There is one latest pair, and it is held out already.
    timed = split_of(some_pairs(seed, timed=True), seed, "leave-one-out")
    assert validation_parts(timed, seed) == [timed]


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), "x"])
def test_refuses_minutes_and_data_without_validation_pairs(minutes: Any) -> None:
    with pytest.raises(InputError, match="minutes"):
        search(checkerboard(), minutes=minutes)
    pairs = checkerboard().train
    none = pairs.take(np.zeros(len(pairs), dtype=bool))
    with pytest.raises(InputError, match="validation"):
        search(Split("bare", pairs, none, none))


def fingerprint(value: str) -> str:
    return json.dumps({"config": None, "found": {"fingerprint": value, "trials": []}})


@pytest.mark.parametrize(
    ("name", "content", "resume", "word"),
    [
        ("mine.txt", None, False, "json"),
        ("mine.json", None, True, "not there"),
        ("mine.json", "{}", False, "exists"),
        ("mine.json", fingerprint("x"), True, "other data"),
        ("mine.json", fingerprint(checkerboard().fingerprint), True, "seed"),
    ],
)
def test_tune_refuses(
    name: str, content: str | None, resume: bool, word: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=word):
        tune_to_file(checkerboard(), tmp_path / name, resume=resume)


# --- presets in files -----------------------------------------------------------------------


def test_tune_writes_a_preset_that_train_takes(clockwork: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    clockwork["value"] = lambda s: 0.3 if s["model"] == "als" else 0.2
    found = tune_to_file(checkerboard(), path)
    preset = read_preset(path)
    assert preset.config.model.name == "als"
    assert preset.config.epochs_chosen
    assert preset.found["settings"] == found.settings
    assert choose("anything", kind=str(path)).config == preset.config
    clockwork["made"].clear()
    assert tune_to_file(checkerboard(), path, resume=True) == found
    assert clockwork["made"] == []


def test_tune_keeps_trials_that_fewer_minutes_do_not_come_to(
    clockwork: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    found = tune_to_file(checkerboard(), path)
    less = tune_to_file(checkerboard(), path, minutes=0.1, resume=True)
    assert len(less.trials) < len(found.trials)
    clockwork["made"].clear()
    assert tune_to_file(checkerboard(), path, resume=True) == found
    assert clockwork["made"] == []


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        (read_preset, {"found": {}}),
        (read_preset, {"config": {"dmi": 3}}),
        (read_preset, {"config": {}, "found": 3}),
        (module.read_trials, {"trials": 3}),
        (module.read_trials, {"trials": [{"settings": {}}]}),
    ],
)
def test_damaged_files_are_refused(reader: Any, content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=str(path)):
        reader(path)


def test_tune_does_not_mix_seeds(clockwork: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    tune_to_file(checkerboard(), path, seed=3)
    assert tune_to_file(checkerboard(), path, seed=3, resume=True).trials
    for seed in (4, "x"):
        with pytest.raises(InputError, match="seed"):
            tune_to_file(checkerboard(), path, seed=seed, resume=True)


def test_what_is_named_decides_the_preset(tmp_path: Path) -> None:
    assert choose("mine.csv").searches
    assert not choose("mine.csv", changed=["dim"]).searches
    assert choose("mine.csv", model="bpr-mf").config.model.name == "bpr-mf"
    assert choose("ml-1m", reg="two_to_inf").name == "ml-1m.ultragcn.two_to_inf"
    assert choose("ml-1m", kind="auto").searches
    for named in ({"model": "als"}, {"reg": "none"}, {"changed": ["dim"]}):
        with pytest.raises(InputError, match="auto"):
            choose("ml-1m", kind="auto", **named)
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"config": {"model": "als"}}))
    with pytest.raises(InputError, match="als"):
        choose("ml-1m", model="ultragcn", kind=str(path))


# --- runs -----------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    chances = np.where(np.arange(60)[:, None] % 2 == np.arange(40) % 2, 0.6, 0.03)
    users, items = np.nonzero(rng.random((60, 40)) < chances)
    path = tmp_path / "mine.csv"
    lines = [f"u{user},i{item}" for user, item in zip(users, items, strict=True)]
    path.write_text("\n".join(["user,item", *lines]))
    return path


def trained(table: Path, *options: str) -> Any:
    result = CliRunner().invoke(
        train_command, ["--dataset", str(table), *options, "--threads", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_data_without_a_preset_are_searched_for(
    clockwork: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    clockwork["value"] = lambda s: 0.3 if s["model"] == "ease" and s["ridge"] == 100 else 0.2
    out = tmp_path / "run"
    found = trained(table, "--out", str(out))
    assert (found["model"], found["preset"]) == ("ease", "auto")
    assert found["search"]["baseline"]
    assert found["search"]["trials"] == len(json.loads((out / "search.json").read_text())["trials"])
    run = RunDir(out)
    assert run.config.train.model.name == "ease"
    assert run.config.search == {"minutes": 5.0}
    # The run is one like any other.
    for words in (
        ["evaluate"],
        ["attack", "--epsilons", "0", "0.1"],
        ["recommend", "--items", "i1"],
    ):
        assert robustcf([words[0], str(out), *words[1:]]) == 0


def test_a_killed_search_goes_on_with_its_run(
    clockwork: dict[str, Any], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    measured = module._Search.measured

    def killed(self: Any, settings: dict[str, Any], stage: str) -> Trial:
        if len(clockwork["made"]) == 4:
            raise KeyboardInterrupt
        return measured(self, settings, stage)

    monkeypatch.setattr(module._Search, "measured", killed)
    CliRunner().invoke(train_command, ["--dataset", str(table), "--out", str(out)])
    assert len(json.loads((out / "search.json").read_text())["trials"]) == 4
    monkeypatch.setattr(module._Search, "measured", measured)
    result = CliRunner().invoke(train_command, ["--resume", str(out), "--json"])
    assert result.exit_code == 0, result.output
    made = [json.dumps(settings, sort_keys=True) for settings in clockwork["made"]]
    assert len(made) == len(set(made)), "nothing is tried twice"


def test_minutes_need_a_search(table: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    words = ["train", "--dataset", str(table), "--model", "als", "--minutes", "1", "--out", out]
    assert robustcf(words) == 2
    assert robustcf(["train", "--dataset", str(table), "--minutes", "0", "--out", out]) == 1
    assert not Path(out).exists()


def test_tune_is_a_command(clockwork: dict[str, Any], table: Path, tmp_path: Path) -> None:
    out = tmp_path / "preset.json"
    words = ["tune", "--dataset", str(table), "--out", str(out), "--threads", "1"]
    assert robustcf(words) == 0
    assert robustcf(words) == 1
    run = str(tmp_path / "run")
    assert robustcf(["train", "--dataset", str(table), "--preset", str(out), "--out", run]) == 0
    assert RunDir(run).config.preset == "preset"


@pytest.mark.parametrize("items", [500, 3_000, 15_000, 40_000])
def test_als_starts_with_the_same_weight_of_a_whole_catalogue(items: int) -> None:
    starts = [s for s in portfolio(Size(5_000, items, 200_000)) if s["model"] == "als"]
    assert [s["unobserved"] for s in starts] == pytest.approx(
        [min(weight, 900 * weight / 0.3 / items) for weight in (0.1, 0.3, 0.3, 0.1)][: len(starts)],
        rel=0.01,
    )
    # Where there are rows enough, one of them is wide.
    assert max(s["dim"] for s in starts) == (64 if items < 512 else 256)
