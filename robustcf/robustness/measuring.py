"""``measure``: a model, an attack and a threat in, a result out. The one door to robustness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcf._checks import check_cutoffs, check_epsilons
from robustcf._io.files import read_arrays, read_json
from robustcf._io.progress import shows
from robustcf._io.text import rows_table
from robustcf._runtime import threads_used
from robustcf.attacks import Attack, OwnRowBudget, unevenness
from robustcf.attacks.certificates.bounds import usable_bound
from robustcf.errors import InputError
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.curves import (
    ALONE,
    CERTIFIED,
    JOINT,
    PER_USER,
    RobustnessCurve,
    attack_curve,
)
from robustcf.robustness.table import (
    AUTO,
    CERTIFICATE,
    CUTOFFS,
    RANDOM,
    AttackSpec,
    Request,
    random_member,
)
from robustcf.robustness.threat import Threat, check_threat
from robustcf.robustness.worst import joint_of, worst_counts, worst_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Result:
    """What an attack leaves of a model, or what a certificate promises.

    Args:
        spec: the attack and its options.
        model: what was attacked.
        curve: metrics by size; of an attack, under one perturbation for all users: joint.
        control: the same budget in random directions, chosen from as often; None for certificates.
        members: of an ensemble, name -> curve; else None.
        draws: how many random directions the control is chosen from.
        per_user: of an ensemble, each user's worst over all members: never to be mixed with the
            joint curve; else None.
        per_user_control: each user's worst over as many random directions.
        with_data: the same attack by somebody who knows the training pairs and no labels; only of
            ``auto`` where that is not what was asked for.
    """

    spec: AttackSpec
    model: Recommender
    curve: RobustnessCurve
    control: RobustnessCurve | None = None
    members: dict[str, RobustnessCurve] | None = None
    draws: int = 1
    per_user: RobustnessCurve | None = None
    per_user_control: RobustnessCurve | None = None
    with_data: Result | None = None

    @property
    def threat(self) -> Threat:
        """What the attacker could do and knew."""
        return self.curve.threat

    @property
    def metric(self) -> str:
        """The metric that tables and pictures show."""
        return next(iter(self.curve.values))

    @property
    def ks(self) -> list[int]:
        """The cutoffs of its metrics."""
        return sorted({int(name.split("@")[1]) for name in self.curve.values})

    @property
    def stem(self) -> str:
        """The name of its file, which tells all settings."""
        return self.spec.file_name(self.threat, self.model.part, self.curve.epsilons, self.ks)

    @property
    def control_stem(self) -> str:
        """The name of the control's file."""
        return self.spec.control_file_name(
            self.threat, self.model.part, self.curve.epsilons, self.ks
        )  # fmt: skip

    @property
    def picture_stem(self) -> str:
        """The name of its picture, which shows the control too: it tells the control's seed."""
        told = self.control is None or self.spec.way.seeded(self.spec) or not self.spec.seed
        return self.stem if told else f"{self.stem}-seed{self.spec.seed}"

    def extra(self) -> dict[str, Any]:
        """What a file holds next to the curve: the other numbers, and how even the rows are."""
        found: dict[str, Any] = {}
        if self.spec.kind == CERTIFICATE:
            found["bound"] = self.spec.bound
        if self.per_user is not None:
            found["per_user"] = self.per_user.as_lists()
        if self.members:
            counts = worst_counts(self.members, self.metric)
            found["members"] = {
                name: {**member.as_lists(), **counts[name]} for name, member in self.members.items()
            }
        if self.threat.unit == "relative" and self.threat.norm == "row":
            names = ("users", "items")
            parts, free = zip(names, self.model.factors, strict=True), self.model.free
            found["unevenness"] = {name: unevenness(part[:, free]) for name, part in parts}
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        data = {**self.curve.as_dict(), **self.extra()}
        if self.control is not None:
            data |= {"random": self.control.as_lists(), "random_draws": self.draws}
        if self.per_user_control is not None:
            data["random_per_user"] = self.per_user_control.as_lists()
        if self.with_data is not None:
            known = self.with_data
            per_user = known.per_user.as_lists() if known.per_user is not None else {}
            data["with_data"] = {**known.curve.as_lists(), "per_user": per_user}
        return data

    def save(self, folder: str | Path) -> tuple[Path, bool]:
        """Write the curve, its control and its companion under names that tell all settings.

        Returns:
            The curve's file, and whether it replaced another result of the same settings, from
            another version or number of threads, say. An equal one is left as it is.
        """
        place = Path(folder) / f"{self.stem}.json"
        replaced = _store(self.curve, place, self.extra())
        if self.control is not None and self.control is not self.curve:
            # As the attack random writes it: one file, whoever made it.
            noise = Result(AttackSpec(RANDOM, seed=self.spec.seed), self.model, self.control)
            _store(self.control, Path(folder) / f"{self.control_stem}.json", noise.extra())
        if self.with_data is not None:
            self.with_data.save(folder)
        return place, replaced

    def to_frame(self) -> pd.DataFrame:
        """Return one row per epsilon: all metrics under the attack, and its random control."""
        frame = self.curve.to_frame()
        if self.control is not None and self.control is not self.curve:
            frame[f"random {self.metric}"] = self.control[self.metric]
        return frame

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure | Path:
        """Draw a metric against epsilon, with the random control next to it.

        Args:
            path: where to write it, ``.png`` or ``.svg``; None returns the figure.
            metric: None for the first one.
        """
        from robustcf.robustness.plots import draw_curves, plot_curves

        label = self.model.label or "model"
        curves = {label: self.curve}
        if self.per_user is not None:
            curves[f"{label}, per user"] = self.per_user
        if self.with_data is not None:
            curves[f"{label}, without labels"] = self.with_data.curve
        controls = None
        if self.control is not None and self.control is not self.curve:
            controls = {label: self.control}
        chosen = self.metric if metric is None else metric
        if path is None:
            return draw_curves(curves, metric=chosen, controls=controls)
        return plot_curves(curves, path, metric=chosen, controls=controls)

    def __repr__(self) -> str:
        return f"Result({self.spec.name} on {self.model!r}: {self.curve!r})"

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        rows = [
            [f"{row[0]:g}", *(f"{value:.4f}" for value in row[1:])]
            for row in frame.itertuples(index=False)
        ]
        return rows_table(list(frame.columns), rows, self.headline)

    def __str__(self) -> str:
        ks = self.ks
        wanted = (f"ndcg@{ks[0]}", f"mrr@{ks[0]}", f"coverage@{ks[0]}", f"recall@{ks[-1]}")
        shown = [name for name in wanted if name in self.curve.values]
        first = shown[0]
        columns = {name: self.curve[name] for name in shown}
        if self.control is not None and self.control is not self.curve:
            random = "random" if self.draws == 1 else f"worst of {self.draws} random"
            columns[f"{random}: {first}"] = self.control[first]
        if self.per_user is not None:
            columns[f"per user: {first}"] = self.per_user[first]
        if self.per_user_control is not None:
            columns[f"per user, {self.draws} random: {first}"] = self.per_user_control[first]
        if self.with_data is not None:
            columns[f"knows data: {first}"] = self.with_data.curve[first]
        rows = [["size", *columns]]
        for n, size in enumerate(self.curve.epsilons):
            rows.append([f"{size:g}", *(f"{values[n]:.4f}" for values in columns.values())])
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        how = self.spec.words(self.threat, self.model.part)
        what = f"{how}; {self.threat.norm} budget on {self.threat.side}, "
        told = f"{what}{self.threat.unit_words}; {self.curve.protocol}"
        return "\n".join([self.headline, *lines, told])

    @property
    def headline(self) -> str:
        """Whose perturbation it is and what the attacker knows: without that, no number counts."""
        kind = self.curve.kind
        what = {
            JOINT: "joint: one perturbation for all users",
            PER_USER: "per user: for each user the worst of several perturbations",
            ALONE: "each user alone: all items moved against one user at a time",
            CERTIFIED: "certified: no attack of the size leaves any user less",
        }.get(kind, kind)
        return what if kind == CERTIFIED else f"{what}; the attacker knows {self.threat.knows}"


