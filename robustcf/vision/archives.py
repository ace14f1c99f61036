"""Readers of the official archives of CIFAR and TinyImageNet: (train, test, class names)."""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from robustcf._io.limits import check_expansion, how_to_raise, limits
from robustcf._io.reading import read_members
from robustcf._io.sandbox import Reading, read_apart
from robustcf.errors import DataError, InputError
from robustcf.vision.images import ImageSet

Parts = tuple[ImageSet, ImageSet, tuple[str, ...]]
_Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_PIXELS = 3 * 32 * 32


def read_cifar_binary(archive: Path) -> Parts:
    """Read CIFAR-10 or CIFAR-100, binary version: per image, label bytes and then pixels."""
    files = _Files(archive, lambda name: name.endswith((".bin", ".txt", ".html")))
    fine = "train.bin" in files
    names = _text(files["fine_label_names.txt" if fine else "batches.meta.txt"]).splitlines()
    head = 2 if fine else 1  # CIFAR-100 has the coarse label first

    def batch(name: str) -> _Arrays:
        content = files[name]
        if len(content) % (head + _PIXELS):
            raise DataError(f"{archive}: {name} ends within an image; delete it and fetch it again")
        rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, head + _PIXELS)
        return rows[:, head:], rows[:, head - 1]

    return *_cifar(files, ".bin", batch), tuple(name for name in names if name.strip())


def read_cifar_pickle(archive: Path) -> Parts:
    """Read CIFAR-10 or CIFAR-100, Python version, through :mod:`robustcf._io.unpickling`."""
    files = _Files(archive, lambda name: not name.endswith((".html", ".txt~")))
    fine = "train" in files
    meta = _unpickled(files["meta" if fine else "batches.meta"], f"{archive}: class names")

    def batch(name: str) -> _Arrays:
        where = f"{archive}: {name}"
        found = _unpickled(files[name], where)
        wanted = ("data", "fine_labels" if fine else "labels")
        arrays = [found.array(key) for key in wanted if key in found.arrays]
        shapes = [array.shape for array in arrays]
        count = len(arrays[-1]) if shapes and shapes[-1] else 0
        if shapes != [(count, _PIXELS), (count,)] or arrays[0].dtype != np.uint8:
            raise DataError(f"{where}: expected uint8 pixels, {_PIXELS} per image, and labels")
        return arrays[0], arrays[1]

    train, test = _cifar(files, "", batch)
    names = meta.facts.get("fine_label_names" if fine else "label_names")
    if not isinstance(names, list):
        raise DataError(f"{archive}: expected a list of class names, got none; fetch it again")
    return train, test, tuple(map(str, names))


def read_tiny_imagenet(archive: Path) -> Parts:
    """Read TinyImageNet; its labelled validation images are the test images. Needs Pillow.

    Cost: decodes 110,000 JPEG files, 1.4 GB of pixels.
    """
    prefix = "tiny-imagenet-200/"
    wanted = r"(wnids\.txt|val/val_annotations\.txt|(train/n\d+|val)/images/\w+\.JPEG)"
    files = _Files(archive, lambda name: bool(re.fullmatch(prefix + wanted, name)), prefix)
    classes = tuple(_text(files["wnids.txt"]).split())
    train = [(name, name.split("/")[1]) for name in sorted(files) if name.startswith("train/")]
    lines = _text(files["val/val_annotations.txt"]).splitlines()
    fields = [line.split("\t") for line in lines if line]
    if any(len(field) < 2 for field in fields):
        raise DataError(f"{archive}: val_annotations.txt has a line without a class")
    test = [(f"val/images/{field[0]}", field[1]) for field in fields]
    if not {name for _, name in train + test} <= set(classes):
        raise DataError(f"{archive}: holds an image of a class that wnids.txt does not list")
    return _decoded(files, train, classes), _decoded(files, test, classes), classes


