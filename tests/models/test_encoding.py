"""Sequence models as recommenders: users recomputed from attacked items, or fixed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from robustcf import Recommender, Threat, certify, measure
from robustcf.data import Interactions, checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.encoding import Encoded, Encoder

SPLIT = checkerboard(20, 30)
PAIRS = SPLIT.train_full
ITEMS = Threat(side="items", unit="relative")


def parts(seed: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A small network of the last three items, an item table by parity, and the inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        noise = torch.randn(30, 4, dtype=torch.float64)
    table = torch.eye(4, dtype=torch.float64)[torch.arange(30) % 2] + 0.2 * noise
    last = np.stack([PAIRS.items[PAIRS.users == user][-3:] for user in range(20)])
    return net, table, torch.from_numpy(last)


def model(seed: int) -> Recommender:
    net, table, last = parts(seed)

    def encode(V: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return V[ids].mean(dim=1) + 0.1 * net(V[ids].mean(dim=1))

    scorer = Encoded(encode, table, last, PAIRS, block=7)
    return Recommender.of(scorer, SPLIT, fit_on="train and valid")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_pull_is_the_gradient_through_the_users(seed: int) -> None:
    recommender = model(seed)
    histories, arrays = recommender.histories, recommender.arrays
    generator = torch.Generator().manual_seed(seed)
    to_users, to_items = (torch.randn(n, 4, generator=generator).double() for n in (20, 30))

    def value(V: torch.Tensor) -> torch.Tensor:
        users = histories.factors(Factors(V[:0], V)).users
        return (users * to_users).sum() + (V * to_items).sum()

    empty, got = histories.pull(arrays, to_users, to_items)
    assert empty.shape == (0, 4)
    V, step = arrays.items, 1e-6 * torch.randn(30, 4, generator=generator).double()
    difference = float(value(V + step) - value(V - step)) / 2
    assert difference == pytest.approx(float((got * step).sum()), rel=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_attacks_move_the_users_with_the_items(seed: int) -> None:
    recommender = model(seed)
    fixed = recommender.serving("stored")
    sizes = [0, 0.3, 0.6]
    both = [measure(m, "fgm-softmax", ITEMS, sizes, ks=[10]) for m in (recommender, fixed)]
    recomputed, stored = (result.curve["ndcg@10"] for result in both)
    assert recomputed[0] == stored[0] == recommender.evaluate(ks=(10,))["ndcg@10"] > 0.4
    assert recomputed[2] < recomputed[0]
    # The recomputed users serve with the attacked table.
    attacked = recommender.histories.factors(
        Factors(recommender.arrays.users, 2 * fixed.factors.items)
    )
    assert not torch.allclose(attacked.users, fixed.factors.users)


def test_fixed_users_are_certified_and_saved_and_recomputed_ones_say_why_not(tmp_path) -> None:
    recommender = model(0)
    fixed = recommender.serving("stored")
    bound = certify(fixed, [0, 0.01], threat=ITEMS, ks=[10]).curve["ndcg@10"]
    attacked = measure(fixed, "fgm-softmax", ITEMS, [0, 0.01], ks=[10]).curve["ndcg@10"]
    assert bound[1] <= attacked[1]
    fixed.save(tmp_path / "fixed")
    assert (
        recommender.recommend(0, k=3)["item"].tolist() == fixed.recommend(0, k=3)["item"].tolist()
    )
    for refused, word in (
        (lambda: certify(recommender, [0, 0.01], threat=ITEMS), "serving"),
        (lambda: recommender.save(tmp_path / "no"), "serving"),
        (lambda: recommender.recommend(items=[1]), "order"),
    ):
        with pytest.raises(InputError, match=word):
            refused()
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("encode", "inputs", "word"),
    [
        (lambda V, ids: V[ids[:, 0]], torch.zeros(19, 1, dtype=torch.int64), "20 users"),
        (lambda V, ids: V[ids[:, 0], :2], torch.zeros(20, 1, dtype=torch.int64), "4 numbers"),
        (lambda V, ids: V[ids[:, 0]] / 0, torch.zeros(20, 1, dtype=torch.int64), "finite"),
    ],
)
def test_wrong_encoders(encode, inputs, word) -> None:
    with pytest.raises(InputError, match=word):
        Encoded(encode, torch.ones(30, 4), inputs, PAIRS)


def test_a_history_of_no_user() -> None:
    pairs = Interactions.from_pairs([], [], 0, 3)[0]
    found = Encoder(lambda V, ids: V[ids], torch.zeros(0, dtype=torch.int64), pairs)
    assert found.factors(Factors(torch.eye(3)[:0], torch.eye(3))).users.shape == (0, 3)
