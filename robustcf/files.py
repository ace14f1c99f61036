"""Files that are there whole or not at all: beside their place, to the disk, then by renaming."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


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


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object, indented; NaN and infinities are refused."""
    write_bytes(path, (json.dumps(values, indent=2, allow_nan=False) + "\n").encode())


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
    from safetensors.torch import save

    write_bytes(path, save(tensors, metadata=facts))


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