READERS: dict[str, Callable[[Path], Parts]] = {
    "cifar-binary": read_cifar_binary,
    "cifar-pickle": read_cifar_pickle,
    "tiny-imagenet": read_tiny_imagenet,
}


def decode(content: bytes | BinaryIO, name: str, mode: str = "RGB") -> np.ndarray[Any, Any]:
    """Return a PNG or JPEG file as a uint8 array, height x width (x 3). Needs Pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            "reading PNG and JPEG files needs Pillow: pip install 'robustcf[vision]'"
        ) from error
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images; the limit here refuses or allows them.
            warnings.simplefilter("ignore")
            with Image.open(stream, formats=("PNG", "JPEG")) as image:
                width, height = image.size
                if width * height > limits().image_pixels:
                    raise _too_large(name, f"{width:,} x {height:,} pixels", width * height)
                return np.asarray(image.convert(mode))
    except DataError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(name, str(error), 1 << 30) from error
    except (
        *(OSError, ValueError, SyntaxError, TypeError, LookupError, ArithmeticError),
        *(EOFError, struct.error),
    ) as error:
        # Pillow raises any of these for damaged files.
        raise DataError(f"{name}: not a readable PNG or JPEG image ({error})") from error


def _too_large(name: str, got: str, count: int) -> DataError:
    return DataError(
        f"{name}: expected at most {limits().image_pixels:,} pixels, got {got}; make the image "
        f"smaller, or {how_to_raise('image_pixels', count)}"
    )


class _Files(dict[str, bytes]):
    """The wanted members of an archive by name, without folders or without a prefix."""

    def __init__(self, archive: Path, wanted: Callable[[str], bool], prefix: str = "") -> None:
        members = read_members(archive, wanted).items()
        short = (lambda n: n.removeprefix(prefix)) if prefix else (lambda n: Path(n).name)
        super().__init__({short(name): content for name, content in members})
        self.archive = archive

    def __missing__(self, name: str) -> bytes:
        raise DataError(f"{self.archive}: has no member {name!r}; delete it and fetch it again")


def _text(content: bytes) -> str:
    """Class names; damaged bytes give a name that is not found."""
    return content.decode("utf-8", "replace")


def _cifar(
    files: _Files, suffix: str, batch: Callable[[str], _Arrays]
) -> tuple[ImageSet, ImageSet]:
    fine = f"train{suffix}" in files
    names = [f"train{suffix}"] if fine else [
        name for name in sorted(files) if re.fullmatch(rf"data_batch_\d{suffix}", name)
    ]  # fmt: skip
    if not names:
        raise DataError(f"{files.archive}: holds no training images; delete it and fetch it again")
    parts = ([batch(name) for name in names], [batch(f"test{'' if fine else '_batch'}{suffix}")])
    train, test = (
        ImageSet(
            torch.from_numpy(np.concatenate([pixels for pixels, _ in part])).view(-1, 3, 32, 32),
            torch.from_numpy(np.concatenate([labels for _, labels in part]).astype(np.int64)),
        )
        for part in parts
    )
    return train, test


def _unpickled(content: bytes, where: str) -> Reading:
    try:
        return read_apart("robustcf._io.unpickling:read_images", [content])
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _decoded(files: _Files, entries: list[tuple[str, str]], classes: tuple[str, ...]) -> ImageSet:
    # An image may be listed any number of times.
    count, size = len(entries), files.archive.stat().st_size
    check_expansion(files.archive, f"{count:,} images", 3 * 64 * 64 * count, size)
    images = torch.empty(count, 3, 64, 64, dtype=torch.uint8)
    for place, (name, _) in enumerate(entries):
        pixels = decode(files[name], f"{files.archive}: {name}")
        if pixels.shape != (64, 64, 3):
            raise DataError(f"{files.archive}: {name} is {pixels.shape}, expected 64 x 64 x 3")
        images[place] = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    number = {name: label for label, name in enumerate(classes)}
    return ImageSet(images, torch.tensor([number[name] for _, name in entries], dtype=torch.int64))
