"""The name of an attack -> the curve of a run: one place that knows all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustcf.attack_settings import STEPS, Settings
from robustcf.attacks import BUDGETS, FGM, PGD, Objective, unevenness
from robustcf.certificates import certified_curve
from robustcf.data import Split
from robustcf.errors import InputError
from robustcf.robustness import (
    OBJECTIVES,
    RobustnessCurve,
    auto_curve,
    objective_for,
    pgd_curve,
    random_curve,
    robustness_curve,
)
from robustcf.runs import RunDir
from robustcf.saved_curves import FOLDER

AUTO, RANDOM, CERTIFICATE = "auto", "random", "certificate"
GRADIENT = tuple(f"{kind}-{objective}" for kind in ("fgm", "pgd") for objective in OBJECTIVES)
# The worst of several does harm by itself: the control of an ensemble chooses as often as it does.
CONTROLS = {"fgm": RANDOM, "pgd": "random-pgd", "auto": "random-auto"}
NAMES = (*GRADIENT, AUTO, *CONTROLS.values(), CERTIFICATE)


def control_of(attack: str) -> str:
    """The name of the random control that belongs beside an attack.

    Example:
        >>> control_of("fgm-bce"), control_of("auto")
        ('random', 'random-auto')
    """
    return CONTROLS[attack.partition("-")[0]]


def check_attack(name: str, budget: str = "row") -> None:
    """Raise unless there is such an attack for such a budget.

    Example:
        >>> check_attack("fgm-mse")
        Traceback (most recent call last):
        robustcf.errors.InputError: attack must be one of fgm-bce, fgm-bpr, fgm-softmax, pgd-bce,
        pgd-bpr, pgd-softmax, auto, random, random-pgd, random-auto, certificate, got 'fgm-mse'
    """
    if name not in NAMES:
        raise InputError(f"attack must be one of {', '.join(NAMES)}, got {name!r}")
    if budget not in BUDGETS:
        raise InputError(f"budget must be one of {', '.join(BUDGETS)}, got {budget!r}")
    if name == CERTIFICATE and budget != "row":
        raise InputError(f"there are certificates for the row budget only, got {budget!r}")


def file_name(name: str, budget: str, relative: bool, epsilons: Sequence[float]) -> str:
    """The file of a curve in a run's folder of attacks, as ``robustcf attack`` names it.

    Example:
        >>> file_name("fgm-bce", "row", True, (0.0, 0.02, 0.05, 0.1, 0.2))
        'fgm-bce-row-relative.json'
    """
    kind, objective = name, ""
    if name in GRADIENT:
        kind, objective = name.split("-")
    settings = Settings.of(
        kind=kind, objective=objective, positives="train", budget=budget, relative=relative,
        side="both", part="test", steps=STEPS, restarts=1, seed=0, epsilons=tuple(epsilons), ks=(),
    )  # fmt: skip
    return f"{settings.name()}.json"


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
        name: ``fgm-`` or ``pgd-`` with an objective (``bce``, ``bpr``, ``softmax``), ``auto``,
            their controls (``random``; ``random-pgd`` and ``random-auto``, the worst of as many
            directions as these choose from), or ``certificate`` for what no attack can go below.
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
    if name == CERTIFICATE:
        return certified_curve(factors, split, epsilons, relative=relative, mask=mask)
    wanted = [name.split("-")[1]] if name in GRADIENT else OBJECTIVES
    seen = run.learnt_pairs(split)
    aims = [objective_for(aim, run.config.train, factors, seen) for aim in wanted]
    if name == AUTO:
        return auto_curve(factors, split, aims, epsilons, mask=mask, **options)
    if name in CONTROLS.values():
        draws = {RANDOM: 1, CONTROLS["pgd"]: 2}.get(name) or auto_size(aims, relative=relative)
        return random_curve(
            factors, split, epsilons, draws=draws, carry=name == CONTROLS[AUTO], mask=mask,
            **options,
        )  # fmt: skip
    if name.startswith("pgd"):
        return pgd_curve(factors, split, PGD(aims[0], **options), epsilons, mask=mask)
    return robustness_curve(factors, split, FGM(aims[0], **options), epsilons, mask=mask)


def auto_size(objectives: Sequence[Objective], *, relative: bool) -> int:
    """How many members :func:`robustcf.robustness.auto_members` has for these objectives."""
    fitted = [relative and bool(FGM(each, relative=True).views.softness) for each in objectives]
    return 2 * len(objectives) + sum(fitted)


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
    target = run.path / FOLDER / file_name(name, budget, relative, epsilons)
    if not _is_there(target, epsilons):
        curve = attacked(name, run, split, epsilons, relative=relative, budget=budget)
        extra: dict[str, Any] = {}
        if relative and budget == "row":
            parts = zip(("users", "items"), run.factors(), strict=True)
            extra["unevenness"] = {name: unevenness(part) for name, part in parts}
        curve.save(target, extra)
    return target


def _is_there(path: Path, epsilons: Sequence[float]) -> bool:
    try:
        return RobustnessCurve.load(path).epsilons == tuple(float(size) for size in epsilons)
    except InputError:
        return False
