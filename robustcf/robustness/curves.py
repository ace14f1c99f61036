"""Robustness curves: a metric against the size of the attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._io.files import write_arrays, write_json
from robustcf._io.schema import OBJECT, check_kind, list_of, record
from robustcf._io.text import rows_table
from robustcf.attacks.base import Attack
from robustcf.errors import InputError
from robustcf.metrics.evaluate import MetricReport, Protocol
from robustcf.recommender import Recommender
from robustcf.robustness.curve_files import FORMATS, is_curve, read_facts, read_users
from robustcf.robustness.threat import Threat

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_FORMAT = FORMATS[-1]

# Whose perturbation the numbers are of. One for all users; for each user the worst of several;
# one of all items for each user alone; or all that there are.
JOINT, PER_USER, ALONE, CERTIFIED = "joint", "per user", "each user alone", "certified"


@dataclass(frozen=True, eq=False)
class RobustnessCurve:
    """Metrics at each epsilon, with what the attack was and how the numbers were made.

    Args:
        attack: name of the attack.
        objective: what it made worse, or None.
        threat: what the attacker could do and knew; the unit of the epsilons.
        epsilons: ascending.
        values: metric -> one mean per epsilon.
        per_user: metric -> epsilons x users.
        users: ids of the users evaluated.
        realised: for each epsilon, the measured perturbation of users and items.
        protocol: what was ranked, masked and averaged.
        kind: ``joint``, one perturbation for all users; ``per user``, for each user the worst of
            several; ``each user alone``, every user with all items against them; ``certified``.
    """

    attack: str
    objective: str | None
    threat: Threat
    epsilons: tuple[float, ...]
    values: Mapping[str, npt.NDArray[np.float64]]
    per_user: Mapping[str, npt.NDArray[np.float64]]
    users: npt.NDArray[np.int64]
    realised: tuple[dict[str, float], ...]
    protocol: Protocol
    kind: str = JOINT

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]:
        if metric not in self.values:
            raise InputError(f"no metric {metric!r} here; there are {', '.join(self.values)}")
        return self.values[metric]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; without the values of single users."""
        return {
            "attack": self.attack,
            "objective": self.objective,
            "kind": self.kind,
            "budget": self.threat.norm,
            "relative": self.threat.relative,
            "unit": self.threat.unit,
            "side": self.threat.side,
            "knowledge": self.threat.knowledge,
            "epsilons": list(self.epsilons),
            **self.as_lists(),
            "realised": list(self.realised),
            "protocol": self.protocol.as_dict(),
        }

    def as_lists(self) -> dict[str, list[float]]:
        """The metrics alone: name -> one mean per epsilon."""
        return {name: values.tolist() for name, values in self.values.items()}

    def to_frame(self) -> pd.DataFrame:
        """Return one row per epsilon, one column per metric."""
        import pandas as pd

        return pd.DataFrame({"epsilon": self.epsilons, **self.as_lists()})

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure | Path:
        """Draw a metric against epsilon: a figure, or with a path the file of it."""
        from robustcf.robustness.plots import draw_curves, plot_curves

        chosen = next(iter(self.values)) if metric is None else metric
        if path is None:
            return draw_curves({self.kind: self}, metric=chosen)
        return plot_curves({self.kind: self}, path, metric=chosen)

    def __repr__(self) -> str:
        metric = next(iter(self.values))
        values = ", ".join(
            f"{epsilon:g}: {value:.4f}"
            for epsilon, value in zip(self.epsilons, self.values[metric], strict=True)
        )
        return f"RobustnessCurve({self.attack}, {self.kind}, {metric} at {values})"

    def _repr_html_(self) -> str:
        shown = list(self.values)[:4]
        rows = [
            [f"{epsilon:g}", *(f"{self.values[name][n]:.4f}" for name in shown)]
            for n, epsilon in enumerate(self.epsilons)
        ]
        return rows_table(["epsilon", *shown], rows, f"{self.attack}, {self.kind}")

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write the curve as JSON, and the values of single users next to it as ``.npz``.

        Both files are written whole or not at all, the values of the users first: a JSON file
        that is there has them.

        Args:
            path: of the JSON file; its folder is made.
            extra: what else the JSON shall hold; :meth:`load` does not read it.

        Returns:
            The path.
        """
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        # float32 is exact to 1e-7 and halves the file; a mean of these is never reported.
        values = {name: array.astype(np.float32) for name, array in self.per_user.items()}
        write_arrays(place.with_suffix(".npz"), {"users": self.users, **values})
        written = {"format": _FORMAT, "metrics": list(self.values), **self.as_dict()}
        write_json(place, {**(extra or {}), **written})
        return place

    @classmethod
    def load(cls, path: str | Path) -> RobustnessCurve:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: there is no such curve, or its values of single users are missing.
        """
        source = Path(path)
        try:
            found = read_facts(source)
            if not is_curve(found):
                raise InputError(f"{source} is no robustness curve (format {_FORMAT!r} expected)")
            check_kind(source, found, record({"realised": list_of(OBJECT)}))
            arrays = read_users(source.with_suffix(".npz"), len(found["epsilons"]))
        except InputError as error:
            raise InputError(
                f"{source} is no readable robustness curve ({error}): make it again with "
                "'robustcf attack'"
            ) from error
        protocol = found["protocol"]
        return cls(
            attack=found["attack"],
            objective=found["objective"] and found["objective"].removeprefix("oracle-"),
            threat=threat_of(found),
            epsilons=tuple(found["epsilons"]),
            values={name: np.array(found[name]) for name in found["metrics"]},
            users=arrays.pop("users"),
            per_user={name: array.astype(np.float64) for name, array in arrays.items()},
            realised=tuple(found["realised"]),
            protocol=Protocol(
                dataset=protocol["dataset"],
                part=protocol["part"],
                masked=tuple(protocol["masked"]),
                n_users=protocol["n_users"],
                n_users_left_out=protocol["n_users_left_out"],
                n_items=protocol["n_items"],
                capped=tuple(protocol.get("capped", ())),
                sampled_from=protocol.get("sampled_from"),
                sample_seed=protocol.get("sample_seed", 0),
            ),
            kind=kind_of(found),
        )


