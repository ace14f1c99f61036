"""Data files: manifests, search folders and downloads.

A download is streamed into a hidden ``.NAME.part`` next to its target, resumed by range where the
server can, checked, and only then renamed. A broken connection leaves the part for the next try; a
wrong checksum, a full disk or too many bytes leave nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from robustcf import __version__
from robustcf._io.limits import how_to_raise, limits
from robustcf._io.progress import bar
from robustcf._io.reading import parse_json
from robustcf._io.schema import (
    NAME,
    TEXT,
    Kind,
    check_kind,
    choice,
    list_of,
    matching,
    nullable,
    record,
    whole,
)
from robustcf._io.temporary import alone_in
from robustcf.errors import DataError, DownloadError, InputError

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 16
_LONGEST_NUMBER = 18  # digits
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})


# --- files as manifests describe them ---------------------------------------------------------

Format = Literal[
    "adjacency", "counted-lists", "json-lists", "id-list", "ratings-tsv",
    "cifar-binary", "cifar-pickle", "tiny-imagenet",
]  # fmt: skip


def _stays_inside(value: Any) -> bool:
    """Return whether a path leads to a place below its folder."""
    if not isinstance(value, str) or not value or "\0" in value or "\\" in value:
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


#: A file in a manifest.
SOURCE_KIND = record(
    {
        "path": Kind("a path inside the set's folder", _stays_inside),
        "format": choice(*get_args(Format)),
        "checksums": list_of(
            matching(
                "sha256: or md5: and hexadecimal digits", r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}"
            ),
            1,
        ),
        "urls": list_of(
            matching("an address that begins with https:// or http://", r"(?s)https?://.*")
        ),
    },
    {"member": nullable(NAME), "most_bytes": nullable(whole(1)), "note": TEXT},
)


@dataclass(frozen=True)
class SourceFile:
    """One file of a data set."""

    path: str  # inside the data set's folder
    format: Format
    checksums: tuple[str, ...]  # sha256:... or md5:... of every right content
    urls: tuple[str, ...] = ()  # empty for files that are put there by hand
    member: str | None = None  # of an archive, the name of the file inside
    most_bytes: int | None = None  # None for the limit download_bytes


def read_manifest(content: bytes, source: str, kind: Kind) -> dict[str, Any]:
    """Return the values of a JSON manifest of a kind, or raise a DataError about ``source``."""
    try:
        found: dict[str, Any] = parse_json(content)
        check_kind(source, found, kind)
    except InputError as error:
        where = "" if str(error).startswith(source) else f"{source}: "
        raise DataError(f"{where}{error}; correct this manifest") from error
    return found


def parse_source(entry: Mapping[str, Any]) -> SourceFile:
    """Return a file of a checked manifest."""
    known = {each.name: entry[each.name] for each in fields(SourceFile) if each.name in entry}
    lists = {name: tuple(entry[name]) for name in ("checksums", "urls")}
    return SourceFile(**known | lists)


# --- where files lie --------------------------------------------------------------------------


class Named(Protocol):
    """A manifest; its name is the name of the folder too."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class LocatedFile:
    """A file that is present and right, with the sha256 of its bytes."""

    path: Path
    source: SourceFile
    sha256: str


