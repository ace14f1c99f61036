"""Threads and device: decided once, before anything is computed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch

from robustcf.errors import InputError
from robustcf.support.checks import check_integer
from robustcf.support.ranks import launched, local_rank
from robustcf.support.schema import shown

#: More threads than any machine has; torch would try to start them all.
MOST_THREADS = 1024
_PACKAGES = ("robustcf", "numpy", "pandas", "pyarrow", "safetensors", "scipy", "torch")


def set_threads(count: int | None) -> int:
    """Use this many threads (None: leave as it is); returns the number in use.

    Results are the same for the same number of threads; another number may round differently.

    Example:
        >>> set_threads(None) >= 1
        True
    """
    if count is not None:
        torch.set_num_threads(check_integer("threads", count, 1, MOST_THREADS))
    return torch.get_num_threads()


@contextmanager
def threads_used(
    count: int | None, n_users: int | None = None, n_items: int | None = None
) -> Iterator[int]:
    """Use this many threads meanwhile (None: as it is decided), and the former number again."""
    before = torch.get_num_threads()
    try:
        yield set_threads(count)
    finally:
        torch.set_num_threads(before)


def device_of(name: str) -> torch.device:
    """The device of this name, or an error when this machine has none.

    Of several ranks on a machine, each has a GPU of its own: ``cuda`` is ``cuda:`` and the rank's
    number there.

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
    """The bytes of memory that this machine has, or None where it does not tell.

    Example:
        >>> memory() is None or memory() > 1 << 20
        True
    """
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def environment() -> dict[str, Any]:
    """Versions, machine and threads: what a run writes down with its configuration.

    Example:
        >>> sorted(environment())
        ['machine', 'packages', 'python', 'threads']
    """
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }
