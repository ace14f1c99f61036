"""Torch's zip files, ``.pt`` and ``.pth``: tensors and plain values, without torch's unpickler.

Such a file is a zip archive: a pickle that describes tensors, and the bytes of each storage in a
member of its own. The pickle is read by :func:`robustcf.support.unpickling.read_with_stubs`, so
nothing in it runs; bytes are read only for tensors that are asked for, once shapes are known to
lie within their storage.
"""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustcf.adapters.base import readable
from robustcf.errors import DataError, InputError
from robustcf.support.unpickling import Stub, read_with_stubs

_DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


@dataclass(frozen=True)
class Stored:
    """A tensor as the pickle describes it; its bytes are still in the file."""

    dtype: torch.dtype
    key: str
    numel: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether it is its storage, row after row."""
        dense = [math.prod(self.shape[n + 1 :]) for n in range(len(self.shape))]
        return (
            self.offset == 0
            and math.prod(self.shape) == self.numel
            and (list(self.stride) == dense)
        )

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.dtype.is_floating_point


class Checkpoint:
    """A torch file, opened.

    Args:
        path: of the file.

    Raises:
        DataError: it is no torch zip file, is damaged, or asks for functions of Python.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"a": torch.ones(2, 3)}, Path(folder) / "x.pth")
        ...     found = Checkpoint(Path(folder) / "x.pth")
        ...     found.tensor(found.value["a"]).sum()
        tensor(6.)
    """

    def __init__(self, path: Path) -> None:
        """Read the pickle, not the tensors."""
        self.path = path
        older = "; load one of before torch 1.6 with torch and save it again"
        with readable(path, "file of torch.save", older), zipfile.ZipFile(path) as archive:
            self.sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            stored = {entry.filename: entry.compress_type for entry in archive.infolist()}
            pickles = [name for name in self.sizes if name.endswith("/data.pkl")]
            if len(pickles) != 1 or any(stored.values()):
                raise DataError(f"{path}: a zip archive, but not one that torch.save writes")
            self.root = pickles[0].removesuffix("data.pkl")
            order = f"{self.root}byteorder"
            if order in self.sizes and archive.read(order).strip() != b"little":
                raise DataError(f"{path}: its numbers are big-endian: save it again here")
            content = archive.read(pickles[0])
        names = {
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }
        self.value = read_with_stubs(content, str(path), names, _storage)

    def tensor(self, stored: Stored) -> Tensor:
        """The numbers of a tensor."""
        member = f"{self.root}data/{stored.key}"
        needed = stored.numel * stored.dtype.itemsize
        if self.sizes.get(member, -1) != needed:
            raise DataError(
                f"{self.path}: promises {needed:,} bytes for a tensor of {stored.shape} and has "
                f"{max(self.sizes.get(member, 0), 0):,}"
            )
        with readable(self.path, "tensor"), zipfile.ZipFile(self.path) as archive:
            content = bytearray(archive.read(member))
        if len(content) != needed:
            raise DataError(f"{self.path}: the bytes of a tensor are cut off")
        if not content:
            return torch.empty(stored.shape, dtype=stored.dtype)
        flat = torch.frombuffer(content, dtype=stored.dtype)
        return flat.as_strided(stored.shape, stored.stride, stored.offset).contiguous()

    def copy(self, target: Path, changes: Mapping[str, tuple[Stored, Tensor]]) -> None:
        """Write the file again with other numbers in some tensors; everything else as it is.

        Args:
            target: the new file.
            changes: name -> the tensor as it is stored, and what to write in its place.
        """
        bytes_of = {}
        for name, (stored, tensor) in changes.items():
            if not stored.whole:
                raise InputError(
                    f"{self.path}: {name} shares its storage with another tensor and cannot be "
                    "written back: change it with torch"
                )
            narrow = tensor.to(stored.dtype).contiguous().reshape(-1)
            bytes_of[f"{self.root}data/{stored.key}"] = narrow.view(torch.uint8).numpy().tobytes()
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        try:
            with (
                zipfile.ZipFile(self.path) as old,
                zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as new,
            ):
                for entry in old.infolist():
                    content = bytes_of.get(entry.filename)
                    new.writestr(entry.filename, old.read(entry) if content is None else content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _storage(identity: Any) -> tuple[torch.dtype, str, int]:
    """What a reference of the pickle to a storage says."""
    try:
        word, kind, key, _, numel = identity
        name = kind.asked_for.rpartition(".")[2]
        if word != "storage" or not isinstance(key, str) or type(numel) is not int or numel < 0:
            raise ValueError
    except (TypeError, ValueError, AttributeError):
        raise DataError("a tensor refers to no storage that torch writes: refused") from None
    if name not in _DTYPES:
        raise DataError(f"a tensor is stored as {name}: refused, floating-point numbers are read")
    return _DTYPES[name], key, numel


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Stored:
    """A tensor, if it lies within its storage and shows no number of it twice."""
    try:
        dtype, key, numel = storage
        shape, steps = tuple(size), tuple(stride)
        sizes = (offset, *shape, *steps)
        good = all(type(n) is int and n >= 0 for n in sizes) and len(shape) == len(steps)
        last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        if not good or (math.prod(shape) and (last >= numel or math.prod(shape) > numel)):
            raise ValueError
    except (TypeError, ValueError):
        raise DataError("a tensor promises more numbers than its storage has: refused") from None
    return Stored(dtype, key, numel, offset, shape, steps)


def state_of(value: Any, source: str) -> dict[str, Any]:
    """The state dict in what was saved: it itself, or what is called so.

    Raises:
        DataError: a whole module was saved, or something else.
    """
    if isinstance(value, Stub):
        raise DataError(
            f"{source}: a whole object of {value.asked_for} was saved, which only its own code can "
            "read: save its state_dict() instead"
        )
    if isinstance(value, dict):
        for name in ("state_dict", "model_state_dict", "model"):
            if isinstance(value.get(name), dict):
                value = value[name]
                break
        tensors = {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, Stored)}
        if tensors:
            return tensors
    raise DataError(f"{source}: holds no state dict: save model.state_dict()")
