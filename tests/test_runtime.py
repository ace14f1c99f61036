"""Threads and devices: set, or refused with a reason."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import threadpool_info

from robustcf import _runtime as runtime
from robustcf._runtime import (
    SCORES_PER_THREAD,
    default_threads,
    device_of,
    environment,
    memory,
    set_threads,
    threads_for,
    threads_used,
    usable_threads,
)
from robustcf.errors import InputError
from tests.test_cpus import fresh


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process in which no number was given, on a machine with eight cores."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(runtime, "cpus", lambda: 8)
    monkeypatch.setattr(runtime, "_TORCH_COUNTS", 8)
    monkeypatch.setattr(runtime, "_state", runtime._State(before))
    with threads_used(None):  # which gives numpy's BLAS its former number in the end
        monkeypatch.setattr(runtime, "_state", runtime._State(torch.get_num_threads()))
        yield monkeypatch
    torch.set_num_threads(before)


def blas_threads() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_default_threads(undecided):
    assert default_threads() == 8
    undecided.setattr(runtime, "_TORCH_COUNTS", 4)  # two hyper-threads a core
    assert default_threads() == 4
    undecided.setattr(runtime, "cpus", lambda: 3)
    assert default_threads() == 3
    undecided.setenv("OMP_NUM_THREADS", "2,4")
    assert default_threads() == 2
    undecided.setenv("OMP_NUM_THREADS", "16")
    assert default_threads() == 3


@pytest.mark.parametrize(
    ("n_users", "n_items", "count"),
    [
        (943, 1_682, 1),
        (2_000, 1_500, 1),
        (6_040, 3_706, 4),
        (1, 2 * SCORES_PER_THREAD - 1, 1),
        (1, 2 * SCORES_PER_THREAD, 2),
        (100_000, 100_000, 8),
        (0, 0, 1),
    ],
)
def test_small_problems_use_few_threads(undecided, n_users, n_items, count):
    assert threads_for(n_users, n_items) == count
    with threads_used(None, n_users, n_items) as used:
        assert used == torch.get_num_threads() == count
        assert threads_for(10**6, 10**6) == count  # an inner block keeps the number
    # A number of the user's is not changed.
    undecided.setenv("OMP_NUM_THREADS", "5")
    assert threads_for(n_users, n_items) == 5
    with threads_used(2):
        assert threads_for(n_users, n_items) == 2
    torch.set_num_threads(3)
    assert threads_for(n_users, n_items) == 3
    assert set_threads(None) == 3
    with threads_used(None, n_users, n_items) as used:
        assert used == 3


def test_the_default_is_set_where_nothing_was_decided(undecided):
    undecided.setattr(runtime, "cpus", lambda: 5)
    assert set_threads(None) == torch.get_num_threads() == 5
    assert threads_for(10, 10) == 1  # a default is not a decision
    assert set_threads(4) == 4
    assert set_threads(None) == 4
    assert threads_for(10, 10) == 4


def test_blocks_restore_the_number(undecided):
    undecided.delenv("OPENBLAS_NUM_THREADS", raising=False)
    outer = set_threads(2), blas_threads()
    assert outer == (2, {2})
    with threads_used(1):
        assert (torch.get_num_threads(), blas_threads()) == (1, {1})
        with threads_used(3):
            assert (torch.get_num_threads(), blas_threads()) == (3, {3})
        assert (torch.get_num_threads(), blas_threads()) == (1, {1})
    assert (torch.get_num_threads(), blas_threads()) == outer
    with pytest.raises(ZeroDivisionError), threads_used(1):
        raise ZeroDivisionError
    assert (torch.get_num_threads(), blas_threads()) == outer
    with pytest.raises(InputError), threads_used(0):
        pass
    assert (torch.get_num_threads(), blas_threads()) == outer
    assert threads_for(10, 10) == 2  # still decided


def test_blas_is_left_alone_where_the_user_has_set_it(undecided):
    before = blas_threads()
    undecided.setenv("OPENBLAS_NUM_THREADS", "1")
    set_threads(3)
    assert blas_threads() == before


def test_more_threads_than_cpus(undecided):
    with pytest.warns(UserWarning, match="threads"):
        assert usable_threads(9) == 8
    with pytest.warns(UserWarning, match="threads"), threads_used(9) as used:
        assert used == 8
    said: list[str] = []
    assert usable_threads(9, said.append) == 8
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert usable_threads(8) == 8
        assert usable_threads(None) is None
        # What a run has recorded repeats its bits.
        assert set_threads(9) == 9
        with threads_used(10, exact=True) as used:
            assert used == 10


TOLD = """
from robustcf._runtime import default_threads, set_threads, threads_for
import torch
print(default_threads(), set_threads(None), torch.get_num_threads(), threads_for(10, 10))
"""


@pytest.mark.slow
def test_the_environment_is_heeded():
    assert fresh(TOLD, OMP_NUM_THREADS="1") == "1 1 1 1"
    most = len(os.sched_getaffinity(0))
    asked = min(2, most)
    assert fresh(TOLD, OMP_NUM_THREADS=f"{asked},1") == " ".join([str(asked)] * 4)
    # An invalid value is ignored.
    assert fresh(TOLD, OMP_NUM_THREADS="many") == fresh(TOLD)


@pytest.mark.slow
def test_the_affinity_is_heeded():
    one = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})"
    assert fresh(one + TOLD) == "1 1 1 1"
    # Also where torch was loaded before.
    assert fresh("import torch\n" + one + TOLD) == "1 1 1 1"


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, 10**6])
def test_refuses_threads(count):
    with pytest.raises(InputError, match="threads"):
        set_threads(count)


@pytest.mark.parametrize(
    "name", ["abacus", "meta", "hpu", "lazy", "privateuseone", "", "cpu:x", "cuda:-1", "cuda", [1]]
)
def test_devices_that_compute_nothing_here(name):
    assert device_of("cpu") == torch.device("cpu")
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(InputError, match="device"):
        device_of(name)


def test_the_environment_is_ready_for_json():
    found = json.loads(json.dumps(environment()))
    assert found["packages"]["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()


def test_memory_where_the_system_does_not_tell(monkeypatch):
    assert (memory() or 2**30) > 2**20
    monkeypatch.delattr("os.sysconf")
    assert memory() is None
