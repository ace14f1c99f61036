"""``load_images``: a name, a folder or an npz file in, an ImageSplit out."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

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
_ARRAYS = ("x_train", "y_train", "x_test", "y_test", "x", "y", "label_names")
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

    Names: ``digits`` (scikit-learn's, 8 x 8, grey), ``cifar10``, ``cifar100``, ``tinyimagenet``
    (the official archives). A path may be an ``.npz`` file with uint8 ``x_train``, ``y_train``,
    ``x_test``, ``y_test`` (and ``label_names``), or with ``x`` and ``y``; or a folder
    ``CLASS/*.png``, or ``train/CLASS/*`` and ``test/CLASS/*``. Without test images, a fifth of
    each class is held out.

    Args:
        data_dir: the first folder to look in, and the one to download into.
        download: whether a missing archive may be fetched.
        size: average the images down to size x size.
        valid_share: hold out this share of each class of train, to choose settings on.
        seed: of the images held out.

    Raises:
        DataError: the images break a rule or exceed the limits (:mod:`robustcf._io.limits`).
        DownloadError: an archive is missing and cannot be fetched.

    Example:
        >>> split = load_images("digits")
        >>> len(split.train), len(split.test), tuple(split.train.images.shape[1:])
        (1438, 359, (1, 8, 8))
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    manifest = image_manifests().get(name.lower())
    if manifest is not None:
        split = _named(manifest, data_dir, download, policy)
    elif name.lower() == "digits":
        split = _split("digits", _digits())
    elif path.is_dir():
        split = _split(path.name, _folder(path, seed))
    elif path.suffix == ".npz" and path.is_file():
        split = _split(path.stem, _npz(path, seed), sources={path.name: sha256_of(path)})
    else:
        known = ", ".join(["digits", *image_manifests()])
        raise DataError(
            f"no images are called {str(path)!r}: give one of {known}, a folder of images by "
            "class, or an .npz file"
        )
    if size is not None and (size, size) != tuple(split.train.images.shape[2:]):
        split = split.resized(size)
    if valid_share:
        train, valid = hold_out(split.train, valid_share, seed, "valid")
        split = dataclasses.replace(split, train=train, valid=valid)
    return split


def augmentation_for(name: str, size: int) -> augment.Augmentation:
    """Return the paper's augmentation for its sets, a small shift for digits, else CIFAR's.

    CIFAR's shift is an eighth of the image size, at most 4 pixels.
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
    parts = READERS[found.source.format](found.path)
    got = dict(zip(("train", "test", "classes"), (len(part) for part in parts), strict=True))
    if got != manifest.counts:
        raise DataError(
            f"{found.path}: expected {dict(manifest.counts)}, got {got}: this is another set"
        )
    moments = {"mean": manifest.mean, "std": manifest.std}
    return _split(manifest.name, parts, sources={found.path.name: found.sha256}, **moments)


def _split(name: str, parts: Parts, **facts: Any) -> ImageSplit:
    train, test, classes = parts
    middle = (0.5,) * train.images.shape[1]
    facts = {"mean": middle, "std": middle, **facts}
    return ImageSplit(name, train, train.take(slice(0, 0)), test, classes, **facts)


def _digits() -> Parts:
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
    # The test images do not depend on the seed, so that published figures compare.
    return *hold_out(data, _TEST_SHARE, 0, "test"), tuple(map(str, range(10)))


def _npz(path: Path, seed: int) -> Parts:
    try:
        found = read_arrays_of(path, _ARRAYS)
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path}: not a readable npz file ({error})") from error
    if found.keys() >= set(_ARRAYS[:4]):
        train, test = (
            _images(found[f"x_{part}"], found[f"y_{part}"], f"{path}: {part}")
            for part in ("train", "test")
        )
    elif found.keys() >= {"x", "y"}:
        data = _images(found["x"], found["y"], str(path))
        train, test = hold_out(data, _TEST_SHARE, seed, "test")
    else:
        got = ", ".join(sorted(found)) or "none of them"
        raise DataError(
            f"{path}: expected the arrays x_train, y_train, x_test, y_test, or x and y, got {got}"
        )
    if "label_names" in found:
        names = found["label_names"]
        if names.ndim != 1:
            raise DataError(f"{path}: label_names must be a list, got shape {names.shape}")
        count = len(names)
    elif not len(train) or not len(test):
        raise DataError(f"{path}: train and test need at least one image each")
    else:
        count = 1 + max(int(train.labels.max()), int(test.labels.max()))
    # Each class takes a name, and an output of the network.
    if count > _MOST_CLASSES:
        raise DataError(
            f"{path}: expected at most {_MOST_CLASSES:,} classes, got {count:,}; number them from 0"
        )
    return train, test, tuple(map(str, found.get("label_names", range(count))))


def _images(pixels: Any, labels: Any, name: str) -> ImageSet:
    """Images from uint8 images x height x width (x channels) of numpy."""
    several = pixels[..., None] if pixels.ndim == 3 else pixels
    if pixels.dtype != np.uint8 or several.ndim != 4 or several.shape[3] not in (1, 3):
        raise DataError(
            f"{name}: expected uint8 images x height x width, or with 1 or 3 channels last, got "
            f"{pixels.dtype} of shape {pixels.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
        raise DataError(
            f"{name}: expected {len(pixels)} integer labels, got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    images = torch.from_numpy(np.ascontiguousarray(np.moveaxis(several, 3, 1)))
    return ImageSet(images, torch.from_numpy(labels.astype(np.int64)))


def _folder(path: Path, seed: int) -> Parts:
    test = next((path / n for n in ("test", "val", "valid") if (path / n).is_dir()), None)
    split = test is not None and (path / "train").is_dir()
    train = path / "train" if split else path
    classes = sorted(_folders(train))
    if len(classes) < 2:
        raise DataError(
            f"{train}: expected a folder for each of at least two classes, got "
            f"{', '.join(classes) or 'none'}"
        )
    data = _read(train, classes)
    if test is not None and split:
        return data, _read(test, classes), tuple(classes)
    return *hold_out(data, _TEST_SHARE, seed, "test"), tuple(classes)


def _folders(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if entry.is_dir()}


def _read(path: Path, classes: list[str]) -> ImageSet:
    unknown = sorted(_folders(path) - set(classes))
    if unknown:
        raise DataError(f"{path}: holds classes that train does not: {', '.join(unknown)}")
    arrays, labels = [], []
    on_disk = in_memory = 0
    for label, name in enumerate(classes):
        folder = path / name
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            if file.suffix.lower() not in _SUFFIXES:
                continue
            try:
                handle = open_regular(file)
            except OSError as error:
                raise DataError(
                    f"{file}: cannot be opened ({error.strerror}); repair or remove it"
                ) from error
            with handle:
                arrays.append(decode(handle, str(file)))
                on_disk += size_of(handle)
            labels.append(label)
            in_memory += arrays[-1].nbytes
            check_expansion(path, f"{len(arrays):,} of its images", in_memory, on_disk)
            sizes = [arrays[n].shape[:2] for n in (0, -1)]
            if sizes[0] != sizes[1]:
                raise DataError(f"{file}: expected images of one size, got {sizes[0]}, {sizes[1]}")
    if not arrays:
        raise DataError(f"{path}: holds no .png or .jpg files in its class folders")
    return _images(np.stack(arrays), np.array(labels), str(path))
