"""CPUs that this process may use, and how threads wait: known before torch or numpy is loaded.

Nothing but ``os`` is imported here: ``import robustcf`` runs :func:`let_waiting_threads_sleep`.
"""

from __future__ import annotations

import os

#: Variable -> default. Thread libraries read them once, when they are loaded.
#:
#: By default, waiting threads keep their CPU busy. On a machine with other work they take it from
#: the threads they wait for, which costs 3 to 15 times the CPU time of one thread. 300 checks last
#: about as long as waking a thread: fewer slow down an idle machine, more a busy one.
WAITING = {
    # GNU OpenMP, in torch's packages for Linux: checks before a waiting thread sleeps.
    "GOMP_SPINCOUNT": "300",
    # Intel's and LLVM's OpenMP, in torch's conda packages: milliseconds.
    "KMP_BLOCKTIME": "0",
    # OpenBLAS, in numpy's and scipy's packages: the binary logarithm of CPU cycles, at least 4.
    "OPENBLAS_THREAD_TIMEOUT": "4",
}
# OpenMP's own word for the first two.
_POLICY = "OMP_WAIT_POLICY"
_CGROUPS = "/sys/fs/cgroup"
_MEMBERSHIP = "/proc/self/cgroup"
_CPU_CONTROLLERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def let_waiting_threads_sleep() -> None:
    """Set the environment variables of :data:`WAITING`, unless the user has set them.

    ``OMP_WAIT_POLICY`` of the user wins over both OpenMP variables. They have no effect on a
    library that is loaded already: import robustcf before torch, or set them for the process.
    """
    for name, value in WAITING.items():
        if name.startswith("OPENBLAS") or _POLICY not in os.environ:
            os.environ.setdefault(name, value)


def cpus() -> int:
    """Return the number of CPUs this process may use, by its affinity and its container's quota.

    Example:
        >>> 1 <= cpus() <= os.cpu_count()
        True
    """
    try:
        count = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on every system
        count = os.cpu_count() or 1
    quota = cpu_quota()
    return count if quota is None else min(count, quota)


def cpu_quota() -> int | None:
    """Return the CPU quota of this process's control groups, rounded up; None if unlimited.

    Both versions of control groups are read; of nested groups the tightest quota counts.
    """
    limits = []
    for line in _text(_MEMBERSHIP).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            limits += [_text(f"{group}/cpu.max") for group in _groups(_CGROUPS, path)]
        elif "cpu" in controllers.split(","):
            for name in _CPU_CONTROLLERS:
                for group in _groups(f"{_CGROUPS}/{name}", path):
                    words = (_text(f"{group}/cpu.cfs_{word}_us") for word in ("quota", "period"))
                    limits.append(" ".join(words))
    return min((count for text in limits if (count := _rounded_up(text))), default=None)


def threads_asked() -> int | None:
    """Return the number of threads in ``OMP_NUM_THREADS``, or None if unset or invalid.

    Of a list ("4,2", for nested levels) the first number counts.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    plain = first.isascii() and first.isdecimal() and len(first) < 10
    return (int(first) if plain else 0) or None


def _groups(root: str, path: str) -> list[str]:
    """A control group and those around it, up to the root; a container may see the root alone."""
    names = [name for name in path.split("/") if name not in ("", "..")]
    return ["/".join([root, *names[:depth]]) for depth in range(len(names), -1, -1)]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(1 << 16)
    except (OSError, ValueError):
        return ""


def _rounded_up(text: str) -> int | None:
    """CPUs of a quota and a period in microseconds; None for no quota ("max", "-1")."""
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
        return None
    quota, period = map(int, words)
    return -(-quota // period)