def data_dirs(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders that are searched, in order; the first is where downloads go.

    They are ``data_dir``, the environment variable ``ROBUSTCF_DATA``, ``datasets/`` in the
    current folder or in the source checkout (where it exists), and the user's cache folder.
    """
    given = (data_dir, os.environ.get("ROBUSTCF_DATA"))
    places = [Path(place).expanduser() for place in given if place]
    checkout = Path(__file__).resolve().parents[2]
    candidates = [Path.cwd() / "datasets"]
    if (checkout / "pyproject.toml").is_file():
        candidates.append(checkout / "datasets")
    places += [folder for folder in candidates if folder.is_dir()]
    places.append(cache_dir() / "datasets")
    return list(dict.fromkeys(places))


def cache_dir() -> Path:
    """Return the folder of caches: ``ROBUSTCF_CACHE`` or the user's cache folder."""
    if named := os.environ.get("ROBUSTCF_CACHE"):
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("robustcf", appauthor=False)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    return _digest(path, "sha256")


def locate(
    manifest: Named, alternatives: Sequence[SourceFile], data_dir: str | Path | None = None
) -> LocatedFile | None:
    """Return the first file in the search order that is present and right, or None."""
    for path, source in _present(manifest, alternatives, data_dir):
        sha256, problem = _checked(path, source)
        if problem is None:
            return LocatedFile(path, source, sha256)
    return None


def obtain(
    manifest: Named,
    alternatives: Sequence[SourceFile],
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    policy: Policy | None = None,
) -> LocatedFile:
    """Return the file that :func:`locate` finds, or download it."""
    found = locate(manifest, alternatives, data_dir)
    if found is not None:
        return found
    folders = [folder / manifest.name for folder in data_dirs(data_dir)]
    names = " or ".join(source.path for source in alternatives)
    wrong = ", ".join(str(path) for path, _ in _present(manifest, alternatives, data_dir))
    wrong = f" (present, but with another checksum: {wrong})" if wrong else ""
    if not download:
        raise DownloadError(
            f"{manifest.name} needs {names}, which is not in {', '.join(map(str, folders))}, and "
            f"downloading is off; put it in {folders[0]} or allow the download{wrong}"
        )
    failures = []
    for source in alternatives:
        if not source.urls:
            continue
        target = folders[0] / source.path

        def check(path: Path, source: SourceFile = source) -> str | None:
            return _checked(path, source)[1]

        try:
            fetch(source.urls, target, check, most_bytes=source.most_bytes, policy=policy)
            return LocatedFile(target, source, sha256_of(target))
        except DownloadError as error:
            failures.append(str(error))
    tried = " | ".join(failures) or f"no public source is known for {names}; put it in {folders[0]}"
    raise DownloadError(f"{manifest.name}: {tried}{wrong}")


def _present(
    manifest: Named, alternatives: Sequence[SourceFile], data_dir: str | Path | None
) -> list[tuple[Path, SourceFile]]:
    """Return files that have a right name, unchecked."""
    return [
        (path, source)
        for folder in data_dirs(data_dir)
        for source in alternatives
        if (path := folder / manifest.name / source.path).is_file()
    ]


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(
            handle, lambda: hashlib.new(algorithm, usedforsecurity=False)
        ).hexdigest()


def _checked(path: Path, source: SourceFile) -> tuple[str, str | None]:
    """Return the sha256 of a file and what is wrong with it, or None."""
    # A file that is too large need not be read.
    if source.most_bytes is not None and path.stat().st_size > source.most_bytes:
        return "", f"wrong size: expected at most {source.most_bytes:,} bytes"
    named = {"sha256", *(checksum.partition(":")[0] for checksum in source.checksums)}
    digests = {algorithm: _digest(path, algorithm) for algorithm in named}
    if any(f"{name}:{digest}" in source.checksums for name, digest in digests.items()):
        return digests["sha256"], None
    algorithm, _, expected = source.checksums[0].partition(":")
    return "", f"wrong checksum: expected {algorithm} {expected}, got {digests[algorithm]}"


# --- downloads --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """Timeouts in seconds, and retries."""

    attempts: int = 4  # per URL
    backoff: float = 0.5  # before the second try, doubled for each further one
    longest_wait: float = 30.0  # even if the server asks for more
    connect_timeout: float = 10.0
    read_timeout: float = 30.0  # without a single byte
    lock_timeout: float = 1800.0  # while another process fetches into the same folder


class _Refused(Exception):
    """The URL does not work: try the next."""


class _TooLarge(_Refused):
    """More bytes than the file can have: remove the part."""


class _Transient(Exception):
    """The try failed; the same URL may work later."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def fetch(
    urls: Sequence[str],
    target: Path,
    check: Callable[[Path], str | None],
    *,
    most_bytes: int | None = None,
    policy: Policy | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Return ``target``, downloaded from the first URL that works unless ``check`` finds it right.

    ``check`` returns the problem of a file, or None. A server that announces or sends more than
    ``most_bytes`` (None: the limit ``download_bytes``) is refused. A DownloadError names every URL
    and why it failed, and the folder to put the file in.
    """
    policy = policy or Policy()
    most = limits().download_bytes if most_bytes is None else most_bytes
    job = _Fetch(target.with_name(f".{target.name}.part"), check, most, policy, sleep)
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder, "another process", file=".fetch.lock", wait=policy.lock_timeout):
            # The process that held the lock may have fetched this very file.
            if not (target.is_file() and check(target) is None):
                advice = how_to_raise("download_bytes", 10 * most) if most_bytes is None else ""
                _fetch_locked(urls, target, job, advice)
    except InputError as error:
        raise DownloadError(
            f"{error}, and try again; it has been fetching for more than {policy.lock_timeout:g} s"
        ) from None
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(
            f"cannot write {target.name} to {folder}: {error.strerror or error}; free some space "
            "or choose a writable folder with --data-dir or ROBUSTCF_DATA"
        ) from error
    return target


def _fetch_locked(urls: Sequence[str], target: Path, job: _Fetch, advice: str) -> None:
    failures: list[str] = []
    for url in urls:
        try:
            job.from_url(url)
        except _Refused as refusal:
            too_large = isinstance(refusal, _TooLarge)
            if too_large:
                job.part.unlink(missing_ok=True)
            failures.append(f"{url}: {refusal}" + (f" ({advice})" if too_large and advice else ""))
            continue
        except OSError:
            job.part.unlink(missing_ok=True)
            raise
        if target.exists():
            # The file has another content, but it may be the work of a user.
            os.replace(target, target.with_name(f"{target.name}.wrong-checksum"))
        os.replace(job.part, target)
        return
    tried = "; ".join(failures) if failures else "no public source is known for it"
    raise DownloadError(
        f"could not get {target.name}: {tried}. Get it by other means and put it in {target.parent}"
    )


