"""Quantization against rounding by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import evaluate
from robustcf.recommender import Recommender
from robustcf.robustness import quantization_table, quantize
from robustcf.robustness.quantization import KINDS

BOARD = checkerboard()


def with_bias(factors, seed):
    """The factors with a bias of items, a thousand times the embedding, as the first column."""
    bias = 1000 * torch.randn(30, 1, generator=torch.Generator().manual_seed(seed))
    users = torch.cat([torch.ones(20, 1), factors.users], dim=1)
    return Factors(users, torch.cat([bias, factors.items], dim=1))


def factors_of(seed: int, dtype=torch.float32) -> Factors:
    g = torch.Generator().manual_seed(seed)
    U, V = (3.0 * torch.randn(n, 5, generator=g, dtype=dtype) for n in (20, 30))
    U[4] = 0.0
    return Factors(U, V)


def by_hand(array: np.ndarray, kind: str) -> np.ndarray:
    if kind == "float32":
        return array.astype(np.float32)
    if kind == "float16":
        return array.astype(np.float16).astype(np.float32)
    if kind == "bfloat16":  # the upper 16 bits of a float32, to the nearest, ties to even
        bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.astype(np.uint32).view(np.float32)
    out = np.zeros_like(array)
    for n, row in enumerate(array):
        step = max(abs(float(x)) for x in row) / {"int8": 127, "int4": 7}[kind]
        if step > 0:
            out[n] = [round(float(x) / step) * step for x in row]
    return out


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", [*KINDS, "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_rounding_by_hand(kind, seed, dtype):
    factors = factors_of(seed, dtype)
    got = quantize(factors, kind)
    for before, after in zip(factors, got, strict=True):
        assert after.dtype == before.dtype
        np.testing.assert_allclose(after.numpy(), by_hand(before.numpy(), kind), rtol=1e-7, atol=0)
    again = quantize(got, kind)
    torch.testing.assert_close(again.users, got.users, rtol=1e-6, atol=0)


def test_the_table_tells_metrics_and_sizes():
    factors = factors_of(0)
    table = quantization_table(Recommender(*factors, BOARD), (5,))
    assert [row.kind for row in table] == list(KINDS)
    assert table[0].absolute == {"users": 0.0, "items": 0.0}
    for row in table:
        rounded = quantize(factors, row.kind)
        assert row.metrics.values == evaluate(rounded, BOARD, (5,)).values
        norms = np.linalg.norm((rounded.items - factors.items).double().numpy(), axis=1)
        assert row.absolute["items"] == pytest.approx(norms.max())
        unit = np.sort(np.linalg.norm(factors.items.double().numpy(), axis=1))[14]
        assert row.relative["items"] == pytest.approx(norms.max() / unit, rel=1e-6)
        assert row.as_dict()["realised"] == row.absolute
    zero = Factors(torch.zeros(20, 2), torch.ones(30, 2))
    assert quantization_table(Recommender(*zero, BOARD))[0].relative == {
        "users": None,
        "items": 0.0,
    }


def test_bad_input():
    factors = factors_of(0)
    with pytest.raises(InputError, match="bfloat"):
        quantize(factors, "int2")
    with pytest.raises(InputError, match="entries"):
        quantize(Factors(1e5 * factors.users, factors.items), "float16")
    spoilt = Factors(factors.users, torch.full((30, 5), float("nan")))
    with pytest.raises(InputError, match="items"):
        quantize(spoilt, "int8")
    with pytest.raises(InputError, match="different"):
        quantization_table(Recommender(factors.items, factors.items, BOARD))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", [*KINDS, "int4"])
def test_fixed_columns_are_kept_and_count_in_no_scale(kind, seed):
    """The bias would leave int8 one level for the rest."""
    factors = factors_of(seed)
    wide = with_bias(factors, seed)
    got, alone = quantize(wide, kind, fixed=(0,)), quantize(factors, kind)
    assert torch.equal(got.users[:, 1:], alone.users)
    assert torch.equal(got.items[:, 1:], alone.items)
    for items in (got.items, wide.items):
        assert torch.equal(items[:, 0], with_bias(factors, seed).items[:, 0])


def test_the_table_keeps_fixed_columns():
    factors = factors_of(0)
    wide = with_bias(factors, 1)
    held = quantization_table(Recommender(*wide, BOARD, fixed=(0,)))
    plain = quantization_table(Recommender(*factors, BOARD))
    for one, other in zip(held, plain, strict=True):
        assert (one.absolute, one.relative) == (other.absolute, other.relative)
    assert held[0].metrics.values == evaluate(wide, BOARD).values
