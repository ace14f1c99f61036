"""The worst of several attacks, user by user: ``auto``, the number to quote, and ``pgd``.

Why the worst is taken for each user by itself. A robustness curve answers: what is left of a user's
ranking when the embeddings are perturbed within the budget? Each member of the ensemble is a
perturbation within the budget, so for each user the worst of them is an attack on that user that
exists. Their mean is what an attacker reaches who attacks each user's ranking separately. One
perturbation for all users at once does at most that damage, so the mean is an upper bound of what
any single member does to all of them jointly, and not itself reached by one of them. It is no
certificate: a better attack may do more harm still.

A perturbation of a smaller size is within a larger budget, so what it does counts there as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from robustcf.attacks.base import Side
from robustcf.attacks.budgets import Budget
from robustcf.attacks.gradient import FGM, PGD
from robustcf.attacks.objectives import Objective
from robustcf.data.interactions import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import Part
from robustcf.robustness.curves import RobustnessCurve, robustness_curve


def auto_curve(
    factors: Factors,
    split: Split,
    objectives: Sequence[Objective],
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    *,
    budget: Budget | None = None,
    relative: bool = True,
    side: Side = "both",
    mask: Sequence[str] | None = None,
    part: Part = "test",
) -> RobustnessCurve:
    """The worst over a fixed ensemble: FGM and PGD on every objective, nothing to set.

    Relative, objectives are looked at as softly as they ask for, and by FGM also at the scale
    where they are least (see :mod:`robustcf.attacks.scale`): two views see more than one.

    For each user and metric it is the least value over all members at this epsilon or a smaller
    one of the list (see the module for why that is legitimate), so it never rises with epsilon.
    Coverage has no users: there it is the least over the members.

    Args:
        factors: trained embeddings.
        split: the data.
        objectives: what the members make worse; for ``auto`` as the command line means it, one
            each of :data:`robustcf.robustness.OBJECTIVES`.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics.
        budget: the norm that counts; row by default.
        relative: whether epsilons are in units of the factors' own size.
        side: which factors are perturbed.
        mask: parts that are not candidates; None for the set's own protocol.
        part: the pairs that count: ``test``, or ``valid`` to choose by.

    Returns:
        The curve, with ``attack="auto"``.

    Cost: for every objective and epsilon, nine gradients and three evaluations.

    Example:
        >>> import torch
        >>> from robustcf.attacks import Softmax
        >>> from robustcf.data import checkerboard
        >>> board = checkerboard()
        >>> g = torch.Generator().manual_seed(0)
        >>> factors = Factors(torch.randn(20, 4, generator=g), torch.randn(30, 4, generator=g))
        >>> curve = auto_curve(factors, board, [Softmax(board.train)], [0, 0.1, 0.5])
        >>> curve.attack, bool((np.diff(curve["ndcg@10"]) <= 0).all())
        ('auto', True)
    """
    members = auto_members(
        factors, split, objectives, epsilons, ks,
        budget=budget, relative=relative, side=side, mask=mask, part=part,
    )  # fmt: skip
    return worst_of(members, "auto", carry=True)


def auto_members(
    factors: Factors,
    split: Split,
    objectives: Sequence[Objective],
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    *,
    budget: Budget | None = None,
    relative: bool = True,
    side: Side = "both",
    mask: Sequence[str] | None = None,
    part: Part = "test",
) -> dict[str, RobustnessCurve]:
    """The curves that :func:`auto_curve` takes the worst of, by name.

    The names are ``fgm-bce``, ``pgd-bce`` and so on, and ``fgm-softmax-fitted`` for a second look
    at the scale where a soft objective is least.
    """
    names = [objective.name for objective in objectives]
    if not names or len(set(names)) != len(names):
        raise InputError(
            f"auto needs objectives of different names, at least one, got {names or 'none'}"
        )
    members = {}
    for objective in objectives:
        fgm = FGM(objective, budget, relative=relative, side=side)
        pgd = PGD(objective, budget, relative=relative, side=side)
        pgd.views = fgm.views
        attacks: dict[str, FGM] = {f"fgm-{objective.name}": fgm, f"pgd-{objective.name}": pgd}
        if relative and fgm.views.softness:
            fitted = FGM(objective, budget, relative=True, side=side, softness=0.0)
            attacks[f"fgm-{objective.name}-fitted"] = fitted
        for name, attack in attacks.items():
            members[name] = robustness_curve(
                factors, split, attack, epsilons, ks, mask=mask, part=part
            )
    return members


def pgd_curve(
    factors: Factors,
    split: Split,
    attack: PGD,
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    *,
    mask: Sequence[str] | None = None,
    part: Part = "test",
) -> RobustnessCurve:
    """The worst of PGD and of its first step, FGM, for each user and metric.

    PGD climbs higher on its objective than FGM, but the objective is not the metric: there one
    long step may do more harm than eight short ones. This curve is never above either.

    Args:
        factors: trained embeddings.
        split: the data.
        attack: PGD with its settings.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics.
        mask: parts that are not candidates; None for the set's own protocol.
        part: the pairs that count.

    Cost: that of PGD's curve, and one evaluation an epsilon.
    """
    fgm = FGM(attack.objective, attack.budget, relative=attack.relative, side=attack.side)
    fgm.views = attack.views
    both = {
        each.name: robustness_curve(factors, split, each, epsilons, ks, mask=mask, part=part)
        for each in (attack, fgm)
    }
    return worst_of(both, attack.name)


def worst_of(
    members: Mapping[str, RobustnessCurve], attack: str, *, carry: bool = False
) -> RobustnessCurve:
    """The least value of each user and metric over several curves.

    Args:
        members: name -> curve, all of the same epsilons, budget, metrics and protocol.
        attack: the name of the result.
        carry: whether what a smaller epsilon did counts for the larger ones too.

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
                f"({curve.axis}, {curve.protocol}) is not like {next(iter(members))} "
                f"({first.axis}, {first.protocol})"
            )

    def least(arrays: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        worst: npt.NDArray[np.float64] = np.minimum.reduce(arrays)
        return np.minimum.accumulate(worst, axis=0) if carry else worst

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
        budget=first.budget,
        relative=first.relative,
        side=first.side,
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
        members: name -> curve, as :func:`auto_members` gives them.
        metric: one with values of single users, ``ndcg@10`` say.

    Returns:
        name -> ``worst`` (as bad as any other; ties count for each) and ``alone`` (worse than all
        others), one count an epsilon.
    """
    stack = np.stack([curve.per_user[metric] for curve in members.values()])
    least = stack == stack.min(axis=0)
    alone = least & (least.sum(axis=0) == 1)
    return {
        name: {"worst": least[n].sum(axis=1).tolist(), "alone": alone[n].sum(axis=1).tolist()}
        for n, name in enumerate(members)
    }


def _frame(curve: RobustnessCurve) -> tuple[object, ...]:
    return (curve.epsilons, curve.axis, set(curve.values), curve.protocol, curve.users.tobytes())
