"""Fetching one file over HTTP so that what arrives is whole, right, and arrives once.

A file is streamed into a hidden ``.NAME.part`` next to its target, resumed by range where the
server can, checked, and only then renamed to its name: a reader never sees half a file. A
connection that breaks leaves the part for the next try to resume; a wrong checksum or a full
disk leaves nothing.
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
from robustcf.errors import DownloadError

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 16
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
    policy: Policy | None = None,
    progress: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Make sure that ``target`` is there and right, downloading it if need be.

    Args:
        urls: where the file can be had, best first.
        target: where it belongs.
        check: called with a path; returns None when that file is right, else what is wrong.
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
                _fetch_locked(urls, target, check, policy, progress, sleep)
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
    policy: Policy,
    progress: bool,
    sleep: Callable[[float], None],
) -> None:
    part = target.with_name(f".{target.name}.part")
    failures: list[str] = []
    for url in urls:
        try:
            _from_url(url, part, check, policy, progress, sleep)
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
    policy: Policy,
    progress: bool,
    sleep: Callable[[float], None],
) -> None:
    """Fill ``part`` from one URL until it is right, or say why not."""
    reason = "no try was made"
    for attempt in range(policy.attempts):
        resumed = part.exists() and part.stat().st_size > 0
        if resumed and check(part) is None:
            return  # an earlier process was stopped between the last byte and the rename
        try:
            length_known = _stream(url, part, policy, progress)
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


def _stream(url: str, part: Path, policy: Policy, progress: bool) -> bool:
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
            return _write(response, part, have, progress)
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
        asked = response.headers.get("Retry-After", "")
        raise _Transient(f"HTTP {status}", wait=float(asked) if asked.isdigit() else 0.0)
    if status != 200:
        raise _Refused(f"HTTP {status}")
    return 0


def _write(response: requests.Response, part: Path, have: int, progress: bool) -> bool:
    from tqdm import tqdm

    announced = response.headers.get("Content-Length", "")
    total = have + int(announced) if announced.isdigit() else None
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
        for chunk in response.iter_content(_CHUNK):
            handle.write(chunk)
            bar.update(len(chunk))
        written = handle.tell()
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
