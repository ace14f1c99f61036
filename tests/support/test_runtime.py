"""Threads and devices: set, or refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from robustcf.errors import InputError
from robustcf.support.runtime import device_of, environment, memory, set_threads


def test_threads_are_set_and_told() -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(2) == torch.get_num_threads() == 2
        assert set_threads(None) == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_refuses_threads(count: Any) -> None:
    with pytest.raises(InputError, match="threads must be an integer of at least 1, got"):
        set_threads(count)


def test_devices() -> None:
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="device 'abacus' cannot be used here .*: try 'cpu'"):
        device_of("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device 'cuda' cannot be used here .*: try 'cpu'"):
            device_of("cuda")


def test_the_environment_is_ready_for_json() -> None:
    found = json.loads(json.dumps(environment()))
    assert found["packages"]["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("name", ["meta", "hpu", "lazy", "privateuseone", "", "cpu:x", "cuda:-1"])
def test_devices_that_compute_nothing_here(name: str) -> None:
    with pytest.raises(InputError, match=f"device '{name}' cannot be used here .*: try 'cpu'"):
        device_of(name)


def test_a_device_that_is_no_name_and_threads_beyond_all_machines() -> None:
    with pytest.raises(InputError, match=r"device must be a name such as 'cpu', got \[1\]"):
        device_of([1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threads must be an integer of at least 1 and at most 10"):
        set_threads(10**6)


def test_memory_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (memory() or 2**30) > 2**20
    monkeypatch.delattr("os.sysconf")
    assert memory() is None
