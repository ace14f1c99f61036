"""Every model passes the contract that plug-ins are tested by."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import robustcf
from robustcf.adapters import from_torch
from robustcf.models import MODELS
from robustcf.models.voting import Vote
from robustcf.recommender import Recommender
from robustcf.robustness import harden
from robustcf.testing import ContractError, RecommenderContract, labelled_split

TESTS = [name for name in dir(RecommenderContract) if name.startswith("test_")]
SMALL = {"ease": {"dim": 30}, "popularity": {}, "als": {"dim": 8}}


def trained(name):
    settings = SMALL.get(name, {"dim": 8, "epochs": 3})
    return lambda split: MODELS[name](**settings).fit(split)


def given(split):
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(split.n_users, 5)), rng.normal(size=(split.n_items, 5))
    V[:, 4], U[:, 4] = rng.normal(size=split.n_items), 1.0
    return Recommender(U, V, split, fixed=(4,))


def imported(split):
    import torch

    model = torch.nn.ModuleDict(
        {"user": torch.nn.Embedding(split.n_users, 4), "item": torch.nn.Embedding(split.n_items, 4)}
    )
    keys = {"user_key": "user.weight", "item_key": "item.weight"}
    return from_torch(model, split, check=False, **keys)


WAYS = {
    **{name: trained(name) for name in MODELS},
    "vote": lambda split: Vote(cap=0.2, damping=0.3).fit(split),
    "vote of groups": lambda split: Vote(groups=4, votes=5).fit(split),
    "trained by name": lambda split: robustcf.train(split, "als", dim=4),
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


class Broken(RecommenderContract):
    """A recommender whose rankings are changed: the contract must notice."""

    def top(self, plain, users, k, seen, candidates):
        raise NotImplementedError

    def fit(self, split):
        model = given(split)
        plain = model.scorer.top
        model.scorer.top = lambda users, k, seen=None, candidates=None: self.top(
            plain, users, k, seen, candidates
        )
        return model


class Shows(Broken):
    """Recommends what users have."""

    def top(self, plain, users, k, seen, candidates):
        return plain(users, k, None, candidates)


class Forgets(Broken):
    """Ranks alone and together differently."""

    def top(self, plain, users, k, seen, candidates):
        found = plain(users, k, seen, candidates)
        return found if len(users) == 1 else found._replace(items=found.items[:, ::-1])


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Shows, "test_leaves_out_what_users_have"),
        (Forgets, "test_recommends_a_table_of_labels"),
    ],
)
def test_the_contract_notices(broken, test):
    with pytest.raises(ContractError):
        getattr(broken(), test)()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_split_of_the_contract_has_something_for_everybody(seed):
    split = labelled_split(seed)
    assert (split.train.user_degrees > 0).all()
    assert len(split.valid) > 0
    assert len(split.test) > 0


def test_a_contract_without_a_model_says_so():
    with pytest.raises(NotImplementedError):
        RecommenderContract().fit(labelled_split())
