"""Pages of a leaderboard: order, frontier, escaping, and the commands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from robustcf.auditing.battery import submit
from robustcf.auditing.entries import verify
from robustcf.auditing.leaderboard import markdown_table, read_boards, write_site
from robustcf.data import load
from robustcf.errors import InputError
from tests.auditing.helpers import laid_out_by_browser, needs_browser, shown
from tests.auditing.test_entries import changed, small_model

HOSTILE = '</script><img src=x onerror=alert(1)>"|`[a](b)'


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return submit(
        *(small_model(), tmp_path_factory.mktemp("one") / "e"),
        name="m",
        steps=3,
        progress=False,
        fakes={"exposure by 10": 0.5},
    ).path


@pytest.fixture
def folder(first, tmp_path):
    """Five entries: (clean, attacked); the last one is unreliable."""

    def planted(clean, attacked, name, red):
        def change(facts):
            facts["name"] = name
            facts["clean"]["ndcg@10"] = clean
            facts["attacked"][2]["value"] = attacked
            facts["flags"] = [{"name": "noise", "red": True, "sentence": "."}] if red else []

        return change

    rows = [(0.3, 0.1), (0.2, 0.2), (0.25, 0.05), (0.4, 0.1), (0.5, 0.5)]
    for n, (clean, attacked) in enumerate(rows):
        path = tmp_path / "entries" / f"{n}.json"
        path.parent.mkdir(exist_ok=True)
        shutil.copy(first, path)
        changed(path, planted(clean, attacked, f"model {n}" if n else HOSTILE, n == 4))
    return tmp_path / "entries"


def test_order_and_frontier(folder):
    (board,) = read_boards(folder)
    assert [entry.path.stem for entry in board.entries] == ["1", "3", "0", "2", "4"]
    assert [entry.path.stem for entry in board.frontier()] == ["3", "1"]
    assert [row[0] for row in board.rows()] == ["1", "2", "3", "4", ""]


def test_splits_and_stored_arrays_are_not_mixed(folder):
    changed(folder / "1.json", lambda facts: facts.update(surface="items"))
    changed(folder / "2.json", lambda facts: facts["dataset"].update(fingerprint="a" * 64))
    assert sorted(len(board.entries) for board in read_boards(folder)) == [1, 1, 3]


def test_pages_are_whole_and_escaped(folder, tmp_path):
    index = write_site(read_boards(folder), tmp_path / "site")
    pages = {path.name: path.read_text() for path in index.parent.iterdir()}
    assert len(pages) == 6
    for text in pages.values():
        assert "<img" not in text
        assert not re.search(r'(?:src|href)="(?:https?:|//)', text)
        for link in re.findall(r'href="([^"#]+)"', text):
            assert link in pages
    with pytest.raises(InputError, match="exists"):
        write_site(read_boards(folder), tmp_path / "site")


@needs_browser
def test_pages_sort_filter_and_draw_in_a_real_browser(folder, tmp_path):
    index = write_site(read_boards(folder), tmp_path / "site")
    dark = "--blink-settings=preferredColorScheme=0"
    for page, how in ((index, ()), (index, (dark,)), (index.parent / "entry-1.html", (dark,))):
        corner = shown(page, 420, *how).getpixel((2, 2))
        assert (sum(corner) < 200) == bool(how), corner
    # A copy that clicks on a column and types into the filter.
    acts = """<script>document.querySelectorAll("th button")[2].click();
        const box = document.getElementById("filter"); box.value = "model";
        box.dispatchEvent(new Event("input"));</script></body>"""
    (index.parent / "acted.html").write_text(index.read_text().replace("</body>", acts))
    rows = re.findall("<tr([^>]*)>(.*?)</tr>", laid_out_by_browser(index.parent / "acted.html"))
    clean = [float(re.findall("<td[^>]*>(.*?)</td>", row)[2]) for _, row in rows if "<td" in row]
    assert clean == sorted(clean, reverse=True)
    hidden = [row for attributes, row in rows if "hidden" in attributes]
    assert len(hidden) == 1
    assert "onerror" in hidden[0]


def test_markdown_of_the_first_rows(folder):
    text = markdown_table(read_boards(folder), most=3)
    assert text.count("\n") == 6
    assert "model 3" in text
    assert not re.search(r"(?<!\\)[<|`\[](?=img|`)", text)


def test_no_entries(tmp_path):
    with pytest.raises(InputError, match="no entries"):
        read_boards(tmp_path)


SHIPPED = Path(__file__).parents[2] / "results" / "leaderboard"


def test_the_shipped_table_is_that_of_its_entries():
    boards = read_boards(SHIPPED)
    assert markdown_table(boards) in (SHIPPED / "README.md").read_text()
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 15e6
    for entry in (one for board in boards for one in board.entries):
        assert not entry.unreliable
        assert (entry.path.parent / entry.facts["evidence"]["file"]).is_file()


@pytest.mark.long
@pytest.mark.realdata
@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*/*")), ids=lambda path: path.name)
def test_shipped_entries_are_verified(path, real_data):
    found = verify(path, lambda name: load(name, data_dir=real_data))
    assert found.passed, str(found)
