"""Ensembles of attacks: ``auto``, the number to quote, ``pgd`` beside its first step, the control.

How the members are taken together, and why that is legitimate: :mod:`robustcf.robustness.worst`.
"""

from __future__ import annotations

from collections.abc import Sequence

from robustcf.attacks.base import Side
from robustcf.attacks.budgets import Budget
from robustcf.attacks.gradient import FGM, PGD
from robustcf.attacks.noise import RandomNoise
from robustcf.attacks.objectives import Objective
from robustcf.data.interactions import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import Part
from robustcf.robustness.curves import RobustnessCurve, robustness_curve
from robustcf.robustness.worst import worst_of


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
    one of the list, so it never rises with epsilon; :mod:`robustcf.robustness.worst` says why that
    is legitimate. Coverage has no users: there it is the least over the members.

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
        >>> import numpy as np
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


def random_curve(
    factors: Factors,
    split: Split,
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    *,
    draws: int = 1,
    carry: bool = True,
    seed: int = 0,
    budget: Budget | None = None,
    relative: bool = True,
    side: Side = "both",
    mask: Sequence[str] | None = None,
    part: Part = "test",
) -> RobustnessCurve:
    """The control: the worst of some random directions, chosen from as :func:`auto_curve` does.

    Args:
        factors: trained embeddings.
        split: the data.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics.
        draws: how many directions: 1 is the control of a single attack, the number of members
            that of an ensemble.
        carry: see :func:`robustcf.robustness.worst_of`; of no effect for a single direction.
        seed: of the first; each one after it has the next.
        budget: the norm that counts; row by default.
        relative: whether epsilons are in units of the factors' own size.
        side: which factors are perturbed.
        mask: parts that are not candidates; None for the set's own protocol.
        part: the pairs that count.

    Cost: one evaluation for every draw and epsilon.

    Example:
        >>> import torch
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> factors = Factors(parity[:20], parity)
        >>> one, ten = (
        ...     random_curve(factors, checkerboard(), [0, 1], draws=n)["ndcg@10"] for n in (1, 10)
        ... )
        >>> bool(ten[1] < one[1]), bool(ten[0] == one[0])
        (True, True)
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise InputError(f"draws must be an integer of at least 1, got {draws!r}")
    curves = {
        str(n): robustness_curve(
            factors,
            split,
            RandomNoise(budget, seed=seed + n, relative=relative, side=side),
            epsilons,
            ks,
            mask=mask,
            part=part,
        )
        for n in range(draws)
    }
    return worst_of(curves, "random", carry=carry) if draws > 1 else curves["0"]


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