def measure(
    model: Recommender,
    attack: str | AttackSpec | Attack = AUTO,
    threat: Threat | None = None,
    epsilons: Sequence[float] | None = None,
    ks: Sequence[int] = CUTOFFS,
    *,
    control: bool = True,
    progress: bool | None = None,
    threads: int | None = None,
    **options: Any,
) -> Result:
    """What an attack leaves of a model at growing sizes, or what a certificate promises.

    Args:
        model: what is attacked.
        attack: a name (``auto``, ``cutoff``, ``fgm-bce``, ``pgd-softmax``, ``random``,
            ``certificate``, ``personal``), see :mod:`robustcf.robustness.table`; or an attack of
            your own.
        threat: what the attacker may do and knows; None for a row budget in units of the factors'
            own size, on both sides, and what the attack assumes to be known (``auto``: labels).
        epsilons: ascending, from 0 on; None for those of the table.
        ks: cutoffs of the metrics.
        control: whether to make the random control too, and for ``auto`` what an attacker
            without labels does.
        progress: whether to show a bar; None: in a terminal and in a notebook.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the cores that may be used.
        **options: of the attack by name: ``objective``, ``steps``, ``restarts``, ``seed``,
            ``bound``.

    Returns:
        The result; ``print`` shows it as a table, ``.curve["ndcg@10"]`` has the numbers.

    Raises:
        InputError: an unknown attack, sizes that are not ascending or beyond computing, a norm
            without certificate, an attacker who knows nothing and needs to.

    Cost: for every size, one evaluation per member and direction, and the gradients of the attack:
    one in all for ``fgm``, ``(steps + 1) * restarts`` per size for ``pgd`` and ``cutoff``. ``auto``
    is ``cutoff`` and three ``fgm``, once with labels (50 steps a size) and once without (10).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> model = Recommender(rng.normal(size=(9, 4)), rng.normal(size=(7, 4)), np.eye(9, 7))
        >>> result = measure(model, "fgm-softmax", epsilons=[0, 0.5], ks=[1])
        >>> bool(result.curve["ndcg@1"][1] <= result.curve["ndcg@1"][0])
        True
    """
    check_recommender(model)
    cutoffs = check_cutoffs(ks)
    if isinstance(attack, Attack):
        return _measure_own(model, attack, threat, epsilons, cutoffs, options, control=control)
    spec = AttackSpec.parse(attack, **options) if isinstance(attack, str) else attack
    if not isinstance(spec, AttackSpec) or (options and not isinstance(attack, str)):
        raise InputError(
            f"attack must be a name, an AttackSpec with its options in it, or an Attack, got "
            f"{attack!r}"
        )
    threat = check_threat(threat)
    if spec.kind == CERTIFICATE:
        spec = replace(spec, bound=usable_bound(spec.bound, model.fixed))
    sizes = check_epsilons(spec.sizes(threat.unit) if epsilons is None else epsilons)
    threat.check_sizes(model, sizes)
    request = Request(model, threat, spec, sizes, cutoffs, shows(progress))
    with threads_used(threads, model.n_users, model.n_items):
        result = _result(request, control=control)
        if spec.kind == AUTO and request.threat.knowledge == "labels" and control:
            guessing = replace(request, threat=replace(threat, knowledge="data"))
            result = replace(result, with_data=_result(guessing, control=False))
    return result


