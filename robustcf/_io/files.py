"""Write files whole or not at all; arrays, tensors and checkpoints."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._distributed import job
from robustcf._io.reading import UNREADABLE, open_plain, parse_json, read_arrays_of
from robustcf._io.reading import read_json as read_json
from robustcf._io.schema import OBJECT, check_kind
from robustcf._io.temporary import alone_in, put_aside, temporary_file, temporary_folder
from robustcf.errors import InputError, WriteError

if TYPE_CHECKING:
    from torch import Tensor

# The packages that decide what is computed.
_PACKAGES = ("robustcf", "numpy", "pandas", "pyarrow", "safetensors", "scipy", "torch")
# The beginning of a formula, and a number, which is not one.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_PLAIN = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
CHECKPOINT = "checkpoint.{}.safetensors"
#: What to do about a checkpoint that cannot be resumed.
REMOVE = "remove this file to begin again, or train anew with another --out"
# Bytes of a state that is copied after every epoch, in case that the training is interrupted.
_MOST_COPIED = 256 << 20


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file, all or nothing; of several ranks, the first one writes.

    After a kill at any moment there is the old file or the new one. A WriteError says what to do.
    """
    write_parts(path, (content,))


def write_parts(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Write a file of several parts, see :func:`write_bytes`."""
    if not job().first:
        return
    try:
        handle, temporary = temporary_file(path)
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
                os.chmod(temporary, 0o644)
                # Still open, and so still locked: it is not taken for a leftover.
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unwritable(path, error) from error


def create_folder(
    target: Path,
    contents: Mapping[str, bytes] | Callable[[Path], None],
    replaceable: Callable[[Path], bool] | None = None,
) -> bool:
    """Make a folder that appears with its first files, or not at all; return if one was replaced.

    Args:
        target: must not exist yet, or be an empty folder (or a link to one).
        contents: file name -> bytes; or a function that writes the files into the folder.
        replaceable: returns whether a folder that is not empty may be replaced.
    """
    try:
        place = Path(os.path.realpath(target)) if target.is_symlink() else target
        occupied = place.exists() and (not place.is_dir() or any(place.iterdir()))
        if occupied and not (place.is_dir() and replaceable is not None and replaceable(place)):
            raise InputError(f"{target} exists already: choose another --out, or use --resume")
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(place) as fresh:
            try:
                if callable(contents):
                    contents(fresh)
                else:
                    for name, content in contents.items():
                        write_bytes(fresh / name, content)
            except WriteError as error:
                raise WriteError(str(error).replace(str(fresh), str(target))) from error
            fresh.chmod(0o755)
            old = None
            if occupied:
                with alone_in(place, "another process"):
                    old = put_aside(place)
            os.replace(fresh, place)
            if old is not None:
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise unwritable(target, error) from error
    return occupied


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide what is computed."""
    return {name: metadata.version(name) for name in _PACKAGES}


_SPACE = "free some space and start again; what was finished before is kept"
_PERMISSIONS = "choose a place that you may write to, or change its permissions"
_ADVICE = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) and start again",
    errno.EROFS: "choose a place that may be written to",
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.ENOTDIR: "a part of the path is a file: choose another place",
    errno.EEXIST: "a part of the path is a file: choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def unwritable(path: Path, error: OSError) -> WriteError:
    """Return the error of a path that cannot be written, with advice."""
    if isinstance(error, WriteError):
        return error
    advice = _ADVICE.get(error.errno or 0, "see that this place can be written to")
    return WriteError(f"{path} cannot be written ({error.strerror or error}): {advice}")


# --- JSON, CSV, arrays ------------------------------------------------------------------------


def json_bytes(values: Mapping[str, Any]) -> bytes:
    """Return indented JSON; NaN is an error."""
    return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()


def csv_bytes(rows: Iterable[Mapping[str, Any]], *, raw: bool = False) -> bytes:
    r"""Return rows as CSV with a header of all keys; text by :func:`inert`, unless ``raw``.

    Example:
        >>> csv_bytes([{"a": 1, "b": 2}, {"a": "=1+1", "b": -2}])
        b"a,b\n1,2\n'=1+1,-2\n"
    """
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([row.get(name, "") for name in names] for row in rows)] if rows else []
    text = io.StringIO(newline="")
    # Of the characters that end a line, the writer quotes those of its own ending alone.
    writer = csv.writer(text, lineterminator="\r\n")
    ends = [0]
    for line in lines:
        writer.writerow(line if raw else [inert(value) for value in line])
        ends.append(text.tell())
    whole = text.getvalue()
    return "".join(f"{whole[start : end - 2]}\n" for start, end in pairwise(ends)).encode()


