"""Where data files live, and which of those found there are the right ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from robustcf._io.download import Policy, fetch
from robustcf._io.sources import SourceFile
from robustcf.errors import DownloadError

_BLOCK = 1 << 20


class Named(Protocol):
    """A manifest, of which only the name matters here: it is the name of the folder too."""

    @property
    def name(self) -> str:
        """Of the data set."""
        ...


@dataclass(frozen=True)
class LocatedFile:
    """A file that is present and right: where, what it is, and the sha256 of its bytes."""

    path: Path
    source: SourceFile
    sha256: str


def data_dirs(data_dir: str | Path | None = None) -> list[Path]:
    """The folders that are searched, in order; the first is where downloads go.

    They are ``data_dir``, the environment variable ``ROBUSTCF_DATA``, ``datasets/`` in the
    current folder or in the source checkout (where it exists), and the user's cache folder.
    """
    places: list[Path] = []
    if data_dir is not None:
        places.append(Path(data_dir).expanduser())
    if named := os.environ.get("ROBUSTCF_DATA"):
        places.append(Path(named).expanduser())
    checkout = Path(__file__).resolve().parents[2]
    candidates = [Path.cwd() / "datasets"]
    if (checkout / "pyproject.toml").is_file():
        candidates.append(checkout / "datasets")
    places += [folder for folder in candidates if folder.is_dir()]
    places.append(cache_dir() / "datasets")
    return list(dict.fromkeys(places))


def cache_dir() -> Path:
    """The folder for what can be made again: ``ROBUSTCF_CACHE`` or the user's cache folder."""
    if named := os.environ.get("ROBUSTCF_CACHE"):
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("robustcf", appauthor=False)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal."""
    return _digests(path, ("sha256",))["sha256"]


def locate(
    manifest: Named, alternatives: Sequence[SourceFile], data_dir: str | Path | None = None
) -> LocatedFile | None:
    """The first file in the search order that is present and right, or None."""
    for folder in data_dirs(data_dir):
        for source in alternatives:
            path = folder / manifest.name / source.path
            if path.is_file() and not _too_large(path, source):
                digests = _digests(path, _algorithms(source))
                if _is_right(digests, source):
                    return LocatedFile(path, source, digests["sha256"])
    return None


def obtain(
    manifest: Named,
    alternatives: Sequence[SourceFile],
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    policy: Policy | None = None,
) -> LocatedFile:
    """:func:`locate`, or else download; never downloads what is present and right.

    Raises:
        DownloadError: with the file, each URL and why it failed, and the folder to put it in.
    """
    found = locate(manifest, alternatives, data_dir)
    if found is not None:
        return found
    folder = data_dirs(data_dir)[0] / manifest.name
    names = " or ".join(source.path for source in alternatives)
    if not download:
        raise DownloadError(
            f"{manifest.name} needs {names}, which is not in {_searched(manifest, data_dir)}, and "
            f"downloading is off; put it in {folder} or allow the download"
            f"{_wrong_ones(manifest, alternatives, data_dir)}"
        )
    failures = []
    for source in alternatives:
        if source.urls:
            try:
                target = fetch(
                    source.urls,
                    folder / source.path,
                    partial(_problem, source=source),
                    most_bytes=source.most_bytes,
                    policy=policy,
                )
            except DownloadError as error:
                failures.append(str(error))
                continue
            return LocatedFile(target, source, sha256_of(target))
    tried = " | ".join(failures) or f"no public source is known for {names}; put it in {folder}"
    raise DownloadError(f"{manifest.name}: {tried}{_wrong_ones(manifest, alternatives, data_dir)}")


def _searched(manifest: Named, data_dir: str | Path | None) -> str:
    return ", ".join(str(folder / manifest.name) for folder in data_dirs(data_dir))


def _wrong_ones(
    manifest: Named, alternatives: Sequence[SourceFile], data_dir: str | Path | None
) -> str:
    """A word about files that bear the right name and are not it: a likely cause of trouble."""
    present = [
        str(folder / manifest.name / source.path)
        for folder in data_dirs(data_dir)
        for source in alternatives
        if (folder / manifest.name / source.path).is_file()
    ]
    return f" (present, but with another checksum: {', '.join(present)})" if present else ""


def _algorithms(source: SourceFile) -> tuple[str, ...]:
    named = {checksum.partition(":")[0] for checksum in source.checksums}
    return tuple(sorted(named | {"sha256"}))


def _digests(path: Path, algorithms: Sequence[str]) -> dict[str, str]:
    hashes = [hashlib.new(name, usedforsecurity=False) for name in algorithms]
    with path.open("rb") as handle:
        while block := handle.read(_BLOCK):
            for one in hashes:
                one.update(block)
    return {name: one.hexdigest() for name, one in zip(algorithms, hashes, strict=True)}


def _too_large(path: Path, source: SourceFile) -> bool:
    """Whether a file is wrong at first sight: no need to read all of it to know."""
    return source.most_bytes is not None and path.stat().st_size > source.most_bytes


def _is_right(digests: dict[str, str], source: SourceFile) -> bool:
    return any(f"{name}:{digest}" in source.checksums for name, digest in digests.items())


def _problem(path: Path, source: SourceFile) -> str | None:
    if _too_large(path, source):
        return f"wrong size: expected at most {source.most_bytes:,} bytes"
    digests = _digests(path, _algorithms(source))
    if _is_right(digests, source):
        return None
    algorithm, _, expected = source.checksums[0].partition(":")
    return f"wrong checksum: expected {algorithm} {expected}, got {digests[algorithm]}"
