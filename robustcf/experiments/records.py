"""The small files of a run: their names, what they must hold, and reading them without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robustcf._io import schema
from robustcf._io.reading import read_json
from robustcf._io.schema import FLAG, NAME, OBJECT, TEXT, Kind, check_kind, nullable, record, whole
from robustcf._io.temporary import clear_leftovers
from robustcf._io.text import counted
from robustcf.data.split import FIT_ON, PROTOCOL
from robustcf.errors import InputError, UnfinishedError

CONFIG, ENVIRONMENT, DATA = "config.json", "environment.json", "data.json"
METRICS, HISTORY = "metrics.json", "history.csv"
#: Where attack curves and certificates are kept, and certificates against fake accounts.
RESULTS, FAKES = "robustness", "fakes"
#: The part of a configuration that only the run of a vote has.
VOTE = "vote"
MOST_THREADS = 1024

#: What every configuration has; how to train is checked by what trains.
CONFIG_KIND = record(
    {"dataset": NAME},
    {
        "data": OBJECT,
        "train": OBJECT,
        "threads": whole(1, MOST_THREADS),
        "device": NAME,
        "preset": nullable(TEXT),
        "search": nullable(record({}, {"minutes": schema.POSITIVE})),
    },
)
ENVIRONMENT_KIND = record({"python": TEXT, "packages": OBJECT, "seed": whole()})
#: Of the data: only their fingerprint has been there from the first version on.
DATA_KIND = record(
    {"fingerprint": NAME},
    {
        "name": TEXT,
        "sources": record({}, others=TEXT),
        "sizes": record({}, others=whole()),
        "n_users": whole(1),
        "n_items": whole(1),
    },
)
_SHOWN = ("ndcg@10", "recall@20", "ndcg@20", "mrr@10", "coverage@10")
_PART_KIND = record(
    {**dict.fromkeys(_SHOWN, schema.NUMBER), "protocol": PROTOCOL},
    others=schema.NUMBER,
)
#: What every result says, whatever was trained.
RESULT_KIND = record({"interrupted": FLAG, "epochs": whole(), "reg": TEXT, "model": TEXT})
#: The result of a recommender.
METRICS_KIND = record(
    {
        "model": TEXT,
        "reg": TEXT,
        "test": nullable(_PART_KIND),
        "valid": nullable(_PART_KIND),
        "epochs": whole(),
        "train_seconds": schema.NOT_NEGATIVE,
        "learnt_from": schema.choice(*FIT_ON),
        "interrupted": FLAG,
    },
    {
        "two_to_inf": schema.NOT_NEGATIVE,
        "search": record(
            {"trials": whole(), "seconds": schema.NOT_NEGATIVE, "chosen": TEXT, "baseline": FLAG}
        ),
    },
)


def is_vote(train: object) -> bool:
    """Whether these training settings, as a configuration has them, are those of a vote."""
    return isinstance(train, Mapping) and VOTE in train


def read_record(path: Path, kind: Kind) -> dict[str, Any]:
    """A JSON file of a run, checked; an error names file, key, what is expected and was found."""
    found = read_json(path)
    check_kind(path, found, kind)
    return found


def check_run(folder: Path, command: str) -> None:
    """Raise unless a folder has the configuration of a run in it."""
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} is no run directory (no {CONFIG} in it): "
            f"give the directory that '{command}' wrote"
        )


def result_of(
    folder: Path, command: str, kind: Kind = RESULT_KIND, *, allow_unfinished: bool = False
) -> dict[str, Any]:
    """The result of a finished run, as ``metrics.json`` has it.

    Args:
        folder: of the run.
        command: the one that makes such runs.
        kind: what the result must hold.
        allow_unfinished: take the result of an interrupted training too.

    Raises:
        UnfinishedError: the run has no result yet, or only that of an interrupted training.
        InputError: the file is damaged.
    """
    again = f"'{command} --resume {folder}'"
    if not os.path.lexists(folder / METRICS):
        raise UnfinishedError(f"{folder} has no result yet: finish it with {again}")
    result = read_record(folder / METRICS, kind)
    if result["interrupted"] and not allow_unfinished:
        raise UnfinishedError(
            f"{folder} is not finished (interrupted after {counted(result['epochs'], 'epoch')}): "
            f"finish it with {again}, or insist with --allow-unfinished"
        )
    return result


def own_folder(run: Path, name: str) -> Path:
    """A folder inside of a run; a link, which may lead to any place, is refused."""
    folder = run / name
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} must be a folder of the run itself, got a link or a file")
    return folder


def results_folder(run: Path, name: str = RESULTS) -> Path:
    """The folder of what is measured of a run; leftovers of a kill are cleared first."""
    folder = own_folder(run, name)
    for place in (run, folder):
        clear_leftovers(place)
    return folder


def facts_of_data(folder: Path) -> Mapping[str, Any]:
    """What a run wrote down of its data: name, fingerprint, checksums, sizes."""
    return read_record(folder / DATA, DATA_KIND)
