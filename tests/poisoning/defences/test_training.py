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
    """An objective from outside of the package, without a cap."""

    name = "quiet"
    Config = QuietConfig  # type: ignore[assignment]


TRAINED = ["ultragcn", "bpr-mf", "softmax-mf", "lightgcn"]


@pytest.mark.parametrize("model", TRAINED)
@pytest.mark.parametrize("kind", [LeverageCap, SizeByLoss, SizeByNorm])
def test_pairs_stay_and_the_settings_do_something(kind: type[Defence], model: str) -> None:
    config = TrainConfig.of(model=model, factors=4, epochs=2)
    defended = kind().apply(BOARD.train, config)
    assert defended.train is BOARD.train
    assert (defended.detection, defended.config.epochs) == (None, 2)
    assert defended.report["defence"] == kind.name
    plain, other = (fit_split(BOARD, each) for each in (config, defended.config))
    assert not torch.equal(plain.factors.items, other.factors.items)


def test_als_has_a_cap_of_its_own() -> None:
    config = LeverageCap(0.02).apply(BOARD.train, TrainConfig.of(model="als", factors=4)).config
    assert config.model.settings.max_share == 0.02
    assert config.objective.settings.max_share is None


@pytest.mark.parametrize(
    ("kind", "model", "word"),
    [
        *((LeverageCap, model, model) for model in ("ease", "popularity")),
        *((SizeByLoss, model, "epochs") for model in ("ease", "popularity", "als")),
        *((SizeByNorm, model, "epochs") for model in ("ease", "popularity", "als")),
        (SizeByLoss, "quiet", "Quiet"),
        (LeverageCap, "quiet", "weighs"),
    ],
)
def test_models_that_a_defence_cannot_change_are_refused(
    kind: type[Defence], model: str, word: str
) -> None:
    own = {"model": "bpr-mf", "objective": f"{__name__}:Quiet"}
    config = TrainConfig.of(**(own if model == "quiet" else {"model": model}))
    with pytest.raises(InputError, match=word):
        kind().apply(BOARD.train, config)
