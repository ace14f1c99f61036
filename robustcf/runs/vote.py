"""VoteRun: the run of a recommender by vote.

A vote has no embeddings. What it needs is its settings, which the run keeps, and the pairs of its
accounts, which are loaded from the data and checked against the run's fingerprint: small models of
groups are fit again, the same to the bit.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from robustcf.data import Split
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.evaluate import MetricReport, Part
from robustcf.metrics.recommend import Ranked
from robustcf.runs.base import RunConfigBase, own_folder
from robustcf.runs.config import DATA_OPTIONS
from robustcf.runs.recommender import PER_USER, RecommenderRun, parquet_bytes
from robustcf.runs.records import VOTE, VOTE_METRICS_KIND, read_record
from robustcf.support import files
from robustcf.support.checks import check_known
from robustcf.support.naming import grid_name
from robustcf.support.runtime import set_threads
from robustcf.support.schema import NUMBER, OBJECT, Kind, check_kind, record, whole
from robustcf.support.temporary import clear_leftovers
from robustcf.training.train import fit_mask, fit_pairs
from robustcf.voting import CertifiedVotes, PartitionVote, VoteConfig, choose
from robustcf.voting.groups import Groups

#: The settings with everything chosen, and what was tried.
CHOICE = "vote.json"
#: Where certificates against fake accounts are kept.
FAKES = "fakes"
_CHOICE_KIND = record({"vote": OBJECT, "fakes": whole(1), "trials": record({}, others=NUMBER)})


@dataclasses.dataclass(frozen=True)
class VoteRunConfig(RunConfigBase[VoteConfig]):
    """What the run of a vote was made from: the data, and the settings that were given.

    Example:
        >>> config = VoteRunConfig("demo", train=VoteConfig(groups=50))
        >>> VoteRunConfig.from_json(config.to_json()) == config
        True
    """

    data_kind: ClassVar[Kind] = DATA_OPTIONS

    @classmethod
    def read_train(cls, values: Mapping[str, Any]) -> VoteConfig:
        """From ``{"vote": settings}``."""
        return _settings(values.get(VOTE, {}) if isinstance(values, Mapping) else {})

    @staticmethod
    def plain_train(train: VoteConfig) -> dict[str, Any]:
        """As ``{"vote": settings}``, by which such a run is known."""
        return {VOTE: dataclasses.asdict(train)}


def _settings(values: Any) -> VoteConfig:
    check_kind("", values, OBJECT, VOTE)
    check_known(VoteConfig, values)
    return VoteConfig(**values)


class VoteRun(RecommenderRun[VoteRunConfig]):
    """A run directory of a recommender by vote.

    Args:
        path: the directory; it must hold the configuration of such a run.

    Raises:
        InputError: there is no such run at this path.

    Example:
        >>> import tempfile
        >>> from robustcf.data import load
        >>> config = VoteRunConfig("demo", train=VoteConfig(cap=0.2, damping=0.5))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = VoteRun.create(Path(folder) / "first", config, load("demo"))
        ...     run.complete
        False
    """

    config_type = VoteRunConfig
    result_kind = VOTE_METRICS_KIND

    @classmethod
    def check_trainable(cls, config: VoteRunConfig, split: Split) -> None:
        """Raise for what would only be found wrong later: the device, too many groups."""
        if config.device != "cpu":
            raise InputError(f"a vote is counted on the cpu, got the device {config.device!r}")
        if config.train.groups is not None:
            Groups.check(split.n_users, config.train.groups)

    def execute(self, split: Split) -> None:
        """Choose what is not given, evaluate on test, and write; the result comes last."""
        self.check(split)
        set_threads(self.config.threads)
        with self.at_work():
            start = time.perf_counter()
            chosen = choose(split, self.config.train)
            wanted = chosen.config.refit
            refit = wanted == "yes" or (wanted == "auto" and split.valid_source == "carved")
            fit_on = "train and valid" if refit and len(split.valid) else "train"
            vote = PartitionVote(fit_pairs(split, fit_on), chosen.config)
            seconds = time.perf_counter() - start
            trials = {
                f"cap {t['cap']:g} damping {t['damping']:g} {name}": t[name]
                for t in chosen.trials
                for name in ("clean", "certified")
            }
            files.write_json(
                self.path / CHOICE,
                {"vote": dataclasses.asdict(chosen.config), "fakes": chosen.fakes}
                | {"trials": trials},
            )
            test = None
            if len(split.test):
                test = vote.evaluate(split, mask=fit_mask(split, fit_on, "test"))
                files.write_bytes(self.path / PER_USER, parquet_bytes(test, split))
            self.write_metrics(
                {
                    "run": str(self.path),
                    "dataset": split.name,
                    "model": "vote",
                    "reg": "none",
                    "test": None if test is None else test.as_dict(),
                    "valid": None,
                    "epochs": 0,
                    "train_seconds": round(seconds, 3),
                    "learnt_from": fit_on,
                    "interrupted": False,
                }
            )

    @cached_property
    def settings(self) -> VoteConfig:
        """The settings with everything chosen.

        Raises:
            UnfinishedError: the run has not come to its end.
            InputError: the file is damaged.
        """
        self.check_finished()
        path = self.path / CHOICE
        if not os.path.lexists(path):
            raise self.unfinished(CHOICE)
        try:
            return _settings(read_record(path, _CHOICE_KIND)["vote"])
        except InputError as error:
            where = "" if str(path) in str(error) else f"{path}: "
            raise InputError(f"{where}{error}") from error

    @property
    def fit_on(self) -> str:
        """``train``, or ``train and valid``."""
        fit_on: str = self.metrics()["learnt_from"]
        return fit_on

    def vote(self, split: Split) -> PartitionVote:
        """The recommender, fit again on the pairs it was fit on."""
        pairs: Interactions = fit_pairs(split, self.fit_on)
        return PartitionVote(pairs, self.settings)

    def _mask(self, split: Split, part: Part) -> tuple[str, ...]:
        try:
            return fit_mask(split, self.fit_on, part)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error

    def evaluate(
        self,
        split: Split,
        ks: tuple[int, ...] = (10, 20),
        *,
        part: Part = "test",
        mask: tuple[str, ...] | None = None,
    ) -> MetricReport:
        """Metrics of the vote: by the protocol of its set, or with other pairs masked."""
        own = self._mask(split, part)
        return self.vote(split).evaluate(split, ks, part=part, mask=own if mask is None else mask)

    def recommend(self, split: Split, users: Sequence[int], k: int = 10) -> list[Ranked]:
        """For each user the k best items that they have neither in train nor in valid."""
        vote, known = self.vote(split), split.train_full
        return [vote.recommend_to(user, k, known) for user in users]

    def fold_in(self, split: Split, items: Sequence[int], k: int = 10) -> Ranked:
        """The k best items for a new user who has these items."""
        return self.vote(split).recommend(items, k)

    def certify(
        self, split: Split, fakes: Sequence[int], ks: Sequence[int] = (10, 20), part: Part = "test"
    ) -> CertifiedVotes:
        """What fake accounts cannot take, see :meth:`robustcf.voting.PartitionVote.certify`."""
        mask = self._mask(split, part)
        return self.vote(split).certify(split, fakes, ks, part=part, mask=mask)

    def save(self, certified: CertifiedVotes) -> tuple[Path, bool]:
        """Write a certificate and its per-user values; the path, and whether one was replaced."""
        folder = own_folder(self.path, FAKES)
        for place in (self.path, folder):
            clear_leftovers(place)
        ks = sorted({int(name.split("@")[1]) for name in certified.values})
        path = folder / f"certified-{certified.protocol.part}-{grid_name(certified.fakes, ks)}.json"
        replaced = path.exists()
        folder.mkdir(exist_ok=True)
        users = {"users": certified.users, **certified.per_user}
        files.write_arrays(path.with_suffix(".npz"), users)
        files.write_json(path, {"format": "robustcf fakes 1", **certified.as_dict()})
        return path, replaced
