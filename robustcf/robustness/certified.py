"""Certificates of a whole model: certified metrics and radii under every attack of a threat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_cutoffs
from robustcf._io.text import rows_table
from robustcf.attacks.certificates.bounds import certified_metrics, top_radii, usable_bound
from robustcf.metrics.evaluate import MetricReport, Protocol
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.curves import CERTIFIED, RobustnessCurve
from robustcf.robustness.threat import Threat, check_threat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUARTILES = {"q25": 0.25, "median": 0.5, "q75": 0.75}


def certified_curve(
    model: Recommender,
    threat: Threat,
    epsilons: Sequence[float],
    ks: Sequence[int],
    *,
    bound: str = "tight",
) -> RobustnessCurve:
    """Lower bounds of every per-user metric under all attacks of a threat of the norm ``row``.

    No attack that moves each row of U and of V by at most epsilon (in the Euclidean norm) brings
    any user below these values; the proofs are in :mod:`robustcf.attacks.certificates`. Coverage,
    which is about all users together, has no bound.

    Cost: one evaluation and one float64 product of users x items x dim, for any number of epsilons.
    """
    clean, moves = model.evaluate(ks), threat.row_moves(model)
    positive = [size for size in epsilons if size > 0]
    per_size: list[Mapping[str, npt.NDArray[np.float64]]] = []
    if len(positive) < len(epsilons):
        per_size.append(clean.per_user)
    if positive:
        pairs = (clean.users, model.relevant, model.seen)
        how: dict[str, Any] = {"bound": bound, "fixed": model.fixed}
        per_size += certified_metrics(model.factors, moves, *pairs, positive, ks, **how)
    moved = (moves.users, moves.items)
    return curve_from_users("certificate", threat, epsilons, per_size, clean, moved, CERTIFIED)


def curve_from_users(
    attack: str,
    threat: Threat,
    epsilons: Sequence[float],
    per_size: Sequence[Mapping[str, npt.NDArray[np.float64]]],
    clean: MetricReport,
    moved: tuple[float, float],
    kind: str,
) -> RobustnessCurve:
    """A curve from the values of single users at each epsilon.

    ``moved`` is how far rows of U and of V move at epsilon 1; at 0 the curve is the clean result.
    """
    per_user = {name: np.stack([values[name] for values in per_size]) for name in clean.per_user}
    means = {name: values.mean(axis=1) for name, values in per_user.items()}
    if epsilons[0] == 0:
        for name, values in means.items():
            values[0] = clean[name]  # the very bits, whatever the order of summation
    return RobustnessCurve(
        attack=attack,
        objective=None,
        threat=threat,
        epsilons=tuple(epsilons),
        values=means,
        per_user=per_user,
        users=clean.users,
        realised=tuple({"users": e * moved[0], "items": e * moved[1]} for e in epsilons),
        protocol=clean.protocol,
        kind=kind,
    )


@dataclass(frozen=True, eq=False)
class CertifiedRadii:
    """For each user and k, the attack size below which the k recommended items stay the same set.

    Args:
        radii: k -> one radius per user; infinite where a user has no other candidates.
        users: ids of the users.
        threat: what the attacker may do; the unit of the radii.
        bound: ``tight`` (the radii are exact) or ``plain``.
        protocol: what was ranked and masked.
    """

    radii: Mapping[int, npt.NDArray[np.float64]]
    users: npt.NDArray[np.int64]
    threat: Threat
    bound: str
    protocol: Protocol

    def __repr__(self) -> str:
        middles = ", ".join(f"{k}: {_shown(v['median'])}" for k, v in self.as_dict().items())
        return f"CertifiedRadii(median {middles}; {self.threat.unit_words})"

    def _repr_html_(self) -> str:
        names = (*_QUARTILES, "mean")
        rows = [
            [name, *(_shown(found[n]) for n in names)] for name, found in self.as_dict().items()
        ]
        return rows_table(["", *names], rows, f"certified radii, {self.threat.unit_words}")

    def plot(self, path: str | Path | None = None) -> Figure | Path:
        """Draw the share of users whose lists stay the same against the size of the attack."""
        from robustcf._io.plots import Line, Panel, plot_panels

        finite = np.concatenate([r[np.isfinite(r)] for r in self.radii.values()])
        sizes = np.linspace(0.0, finite.max(initial=0.0) or 1.0, 60)
        shares = {k: np.mean(r[:, None] >= sizes, axis=0)[None] for k, r in self.radii.items()}
        lines = [Line(f"top {k}", sizes.tolist(), s, "certificate") for k, s in shares.items()]
        panel = Panel(lines, self.threat.axis, "share of users with the same items")
        return plot_panels([[panel]], path)

    def as_dict(self) -> dict[str, Any]:
        """Mean and quartiles over users for each k, ready for JSON; None where infinite."""

        def told(values: npt.NDArray[np.float64]) -> dict[str, float | None]:
            # Of infinite radii no mean can be taken, but the nearest of them can.
            quartiles = np.quantile(values, list(_QUARTILES.values()), method="lower")
            found = {"mean": values.mean(), **dict(zip(_QUARTILES, quartiles, strict=True))}
            return {name: float(v) if np.isfinite(v) else None for name, v in found.items()}

        return {f"top{k}": told(values) for k, values in self.radii.items()}


def _shown(radius: float | None) -> str:
    return "unbounded" if radius is None else f"{radius:.3g}"


def certified_radii(
    model: Recommender,
    threat: Threat | None = None,
    ks: Sequence[int] = (1, 10),
    *,
    bound: str = "tight",
) -> CertifiedRadii:
    """How large an attack must be before a user's top k are no longer the same items.

    Args:
        model: the recommender; of users with a relevant item.
        threat: of the norm ``row``; None for the default, relative sizes.
        ks: sizes of the set; 1 is the first recommendation.
        bound: ``tight`` gives the exact radius, ``plain`` a lower bound of it.

    Cost: for each k one ranking and one float64 product of users x items x dim.

    Example:
        >>> import torch
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> found = certified_radii(Recommender(parity[:20], parity, checkerboard()), ks=(1,))
        >>> found.radii[1].max()  # many items are alike: the first is a tie
        np.float64(0.0)
    """
    check_recommender(model)
    threat = check_threat(threat)
    cutoffs = check_cutoffs(ks)
    used = usable_bound(bound, model.fixed)
    clean, moves = model.evaluate(cutoffs), threat.row_moves(model)
    how: dict[str, Any] = {"bound": used, "fixed": model.fixed}
    radii = {k: top_radii(model.factors, moves, clean.users, model.seen, k, **how) for k in cutoffs}
    return CertifiedRadii(radii, clean.users, threat, used, clean.protocol)