def certify(
    model: Recommender,
    epsilons: Sequence[float] | None = None,
    *,
    fakes: Sequence[int] | None = None,
    threat: Threat | None = None,
    ks: Sequence[int] = CUTOFFS,
    bound: str = "tight",
    threads: int | None = None,
) -> Any:
    """Return certified lower bounds: what stays under every attack of a size.

    Args:
        model: the recommender.
        epsilons: how far rows of the embeddings may move, ascending; None for those of the table.
        fakes: instead, numbers of fake accounts, for a recommender that counts votes.
        threat: the unit of the sizes and the side, of the norm ``row``.
        ks: cutoffs of the metrics.
        bound: ``tight``, exact for every pair of items, or ``plain``.
        threads: CPU threads, see :func:`measure`.

    Returns:
        A :class:`Result` with a certified curve; with ``fakes``, a
        :class:`robustcf.models.voting.CertifiedVotes`.

    Raises:
        InputError: a kind without embeddings, or one without a certificate against fakes.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> model = Recommender(rng.normal(size=(9, 4)), rng.normal(size=(7, 4)), np.eye(9, 7))
        >>> found = certify(model, [0, 0.01], ks=[1])
        >>> bool(found.curve["ndcg@1"][1] <= found.curve["ndcg@1"][0])
        True
    """
    check_recommender(model)
    if fakes is None:
        return measure(model, CERTIFICATE, threat, epsilons, ks, bound=bound, threads=threads)
    if epsilons is not None or threat is not None:
        raise InputError("fakes are accounts, epsilons and threat about embeddings: give one")
    with threads_used(threads, model.n_users, model.n_items):
        return model.scorer.certify_fakes(model.split, fakes, ks, part=model.part, mask=model.mask)


