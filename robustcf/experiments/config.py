"""The configuration of a recommender run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from robustcf._checks import check_known
from robustcf._io.schema import (
    ABSENT,
    FLAG,
    NAME,
    NUMBER,
    OBJECT,
    Kind,
    check_kind,
    choice,
    either,
    nullable,
    record,
    whole,
)
from robustcf.experiments.folders import RunConfigBase
from robustcf.experiments.records import VOTE, is_vote
from robustcf.models.voting.config import VoteConfig
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
        "split": nullable(choice("random", "leave-one-out", "time")),
        **dict.fromkeys(("user_col", "item_col", "rating_col", "time_col"), _COLUMN),
        **dict.fromkeys(("test_ratio", "valid_ratio"), nullable(NUMBER)),
        **dict.fromkeys(("test_from", "valid_from"), nullable(either(NAME, NUMBER))),
        **dict.fromkeys(("valid_file", "test_file"), nullable(NAME)),
    },
    others=ABSENT,
)


@dataclass(frozen=True)
class RunConfig(RunConfigBase[TrainConfig | VoteConfig]):
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
    def read_train(cls, values: Mapping[str, Any]) -> TrainConfig | VoteConfig:
        """Nested, or ``{"vote": settings}`` of a vote."""
        if not is_vote(values):
            return TrainConfig.from_dict(values)
        settings = values[VOTE]
        check_kind("", settings, OBJECT, VOTE)
        check_known(VoteConfig, settings)
        return VoteConfig(**settings)

    @staticmethod
    def plain_train(train: TrainConfig | VoteConfig) -> dict[str, Any]:
        """Nested plain values."""
        return train.as_dict() if isinstance(train, TrainConfig) else {VOTE: asdict(train)}
