"""The documents tell the truth: code runs, commands exist, sets, names and rooms are described."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import sys
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pytest
from scipy.sparse import csr_array

from robustcf import __version__
from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, POISONINGS, REGULARIZERS
from robustcf.cli.main import cli, commands_of, run
from robustcf.data.catalog import manifests
from robustcf.robustness import NAMES
from robustcf.vision.catalog import image_manifests

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGE = ROOT / "robustcf"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
NOTEBOOKS = sorted(path for path in DOCS.rglob("*.ipynb") if "_build" not in path.parts)
DOCUMENTS = [ROOT / "README.md", *PAGES]
OTHER_PAGES = [
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "CODE_OF_CONDUCT", "SECURITY")),
    *(ROOT / name / "README.md" for name in ("datasets", "results")),
]

FENCE = re.compile(r"^```([^\n`]*)\n((?::\w+:[^\n]*\n)*)(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block."""

    options: dict[str, str]
    content: str
    line: int


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *kinds: str) -> list[Block]:
    text = read(path)
    return [
        Block(
            dict(re.findall(r"^:(\w+): *(.*)$", found[2], re.MULTILINE)),
            found[3],
            text[: found.start(3)].count("\n") + 1,
        )
        for found in FENCE.finditer(text)
        if found[1] in kinds
    ]


# --- Python ---------------------------------------------------------------------------------


