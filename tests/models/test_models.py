"""What every model promises: shapes, cold users and items, its start, clear refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf.data import Interactions
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

KINDS = [UltraGCN, BPRMF, LightGCN]


def with_cold() -> Interactions:
    """Users 4 and items 4 and 5 have no pair."""
    return Interactions.from_pairs([0, 0, 1, 2, 3], [0, 1, 1, 2, 3], 5, 6)[0]


def test_the_tables_names_are_the_classes() -> None:
    assert [MODELS[name] for name in ("ultragcn", "bpr-mf", "lightgcn")] == KINDS
    for name in MODELS:
        assert MODELS[name].name == name
        assert MODELS[name].objective in OBJECTIVES


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_contract(make: Any, init: str, kind: torch.dtype) -> None:
    model = make(with_cold(), dim=3, init=init, dtype=kind)
    assert model.dim == 3
    assert model.users.shape == (5, 3)
    assert model.items.shape == (6, 3)
    U, V = model.scored()
    assert U.dtype == V.dtype == model.users.dtype == kind
    factors = model.factors()
    factors.check_finite()
    assert (factors.n_users, factors.n_items, factors.dim) == (5, 6, 3)
    # The cold user gets the mean of the others; everybody else what is scored.
    torch.testing.assert_close(factors.users[4], U[:4].mean(dim=0))
    assert torch.equal(factors.users[:4], U[:4])
    assert torch.equal(factors.items, V)


@pytest.mark.parametrize("make", [UltraGCN, BPRMF])
def test_a_plain_factorization_scores_its_parameters(make: Any) -> None:
    model = make(with_cold(), dim=2)
    U, V = model.scored()
    assert U is model.users
    assert V is model.items
    gradient = Gradient(torch.ones(1, 2), torch.tensor([3]), torch.ones(6, 2), 1.0)
    assert model.pull_back(gradient) is gradient


@pytest.mark.parametrize("make", KINDS)
def test_factors_are_copies(make: Any) -> None:
    model = make(with_cold(), dim=2)
    for part in model.factors():
        part.zero_()
    assert bool((model.items != 0).any())
    assert bool((model.users != 0).any())


@pytest.mark.parametrize("make", KINDS)
def test_starts_from_given_factors(make: Any) -> None:
    start = Factors(torch.ones(5, 7), torch.ones(6, 7))
    model = make(with_cold(), dim=2, start=start, dtype=torch.float64)
    assert model.dim == 7
    assert model.users.dtype == torch.float64
    model.users.zero_()
    assert bool((start.users == 1).all())
    with pytest.raises(InputError, match="start is for 4 users x 6 items, train has 5 x 6"):
        make(with_cold(), dim=2, start=Factors(torch.ones(4, 7), torch.ones(6, 7)))
    with pytest.raises(InputError, match="different data"):
        make(with_cold(), dim=2, start=Factors(torch.ones(5, 7), torch.ones(5, 7)))


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("init", INITS)
def test_the_start_follows_the_seed(make: Any, init: str) -> None:
    rng = np.random.default_rng(0)
    cells = rng.random((30, 40)) < 0.2
    train = Interactions(*np.nonzero(cells), 30, 40)
    one, same, other = (make(train, dim=4, init=init, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.users, same.users)
    assert torch.equal(one.items, same.items)
    assert not torch.equal(one.users, other.users)


@pytest.mark.parametrize("make", KINDS)
def test_a_normal_start_has_its_deviation(make: Any) -> None:
    train = Interactions(np.array([0]), np.array([0]), 400, 500)
    for deviation in (0.02, 3.0):
        model = make(train, dim=8, init="normal", init_std=deviation)
        for part in (model.users, model.items):
            n = part.numel()
            assert float(part.std()) == pytest.approx(deviation, rel=6 / (2 * n) ** 0.5)
            assert abs(float(part.mean())) < 6 * deviation / n**0.5
    published = LightGCN(train, dim=8, init="normal")
    assert float(published.items.std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(("make", "level"), [(UltraGCN, -5.0), (BPRMF, 0.0)])
def test_scores_start_where_the_objective_wants_them(make: Any, level: float) -> None:
    model = make(with_cold(), dim=1)  # one column: the constant direction alone
    torch.testing.assert_close(model.users @ model.items.T, torch.full((5, 6), level))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"dim": 2.5}, "dim must be an integer"),
        ({"init": "zeros"}, "init must be one of spectral, smooth, normal, got 'zeros'"),
        ({"init_std": 0.0}, "init_std must be a finite number and positive"),
        ({"init_std": float("nan")}, "init_std must be a finite number"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"dmi": 3}, "unknown setting 'dmi'; did you mean 'dim'"),
        ({"negatives": 3}, "unknown setting 'negatives'; known: dim"),
        ({"config": ModelConfig(), "dim": 3}, "a config or single settings, not both"),
        ({"config": {"dim": 3}}, "takes a .*Config, got a dict"),
    ],
)
@pytest.mark.parametrize("make", KINDS)
def test_refuses(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(with_cold(), **options)


@pytest.mark.parametrize(
    ("layers", "message"),
    [(0, "layers must be an integer of at least 1, got 0"), (1.5, "layers must be an integer")],
)
def test_lightgcn_refuses(layers: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LightGCN(with_cold(), layers=layers)
    with pytest.raises(InputError, match="LightGCN takes a LightGCNConfig, got a ModelConfig"):
        LightGCN(with_cold(), ModelConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize("make", KINDS)
def test_refuses_empty_train(make: Any) -> None:
    none = with_cold().take(np.zeros(5, dtype=bool))
    with pytest.raises(InputError, match="train has no pairs: there is nothing to learn from"):
        make(none)


def test_takes_a_config_of_its_own() -> None:
    assert UltraGCN(with_cold(), ModelConfig(dim=3)).dim == 3
    assert LightGCN(with_cold(), LightGCNConfig(dim=3, layers=1)).config.layers == 1
    # A larger config serves a smaller need: it has all of its settings.
    assert BPRMF(with_cold(), LightGCNConfig(dim=3)).dim == 3


class Unit(Model[ModelConfig]):
    """Somebody's own: rows of length 1 are scored."""

    name = "unit"
    objective = "softmax"

    def scored(self) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(part / part.norm(dim=1, keepdim=True) for part in (self.users, self.items))

    def pull_back(self, gradient: Gradient) -> Gradient:
        raise NotImplementedError  # not trained here


def test_a_model_of_ones_own_says_what_it_scores() -> None:
    model = Unit(with_cold(), dim=3, init="normal")
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

    class Inherits(Unit):
        def updated(self, rows: torch.Tensor | None) -> None:
            pass

    class OwnGradient(UltraGCN):
        def pull_back(self, gradient: Gradient) -> Gradient:
            return gradient

    for kind in (Half, Farther, type("Child", (Half,), {})):
        name = "Farther" if kind is Farther else "Half"
        with pytest.raises(InputError, match=f"{name} defines scored and not pull_back"):
            kind(with_cold(), dim=3)
    for kind in (Unit, Inherits, OwnGradient):
        kind(with_cold(), dim=3, init="normal")
