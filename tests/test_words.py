"""The words check finds its phrases, also across line breaks, and leaves plain text alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def words():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield __import__("check_words")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


BAD = (
    "if nobody sets it",
    "the file is no archive",
    "and there is none",
    "a copy of what was learnt",
    "it stops, whatever happens",
    "the first or the last, whichever is less",
    "twenty items a user",
    "the pairs that count",
    "quality of what is shown",
    "the weight of pairs not there",
    "the smell test",
    "printed beside it",
    "it cannot be gone on from",
    "has not come to its end",
    "one that had come to nothing",
    "sizes go by the median",
    "what no attack takes",
    "another is at work",
    "dropped without a word",
    "    ks: likewise",
    "must be some and differ",
)
GOOD = """There is no test set. It is no longer supported, and says what was expected.
    # A run of a block takes 20 items per user; a user has what it needs to do the job.
The number of items a user has is unknown. Everything printed next to it is right."""


@pytest.mark.parametrize("text", BAD)
def test_a_phrase_is_found_also_where_a_line_ends(words, text):
    wrapped = re.sub(r"(?<=\w) (?=\w)", "\n    # ", text)
    for form in (text, wrapped):
        assert [finding.line for finding in words.find_in(form)], form


def test_every_pattern_has_an_example_and_plain_text_has_none(words):
    advice = {finding.advice for text in BAD for finding in words.find_in(text)}
    assert advice == {advice for advice, _ in words.PATTERNS}
    assert list(words.find_in(GOOD)) == []


def test_allowed_text_is_passed_over_in_its_own_file_only(words, monkeypatch):
    monkeypatch.setattr(words, "ALLOWED", (("a.md", "Nobody Knows"),))
    assert not list(words.find_in("The song Nobody Knows\n", "a.md"))
    assert list(words.find_in("The song Nobody Knows\n", "b.md"))


@pytest.mark.parametrize(("text", "status"), [("nobody\n", 1), ("plain\n", 0)])
def test_the_exit_status_says_whether_something_was_found(text, status, tmp_path):
    script = tmp_path / "scripts" / "check_words.py"
    script.parent.mkdir()
    script.write_text((ROOT / "scripts" / "check_words.py").read_text(encoding="utf-8"))
    (tmp_path / "README.md").write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert ("README.md:1: 'nobody'" in done.stdout) == bool(status)
