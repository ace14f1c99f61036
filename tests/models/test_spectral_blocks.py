"""The matrix behind the spectral start is the same however few pairs are looked at once."""

from __future__ import annotations

import numpy as np
import pytest

from robustcf.data import interactions, load
from robustcf.models import spectral


@pytest.mark.parametrize("most", [1, 100, 1 << 22])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_do_not_depend_on_blocks(seed, most, monkeypatch):
    monkeypatch.setattr(spectral, "user_ranges", lambda p: interactions.user_ranges(p, most))
    train = load("demo", seed=seed).train.between(100, 400)
    found = spectral._normalized(train, train.item_degrees)
    dense = train.csr().toarray().astype(np.float64)
    rows, columns = dense.sum(1, keepdims=True), dense.sum(0, keepdims=True)
    expected = (dense / np.sqrt(np.maximum(rows * columns, 1))).astype(np.float32)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
    assert np.shares_memory(found.indices, train.items), "the items were copied"
