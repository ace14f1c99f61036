"""Short lists give what a ranking of the whole catalogue gives, wherever the factors go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf import _distributed
from robustcf.data import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import shortlist
from robustcf.metrics.shortlist import Shortlists
from robustcf.metrics.topk import near_the_top, top_items

SEEDS = [0, 1, 2]


def factors_of(seed: int, dtype: torch.dtype, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    U = torch.randn(40, 6, generator=generator, dtype=dtype)
    V = torch.randn(900, 6, generator=generator, dtype=dtype)
    if kind == "ties":  # whole numbers: many scores are alike, to the bit
        U, V = U.round(), V.round()
    if kind == "long":  # norms of very different sizes
        V = (
            V
            * torch.logspace(-2, 2, 900, dtype=dtype)[torch.randperm(900, generator=generator)][
                :, None
            ]
        )
    return U, V


def seen_by(seed: int) -> Interactions:
    """Some pairs for everybody; user 3 has seen all but 4 items, user 4 all but 50."""
    rng = np.random.default_rng(seed)
    there = rng.random((40, 900)) < 0.02
    there[3], there[4] = True, True
    there[3, rng.choice(900, 4, replace=False)] = False
    there[4, rng.choice(900, 50, replace=False)] = False
    return Interactions.from_pairs(*np.nonzero(there), 40, 900)[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "ties", "long"])
@pytest.mark.parametrize("step", [0.0, 1e-9, 1e-3, 0.02, 0.3])
def test_they_follow_factors_that_move(
    seed: int, dtype: torch.dtype, kind: str, step: float
) -> None:
    U, V = factors_of(seed, dtype, kind)
    seen = seen_by(seed) if seed else None
    users = np.array([0, 3, 4, 5, 7, 11, 39, 20])
    lists = Shortlists(users, 5, seen)
    generator = torch.Generator().manual_seed(seed + 100)
    for _ in range(12):
        expected = top_items(Factors(U, V), users, 5, seen)
        assert np.array_equal(lists.top(U, V), expected)
        U = U + step * torch.randn(U.shape, generator=generator, dtype=dtype)
        V = V + step * torch.randn(V.shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_item_from_far_down_is_found(seed: int) -> None:
    """A single item leaps to the top, and one user leaps to the other side."""
    U, V = factors_of(seed, torch.float32, "plain")
    users = np.arange(40)
    lists = Shortlists(users, 5, None)
    lists.top(U, V)
    V = V.clone()
    V[int((V @ U[0]).argmin())] = 10 * U[0]
    assert np.array_equal(lists.top(U, V), top_items(Factors(U, V), users, 5))
    U = U.clone()
    U[7] = -U[7]
    assert np.array_equal(lists.top(U, V), top_items(Factors(U, V), users, 5))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(users, places) of each ranking of the whole catalogue."""
    made: list[tuple[int, int]] = []

    def counting(rank: Any) -> Any:
        def top(factors: Factors, users: Any, k: int, *arguments: Any) -> Any:
            made.append((len(users), k))
            return rank(factors, users, k, *arguments)

        return top

    for rank in (top_items, near_the_top):
        monkeypatch.setattr(shortlist, rank.__name__, counting(rank))
    return made


def test_the_catalogue_is_ranked_once_while_steps_are_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = counted(monkeypatch)
    U, V = factors_of(0, torch.float32, "plain")
    lists = Shortlists(np.arange(40), 5, None)
    for _ in range(10):
        lists.top(U, V)
        U = U + 1e-4
    assert made == [(40, 40)]


def test_only_those_in_doubt_are_ranked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    U, V = factors_of(0, torch.float32, "plain")
    lists = Shortlists(np.arange(40), 5, None)
    lists.top(U, V)
    made = counted(monkeypatch)
    U = U.clone()
    U[[3, 9]] *= -1
    lists.top(U, V)
    assert made == [(2, 5)]