def _result(request: Request, *, control: bool) -> Result:
    spec, model, draws = request.spec, request.model, request.spec.way.draws
    members = spec.way.members(request)
    curve, per_user = next(iter(members.values())), None
    if len(members) > 1:
        curve = joint_of(members, spec.kind, request.metric)
        per_user = worst_of(members, spec.kind, cumulative=True)
    shown = members if spec.kind == AUTO else None
    if spec.kind == RANDOM:
        return Result(spec, model, curve, curve)
    if not control or spec.kind == CERTIFICATE:
        return Result(spec, model, curve, None, shown, draws, per_user)
    noise = random_directions(request, draws)
    worst = worst_of(noise, RANDOM, cumulative=True) if draws > 1 else None
    if curve.kind == ALONE:
        return Result(spec, model, curve, worst, shown, draws)
    # One direction at each size is no choice, as the attack has none: the curve of random itself.
    joint = joint_of(noise, RANDOM, request.metric) if draws > 1 else noise["0"]
    return Result(spec, model, curve, joint, shown, draws, per_user, worst)


def random_directions(request: Request, draws: int) -> dict[str, RobustnessCurve]:
    """Curves of some random directions: what an attack that chooses is to be compared with.

    Choosing the worst of several does harm by itself: the control of an ensemble chooses from as
    many random directions as it has members.
    """
    spec = AttackSpec(RANDOM, seed=request.spec.seed)
    threat = replace(request.threat, knowledge="none")
    noise = replace(request, threat=threat, spec=spec, progress=False)
    return {str(number): random_member(noise, number) for number in range(draws)}


def _measure_own(
    model: Recommender,
    attack: Attack,
    threat: Threat | None,
    epsilons: Sequence[float] | None,
    ks: tuple[int, ...],
    options: dict[str, Any],
    *,
    control: bool,
) -> Result:
    """An attack that somebody has built already: it says itself what it may do."""
    if threat is not None or options:
        raise InputError("an attack that is built has its budget and options: leave them out")
    if set(attack.fixed) != set(model.fixed):
        raise InputError(
            f"the model holds columns {list(model.fixed)} fixed and the attack "
            f"{list(attack.fixed)}: build it with the same fixed="
        )
    unit = "relative" if attack.relative else "absolute"
    if isinstance(attack.budget, OwnRowBudget):
        unit = "own"
    norm = "row" if unit == "own" else attack.budget.name
    own = Threat(norm, unit, attack.side, _known(attack, model))
    objective = getattr(getattr(attack, "objective", None), "name", None)
    spec = AttackSpec(f"{type(attack).__module__}:{type(attack).__name__}", objective)
    sizes = check_epsilons(spec.sizes(unit) if epsilons is None else epsilons)
    request = Request(model, own, spec, sizes, ks)
    curve = attack_curve(model, attack, own, request.epsilons, ks)
    noise = random_directions(request, 1)["0"] if control else None
    return Result(spec, model, curve, noise)


def _known(attack: Attack, model: Recommender) -> str:
    """What a built attack knows: labels, if the pairs that it was given are those that count."""
    held = (
        (getattr(attack, "objective", None), "pairs"),
        (getattr(attack, "head", None), "relevant"),
    )
    pairs = [getattr(part, name, None) for part, name in held]
    counting = (model.relevant, getattr(model.split, model.part))
    labels = model.part != "train" and any(known is each for known in pairs for each in counting)
    return "labels" if labels else "data"


def _store(curve: RobustnessCurve, path: Path, extra: dict[str, Any]) -> bool:
    """Save a curve unless the same one is there; whether another one was replaced."""
    if path.is_file():
        try:
            there = read_json(path)
        except InputError:
            there = {}
        new = {**extra, **curve.as_dict()}
        equal = all(there.get(key) == value for key, value in new.items())
        same_users = _same_users(curve, path.with_suffix(".npz"))
        if equal and same_users:
            return False
        curve.save(path, extra)
        return not equal or same_users is False
    curve.save(path, extra)
    return False


def _same_users(curve: RobustnessCurve, path: Path) -> bool | None:
    """Whether a file holds the values of a curve's users; None where it is damaged or missing."""
    try:
        there = read_arrays(path)
    except InputError:
        return None
    values: dict[str, Any] = {n: array.astype(np.float32) for n, array in curve.per_user.items()}
    values["users"] = curve.users
    return there.keys() == values.keys() and all(
        np.array_equal(there[name], array) for name, array in values.items()
    )
