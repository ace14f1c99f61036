"""Every model passes the contract that plug-ins are tested by."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import robustcf
from robustcf.adapters import from_torch
from robustcf.models import MODELS
from robustcf.models.voting import Vote
from robustcf.recommender import Recommender
from robustcf.robustness import harden
from robustcf.testing import ContractError, RecommenderContract, labelled_split

TESTS = [name for name in dir(RecommenderContract) if name.startswith("test_")]
SMALL = {"ease": {"factors": 30}, "als": {"factors": 8}}
SMALL |= {
    name: {} for name in ("popularity", "sparse-ease", "item-knn", "graph-filter", "ensemble")
}


def trained(name):
    settings = SMALL.get(name, {"factors": 8, "epochs": 3})
    return lambda split: MODELS[name](**settings).fit(split)


def given(split):
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(split.n_users, 5)), rng.normal(size=(split.n_items, 5))
    V[:, 4], U[:, 4] = rng.normal(size=split.n_items), 1.0
    return Recommender(U, V, split, fixed=(4,))


def imported(split):
    sizes = {"user": split.n_users, "item": split.n_items}
    model = torch.nn.ModuleDict({name: torch.nn.Embedding(n, 4) for name, n in sizes.items()})
    keys = {"user_key": "user.weight", "item_key": "item.weight"}
    return from_torch(model, split, check=False, **keys)


WAYS = {
    **{name: trained(name) for name in MODELS},
    "vote": lambda split: Vote(cap=0.2, damping=0.3).fit(split),
    "vote of groups": lambda split: Vote(groups=4, votes=5).fit(split),
    "trained by name": lambda split: robustcf.train(split, "als", factors=4),
    "factors of one's own": given,
    "imported": imported,
    "hardened": lambda split: harden(given(split)),
}


@functools.cache
def fitted(name):
    return WAYS[name](labelled_split())


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("test", TESTS)
def test_every_recommender_keeps_the_contract(name, test):
    class Contract(RecommenderContract):
        def fit(self, split):
            return fitted(name)

    getattr(Contract(), test)()


def shows_seen_items(top, users, k, seen=None, candidates=None):
    return top(users, k, None, candidates)


def depends_on_the_batch(top, users, k, seen=None, candidates=None):
    found = top(users, k, seen, candidates)
    return found if len(users) == 1 else found._replace(items=found.items[:, ::-1])


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (shows_seen_items, "test_leaves_out_what_users_have"),
        (depends_on_the_batch, "test_recommends_a_table_of_labels"),
    ],
)
def test_the_contract_notices(broken, test):
    class Broken(RecommenderContract):
        def fit(self, split):
            model = given(split)
            model.scorer.top = functools.partial(broken, model.scorer.top)
            return model

    with pytest.raises(ContractError):
        getattr(Broken(), test)()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_split_of_the_contract_has_pairs_in_all_parts(seed):
    split = labelled_split(seed)
    assert (split.train.user_degrees > 0).all()
    assert min(len(split.valid), len(split.test)) > 0


def test_a_contract_without_a_model_says_so():
    with pytest.raises(NotImplementedError):
        RecommenderContract().fit(labelled_split())
