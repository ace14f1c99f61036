"""Checkpoints of several ranks: what one process writes, for any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robustcf._distributed import Ranks, Rows
from robustcf._io.files import CheckpointFiles
from robustcf.data import checkerboard
from robustcf.data.interactions import Interactions
from robustcf.data.shards import Shard, SplitShard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from robustcf.models import ALS, BPRMF, EASE, Popularity, SoftmaxMF, UltraGCN
from robustcf.models.gauge import Gauge, shrink
from robustcf.objectives import BPR, BatchConfig, Batches, Softmax
from robustcf.training.checkpoints import SharedCheckpoint
from tests.distributed.threads import on_threads

WHOLE = {
    "users": torch.arange(14.0).reshape(7, 2),
    "best.users": torch.arange(14.0).reshape(7, 2) + 1,
    "adam.users.steps": torch.arange(7),
    "items": torch.ones(3, 2),
    "reg.calls": torch.tensor(4),
}


def parts(rows: Rows) -> dict[str, torch.Tensor]:
    mine = slice(rows.start, rows.stop)
    return {name: each[mine] if "users" in name else each for name, each in WHOLE.items()}


def shared(ranks: Ranks, folder: Path, n_users: int = 7, every: float = 0.0) -> SharedCheckpoint:
    kept = CheckpointFiles(folder, every) if ranks.first else None
    return SharedCheckpoint(kept, Rows.of(n_users, ranks))


@pytest.mark.parametrize("writers", [1, 2, 5, 9])
@pytest.mark.parametrize("readers", [2, 3, 9])
def test_any_number_of_ranks_goes_on(writers: int, readers: int, tmp_path: Path) -> None:
    def write(ranks: Ranks) -> None:
        rows = Rows.of(7, ranks)
        shared(ranks, tmp_path).save("fit", parts(rows), {"epoch": 2}, final=False)

    def read(ranks: Ranks) -> Any:
        return Rows.of(7, ranks), shared(ranks, tmp_path).load("fit")

    on_threads(writers, write)
    # The file is that of one process.
    tensors, facts = CheckpointFiles(tmp_path, 0.0).load("fit") or ({}, {})
    assert facts == {"epoch": 2}
    assert all(torch.equal(tensors[name], tensor) for name, tensor in WHOLE.items())
    for rows, (found, state) in on_threads(readers, read):
        assert state == {"epoch": 2}
        for name, tensor in parts(rows).items():
            assert torch.equal(found[name], tensor), name


def test_the_first_rank_says_when(tmp_path: Path) -> None:
    def write(ranks: Ranks) -> None:
        rows = Rows.of(7, ranks)
        slow = shared(ranks, tmp_path, every=1000.0)
        assert slow.load("fit") is None
        slow.save("fit", parts(rows), {}, final=False)
        assert not list(tmp_path.iterdir())
        slow.save("fit", parts(rows), {}, final=True)

    on_threads(2, write)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.fit.safetensors"]


def test_a_checkpoint_of_other_users_is_refused(tmp_path: Path) -> None:
    CheckpointFiles(tmp_path, 0.0).save("fit", WHOLE, {}, final=True)

    with pytest.raises(InputError, match="tensor"):
        on_threads(2, lambda ranks: shared(ranks, tmp_path, n_users=8).load("fit"))


# --- shards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 25])
def test_a_shard_knows_of_all_users(size: int) -> None:
    train = checkerboard().train

    def asked(ranks: Ranks) -> Shard:
        shard = Shard.of(train, ranks)
        _ = shard.item_degrees, shard.warm_users
        return shard

    for shard in on_threads(size, asked):
        np.testing.assert_array_equal(shard.item_degrees, train.item_degrees)
        np.testing.assert_array_equal(shard.warm_users, np.flatnonzero(train.user_degrees))
        assert shard.n_pairs == len(train)
        assert shard.first_pair == train.indptr[shard.rows.start]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_behind_users_without_pairs_train_their_own_rows(size: int) -> None:
    dense = np.random.default_rng(size).random((10, 6)) < 0.4
    dense[:5] = False
    dense[5:, 0] = True
    train = Interactions.from_csr(dense.astype(int))
    generator = torch.Generator().manual_seed(size)
    U, V = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (10, 6))
    expected = Softmax(train).full_gradient(U, V)
    how = BatchConfig("pairs", batch_size=4)

    def work(ranks: Ranks) -> Any:
        shard = Shard.of(train, ranks)
        rows = shard.rows
        visited = [
            (user + rows.start, item)
            for batch in Batches(BPR(shard.pairs, shard=shard), how, seed=1).epoch(0)
            for user, item in zip(batch.users.tolist(), batch.items.tolist(), strict=True)
        ]
        softmax = Softmax(shard.pairs, shard=shard)
        return visited, softmax.full_gradient(U[rows.start : rows.stop], V)

    found = on_threads(size, work)
    visited = sorted(pair for pairs, _ in found for pair in pairs)
    assert visited == list(map(tuple, np.argwhere(dense).tolist()))
    torch.testing.assert_close(torch.cat([part.users for _, part in found]), expected.users)


@pytest.mark.parametrize("size", [2, 3, 25])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_evaluate_to_the_bit(size: int, seed: int) -> None:
    split = checkerboard()
    generator = torch.Generator().manual_seed(seed)
    U, V = (torch.randn(n, 3, generator=generator) for n in (split.n_users, split.n_items))
    whole = evaluate(Factors(U, V), split, (3, 10))

    def work(ranks: Ranks) -> Any:
        rows = Rows.of(split.n_users, ranks)
        return evaluate(Factors(U[rows.start : rows.stop], V), SplitShard(split, rows), (3, 10))

    for report in on_threads(size, work):
        assert report.values == whole.values
        assert report.protocol == whole.protocol
        np.testing.assert_array_equal(report.users, whole.users)
        for name, values in whole.per_user.items():
            np.testing.assert_array_equal(report.per_user[name], values)


@pytest.mark.parametrize("size", [2, 3, 25])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (UltraGCN, {"init": "normal"}),
        (UltraGCN, {"init": "spectral"}),
        (BPRMF, {"init": "smooth"}),
        (SoftmaxMF, {"init": "normal"}),
        (SoftmaxMF, {"init": "smooth"}),
        (ALS, {}),
        (EASE, {}),
        (Popularity, {}),
    ],
)
@pytest.mark.slow
def test_ranks_start_where_one_process_starts(size: int, kind: Any, settings: Any) -> None:
    # Four tastes and no two singular values alike: the start has one answer.
    rng = np.random.default_rng(size)
    dense = rng.random((40, 25)) < rng.random((40, 1)) * rng.random((1, 25))
    dense |= (np.arange(40)[:, None] // 10 == np.arange(25) // 7) & (rng.random((40, 25)) < 0.5)
    dense[4] = False
    train = Interactions.from_csr(dense.astype(int))
    options = {"seed": 1, **({} if kind is Popularity else {"factors": 4}), **settings}
    expected = kind(train, **options).factors()

    def work(ranks: Ranks) -> Factors:
        shard = Shard.of(train, ranks)
        return kind(shard.pairs, shard=shard, **options).factors()

    found = on_threads(size, work)
    users = torch.cat([part.users for part in found])
    # Singular vectors have no sign of their own: scores do.
    torch.testing.assert_close(
        users @ found[0].items.T, expected.users @ expected.items.T, atol=2e-4, rtol=2e-4
    )


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_ranks_find_the_gauge_of_one_process(size: int, share: float) -> None:
    generator = torch.Generator().manual_seed(size)
    U, V = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (7, 9))
    whole = shrink(Gauge.balanced(U, V).apply(Factors(U, V)), share)

    def work(ranks: Ranks) -> Factors:
        rows = Rows.of(7, ranks)
        part = Factors(U[rows.start : rows.stop], V)
        return shrink(Gauge.balanced(part.users, V, rows).apply(part), share, rows)

    found = on_threads(size, work)
    users = torch.cat([part.users for part in found])
    torch.testing.assert_close(users @ found[0].items.T, whole.users @ whole.items.T)
    torch.testing.assert_close(users.abs(), whole.users.abs())
