"""Files that are there whole or not at all: next to their place, to the disk, then by renaming."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf.errors import DataError, InputError

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT = "checkpoint.{}.safetensors"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, all or nothing: a reader, or a kill at any moment, finds the old or the new.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_bytes(Path(folder) / "a", b"whole")
        ...     (Path(folder) / "a").read_bytes()
        b'whole'
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def create_folder(target: Path, contents: Mapping[str, bytes]) -> None:
    """Make a folder that appears with its first files in it, or not at all.

    Args:
        target: must not exist yet, or be an empty folder.
        contents: file name -> bytes.

    Raises:
        InputError: there is something at this path.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            f"{target} exists already: choose another --out, or go on with it by --resume"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, content in contents.items():
            write_bytes(fresh / name, content)
        fresh.chmod(0o755)
        os.replace(fresh, target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def json_bytes(values: Mapping[str, Any]) -> bytes:
    r"""Indented JSON; NaN is an error.

    Example:
        >>> json_bytes({"a": 1})
        b'{\n  "a": 1\n}\n'
    """
    return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()


def csv_bytes(rows: list[dict[str, Any]]) -> bytes:
    r"""Rows of equal keys as CSV with a header line.

    Example:
        >>> csv_bytes([{"a": 1, "b": 2}])
        b'a,b\n1,2\n'
    """
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object, indented; NaN and infinities are refused."""
    write_bytes(path, json_bytes(values))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: it is not there, or is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no readable JSON file ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(found).__name__}")
    return found


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write named arrays as one compressed ``.npz``."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read what :func:`write_arrays` wrote; nothing is unpickled.

    Raises:
        InputError: it is not there, or is no such file.
    """
    try:
        # From memory: numpy leaves a file open when it turns out to be damaged.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no readable npz file ({error})") from error


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, str]) -> None:
    """Write tensors and a few strings as one safetensors file."""
    write_bytes(path, tensor_bytes(tensors, facts))


def tensor_bytes(tensors: dict[str, Tensor], facts: dict[str, str]) -> bytes:
    """Tensors and a few strings as the bytes of a safetensors file."""
    from safetensors.torch import save

    content: bytes = save(tensors, metadata=facts)
    return content


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what :func:`write_tensors` wrote.

    Raises:
        InputError: it is not there, or is no safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is no readable safetensors file ({error})") from error


def read_facts(path: Path) -> dict[str, str]:
    """The strings that :func:`write_tensors` wrote next to its tensors, which are not read.

    Raises:
        InputError: it is not there, or is no safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            facts: dict[str, str] = file.metadata() or {}
            return facts
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is no readable safetensors file ({error})") from error


class CheckpointFiles:
    """The state of each stage in a file of its own; a finished stage is kept for the next one.

    Args:
        folder: where the files are.
        every: seconds between two saves; 0 keeps every state that is offered.
    """

    def __init__(self, folder: Path, every: float) -> None:
        """Start the clock."""
        self.folder, self.every = folder, every
        self.last = time.monotonic()

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state saved last for this stage, or None."""
        path = self.folder / CHECKPOINT.format(stage)
        if not path.is_file():
            return None
        tensors, facts = read_tensors(path)
        state: dict[str, Any] = json.loads(facts["state"])
        return tensors, state

    def save(
        self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any], *, final: bool
    ) -> None:
        """Replace the stage's state, unless the last save is too recent (a final one never is)."""
        if not final and time.monotonic() - self.last < self.every:
            return
        copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        path = self.folder / CHECKPOINT.format(stage)
        write_tensors(path, copies, {"state": json.dumps(facts)})
        self.last = time.monotonic()

    def clear(self) -> None:
        """Remove every state: the result is written."""
        for left in self.folder.glob(CHECKPOINT.format("*")):
            left.unlink()


def check_fingerprint(facts: Path, name: str, fingerprint: str) -> None:
    """Raise unless data are those that a run wrote down when it was made.

    Args:
        facts: the run's JSON file about its data.
        name: of the data, for the message.
        fingerprint: of the data as they are now.

    Raises:
        DataError: they have changed.
    """
    expected = json.loads(facts.read_text(encoding="utf-8"))["fingerprint"]
    if fingerprint != expected:
        raise DataError(
            f"{facts.parent} was made from other data: its {name} has fingerprint "
            f"{expected[:12]}, this one {fingerprint[:12]}; restore the files it read"
        )
