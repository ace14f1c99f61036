"""What every model promises: shapes, cold users and items, its start, clear refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf._io.files import CheckpointFiles
from robustcf.data import Interactions, checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models import (
    BPRMF,
    INITS,
    MODELS,
    LightGCN,
    LightGCNConfig,
    Model,
    ModelConfig,
    UltraGCN,
)
from robustcf.objectives import OBJECTIVES, Gradient
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split

KINDS = [MODELS[name] for name in MODELS if MODELS[name].has_embeddings]
#: Models that are trained from a start, and those that are fit at once.
STARTED = [kind for kind in KINDS if issubclass(kind.Config, ModelConfig)]
AT_ONCE = [kind for kind in KINDS if kind not in STARTED]


def with_cold() -> Interactions:
    """Users 4 and items 4 and 5 have no pair."""
    return Interactions.from_pairs([0, 0, 1, 2, 3], [0, 1, 1, 2, 3], 5, 6)[0]


def made(kind: Any, pairs: Interactions | None = None, **options: Any) -> Any:
    """A model of two columns, if it has a choice."""
    own = {} if kind.name == "popularity" else {"factors": 2}
    return kind(with_cold() if pairs is None else pairs, **{**own, **options})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contract(kind: Any, dtype: torch.dtype) -> None:
    assert MODELS[kind.name] is kind
    assert kind.objective in OBJECTIVES
    for init in INITS if kind in STARTED else [None]:
        model = made(kind, dtype=dtype, **({} if init is None else {"init": init}))
        U, V = model.scored()
        assert U.dtype == V.dtype == model.users.dtype == dtype
        factors = model.factors()
        factors.check_finite()
        assert (factors.n_users, factors.n_items, factors.dim) == (5, 6, model.dim)
        # The cold user gets the mean of the others, all others their scored rows.
        mean = U[:4].mean(dim=0)
        unit = getattr(model.config, "normalize", False)
        torch.testing.assert_close(factors.users[4], mean / mean.norm() if unit else mean)
        assert torch.equal(factors.users[:4], U[:4])
        assert torch.equal(factors.items, V)
        for part in factors:  # copies
            part.zero_()
        assert bool(model.items.any() and model.users.any())


@pytest.mark.parametrize("kind", KINDS)
def test_starts_from_given_factors(kind: Any) -> None:
    start = Factors(torch.ones(5, 7), torch.ones(6, 7))
    model = made(kind, start=start, dtype=torch.float64)
    assert model.dim == 7
    assert model.users.dtype == torch.float64
    model.users.zero_()
    assert bool((start.users == 1).all())
    for sizes in ((4, 6), (5, 5)):
        with pytest.raises(InputError, match="different data"):
            made(kind, start=Factors(*(torch.ones(n, 7) for n in sizes)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_follows_the_seed(kind: Any) -> None:
    cells = np.random.default_rng(0).random((30, 40)) < 0.2
    train = Interactions(*np.nonzero(cells), 30, 40)
    for init in INITS if kind in STARTED else [None]:
        own = {} if init is None else {"init": init}
        one, same, other = (made(kind, train, seed=seed, **own) for seed in (1, 1, 2))
        assert all(map(torch.equal, (one.users, one.items), (same.users, same.items)))
        assert torch.equal(one.users, other.users) == (kind.name == "popularity")


@pytest.mark.parametrize("kind", STARTED)
def test_a_normal_start_has_its_deviation(kind: Any) -> None:
    train = Interactions(np.array([0]), np.array([0]), 400, 500)
    for deviation in (0.02, 3.0):
        model = kind(train, factors=8, init="normal", init_std=deviation)
        for part in (model.users, model.items):
            n = part.numel()
            assert float(part.std()) == pytest.approx(deviation, rel=6 / (2 * n) ** 0.5)
            assert abs(float(part.mean())) < 6 * deviation / n**0.5


@pytest.mark.parametrize(("kind", "level"), [(UltraGCN, -5.0), (BPRMF, 0.0)])
def test_a_plain_factorization_scores_its_parameters(kind: Any, level: float) -> None:
    model = kind(with_cold(), factors=1)  # one column: the constant direction alone
    assert model.scored() == (model.users, model.items)
    torch.testing.assert_close(model.users @ model.items.T, torch.full((5, 6), level))
    gradient = Gradient(torch.ones(1, 2), torch.tensor([3]), torch.ones(6, 2), 1.0)
    assert model.pull_back(gradient) is gradient


@pytest.mark.parametrize(
    ("kinds", "options", "word"),
    [
        *((STARTED, {"factors": value}, "factors") for value in (0, 2.5)),
        (STARTED, {"init": "zeros"}, "init"),
        *((STARTED, {"init_std": value}, "init_std") for value in (0.0, float("nan"))),
        *((AT_ONCE, {name: value}, name) for name, value in (("init", "normal"), ("init_std", 1))),
        (STARTED, {"seed": -1}, "seed"),
        (KINDS, {"dmi": 3}, "dmi"),
        (KINDS, {"config": ModelConfig(), "factors": 3}, "not both"),
        (KINDS, {"config": {"factors": 3}}, "got a dict"),
        (KINDS, {"train": with_cold().take(np.zeros(5, dtype=bool))}, "no pairs"),
        *(([LightGCN], {"layers": value}, "layers") for value in (0, 1.5)),
        ([LightGCN], {"config": ModelConfig()}, "LightGCNConfig"),
    ],
)
def test_refuses(kinds: list[Any], options: dict[str, Any], word: str) -> None:
    for kind in kinds:
        with pytest.raises(InputError, match=word):
            kind(**{"train": with_cold(), **options})


def test_takes_a_config_of_its_own() -> None:
    assert UltraGCN(with_cold(), ModelConfig(factors=3)).dim == 3
    assert LightGCN(with_cold(), LightGCNConfig(factors=3, layers=1)).config.layers == 1
    # A larger config serves a smaller need: it has all of its settings.
    assert BPRMF(with_cold(), LightGCNConfig(factors=3)).dim == 3


class Unit(Model[ModelConfig]):
    """A model from outside: rows of length 1 are scored."""

    name = "unit"
    objective = "softmax"

    def scored(self) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(part / part.norm(dim=1, keepdim=True) for part in (self.users, self.items))

    def pull_back(self, gradient: Gradient) -> Gradient:
        raise NotImplementedError  # not trained here


def test_a_model_from_outside_defines_its_scored_factors() -> None:
    model = Unit(with_cold(), factors=3, init="normal")
    factors = model.factors()
    torch.testing.assert_close(factors.items.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(factors.users[4], model.scored()[0][:4].mean(dim=0))


def test_a_model_that_scores_other_factors_must_say_how_gradients_get_back() -> None:
    class Half(Model[ModelConfig]):
        def scored(self) -> tuple[torch.Tensor, torch.Tensor]:
            return self.users / 2, self.items

    class Farther(LightGCN):
        def scored(self) -> tuple[torch.Tensor, torch.Tensor]:
            users, items = super().scored()
            return users / 2, items

    class OwnGradient(UltraGCN):
        def pull_back(self, gradient: Gradient) -> Gradient:
            return gradient

    for kind, name in ((Half, "Half"), (Farther, "Farther"), (type("C", (Half,), {}), "Half")):
        with pytest.raises(InputError, match=f"{name} defines scored"):
            kind(with_cold(), factors=3)
    for kind in (Unit, type("Inherits", (Unit,), {}), OwnGradient):
        kind(with_cold(), factors=3, init="normal")


class Stopped(Exception):
    pass


class Plug(CheckpointFiles):
    """Saves every state, and stops after some."""

    left = 0

    def save(self, *arguments: Any, **options: Any) -> None:
        super().save(*arguments, **options)
        self.left -= 1
        if self.left == 0:
            raise Stopped


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "lightgcn", "batching": "rows", "layers": 2},
        {"model": "lightgcn", "batching": "pairs", "layers": 2, "reg": "two_to_inf"},
        {"model": "softmax-mf"},
        {"model": "softmax-mf", "sampled_items": 20},
    ],
)
def test_a_resumed_training_has_the_same_bits(settings: dict[str, Any], tmp_path: Any) -> None:
    config = TrainConfig.of(
        **settings,
        factors=8,
        epochs=6,
        eval_every=2,
        block_users=10,
        refit="yes",
        schedule="cosine",
    )
    whole = fit_split(checkerboard(), config)
    files = Plug(tmp_path, every=0.0)
    for _ in range(2):  # once more, now in the refit
        files.left = 4
        with pytest.raises(Stopped):
            fit_split(checkerboard(), config, checkpoint=files)
    resumed = fit_split(checkerboard(), config, checkpoint=files)
    assert all(map(torch.equal, resumed.factors, whole.factors))
    stages = [[(row["stage"], row["epoch"]) for row in each.history] for each in (resumed, whole)]
    assert stages[0] == stages[1]
