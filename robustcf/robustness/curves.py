"""Robustness curves: metrics against the size of the attack, as values and as files.

A saved curve is a JSON file with every setting, next to an ``.npz`` file with the values per user.
Reading them does not load torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._io import schema
from robustcf._io.files import json_bytes, read_arrays, write_arrays, write_bytes
from robustcf._io.reading import parse_json, read_plain
from robustcf._io.schema import TEXT, Kind, check_kind, choice, list_of, nullable, record, shown
from robustcf._io.text import digest_name, rows_table
from robustcf.data.split import PROTOCOL
from robustcf.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from robustcf.factors import Factors
    from robustcf.metrics.evaluate import Protocol
    from robustcf.robustness.threat import Threat

FORMAT = "robustcf curve 4"
#: Kinds of curves, see :class:`RobustnessCurve`.
JOINT, PER_USER, ALONE, CERTIFIED = "joint", "per user", "each user alone", "certified"
_KIND_WORDS = {
    JOINT: "joint (one perturbation for all users)",
    PER_USER: "per user (each user's worst of several perturbations)",
    ALONE: "each user alone (all items moved against one user at a time)",
    CERTIFIED: "certified (no attack of the size leaves any user less)",
}
_KNOWN_WORDS = {
    "labels": "the labels",
    "sample": "the labels of the evaluated users, a sample, and aims at no others",
    "data": "the training pairs",
}
# Options of attacks; each is a key of the file where it affects the result.
OPTIONS = ("steps", "restarts", "seed", "draws", "bound")
_SETTINGS = ("attack", "objective", "kind", "budget", "unit", "side", "knowledge", *OPTIONS)
# Above this ratio the median row norm does not represent the rows, see attacks.unevenness.
_UNEVEN = 1.2

_NAME = Kind("a name of letters, digits and signs", lambda v: TEXT.fits(v) and 0 < len(v) < 200)
_METRIC_NAME = Kind(
    "a metric with its cutoff, as ndcg@10",
    lambda v: TEXT.fits(v) and bool(re.fullmatch(r"[a-z_]+@[1-9][0-9]{0,8}", v)),
)
_CURVE = record(
    {
        "format": choice(FORMAT),
        "attack": _NAME,
        "objective": nullable(_NAME),
        "kind": choice(*_KIND_WORDS),
        "budget": choice("row", "frobenius", "spectral"),
        "relative": schema.FLAG,
        "unit": choice("relative", "own", "absolute"),
        "side": choice("both", "users", "items", "items+map"),
        "knowledge": nullable(choice("labels", "sample", "data", "none")),
        "epsilons": list_of(schema.NOT_NEGATIVE, 1),
        "metrics": list_of(_METRIC_NAME, 1),
        "realised": list_of(schema.OBJECT),
        "protocol": PROTOCOL,
    },
    {
        **{key: schema.whole(1) for key in ("steps", "restarts", "draws")},
        "seed": schema.whole(),
        "bound": choice("tight", "plain"),
    },
)


@dataclass(frozen=True, eq=False)
class RobustnessCurve:
    """Metrics at each epsilon, with the settings of the attack and the protocol.

    Args:
        values: metric -> one mean per epsilon.
        per_user: metric -> epsilons x users, whose ids are ``users``.
        realised: for each epsilon, the measured perturbation of users and items.
        kind: ``joint``, one perturbation for all users; ``per user``, for each user the worst of
            several; ``each user alone``, all items moved against one user; ``certified``.
        options: other settings: ``steps``, ``restarts``, ``seed``, ``bound``, and ``draws``, the
            number of random directions chosen from.
        attacked: the perturbed factors at each epsilon, if they were asked for; not saved.
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
    options: Mapping[str, Any] = field(default_factory=dict)
    attacked: tuple[Factors, ...] = field(default=(), repr=False)

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]:
        if metric not in self.values:
            raise InputError(f"no metric {metric!r} here; there are {', '.join(self.values)}")
        return self.values[metric]

    @property
    def name(self) -> str:
        """The name of its file: the attack and a digest of all settings."""
        return SavedCurve(Path(), self._facts()).name

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, without those per user."""
        return {
            "attack": self.attack,
            "objective": self.objective,
            "kind": self.kind,
            "budget": self.threat.norm,
            "relative": self.threat.relative,
            "unit": self.threat.unit,
            "side": self.threat.side,
            "knowledge": self.threat.knowledge,
            **self.options,
            "epsilons": list(self.epsilons),
            **self.as_lists(),
            "realised": list(self.realised),
            "protocol": self.protocol.as_dict(),
        }

    def _facts(self) -> dict[str, Any]:
        return {"format": FORMAT, "metrics": list(self.values), **self.as_dict()}

    def as_lists(self) -> dict[str, list[float]]:
        """Return metric -> one mean per epsilon."""
        return {name: values.tolist() for name, values in self.values.items()}

    def to_frame(self) -> pd.DataFrame:
        """Return one row per epsilon, one column per metric."""
        import pandas as pd

        return pd.DataFrame({"epsilon": self.epsilons, **self.as_lists()})

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure | Path:
        """Draw a metric (None: the first) against epsilon: a figure, or with a path its file."""
        from robustcf.robustness.plots import plot_curves

        return plot_curves({self.kind: self}, path, metric=metric or next(iter(self.values)))

    def __repr__(self) -> str:
        metric, means = next(iter(self.values.items()))
        pairs = zip(self.epsilons, means, strict=True)
        values = ", ".join(f"{epsilon:g}: {value:.4f}" for epsilon, value in pairs)
        return f"RobustnessCurve({self.attack}, {self.kind}, {metric} at {values})"

    def _repr_html_(self) -> str:
        return frame_table(self.to_frame().iloc[:, :5], f"{self.attack}, {self.kind}")

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write the curve as JSON, and the values per user next to it as ``.npz``, atomically.

        The folder of ``path`` is made; ``extra`` keys of the JSON are ignored by :meth:`load`.
        """
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(place.with_suffix(".npz"), self._arrays())
        write_bytes(place, json_bytes({**(extra or {}), **self._facts()}))
        return place

    def store(self, folder: Path, extra: Mapping[str, Any]) -> tuple[Path, bool]:
        """Save it in a folder under its own name, unless the same result is there.

        Returns the file, and whether another result of the same settings was replaced.
        """
        path = folder / f"{self.name}.json"
        replaced = path.is_file()
        if not replaced:
            return self.save(path, extra), False
        with suppress(InputError):  # damaged or missing values per user are not another result
            replaced = read_plain(path) != json_bytes({**extra, **self._facts()})
            there, new = read_arrays(path.with_suffix(".npz")), self._arrays()
            same = there.keys() == new.keys()
            same = same and all(np.array_equal(there[name], new[name]) for name in new)
            if same and not replaced:
                return path, False
            replaced = True
        return self.save(path, extra), replaced

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        # float32 is exact to 1e-7 and halves the file; a mean of these is never reported.
        values = {name: array.astype(np.float32) for name, array in self.per_user.items()}
        return {"users": self.users, **values}

    @classmethod
    def load(cls, path: str | Path) -> RobustnessCurve:
        """Read a saved curve; raise InputError if a file is damaged, missing or not a curve."""
        from robustcf.metrics.evaluate import Protocol
        from robustcf.robustness.threat import Threat

        try:
            saved = _read(Path(path))
            if saved is None:
                raise InputError(f"expected the format {FORMAT!r}")
            arrays = saved.arrays()
        except InputError as error:
            words = f"{path} is not a robustness curve ({error})"
            raise InputError(f"{words}: make it again with 'robustcf attack'") from error
        facts = saved.facts
        protocol: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in facts["protocol"].items()
            if key in Protocol.__dataclass_fields__
        }
        return cls(
            attack=facts["attack"],
            objective=facts["objective"],
            threat=Threat(facts["budget"], facts["unit"], facts["side"], facts["knowledge"]),
            epsilons=saved.epsilons,
            values={name: np.array(facts[name]) for name in facts["metrics"]},
            users=arrays.pop("users"),
            per_user={name: array.astype(np.float64) for name, array in arrays.items()},
            realised=tuple(facts["realised"]),
            protocol=Protocol(**protocol),
            kind=facts["kind"],
            options={key: facts[key] for key in OPTIONS if key in facts},
        )


