"""Named sets that are there for the time of a test."""

from __future__ import annotations

import pytest

from robustcf.data import catalog
from robustcf.data.catalog import Manifest
from tests.data.toy import TEST, TRAIN, toy_manifest


@pytest.fixture
def register(monkeypatch):
    """Put a manifest into the catalogue for the time of a test."""

    def add(manifest: Manifest) -> Manifest:
        known = {**catalog.manifests(), manifest.name: manifest}
        monkeypatch.setattr(catalog, "manifests", lambda: known)
        return manifest

    return add


@pytest.fixture
def toy(tmp_path, register):
    register(toy_manifest())
    folder = tmp_path / "data" / "toy"
    folder.mkdir(parents=True)
    (folder / "train.txt").write_bytes(TRAIN)
    (folder / "test.txt").write_bytes(TEST)
    return tmp_path / "data"
