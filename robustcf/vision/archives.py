"""Reading the official archives of CIFAR and TinyImageNet: (train, test, class names)."""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Callable, Mapping
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
_CIFAR_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


def read_cifar_binary(archive: Path) -> Parts:
    """CIFAR-10 or CIFAR-100, binary version: label bytes and then the pixels, for each image."""
    members = read_members(archive, lambda name: name.endswith((".bin", ".txt", ".html")))
    files = {Path(name).name: content for name, content in members.items()}
    fine = "train.bin" in files
    names = _need(files, "fine_label_names.txt" if fine else "batches.meta.txt", archive)
    train = [_records(files, name, fine, archive) for name in _train_files(files, ".bin", archive)]
    test = _records(files, "test.bin" if fine else "test_batch.bin", fine, archive)
    classes = tuple(line for line in _text(names).splitlines() if line.strip())
    return _joined(train), test, classes


def read_cifar_pickle(archive: Path) -> Parts:
    """CIFAR-10 or CIFAR-100, Python version, through :mod:`robustcf._io.unpickling`."""
    members = read_members(archive, lambda name: not name.endswith((".html", ".txt~")))
    files = {Path(name).name: content for name, content in members.items()}
    fine = "train" in files
    meta = _unpickled(
        _need(files, "meta" if fine else "batches.meta", archive), f"{archive}: class names"
    )
    train = [_batch(files, name, fine, archive) for name in _train_files(files, "", archive)]
    test = _batch(files, "test" if fine else "test_batch", fine, archive)
    names = meta.facts.get("fine_label_names" if fine else "label_names")
    if not isinstance(names, list):
        raise DataError(f"{archive}: has no list of class names")
    return _joined(train), test, tuple(map(str, names))


def read_tiny_imagenet(archive: Path) -> Parts:
    """TinyImageNet: the training images, and the validation images (labelled) as test.

    The official test images have no published labels. Needs Pillow.

    Cost: decodes 110,000 JPEG files, 1.4 GB of pixels.
    """
    wanted = re.compile(
        r"tiny-imagenet-200/(wnids\.txt|val/val_annotations\.txt"
        r"|(train/n\d+|val)/images/\w+\.JPEG)"
    )
    members = read_members(archive, lambda name: wanted.fullmatch(name) is not None)
    prefix = "tiny-imagenet-200/"
    files = {name.removeprefix(prefix): content for name, content in members.items()}
    classes = tuple(_text(_need(files, "wnids.txt", archive)).split())
    number = {name: label for label, name in enumerate(classes)}
    train, labels = [], []
    for name in sorted(files):
        if name.startswith("train/"):
            train.append(name)
            labels.append(number.get(name.split("/")[1], -1))
    annotations = _text(_need(files, "val/val_annotations.txt", archive))
    fields = [line.split("\t") for line in annotations.splitlines() if line]
    if any(len(field) < 2 for field in fields):
        raise DataError(f"{archive}: val_annotations.txt has a line without a class")
    test = [f"val/images/{field[0]}" for field in fields]
    test_labels = [number.get(field[1], -1) for field in fields]
    if -1 in labels or -1 in test_labels:
        raise DataError(f"{archive}: holds an image of a class that wnids.txt does not list")
    return (
        _decoded(files, train, labels, archive),
        _decoded(files, test, test_labels, archive),
        classes,
    )


READERS: dict[str, Callable[[Path], Parts]] = {
    "cifar-binary": read_cifar_binary,
    "cifar-pickle": read_cifar_pickle,
    "tiny-imagenet": read_tiny_imagenet,
}


def decode(content: bytes | BinaryIO, name: str, mode: str = "RGB") -> np.ndarray[Any, Any]:
    """A PNG or JPEG file as a uint8 array, height x width (x 3). Needs Pillow."""
    image_module = pillow()
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images in its own way; here they are refused, or wanted.
            warnings.simplefilter("ignore")
            with image_module.open(stream, formats=("PNG", "JPEG")) as image:
                _check_pixels(name, *image.size)
                return np.asarray(image.convert(mode))
    except DataError:
        raise
    except image_module.DecompressionBombError as error:
        raise _too_many_pixels(name, str(error)) from error
    except (
        *(OSError, ValueError, SyntaxError, TypeError, LookupError, ArithmeticError),
        *(EOFError, struct.error),
    ) as error:
        # Pillow raises any of these for damaged files.
        raise DataError(f"{name}: not a readable PNG or JPEG image ({error})") from error


