"""Certificates against fake accounts: kept in the folder of a run, and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from robustcf._io import files
from robustcf._io.plots import Line, Panel, plot_panels
from robustcf._io.text import grid_name
from robustcf.data import Split
from robustcf.experiments.records import FAKES, results_folder
from robustcf.models.voting import CertifiedVotes

# PORE (USENIX Security 2023), recomputed from the counts that it released: MovieLens 100K, a
# quarter of each user's items held out, certified precision@10.
_PORE = {0: 0.333, 1: 0.141, 2: 0.093, 5: 0.023, 10: 0.0}
_PORE_DATA = (943, 1682, 100_000)


def published(split: Split, k: int) -> Mapping[str, Mapping[int, float]]:
    """What others have certified on these data with this protocol: name -> fakes -> precision@k.

    Example:
        >>> from robustcf.data import load
        >>> published(load("demo"), 10)
        {}
    """
    same = (split.n_users, split.n_items, split.n_interactions) == _PORE_DATA and k == 10
    quarter = abs(len(split.test) / split.n_interactions - 0.25) < 0.01
    return {"PORE, from its released counts": _PORE} if same and quarter else {}


def plot_fakes(
    certified: Mapping[str, CertifiedVotes],
    path: Path,
    *,
    metric: str = "precision@10",
    published: Mapping[str, Mapping[int, float]] | None = None,
) -> Path:
    """Draw a certified metric against the number of fake accounts, and write it.

    Args:
        certified: label -> certificate.
        path: of the picture, PNG.
        metric: which one.
        published: label -> fakes -> value, of others.

    Returns:
        The path.
    """
    lines = [
        Line(label, found.fakes, np.array([found[metric]]), "certificate")
        for label, found in certified.items()
    ]
    lines += [
        Line(label, tuple(values), np.array([list(values.values())]), "certificate")
        for label, values in (published or {}).items()
    ]
    protocol = next(iter(certified.values())).protocol
    name = f"{metric} on {protocol.dataset} ({protocol.part})"
    return plot_panels([[Panel(lines, "fake accounts", name)]], path)


def save_certificate(run: Path, certified: CertifiedVotes) -> tuple[Path, bool]:
    """Write a certificate and its per-user values; the path, and whether one was replaced."""
    folder = results_folder(run, FAKES)
    ks = sorted({int(name.split("@")[1]) for name in certified.values})
    path = folder / f"certified-{certified.protocol.part}-{grid_name(certified.fakes, ks)}.json"
    replaced = path.exists()
    folder.mkdir(exist_ok=True)
    users = {"users": certified.users, **certified.per_user}
    files.write_arrays(path.with_suffix(".npz"), users)
    files.write_json(path, {"format": "robustcf fakes 1", **certified.as_dict()})
    return path, replaced
