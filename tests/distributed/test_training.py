"""What single ranks of a training do: who writes, and what is noticed."""

from __future__ import annotations

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


def test_only_the_first_rank_writes_a_run(tmp_path, monkeypatch):
    trained = fit_split(checkerboard(), TrainConfig.of(model="bpr-mf", factors=2, epochs=1))
    monkeypatch.setattr(run_module, "_collected", lambda trained: (None, None, 0.0))
    written = RunDir.__new__(RunDir)
    written.path = tmp_path
    with pytest.raises(InputError, match="written"):
        written.write(trained)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("other", "word"), [("items", "copies"), ("users", "epoch")])
def test_ranks_that_come_apart_or_diverge_are_noticed(other, word):
    """One rank starts from other items, or from users that are not numbers."""
    pairs = checkerboard().train

    def work(ranks: Ranks) -> None:
        shard = Shard.of(pairs, ranks)
        users, items = torch.ones(shard.pairs.n_users, 2), torch.ones(pairs.n_items, 2)
        if ranks.rank and other == "items":
            items += 1e-3
        elif ranks.rank:
            users *= torch.nan
        model = UltraGCN(shard.pairs, start=Factors(users, items), shard=shard, factors=2)
        fit(model, Batches(Softmax(shard.pairs, shard=shard)), Stop(1))

    with pytest.raises(TrainingError, match=word):
        on_threads(2, work)
