"""Options read from the source of a function or class agree with Python's own signature."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from robustcf.cli.signatures import arguments, values

PLACES = (
    *("data.loading:load", "training.config:TrainConfig", "models.base:ModelConfig"),
    *("robustness.threat:Threat", "robustness.table:AttackSpec", "vision.config:VisionConfig"),
    *("experiments.sweep:SweepPlan", "experiments.poison:PoisonPlan", "poisoning.threat:Targets"),
    *("adapters.reading:read", "recommender.matching:match", "estimators.api:two_to_inf"),
)


def imported(place: str):
    module, _, name = place.partition(":")
    return getattr(import_module(f"robustcf.{module}"), name)


@pytest.mark.parametrize("place", PLACES)
def test_arguments_are_those_of_the_signature(place):
    found, expected = arguments(place), inspect.signature(imported(place)).parameters
    assert found.keys() <= expected.keys()  # fields of a base are options of the base
    for name, argument in found.items():
        assert argument.default in (None, expected[name].default)
        assert argument.annotation.replace('"', "'") == str(expected[name].annotation)


@pytest.mark.parametrize(
    "place",
    [
        *("training.config:GAUGES", "models.base:INITS", "attacks.base:SIDES"),
        *("attacks.budgets:BUDGETS", "estimators.api:METHODS", "poisoning.threat:GOALS"),
    ],
)
def test_values_are_those_of_the_constant(place):
    assert values(place) == tuple(imported(place))


def test_a_name_that_moved_is_an_error_at_once():
    for read in (arguments, values):
        with pytest.raises(LookupError, match="command line"):
            read("training.config:Nothing")
