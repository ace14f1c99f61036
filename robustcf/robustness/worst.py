"""Several attacks as one: the single worst for all users together, or the worst for each user.

**Joint.** An attacker who owns the embeddings changes them once, for everybody. Of several
perturbations, the one that leaves the least mean metric is what such an attacker chooses:
:func:`joint_of`. This is the headline result.

**Per user.** For each user the worst of several perturbations is an attack on that user that
exists: :func:`worst_of`. Its mean over users is not reached by any single one of them. Choosing
does harm by itself, whatever there is to choose from: the worst of eight random directions for
each user looks like a real attack. So it is never mixed with the joint number, and its control
chooses from as many random directions in the same way.

Neither is a certificate: a better attack may do more harm still. A perturbation of a smaller size
is within a larger budget, so what it does counts there as well.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from robustcf.errors import InputError
from robustcf.robustness.curves import PER_USER, RobustnessCurve


def joint_of(members: Mapping[str, RobustnessCurve], attack: str, metric: str) -> RobustnessCurve:
    """At each epsilon the member, of this size or a smaller one, that leaves the least mean metric.

    All metrics, and the values of single users, are those of that one perturbation.

    Args:
        members: name -> curve, all of the same epsilons, budget, metrics and protocol.
        attack: the name of the result.
        metric: what is to be least, ``ndcg@10`` say.

    Returns:
        The curve, of the kind ``joint``; ``objective`` is that of the members where they share one.

    Raises:
        InputError: no members, or members that do not compare.
    """
    curves, first = _comparable(members)
    chosen: list[tuple[RobustnessCurve, int]] = []
    for place in range(len(first.epsilons)):
        now = [*chosen[-1:], *((curve, place) for curve in curves)]
        chosen.append(min(now, key=lambda pick: float(pick[0][metric][pick[1]])))
    return RobustnessCurve(
        attack=attack,
        objective=_shared_objective(curves),
        threat=first.threat,
        epsilons=first.epsilons,
        values={
            name: np.array([curve.values[name][n] for curve, n in chosen]) for name in first.values
        },
        per_user={
            name: np.stack([curve.per_user[name][n] for curve, n in chosen])
            for name in first.per_user
        },
        users=first.users,
        realised=tuple(curve.realised[n] for curve, n in chosen),
        protocol=first.protocol,
    )


def worst_of(
    members: Mapping[str, RobustnessCurve], attack: str, *, cumulative: bool = False
) -> RobustnessCurve:
    """The least value of each user and metric over several curves.

    Args:
        members: name -> curve, all of the same epsilons, budget, metrics and protocol.
        attack: the name of the result.
        cumulative: whether what a smaller epsilon did counts for the larger ones too.

    Returns:
        The curve, of the kind ``per user``. ``objective`` is that of the members where they share
        one, else None; ``realised`` is the most that any member spent.

    Raises:
        InputError: no members, or members that do not compare.
    """
    curves, first = _comparable(members)

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
    return RobustnessCurve(
        attack=attack,
        objective=_shared_objective(curves),
        threat=first.threat,
        epsilons=first.epsilons,
        values=values,
        per_user=per_user,
        users=first.users,
        realised=realised,
        protocol=first.protocol,
        kind=PER_USER,
    )


def worst_counts(
    members: Mapping[str, RobustnessCurve], metric: str
) -> dict[str, dict[str, list[int]]]:
    """For how many users each member is the worst, at each epsilon by itself.

    Args:
        members: name -> curve, as a result of :func:`robustcf.robustness.measuring` holds them.
        metric: one with values of single users, ``ndcg@10`` say.

    Returns:
        name -> ``worst`` (as bad as any other; ties count for each) and ``alone`` (worse than all
        others), one count per epsilon.
    """
    stack = np.stack([curve.per_user[metric] for curve in members.values()])
    least = stack == stack.min(axis=0)
    alone = least & (least.sum(axis=0) == 1)
    return {
        name: {"worst": least[n].sum(axis=1).tolist(), "alone": alone[n].sum(axis=1).tolist()}
        for n, name in enumerate(members)
    }


def _comparable(
    members: Mapping[str, RobustnessCurve],
) -> tuple[list[RobustnessCurve], RobustnessCurve]:
    """The curves and the first of them, if they compare."""
    curves = list(members.values())
    if not curves:
        raise InputError("the worst of no curves is not defined: give at least one")
    first = curves[0]
    for name, curve in members.items():
        if _frame(curve) != _frame(first):
            raise InputError(
                f"curves compare at the same epsilons, budget, metrics and protocol: {name} "
                f"({curve.threat.axis}, {curve.protocol}) is not like {next(iter(members))} "
                f"({first.threat.axis}, {first.protocol})"
            )
    return curves, first


def _shared_objective(curves: list[RobustnessCurve]) -> str | None:
    objectives = {curve.objective for curve in curves}
    return objectives.pop() if len(objectives) == 1 else None


def _frame(curve: RobustnessCurve) -> tuple[object, ...]:
    return (curve.epsilons, curve.threat, set(curve.values), curve.protocol, curve.users.tobytes())
