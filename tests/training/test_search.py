"""The search for settings: its choice, clock, resumption, and presets in files."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from robustcf.cli.main import run as robustcf
from robustcf.cli.train import train as train_command
from robustcf.data import Interactions, Split, checkerboard, split_pairs
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
    how: dict[str, Any] = {"value": lambda s: 0.1, "seconds": lambda s: 1.0, "made": []}

    def measured(self: Any, settings: dict[str, Any], stage: str) -> Trial:
        how["made"].append(settings)
        value, seconds = how["value"](settings), how["seconds"](settings)
        trial = Trial(settings, value, None, seconds, stage, len(self.parts))
        if trial.beats(self.best):
            self.best = trial
        return trial

    def summed(self: Any, rungs: Any) -> Any:
        for settings in rungs:
            yield Trial(settings, how["value"](settings), 0.0, 0.1, "ensemble", len(self.parts))

    monkeypatch.setattr(module._Search, "measured", measured)
    monkeypatch.setattr(module._Search, "summed", summed)
    return how


def test_the_best_on_valid_is_chosen_a_baseline_too(clockwork: dict[str, Any]) -> None:
    clockwork["value"] = lambda settings: 0.3 if settings["model"] == "popularity" else 0.2
    found = search(checkerboard())
    assert found.settings == {"model": "popularity"}
    assert found.summary()["baseline"]
    assert {t.settings["model"] for t in found.trials} >= {
        "popularity", "als", "sparse-ease", "softmax-mf", "bpr-mf", "ultragcn",
    }  # fmt: skip


def test_it_climbs_one_setting_at_a_time(clockwork: dict[str, Any]) -> None:
    """The values have one top, away from the portfolio: temperature 0.33, 16 columns."""

    def value(settings: dict[str, Any]) -> float:
        if settings["model"] != "softmax-mf" or settings["epochs"] == 0:
            return 0.01
        far = abs(np.log(settings["temperature"] / 0.4)) + abs(np.log2(settings["factors"] / 10))
        return 1.0 / (1.0 + far + (settings.get("weighting") == "damped"))

    clockwork["value"] = value
    found = search(checkerboard(), minutes=60)
    assert found.settings["factors"] == 10
    assert found.settings["temperature"] == pytest.approx(0.4, rel=0.13)
    assert "weighting" not in found.settings
    assert not found.summary()["baseline"]
    assert found.best.value == max(t.value for t in found.trials)


def test_the_clock_ends_it(clockwork: dict[str, Any]) -> None:
    clockwork["seconds"] = lambda settings: 20.0
    short = search(checkerboard(), minutes=1)
    assert 1 < len(short.trials) <= 4
    assert short.seconds <= 60 + 20
    assert "ultragcn" in {settings["model"] for settings in short.not_tried}
    assert short.summary()["not_tried"] == len(short.not_tried)
    # After the first slow trial of a model, no further one fits.
    clockwork["seconds"] = lambda s: 500.0 if s["model"] == "als" else 0.1
    made = [t.settings["model"] for t in search(checkerboard(), minutes=5).trials]
    assert made.count("als") == 1


def test_a_cost_is_predicted_from_the_trial_closest_in_cost() -> None:
    state = module._Search(checkerboard(), 100.0, 0, "cpu", [], lambda trials, best: None)
    forms = [{"model": "als", "factors": dim} for dim in (4, 500, 64)]
    seconds = (3.0, 70.0, 9.0)
    for form, own in zip(forms, seconds, strict=True):
        state.trials.append(Trial(form, 0.1, None, own, "portfolio", len(state.parts)))
    assert [state.predicted(form) for form in forms] == pytest.approx(seconds)
    assert 60.0 < state.predicted({"model": "als", "factors": 480}) < 70.0


def test_a_number_of_trials_ends_it_whatever_they_take(clockwork: dict[str, Any]) -> None:
    chosen = []
    for seconds in (0.01, 1e4):
        clockwork["seconds"] = lambda settings, own=seconds: own
        found = search(checkerboard(), trials=9)
        chosen.append([trial.settings for trial in found.trials])
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 9


def test_trials_beyond_the_memory_are_not_begun(clockwork: dict[str, Any]) -> None:
    size = Size.of(checkerboard())
    found = search(checkerboard(), memory=size.memory({"model": "popularity"}) / 1e9)
    assert [trial.settings["model"] for trial in found.trials] == ["popularity"]
    assert {own["model"] for own in found.not_tried} >= {"als", "sparse-ease", "softmax-mf"}
    assert "not tried" in found.table()
    with pytest.raises(InputError, match="memory"):
        search(checkerboard(), memory=0.0)


def test_ctrl_c_keeps_the_best_and_other_signals_do_not(clockwork: dict[str, Any]) -> None:
    clockwork["value"] = lambda s: 0.3 if s["model"] == "als" else 0.2
    told: list[str] = []

    def stop(trials: Any) -> None:
        if len(trials) == 6:
            raise KeyboardInterrupt(number)

    number = 2
    found = search(checkerboard(), record=stop, report=told.append)
    assert (found.interrupted, found.settings["model"], len(found.trials)) == (True, "als", 6)
    assert "interrupted" in told[-1]
    number = 15
    with pytest.raises(KeyboardInterrupt):
        search(checkerboard(), record=stop)


def test_an_ensemble_is_taken_where_it_is_clearly_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum wins by its share 0.35: by more than two standard errors, or by less."""
    for gain, wins in ((0.1, True), (0.001, False)):
        values: Users = {"sparse-ease": [[0.3, 0.5, 0.4]] * 3, "als": [[0.2, 0.5, 0.4]] * 3}
        state, _ = race(monkeypatch, values)
        for name in values:
            state.attempt({"model": name}, "portfolio")
        lucky = {
            0.35: np.array([0.3, 0.5, 0.4]) + gain * np.array([1.0, 0.9, 1.1 - 3 * (not wins)])
        }

        def summed(self: Any, rungs: Any, lucky: Any = lucky) -> Any:
            for settings in rungs:
                users = [lucky.get(settings["share"], np.array([0.2, 0.2, 0.2]))] * 3
                gap, error = module._difference(users, self.best_users())
                yield Trial(settings, float(np.mean(users)), error, 1.0, "ensemble", 3)

        monkeypatch.setattr(module._Search, "summed", summed)
        state.ensembles()
        assert (state.best.settings["model"] == "ensemble") == wins
        assert [t.settings["share"] for t in state.trials[2:]] == [*module._SHARES]
        if wins:
            assert state.best.settings["share"] == 0.35
            models = [own["model"] for own in state.best.settings["members"]]
            assert models == ["sparse-ease", "als"]


