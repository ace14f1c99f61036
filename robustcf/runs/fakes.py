"""Certificates against fake accounts, kept in the folder of a run."""

from __future__ import annotations

from pathlib import Path

from robustcf.runs.records import FAKES, results_folder
from robustcf.support import files
from robustcf.support.naming import grid_name
from robustcf.voting import CertifiedVotes


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
