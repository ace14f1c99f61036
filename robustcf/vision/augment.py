"""The paper's augmentations of batches of images in [0, 1], with random draws per image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from robustcf.errors import InputError

# Luma of ITU-R BT.601, the common definition of grey in colour jitter.
_LUMA = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class Augmentation:
    """Flip, pad and crop, and colour jitter of a batch of training images.

    Args:
        flip: whether to mirror each image left to right with probability 1/2.
        padding: pixels of symmetric padding before a random crop to the old size.
        brightness: largest relative change; ``contrast`` and ``saturation`` likewise.
        hue: largest shift, in turns of the colour circle (at most 0.5).

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> CIFAR(torch.rand(8, 3, 32, 32), generator).shape
        torch.Size([8, 3, 32, 32])
    """

    flip: bool = False
    padding: int = 0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        amounts = (self.padding, self.brightness, self.contrast, self.saturation, self.hue)
        if min(amounts) < 0 or max(amounts[1:4]) > 1 or self.hue > 0.5:
            raise InputError(
                "expected padding of at least 0, brightness, contrast and saturation in [0, 1] "
                f"and hue in [0, 0.5], got {self}"
            )

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented images; the batch itself is left unchanged."""
        if self.flip:
            x = flip(x, torch.rand(len(x), generator=generator) < 0.5)
        if self.padding:
            span = 2 * self.padding + 1
            x = shift(x, self.padding, torch.randint(span, (len(x), 2), generator=generator))
        if self.brightness or self.contrast or self.saturation or self.hue:
            x = self._jitter(x, generator)
        return x

    def _jitter(self, x: Tensor, generator: torch.Generator) -> Tensor:
        changes: tuple[tuple[Callable[[Tensor, Tensor], Tensor], float, float], ...] = (
            (brightness, 1.0, self.brightness),
            (contrast, 1.0, self.contrast),
            (saturation, 1.0, self.saturation),
            (hue, 0.0, self.hue),
        )
        draws = [
            centre + amount * (2 * torch.rand(len(x), generator=generator) - 1)
            for _, centre, amount in changes
        ]
        # The four do not commute: every image takes them in a random order of its own.
        orders = torch.rand(len(x), len(changes), generator=generator).argsort(dim=1)
        x = x.clone()
        for place in range(len(changes)):
            for number, (change, _, _) in enumerate(changes):
                chosen = torch.nonzero(orders[:, place] == number).flatten()
                if len(chosen):
                    part = chosen.to(x.device)
                    x[part] = change(x[part], draws[number][chosen].to(x))
        return x


def flip(x: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen images left to right.

    Example:
        >>> flip(torch.tensor([[[[1, 2]]]]), torch.tensor([True])).flatten().tolist()
        [2, 1]
    """
    return torch.where(chosen.to(x.device).reshape(-1, 1, 1, 1), x.flip(3), x)


def shift(x: Tensor, padding: int, offsets: Tensor) -> Tensor:
    """Pad symmetrically (the border pixel is repeated) and crop to the old size.

    Args:
        padding: at most the image's smaller side.
        offsets: images x 2, row and column in the padded image where the crop begins, from 0 to
            2 padding; ``padding`` gives the image itself.

    Example:
        >>> shift(torch.tensor([[[[1, 2, 3]] * 3]]), 1, torch.tensor([[1, 0]]))[0, 0, 0].tolist()
        [1, 1, 2]
    """
    height, width = x.shape[2:]
    if padding > min(height, width):
        raise InputError(f"padding must be at most {min(height, width)} here, got {padding}")
    rows = _mirrored(height, offsets[:, 0] - padding).to(x.device)
    columns = _mirrored(width, offsets[:, 1] - padding).to(x.device)
    images = torch.arange(len(x), device=x.device).reshape(-1, 1, 1)
    # Advanced indices around a slice put the channels last.
    picked = x[images, :, rows.unsqueeze(2), columns.unsqueeze(1)]
    return picked.permute(0, 3, 1, 2).contiguous()


def _mirrored(size: int, start: Tensor) -> Tensor:
    """The pixels of each crop, images x size, mirrored at both ends with the edge twice."""
    place = torch.arange(size) + start.unsqueeze(1)
    place = torch.where(place < 0, -1 - place, place)
    return torch.where(place >= size, 2 * size - 1 - place, place)


def brightness(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each image by its factor, clipped to [0, 1].

    Example:
        >>> brightness(torch.ones(1, 3, 1, 1) / 2, torch.tensor([1.5])).flatten().tolist()
        [0.75, 0.75, 0.75]
    """
    return _away(x, x.new_zeros(()), factors)


def contrast(x: Tensor, factors: Tensor) -> Tensor:
    """Move each image away from (or towards) the mean of its grey version."""
    return _away(x, _grey(x).mean(dim=(1, 2, 3), keepdim=True), factors)


def saturation(x: Tensor, factors: Tensor) -> Tensor:
    """Move each image away from (or towards) its grey version."""
    return _away(x, _grey(x), factors)


def _away(x: Tensor, base: Tensor, factors: Tensor) -> Tensor:
    return (base + (x - base) * factors.reshape(-1, 1, 1, 1)).clamp(0, 1)


def hue(x: Tensor, turns: Tensor) -> Tensor:
    """Turn the colour circle (the H of HSV) by a share of a turn; grey images stay.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
        >>> hue(red, torch.tensor([1 / 3])).flatten().round(decimals=4).tolist()
        [0.0, 1.0, 0.0]
    """
    if not _has_colour(x):
        return x
    value, low = x.amax(dim=1), x.amin(dim=1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    red, green, blue = x.unbind(dim=1)
    angle = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    angle = (angle / 6 + turns.reshape(-1, 1, 1)) % 1.0
    # The channel c of a colour with hue h is value - chroma * ramp(h; c), a trapezoid in h.
    places = [(offset + 6 * angle) % 6 for offset in (5.0, 3.0, 1.0)]
    ramps = [torch.minimum(place, 4 - place).clamp(0, 1) for place in places]
    return torch.stack([value - chroma * ramp for ramp in ramps], dim=1)


def _grey(x: Tensor) -> Tensor:
    if not _has_colour(x):
        return x
    weights = torch.tensor(_LUMA, dtype=x.dtype, device=x.device).reshape(1, 3, 1, 1)
    return (x * weights).sum(dim=1, keepdim=True)


def _has_colour(x: Tensor) -> bool:
    if x.shape[1] not in (1, 3):
        raise InputError(f"colour jitter needs 1 or 3 channels, got {x.shape[1]}")
    return x.shape[1] == 3


NOTHING = Augmentation()
#: The paper's, for CIFAR-10 and CIFAR-100.
CIFAR = Augmentation(flip=True, padding=4)
#: The paper's, for TinyImageNet.
TINY_IMAGENET = Augmentation(
    flip=True, padding=4, brightness=0.2, contrast=0.2, saturation=0.2, hue=0.1
)
#: Digits may be moved, not mirrored.
DIGITS = Augmentation(padding=1)
