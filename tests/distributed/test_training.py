"""What single ranks of a training do: who writes, and what is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from robustcf._distributed import Ranks
from robustcf.data import checkerboard
from robustcf.data.shards import Shard
from robustcf.errors import InputError, TrainingError
from robustcf.experiments import RunDir
from robustcf.experiments import run as run_module
from robustcf.factors import Factors
from robustcf.models import UltraGCN
from robustcf.objectives import Batches, Softmax
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from robustcf.training.loop import Stop, fit
from tests.distributed.threads import on_threads


def test_only_the_first_rank_writes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = fit_split(checkerboard(), TrainConfig.of(model="bpr-mf", dim=2, epochs=1))
    monkeypatch.setattr(run_module, "_collected", lambda trained: (None, None, 0.0))
    written = RunDir.__new__(RunDir)
    written.path = tmp_path
    with pytest.raises(InputError, match="written"):
        written.write(trained)
    assert not list(tmp_path.iterdir())


def test_copies_of_the_items_that_come_apart_are_noticed() -> None:
    pairs = checkerboard().train

    def work(ranks: Ranks) -> None:
        shard = Shard.of(pairs, ranks)
        start = Factors(
            torch.ones(shard.pairs.n_users, 2), torch.ones(pairs.n_items, 2) + 1e-3 * ranks.rank
        )
        model = UltraGCN(shard.pairs, start=start, shard=shard, dim=2)
        fit(model, Batches(Softmax(shard.pairs, shard=shard)), Stop(1))

    with pytest.raises(TrainingError, match="copies"):
        on_threads(2, work)


def test_a_training_that_diverges_on_one_rank_is_an_error_there() -> None:
    pairs = checkerboard().train

    def work(ranks: Ranks) -> None:
        shard = Shard.of(pairs, ranks)
        users = torch.full((shard.pairs.n_users, 2), torch.nan if ranks.rank else 1.0)
        model = UltraGCN(
            shard.pairs, start=Factors(users, torch.ones(pairs.n_items, 2)), shard=shard, dim=2
        )
        fit(model, Batches(Softmax(shard.pairs, shard=shard)), Stop(1))

    with pytest.raises(TrainingError, match="epoch"):
        on_threads(2, work)
