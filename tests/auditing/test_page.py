"""The page: escaped, small, self-contained, and right in a real browser."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import numpy as np

from robustcf.auditing import audit, page, write_page
from robustcf.auditing.page import _inline
from robustcf.cli.main import run
from robustcf.data import Split
from robustcf.recommender import Recommender
from tests.auditing.helpers import (
    laid_out_by_browser,
    needs_browser,
    shown,
    small_split,
    small_target,
)

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "use", "path", "rect", "link", "img"):
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


def hostile_target(text=HOSTILE, label=None):
    split = small_split()
    labels = {
        "user_labels": np.array([f"{text}{n}" for n in range(40)]),
        "item_labels": np.array([f"{text}{n}" for n in range(30)]),
    }
    named = Split.from_csr(split.train.csr(), split.test.csr(), **labels)
    rng = np.random.default_rng(0)
    users, items = rng.normal(size=(40, 4)), rng.normal(size=(30, 4))
    return Recommender(users, items, named, label=text if label is None else label)


# Overrides, embeddings and isolates turn text around; others are not seen, or end lines.
UNSEEN = "".join(map(chr, [0x202E, 0x202D, 0x2066, 0x2069, 0x200F, 0x200B, 0x1B, 0x2028, 0xFEFF]))
LONG = f"{HOSTILE}{UNSEEN}" + "x" * 100_000


def check_harmless(text):
    tags = parsed(text)
    assert {"script", "img", "iframe", "object", "a", "form", "base"}.isdisjoint(tags.tags)
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    links = {value for name, value in tags.attributes if name in ("src", "href", "xlink:href")}
    assert all(value.startswith("#") for value in links)
    assert "<script" not in text
    assert not set(UNSEEN) & set(text)
    assert "x" * 2000 not in text
    assert html.escape("<script>alert(1)</script>") in text  # shown, as text
    return tags


def test_hostile_text_next_to_attack_results(tmp_path):
    """With curves, a certificate, another version, and only hostile text."""
    target = hostile_target(HOSTILE + UNSEEN)
    how = {"source": LONG, "caveats": [LONG, HOSTILE + UNSEEN, "]]>"]}
    found = audit(target, against=small_target(3, dim=4).factors, size=0.1, **how)
    assert {"attack", "certificate"} <= found.results.keys()
    tags = check_harmless(page(found))
    assert "svg" in tags.tags
    text = write_page([found, found], tmp_path / "two.html").read_text(encoding="utf-8")
    check_harmless(text)
    assert r"\u202e" in text


def test_long_labels_and_notebooks():
    check_harmless(page(audit(hostile_target(label=LONG), only=["norms", "int8"])))
    shown = hostile_target(HOSTILE + UNSEEN)._repr_html_()
    assert "<script" not in shown
    assert not set(UNSEEN) & set(shown)


def test_the_page_of_a_report(tmp_path, capsys):
    """Of a saved recommender whose label and data a stranger chose."""
    folder = tmp_path / "<script>alert(1)</script>"  # a name of two folders
    hostile_target(HOSTILE + UNSEEN).save(folder)
    assert run(["report", str(folder), "--out", str(tmp_path / "page.html"), "--no-attack"]) == 0
    said = capsys.readouterr()
    assert not set(UNSEEN) & set(said.out + said.err)
    check_harmless((tmp_path / "page.html").read_text(encoding="utf-8"))


def test_nothing_is_fetched_and_the_picture_has_a_text():
    text = page(audit(small_target(1), size=0.1, only=["attack", "certificate", "int8"]))
    tags = parsed(text)
    # Names of SVG's vocabularies are not fetched.
    addresses = set(re.findall(r"https?://[^\"'\s<]+", text))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)
    assert {"svg", "text"} <= set(tags.tags)
    (words,) = (v for name, v in tags.attributes if name == "aria-label" and "size" in v)
    assert "certified lower bound" in words
    assert "attacked" in words


def test_caveats_come_first_then_the_verdict():
    text = page(audit(small_target(0), attack=False, caveats=["Only a part."]))
    assert text.index("Only a part.") < text.index('id="verdict"') < text.index("<h2>")
    assert "<figure" not in text, "no attack, no picture"


def test_several_audits_share_a_page():
    one = audit(small_target(0, label="first"), only=["int8"])
    two = audit(small_target(1, label="second"), only=["int8"])
    text = page([one, two])
    assert text.index("Audit of first") < text.index("Audit of second")
    parsed(text)


def test_a_picture_keeps_its_text():
    body = '<svg height="3in" viewBox="0 0 9 9" width="2in"><text>a</text></svg>'
    svg = f'<?xml version="1.0"?>\n{body}'
    assert _inline(svg) == '<svg viewBox="0 0 9 9" ><text>a</text></svg>'


@needs_browser
def test_in_a_real_browser(tmp_path):
    """No console error, no request to anywhere, something drawn, and labels shown as text."""
    found = audit(hostile_target(), size=0.1, only=["attack", "certificate", "norms"])
    path = write_page(found, tmp_path / "audit.html")
    shown(path, 900)
    laid_out = laid_out_by_browser(path)
    assert 'id="verdict"' in laid_out
    assert "<script" not in laid_out
    assert "<img" not in laid_out