def test_the_members_of_an_ensemble_are_improved_and_the_next_best(clockwork: Any) -> None:
    values = {"item-knn": 0.5, "graph-filter": 0.4, "sparse-ease": 0.3, "als": 0.2, "bpr-mf": 0.1}
    clockwork["value"] = lambda settings: values.get(settings["model"], 0.01)
    stages: dict[str, list[str]] = {}
    for trial in search(checkerboard(), minutes=60).trials:
        stages.setdefault(trial.stage, []).append(trial.settings["model"])
    assert set(stages["improve"]) == {"item-knn", "graph-filter", "als"}
    assert set(stages["ensemble"]) == {"ensemble"}


def test_an_interrupted_search_is_resumed_to_the_same_end(clockwork: dict[str, Any]) -> None:
    clockwork["value"] = lambda s: 0.1 + 0.001 * len(str(sorted(s.items())))
    clockwork["seconds"] = lambda s: 0.3
    whole = search(checkerboard())
    kept: list[Trial] = []

    def record(trials: Any) -> None:
        kept[:] = trials
        if len(trials) == 7:
            raise KeyboardInterrupt(15)

    with pytest.raises(KeyboardInterrupt):
        search(checkerboard(), record=record)
    done = [Trial(**json.loads(json.dumps(trial.as_dict()))) for trial in kept]
    clockwork["made"].clear()
    assert search(checkerboard(), done=done) == whole
    single = [trial for trial in whole.trials if trial.stage != "ensemble"]
    assert len(clockwork["made"]) == len(single) - 7


Users = dict[str, list[list[float]]]


def race(
    monkeypatch: pytest.MonkeyPatch, values: Users, done: Any = ()
) -> tuple[Any, list[tuple[str, int]]]:
    """A search whose models have these values per user and part, and a list of its trainings."""
    trained: list[tuple[str, int]] = []

    def on_part(self: Any, settings: dict[str, Any], part: Any) -> Any:
        trained.append((settings["model"], part))
        return np.array(values[settings["model"]][part])

    state = module._Search(checkerboard(), 1000.0, 0, "cpu", done, lambda trials, best: None)
    state.parts = [0, 1, 2]
    monkeypatch.setattr(module._Search, "on_part", on_part)
    return state, trained


