"""What the runs of all recommenders share: their data, and what they can be asked."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, TypeVar

from robustcf.data import Split, load
from robustcf.data.catalog import find
from robustcf.metrics.evaluate import MetricReport
from robustcf.runs.base import RunBase, RunConfigBase

PER_USER = "per_user.parquet"

ConfigT = TypeVar("ConfigT", bound=RunConfigBase[Any])


class RecommenderRun(RunBase[ConfigT, Split]):
    """A run directory of a recommender: embeddings, or a vote."""

    command = "robustcf train"

    @classmethod
    def data_facts(cls, split: Split) -> dict[str, Any]:
        """Name, fingerprint, sources and sizes."""
        return {
            "name": split.name,
            "fingerprint": split.fingerprint,
            "sources": dict(split.sources),
            "valid_source": split.valid_source,
            "n_users": split.n_users,
            "n_items": split.n_items,
            "pairs": {
                "train": len(split.train), "valid": len(split.valid), "test": len(split.test),
            },
            "notes": list(split.notes),
        }  # fmt: skip

    def is_named(self) -> bool:
        """Whether the run is on one of the known sets."""
        return find(self.config.dataset) is not None

    def load(self, dataset: str, data: Mapping[str, Any]) -> Split:
        """Load data with these arguments of :func:`robustcf.data.load`; the cache is only read."""
        return load(dataset, **{"cache": "read", **data})


def parquet_bytes(report: MetricReport, split: Split) -> bytes:
    """The values of single users as a Parquet file."""
    import pandas as pd

    columns: dict[str, Any] = {"user": report.users}
    if split.user_labels is not None:
        columns["label"] = split.user_labels[report.users]
    columns |= dict(report.per_user)
    buffer = io.BytesIO()
    pd.DataFrame(columns).to_parquet(buffer, index=False)
    return buffer.getvalue()
