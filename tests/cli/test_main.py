"""The command line as a user and as a program meet it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest

from robustcf import __version__
from robustcf.cli import main as entry
from robustcf.cli.entry import SIGNALS
from robustcf.cli.main import cli, run
from robustcf.cli.reporting import Report, command, say, to_json
from robustcf.errors import InputError
from tests._io.faulty_server import Plan, serve


def every_command(group: click.Group = cli, path: tuple[str, ...] = ()):
    yield path
    for name, below in group.commands.items():
        if isinstance(below, click.Group):
            yield from every_command(below, (*path, name))
        else:
            yield (*path, name)


COMMANDS = list(every_command())


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
@pytest.mark.slow
def test_every_help_answers_quickly(path):
    def cpu_seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Not a clock on speed but on what is imported: torch or pandas alone would take longer.
    bare = cpu_seconds(sys.executable, "-c", "pass")
    assert cpu_seconds(sys.executable, "-m", "robustcf", *path, "--help") < bare + 0.5


def test_heavy_packages_are_not_imported_by_help():
    code = (
        "import sys; from robustcf.cli.main import run; run(['--help']); "
        "heavy = {'torch', 'numpy', 'pandas', 'scipy', 'requests'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_takes_json_and_debug_and_explains_itself(path):
    found: click.Command = cli
    for name in path:
        found = found.commands[name]
    assert found.help
    if path:
        options = [each for each in found.params if isinstance(each, click.Option)]
        assert {"--json", "--debug"} <= {name for each in options for name in each.opts}
        # One that is taken from a docstring without an entry is a full stop.
        assert not [each.name for each in options if len(each.help or "") < 5]


def test_version(capsys):
    assert call(capsys, "--version") == (0, f"robustcf, version {__version__}\n", "")


def test_datasets_lists_every_set(capsys):
    code, out, _ = call(capsys, "datasets")
    assert code == 0
    assert "ml-1m" in out
    assert "citeulike-t (citeulike)" in out
    code, out, _ = call(capsys, "datasets", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)["datasets"]}
    assert entries["yelp2018"]["interactions"] == 1_561_406
    assert entries["demo"]["present"] is True
    assert entries["demo"]["where"] == "generated"


def test_info_as_text_and_json(capsys):
    code, out, err = call(capsys, "datasets", "info", "demo", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert {k: facts[k] for k in ("name", "n_users", "n_items", "train", "valid", "test")} == {
        "name": "demo",
        "n_users": 2000,
        "n_items": 1500,
        "train": 80_846,
        "valid": 9_067,
        "test": 10_087,
    }
    code, out, _ = call(capsys, "datasets", "info", "demo")
    assert code == 0
    assert "80,846" in out
    assert "synthetic" in out


def test_info_on_own_file_with_options(capsys, tmp_path):
    (tmp_path / "my.csv").write_text("who,what,stars\na,x,5\na,y,5\nb,x,1\nb,y,4\n")
    arguments = ["datasets", "info", str(tmp_path / "my.csv"), "--user-col", "who"]
    arguments += ["--item-col", "what", "--min-rating", "4", "--json"]
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    facts = json.loads(out)
    assert (facts["n_users"], facts["train"], facts["test"]) == (2, 2, 1)
    assert facts["notes"][0] == "my.csv: 1 pair rated below 4 dropped"
    assert facts["labels"] == {"users": True, "items": True}


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ml-1m", dict(n_users=6022, n_items=3043, train=796_244, valid=99_455, test=99_455)),
        ("yelp2018", dict(n_users=31_668, n_items=38_048, test=324_147)),
        ("gowalla", dict(n_users=29_858, n_items=40_981, test=217_242)),
        ("citeulike-a", dict(n_users=5551, n_items=16_980)),
        ("citeulike-t", dict(n_users=7947, n_items=25_584)),
        ("ml-100k", dict(n_users=943, n_items=1682)),
    ],
)
def test_info_on_the_real_sets(capsys, real_data, name, expected):
    code, out, _ = call(capsys, "datasets", "info", name, "--data-dir", str(real_data), "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["name"] == name
    assert {key: facts[key] for key in expected} == expected
    if name == "yelp2018":
        assert facts["train"] + facts["valid"] == 1_237_259


@pytest.mark.realdata
def test_fetch_leaves_what_is_there_alone(capsys, real_data):
    code, out, _ = call(
        capsys, "datasets", "fetch", "ml-1m", "demo", "--data-dir", str(real_data), "--json"
    )
    assert code == 0
    fetched = json.loads(out)["fetched"]
    assert [entry["downloaded"] for entry in fetched["ml-1m"]] == [False, False, False]
    assert fetched["demo"] == []


def test_seed_and_ratios_reach_the_split(capsys, tmp_path):
    prints = []
    for seed in ("0", "1"):
        _, out, _ = call(capsys, "datasets", "info", "demo", "--seed", seed, "--json")
        prints.append(json.loads(out)["fingerprint"])
    assert len(set(prints)) == 2
    rows = "".join(f"a,{n}\n" for n in range(10))
    (tmp_path / "my.csv").write_text(f"user,item\n{rows}")
    name = str(tmp_path / "my.csv")
    _, out, _ = call(capsys, "datasets", "info", name, "--test-ratio", "0.35", "--json")
    assert json.loads(out)["test"] == 4


def test_what_is_absent_is_called_absent_and_not_fetched_when_told_so(capsys, tmp_path):
    _, out, _ = call(capsys, "datasets", "--data-dir", str(tmp_path), "--json")
    absent = {entry["name"]: entry for entry in json.loads(out)["datasets"]}["ml-1m"]
    assert (absent["present"], absent["where"]) == (False, None)
    arguments = ["datasets", "info", "ml-1m", "--data-dir", str(tmp_path), "--no-download"]
    code, _, err = call(capsys, *arguments)
    assert code == 1
    assert "downloading is off" in err


def test_fetch_downloads_what_it_can_and_says_what_it_could_not(capsys, tmp_path, monkeypatch):
    from robustcf.data import catalog
    from robustcf.data.catalog import Manifest, SourceFile

    body = b"0 1 2\n"
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    with serve(Plan(body)) as good, serve(Plan(body, ["404"])) as gone:
        facts = dict(title="t", layout="split", counts={}, labels={}, homepage="")
        facts |= dict(licence="", citation="")
        parts = {
            "train": (SourceFile("train.txt", "adjacency", (digest,), (good.url,)),),
            "test": (SourceFile("test.txt", "adjacency", (digest,), (gone.url,)),),
        }
        toys = {
            "whole": Manifest("whole", parts={"train": parts["train"]}, **facts),
            "half": Manifest("half", parts=parts, **facts),
        }
        monkeypatch.setattr(catalog, "manifests", lambda: toys)
        folder = ["--data-dir", str(tmp_path)]
        code, out, _ = call(capsys, "datasets", "fetch", "whole", *folder, "--json")
        assert code == 0
        assert json.loads(out)["fetched"]["whole"][0]["downloaded"] is True
        code, out, _ = call(capsys, "datasets", "fetch", "whole", *folder)
        assert "already there" in out
        code, _, err = call(capsys, "datasets", "fetch", "half", "whole", *folder)
    assert code == 1
    assert "2 files are there, 1 failed" in err
    assert f"{gone.url}: HTTP 404" in err
    assert (tmp_path / "half" / "train.txt").read_bytes() == body


def test_options_of_the_group_are_not_swallowed(capsys, tmp_path):
    assert call(capsys, "datasets", "--json", "info", "demo")[0] == 2
    code, _, err = call(capsys, "datasets", "--data-dir", str(tmp_path), "info", "demo")
    assert code == 2
    assert "behind the subcommand" in err


def test_without_arguments_the_help_is_shown(capsys):
    code, out, err = call(capsys)
    assert code == 2
    assert "Commands:\n" in out + err


def test_failures_are_one_line_and_exit_1(capsys):
    code, out, err = call(capsys, "datasets", "info", "nothing-like-it")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("robustcf: no data set or file is called 'nothing-like-it'")


def test_failures_with_json_are_an_object_too(capsys):
    code, out, err = call(capsys, "datasets", "fetch", "nothing", "--json")
    assert code == 1
    assert json.loads(out)["error"] in err
    code, out, _ = call(capsys, "datasets", "fetch", "--json")
    assert code == 2
    assert "error" in json.loads(out)


def test_debug_shows_the_traceback(capsys):
    code, _, err = call(capsys, "datasets", "info", "nothing-like-it", "--debug")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--wrong"],
        ["datasets", "info"],
        ["datasets", "info", "demo", "--seed", "x"],
        ["datasets", "info", "demo", "--seed", "-1"],
        ["datasets", "info", "x.csv", "--test-ratio", "1.5"],
        ["datasets", "info", "x.csv", "--k-core", "0"],
    ],
)
def test_wrong_usage_exits_2_and_points_to_help(capsys, arguments):
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "--help" in err
    assert err.count("\n") == 1


def test_surprises_are_one_line_too(capsys, monkeypatch):
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("by surprise")

    monkeypatch.setattr("robustcf.data.load", broken)
    code, _, err = call(capsys, "datasets", "info", "demo")
    assert code == 1
    assert err == "robustcf: internal error, ZeroDivisionError: by surprise (--debug shows where)\n"

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("robustcf.data.load", interrupted)
    assert call(capsys, "datasets", "info", "demo")[0] == 130

    def refused(*args: object, **kwargs: object) -> None:
        raise click.ClickException("not today")

    monkeypatch.setattr("robustcf.data.load", refused)
    assert call(capsys, "datasets", "info", "demo") == (1, "", "robustcf: not today\n")


def test_whatever_a_library_prints_stays_off_stdout(capsys, monkeypatch):
    from robustcf.data import load

    def chatty(*args: object, **kwargs: object) -> object:
        print("by the way")
        return load("demo")

    monkeypatch.setattr("robustcf.data.load", chatty)
    code, out, err = call(capsys, "datasets", "info", "demo", "--json")
    assert code == 0
    assert json.loads(out)["name"] == "demo"
    assert "by the way" in err


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error_message():
    # A pipe whose reading end is closed before anything is written.
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "robustcf", "datasets", "info", "demo"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_read_only_data_dir_is_said(capsys, tmp_path):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    code, _, err = call(
        capsys, "datasets", "fetch", "ml-1m", "--data-dir", str(tmp_path / "blocked")
    )
    assert code == 1
    assert "cannot write" in err
    assert "--data-dir" in err


def test_main_exits_with_the_code(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["robustcf", "nonsense"])
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with pytest.raises(SystemExit) as stop:
            entry.main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert stop.value.code == 2


def test_json_understands_arrays_and_paths_and_refuses_nan():
    import numpy as np

    assert to_json({"a": np.float32(1), "b": np.arange(2), "c": Path("x")}) == (
        '{"a": 1.0, "b": [0, 1], "c": "x"}'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": float("nan")})


def test_the_console_script_is_installed():
    script = Path(sys.executable).with_name("robustcf")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip() == f"robustcf, version {__version__}"


STRANGE = ["\x1b[2J", "\u202ereversed", "\ud800", "\x7f", "\x00", "\U000e0001"]


@pytest.mark.parametrize("mark", STRANGE, ids=ascii)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_labels_of_a_stranger_do_not_steer_the_terminal(
    mark: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @command()
    def shows() -> Report:
        say(mark)
        return Report({"label": mark}, f"one\ttwo\n{mark} ä")

    @command()
    def fails() -> Report:
        raise InputError(mark)

    for shown, expected in ((shows, 0), (fails, 1)):
        # As strict about characters as a terminal is.
        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
        with monkeypatch.context() as patch, redirect_stdout(streams[0]):
            patch.setitem(cli.commands, "new", shown)
            with redirect_stderr(streams[1]):
                assert run(["new", *words]) == expected
        out, err = (stream.buffer.getvalue().decode() for stream in streams)
        assert mark[0] not in out + err
        assert "internal error" not in err
        if words:
            assert json.loads(out) == ({"label": mark} if shown is shows else {"error": mark})
        elif shown is shows:
            assert out.startswith("one\ttwo\n")
            assert out.endswith(" ä\n")


def float_options() -> list[tuple[str, click.Option]]:
    found = []
    for path in every_command():
        command: click.Command = cli
        for name in path:
            command = command.commands[name]  # type: ignore[attr-defined]
        found += [
            (" ".join((*path, option.opts[0])), option)
            for option in command.params
            if isinstance(option, click.Option)
            and isinstance(option.type, click.FloatRange | type(click.FLOAT))
        ]
    return found


def test_every_number_of_the_command_line_must_be_finite():
    options = float_options()
    assert {name.split()[-1] for name, _ in options} >= {
        *("--size", "--epsilons", "--min-rating", "--minutes", "--confidence"),
    }
    for _, option in options:
        assert option.type.convert("0.5", option, None) == 0.5
        for value in ("nan", "inf", "-inf", "NaN", "1e999"):
            with pytest.raises(click.BadParameter):
                option.type.convert(value, option, None)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "words",
    [
        ["audit", "x", "--size"],
        ["attack", "x", "--epsilons"],
        ["train", "--dataset", "demo", "--min-rating"],
        ["tune", "--dataset", "demo", "--out", "p.json", "--minutes"],
        ["compare", "x", "y", "--confidence"],
    ],
)
def test_numbers_that_are_not_finite_are_wrong_usage(capsys, words, value):
    code, out, err = call(capsys, *words[:-1], f"{words[-1]}={value}")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "", "x"])
def test_a_floor_must_be_a_finite_number(capsys, value):
    code, out, err = call(capsys, "audit", "x", "--fail-under", f"int8={value}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--fail-under" in err