@dataclass(frozen=True, eq=False)
class SavedCurve:
    """A curve file: its path and checked content; values per user are read when asked for."""

    path: Path
    facts: Mapping[str, Any]

    @cached_property
    def name(self) -> str:
        """The name made from its settings, regardless of the name of its file."""
        told = [self.settings, self.facts["metrics"], self.facts["protocol"]]
        attack = filter(None, (self.facts["attack"], self.facts["objective"]))
        return digest_name("-".join(attack), told)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """See :func:`settings_of`."""
        return settings_of(self.facts)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The attack sizes."""
        return tuple(self.facts["epsilons"])

    def users(self) -> npt.NDArray[np.int64]:
        """Return the ids of the users."""
        return self.arrays()["users"]

    def per_user(self, metric: str) -> npt.NDArray[np.float64]:
        """Return epsilons x users; raise for coverage, which has no values per user."""
        arrays = self.arrays()
        if metric not in arrays:
            known = ", ".join(name for name in arrays if name != "users")
            words = f"{self.path} has no values per user for {metric!r}"
            raise InputError(f"{words} (coverage is of the whole list); there are {known}")
        return arrays[metric].astype(np.float64)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return metric -> epsilons x users, and under ``users`` the ids; all checked."""
        path = self.path.with_suffix(".npz")
        arrays = read_arrays(path)
        n_users = arrays.setdefault("users", np.zeros(0)).size
        for name, array in arrays.items():
            ids = name == "users"
            shape = (n_users,) if ids else (len(self.epsilons), n_users)
            if array.shape != shape or array.dtype.kind not in ("iu" if ids else "f"):
                kind = f"{'integers' if ids else 'floats'} of shape {shape}"
                got = f"{array.dtype} of shape {array.shape}"
                raise InputError(f"{path}: {shown(name)} must be {kind}, got {got}")
            if not ids and not ((array >= 0) & (array <= schema.MOST_RATE)).all():
                raise InputError(f"{path}: {shown(name)} must be in [0, 1], got another value")
        return arrays


