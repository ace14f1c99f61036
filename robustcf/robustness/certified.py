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
from robustcf.errors import InputError
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
    """Return lower bounds of every per-user metric under all attacks of the norm ``row``.

    The proofs are in :mod:`robustcf.attacks.certificates`. Coverage has no bound.

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
        how["folded"] = threat.folded(model, moves, positive[-1])
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
    """Make a curve from the values per user at each epsilon, at 0 the clean result.

    ``moved`` is how far rows of U and of V move at epsilon 1.
    """
    per_user = {name: np.stack([values[name] for values in per_size]) for name in clean.per_user}
    means = {name: values.mean(axis=1) for name, values in per_user.items()}
    if epsilons[0] == 0:
        for name, values in means.items():
            values[0] = clean[name]  # the same bits, in any order of summation
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
    """For each user and k, the epsilon below which the k recommended items stay the same set.

    Args:
        radii: k -> one radius per user; infinite where a user has no other candidates.
        threat: abilities of the attacker; the unit of the radii.
        bound: ``tight`` (the radii are exact) or ``plain``.
    """

    radii: Mapping[int, npt.NDArray[np.float64]]
    users: npt.NDArray[np.int64]
    threat: Threat
    bound: str
    protocol: Protocol

    def __repr__(self) -> str:
        middles = ", ".join(f"{k}: {_shown(v['median'])}" for k, v in self.as_dict().items())
        return f"CertifiedRadii(median {middles}; {self.threat.unit_words})"

    def __str__(self) -> str:
        lines = []
        for k, found in zip(self.radii, self.as_dict().values(), strict=True):
            what = "the first item" if k == 1 else f"the set of the top {k}"
            lines.append(f"median certified radius of {what}: {_shown(found['median'])}")
        exact = ", exact for every pair of items" if self.bound == "tight" else ""
        where = f"row budget on {self.threat.side_words}"
        lines.append(f"{self.bound} bound{exact}; {where}, {self.threat.unit_words}")
        return "\n".join(lines)

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
        """Return mean and quartiles over users for each k, ready for JSON; None where infinite."""
        found = {}
        for k, radii in self.radii.items():
            # Quartiles of infinite radii cannot be interpolated.
            quartiles = np.quantile(radii, list(_QUARTILES.values()), method="lower")
            values = {"mean": radii.mean(), **dict(zip(_QUARTILES, quartiles, strict=True))}
            found[f"top{k}"] = {n: float(v) if np.isfinite(v) else None for n, v in values.items()}
        return found


def _shown(radius: float | None) -> str:
    return "unbounded" if radius is None else f"{radius:.3g}"


def certified_radii(
    model: Recommender,
    threat: Threat | None = None,
    ks: Sequence[int] = (1, 10),
    *,
    bound: str = "tight",
) -> CertifiedRadii:
    """Return how large an attack must be to change a user's top-k set.

    Args:
        model: the recommender; users with a relevant item count.
        threat: of the norm ``row``; None for shares of each row's own length.
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
    threat = check_threat(threat).on(model)
    if threat.side == "items+map":
        raise InputError("radii for the side 'items+map' are not known: use certify, or items")
    cutoffs = check_cutoffs(ks)
    used = usable_bound(bound, model.fixed)
    clean, moves = model.evaluate(cutoffs), threat.row_moves(model)
    how: dict[str, Any] = {"bound": used, "fixed": model.fixed}
    how["folded"] = threat.folded(model, moves, 0.0)
    radii = {k: top_radii(model.factors, moves, clean.users, model.seen, k, **how) for k in cutoffs}
    return CertifiedRadii(radii, clean.users, threat, used, clean.protocol)
