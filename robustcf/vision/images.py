"""Labelled images, and a split of them into train, valid and test."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from robustcf._randomness import stream
from robustcf.errors import DataError, InputError
from robustcf.estimators.numerics import blocks


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and their classes.

    Args:
        images: uint8, images x channels x height x width.
        labels: int64, one class an image.

    Example:
        >>> len(ImageSet(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 1])))
        2
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise DataError(
                "expected uint8 images x channels x height x width, got "
                f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.images),):
            raise DataError(
                f"expected one int64 label for each of {len(self.images)} images, got "
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        """How many images."""
        return len(self.images)

    def take(self, index: Tensor | slice) -> ImageSet:
        """Some of the images."""
        return ImageSet(self.images[index], self.labels[index])

    def resized(self, size: int) -> ImageSet:
        """Averaged down (area interpolation) to size x size, rounded to uint8."""
        if size < 1 or size > min(self.images.shape[2:]):
            raise InputError(
                f"expected a size from 1 to {min(self.images.shape[2:])}, got {size}: "
                "images are only made smaller"
            )
        parts = [
            F.interpolate(part.float(), (size, size), mode="area").round().to(torch.uint8)
            for part in blocks(self.images, 1024)
        ]
        none = self.images[:0, :, :size, :size]
        return ImageSet(torch.cat([none, *parts]), self.labels)


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """A data set of images, split.

    Args:
        name: of the data set.
        valid: to choose settings on; may be empty.
        test: to report on.
        classes: names, by label.
        mean: of each channel, for the normalization inside the model.
        sources: file -> sha256.
    """

    name: str
    train: ImageSet
    valid: ImageSet
    test: ImageSet
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.train) or not len(self.test):
            raise DataError(f"{self.name}: train and test need at least one image each")
        for part in (self.train, self.valid, self.test):
            if part.images.shape[1:] != self.train.images.shape[1:]:
                raise DataError(
                    f"{self.name}: images must have one shape, got "
                    f"{tuple(self.train.images.shape[1:])} and {tuple(part.images.shape[1:])}"
                )
            if len(part) and not 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(
                self.classes
            ):
                raise DataError(
                    f"{self.name}: labels must lie in 0 ... {len(self.classes) - 1}, got "
                    f"{int(part.labels.min())} ... {int(part.labels.max())}"
                )
        if len(self.mean) != self.train.images.shape[1] or len(self.std) != len(self.mean):
            raise DataError(
                f"{self.name}: expected mean and std for {self.train.images.shape[1]} channels, "
                f"got {self.mean} and {self.std}"
            )

    @property
    def fingerprint(self) -> str:
        """A checksum of every pixel and label: the same data give the same one."""
        digest = hashlib.sha256()
        for part in (self.train, self.valid, self.test):
            digest.update(repr(tuple(part.images.shape)).encode())
            digest.update(part.images.contiguous().numpy().tobytes())
            digest.update(part.labels.numpy().astype("<i8").tobytes())
        return digest.hexdigest()

    def resized(self, size: int) -> ImageSplit:
        """Every part averaged down to size x size."""
        train, valid, test = (part.resized(size) for part in (self.train, self.valid, self.test))
        return dataclasses.replace(self, train=train, valid=valid, test=test)


def hold_out(data: ImageSet, share: float, seed: int, name: str) -> tuple[ImageSet, ImageSet]:
    """Split off a share of each class, seeded: (the rest, the part held out).

    Args:
        share: from 0 to below 1; a class gives ``round(share * its images)``.
        name: of the stream: what the part is for.

    Example:
        >>> data = ImageSet(torch.zeros(20, 1, 1, 1, dtype=torch.uint8), torch.arange(20) % 2)
        >>> [len(part) for part in hold_out(data, 0.1, 0, "valid")]
        [18, 2]
    """
    if not 0 <= share < 1:
        raise InputError(f"a share held out must lie in [0, 1), got {share!r}")
    generator = stream(seed, "vision", "split", name)
    labels = data.labels.numpy()
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held[generator.permutation(members)[: round(share * len(members))]] = True
    mask = torch.from_numpy(held)
    return (
        data.take(torch.nonzero(~mask).flatten()),
        data.take(torch.nonzero(mask).flatten()),
    )
