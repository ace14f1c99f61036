"""The configuration of a recommender run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from robustcf.runs.base import RunConfigBase
from robustcf.runs.records import refuse_vote
from robustcf.support.schema import (
    ABSENT,
    FLAG,
    NAME,
    NUMBER,
    Kind,
    choice,
    either,
    nullable,
    record,
    whole,
)
from robustcf.training.config import TrainConfig

_COLUMN = nullable(either(NAME, whole()))
#: The arguments of :func:`robustcf.data.load` that a run may have.
DATA_OPTIONS = record(
    {},
    {
        "data_dir": nullable(NAME),
        "download": FLAG,
        "cache": FLAG,
        "seed": whole(),
        "min_rating": nullable(NUMBER),
        "k_core": nullable(whole(1)),
        "eval_users": nullable(whole(1)),
        "split": nullable(choice("random", "leave-one-out")),
        **dict.fromkeys(("user_col", "item_col", "rating_col", "time_col"), _COLUMN),
        **dict.fromkeys(("test_ratio", "valid_ratio"), nullable(NUMBER)),
        **dict.fromkeys(("valid_file", "test_file"), nullable(NAME)),
    },
    others=ABSENT,
)


@dataclass(frozen=True)
class RunConfig(RunConfigBase[TrainConfig]):
    """What a run directory was made from: the data, and how to train on them.

    Args:
        dataset: a name or a path.
        data: the other arguments of :func:`robustcf.data.load`.
        train: the training configuration.
        threads: torch threads; the same number repeats the same bits.
        device: where the tensors live.
        preset: the preset it came from, or None.
        search: how its settings are searched for before training (``minutes``), or None.

    Example:
        >>> config = RunConfig("demo")
        >>> RunConfig.from_json(config.to_json()) == config
        True
    """

    data_kind: ClassVar[Kind] = DATA_OPTIONS

    preset: str | None = None
    search: Mapping[str, Any] | None = None

    @classmethod
    def read_train(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Nested, or flat as version 0.1 wrote it; a vote's are refused."""
        refuse_vote(values)
        return TrainConfig.from_dict(values)

    @staticmethod
    def plain_train(train: TrainConfig) -> dict[str, Any]:
        """Nested plain values."""
        return train.as_dict()
