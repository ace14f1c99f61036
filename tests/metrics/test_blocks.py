"""Reproducibility: block sizes change no bit of metrics, rankings and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Split
from robustcf.factors import Factors
from robustcf.metrics import evaluate, top_items
from robustcf.models.voting import PartitionVote, VoteConfig
from robustcf.poisoning.exposure import exposure
from robustcf.recommender import Recommender
from robustcf.robustness import certify

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
# Modules that take users in blocks.
USER_BLOCKS = ("metrics.evaluate", "attacks.certificates.bounds", "poisoning.exposure")
VOTE_BLOCKS = ("voters._BLOCK", "voters._GROUP_BLOCK", "certificate._BLOCK")


def small_split(seed: int, n_users: int, n_items: int) -> Split:
    rng = np.random.default_rng(seed)
    has = rng.random((n_users, n_items)) < 0.2
    has[np.arange(n_users), rng.integers(n_items, size=n_users)] = True
    test = has & (rng.random(has.shape) < 0.3)
    test[~(has & ~test).any(axis=1)] = False
    return Split.from_csr(has & ~test, test=test)


def world(seed: int) -> tuple[Factors, Split]:
    """Factors in three scales, some of them small whole numbers, for ties."""
    rng = np.random.default_rng(seed)
    split = small_split(seed, 120, 90)
    U, V = rng.standard_normal((120, 9)), rng.standard_normal((90, 9))
    V[::3] = rng.integers(-2, 3, size=V[::3].shape)
    U[::2] = rng.integers(-2, 3, size=U[::2].shape)
    V[1::3] *= 100.0
    return Factors(torch.tensor(U).float(), torch.tensor(V).float()), split


def limited(monkeypatch: pytest.MonkeyPatch, limit: int) -> list[int]:
    """Limit the blocks of rankings; return the numbers of users in them."""
    seen: list[int] = []
    blocks = import_module("robustcf.metrics.evaluate").user_blocks

    def user_blocks(users: Any, places: int, _: int = 0) -> Any:
        found = blocks(users, places, limit)
        seen.extend(len(block) for block in found)
        return found

    for name in USER_BLOCKS:
        monkeypatch.setattr(import_module(f"robustcf.{name}"), "user_blocks", user_blocks)
    return seen


def same(one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    """The same names, and the same bits under each."""
    assert list(one) == list(two)
    for name, values in one.items():
        assert np.asarray(values).tobytes() == np.asarray(two[name]).tobytes(), name


def under_limits(
    monkeypatch: pytest.MonkeyPatch,
    found: Callable[[], Mapping[str, Any]],
    n_users: int,
    limits: tuple[int, ...] = (1, 3_000, 10**9),
) -> None:
    """Blocks of any length give the same bits as the default blocks."""
    expected = found()
    lengths = set()
    for limit in limits:
        with monkeypatch.context() as patch:
            seen = limited(patch, limit)
            same(found(), expected)
            lengths.add(max(seen))
    assert min(lengths) == 1
    assert max(lengths) > n_users // 2


@pytest.mark.parametrize("seed", SEEDS)
def test_metrics_do_not_depend_on_blocks_and_threads(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors, split = world(seed)
    expected = evaluate(factors, split, (5, 20))
    threads = torch.get_num_threads()
    for block_users, count in ((7, 1), (61, 2), (999, 1), (10**6, 2)):
        torch.set_num_threads(count)
        try:
            found = evaluate(factors, split, (5, 20), block_users=block_users)
        finally:
            torch.set_num_threads(threads)
        same(found.values, expected.values)
        same(found.per_user, expected.per_user)

    def metrics() -> dict[str, Any]:
        found = evaluate(factors, split, (5, 20))
        return {**found.values, **{f"{name} of each": v for name, v in found.per_user.items()}}

    under_limits(monkeypatch, metrics, split.n_users)


@pytest.mark.parametrize("seed", SEEDS)
def test_rankings_do_not_depend_on_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    factors, split = world(seed)
    topk = import_module("robustcf.metrics.topk")
    users = np.random.default_rng(seed).permutation(split.n_users)[:90]
    model = Recommender(factors.users, factors.items, split)
    expected = top_items(factors, users, 30, split.train)
    names = model.user_labels[users].tolist() if model.user_labels is not None else users.tolist()
    table = model.recommend(names, k=30)
    for block_users in (1, 13, 89):
        found = top_items(factors, users, 30, split.train, block_users=block_users)
        assert np.array_equal(found, expected)
    for size in (1, 17, 10**6):
        monkeypatch.setattr(topk, "_MOST_USERS", size)
        assert np.array_equal(top_items(factors, users, 30, split.train), expected)
        assert model.recommend(names, k=30).equals(table)
    # One user at a time.
    alone = [top_items(factors, [user], 30, split.train)[0] for user in users.tolist()]
    assert np.array_equal(np.array(alone), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_certificates_do_not_depend_on_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((60, 4)), rng.standard_normal((40, 4))
    model = Recommender(*factors, small_split(seed, 60, 40))

    def bounds() -> dict[str, Any]:
        curve = certify(model, (0.0, 0.01, 0.05)).curve
        return {name: curve[name] for name in ("ndcg@10", "recall@20")}

    under_limits(monkeypatch, bounds, 60, (1, 500, 10**9))


@pytest.mark.parametrize("seed", SEEDS)
def test_exposure_does_not_depend_on_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    factors, split = world(seed)
    targets = np.array([3, 50, 89])
    under_limits(
        monkeypatch, lambda: exposure(factors, split, targets, (10, 50)).values, split.n_users
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "config",
    [
        VoteConfig(cap=0.15, damping=0.3),
        VoteConfig(groups=6, votes=4),
        VoteConfig(groups=6, votes=4, base="knn"),
    ],
    ids=["accounts", "ridge", "knn"],
)
def test_votes_do_not_depend_on_blocks(
    seed: int, config: VoteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = small_split(seed, 24, 16)

    def found() -> dict[str, Any]:
        vote = PartitionVote(split.train, config)
        top = vote.top(np.arange(24), 10, split.train)
        certified = vote.certify_fakes(split, [0, 1, 3], (5, 10))
        return {
            "items": top.items,
            "scores": top.scores,
            **vote.evaluate(split, (5, 10)).per_user,
            **{f"certified {name}": values for name, values in certified.per_user.items()},
        }

    expected = found()
    for size in (1, 60, 1 << 30):
        for name in VOTE_BLOCKS:
            monkeypatch.setattr(f"robustcf.models.voting.{name}", size)
        same(found(), expected)
