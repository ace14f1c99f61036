"""Only plain files, only so many bytes, only sane JSON."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robustcf._io.reading import parse_json, read_json, read_plain
from robustcf.errors import InputError


def test_plain_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_plain(path, 5) == b"12345"
    with pytest.raises(InputError, match="a must have at most 4 bytes, got more"):
        read_plain(path, 4)


def test_everything_else_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="link is a link, and links in a run directory"):
        read_plain(tmp_path / "link", 9)
    assert read_plain(tmp_path / "link", 9, follow=True) == b"x"
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(InputError, match="is no plain file|cannot be read"):
            read_plain(path, 9)
    with pytest.raises(InputError, match="is not there"):
        read_plain(tmp_path / "absent", 9)
    with pytest.raises(InputError, match="is not there"):
        read_plain(tmp_path / "file" / "below", 9)
    with pytest.raises(InputError, match="is no name of a file"):
        read_plain(Path("a\x00b"), 9)
    with pytest.raises(InputError, match="cannot be read .*too long"):
        read_plain(tmp_path / ("x" * 999), 9)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch(mode=0)
    with pytest.raises(InputError, match="cannot be read .*Permission denied"):
        read_plain(tmp_path / "a", 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("NaN", "NaN is no number of JSON"),
        ("[-Infinity]", "-Infinity is no number"),
        ("1e999", "a number is too large"),
        ("1" * 5000, "Exceeds the limit"),
        ('{"a": 1, "a": 1}', "a key is there twice"),
        ("[" * 65 + "]" * 65, "nested deeper than 64 levels"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested deeper than 64 levels"),
        ("[" * 10**6, "nested deeper than 64 levels"),
        (b"\xff", "it is not UTF-8"),
    ],
    ids=lambda value: repr(value[:10]),
)
def test_strange_json(text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_json(text)


def test_json_of_64_levels_is_read() -> None:
    assert parse_json("[" * 64 + "]" * 64)
    assert parse_json(b'{"a": [1, 2.5, "x", null, true]}') == {"a": [1, 2.5, "x", None, True]}


def test_the_content_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("root:TOPSECRET")
    with pytest.raises(InputError) as caught:
        read_json(tmp_path / "a")
    assert "TOPSECRET" not in str(caught.value)
