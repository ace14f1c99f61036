"""Defences that change the training: the cap and the sized adversaries."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from robustcf.data import checkerboard
from robustcf.errors import InputError
from robustcf.objectives import BPR
from robustcf.objectives.base import ObjectiveConfig
from robustcf.poisoning.defences import Defence, LeverageCap, SizeByLoss, SizeByNorm
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split

BOARD = checkerboard()


@dataclass(frozen=True)
class QuietConfig(ObjectiveConfig):
    """No settings."""


class Quiet(BPR):
    """An objective of somebody's own, without a cap."""

    name = "quiet"
    Config = QuietConfig  # type: ignore[assignment]


TRAINED = ["ultragcn", "bpr-mf", "softmax-mf", "lightgcn"]


@pytest.mark.parametrize("model", TRAINED)
@pytest.mark.parametrize("kind", [LeverageCap, SizeByLoss, SizeByNorm])
def test_pairs_stay_and_the_settings_do_something(kind: type[Defence], model: str) -> None:
    config = TrainConfig.of(model=model, dim=4, epochs=2)
    defended = kind().apply(BOARD.train, config)
    assert defended.train is BOARD.train
    assert defended.detection is None
    assert defended.report["defence"] == kind.name
    assert defended.config.epochs == 2
    plain, other = (fit_split(BOARD, each) for each in (config, defended.config))
    assert not torch.equal(plain.factors.items, other.factors.items)


def test_als_has_a_cap_of_its_own() -> None:
    config = LeverageCap(0.02).apply(BOARD.train, TrainConfig.of(model="als", dim=4)).config
    assert config.model.settings.max_share == 0.02
    assert config.objective.settings.max_share is None


@pytest.mark.parametrize("model", ["ease", "popularity"])
def test_a_model_without_pairs_to_weigh_is_refused(model: str) -> None:
    with pytest.raises(InputError, match=model):
        LeverageCap().apply(BOARD.train, TrainConfig.of(model=model))


@pytest.mark.parametrize("model", ["ease", "popularity", "als"])
@pytest.mark.parametrize("kind", [SizeByLoss, SizeByNorm])
def test_a_model_without_epochs_is_refused(kind: type[Defence], model: str) -> None:
    with pytest.raises(InputError, match="epochs"):
        kind().apply(BOARD.train, TrainConfig.of(model=model))


def test_an_objective_that_no_adversary_attacks_is_refused() -> None:
    config = TrainConfig.of(model="bpr-mf", objective=f"{__name__}:Quiet")
    with pytest.raises(InputError, match="Quiet"):
        SizeByLoss().apply(BOARD.train, config)
    with pytest.raises(InputError, match="weighs"):
        LeverageCap().apply(BOARD.train, config)
