"""Threads and device: decided once, before anything is computed."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

from robustcf.errors import InputError
from robustcf.support.checks import check_integer

_PACKAGES = ("robustcf", "numpy", "pandas", "pyarrow", "safetensors", "scipy", "torch")


def set_threads(count: int | None) -> int:
    """Use this many threads (None: leave as it is); returns the number in use.

    Results are the same for the same number of threads; another number may round differently.

    Example:
        >>> set_threads(None) >= 1
        True
    """
    if count is not None:
        torch.set_num_threads(check_integer("threads", count))
    return torch.get_num_threads()


def device_of(name: str) -> torch.device:
    """The device of this name, or an error when this machine has none.

    Example:
        >>> device_of("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {name!r} cannot be used here ({reason}): try 'cpu'") from error
    return device


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
