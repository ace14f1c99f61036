"""The command line as a user and as a program meet it: help, errors, exit codes, output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest

from robustcf import __version__
from robustcf.cli.main import cli, commands_of, run
from robustcf.cli.reporting import Report, command, say, to_json
from robustcf.errors import InputError


def every_command(group: click.Group = cli, path: tuple[str, ...] = ()):
    yield path, group
    for name, below in commands_of(group).items():
        if isinstance(below, click.Group):
            yield from every_command(below, (*path, name))
        else:
            yield (*path, name), below


COMMANDS = {" ".join(path): found for path, found in every_command()}


def test_no_help_imports_heavy_packages():
    code = (
        "import sys; from robustcf.cli.main import run; "
        "codes = {run([*words.split(), '--help']) for words in sys.argv[1:]}; "
        "heavy = {'torch', 'numpy', 'pandas', 'scipy', 'requests'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy or codes != {0} else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *COMMANDS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("path", "found"), COMMANDS.items())
def test_every_command_takes_json_and_debug_and_explains_itself(path, found):
    assert found.help
    options = [each for each in found.params if isinstance(each, click.Option)]
    assert not path or {"--json", "--debug"} <= {name for each in options for name in each.opts}
    # Help from a docstring without an entry for the argument would be a full stop.
    assert not [each.name for each in options if len(each.help or "") < 5]


def test_every_command_that_opens_a_run_can_insist():
    """A command to come that takes a RUN must not use an unfinished one unawares."""
    takes_run = [
        found for found in COMMANDS.values()
        if any(isinstance(p, click.Argument) and p.name in ("run", "runs") for p in found.params)
    ]  # fmt: skip
    assert len(takes_run) >= 7
    for found in takes_run:
        names = {name for parameter in found.params for name in parameter.opts}
        assert "--allow-unfinished" in names, found.name


def test_version_and_exit_codes_are_told(call):
    assert call("--version") == (0, f"robustcf, version {__version__}\n", "")
    words = " ".join(call("--help")[1].split())
    for code in ("0 done", "1 failed", "2 wrong usage", "130 stopped", "143 stopped by SIGTERM"):
        assert code in words
    code, out, err = call()
    assert code == 2
    assert "Commands:\n" in out + err


def test_failures_with_json_are_an_object_too(call):
    code, out, err = call("datasets", "fetch", "nothing", "--json")
    assert code == 1
    assert json.loads(out)["error"] in err
    code, out, _ = call("datasets", "fetch", "--json")
    assert code == 2
    assert "error" in json.loads(out)
    assert "Traceback" in call("datasets", "info", "nothing-like-it", "--debug")[2]


@pytest.mark.parametrize("words", [["nonsense"], ["--wrong"], ["datasets", "info"]])
def test_wrong_usage_exits_2_and_points_to_help(call, words):
    code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--help" in err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("trian --dataset demo", "train"),
        ("train --dataset demo --model alz", "als"),
        ("poison --dataset demo --attack randm --out no", "random"),
        ("poison --dataset demo --target-kind rar --out no", "rare"),
        ("sweep --dataset demo --regs two_to_inff --out no", "two_to_inf"),
        ("sweep --dataset demo --attacks autoo --out no", "auto"),
        ("train --dataset demo --set faktors=3", "factors"),
        ("train --dataset ml1m", "ml-1m"),
    ],
)
def test_a_word_that_is_nearly_right_is_suggested(call, words, meant):
    code, _, err = call(*words.split())
    assert code in (1, 2)
    assert f"did you mean '{meant}'?" in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("why"), 1, "internal error, ValueError: why (--debug shows where)"),
        (KeyboardInterrupt(), 130, "interrupted, what was finished before is kept: start it again"),
        (click.ClickException("not today"), 1, "not today"),
        (MemoryError(), 1, "there is not enough memory: ask for less, or use less data"),
    ],
)
def test_surprises_are_one_line_too(call, monkeypatch, error, code, said):
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("robustcf.data.load", broken)
    assert call("datasets", "info", "demo") == (code, "", f"robustcf: {said}\n")


def test_whatever_a_library_prints_stays_off_stdout(call, monkeypatch):
    from robustcf.data import load

    def chatty(*_: object, **__: object) -> object:
        print("by the way")
        return load("demo")

    monkeypatch.setattr("robustcf.data.load", chatty)
    code, out, err = call("datasets", "info", "demo", "--json")
    assert (code, json.loads(out)["name"]) == (0, "demo")
    assert "by the way" in err


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error_message():
    # A pipe whose reading end is closed before anything is written.
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "robustcf", "datasets", "info", "demo"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_json_understands_arrays_and_paths_and_refuses_nan():
    import numpy as np

    plain = to_json({"a": np.float32(1), "b": np.arange(2), "c": Path("x")})
    assert plain == '{"a": 1.0, "b": [0, 1], "c": "x"}'
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": float("nan")})


STRANGE = ["\x1b[2J", "\u202ereversed", "\ud800", "\x7f", "\x00", "\U000e0001"]


@pytest.mark.parametrize("mark", STRANGE, ids=ascii)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_labels_of_a_stranger_do_not_steer_the_terminal(mark, words, monkeypatch):
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


def test_every_number_of_the_command_line_must_be_finite():
    options = {
        option.opts[0]: option
        for found in COMMANDS.values()
        for option in found.params
        if isinstance(option.type, click.FloatRange | type(click.FLOAT))
    }
    known = {"--size", "--epsilons", "--min-rating", "--minutes", "--confidence", "--reg-weight"}
    assert options.keys() >= known
    for option in options.values():
        assert option.type.convert("0.5", option, None) == 0.5
        for value in ("nan", "inf", "-inf", "NaN", "1e999"):
            with pytest.raises(click.BadParameter):
                option.type.convert(value, option, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["detect", "--dataset", "demo", "--raw"], "--raw is for --out"),
        (["audit", "x", "--no-attack", "--size", "0.1"], "--size has no effect"),
        (["audit", "x", "--fail-under", "int8=nan"], "--fail-under"),
        (["audit", "x", "--fail-under", "int8="], "--fail-under"),
        ("train --resume x --lr 0.1 --factors 3".split(), "--factors and --lr has no effect"),
        (["train", "--dataset", "demo", "--adv-eps", "0.1"], "adv_eps is a setting of"),
        (["train", "--dataset", "demo", "--reg", "none", "--reg-weight", "1"], "reg_weight has no"),
        (["train", "--dataset", "demo", "--model", "als", "--lr", "0.1"], "lr has no effect"),
        (["train", "--dataset", "demo", "--model", "als", "--minutes", "1"], "minutes is for"),
        (["vision", "train", "--dataset", "digits", "--reg-steps", "2"], "--reg-steps has no"),
        (["vision", "train", "--resume", "x", "--depth", "10"], "--depth has no effect"),
        (["poison", "--dataset", "demo", "--out", "x", "--known", "0.1"], "--known is for"),
        (["poison", "--dataset", "demo", "--out", "x", "--target", "3", "--targets", "2"],
         "--targets has no effect"),
    ],
)  # fmt: skip
def test_options_that_would_be_ignored_are_wrong_usage(call, words, said):
    code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