def test_trials_clearly_behind_are_not_trained_for_all_parts(
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
    parts = {"popularity": 3, "ease": 1, "als": 3, "bpr-mf": 2}
    assert trained == [(name, part) for name, count in parts.items() for part in range(count)]
    assert {name: trial.parts for name, trial in trials.items()} == parts
    assert trials["ease"].value == pytest.approx(0.3 - 0.15)
    assert trials["ease"].error == pytest.approx(0.05 / 2**0.5)
    als = (0.29 + 0.4 + 0.5) / 3
    assert trials["als"].value == pytest.approx(als)
    # As far behind the best as it was on the parts that both have.
    gaps = np.array([0.1, -0.03, -0.2, -0.2])
    assert trials["bpr-mf"].value == pytest.approx(als + gaps.mean())
    assert trials["bpr-mf"].error == pytest.approx(gaps.std() / 2)
    assert state.best is trials["als"]
    lines = Found({"model": "als"}, tuple(state.trials), 3, 1.0).table().splitlines()
    assert [line.endswith("(given up)") for line in lines] == [False, False, True, False, True]


def test_users_of_an_earlier_search_are_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"als": [0.4, 0.6], "ease": [0.3, 0.52], "bpr-mf": [0.2, 0.3]}
    values: Users = {name: [row] * 3 for name, row in users.items()}
    done = [Trial({"model": "als"}, 0.5, None, 1.0, "portfolio", 3)]
    state, trained = race(monkeypatch, values, done)
    trials = [state.attempt({"model": name}, "portfolio") for name in values]
    assert trained == [*[("als", part) for part in range(3)], ("ease", 0), ("bpr-mf", 0)]
    assert trials[0] == done[0]
    assert [trial.parts for trial in trials] == [3, 1, 1]
    assert trials[1].value == pytest.approx(0.41)


