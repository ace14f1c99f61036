"""Labelled images, and a split of them into train, validation and test."""

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
        labels: int64, one class per image.

    Example:
        >>> len(ImageSet(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 1])))
        2
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        bad, wanted = self.images, "uint8 images x channels x height x width"
        if bad.dtype == torch.uint8 and bad.dim() == 4:
            bad, wanted = self.labels, f"{len(self)} int64 labels"
            if bad.dtype == torch.int64 and bad.shape == (len(self),):
                return
        raise DataError(f"expected {wanted}, got {bad.dtype} of shape {tuple(bad.shape)}")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def take(self, index: Tensor | slice) -> ImageSet:
        """Return some of the images."""
        return ImageSet(self.images[index], self.labels[index])

    def resized(self, size: int) -> ImageSet:
        """Average down (area interpolation) to size x size, rounded to uint8."""
        most = min(self.images.shape[2:])
        if not 1 <= size <= most:
            raise InputError(f"expected a size from 1 to {most}, got {size}: images only shrink")
        parts = [
            F.interpolate(part.float(), (size, size), mode="area").round().to(torch.uint8)
            for part in blocks(self.images, 1024)
        ]
        return ImageSet(torch.cat([self.images[:0, :, :size, :size], *parts]), self.labels)


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
        shape, last = tuple(self.train.images.shape[1:]), len(self.classes) - 1
        for part in self.parts:
            other = tuple(part.images.shape[1:])
            if other != shape:
                raise DataError(f"{self.name}: expected images of one shape, got {shape}, {other}")
            low, high = (int(end) for end in part.labels.aminmax()) if len(part) else (0, last)
            if low < 0 or high > last:
                raise DataError(
                    f"{self.name}: labels must lie in 0 ... {last}, got {low} ... {high}"
                )
        if not len(self.mean) == len(self.std) == shape[0]:
            raise DataError(
                f"{self.name}: expected mean and std for {shape[0]} channels, got {self.mean} and "
                f"{self.std}"
            )

    @property
    def parts(self) -> tuple[ImageSet, ImageSet, ImageSet]:
        """Train, validation and test images."""
        return self.train, self.valid, self.test

    @property
    def fingerprint(self) -> str:
        """A checksum of every pixel and label."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(repr(tuple(part.images.shape)).encode())
            digest.update(part.images.contiguous().numpy().tobytes())
            digest.update(part.labels.numpy().astype("<i8").tobytes())
        return digest.hexdigest()

    def resized(self, size: int) -> ImageSplit:
        """Average every image down to size x size."""
        train, valid, test = (part.resized(size) for part in self.parts)
        return dataclasses.replace(self, train=train, valid=valid, test=test)


def hold_out(data: ImageSet, share: float, seed: int, name: str) -> tuple[ImageSet, ImageSet]:
    """Split off a share of each class at random: (the rest, the images held out).

    Args:
        share: from 0 to below 1; a class gives ``round(share * its images)``.
        name: of the random stream.

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
    return data.take(~mask), data.take(mask)
