"""Importing the estimators loads torch and numpy, and nothing else that is heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("pandas", "matplotlib", "scipy", "pyarrow", "requests", "safetensors")


def _modules(statement: str) -> set[str]:
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout))


@pytest.mark.slow
def test_estimators_are_light() -> None:
    loaded = _modules("import robustcf.estimators")
    assert not loaded & set(HEAVY)
    ours = {name for name in loaded if name.startswith("robustcf")}
    allowed = ("robustcf.estimators", "robustcf.errors", "robustcf._")
    assert all(name == "robustcf" or name.startswith(allowed) for name in ours)


@pytest.mark.slow
def test_estimating_loads_no_scipy() -> None:
    statement = (
        "import torch; from robustcf.estimators import certify, two_to_inf; A = torch.eye(40); "
        "two_to_inf(A, 12, 'save', generator=0); certify(A, 0.05, 20, generator=0)"
    )
    assert not _modules(statement) & set(HEAVY)


def test_the_command_is_light() -> None:
    loaded = _modules("import robustcf.cli.norm")
    assert not loaded & {*HEAVY, "torch", "numpy"}