def _check_pixels(name: str, width: int, height: int) -> None:
    if width * height > limits().image_pixels:
        raise _too_many_pixels(name, f"{width:,} x {height:,} pixels", width * height)


def _too_many_pixels(name: str, got: str, count: int = 1 << 30) -> DataError:
    return DataError(
        f"{name}: expected at most {limits().image_pixels:,} pixels, got {got}; make the image "
        f"smaller, or {how_to_raise('image_pixels', count)}"
    )


def pillow() -> Any:
    """Pillow's Image module, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            "reading PNG and JPEG files needs Pillow: pip install 'robustcf[vision]'"
        ) from error
    return Image


def _need(files: Mapping[str, bytes], name: str, archive: Path) -> bytes:
    if name not in files:
        raise DataError(f"{archive}: has no member {name!r}; delete it and fetch it again")
    return files[name]


def _text(content: bytes) -> str:
    """Names of classes; a damaged one shows as such, and is then not found."""
    return content.decode("utf-8", "replace")


def _train_files(files: Mapping[str, bytes], suffix: str, archive: Path) -> list[str]:
    names = [f"train{suffix}"]
    if names[0] not in files:
        names = sorted(name for name in files if re.fullmatch(rf"data_batch_\d{suffix}", name))
    if not names:
        raise DataError(f"{archive}: holds no training images; delete it and fetch it again")
    return names


def _records(files: Mapping[str, bytes], name: str, fine: bool, archive: Path) -> ImageSet:
    content = _need(files, name, archive)
    head = 2 if fine else 1  # CIFAR-100: coarse label, then the fine one
    if len(content) % (head + _PIXELS):
        raise DataError(f"{archive}: {name} ends within an image; delete it and fetch it again")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, head + _PIXELS)
    return _set(rows[:, head:], rows[:, head - 1])


def _batch(files: Mapping[str, bytes], name: str, fine: bool, archive: Path) -> ImageSet:
    where = f"{archive}: {name}"
    found = _unpickled(_need(files, name, archive), where)
    key = "fine_labels" if fine else "labels"
    pixels, labels = (found.array(n) if n in found.arrays else None for n in ("data", key))
    good = pixels is not None and labels is not None and pixels.dtype == np.uint8
    if not good or pixels is None or labels is None or pixels.shape[1:] != (_PIXELS,):
        raise DataError(f"{where}: expected uint8 pixels, {_PIXELS} per image, and their labels")
    return _set(pixels, labels)


def _unpickled(content: bytes, where: str) -> Reading:
    try:
        return read_apart("robustcf._io.foreign:read_images", [content])
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _set(pixels: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> ImageSet:
    images = torch.from_numpy(pixels.copy()).reshape(-1, *_CIFAR_SHAPE)
    return ImageSet(images, torch.from_numpy(labels.astype(np.int64)))


def _joined(parts: list[ImageSet]) -> ImageSet:
    return ImageSet(
        torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    )


def _decoded(
    files: Mapping[str, bytes], names: list[str], labels: list[int], archive: Path
) -> ImageSet:
    # One image may be listed any number of times.
    size = archive.stat().st_size
    check_expansion(archive, f"{len(names):,} images", 3 * 64 * 64 * len(names), size)
    images = torch.empty(len(names), 3, 64, 64, dtype=torch.uint8)
    for place, name in enumerate(names):
        pixels = decode(_need(files, name, archive), f"{archive}: {name}")
        if pixels.shape != (64, 64, 3):
            raise DataError(f"{archive}: {name} is {pixels.shape}, expected 64 x 64 x 3")
        images[place] = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    return ImageSet(images, torch.tensor(labels, dtype=torch.int64))
