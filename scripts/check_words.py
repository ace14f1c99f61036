"""Find phrases that readers of this project have had to read twice, and print where they are.

Each entry of `PATTERNS` is a phrase to avoid and what to write instead. Code, messages, documents,
notebooks and tests are searched; quotations that are right as they are stand in `ALLOWED`. The exit
status is 1 where a phrase is found, so that `make check` fails.

    python scripts/check_words.py              # the whole project
    python scripts/check_words.py docs/*.md    # some files
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("robustcf", "docs", "scripts", "tests", "datasets", "results", ".github")
SUFFIXES = {".py", ".md", ".toml", ".cfg", ".yml", ".cff", ".ipynb"}

_COUNTED = (
    r"(?:items|pairs|bytes|products|values|votes|rows?|files|steps|epochs|seconds|ms|samples|columns"
    r"|users|lines|numbers?|MB|GB|tests|models|runs|times|places)"
)
_PER = (
    r"(?:user|item|row|step|epoch|run|product|batch|pair|block|file|line|sample|iteration|trial"
    r"|account|profile|group|model|query|call|class|process|rank|seed|worker|positive)"
)

#: (what to write instead, the phrase as a regular expression), case ignored.
PATTERNS: tuple[tuple[str, str], ...] = (
    ("the condition, or 'the attacker', 'the caller'", r"(?:no|some|any|every)body\b|\bwhoever"),
    (
        "'not a', 'missing', 'unknown'",
        r"\b(?<!there\s)(?:is|are|was|were|be) no (?!longer|more than|less than)\w",
    ),
    (
        "'is missing', 'does not exist'",
        r"\b(?:there|it) (?:is|are|was|were) (?-i:none)\b|nothing of (?:it|them)\b",
    ),
    (
        "the noun: 'training pairs', 'the stronger attack'",
        r"\b(?:of|from|for|by|with|than|on|in|at|into|over) what (?:is|was|are|were|it|they|has|had"
        r"|the|a|an|one|you|we|comes?|stands?|can|did|does|follows|remains)\b",
    ),
    ("the noun, or 'regardless of'", r"\bwhatever\b"),
    ("'the smaller of A and B', 'either'", r"\bwhichever\b"),
    ("'per'", rf"\b{_COUNTED} (?-i:an?) {_PER}\b(?! (?:of|has|have|had|may|that)\b)"),
    ("'relevant items'", r"\bpairs that count\b"),
    ("'recommendations', 'top-k list'", r"\bwhat (?:is|was|are) shown\b|\bwhat one sees\b"),
    ("'unobserved'", r"\b(?:pairs?|what|those) (?:that (?:is|are) )?not there\b"),
    ("'alignment check'", r"\bsmells?\b"),
    ("'next to', 'side by side'", r"\bbeside\b"),
    ("'resume', 'continue'", r"\b(?:gone|goes|going|go|went) on from\b|\bgo on where\b"),
    ("'finish', 'unfinished'", r"\b(?:come|came|comes|coming) to (?:its|their|an) end\b"),
    ("'fail', 'failed'", r"\b(?:come|came|comes) to nothing\b"),
    ("'depends on', 'is measured in'", r"\bgo(?:es)? by the\b"),
    ("'certified', 'lower bound'", r"\bwhat no attack\b"),
    ("'a lock', 'another process'", r"\banother is at work\b"),
    ("'silently'", r"\bwithout a word\b"),
    ("the full noun phrase", r"^\s*\w+: likewise\b|\blikewise the\b|^\s*(?:help=)?\"Of [a-z]+\.\""),
    ("'invalid', 'empty'", r"\bmust be some\b|\bthat is none\b|\bof nobody\b"),
)

#: Text that is right as it stands: a quotation, another library's name, this script's own data.
ALLOWED: tuple[tuple[str, str], ...] = (
    ("scripts/check_words.py", r".*"),
    ("tests/test_words.py", r".*"),
    ("docs/migration.md", r"`smell"),
    ("CHANGELOG.md", r"`smell`"),
    # The name of a random stream: another name would draw other pairs.
    ("robustcf/adapters/aligning.py", r'"smell"'),
)


class Finding(NamedTuple):
    """A phrase to avoid: the file, the line, the text found and the advice."""

    path: str
    line: int
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}; write {self.advice}"


def find_in(text: str, path: str = "text") -> Iterator[Finding]:
    """Yield the phrases of `PATTERNS` in a text, also where a line break parts them."""
    allowed = [re.compile(pattern) for name, pattern in ALLOWED if name == path]
    lines = text.splitlines()
    for advice, pattern in PATTERNS:
        # A blank in a pattern stands for any white space, comment signs and quotes between words.
        spread = re.compile(pattern.replace(" ", r"(?:\s+#?\s*|\"\s*\n\s*f?\")"), re.I | re.M)
        for match in spread.finditer(text):
            line = text.count("\n", 0, match.start())
            if not any(rule.search(lines[line]) for rule in allowed):
                yield Finding(path, line + 1, " ".join(match[0].split()), advice)


def files_of_project() -> list[Path]:
    """Return every text file that people read, generated ones left out."""
    below = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()]
    found = [path for path in [*ROOT.iterdir(), *below] if path.suffix in SUFFIXES]
    return sorted(path for path in found if not {"_build", "__pycache__"} & {*path.parts})


def main() -> int:
    """Print the findings in the files named, or in all; 1 where there are some."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: the whole project")
    paths = [path.resolve() for path in parser.parse_args().files] or files_of_project()
    findings = [
        finding
        for path in paths
        for finding in find_in(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]
    print(*findings, sep="\n", end="\n" if findings else "")
    print(f"{len(findings)} phrases to rewrite in {len(paths)} files")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
