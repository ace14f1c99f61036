"""Streams: the seed and the names decide, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf._randomness import stream
from robustcf.errors import InputError


def drawn(seed: Any, *names: str) -> list[int]:
    return stream(seed, *names).integers(2**62, size=4).tolist()


def test_the_same_seed_and_names_draw_the_same():
    assert drawn(3, "a", "b") == drawn(3, "a", "b") == drawn(np.int64(3), "a", "b")


def test_any_other_seed_or_name_draws_another():
    streams = [
        drawn(0), drawn(1), drawn(2**70), drawn(0, "a"), drawn(0, "b"), drawn(0, "a", "b"),
        drawn(0, "b", "a"), drawn(0, "ab"), drawn(0, "a", ""),
    ]  # fmt: skip
    assert len({tuple(each) for each in streams}) == len(streams)


def test_global_generators_are_left_alone():
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    drawn(0, "a")
    assert np.random.get_state()[1].tolist() == before[0]  # noqa: NPY002
    assert torch.get_rng_state().tolist() == before[1]


@pytest.mark.parametrize("seed", [-1, 1.0, "1", None, True])
def test_refuses(seed):
    with pytest.raises(InputError, match="seed"):
        stream(seed, "a")
