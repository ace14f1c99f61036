"""The worst of several attacks, user by user.

Why the worst is taken for each user by itself. A robustness curve answers: what is left of a user's
ranking when the embeddings are perturbed within the budget? Each member of the ensemble is a
perturbation within the budget, so for each user the worst of them is an attack on that user that
exists. Their mean is what an attacker reaches who attacks each user's ranking separately. One
perturbation for all users at once does at most that damage, so the mean is an upper bound of what
any single member does to all of them jointly, and not itself reached by one of them. It is no
certificate: a better attack may do more harm still.

Choosing the worst of several does harm by itself, whatever they are. So the control of an ensemble
is not one random direction but as many as it has members, chosen from in the same way.

A perturbation of a smaller size is within a larger budget, so what it does counts there as well.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from robustcf.errors import InputError
from robustcf.robustness.curves import RobustnessCurve


def worst_of(
    members: Mapping[str, RobustnessCurve], attack: str, *, cumulative: bool = False
) -> RobustnessCurve:
    """The least value of each user and metric over several curves.

    Args:
        members: name -> curve, all of the same epsilons, budget, metrics and protocol.
        attack: the name of the result.
        cumulative: whether what a smaller epsilon did counts for the larger ones too.

    Returns:
        The curve. ``objective`` is that of the members where they share one, else None;
        ``realised`` is the most that any member spent.

    Raises:
        InputError: no members, or members that do not compare.
    """
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
    objectives = {curve.objective for curve in curves}
    realised = tuple(
        {key: max(step[key] for step in steps) for key in steps[0]}
        for steps in zip(*(curve.realised for curve in curves), strict=True)
    )
    return RobustnessCurve(
        attack=attack,
        objective=objectives.pop() if len(objectives) == 1 else None,
        threat=first.threat,
        epsilons=first.epsilons,
        values=values,
        per_user=per_user,
        users=first.users,
        realised=realised,
        protocol=first.protocol,
    )


def worst_counts(
    members: Mapping[str, RobustnessCurve], metric: str
) -> dict[str, dict[str, list[int]]]:
    """For how many users each member is the worst, at each epsilon by itself.

    Args:
        members: name -> curve, as a result of :func:`robustcf.robustness.measure` holds them.
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


def _frame(curve: RobustnessCurve) -> tuple[object, ...]:
    return (curve.epsilons, curve.threat, set(curve.values), curve.protocol, curve.users.tobytes())