def threat_of(facts: Mapping[str, Any]) -> Threat:
    """The threat of a saved curve; version 0.1 knew no units by name, and called labels an oracle.

    Example:
        >>> threat_of({"budget": "row", "relative": False, "side": "users"})
        Threat(norm='row', unit='absolute', side='users', knowledge='data')
    """
    unit = "relative" if facts["relative"] else "absolute"
    in_0_1 = "labels" if facts.get("oracle") or facts.get("attack") == "certificate" else "data"
    in_0_1 = "none" if facts.get("attack") == "random" else in_0_1
    return Threat(
        norm=facts["budget"],
        unit=facts.get("unit", unit),
        side=facts["side"],
        knowledge=facts.get("knowledge", in_0_1),
    )


def kind_of(facts: Mapping[str, Any]) -> str:
    """The kind of a saved curve; before format 3, ensembles were taken user by user.

    Example:
        >>> kind_of({"attack": "auto"}), kind_of({"attack": "fgm"})
        ('per user', 'joint')
    """
    before = {"auto": PER_USER, "pgd": PER_USER, "certificate": CERTIFIED, "personal": ALONE}
    kind: str = facts.get("kind", before.get(facts["attack"], JOINT))
    return kind


def attack_curve(
    model: Recommender,
    attack: Attack,
    threat: Threat,
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    clean: MetricReport | None = None,
) -> RobustnessCurve:
    """Attack a model with growing budgets and evaluate each result.

    Args:
        model: what is attacked.
        attack: how to perturb; made for this threat.
        threat: what the attacker may do, for the record.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics.
        clean: the evaluation of the model itself, where it is known already.

    Returns:
        The curve. At epsilon 0 it is the clean result to the bit.

    Cost: the attack's, and one evaluation per epsilon.
    """
    known = {} if clean is None else {0.0: clean}
    reports, realised = [], []
    for epsilon in epsilons:
        attacked = attack.perturb(model.factors, epsilon)
        report = known.get(float(epsilon))
        reports.append(model.evaluate(ks, attacked.factors) if report is None else report)
        realised.append(attacked.realised)
    first = reports[0]
    return RobustnessCurve(
        attack=attack.name or type(attack).__name__,
        objective=getattr(getattr(attack, "objective", None), "name", None),
        threat=threat,
        epsilons=tuple(epsilons),
        values={name: np.array([r.values[name] for r in reports]) for name in first.values},
        per_user={name: np.stack([r.per_user[name] for r in reports]) for name in first.per_user},
        users=first.users,
        realised=tuple(realised),
        protocol=first.protocol,
    )


def curve_from_users(
    attack: str,
    threat: Threat,
    epsilons: Sequence[float],
    per_size: Sequence[Mapping[str, npt.NDArray[np.float64]]],
    clean: MetricReport,
    sizes: tuple[float, float],
    kind: str,
) -> RobustnessCurve:
    """A curve from the values of single users at each epsilon; where it is 0, the clean ones.

    Args:
        attack: its name.
        threat: what the attacker may do.
        epsilons: ascending.
        per_size: for each epsilon, metric -> one value per user.
        clean: the evaluation without attack.
        sizes: how far rows of U and of V move at epsilon 1.
        kind: of the curve.
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
        realised=tuple({"users": e * sizes[0], "items": e * sizes[1]} for e in epsilons),
        protocol=clean.protocol,
        kind=kind,
    )
