"""Threads and device: decided once, before anything is computed."""

from __future__ import annotations

import dataclasses
import os
import platform
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

from robustcf._checks import check_integer
from robustcf._cpus import cpus, threads_asked
from robustcf._distributed import launched, local_rank
from robustcf._io.files import versions
from robustcf._io.schema import shown
from robustcf.errors import InputError

#: More threads than any machine has; torch would try to start them all.
MOST_THREADS = 1024
#: Users times items that are worth one thread, see :func:`threads_for`.
SCORES_PER_THREAD = 5_000_000
# Where the user has set one of these, BLAS libraries are left alone.
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


@dataclasses.dataclass
class _State:
    """The number last set here, and whether a user gave it."""

    applied: int
    given: bool = False


# Physical cores, or what the process has set before it imported this.
_TORCH_COUNTS = torch.get_num_threads()
_state = _State(_TORCH_COUNTS)


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS`` if set, else the cores as torch counts them; at most the CPUs."""
    return min(cpus(), threads_asked() or _TORCH_COUNTS)


def threads_for(n_users: int, n_items: int) -> int:
    """Return the number of threads for work on so many users and items.

    One thread per 5 million scores, at most :func:`default_threads`: on small data a second one
    costs CPU time and saves no waiting. A number that the user has given is used as it is.
    """
    if _state.given or _changed_outside():
        return torch.get_num_threads()
    if threads_asked() is not None:
        return default_threads()
    return max(1, min(default_threads(), n_users * n_items // SCORES_PER_THREAD))


def usable_threads(count: int | None, tell: Callable[[str], None] = warnings.warn) -> int | None:
    """Return a typed number of threads, at most the usable CPUs; ``tell`` gets a warning."""
    if count is None:
        return None
    asked, most = check_integer("threads", count, 1, MOST_THREADS), cpus()
    if asked > most:
        tell(f"expected at most {most} threads, the CPUs this process may use, got {asked}; "
             f"{most} will be used")  # fmt: skip
    return min(asked, most)


def set_threads(count: int | None) -> int:
    """Use so many threads from now on, in torch and in the BLAS of numpy; returns the number.

    The number is taken as it is, even above the number of CPUs: another one may round differently,
    and a recorded run repeats its bits. None keeps a number that was set before, here or by
    ``torch.set_num_threads``, and otherwise sets :func:`default_threads`.
    """
    if count is not None:
        _apply(check_integer("threads", count, 1, MOST_THREADS), given=True)
    elif not (_state.given or _changed_outside()):
        _apply(default_threads(), given=False)
    return torch.get_num_threads()


@contextmanager
def threads_used(
    count: int | None,
    n_users: int | None = None,
    n_items: int | None = None,
    *,
    exact: bool = False,
) -> Iterator[int]:
    """Use so many threads within the block, and the former number after it; yield the number.

    The number is the process's, not the Python thread's: do not enter blocks with different numbers
    from several Python threads. None is :func:`threads_for` these users and items, if given, else
    :func:`set_threads`. With ``exact`` the number may exceed the CPUs, as in a recorded run.

    Example:
        >>> with threads_used(1) as used:
        ...     used, torch.get_num_threads()
        (1, 1)
    """
    wanted = count if exact else usable_threads(count)
    if wanted is None and n_users is not None and n_items is not None:
        wanted = threads_for(n_users, n_items)
    before, state = torch.get_num_threads(), dataclasses.replace(_state)
    with _blas().limit(limits=None):  # gives each its former number in the end
        try:
            yield set_threads(wanted)
        finally:
            torch.set_num_threads(before)
            _state.applied, _state.given = state.applied, state.given


def _apply(count: int, *, given: bool) -> None:
    """Set the number in torch and in the BLAS libraries of numpy and scipy."""
    torch.set_num_threads(count)
    _state.applied, _state.given = count, given
    if not any(name in os.environ for name in _BLAS_VARIABLES):
        _blas().limit(limits=count)


def _blas() -> Any:
    """The BLAS libraries that this process has loaded, numpy's among them."""
    import_module("numpy")
    return ThreadpoolController().select(user_api="blas")


def _changed_outside() -> bool:
    """Whether ``torch.set_num_threads`` was called by other code since the last call of ours."""
    return torch.get_num_threads() != _state.applied


def device_of(name: str) -> torch.device:
    """Return the device of a name, or raise; of several ranks, ``cuda`` is the rank's own GPU.

    Example:
        >>> device_of("cpu")
        device(type='cpu')
    """
    if not isinstance(name, str):
        raise InputError(f"device must be a name such as 'cpu', got {shown(name)}")
    if name == "cuda" and launched() > 1:
        name = f"cuda:{local_rank()}"
    try:
        device = torch.device(name)
        # A number that comes back: the device 'meta' has tensors, but computes nothing.
        float(torch.zeros(1, device=device).sum())
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # what nccl and kernels of its own take for granted
    except Exception as error:
        # Every backend that is not there has an exception of its own.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"device {name!r} cannot be used here ({reason}): try 'cpu'") from error
    return device


def memory() -> int | None:
    """Return the bytes of memory of this machine, or None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def environment() -> dict[str, Any]:
    """Return versions, machine and threads, which a run records with its configuration."""
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "packages": versions(),
    }
