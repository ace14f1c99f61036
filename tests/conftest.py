"""What all tests share: no network but loopback, no touching of the user's own folders."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.doctest import DoctestModule

# Tests are small: a second thread costs more than it brings, and stalls on a busy machine.
torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """Look for examples in the package's docstrings only."""
    found = yield
    return [each for each in found if not isinstance(each, DoctestModule)]


ROOT = Path(__file__).resolve().parent.parent


def real_data_dir() -> Path | None:
    """The folder with the real data sets, where this machine has one."""
    for candidate in (os.environ.get("ROBUSTCF_REAL_DATA"), ROOT.parent / "shared" / "data"):
        if candidate is not None and Path(candidate).is_dir():
            return Path(candidate)
    return None


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = real_data_dir()
    if folder is None:
        pytest.skip("the real data sets are not here: set ROBUSTCF_REAL_DATA to their folder")
    return folder


_numbers = count()


@pytest.fixture(scope="session")
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, _caches: Path) -> None:
    """Caches go to a new temporary folder each; the user's settings do not reach the tests."""
    monkeypatch.delenv("ROBUSTCF_DATA", raising=False)
    # Not made here: pytest looks through all folders that it has made to make another.
    monkeypatch.setenv("ROBUSTCF_CACHE", str(_caches / str(next(_numbers))))


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches for the network fails at once instead of hanging."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in (
            "127.0.0.1",
            "::1",
        ):
            raise OSError(f"tests may not connect to {address[0]}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