def test_lists_are_made_ever_less_often_while_steps_are_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Making them costs more than a ranking; once steps are short, they serve again."""
    made = counted(monkeypatch)
    lists = Shortlists(np.arange(40), 5, None)
    for seed in range(12):
        lists.top(*factors_of(seed, torch.float32, "plain"))
    assert [places for _, places in made] == [40, 5, 40, 5, 5, 5, 40, 5, 5, 5, 5, 5]
    made.clear()
    for _ in range(12):
        lists.top(*factors_of(0, torch.float32, "plain"))
    assert [places for _, places in made] == [5, 5, 40]


@pytest.mark.parametrize("items", [90, 639])
def test_short_catalogues_have_no_lists(items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    U, V = factors_of(0, torch.float32, "plain")
    lists = Shortlists(np.arange(40), 5, None)
    for _ in range(2):
        lists.top(U, V[:items])
    assert made == [(40, 5)] * 2


def test_lists_have_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    monkeypatch.setattr(shortlist, "_LIST_BYTES", 40 * 40 * 4 - 1)
    U, V = factors_of(0, torch.float32, "plain")
    lists = Shortlists(np.arange(40), 5, None)
    for _ in range(2):
        lists.top(U, V)
    assert made == [(40, 5)] * 2


def test_other_factors_are_no_trouble() -> None:
    """Of another shape, another kind of number; and in half precision there are no lists."""
    users = np.arange(30)
    lists = Shortlists(users, 5, None)
    U, V = factors_of(0, torch.float32, "plain")
    cases = [(U, V), (U[:30], V[:800]), (U.double(), V.double()), (U[:, :4], V[:, :4])]
    cases += [(U.half(), V.half()), (U, V)]
    for case in cases:
        assert np.array_equal(lists.top(*case), top_items(Factors(*case), users, 5))


@pytest.mark.parametrize("where", ["users", "items"])
def test_numbers_that_are_not_finite_are_refused(where: str) -> None:
    """Whether these rows are ranked or not."""
    U, V = factors_of(0, torch.float32, "plain")
    lists = Shortlists(np.arange(30), 5, None)
    lists.top(U, V)
    (U if where == "users" else V)[39, 2] = torch.nan
    with pytest.raises(InputError, match="finite"):
        lists.top(U, V)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scales", [(1e-22, 1e-22), (1e-30, 1.0), (3e19, 3e19), (1e-38, 1e-3)])
def test_numbers_at_the_ends_of_float32(seed: int, scales: tuple[float, float]) -> None:
    """Products vanish or overflow in float32; the ranking is that of float64 all the same."""
    U, V = factors_of(seed, torch.float32, "plain")
    U, V = U * scales[0], V * scales[1]
    users = np.arange(40)
    lists = Shortlists(users, 5, None)
    for factor in (1.0, 1.001, 0.999):
        scores = (U * factor).double() @ V.double().T
        expected = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :5]
        assert np.array_equal(top_items(Factors(U * factor, V), users, 5), expected)
        assert np.array_equal(lists.top(U * factor, V), expected)


class OneOf:
    """A rank that sees its own share only."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def share(self, count: int) -> slice:
        return slice(0, count // 3) if self.rank == 0 else slice(count // 3, count)

    def joined_array(self, rows: Any) -> Any:
        return rows


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_share_the_users(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    U, V = factors_of(seed, torch.float32, "plain")
    users = np.arange(40)[::-1].copy()
    lists = [Shortlists(users, 5, None) for _ in range(2)]
    for _ in range(4):
        parts = []
        for rank in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(_distributed, "current", lambda rank=rank: OneOf(rank))
                parts.append(lists[rank].top(U, V))
        assert len(parts[0]) == 13
        assert np.array_equal(np.concatenate(parts), top_items(Factors(U, V), users, 5))
        V = V + 0.01
    # Another team, other users: the lists of before are of no use.
    with monkeypatch.context() as patch:
        patch.setattr(_distributed, "current", lambda: OneOf(1))
        found = lists[0].top(U, V)
    assert np.array_equal(found, top_items(Factors(U, V), users[13:], 5))


def test_nobody_has_no_list() -> None:
    U, V = factors_of(0, torch.float32, "plain")
    assert Shortlists(np.empty(0, dtype=np.int64), 5, None).top(U, V).shape == (0, 5)