def test_a_trial_that_was_given_up_is_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trial that it lost against, it is trained for all parts."""
    values: Users = {"ease": [[0.3, 0.5]] * 3}
    als = Trial({"model": "als", "factors": 8}, 0.5, None, 5000.0, "portfolio", 3)
    ease = Trial({"model": "ease"}, 0.45, 0.01, 1.0, "portfolio", 1)
    state, trained = race(monkeypatch, values, [als, ease])
    state.limit = 10.0
    state.trials.append(
        Trial({"model": "als", "factors": 8, "regularization": 1.0}, None, None, 9.0, "x", 3)
    )
    assert state.attempt(dict(als.settings), "portfolio") is None
    trial = state.attempt(dict(ease.settings), "portfolio")
    assert (trial.parts, trial.value) == (3, pytest.approx(0.4))
    assert state.best is trial
    assert len(trained) == 3


def test_ctrl_c_ends_the_search_and_not_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = SimpleNamespace(interrupted=True)
    monkeypatch.setattr(module, "fit_split", lambda *_, **__: stopped)
    with pytest.raises(KeyboardInterrupt):
        search(checkerboard())


def test_ease_is_exact_up_to_20_000_items() -> None:
    for items, exact in ((900, True), (20_000, True), (20_001, False)):
        size = Size(users=5_000, items=items, pairs=50_000)
        forms = [s["neighbours"] for s in portfolio(size) if s["model"] == "sparse-ease"]
        assert (0 in forms) == exact
        assert 100 in forms


@pytest.mark.parametrize(
    ("size", "families"),
    [
        (
            Size(users=43_000, items=36_000, pairs=700_000, squares=6e7),
            {"popularity", "graph-filter", "als", "sparse-ease", "softmax-mf", "item-knn"},
        ),
        (Size(1_000_000, 200_000, 10_000_000, squares=5e8), {"als", "item-knn"}),
    ],
)
def test_large_data_get_forms_that_fit_into_a_fifth_of_the_time(
    size: Size, families: set[str]
) -> None:
    slow = {form["model"] for form in portfolio(size) if size.cost(form) > 60}
    assert not slow & families
    drawn = [form["sampled_items"] for form in portfolio(size) if "temperature" in form]
    assert len(drawn) == 4
    wide = max(form["factors"] for form in portfolio(size) if form["model"] == "als")
    assert wide == (256 if size.items < 100_000 else 32)


@pytest.mark.parametrize(
    ("settings", "key", "wanted"),
    [
        ({"model": "als", "factors": 40, "regularization": 9.0, "alpha": 2.0}, "factors", {20}),
        ({"model": "sparse-ease", "neighbours": 0, "regularization": 9.0}, "neighbours", set()),
        ({"model": "als", "factors": 4, "regularization": 1.0, "alpha": 0.1}, "factors", {8}),
        ({"model": "als", "factors": 5, "regularization": 1.0, "alpha": 0.1}, "factors", {4, 10}),
        ({"model": "bpr-mf", "factors": 4, "epochs": 1, "reg_weight": 1.0}, "epochs", {2}),
        ({"model": "bpr-mf", "factors": 4, "epochs": 48, "reg_weight": 1.0}, "epochs", {24, 64}),
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
    found = search(split_pairs("mine", pairs, seed=seed), minutes=0.03, seed=seed)
    assert found.trials[0].settings == {"model": "popularity"}
    # A trial that ended early was judged on fewer users; an ensemble must be clearly better.
    judged = [t for t in found.trials if t.parts == found.best.parts and t.stage != "ensemble"]
    assert (found.best.value or 0.0) >= max(trial.value or 0.0 for trial in judged)
    assert found.best.value > 1.5 * (found.trials[0].value or 0.0)
    errors = [trial.error for trial in found.trials[1:]]
    assert all(error is not None and error >= 0 for error in errors)


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
    parts = validation_parts(split_pairs("mine", some_pairs(0, timed), seed=split_seed), seed)
    assert len(parts) == 3
    for one, other in combinations([part.valid for part in parts], 2):
        # By chance, parts of a tenth have a tenth in common; users with few pairs add to it.
        assert shared_pairs(one, other)[0] < 0.4 * len(one)
    assert max(part.valid.user_degrees.max() for part in parts[1:]) > 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_parts_of_leave_one_out_leave_one_out(seed: int) -> None:
    how: Any = {"seed": seed, "strategy": "leave-one-out"}
    split = split_pairs("mine", some_pairs(seed), **how)
    parts = validation_parts(split, seed)
    assert len({part.valid.items.tobytes() for part in parts}) == 3
    for part in parts:
        np.testing.assert_array_equal(part.valid.user_degrees, split.valid.user_degrees)
    # There is one latest pair, and it is held out already.
    timed = split_pairs("mine", some_pairs(seed, timed=True), **how)
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


def test_tune_writes_a_preset_and_keeps_its_trials(
    clockwork: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    clockwork["value"] = lambda s: 0.3 if s["model"] == "als" else 0.2
    found = tune_to_file(checkerboard(), path, seed=3)
    preset = read_preset(path)
    assert (preset.config.model.name, preset.config.epochs_chosen) == ("als", True)
    assert preset.found["settings"] == found.settings
    assert choose("anything", kind=str(path)).config == preset.config
    # Trials that fewer minutes do not reach are kept.
    less = tune_to_file(checkerboard(), path, seed=3, minutes=0.1, resume=True)
    assert len(less.trials) < len(found.trials)
    clockwork["made"].clear()
    assert tune_to_file(checkerboard(), path, seed=3, resume=True) == found
    assert clockwork["made"] == []
    for seed in (4, "x"):
        with pytest.raises(InputError, match="seed"):
            tune_to_file(checkerboard(), path, seed=seed, resume=True)


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


def test_arguments_decide_the_preset() -> None:
    assert choose("mine.csv").searches
    assert not choose("mine.csv", changed=["factors"]).searches
    assert choose("mine.csv", model="bpr-mf").config.model.name == "bpr-mf"
    assert choose("ml-1m", reg="two_to_inf").name == "ml-1m.ultragcn.two_to_inf"
    assert choose("ml-1m", kind="auto").searches
    for named in ({"model": "als"}, {"reg": "none"}, {"changed": ["factors"]}):
        with pytest.raises(InputError, match="auto"):
            choose("ml-1m", kind="auto", **named)


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
    clockwork["value"] = lambda s: (
        0.3 if s["model"] == "als" and s["regularization"] == 100 else 0.2
    )
    out = tmp_path / "run"
    found = trained(table, "--out", str(out))
    assert (found["model"], found["preset"]) == ("als", "auto")
    assert found["search"]["baseline"]
    assert found["search"]["trials"] == len(json.loads((out / "search.json").read_text())["trials"])
    run = RunDir(out)
    assert run.config.train.model.name == "als"
    assert run.config.search == {"minutes": 5.0}
    # The run is one like any other.
    for words in ("evaluate {}", "attack {} --epsilons 0 0.1", "recommend {} --items i1"):
        assert robustcf(words.format(out).split()) == 0


def test_a_killed_search_goes_on_with_its_run(
    clockwork: dict[str, Any], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    measured = module._Search.measured

    def killed(self: Any, settings: dict[str, Any], stage: str) -> Trial:
        if len(clockwork["made"]) == 4:
            raise KeyboardInterrupt(15)
        return measured(self, settings, stage)

    monkeypatch.setattr(module._Search, "measured", killed)
    CliRunner().invoke(train_command, ["--dataset", str(table), "--out", str(out)])
    assert len(json.loads((out / "search.json").read_text())["trials"]) == 4
    monkeypatch.setattr(module._Search, "measured", measured)
    result = CliRunner().invoke(train_command, ["--resume", str(out), "--json"])
    assert result.exit_code == 0, result.output
    made = [json.dumps(settings, sort_keys=True) for settings in clockwork["made"]]
    assert len(made) == len(set(made)), "no trial is repeated"


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


@pytest.mark.parametrize("items", [500, 3_000, 40_000])
def test_als_starts_as_users_of_implicit_set_it(items: int) -> None:
    starts = [s for s in portfolio(Size(5_000, items, 200_000)) if s["model"] == "als"]
    assert {s["alpha"] for s in starts} == {5.0, 20.0, 40.0}
    assert {s["factors"] for s in starts} == {64, 256}