@pytest.fixture
def executed(monkeypatch):
    """The extension that runs blocks when the pages are built: what it runs is what we test."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    yield __import__("executed")
    for name in ("executed", "commands"):
        sys.modules.pop(name, None)


def own_material() -> dict[str, Any]:
    """What a reader of the README has already: embeddings, and pairs to train and test on."""
    rng = np.random.default_rng(0)
    pairs = rng.random((60, 40)) < 0.3
    held = pairs & (rng.random(pairs.shape) < 0.3)
    return {
        "U": rng.normal(size=(60, 8)),
        "V": rng.normal(size=(40, 8)),
        "train_matrix": csr_array(pairs & ~held),
        "test_matrix": csr_array(held),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", blocks(ROOT / "README.md", "python"), ids=lambda block: f"line {block.line}"
)
def test_python_in_the_readme_runs(block, executed):
    with closing(executed.Page("README.md")) as page:
        page.names |= own_material()
        rows = (f"u{u},i{i},{3 + (u + i) % 3},{u + i}\n" for u in range(8) for i in range(9))
        table = "user_id,item_id,rating,timestamp\n" + "".join(rows)
        (page.folder / "my.csv").write_text(table)
        page.run(block.content, block.line)


WITH_PYTHON = [path for path in PAGES if blocks(path, "python", "{executed}")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:OpenBLAS is configured")  # implicit's advice on speed
@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_python_in_the_pages_runs(path, executed):
    with closing(executed.Page(name_of(path))) as page:
        for block in blocks(path, "python", "{executed}"):
            if "file" in block.options:
                page.write(block.options["file"], block.content)
            else:
                check_width(page.run(block.content, block.line))


def check_width(printed: str) -> None:
    """Outputs of at most 100 columns do not wrap on the page."""
    assert not [line for line in printed.splitlines() if len(line) > 100]


def test_a_block_that_fails_stops_the_build(executed):
    from sphinx.errors import ExtensionError

    with closing(executed.Page("page.md")) as page:
        assert page.run("x = 20\nprint(x + 1)") == "21\n"
        with pytest.raises(ExtensionError, match="block"):
            page.run("y = x\ny.nothing", line=7)
    assert not page.folder.exists()


def test_blocks_write_and_import_in_a_folder_of_their_own(executed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(executed.Page("page.md")) as page:
        page.write("own_module.py", "answer = 42")
        page.run("from own_module import answer\nopen('written', 'w').close()")
        assert page.names["answer"] == 42
        assert (page.folder / "written").exists()
    assert "own_module" not in sys.modules
    assert str(page.folder) not in sys.path
    assert Path.cwd() == tmp_path
    assert not list(tmp_path.iterdir())


# --- notebooks ------------------------------------------------------------------------------


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(read(path))["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_are_committed_without_outputs(path):
    for cell in cells(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_run_and_print_short_lines(path, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("ROBUSTCF_CACHE", str(tmp_path / ".cache"))
    notebook = nbformat.read(path, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Jupyter itself
        place = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=900, resources=place).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            printed = output.get("text", "") if output.get("name") != "stderr" else ""
            if not shown.keys() & {"text/html", "image/png"}:
                printed += shown.get("text/plain", "")
            check_width(printed)


# --- commands -------------------------------------------------------------------------------


def shell_lines(path: Path) -> list[str]:
    """The lines of shell blocks, without prompts and comments, continued ones joined."""
    found = [block.content for block in blocks(path, "bash", "console", "sh")]
    lines = "\n".join(found).replace("\\\n", " ").splitlines()
    return [re.split(r"\s+#", line.removeprefix("$ "))[0].strip() for line in lines]


def commands(path: Path) -> list[list[str]]:
    lines = [shlex.split(line) for line in shell_lines(path) if line.startswith("robustcf ")]
    return [words[1:] for words in lines]


COMMANDS = {
    f"{name_of(path)}: {' '.join(words)}": words for path in DOCUMENTS for words in commands(path)
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
def test_commands_parse(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.npz").touch()
    command: click.Command = cli
    arguments, path = list(arguments), ["robustcf"]
    while isinstance(command, click.Group) and arguments and arguments[0] in commands_of(command):
        path.append(arguments[0])
        command = commands_of(command)[arguments.pop(0)]
    command.make_context(" ".join(path), arguments, resilient_parsing=False)


SCRIPTS = {
    f"{name_of(path)}: {line}": shlex.split(line)[1:]
    for path in DOCUMENTS
    for line in shell_lines(path)
    if line.startswith("python scripts/")
}


@pytest.mark.parametrize("words", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_scripts_are_there_and_know_their_options(words):
    # Options that scripts share are declared in a module that they import.
    sources = [ROOT / words[0], *(ROOT / "scripts").glob("_*.py")]
    text = "".join(map(read, sources))
    for word in words[1:]:
        if word.startswith("--"):
            assert f'"{word}"' in text, f"{words[0]} has no option {word}"


@pytest.mark.slow
def test_the_commands_of_the_extending_page_run(tmp_path, monkeypatch, capsys):
    """The reader's own model, objective, attack, regularizer and data, by command."""
    page = DOCS / "extending.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    known = set(sys.modules)
    for block in blocks(page, "{executed}"):
        if "file" in block.options:
            (tmp_path / block.options["file"]).write_text(block.content, encoding="utf-8")
    rows = (f"u{n % 12},i{n * n % 19},{n}\n" for n in range(200))
    (tmp_path / "plays.csv").write_text("user,item,time\n" + "".join(rows), encoding="utf-8")
    try:
        for arguments in commands(page):
            threads = ["--threads", "1"] if arguments[0] == "train" else []
            assert run([*arguments, *threads]) == 0, (arguments, capsys.readouterr().err)
    finally:
        for name in set(sys.modules) - known:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
    assert len(list((tmp_path / "runs").iterdir())) >= 4
    assert list((tmp_path / "runs" / "squared" / "robustness").glob("against_average*.json"))


# --- completeness ---------------------------------------------------------------------------


# From the ground up, as docs/architecture.md shows them; the order is that of the imports.
ROOMS = (
    *("errors.py", "factors.py", "_io", "_checks.py", "_registry.py", "_distributed.py", "data"),
    "estimators",
    *("regularizers", "objectives", "metrics", "models", "recommender", "testing.py", "attacks"),
    *("training", "robustness", "poisoning", "adapters", "auditing", "experiments", "vision"),
    "cli",
)


