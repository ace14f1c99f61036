"""Verdicts, the table of checks, and thresholds."""

from __future__ import annotations

import math
import os

import pytest

from robustcf.auditing import CHECKS, Limit, thresholds_from
from robustcf.errors import InputError


@pytest.mark.parametrize(
    ("limit", "verdicts"),
    [
        (Limit(0.9, 0.5), {0.95: "pass", 0.9: "pass", 0.89: "warn", 0.5: "warn", 0.49: "fail"}),
        (Limit(0.9, 0.5), {math.nan: "fail"}),
        (Limit(0.9, None), {0.0: "warn"}),
        (Limit(None, None), {0.0: "pass"}),
        (
            Limit(10, 100, higher_is_better=False),
            {10: "pass", 11: "warn", 100: "warn", 101: "fail"},
        ),
    ],
)
def test_verdicts(limit, verdicts):
    assert {number: limit.verdict(number) for number in verdicts} == verdicts


def test_every_check_says_what_it_means_and_what_to_do():
    assert len({check.title for check in CHECKS.values()}) == len(CHECKS)
    for name, check in CHECKS.items():
        assert check.name == name
        assert check.means.endswith(".")
        judged = check.limit.words != "none"
        assert check.advice.endswith(".") == judged


def written(tmp_path, text):
    path = tmp_path / "limits.toml"
    path.write_text(text)
    return path


def test_thresholds_of_a_file(tmp_path):
    text = "# ... a comment ...\nint8.warn = 0.99  # [strict]\n[norms]\nfail = false\n"
    checks = thresholds_from(written(tmp_path, text))
    assert checks["int8"].limit == Limit(0.99, CHECKS["int8"].limit.fail)
    assert checks["norms"].limit == Limit(CHECKS["norms"].limit.warn, None, higher_is_better=False)
    assert checks["attack"] == CHECKS["attack"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[int9]\nwarn = 1", "did you mean 'int8'"),
        ("int8 = 3", "takes warn and fail"),
        ("[int8]\nwrn = 3", "takes warn and fail"),
        ("[int8]\nwarn = 'x'", "int8.warn"),
        ("[int8]\nwarn = true", "int8.warn"),
        ("[int8]\nwarn = nan", "int8.warn"),
        ("[int8]\nwarn = 0.5\nfail = 0.9", "at least"),
        ("[norms]\nwarn = 5\nfail = 2", "at most"),
        ("[int8", "TOML"),
    ],
)
def test_bad_thresholds_are_refused(tmp_path, text, word):
    with pytest.raises(InputError, match=word):
        thresholds_from(written(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "[\n" * 100_000,
        "a = " + "{a=" * 10_000,
        "[int8]\nwarn = " + "9" * 5_000,
        ".".join("a" * 100_000) + " = 1",
        "[" + ".".join("a" * 100_000) + "]",
        "\n".join(f"{'.'.join('ab' * 20)}.x{n} = 1" for n in range(1000)),
        "x" * (1 << 21),
        "[int8]\nwarn = " + "0." + "1" * 3_000,
        "[int8]\nwarn = 1e999",
        "[int8]\nwarn = nan",
        "[int8]\nwarn = 1979-05-27",
        "\0",
        "[int8]\nwarn = {a = " + repr("b" * 900) + "}",
    ],
    ids=range(14),
)
def test_thresholds_that_would_overwhelm_the_parser_are_refused(tmp_path, text):
    with pytest.raises(InputError) as error:
        thresholds_from(written(tmp_path, text))
    assert len(str(error.value)) < 1500


def test_thresholds_must_be_a_plain_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", tmp_path, "/dev/zero", tmp_path / "missing.toml"):
        with pytest.raises(InputError):
            thresholds_from(path)
    (tmp_path / "link.toml").symlink_to(written(tmp_path, "[int8]\nwarn = 0.99\n"))
    assert thresholds_from(tmp_path / "link.toml")["int8"].limit.warn == 0.99
