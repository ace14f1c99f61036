"""Fetching one file over HTTP so that what arrives is whole, right, and arrives once.

A file is streamed into a hidden ``.NAME.part`` next to its target, resumed by range where the
server can, checked, and only then renamed to its name: a reader never sees half a file. A
connection that breaks leaves the part for the next try to resume; a wrong checksum, a full disk
or more bytes than the file can have leave nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from robustcf import __version__
from robustcf._io.limits import how_to_raise, limits
from robustcf.errors import DownloadError

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 16
_LONGEST_NUMBER = 18  # digits
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Policy:
    """How patient a download is.

    Args:
        attempts: tries for each URL before the next one.
        backoff: seconds before the second try, doubled for each further one.
        longest_wait: no wait is longer, whatever the server asks for.
        connect_timeout: seconds to wait for a connection.
        read_timeout: seconds without a single byte after which a server counts as hanging.
        lock_timeout: seconds to wait for another process that fetches into the same folder.
    """

    attempts: int = 4
    backoff: float = 0.5
    longest_wait: float = 30.0
    connect_timeout: float = 10.0
    read_timeout: float = 30.0
    lock_timeout: float = 1800.0


class _Refused(Exception):
    """This URL will not work: go on to the next."""


class _TooLarge(_Refused):
    """More bytes than the file can have: nothing of it is worth keeping."""

    def __init__(self, got: str, most: int) -> None:
        super().__init__(f"expected at most {most:,} bytes, got {got}")


class _Transient(Exception):
    """This try failed; the same URL may work later."""

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
    progress: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Make sure that ``target`` is there and right, downloading it if need be.

    Args:
        urls: where the file can be had, best first.
        target: where it belongs.
        check: called with a path; returns None when that file is right, else what is wrong.
        most_bytes: no right file is larger: a server that announces or sends more is refused, and
            what it sent is removed. None for the limit ``download_bytes``
            (:mod:`robustcf._io.limits`).
        policy: timeouts and retries.
        progress: a bar on stderr (only ever shown on a terminal).
        sleep: how to wait between tries.

    Returns:
        ``target``.

    Raises:
        DownloadError: no URL worked, or the disk refused; the message names the file, every URL
            with its reason, and the folder to put the file in by hand.
    """
    from filelock import FileLock, Timeout

    policy = policy or Policy()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / ".fetch.lock", timeout=policy.lock_timeout):
            # Whoever held the lock before may have fetched this very file.
            if not (target.is_file() and check(target) is None):
                _fetch_locked(urls, target, check, most_bytes, policy, progress, sleep)
    except Timeout:
        raise DownloadError(
            f"another process has been fetching into {target.parent} for more than "
            f"{policy.lock_timeout:g} s; wait for it, or stop it, and try again"
        ) from None
    except DownloadError:
        raise
    except OSError as error:
        raise _disk_error(target, error) from error
    return target


def _fetch_locked(
    urls: Sequence[str],
    target: Path,
    check: Callable[[Path], str | None],
    most_bytes: int | None,
    policy: Policy,
    progress: bool,
    sleep: Callable[[float], None],
) -> None:
    most = limits().download_bytes if most_bytes is None else most_bytes
    part = target.with_name(f".{target.name}.part")
    failures: list[str] = []
    for url in urls:
        try:
            _from_url(url, part, check, most, policy, progress, sleep)
        except _TooLarge as refusal:
            part.unlink(missing_ok=True)
            advice = "" if most_bytes is not None else how_to_raise("download_bytes", 10 * most)
            failures.append(f"{url}: {refusal}" + (f" ({advice})" if advice else ""))
            continue
        except _Refused as refusal:
            failures.append(f"{url}: {refusal}")
            continue
        except OSError:
            part.unlink(missing_ok=True)
            raise
        if target.exists():
            # Whatever bears the name is not what it should be, but it may be somebody's work.
            os.replace(target, target.with_name(f"{target.name}.wrong-checksum"))
        os.replace(part, target)
        return
    tried = "; ".join(failures) if failures else "no public source is known for it"
    raise DownloadError(
        f"could not get {target.name}: {tried}. Get it by other means and put it in {target.parent}"
    )