def inert(value: Any) -> Any:
    """Return a cell that a spreadsheet shows instead of running it as a formula.

    Text that begins like a formula and is not a plain number gets an apostrophe in front, also
    after other apostrophes; :func:`not_inert` takes it away again.

    Example:
        >>> [inert(value) for value in ("=1+1", "-7", -7, "a=b", "'@x")]
        ["'=1+1", '-7', -7, 'a=b', "''@x"]
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _PLAIN.fullmatch(value):
        return value
    return f"'{value}"


def not_inert(text: str) -> str:
    """Return the text that :func:`inert` changed.

    Example:
        >>> not_inert("'=1+1"), not_inert("'n' roll"), not_inert("-7")
        ('=1+1', "'n' roll", '-7')
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object, indented; NaN and infinities are refused."""
    write_bytes(path, json_bytes(values))


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write named arrays as one compressed ``.npz``."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of :func:`write_arrays` within the limits, or raise an InputError."""
    os.close(open_plain(path))  # refuses links
    try:
        return read_arrays_of(path)
    except UNREADABLE as error:
        # Names of members may be as long as the file.
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not a readable npz file ({reason})") from error


# --- tensors ----------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: dict[str, str]) -> None:
    """Write tensors and a few strings as one safetensors file; equal ones give equal bytes."""
    from safetensors.torch import save

    write_parts(path, _in_order(save(_apart(tensors), metadata=facts)))


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share numbers with an earlier one: safetensors refuses to write these."""
    found: dict[str, Tensor] = {}
    taken: list[tuple[int, int]] = []
    for name, tensor in tensors.items():
        begin = tensor.data_ptr()
        end = begin + tensor.numel() * tensor.element_size()
        shared = any(begin < other_end and other < end for other, other_end in taken)
        found[name] = tensor.clone() if shared else tensor
        taken.append((begin, end))
    return found


def _in_order(content: bytes) -> tuple[bytes, memoryview]:
    """Return a safetensors file with its facts sorted, in two parts: header and tensors."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    facts = dict(sorted(header.pop("__metadata__", {}).items()))
    text = json.dumps({"__metadata__": facts, **header}, separators=(",", ":")).encode()
    # The tensors begin at a multiple of 8.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, memoryview(content)[8 + size :]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and facts of :func:`write_tensors`, or raise an InputError."""
    with _open_tensors(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def read_facts(path: Path) -> dict[str, str]:
    """Read the facts of :func:`write_tensors`, and not the tensors."""
    with _open_tensors(path, "np") as file:
        facts: dict[str, str] = file.metadata() or {}
        return facts


@contextmanager
def _open_tensors(path: Path, framework: str) -> Iterator[Any]:
    from safetensors import safe_open

    os.close(open_plain(path))
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except Exception as error:
        # Errors of the library, and of torch for unknown types.
        raise InputError(f"{path} is not a readable safetensors file ({error})") from error


class CheckpointFiles:
    """Checkpoints, a file per stage; ``every`` are the seconds between two saves."""

    def __init__(self, folder: Path, every: float) -> None:
        self.folder, self.every = folder, every
        self.last = time.monotonic()
        # The state offered last, where it is not written: stage, tensors, facts.
        self._offered: tuple[str, dict[str, Tensor], dict[str, str]] | None = None

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the last state of this stage, or None."""
        path = self.path(stage)
        if not os.path.lexists(path):
            return None
        tensors, facts = read_tensors(path)
        try:
            state = parse_json(facts.get("state", ""))
        except InputError as error:
            raise InputError(f"{path}: the fact 'state' is not JSON ({error}): {REMOVE}") from error
        check_kind(path, state, OBJECT, "state")
        return tensors, state

    def path(self, stage: str) -> Path:
        """Return the file of a stage."""
        return self.folder / CHECKPOINT.format(stage)

    def due(self) -> bool:
        """Return whether the last save is long enough ago."""
        return time.monotonic() - self.last >= self.every

    def save(
        self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any], *, final: bool
    ) -> None:
        """Replace the stage's state, unless the last save is too recent (a final one never is).

        A state of at most 256 MB that is too recent is copied, for :meth:`flush` to write.
        """
        state = {"state": json.dumps(facts)}
        now = final or self.due()
        self._offered = None  # its memory is free for the copy
        if now or sum(tensor.nbytes for tensor in tensors.values()) <= _MOST_COPIED:
            here = {
                name: tensor.detach().to("cpu", copy=not now).contiguous()
                for name, tensor in tensors.items()
            }
            self._offered = stage, here, state
        if now:
            self.flush()

    def flush(self) -> None:
        """Write the last state, unless it is written: the work is interrupted."""
        if self._offered is not None:
            stage, tensors, facts = self._offered
            write_tensors(self.path(stage), tensors, facts)
            self._offered = None
            self.last = time.monotonic()

    def clear(self) -> None:
        """Remove all checkpoints."""
        for left in self.folder.glob(CHECKPOINT.format("*")):
            left.unlink()