def test_the_map_is_made_of_the_docstrings_of_the_rooms():
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert there == {room for room in ROOMS if not room.endswith(".py")}
    lines = []
    for room in ROOMS:
        path = PACKAGE / room if room.endswith(".py") else PACKAGE / room / "__init__.py"
        first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).split("\n")[0]
        lines.append(f"{room:<16} {first}")
    made = "\n".join(lines)
    assert made in (DOCS / "architecture.md").read_text(encoding="utf-8"), f"the map is now\n{made}"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("guides/training.md", [*MODELS, *OBJECTIVES, *REGULARIZERS, *ADVERSARIES]),
        ("guides/attacks.md", NAMES),
        ("guides/poisoning.md", [*POISONINGS]),
    ],
)
def test_a_guide_names_every_entry_of_its_tables(page, names):
    # Names in code: `bpr`, or "bpr" as Python has it.
    named = set(re.findall(r"[`\"]([\w-]+)[`\"]", read(DOCS / page)))
    assert set(names) <= named


def test_every_page_is_in_the_table_of_contents():
    listed = {"index"}
    for path in PAGES:
        for block in blocks(path, "{toctree}"):
            names = block.content.split()
            listed |= {str((path.parent / name).relative_to(DOCS)) for name in names}
    pages = [*PAGES, *NOTEBOOKS]
    assert listed == {str(path.relative_to(DOCS).with_suffix("")) for path in pages}


def anchors(path: Path) -> set[str]:
    """The headings of a page as links name them: lower case, hyphens, no punctuation."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", read(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("path", [*DOCUMENTS, *OTHER_PAGES, *NOTEBOOKS], ids=name_of)
def test_links_to_files_and_headings_lead_somewhere(path):
    text = read(path)
    if path in NOTEBOOKS:
        text = "\n".join("".join(cell["source"]) for cell in cells(path, "markdown"))
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
        name, _, heading = link.partition("#")
        if not name.startswith(("http://", "https://", "mailto:")):
            target = path.parent / name if name else path
            assert target.exists(), link
            assert not heading or heading in anchors(target), link


def test_tables_of_figures_are_those_of_the_results():
    figures = runpy.run_path(str(ROOT / "scripts" / "figures.py"))
    for path in figures["PAGES"]:
        assert figures["filled"](read(path)) == read(path), path


MEASURED = [path for path in DOCUMENTS if re.search(r"(?m)^\|.*\b0\.\d{3}", read(path))]


@pytest.mark.parametrize("path", MEASURED, ids=name_of)
def test_a_table_of_figures_is_written_from_a_file_or_says_its_version(path):
    text = read(path)
    if path.parent.name != "figures":
        assert "<!-- figures: " in text or re.search(r"\b[Vv]ersion\s+\d\.\d", text)
        return
    first, *others = re.split(r"(?m)^## ", text)
    for section in (first, *(first + other for other in others)):
        if "\n|---" in section:
            assert re.search(r"<!-- figures: |[Mm]easured (with|while) versions? \d", section)


def test_the_data_readme_has_every_set_with_licence_and_citation():
    text = read(ROOT / "datasets" / "README.md")
    for manifest in (*manifests().values(), *image_manifests().values()):
        assert f"## {manifest.name}\n" in text
        assert manifest.licence in text
        assert manifest.citation in text


# --- form -----------------------------------------------------------------------------------


def test_changelog_and_citation_are_of_this_version():
    newest = re.findall(r"^## \[(.+?)\]", read(ROOT / "CHANGELOG.md"), re.MULTILINE)[0]
    assert newest in ("Unreleased", __version__)
    cited = re.findall(r"^version: (.+)$", read(ROOT / "CITATION.cff"), re.MULTILINE)
    assert cited == [__version__]


PROSE = [
    *DOCUMENTS,
    *NOTEBOOKS,
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff")),
    *(ROOT / name for name in ("datasets/README.md", "results/README.md")),
    *DOCS.rglob("*.py"),
]


@pytest.mark.parametrize("path", PROSE, ids=name_of)
def test_nothing_names_a_machine_or_a_package_registry(path):
    text = read(path)
    assert not re.search(r"/(work|home|root|Users|tmp)/", text)
    assert not re.search(r"(?i)\b(pypi|pythonhosted|anaconda|conda-forge|npmjs)\.\w", text)
