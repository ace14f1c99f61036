"""The page: escaped, small, self-contained, and right in a real browser."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from robustcf.auditing import audit, page, write_page
from robustcf.auditing.page import inline
from robustcf.data import Split
from robustcf.recommender import Recommender
from tests.auditing.helpers import small_split, small_target

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "use", "path", "rect", "line", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text):
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    return tags


def hostile_target():
    split = small_split()
    labels = {
        "user_labels": np.array([f"{HOSTILE}{n}" for n in range(40)]),
        "item_labels": np.array([f"{HOSTILE}{n}" for n in range(30)]),
    }
    named = Split.from_csr(split.train.csr(), split.test.csr(), **labels)
    rng = np.random.default_rng(0)
    return Recommender(rng.normal(size=(40, 4)), rng.normal(size=(30, 4)), named, label=HOSTILE)


def test_labels_are_escaped():
    target = hostile_target()
    other = small_target(3, dim=4).factors
    found = audit(target, against=other, attack=False, source=HOSTILE, caveats=[HOSTILE])
    text = page(found)
    tags = parsed(text)
    assert "script" not in tags.tags
    assert "img" not in tags.tags
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert "<script" not in text
    assert html.escape("<script>alert(1)</script>") in text  # shown, as text


def test_nothing_is_fetched_and_the_picture_has_a_text():
    text = page(audit(small_target(1), size=0.1, only=["attack", "certificate", "int8"]))
    tags = parsed(text)
    links = {value for name, value in tags.attributes if name in ("src", "href", "xlink:href")}
    assert all(value.startswith("#") for value in links)
    # The names of SVG's own vocabularies are no addresses that anything is fetched from.
    addresses = set(re.findall(r"https?://[^\"'\s<]+", text))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)
    assert "svg" in tags.tags
    assert "text" in tags.tags
    words = next(
        value for name, value in tags.attributes if name == "aria-label" and "size" in value
    )
    assert "certified lower bound" in words
    assert "attacked" in words


def test_the_verdict_comes_first_and_what_voids_it_before_that():
    text = page(audit(small_target(0), attack=False, caveats=["Only a part."]))
    assert text.index("Only a part.") < text.index('id="verdict"') < text.index("<h2>")


def test_no_audit_no_picture():
    assert "<svg" not in page(audit(small_target(0), attack=False))


def test_several_audits_share_a_page():
    one = audit(small_target(0, label="first"), only=["int8"])
    two = audit(small_target(1, label="second"), only=["int8"])
    text = page([one, two])
    assert text.index("Audit of first") < text.index("Audit of second")
    parsed(text)


@pytest.mark.slow
def test_the_page_stays_small_whatever_the_data(tmp_path):
    rng = np.random.default_rng(0)
    users, items = 20_000, 3_000
    rows = np.repeat(np.arange(users), 5)
    columns = rng.integers(0, items, len(rows))
    matrix = np.zeros((users, items), dtype=np.int8)
    matrix[rows, columns] = 1
    target = Recommender(rng.normal(size=(users, 8)), rng.normal(size=(items, 8)), matrix)
    path = write_page(audit(target, attack=False, against=target.factors), tmp_path / "a.html")
    assert path.stat().st_size < 200_000


def test_a_picture_keeps_its_text():
    body = '<svg height="3in" viewBox="0 0 9 9" width="2in"><text>a</text></svg>'
    svg = f'<?xml version="1.0"?>\n{body}'
    assert inline(svg) == '<svg viewBox="0 0 9 9" ><text>a</text></svg>'


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@browser
@pytest.mark.slow
def test_in_a_real_browser(tmp_path):
    """Laid out without scripts: no console error, no request to anywhere, the verdict in sight."""
    found = audit(hostile_target(), size=0.1, only=["attack", "certificate", "int8", "norms"])
    path = write_page(found, tmp_path / "audit.html")
    shot, log = tmp_path / "page.png", tmp_path / "net.json"
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}",
            f"--log-net-log={log}", "--window-size=900,1200", f"--screenshot={shot}",
            f"file://{path}",
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert shot.is_file(), done.stderr
    assert "CONSOLE" not in done.stderr
    requests = re.findall(r'"url":"(https?:[^"]+)"', log.read_text(errors="replace"))
    own = [url for url in requests if "google" not in url and "gstatic" not in url]
    assert own == []
    from PIL import Image

    with Image.open(shot) as picture:
        colours = picture.convert("RGB").getcolors(2**24)
    assert picture.size == (900, 1200)
    assert len(colours) > 50  # something was drawn


@browser
@pytest.mark.slow
def test_the_browser_shows_labels_as_text(tmp_path):
    found = audit(hostile_target(), only=["norms"], source=HOSTILE)
    path = write_page(found, tmp_path / "audit.html")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-sync", "--disable-component-update",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{path}",
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert 'id="verdict"' in done.stdout
    assert "<script" not in done.stdout
    assert "<img" not in done.stdout
