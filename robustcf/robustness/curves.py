"""Robustness curves: a metric against the size of the attack."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustcf.attacks.base import Attack
from robustcf.data.interactions import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.files import read_arrays, write_arrays, write_json
from robustcf.metrics.evaluate import Part, Protocol, evaluate

_FORMAT = "robustcf curve 1"


@dataclass(frozen=True, eq=False)
class RobustnessCurve:
    """Metrics at each epsilon, with what the attack was and how the numbers were made.

    Args:
        attack: name of the attack.
        objective: what it made worse, or None.
        budget: the norm that counted.
        relative: whether epsilons are in units of the factors' own size.
        side: which factors were perturbed.
        epsilons: ascending.
        values: metric -> one mean an epsilon.
        per_user: metric -> epsilons x users.
        users: ids of the users evaluated.
        realised: for each epsilon, the measured perturbation of users and items.
        protocol: what was ranked, masked and averaged.
    """

    attack: str
    objective: str | None
    budget: str
    relative: bool
    side: str
    epsilons: tuple[float, ...]
    values: Mapping[str, npt.NDArray[np.float64]]
    per_user: Mapping[str, npt.NDArray[np.float64]]
    users: npt.NDArray[np.int64]
    realised: tuple[dict[str, float], ...]
    protocol: Protocol

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]:
        if metric not in self.values:
            raise InputError(f"no metric {metric!r} here; there are {', '.join(self.values)}")
        return self.values[metric]

    @property
    def axis(self) -> str:
        """What epsilon means, for the axis of a picture."""
        units = {
            "row": "median row norms",
            "frobenius": "Frobenius norms",
            "spectral": "spectral norms",
        }
        kind = f"{self.budget} budget" + ("" if self.side == "both" else f" on {self.side}")
        if self.relative:
            return f"attack size, {kind}, in {units.get(self.budget, 'units')} of the factors"
        return f"attack size epsilon, {kind}, absolute"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; without the values of single users."""
        return {
            "attack": self.attack,
            "objective": self.objective,
            "budget": self.budget,
            "relative": self.relative,
            "side": self.side,
            "epsilons": list(self.epsilons),
            **self.as_lists(),
            "realised": list(self.realised),
            "protocol": self.protocol.as_dict(),
        }

    def as_lists(self) -> dict[str, list[float]]:
        """The metrics alone: name -> one mean an epsilon."""
        return {name: values.tolist() for name, values in self.values.items()}

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write the curve as JSON, and the values of single users beside it as ``.npz``.

        Both files are written whole or not at all, the values of the users first: a JSON file
        that is there has them.

        Args:
            path: of the JSON file; its folder is made.
            extra: what else the JSON shall hold; :meth:`load` does not read it.

        Returns:
            The path.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # float32 is exact to 1e-7 and halves the file; a mean of these is never reported.
        values = {name: array.astype(np.float32) for name, array in self.per_user.items()}
        write_arrays(target.with_suffix(".npz"), {"users": self.users, **values})
        written = {"format": _FORMAT, "metrics": list(self.values), **self.as_dict()}
        write_json(target, {**(extra or {}), **written})
        return target

    @classmethod
    def load(cls, path: str | Path) -> RobustnessCurve:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: there is no such curve, or its values of single users are missing.
        """
        source = Path(path)
        try:
            found = json.loads(source.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("format") != _FORMAT:
                raise InputError(f"{source} is no robustness curve (format {_FORMAT!r} expected)")
            arrays = read_arrays(source.with_suffix(".npz"))
            protocol = found["protocol"]
            return cls(
                attack=found["attack"],
                objective=found["objective"],
                budget=found["budget"],
                relative=found["relative"],
                side=found["side"],
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
                ),
            )
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"{source} is no readable robustness curve ({error}): make it again with "
                "'robustcf attack'"
            ) from error


def robustness_curve(
    factors: Factors,
    split: Split,
    attack: Attack,
    epsilons: Sequence[float],
    ks: Sequence[int] = (10, 20),
    *,
    mask: Sequence[str] | None = None,
    part: Part = "test",
) -> RobustnessCurve:
    """Attack factors with growing budgets and evaluate each result on held-out pairs.

    Args:
        factors: trained embeddings.
        split: the data.
        attack: how to perturb.
        epsilons: ascending, from 0 on.
        ks: cutoffs of the metrics.
        mask: parts that are not candidates; None for the set's own protocol.
        part: the pairs that count: ``test``, or ``valid`` to choose by.

    Returns:
        The curve. At epsilon 0 it is the clean result to the bit.

    Raises:
        InputError: epsilons that :func:`check_epsilons` refuses, or factors of other sizes than
            the split.

    Cost: the attack's, and one evaluation an epsilon.

    Example:
        >>> import torch
        >>> from robustcf.attacks import RandomNoise
        >>> from robustcf.data import checkerboard
        >>> board = checkerboard()
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> curve = robustness_curve(Factors(parity[:20], parity), board, RandomNoise(), [0, 2])
        >>> bool(curve["ndcg@10"][0] > curve["ndcg@10"][1])
        True
    """
    sizes = check_epsilons(epsilons)
    check_same_data(factors, split)
    reports, realised = [], []
    for epsilon in sizes:
        attacked = attack.perturb(factors, epsilon)
        reports.append(evaluate(attacked.factors, split, ks, part=part, mask=mask))
        realised.append(attacked.realised)
    first = reports[0]
    return RobustnessCurve(
        attack=attack.name,
        objective=getattr(getattr(attack, "objective", None), "name", None),
        budget=attack.budget.name,
        relative=attack.relative,
        side=attack.side,
        epsilons=sizes,
        values={name: np.array([r.values[name] for r in reports]) for name in first.values},
        per_user={name: np.stack([r.per_user[name] for r in reports]) for name in first.per_user},
        users=first.users,
        realised=tuple(realised),
        protocol=first.protocol,
    )


def check_epsilons(epsilons: Sequence[float]) -> tuple[float, ...]:
    """Epsilons as floats, or an error: finite, not negative, strictly ascending, at least one.

    Example:
        >>> check_epsilons([0, 0.5])
        (0.0, 0.5)
    """
    sizes = tuple(float(epsilon) for epsilon in epsilons)
    if not sizes:
        raise InputError("epsilons must name at least one attack size, got none")
    for epsilon in sizes:
        if not math.isfinite(epsilon) or epsilon < 0:
            raise InputError(f"epsilons must be finite and not negative, got {epsilon}")
    if any(b <= a for a, b in pairwise(sizes)):
        raise InputError(
            f"epsilons must be ascending and differ, got {', '.join(f'{e:g}' for e in sizes)}: "
            "sort them"
        )
    return sizes


def check_same_data(factors: Factors, split: Split) -> None:
    """Raise unless factors have the sizes of a split: before an attack, not after it."""
    if (factors.n_users, factors.n_items) != (split.n_users, split.n_items):
        raise InputError(
            f"factors are for {factors.n_users} users x {factors.n_items} items, {split.name} "
            f"has {split.n_users} x {split.n_items}: they belong to different data"
        )
