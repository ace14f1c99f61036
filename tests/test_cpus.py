"""CPUs that a process may use, and environment defaults of the thread libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robustcf import _cpus as module
from robustcf._cpus import WAITING, cpu_quota, cpus, threads_asked

OWN = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", *WAITING)


def fresh(code: str, **variables: str) -> str:
    """What a new interpreter prints, with these variables and without others about threads."""
    kept = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


SHOW = f"""
import os, sys
import robustcf
loaded = sorted({{"numpy", "torch"}} & set(sys.modules))
print(loaded, *(os.environ.get(name) for name in {list(WAITING)}))
"""


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, "300 0 4"),
        ({"GOMP_SPINCOUNT": "7"}, "7 0 4"),
        ({"KMP_BLOCKTIME": "200"}, "300 200 4"),
        ({"OPENBLAS_THREAD_TIMEOUT": "26"}, "300 0 26"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "None None 4"),
    ],
)
def test_the_users_own_setting_wins(variables, found):
    assert fresh(SHOW, **variables) == f"[] {found}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("3", 3), (" 3 ", 3), ("4,2", 4)),
        *((bad, None) for bad in ("", "0", "-1", "1.5", "all", ",2", "²", "9" * 5000)),
    ],
)
def test_threads_asked(monkeypatch, text, count):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads_asked() == count
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_asked() is None


def groups(
    monkeypatch: pytest.MonkeyPatch, root: Path, membership: str, files: dict[str, str]
) -> None:
    """Control groups with these files, and a process in those of ``membership``."""
    (root / "membership").write_text(membership)
    for name, text in files.items():
        path = root / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(module, "_MEMBERSHIP", str(root / "membership"))
    monkeypatch.setattr(module, "_CGROUPS", str(root / "groups"))


def version1(group: str, quota: str) -> dict[str, str]:
    return {f"{group}/cpu.cfs_quota_us": quota, f"{group}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        ("0::/\n", {"cpu.max": "100000 0\n"}, None),
        # Of nested groups the tightest.
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "100000 100000", "a/cpu.max": "300000 100000"}, 1),
        # A path that only the host knows: the container sees its own group as the root.
        ("0::/docker/1f\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/../../x\n", {"cpu.max": "400000 100000"}, 4),
        # Version 1.
        ("3:cpu,cpuacct:/a\n", version1("cpu,cpuacct/a", "250000"), 3),
        ("3:cpu:/a\n", version1("cpu", "100000"), 1),
        ("3:cpu:/\n", version1("cpu", "-1"), None),
        ("4:memory:/\n3:cpuset:/\n", version1("cpu", "100000"), None),
    ],
)
def test_quota_of_control_groups(monkeypatch, tmp_path, membership, files, quota):
    groups(monkeypatch, tmp_path, membership, files)
    assert cpu_quota() == quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert cpus() == (8 if quota is None else quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5}, raising=False)
    assert cpus() == 1


def test_no_control_groups_and_no_affinity(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_MEMBERSHIP", str(tmp_path / "missing"))
    assert cpu_quota() is None
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cpus() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpus() == 1
