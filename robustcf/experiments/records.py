"""The small files of a run: their names, their kinds, and reading them without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robustcf._io import schema
from robustcf._io.reading import read_json
from robustcf._io.schema import FLAG, NAME, OBJECT, TEXT, Kind, check_kind, nullable, record, whole
from robustcf._io.temporary import clear_leftovers
from robustcf.data.split import FIT_ON, PROTOCOL
from robustcf.errors import InputError

CONFIG, ENVIRONMENT, DATA = "config.json", "environment.json", "data.json"
METRICS, HISTORY = "metrics.json", "history.csv"
#: Where attack curves and certificates are kept, and certificates against fake accounts.
RESULTS, FAKES = "robustness", "fakes"
#: The part of a configuration that only the run of a vote has.
VOTE = "vote"
MOST_THREADS = 1024

#: The entries of every configuration; training settings are checked by their own classes.
CONFIG_KIND = record(
    {"dataset": NAME},
    {
        "data": OBJECT,
        "train": OBJECT,
        "threads": whole(1, MOST_THREADS),
        "device": NAME,
        "preset": nullable(TEXT),
        "search": nullable(
            record({}, {"minutes": schema.POSITIVE, "trials": whole(1), "memory": schema.POSITIVE})
        ),
    },
)
ENVIRONMENT_KIND = record({"python": TEXT, "packages": OBJECT, "seed": whole()})
#: Facts of the data: only the fingerprint has been there from the first version on.
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
#: The entries of every result.
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
        "two_to_inf": nullable(schema.NOT_NEGATIVE),
        "search": record(
            {"trials": whole(), "seconds": schema.NOT_NEGATIVE, "chosen": TEXT, "baseline": FLAG},
            {"not_tried": whole()},
        ),
    },
)


def is_vote(train: object) -> bool:
    """Return whether training settings of a configuration are those of a vote."""
    return isinstance(train, Mapping) and VOTE in train


def read_record(path: Path, kind: Kind) -> dict[str, Any]:
    """Return a checked JSON file of a run; an error names file, key, expected and found value."""
    found = read_json(path)
    check_kind(path, found, kind)
    return found


def own_folder(run: Path, name: str) -> Path:
    """Return a folder inside of a run; raise for a link, which may lead to any place."""
    folder = run / name
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} must be a folder of the run itself, got a link or a file")
    return folder


def results_folder(run: Path, name: str = RESULTS) -> Path:
    """Return the folder of the results of a run; leftovers of a kill are cleared first."""
    folder = own_folder(run, name)
    for place in (run, folder):
        clear_leftovers(place)
    return folder
