"""Factors check what they are given, once, at the door."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.errors import InputError
from robustcf.factors import Factors, as_tensor, read_fixed


@pytest.mark.parametrize(
    ("users", "items", "message"),
    [
        ([[1.0]], torch.ones(2, 2), "users must be a tensor or a numpy array of numbers, got list"),
        (torch.ones(2, 2), None, "items must be a tensor or a numpy array of numbers, got NoneTyp"),
        (torch.ones(2), torch.ones(2, 2), "floating-point matrix"),
        (torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2), "floating-point matrix"),
        (torch.ones(2, 3), torch.ones(2, 2), "same number of columns, got 3 and 2"),
        (torch.ones(2, 2, dtype=torch.float64), torch.ones(2, 2), "share dtype and device"),
        (np.ones((2, 2)), torch.ones(2, 2), "share dtype and device, got torch.float64 on cpu"),
        (np.ones(2), np.ones((2, 2)), r"users must be a floating-point matrix, .* shape \(2,\)"),
        (np.ones((2, 2)), np.ones((2, 2, 2)), "items must be a floating-point matrix"),
        (np.ones(()), np.ones((2, 2)), "users must be a floating-point matrix"),
    ],
)
def test_bad_factors(users, items, message):
    with pytest.raises(InputError, match=message):
        Factors(users, items)


def test_unpacks_and_describes_itself():
    U, V = torch.ones(3, 2), torch.zeros(4, 2)
    factors = Factors(U, V)
    assert next(iter(factors)) is U
    assert repr(factors) == "Factors(3 users x 4 items, dim 2, float32)"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("side", ["users", "items"])
def test_the_first_row_that_is_not_finite_is_named(side, value):
    parts = {"users": torch.ones(5, 2), "items": torch.ones(6, 2)}
    parts[side][3, 1] = parts[side][4, 0] = value
    with pytest.raises(InputError, match=rf"{side} must be finite, got {value} in row 3 \(2 such"):
        Factors(**parts).check_finite()


# --- numpy ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float16, torch.float16), (np.float32, torch.float32), (np.float64, torch.float64),
        (">f2", torch.float16), (">f4", torch.float32), (">f8", torch.float64),
        ("<f4", torch.float32),
    ],
)  # fmt: skip
def test_numpy_arrays_of_every_precision_and_byte_order(given, expected):
    users = np.arange(6).reshape(3, 2).astype(given)
    factors = Factors(users, np.ones((4, 2), dtype=given))
    assert factors.users.dtype == factors.items.dtype == expected
    assert factors.users.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (factors.n_users, factors.n_items, factors.dim) == (3, 4, 2)


def test_plain_numpy_arrays_are_not_copied():
    users = np.zeros((3, 2), dtype=np.float32)
    factors = Factors(users, np.ones((4, 2), dtype=np.float32))
    users[1, 1] = 7.0
    assert float(factors.users[1, 1]) == 7.0


def test_arrays_that_may_not_be_written_to_are_copied():
    """Torch would warn of them, and writing to the factors must not change them."""
    users = np.zeros((3, 2), dtype=np.float32)
    users.flags.writeable = False
    factors = Factors(users, np.ones((4, 2), dtype=np.float32))
    factors.users[0, 0] = 5.0
    assert users[0, 0] == 0.0
    frozen = np.frombuffer(np.ones(4).tobytes()).reshape(2, 2)
    assert Factors(frozen, frozen).users.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T, lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: a[::2, ::2],
        lambda a: np.asfortranarray(a), lambda a: np.broadcast_to(a[0], a.shape),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["<f4", ">f8"])
def test_views_of_any_layout(view, kind):
    base = np.arange(36).reshape(6, 6).astype(kind)
    given = view(base)
    factors = Factors(given, np.ones((2, given.shape[1])).astype(kind))
    np.testing.assert_array_equal(factors.users.numpy(), given.astype(np.float64))


@pytest.mark.parametrize("kind", ["i1", "i8", ">i4", "u1", "u8"])
def test_integers_are_refused(kind):
    with pytest.raises(InputError, match="floating-point"):
        Factors(np.ones((2, 2), dtype=kind), np.ones((2, 2), dtype=kind))


@pytest.mark.parametrize("kind", ["?", "c8", "c16", "O", "U3", "S3", "M8[s]", "m8[s]", "g"])
def test_what_is_no_number_or_too_wide_is_refused(kind):
    if kind == "g" and np.dtype("g").itemsize == 8:
        pytest.skip("long double is double on this machine")
    array = np.zeros((2, 2), dtype=kind)
    with pytest.raises(InputError, match="numbers"):
        Factors(array, np.ones((2, 2)))


def test_a_tensor_stays_what_it_is():
    tensor = torch.ones(2, 2, requires_grad=True)
    assert as_tensor("users", tensor) is tensor
    assert Factors(tensor, tensor).items is tensor


def test_empty_factors_are_factors():
    factors = Factors(np.zeros((0, 3)), np.zeros((4, 3)))
    assert (factors.n_users, factors.n_items, factors.dim) == (0, 4, 3)
    factors.check_finite()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_found_and_sums_that_overflow_are_none(dtype, bad):
    largest = torch.finfo(dtype).max
    users = torch.full((4, 3), largest, dtype=dtype)
    Factors(users, -users).check_finite()
    spoilt = users.clone()
    spoilt[2, 1] = bad
    for pair in (Factors(spoilt, users), Factors(users, spoilt)):
        with pytest.raises(InputError, match=f"got {bad} in row 2"):
            pair.check_finite()


@pytest.mark.parametrize("wrong", ["[1.5]", "nothing", '"a"'])
def test_fixed_columns_are_a_list_of_numbers(wrong):
    with pytest.raises(InputError, match="fixed columns"):
        read_fixed({"fixed": wrong}, "here")