@dataclass(frozen=True)
class _Fetch:
    """Fills one ``.part`` file."""

    part: Path
    check: Callable[[Path], str | None]
    most: int
    policy: Policy
    sleep: Callable[[float], None]

    def from_url(self, url: str) -> None:
        """Fill the part from one URL, or raise."""
        reason = "no try was made"
        for attempt in range(self.policy.attempts):
            have = self.part.stat().st_size if self.part.exists() else 0
            if have > self.most:
                self.part.unlink()  # of an earlier process with another limit, or of a stranger
                have = 0
            if have and self.check(self.part) is None:
                return  # an earlier process was stopped between the last byte and the rename
            try:
                length_known = self._stream(url, have)
            except _Transient as failure:
                reason = str(failure)
                if attempt + 1 < self.policy.attempts:
                    wait = max(failure.wait, self.policy.backoff * 2**attempt)
                    self.sleep(min(wait, self.policy.longest_wait))
                continue
            problem = self.check(self.part)
            if problem is None:
                return
            self.part.unlink()
            if length_known and not have:
                raise _Refused(problem)
            # An old part, or an end that came too early unnoticed, may be the culprit: once more.
            reason = problem
        raise _Refused(f"{reason} ({self.policy.attempts} tries)")

    def _stream(self, url: str, have: int) -> bool:
        """Make one request; return whether the server said how long the file is."""
        import requests

        failures = requests.exceptions
        # A compressed transfer would make byte ranges and lengths speak of other bytes than ours.
        headers = {"Accept-Encoding": "identity", "User-Agent": f"robustcf/{__version__}"}
        if have:
            headers["Range"] = f"bytes={have}-"
        timeout = (self.policy.connect_timeout, self.policy.read_timeout)
        try:
            with requests.get(url, headers=headers, timeout=timeout, stream=True) as response:
                return self._write(response, self._accept(response, have))
        except failures.SSLError as error:
            raise _Refused(f"TLS failure ({_innermost(error)})") from error
        except failures.Timeout as error:
            raise _Transient(f"no answer within {self.policy.read_timeout:g} s") from error
        except (failures.ConnectionError, failures.ChunkedEncodingError) as error:
            raise _Transient(f"connection failed ({_innermost(error)})") from error
        except failures.RequestException as error:
            raise _Refused(str(error)) from error

    def _accept(self, response: requests.Response, have: int) -> int:
        """Judge the status line; return how many bytes of the part remain valid."""
        status = response.status_code
        if status == 206 and have:
            found = response.headers.get("Content-Range", "")
            if found.removeprefix("bytes ").partition("-")[0] == str(have):
                return have
            self.part.unlink()
            raise _Transient("the server answered with another byte range than asked for")
        if status == 416:
            self.part.unlink(missing_ok=True)
            raise _Transient("the server has no such byte range")
        if status in _WORTH_ANOTHER_TRY:
            asked = _number(response.headers.get("Retry-After", ""))
            raise _Transient(f"HTTP {status}", wait=float(asked or 0))
        if status != 200:
            raise _Refused(f"HTTP {status}")
        return 0

    def _write(self, response: requests.Response, have: int) -> bool:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":  # a few of its bytes may be any number of ours
            raise _Refused(f"the server sends it packed ({encoding[:40]}), although asked not to")
        announced = _number(response.headers.get("Content-Length", ""))
        total = None if announced is None else have + announced
        if total is not None and total > self.most:
            raise _TooLarge(f"expected at most {self.most:,} bytes, got {total:,} announced")
        title = self.part.name.removeprefix(".").removesuffix(".part")
        shown = bar(total, title, "B", initial=have, unit_scale=True, leave=False)
        with shown, self.part.open("ab" if have else "wb") as handle:
            written = have
            for chunk in response.iter_content(_CHUNK):
                written += len(chunk)
                if written > self.most:
                    raise _TooLarge(f"expected at most {self.most:,} bytes, got more")
                handle.write(chunk)
                shown.update(len(chunk))
        if total is not None and written != total:
            raise _Transient(f"the connection closed after {written} of {total} bytes")
        return total is not None


def _number(text: str) -> int | None:
    """Return a header's number; None for anything else, such as digits without end."""
    fine = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
    return int(text) if fine else None


def _innermost(error: BaseException) -> str:
    """Return the short reason at the bottom of requests' nested exceptions."""
    inner: Any = error
    while isinstance(inner, BaseException):
        error = inner
        inner = error.__cause__ or error.__context__ or getattr(error, "reason", None)
    return " ".join(str(error).split())[:120] or type(error).__name__