def _from_url(
    url: str,
    part: Path,
    check: Callable[[Path], str | None],
    most: int,
    policy: Policy,
    progress: bool,
    sleep: Callable[[float], None],
) -> None:
    """Fill ``part`` from one URL until it is right, or say why not."""
    reason = "no try was made"
    for attempt in range(policy.attempts):
        if part.exists() and part.stat().st_size > most:
            part.unlink()  # of an earlier process that had another limit, or of a stranger
        resumed = part.exists() and part.stat().st_size > 0
        if resumed and check(part) is None:
            return  # an earlier process was stopped between the last byte and the rename
        try:
            length_known = _stream(url, part, most, policy, progress)
        except _Transient as failure:
            reason = str(failure)
            if attempt + 1 < policy.attempts:
                wait = max(failure.wait, policy.backoff * 2**attempt)
                sleep(min(wait, policy.longest_wait))
            continue
        problem = check(part)
        if problem is None:
            return
        part.unlink()
        if length_known and not resumed:
            raise _Refused(problem)
        # An old part, or an end that came too early unnoticed, may be the culprit: once more.
        reason = problem
    raise _Refused(f"{reason} ({policy.attempts} tries)")


def _stream(url: str, part: Path, most: int, policy: Policy, progress: bool) -> bool:
    """One request into ``part``; returns whether the server said how long the file is."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    # A compressed transfer would make byte ranges and lengths speak of other bytes than ours.
    headers = {"Accept-Encoding": "identity", "User-Agent": f"robustcf/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    timeout = (policy.connect_timeout, policy.read_timeout)
    try:
        with requests.get(url, headers=headers, timeout=timeout, stream=True) as response:
            have = _accept(response, part, have)
            return _write(response, part, have, most, progress)
    except requests.exceptions.SSLError as error:
        raise _Refused(f"TLS failure ({_innermost(error)})") from error
    except requests.exceptions.Timeout as error:
        raise _Transient(f"no answer within {policy.read_timeout:g} s") from error
    except (
        requests.exceptions.ConnectionError,
        requests.exceptions.ChunkedEncodingError,
    ) as error:
        raise _Transient(f"connection failed ({_innermost(error)})") from error
    except requests.exceptions.RequestException as error:
        raise _Refused(str(error)) from error


def _accept(response: requests.Response, part: Path, have: int) -> int:
    """Judge the status line; returns how many bytes of the part remain valid."""
    status = response.status_code
    if status == 206 and have:
        start = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        if start == str(have):
            return have
        part.unlink()
        raise _Transient("the server answered with another byte range than asked for")
    if status == 416:
        part.unlink(missing_ok=True)
        raise _Transient("the server has no such byte range")
    if status in _WORTH_ANOTHER_TRY:
        asked = _number(response.headers.get("Retry-After", ""))
        raise _Transient(f"HTTP {status}", wait=float(asked or 0))
    if status != 200:
        raise _Refused(f"HTTP {status}")
    return 0


def _number(text: str) -> int | None:
    """A header's number; None for anything else, such as digits without end."""
    fine = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
    return int(text) if fine else None


def _write(response: requests.Response, part: Path, have: int, most: int, progress: bool) -> bool:
    from tqdm import tqdm

    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":  # a few of its bytes may be any number of ours
        raise _Refused(f"the server sends it packed ({encoding[:40]}), although asked not to")
    announced = _number(response.headers.get("Content-Length", ""))
    total = None if announced is None else have + announced
    if total is not None and total > most:
        raise _TooLarge(f"the announcement of {total:,}", most)
    bar = tqdm(
        desc=part.name.removeprefix(".").removesuffix(".part"),
        total=total,
        initial=have,
        unit="B",
        unit_scale=True,
        leave=False,
        file=sys.stderr,
        disable=None if progress else True,  # None: no bar unless stderr is a terminal
    )
    with bar, part.open("ab" if have else "wb") as handle:
        written = have
        for chunk in response.iter_content(_CHUNK):
            written += len(chunk)
            if written > most:
                raise _TooLarge("more", most)
            handle.write(chunk)
            bar.update(len(chunk))
    if total is not None and written != total:
        raise _Transient(f"the connection closed after {written} of {total} bytes")
    return total is not None


def _innermost(error: BaseException) -> str:
    """The short reason at the bottom of requests' nested exceptions."""
    while True:
        inner = error.__cause__ or error.__context__ or getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            break
        error = inner
    return " ".join(str(error).split())[:120] or type(error).__name__


def _disk_error(target: Path, error: OSError) -> DownloadError:
    reason = error.strerror or str(error)
    return DownloadError(
        f"cannot write {target.name} to {target.parent}: {reason}; free some space or choose a "
        "writable folder with --data-dir or ROBUSTCF_DATA"
    )
