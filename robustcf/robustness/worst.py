"""Several attacks as one: the worst for all users together, or the worst per user.

An attacker changes the embeddings once, for all users: :func:`joint_of`, the headline result. No
single perturbation reaches each user's worst of several, :func:`worst_of`. Each has a control that
chooses as often. A perturbation of a smaller size is within a larger budget and counts there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from robustcf.errors import InputError
from robustcf.robustness.curves import JOINT, PER_USER, RobustnessCurve

Members = Mapping[str, RobustnessCurve]


def joint_of(members: Members, attack: str, metric: str) -> RobustnessCurve:
    """Choose at each epsilon the member, of this size or smaller, with the least mean of a metric.

    All metrics and values per user are those of that one perturbation.

    Args:
        members: name -> curve, all of the same epsilons, budget, metrics and protocol.
        attack: the name of the result.
        metric: metric to choose by.
    """
    first = _combined(members, attack, JOINT)
    chosen: list[tuple[RobustnessCurve, int]] = []
    for place in range(len(first.epsilons)):
        now = [*chosen[-1:], *((curve, place) for curve in members.values())]
        chosen.append(min(now, key=lambda pick: float(pick[0][metric][pick[1]])))
    return replace(
        first,
        values={name: np.array([c.values[name][n] for c, n in chosen]) for name in first.values},
        per_user={m: np.stack([c.per_user[m][n] for c, n in chosen]) for m in first.per_user},
        realised=tuple(curve.realised[n] for curve, n in chosen),
        attacked=tuple(c.attacked[n] for c, n in chosen) if first.attacked else (),
    )


def worst_of(members: Members, attack: str, *, cumulative: bool = False) -> RobustnessCurve:
    """Return the least value per user and metric over several curves.

    ``realised`` is the most that any member spent.

    Args:
        members: see :func:`joint_of`.
        attack: the name of the result.
        cumulative: whether a smaller epsilon counts for the larger ones too.
    """
    first, curves = _combined(members, attack, PER_USER), members.values()

    def least(arrays: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        worst: npt.NDArray[np.float64] = np.minimum.reduce(arrays)
        return np.minimum.accumulate(worst, axis=0) if cumulative else worst

    per_user = {name: least([curve.per_user[name] for curve in curves]) for name in first.per_user}
    values = {
        name: np.array([row.mean() for row in per_user[name]])
        if name in per_user
        else least([curve.values[name] for curve in curves])
        for name in first.values
    }
    realised = tuple(
        {key: max(step[key] for step in steps) for key in steps[0]}
        for steps in zip(*(curve.realised for curve in curves), strict=True)
    )
    return replace(first, values=values, per_user=per_user, realised=realised, attacked=())


def worst_counts(members: Members, metric: str) -> dict[str, dict[str, list[int]]]:
    """Count the users that each member is the worst for, at each epsilon.

    Returns name -> ``worst`` (ties count for each) and ``alone`` (strictly the worst).
    """
    stack = np.stack([curve.per_user[metric] for curve in members.values()])
    least = stack == stack.min(axis=0)
    alone = least & (least.sum(axis=0) == 1)
    return {
        name: {"worst": least[n].sum(axis=1).tolist(), "alone": alone[n].sum(axis=1).tolist()}
        for n, name in enumerate(members)
    }


def _combined(members: Members, attack: str, kind: str) -> RobustnessCurve:
    """Return the first member under the name of the whole, if all members compare."""
    if not members:
        raise InputError("the worst of no curves is not defined: give at least one")
    (label, first), *others = members.items()
    for name, curve in others:
        if _frame(curve) != _frame(first):
            shown = [f"({c.threat.axis}, {c.protocol})" for c in (curve, first)]
            words = "curves compare at the same epsilons, budget, metrics and protocol"
            raise InputError(f"{words}: {name} {shown[0]} is not like {label} {shown[1]}")
    shared = all(curve.objective == first.objective for curve in members.values())
    objective = first.objective if shared else None
    return replace(first, attack=attack, objective=objective, kind=kind, options={})


def _frame(curve: RobustnessCurve) -> tuple[object, ...]:
    return (curve.epsilons, curve.threat, set(curve.values), curve.protocol, curve.users.tobytes())
