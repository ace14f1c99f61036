"""The name of an attack -> the curve of a run: one place that knows all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustcf.attacks import BUDGETS, FGM, PGD, RandomNoise
from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.robustness import OBJECTIVES, RobustnessCurve, objective_for, robustness_curve
from robustcf.runs import RunDir
from robustcf.saved_curves import FOLDER

RANDOM = "random"
ATTACKS = (*(f"{kind}-{objective}" for kind in ("fgm", "pgd") for objective in OBJECTIVES), RANDOM)


def check_attack(name: str, budget: str = "row") -> None:
    """Raise unless there is such an attack for such a budget.

    Example:
        >>> check_attack("fgm-mse")
        Traceback (most recent call last):
        robustcf.errors.InputError: attack must be one of fgm-bce, fgm-bpr, fgm-softmax, pgd-bce,
        pgd-bpr, pgd-softmax, random, got 'fgm-mse'
    """
    if name not in ATTACKS:
        raise InputError(f"attack must be one of {', '.join(ATTACKS)}, got {name!r}")
    if budget not in BUDGETS:
        raise InputError(f"budget must be one of {', '.join(BUDGETS)}, got {budget!r}")


def file_name(name: str, budget: str, relative: bool) -> str:
    """The file of a curve in a run's folder of attacks, as ``robustcf attack`` names it.

    Example:
        >>> file_name("fgm-bce", "row", True)
        'fgm-bce-row-relative.json'
    """
    return "-".join([name, budget, *(["relative"] if relative else [])]) + ".json"


def attacked(
    name: str,
    run: RunDir,
    split: Split,
    epsilons: Sequence[float],
    *,
    relative: bool,
    budget: str = "row",
) -> RobustnessCurve:
    """The curve of a run under the attack of this name.

    Args:
        name: ``fgm-`` or ``pgd-`` with an objective (``bce``, ``bpr``, ``softmax``), or
            ``random``.
        run: a finished one.
        split: its data.
        epsilons: ascending.
        relative: whether they are in units of the factors' own size.
        budget: the norm that epsilon bounds.
    """
    check_attack(name, budget)
    factors, result = run.factors(), run.metrics()
    mask = result["test"]["protocol"]["masked"] if result["test"] else None
    options: dict[str, Any] = {"budget": BUDGETS[budget](), "relative": relative}
    if name == RANDOM:
        return robustness_curve(factors, split, RandomNoise(**options), epsilons, mask=mask)
    kind, objective = name.split("-")
    aim = objective_for(objective, run.config.train, factors, run.learnt_pairs(split))
    attack = FGM(aim, **options) if kind == "fgm" else PGD(aim, **options)
    return robustness_curve(factors, split, attack, epsilons, mask=mask)


def ensure_curve(
    name: str,
    run: RunDir,
    split: Split,
    epsilons: Sequence[float],
    *,
    relative: bool,
    budget: str = "row",
) -> Path:
    """The file of a run's curve; the curve is made unless it is there with these very sizes."""
    target = run.path / FOLDER / file_name(name, budget, relative)
    if not _is_there(target, epsilons):
        attacked(name, run, split, epsilons, relative=relative, budget=budget).save(target)
    return target


def _is_there(path: Path, epsilons: Sequence[float]) -> bool:
    try:
        return RobustnessCurve.load(path).epsilons == tuple(float(size) for size in epsilons)
    except InputError:
        return False
