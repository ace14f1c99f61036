"""Certificates of a whole model: what every user keeps under any attack of a threat."""

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
from robustcf.metrics.evaluate import Protocol
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.curves import CERTIFIED, RobustnessCurve, curve_from_users
from robustcf.robustness.threat import Threat, check_threat

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def certified_curve(
    model: Recommender,
    threat: Threat,
    epsilons: Sequence[float],
    ks: Sequence[int],
    *,
    bound: str = "tight",
) -> RobustnessCurve:
    """Lower bounds of every per-user metric under all attacks of a threat.

    No attack that moves each row of U and of V by at most epsilon (in the Euclidean norm) brings
    any user below these values; the proofs are in :mod:`robustcf.attacks.certificates`.

    Args:
        model: what is attacked.
        threat: of the norm ``row``; what the attacker knows does not matter.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics, ascending.
        bound: ``tight``, exact for every pair, or ``plain``, the sum of the worst of each term;
            with columns held fixed it is the plain one.

    Returns:
        A curve with ``attack="certificate"``, without coverage, which is about all users together.
        At epsilon 0 it is the clean result to the bit.

    Cost: one evaluation and one float64 product of users x items x dim, whatever the number of
    epsilons.

    Example:
        >>> import torch
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> model = Recommender(parity[:20], parity, checkerboard())
        >>> certified_curve(model, Threat(), [0, 0.316, 0.317], [10])["ndcg@10"].tolist()
        [1.0, 1.0, 0.0]
    """
    clean = model.evaluate(ks)
    budgets = threat.row_budgets(model)
    positive = [size for size in epsilons if size > 0]
    proved = (
        certified_metrics(
            model.factors,
            budgets,
            clean.users,
            model.relevant,
            model.seen,
            positive,
            ks,
            bound=bound,
            fixed=model.fixed,
        )
        if positive
        else []
    )
    per_size: list[Mapping[str, npt.NDArray[np.float64]]] = [*proved]
    if len(positive) < len(epsilons):
        per_size.insert(0, clean.per_user)
    moved = (budgets.users, budgets.items)
    return curve_from_users("certificate", threat, epsilons, per_size, clean, moved, CERTIFIED)


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
        middles = ", ".join(
            f"top {k}: {np.quantile(values, 0.5, method='lower'):.3g}"
            for k, values in self.radii.items()
        )
        return f"CertifiedRadii(median {middles}; {self.threat.unit_words})"

    def _repr_html_(self) -> str:
        names = ("q25", "median", "q75", "mean")
        rows = [
            [name, *("unbounded" if found[n] is None else f"{found[n]:.3g}" for n in names)]
            for name, found in self.as_dict().items()
        ]
        return rows_table(["", *names], rows, f"certified radii, {self.threat.unit_words}")

    def plot(self, path: str | Path | None = None) -> Figure | Path:
        """Draw the share of users whose lists stay the same against the size of the attack."""
        from robustcf._io.plots import Line, Panel, draw_panels, plot_panels

        finite = np.concatenate([r[np.isfinite(r)] for r in self.radii.values()])
        top = float(finite.max()) if len(finite) else 1.0
        sizes = np.linspace(0.0, top or 1.0, 60)
        lines = [
            Line(
                f"top {k}",
                sizes.tolist(),
                np.mean(r[:, None] >= sizes, axis=0)[None],
                "certificate",
            )
            for k, r in self.radii.items()
        ]
        panels = [[Panel(lines, self.threat.axis, "share of users with the same items")]]
        return draw_panels(panels) if path is None else plot_panels(panels, path)

    def as_dict(self) -> dict[str, Any]:
        """Mean and quartiles over users for each k, ready for JSON; None where infinite."""

        def finite(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        return {
            f"top{k}": {
                "mean": finite(values.mean()),
                # Of infinite radii no mean can be taken, but the nearest of them can.
                **{
                    name: finite(np.quantile(values, share, method="lower"))
                    for name, share in (("q25", 0.25), ("median", 0.5), ("q75", 0.75))
                },
            }
            for k, values in self.radii.items()
        }


def certified_radii(
    model: Recommender,
    threat: Threat | None = None,
    ks: Sequence[int] = (1, 10),
    *,
    bound: str = "tight",
) -> CertifiedRadii:
    """How large an attack must be before a user's top k are no longer the same items.

    Args:
        model: what is attacked; users with a pair that counts.
        threat: of the norm ``row``; None for the default, relative sizes.
        ks: sizes of the set; 1 is the first recommendation.
        bound: ``tight`` gives the exact radius, ``plain`` a lower bound of it.

    Raises:
        InputError: another norm, bad ks or bound.

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
    clean = model.evaluate(cutoffs)
    budgets, seen = threat.row_budgets(model), model.seen
    radii = {
        k: top_radii(
            model.factors, budgets, clean.users, seen, k, bound=used, fixed=model.fixed
        )
        for k in cutoffs
    }  # fmt: skip
    return CertifiedRadii(radii, clean.users, threat, used, clean.protocol)
