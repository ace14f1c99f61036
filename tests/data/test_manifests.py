"""Manifests say what they must, and lead nowhere but to the folder of their set."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from robustcf.data.catalog import manifests, parse_manifest
from robustcf.errors import DataError
from robustcf.vision.catalog import image_manifests, parse_image_manifest


def raw(package: str, name: str) -> dict[str, Any]:
    text = (resources.files(package) / "manifests" / f"{name}.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def changed(values: dict[str, Any], place: list[Any], new: Any) -> bytes:
    inner: Any = values
    for key in place[:-1]:
        inner = inner[key]
    if new is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return json.dumps(values).encode()


FILE = ["parts", "pairs", 0]


@pytest.mark.parametrize(
    ("place", "new", "message"),
    [
        (["name"], None, "a.json: name must be text that is not empty, got nothing"),
        (["layout"], "odd", "layout must be one of split, pairs, generated, got 'odd'"),
        (["counts"], {"users": 1}, "counts.items must be an integer of at least 1, got nothing"),
        (["counts", "pairs"], "x", "counts.pairs must be an integer"),
        (["parts"], [], "parts must be an object, got"),
        (["parts", "pairs"], [], "parts.pairs must be a list of at least 1"),
        (
            [*FILE, "path"],
            "../../.bashrc",
            r"pairs\[0\].path must be a path inside the set's folder",
        ),
        ([*FILE, "path"], "/etc/passwd", "path must be a path inside the set's folder"),
        ([*FILE, "format"], "pickle", "format must be one of adjacency"),
        ([*FILE, "checksums"], [], "checksums must be a list of at least 1"),
        ([*FILE, "checksums"], ["sha256:x"], "must be sha256: or md5: and hexadecimal digits"),
        ([*FILE, "urls"], ["file:///etc/passwd"], "must be an address that begins with https"),
        ([*FILE, "most_bytes"], -1, "most_bytes must be an integer of at least 1, or null"),
        (["zzz"], 1, "zzz must be left out, got 1"),
    ],
)
def test_of_interactions(place: list[Any], new: Any, message: str) -> None:
    content = changed(raw("robustcf.data", "citeulike-t"), place, new)
    with pytest.raises(DataError, match=message):
        parse_manifest(content, "a.json")


@pytest.mark.parametrize(
    ("place", "new", "message"),
    [
        (["std"], [0.5, 0, 0.5], r"std\[1\] must be a finite number above 0, got 0"),
        (["mean"], [0.5], "as many channels, got 1 and 3"),
        (["files", 0, "path"], "..", "path must be a path inside the set's folder"),
        (["counts", "train"], None, "counts.train must be an integer of at least 1, got nothing"),
    ],
)
def test_of_images(place: list[Any], new: Any, message: str) -> None:
    content = changed(raw("robustcf.vision", "cifar10"), place, new)
    with pytest.raises(DataError, match=message):
        parse_image_manifest(content, "a.json")


@pytest.mark.parametrize("parse", [parse_manifest, parse_image_manifest])
@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 100_000, b"\xff", b'{"name": NaN}'])
def test_what_is_none(parse: Any, content: bytes) -> None:
    with pytest.raises(DataError, match=r"a.json.*correct this manifest"):
        parse(content, "a.json")


def test_our_own_are_read() -> None:
    assert len(manifests()) >= 7
    assert len(image_manifests()) >= 3
