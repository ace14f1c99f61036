"""Factors check what they are given, once, at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.errors import InputError
from robustcf.factors import Factors


@pytest.mark.parametrize(
    ("users", "items", "message"),
    [
        (np.ones((2, 2)), torch.ones(2, 2), "torch tensor, got ndarray"),
        (torch.ones(2), torch.ones(2, 2), "floating-point matrix"),
        (torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2), "floating-point matrix"),
        (torch.ones(2, 3), torch.ones(2, 2), "same number of columns, got 3 and 2"),
        (torch.ones(2, 2, dtype=torch.float64), torch.ones(2, 2), "share dtype and device"),
    ],
)
def test_bad_factors(users: Any, items: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Factors(users, items)


def test_unpacks_and_describes_itself() -> None:
    U, V = torch.ones(3, 2), torch.zeros(4, 2)
    factors = Factors(U, V)
    assert next(iter(factors)) is U
    assert repr(factors) == "Factors(3 users x 4 items, dim 2, float32)"


def test_large_finite_values_are_finite() -> None:
    # Their sum overflows float32, not the check.
    Factors(torch.full((4, 4), 3e38), torch.ones(1, 4)).check_finite()
