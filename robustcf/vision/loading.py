"""``load_images``: a name, a folder or an npz file in, an ImageSplit out."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from robustcf._io.fetching import Policy, obtain, sha256_of
from robustcf._io.limits import check_expansion
from robustcf._io.reading import UNREADABLE, open_regular, read_arrays_of, size_of
from robustcf.errors import DataError, InputError
from robustcf.vision import augment
from robustcf.vision.archives import READERS, Parts, decode
from robustcf.vision.catalog import ImageManifest, image_manifests
from robustcf.vision.images import ImageSet, ImageSplit, hold_out

_SUFFIXES = (".png", ".jpg", ".jpeg")
_MOST_CLASSES = 100_000
_TEST_SHARE = 0.2


def load_images(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    size: int | None = None,
    valid_share: float = 0.0,
    seed: int = 0,
    policy: Policy | None = None,
) -> ImageSplit:
    """Load labelled images by name or path.

    Names: ``digits`` (scikit-learn's, 8 x 8, grey), ``cifar10``, ``cifar100``,
    ``tinyimagenet``: the official archives, looked for and fetched as all data sets are. A path
    may be an ``.npz`` file with uint8 ``x_train``, ``y_train``, ``x_test``, ``y_test`` (and
    ``label_names``), or with ``x`` and ``y``; or a folder ``CLASS/*.png``, or ``train/CLASS/*``
    and ``test/CLASS/*``. Where there is no test part, a fifth of each class is held out.

    Args:
        data_dir: the first folder to look in, and the one to download into.
        download: whether a missing archive may be fetched.
        size: average the images down to size x size.
        valid_share: hold out this share of each class of train, to choose settings on.
        seed: of what is held out.

    Raises:
        DataError: what was read breaks a rule, or takes more memory than the limits allow
            (:mod:`robustcf._io.limits`).
        DownloadError: an archive is missing and cannot be fetched.

    Example:
        >>> split = load_images("digits")
        >>> len(split.train), len(split.test), tuple(split.train.images.shape[1:])
        (1438, 359, (1, 8, 8))
    """
    name = os.fspath(name_or_path)
    manifest = image_manifests().get(name.lower())
    if manifest is not None:
        split = _named(manifest, data_dir, download, policy)
    elif name.lower() == "digits":
        split = _digits()
    else:
        split = _own(Path(name).expanduser(), seed)
    if size is not None and (size, size) != tuple(split.train.images.shape[2:]):
        split = split.resized(size)
    if valid_share:
        train, valid = hold_out(split.train, valid_share, seed, "valid")
        split = dataclasses.replace(split, train=train, valid=valid)
    return split


def augmentation_for(name: str, size: int) -> augment.Augmentation:
    """The paper's augmentation for its sets; CIFAR's for own images; a small shift for digits.

    Smaller images are shifted by less: an eighth of their size, which is 4 for 32 and CIFAR's.
    """
    manifest = image_manifests().get(name)
    if manifest is not None and manifest.augmentation == "tiny_imagenet":
        return augment.TINY_IMAGENET
    if name == "digits":
        return augment.DIGITS
    return dataclasses.replace(augment.CIFAR, padding=min(4, max(1, size // 8)))


def _named(
    manifest: ImageManifest,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
    policy: Policy | None,
) -> ImageSplit:
    folder = None if data_dir is None else Path(data_dir)
    found = obtain(manifest, manifest.files, folder, download=download, policy=policy)
    train, test, classes = READERS[found.source.format](found.path)
    got = {"classes": len(classes), "train": len(train), "test": len(test)}
    if got != dict(manifest.counts):
        raise DataError(
            f"{found.path}: expected {dict(manifest.counts)}, got {got}: this is another set"
        )
    sources = {found.path.name: found.sha256}
    return _split(manifest.name, (train, test, classes), manifest.mean, manifest.std, sources)


def _digits() -> ImageSplit:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(
            "the digits come with scikit-learn: pip install 'robustcf[vision]'"
        ) from error
    found = load_digits()
    # 0 ... 16 in the file.
    pixels = np.round(np.asarray(found.images) * 255 / 16).astype(np.uint8)
    data = _images(pixels, np.asarray(found.target), "digits")
    # One test part for ever, whatever the seed: figures on it compare.
    train, test = hold_out(data, _TEST_SHARE, 0, "test")
    return _split("digits", (train, test, tuple(map(str, range(10)))), None, None, {})


def _own(path: Path, seed: int) -> ImageSplit:
    if path.is_dir():
        parts = _folder(path, seed)
        return _split(path.name, parts, None, None, {})
    if path.suffix == ".npz" and path.is_file():
        return _split(path.stem, _npz(path, seed), None, None, {path.name: sha256_of(path)})
    known = ", ".join(["digits", *image_manifests()])
    raise DataError(
        f"no images are called {str(path)!r}: give one of {known}, a folder of images by class, "
        "or an .npz file"
    )


def _split(
    name: str,
    parts: Parts,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    sources: dict[str, str],
) -> ImageSplit:
    train, test, classes = parts
    middle = (0.5,) * train.images.shape[1]
    none = train.take(slice(0, 0))
    return ImageSplit(name, train, none, test, classes, mean or middle, std or middle, sources)


def _npz(path: Path, seed: int) -> Parts:
    # Other arrays may be there too and are left alone.
    wanted = ("x_train", "y_train", "x_test", "y_test", "x", "y", "label_names")
    try:
        found = read_arrays_of(path, wanted)
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path}: not a readable npz file ({error})") from error
    if {"x_train", "y_train", "x_test", "y_test"} <= set(found):
        train = _images(found["x_train"], found["y_train"], f"{path}: train")
        test = _images(found["x_test"], found["y_test"], f"{path}: test")
    elif {"x", "y"} <= set(found):
        data = _images(found["x"], found["y"], str(path))
        train, test = hold_out(data, _TEST_SHARE, seed, "test")
    else:
        raise DataError(
            f"{path}: expected the arrays x_train, y_train, x_test and y_test, or x and y, got "
            f"{', '.join(sorted(found)) or 'none of them'}"
        )
    if "label_names" in found:
        names = found["label_names"]
        if names.ndim != 1:
            raise DataError(f"{path}: label_names must be a list, got shape {names.shape}")
        _check_class_count(path, len(names))
        return train, test, tuple(map(str, names))
    if not len(train) or not len(test):
        raise DataError(f"{path}: train and test need at least one image each")
    count = 1 + max(int(train.labels.max()), int(test.labels.max()))
    _check_class_count(path, count)
    return train, test, tuple(map(str, range(count)))


def _check_class_count(path: Path, count: int) -> None:
    """Raise for more classes than anybody has: each takes a name, and an output of a network."""
    if count > _MOST_CLASSES:
        raise DataError(
            f"{path}: expected at most {_MOST_CLASSES:,} classes, got {count:,}; labels must be "
            "numbers of classes, beginning with 0"
        )


def _images(pixels: Any, labels: Any, name: str) -> ImageSet:
    """uint8 images x height x width (x channels) from numpy, channels brought to the front."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
        raise DataError(
            f"{name}: expected uint8 images x height x width (x channels), got {pixels.dtype} of "
            f"shape {pixels.shape}"
        )
    if pixels.ndim == 4 and pixels.shape[3] not in (1, 3):
        raise DataError(f"{name}: expected 1 or 3 channels, last, got shape {pixels.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
        raise DataError(
            f"{name}: expected {len(pixels)} integer labels, got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    images = images.unsqueeze(1) if pixels.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
    return ImageSet(images, torch.from_numpy(labels.astype(np.int64)))


def _folder(path: Path, seed: int) -> Parts:
    test_dir = next((path / n for n in ("test", "val", "valid") if (path / n).is_dir()), None)
    if (path / "train").is_dir() and test_dir is not None:
        classes = _classes(path / "train")
        return _read(path / "train", classes), _read(test_dir, classes), tuple(classes)
    classes = _classes(path)
    train, test = hold_out(_read(path, classes), _TEST_SHARE, seed, "test")
    return train, test, tuple(classes)


def _opened(file: Path) -> BinaryIO:
    try:
        return open_regular(file)
    except OSError as error:
        raise DataError(
            f"{file}: cannot be opened ({error.strerror}); repair or remove it"
        ) from error


def _classes(path: Path) -> list[str]:
    classes = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    if len(classes) < 2:
        raise DataError(
            f"{path}: expected a folder for each of at least two classes, got "
            f"{', '.join(classes) or 'none'}"
        )
    return classes


def _read(path: Path, classes: list[str]) -> ImageSet:
    unknown = {entry.name for entry in path.iterdir() if entry.is_dir()} - set(classes)
    if unknown:
        raise DataError(f"{path}: holds classes that train does not: {', '.join(sorted(unknown))}")
    arrays, labels = [], []
    on_disk = in_memory = 0
    for label, name in enumerate(classes):
        folder = path / name
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        for file in files:
            if file.suffix.lower() in _SUFFIXES:
                with _opened(file) as handle:
                    arrays.append(decode(handle, str(file)))
                    on_disk += size_of(handle)
                labels.append(label)
                in_memory += arrays[-1].nbytes
                check_expansion(path, f"{len(arrays):,} of its images", in_memory, on_disk)
                if arrays[-1].shape != arrays[0].shape:
                    raise DataError(
                        f"{file}: is {arrays[-1].shape[:2]}, others are {arrays[0].shape[:2]}: "
                        "bring all images to one size"
                    )
    if not arrays:
        raise DataError(f"{path}: holds no .png or .jpg files in its class folders")
    return _images(np.stack(arrays), np.array(labels), str(path))
