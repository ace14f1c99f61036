"""Exposure against a naive count."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.poisoning import exposure
from tests.poisoning.conftest import N_ITEMS, N_USERS, small_split


def naive(U, V, split, targets, k, masked):
    """Hit rate, NDCG and share by loops over users and places."""

    def owned(parts):
        return [
            {i for part in parts for i in getattr(split, part).items_of(u).tolist()}
            for u in range(N_USERS)
        ]

    has, seen = owned(("train", "valid", "test")), owned(masked)
    hits, gains, population, taken, filled = 0, 0.0, 0, 0, 0
    single = {t: [0, 0] for t in targets}
    lacking, alone = {t: sum(t not in each for each in has) for t in targets}, 0.0
    for u in range(N_USERS):
        scores = {i: float(U[u] @ V[i]) for i in range(N_ITEMS) if i not in seen[u]}
        top = sorted(scores, key=lambda i: (-scores[i], i))[:k]
        lacked = [t for t in targets if t not in has[u]]
        filled += len(top)
        taken += sum(i in lacked for i in top)
        for t in lacked:
            single[t][0] += t in top
            alone += 1 / math.log2(top.index(t) + 2) / lacking[t] if t in top else 0
            single[t][1] += 1
        if not lacked:
            continue
        population += 1
        hits += any(i in lacked for i in top)
        gain = sum(1 / math.log2(place + 2) for place, i in enumerate(top) if i in lacked)
        best = sum(1 / math.log2(place + 2) for place in range(min(k, len(lacked))))
        gains += gain / best
    rates = {"hit_rate": hits / population, "ndcg": gains / population, "share": taken / filled}
    rates |= {"t_ndcg": alone / len(targets)}
    rates |= {"t_hr": sum(a / b for a, b in single.values()) / len(targets)}
    values = {f"{name}@{k}": value for name, value in rates.items()}
    return values, [a / b for a, b in single.values()], population


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fakes", [0, 5])
def test_exposure_is_a_naive_count(seed, fakes):
    split = small_split(seed)
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(N_USERS + fakes, 3)), rng.normal(size=(N_ITEMS, 3))
    targets = sorted(rng.choice(N_ITEMS, 4, replace=False).tolist())
    found = exposure(Factors(torch.tensor(U), torch.tensor(V)), split, targets, (3, 10, 60))
    for k in (3, 10, 60):
        values, single, population = naive(U, V, split, targets, k, split.masked("test"))
        for name, value in values.items():
            assert found[name] == pytest.approx(value, abs=1e-12), name
        assert found.by_target[k] == pytest.approx(single, abs=1e-12)
        assert found.n_users == population
    assert found.as_dict()["by_target"]["hit_rate@3"] == found.by_target[3]


def test_targets_in_any_order_and_users_who_have_them_all():
    split = Split.from_csr(np.array([[1, 0, 0, 0], [1, 0, 0, 0]]))
    factors = Factors(torch.ones(2, 1), torch.tensor([[0.0], [1.0], [3.0], [2.0]]))
    for targets in ([1, 2, 3], [3, 2, 1], [2, 1, 2, 3]):
        assert exposure(factors, split, targets, ks=(1,)).by_target == {1: [0.0, 1.0, 0.0]}
    split = Split.from_csr(np.array([[1, 1, 0], [0, 0, 1]]), test=np.array([[0, 0, 1], [1, 1, 0]]))
    found = exposure(Factors(torch.ones(2, 1), torch.ones(3, 1)), split, [0, 1], ks=(2,))
    assert found.n_users == 0
    assert set(found.values.values()) == {0.0}


@pytest.mark.parametrize(
    ("n_users", "targets", "word"),
    [
        (N_USERS, [], "at least one"),
        (N_USERS, [40], "to 40"),
        (N_USERS, [-1], "-1"),
        (N_USERS, [0.5], "ids"),
        (3, [0], "different data"),
    ],
)
def test_unknown_targets_and_factors_of_other_data_are_refused(split, n_users, targets, word):
    with pytest.raises(InputError, match=word):
        exposure(Factors(torch.ones(n_users, 1), torch.ones(N_ITEMS, 1)), split, targets)
    with pytest.raises(InputError, match="hits"):
        exposure(Factors(torch.ones(N_USERS, 1), torch.ones(N_ITEMS, 1)), split, [0])["hits"]
