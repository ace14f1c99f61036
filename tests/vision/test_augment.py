"""Augmentations, each against a plain reference: numpy's padding, Pillow, colorsys."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch

from robustcf.errors import InputError
from robustcf.vision import augment
from robustcf.vision.augment import CIFAR, NOTHING, TINY_IMAGENET, Augmentation

SEEDS = [0, 1, 2]


def batch(seed: int, channels: int = 3, size: int = 6, count: int = 5) -> torch.Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_flip(seed):
    x = batch(seed)
    chosen = torch.tensor([True, False, True, False, False])
    expected = x.numpy().copy()
    expected[[0, 2]] = expected[[0, 2]][..., ::-1]
    assert np.array_equal(augment.flip(x, chosen).numpy(), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("padding", [1, 4, 6])
def test_symmetric_padding_and_crop(seed, padding):
    x = batch(seed)
    rng = np.random.default_rng(seed)
    offsets = rng.integers(0, 2 * padding + 1, size=(5, 2))
    ours = augment.shift(x, padding, torch.from_numpy(offsets))
    for image, got, (top, left) in zip(x.numpy(), ours.numpy(), offsets, strict=True):
        edges = ((0, 0), (padding, padding), (padding, padding))
        padded = np.pad(image, edges, mode="symmetric")
        assert np.array_equal(got, padded[:, top : top + 6, left : left + 6])


@pytest.mark.parametrize("seed", SEEDS)
def test_brightness_contrast_saturation_against_pillow(seed):
    """Pillow works in bytes, so agreement is within a few of 255 (it rounds the grey too)."""
    enhance = pytest.importorskip("PIL.ImageEnhance")
    from PIL import Image

    whole = torch.randint(256, (4, 3, 7, 7), generator=torch.Generator().manual_seed(seed))
    x = whole.float() / 255
    factors = torch.tensor([0.8, 0.95, 1.1, 1.2])
    pairs = [
        (augment.brightness, enhance.Brightness),
        (augment.contrast, enhance.Contrast),
        (augment.saturation, enhance.Color),
    ]
    for ours, theirs in pairs:
        got = ours(x, factors)
        for n in range(4):
            pixels = whole[n].permute(1, 2, 0).numpy().astype(np.uint8)
            expected = np.asarray(theirs(Image.fromarray(pixels)).enhance(float(factors[n])))
            difference = got[n].permute(1, 2, 0).numpy() * 255 - expected
            assert np.abs(difference).max() < 2.0


@pytest.mark.parametrize("seed", SEEDS)
def test_hue_against_colorsys(seed):
    x = batch(seed, size=3)
    x[0] = 0.4  # grey has no hue
    x[1] = 0.0
    turns = torch.tensor([0.1, -0.1, 0.05, 0.5, -0.3])
    got = augment.hue(x, turns)
    for n in range(5):
        for row in range(3):
            for column in range(3):
                h, s, v = colorsys.rgb_to_hsv(*x[n, :, row, column].tolist())
                expected = colorsys.hsv_to_rgb((h + float(turns[n])) % 1, s, v)
                np.testing.assert_allclose(got[n, :, row, column], expected, atol=1e-5)


def test_grey_images_have_no_colour_to_change():
    x = batch(0, channels=1)
    factors = torch.full((5,), 0.5)
    assert torch.equal(augment.hue(x, factors), x)
    torch.testing.assert_close(augment.saturation(x, factors), x)


@pytest.mark.parametrize("recipe", [CIFAR, TINY_IMAGENET])
@pytest.mark.parametrize("seed", SEEDS)
def test_recipes_are_seeded_leave_the_batch_alone_and_stay_in_range(recipe, seed):
    x = batch(seed, size=16, count=40)
    kept = x.clone()
    first = recipe(x, torch.Generator().manual_seed(seed))
    again = recipe(x, torch.Generator().manual_seed(seed))
    other = recipe(x, torch.Generator().manual_seed(seed + 1))
    assert torch.equal(x, kept)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == x.shape
    assert 0 <= float(first.min()) <= float(first.max()) <= 1


def test_the_papers_recipes():
    assert Augmentation(flip=True, padding=4) == CIFAR
    assert (TINY_IMAGENET.brightness, TINY_IMAGENET.contrast) == (0.2, 0.2)
    assert (TINY_IMAGENET.saturation, TINY_IMAGENET.hue) == (0.2, 0.1)
    assert torch.equal(NOTHING(batch(0), torch.Generator()), batch(0))


def test_draws_are_uniform_and_orders_differ():
    """Half of the images flip, all offsets occur; brightness and contrast do not commute."""
    ramp = torch.arange(8.0).reshape(1, 1, 1, 8).expand(4000, 1, 8, 8) / 8
    flipped = Augmentation(flip=True)(ramp, torch.Generator().manual_seed(0))
    share = float((flipped[:, 0, 0, 0] > 0.5).float().mean())
    assert abs(share - 0.5) < 0.03
    moved = Augmentation(padding=2)(ramp, torch.Generator().manual_seed(0))
    # Column offsets 0 ... 4 show the first pixels 1, 0, 0, 1, 2 (in eighths).
    counts = torch.bincount((moved[:, 0, 0, 0] * 8).long(), minlength=3) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.4, 0.4, 0.2]), atol=0.03, rtol=0)
    x = batch(3, size=4, count=64)
    jitter = Augmentation(brightness=0.9, contrast=0.9)
    out = jitter(x, torch.Generator().manual_seed(1))
    source = torch.Generator().manual_seed(1)
    b, c = (1 + 0.9 * (2 * torch.rand(64, generator=source) - 1) for _ in range(2))
    one = augment.contrast(augment.brightness(x, b), c)
    two = augment.brightness(augment.contrast(x, c), b)
    is_one = (out - one).abs().amax(dim=(1, 2, 3)) < 1e-5
    is_two = (out - two).abs().amax(dim=(1, 2, 3)) < 1e-5
    assert bool((is_one | is_two).all())
    assert is_one.sum() > 15
    assert is_two.sum() > 15


def test_bad_input():
    for options in ({"padding": -1}, {"brightness": 1.5}, {"hue": 0.6}, {"contrast": -0.1}):
        with pytest.raises(InputError, match="padding"):
            Augmentation(**options)
    with pytest.raises(InputError, match="padding"):
        augment.shift(batch(0), 7, torch.zeros(5, 2, dtype=torch.int64))
    with pytest.raises(InputError, match="channels"):
        augment.hue(batch(0, channels=2), torch.zeros(5))