def settings_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a curve measures: attack, threat, options, epsilons, cutoffs and split.

    Curves of one recommender with equal settings are the same measurement.
    """
    return {
        **{key: facts.get(key) for key in _SETTINGS},
        "epsilons": [float(size) for size in facts["epsilons"]],
        "ks": sorted({int(metric.split("@")[1]) for metric in facts["metrics"]}),
        "part": facts["protocol"]["part"],
    }


def read_curves(folder: Path) -> dict[str, SavedCurve]:
    """Return the complete curves of a folder by name; other JSON is skipped."""
    curves: dict[str, SavedCurve] = {}
    for path in sorted(folder.glob("*.json")):
        curve = _read(path)
        if curve is None or not path.with_suffix(".npz").is_file():
            continue
        if curve.name not in curves or path.stem == curve.name:
            curves[curve.name] = curve
    return curves


def _read(path: Path) -> SavedCurve | None:
    """Return the curve in a file, checked; None for JSON that is not a curve."""
    try:
        facts = parse_json(read_plain(path))
    except InputError as error:
        raise InputError(f"{path} cannot be read as JSON ({error})") from error
    said = facts.get("format") if isinstance(facts, dict) else None
    if not isinstance(said, str) or not said.startswith("robustcf curve "):
        return None
    if said != FORMAT:
        advice = "remove the file and attack again"
        raise InputError(f"{path}: expected the format {FORMAT!r}, got {shown(said)}; {advice}")
    check_kind(path, facts, _CURVE)
    sizes = facts["epsilons"]
    if any(b <= a for a, b in pairwise(sizes)):
        raise InputError(f"{path}: epsilons must be strictly ascending, got {shown(sizes)}")
    means = list_of(schema.RATE, len(sizes), len(sizes))
    check_kind(path, facts, record(dict.fromkeys(facts["metrics"], means)))
    return SavedCurve(path, facts)


def frame_table(frame: pd.DataFrame, caption: str) -> str:
    """Return a frame of epsilons and metrics as HTML, for notebooks."""
    rows = [
        [f"{row[0]:g}", *(f"{value:.4f}" for value in row[1:])]
        for row in frame.itertuples(index=False)
    ]
    return rows_table(list(frame.columns), rows, caption)


def kind_words(facts: Mapping[str, Any]) -> str:
    """Return the kind of a curve and the knowledge of the attacker in words.

    Example:
        >>> kind_words({"kind": "joint", "knowledge": "labels"})
        'joint (one perturbation for all users), the attacker knows the labels'
    """
    kind = _KIND_WORDS[facts["kind"]]
    if facts["kind"] == CERTIFIED:
        return kind
    known = _KNOWN_WORDS.get(facts["knowledge"], "nothing but the embeddings")
    return f"{kind}, the attacker knows {known}"


def uneven_words(ratios: Mapping[str, float | None]) -> str:
    """Name the factors whose row norms are far from their median; empty where none are.

    Args:
        ratios: ``users`` and ``items`` -> :func:`robustcf.attacks.unevenness`.

    Example:
        >>> uneven_words({"users": 1.1, "items": 4.2})
        'row norms are uneven (items: root mean square 4.2 medians)'
    """
    found = [
        f"{name}: " + ("median 0" if ratio is None else f"root mean square {ratio:.2g} medians")
        for name, ratio in ratios.items()
        if ratio is None or ratio > _UNEVEN
    ]
    return f"row norms are uneven ({', '.join(found)})" if found else ""
