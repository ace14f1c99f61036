"""The documents tell the truth: code runs, commands exist, every set is described."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from robustcf import __version__
from robustcf.cli.main import cli
from robustcf.data.catalog import manifests
from robustcf.vision.catalog import image_manifests

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.splitlines()[0])
def test_python_blocks_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").write_text(
        "user_id,item_id,rating,timestamp\n"
        + "".join(f"u{u},i{i},{3 + (u + i) % 3},{u + i}\n" for u in range(8) for i in range(9))
    )
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def shell_commands() -> list[list[str]]:
    lines = [line for block in blocks("(?:bash|console|sh)") for line in block.splitlines()]
    commands = [line.removeprefix("$ ").partition("  #")[0] for line in lines]
    return [shlex.split(line) for line in commands if line.startswith("robustcf ")]


@pytest.mark.parametrize("words", shell_commands(), ids=" ".join)
def test_commands_in_the_readme_parse(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.npz").touch()
    command: click.Command = cli
    arguments = words[1:]
    path = ["robustcf"]
    while isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
        path.append(arguments[0])
        command = command.commands[arguments.pop(0)]
    command.make_context(" ".join(path), arguments, resilient_parsing=False)


def test_the_data_readme_has_every_set_with_licence_and_citation():
    text = (ROOT / "datasets" / "README.md").read_text(encoding="utf-8")
    for manifest in (*manifests().values(), *image_manifests().values()):
        assert f"## {manifest.name}\n" in text
        assert manifest.licence in text
        assert manifest.citation in text


def test_the_map_in_the_readme_has_every_room():
    rooms = {
        path.name if path.is_dir() else path.stem
        for path in (ROOT / "robustcf").iterdir()
        if not path.name.startswith("_")
        and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    house = re.search(r"^```\n(robustcf/\n.*?)^```", README, re.DOTALL | re.MULTILINE).group(1)
    on_the_map = set(re.findall(r"^  (\w+)(?:\.py|/)", house, re.MULTILINE))
    assert on_the_map == rooms


def test_the_changelog_leads_up_to_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)[0]
    assert newest in ("Unreleased", __version__)


def test_nothing_names_a_machine():
    text = README + (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert not re.search(r"/(work|home|root|Users)/", text)
