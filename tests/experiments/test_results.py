"""Runs of a vote: their configuration, their device, and the published curve."""

from __future__ import annotations

import numpy as np
import pytest

from robustcf.data import Split, checkerboard
from robustcf.errors import InputError
from robustcf.experiments import RunDir
from robustcf.experiments.results import published
from robustcf.experiments.run import RunConfig
from robustcf.models.voting import VoteConfig


def test_a_vote_is_counted_on_the_cpu():
    config = RunConfig("demo", train=VoteConfig(), device="cuda:0")
    with pytest.raises(InputError, match="cpu"):
        RunDir.check_trainable(config, checkerboard())


def test_a_configuration_comes_back():
    config = RunConfig("demo", train=VoteConfig(groups=3, key="ä"))
    assert RunConfig.from_json(config.to_json()) == config


def test_the_published_curve_is_drawn_for_its_own_data_alone():
    def split(n_users, n_items, test_share):
        rng = np.random.default_rng(0)
        keys = rng.choice(n_users * n_items, 100_000, replace=False)
        test = rng.random(len(keys)) < test_share
        parts = [np.zeros(n_users * n_items) for _ in range(2)]
        parts[0][keys[~test]] = parts[1][keys[test]] = 1
        train, held = (part.reshape(n_users, n_items) for part in parts)
        return Split.from_csr(train, test=held)

    ((name, values),) = published(split(943, 1682, 0.25), 10).items()
    assert name.startswith("PORE")
    assert values[1] == 0.141
    assert published(split(943, 1682, 0.25), 20) == {}
    assert published(split(943, 1682, 0.1), 10) == {}
    assert published(split(944, 1682, 0.25), 10) == {}
