"""``measure`` and ``certify``: the result of an attack or certificate on a recommender."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf._checks import check_cutoffs
from robustcf._io.progress import shows
from robustcf._io.text import aligned, wrapped
from robustcf._runtime import threads_used
from robustcf.attacks import Attack, OwnRowBudget, unevenness
from robustcf.attacks.certificates.bounds import usable_bound
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport
from robustcf.metrics.groups import Groups, GroupValue, by_group
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness import curves
from robustcf.robustness.curves import RobustnessCurve
from robustcf.robustness.table import (
    AUTO,
    CERTIFICATE,
    CUTOFFS,
    RANDOM,
    AttackSpec,
    Request,
    random_directions,
)
from robustcf.robustness.threat import Threat, check_threat
from robustcf.robustness.worst import joint_of, worst_counts, worst_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Result:
    """The curve of an attack or certificate, and the curves to judge it by.

    Args:
        curve: metrics by epsilon; of an attack, under one perturbation for all users (joint).
        control: the same budget in random directions, chosen from as often; None for certificates.
        members: of an ensemble (``pgd``), name -> curve; else None.
        per_user: of an ensemble, each user's worst over all members, not comparable with the
            joint curve; else None.
        per_user_control: each user's worst over as many random directions.
        with_data: of ``auto`` by an attacker with labels, the same attack without them.
        groups: metrics by group at each epsilon, of ``by``.
    """

    spec: AttackSpec
    model: Recommender
    curve: RobustnessCurve
    control: RobustnessCurve | None = None
    members: dict[str, RobustnessCurve] | None = None
    per_user: RobustnessCurve | None = None
    per_user_control: RobustnessCurve | None = None
    with_data: Result | None = None
    groups: tuple[GroupValue, ...] = ()

    @property
    def threat(self) -> Threat:
        """Abilities and knowledge of the attacker."""
        return self.curve.threat

    @property
    def metric(self) -> str:
        """The metric of tables and pictures."""
        return next(iter(self.curve.values))

    @property
    def ks(self) -> list[int]:
        """The cutoffs of its metrics."""
        return sorted({int(name.split("@")[1]) for name in self.curve.values})

    @property
    def draws(self) -> int:
        """The number of random directions that the control is chosen from."""
        return self.spec.way.draws

    @property
    def headline(self) -> str:
        """The kind of the curve and the knowledge of the attacker."""
        return curves.kind_words({"kind": self.curve.kind, "knowledge": self.threat.knowledge})

    @property
    def _noise(self) -> RobustnessCurve | None:
        """The control, unless the attack is the noise itself."""
        return None if self.control is self.curve else self.control

    @property
    def picture_stem(self) -> str:
        """The name of its picture, which has the seed of the control if that is not 0."""
        told = self.control is None or "seed" in self.curve.options or not self.spec.seed
        return self.curve.name if told else f"{self.curve.name}-seed{self.spec.seed}"

    def extra(self) -> dict[str, Any]:
        """Return the values of a file next to the curve: other curves, and unevenness of rows."""
        found = self._unevenness()
        if self.per_user is not None:
            found["per_user"] = self.per_user.as_lists()
        if self.members:
            counts = worst_counts(self.members, self.metric)
            found["members"] = {
                name: {**member.as_lists(), **counts[name]} for name, member in self.members.items()
            }
        return found

    def _unevenness(self) -> dict[str, Any]:
        if (self.threat.norm, self.threat.unit) != ("row", "relative"):
            return {}
        users, items = (unevenness(part[:, self.model.free]) for part in self.model.arrays)
        return {"unevenness": {"users": users, "items": items}}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        data = {**self.curve.as_dict(), **self.extra()}
        if self.control is not None:
            data |= {"random": self.control.as_lists(), "random_draws": self.draws}
        if self.per_user_control is not None:
            data["random_per_user"] = self.per_user_control.as_lists()
        if self.with_data is not None:
            data["with_data"] = self.with_data.curve.as_lists()
        if self.groups:
            data["groups"] = [row.as_dict() for row in self.groups]
        return data

    def save(self, folder: str | Path) -> tuple[Path, bool]:
        """Write the curve, its control and its companion, see :meth:`RobustnessCurve.store`."""
        place = Path(folder)
        saved = self.curve.store(place, self.extra())
        if self._noise is not None:
            self._noise.store(place, self._unevenness())  # as the attack random writes it
        if self.with_data is not None:
            self.with_data.save(place)
        return saved

    def to_frame(self) -> pd.DataFrame:
        """Return one row per epsilon: all metrics under the attack, and its random control."""
        frame = self.curve.to_frame()
        if self._noise is not None:
            frame[f"random {self.metric}"] = self._noise[self.metric]
        return frame

    def by_group(self) -> pd.DataFrame:
        """Return one row per epsilon, group and metric, with its 95 % interval."""
        import pandas as pd  # slow to import

        return pd.DataFrame([row.as_dict() for row in self.groups])

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure | Path:
        """Draw a metric (None: the first) and its control: a figure, or with a path its file."""
        from robustcf.robustness.plots import plot_curves

        label = self.model.label or "model"
        drawn = {label: self.curve}
        if self.per_user is not None:
            drawn[f"{label}, per user"] = self.per_user
        if self.with_data is not None:
            drawn[f"{label}, without labels"] = self.with_data.curve
        controls = {} if self._noise is None else {label: self._noise}
        return plot_curves(drawn, path, metric=metric or self.metric, controls=controls)

    def __repr__(self) -> str:
        return f"Result({self.spec.name} on {self.model!r}: {self.curve!r})"

    def _repr_html_(self) -> str:
        return curves.frame_table(self.to_frame(), self.headline)

    def __str__(self) -> str:
        ks, threat = self.ks, self.threat
        wanted = (f"ndcg@{ks[0]}", f"mrr@{ks[0]}", f"coverage@{ks[0]}", f"recall@{ks[-1]}")
        columns = {name: self.curve[name] for name in wanted if name in self.curve.values}
        random = "random" if self.draws == 1 else f"worst of {self.draws} random"
        others = {
            random: self._noise,
            "per user": self.per_user,
            f"per user, {self.draws} random": self.per_user_control,
            "knows data": None if self.with_data is None else self.with_data.curve,
        }
        columns |= {
            f"{name}: {self.metric}": curve[self.metric]
            for name, curve in others.items()
            if curve is not None
        }
        sizes = [f"{size:g}" for size in self.curve.epsilons]
        rows = [
            [size, *(f"{values[n]:.4f}" for values in columns.values())]
            for n, size in enumerate(sizes)
        ]
        budget = f"{threat.norm} budget on {threat.side}, {threat.unit_words}"
        lines = [self.headline, aligned(["size", *columns], rows, left=())]
        lines.append(wrapped(f"{self.spec.words()}; {budget}; {self.curve.protocol}"))
        ratios = self._unevenness().get("unevenness", {})
        uneven = curves.uneven_words({n: ratios[n] for n in ratios if threat.side in ("both", n)})
        if uneven and self.curve.kind == curves.JOINT:
            advice = "sizes in medians are small for the long rows, which rank first"
            lines.append(f"note: {uneven}: {advice}; measure in own lengths, the default")
        if self.members:
            counts = worst_counts(self.members, self.metric)
            rows = []
            for name, curve in self.members.items():
                worst = zip(curve[self.metric], counts[name]["worst"], strict=True)
                rows.append([name, *(f"{value:.4f} ({count})" for value, count in worst)])
            title = f"{self.metric} (users it is worst for)"
            lines += ["", aligned([title, *sizes], rows)]
        return "\n".join(lines)


def measure(
    model: Recommender,
    attack: str | AttackSpec | Attack = AUTO,
    threat: Threat | None = None,
    epsilons: Sequence[float] | None = None,
    ks: Sequence[int] = CUTOFFS,
    *,
    control: bool = True,
    by: Any = None,
    progress: bool | None = None,
    threads: int | None = None,
    on_attacked: Callable[[float, Factors, MetricReport], None] | None = None,
    **options: Any,
) -> Result:
    """Attack a recommender at growing epsilons, or certify it.

    Args:
        model: the recommender.
        attack: a name, see :mod:`robustcf.robustness.table`, or an attack object.
        threat: None for a row budget in units of each row's own length, on both sides, and the
            usual knowledge of the attack (``auto``: labels).
        epsilons: attack sizes, ascending (default 0 0.02 0.05 0.1 0.2; absolute: 0 0.1 0.2 0.4 0.8
            1.6).
        ks: cutoffs; one beyond the catalogue means all items.
        control: whether to make the random control too, and for ``auto`` the attack without
            labels.
        by: groups of users or items, see :meth:`robustcf.Recommender.groups`, for
            ``result.by_group()``. The perturbed factors are then kept in ``result.curve.attacked``.
        progress: whether to show a bar; None: in a terminal and in a notebook.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the cores that may be used.
        on_attacked: called with the size, the attacked factors and their metrics, of every attack
            that is tried.
        **options: ``objective``, ``steps``, ``restarts``, ``seed`` and ``bound`` of a named attack.

    Cost: for every epsilon, one evaluation per member and direction, and the gradients of the
    attack: one in all for ``fgm``, ``(steps + 1) * restarts`` per epsilon for ``pgd``,
    ``pairwise`` and ``cutoff``. ``auto`` is ``pairwise`` with labels (90 steps) and without (20).

    Example:
        >>> import numpy as np
        >>> model = Recommender(np.eye(9, 4), np.eye(7, 4), np.eye(9, 7))
        >>> result = measure(model, "fgm-softmax", epsilons=[0, 0.5], ks=[1])
        >>> bool(result.curve["ndcg@1"][1] <= result.curve["ndcg@1"][0])
        True
    """
    check_recommender(model)
    cutoffs = check_cutoffs(ks)
    built = attack if isinstance(attack, Attack) else None
    if isinstance(attack, Attack):
        if threat is not None or options:
            raise InputError("an attack that is built has its budget and options: leave them out")
        spec, threat = _described(attack, model)
    elif isinstance(attack, str):
        spec = AttackSpec.parse(attack, **options)
    elif isinstance(attack, AttackSpec) and not options:
        spec = attack
    else:
        expected = "a name, an AttackSpec with its options in it, or an Attack"
        raise InputError(f"attack must be {expected}, got {attack!r}")
    threat = check_threat(threat).on(model)
    if spec.kind == CERTIFICATE:
        spec = replace(spec, bound=usable_bound(spec.bound, model.fixed))
    sizes = threat.check_sizes(model, spec.sizes(threat) if epsilons is None else epsilons)
    request = Request(model, threat, spec, sizes, cutoffs, shows(progress), built, by is not None)
    request = replace(request, on_attacked=on_attacked)
    with threads_used(threads, model.n_users, model.n_items):
        result = _result(request, control=control)
        if spec.kind == AUTO and request.threat.knowledge == "labels" and control:
            guessing = replace(request, spec=spec, threat=replace(threat, knowledge="data"))
            result = replace(result, with_data=_result(guessing, control=False))
        if by is not None:
            result = replace(result, groups=tuple(_by_group(result, model.groups(by))))
    return result


def _by_group(result: Result, groups: Sequence[Groups]) -> Iterator[GroupValue]:
    """Yield metrics by group: of users from the curve, of items from the attacked rankings."""
    curve, model = result.curve, result.model
    members = [(name, own) for part in groups if part.kind == "item" for name, own in part]
    certified = {}
    if not curve.attacked:  # certificates: of the relevant items of each group alone
        for name, own in members:
            some = model.judging_items(own)
            if some is not None:
                threat, sizes = result.threat, curve.epsilons
                certified[name] = measure(some, result.spec, threat, sizes, result.ks).curve
    for place, epsilon in enumerate(curve.epsilons):
        values = {m: (curve.users, rows[place]) for m, rows in curve.per_user.items()}
        ranked = {
            name: {m: (own.users, rows[place]) for m, rows in own.per_user.items()}
            for name, own in certified.items()
        }
        if members and curve.attacked:
            ranked = model.by_items(groups, result.ks, curve.attacked[place])
        yield from by_group(groups, values, ranked, float(epsilon))


def certify(
    model: Recommender,
    epsilons: Sequence[float] | None = None,
    *,
    fakes: Sequence[int] | None = None,
    reach: bool = False,
    threat: Threat | None = None,
    ks: Sequence[int] = CUTOFFS,
    bound: str = "tight",
    threads: int | None = None,
) -> Any:
    """Return certified lower bounds on the metrics under every attack of a size.

    Args:
        model: the recommender.
        epsilons: largest moves of rows, ascending (default 0 0.002 0.005 0.01 0.02 0.05 0.1).
        fakes: numbers of fake accounts to certify a vote against ('train --model vote'), ascending.
        reach: with ``fakes``, bound the number of users that an item can be shown to, and of those
            who must keep it, instead.
        threat: the unit of the epsilons and the side, of the norm ``row``.
        ks: cutoffs of the metrics.
        bound: ``tight``, exact for each pair of items, or ``plain``, simpler and weaker.
        threads: CPU threads, see :func:`measure`.

    Returns:
        A :class:`Result`; with ``fakes``, a :class:`robustcf.models.voting.CertifiedVotes`, or with
        ``reach`` too a :class:`robustcf.models.voting.CertifiedReach`.

    Example:
        >>> import numpy as np
        >>> found = certify(Recommender(np.eye(9, 4), np.eye(7, 4), np.eye(9, 7)), [0, 0.01])
        >>> bool(found.curve["ndcg@10"][1] <= found.curve["ndcg@10"][0])
        True
    """
    check_recommender(model)
    if fakes is None:
        if reach:
            raise InputError("reach is about fake accounts: give their numbers, fakes=[1, 10]")
        return measure(model, CERTIFICATE, threat, epsilons, ks, bound=bound, threads=threads)
    if epsilons is not None or threat is not None:
        raise InputError("fakes are accounts, epsilons and threat about embeddings: give one")
    with threads_used(threads, model.n_users, model.n_items):
        kind = model.scorer.certify_reach if reach else model.scorer.certify_fakes
        return kind(model.split, fakes, ks, part=model.part, mask=model.mask)


def _result(request: Request, *, control: bool) -> Result:
    spec, draws = request.spec, request.spec.way.draws
    members = spec.way.members(request)
    result = Result(spec, request.model, next(iter(members.values())))
    metric = f"ndcg@{request.ks[0]}"  # minimized by the attack
    if len(members) > 1 or spec.kind == AUTO:
        joint = joint_of(members, spec.kind, metric)
        result = replace(result, curve=replace(joint, options=spec.options))
    if len(members) > 1:
        worst = worst_of(members, spec.kind, cumulative=True)
        result = replace(result, per_user=replace(worst, options=spec.options), members=members)
    if spec.kind == RANDOM:
        return replace(result, control=result.curve)
    if not control or spec.kind == CERTIFICATE:
        return result
    noise = random_directions(request, draws)
    if draws == 1:
        return replace(result, control=noise["0"])
    options = {**noise["0"].options, "draws": draws}
    worst = replace(worst_of(noise, RANDOM, cumulative=True), options=options)
    if result.curve.kind == curves.ALONE:
        return replace(result, control=worst)
    joint = replace(joint_of(noise, RANDOM, metric), options=options)
    return replace(result, control=joint, per_user_control=worst)


def _described(attack: Attack, model: Recommender) -> tuple[AttackSpec, Threat]:
    """Return the spec and the threat of an attack object."""
    if set(attack.fixed) != set(model.fixed):
        held = f"columns {list(model.fixed)} fixed and the attack {list(attack.fixed)}"
        raise InputError(f"the model holds {held}: build it with the same fixed=")
    if (attack.histories is None) != (model.histories is None):
        raise InputError(
            "build the attack with histories=model.histories: it says whether users are stored"
        )
    own = isinstance(attack.budget, OwnRowBudget)
    unit = "own" if own else "relative" if attack.relative else "absolute"
    objective = getattr(attack, "objective", None)
    # It knows the labels if it was given the relevant pairs themselves.
    head = getattr(attack, "head", None)
    pairs = (getattr(objective, "pairs", None), getattr(head, "relevant", None))
    knowledge = "data"
    if model.part != "train":
        for name, known in (("sample", model.relevant), ("labels", model.all_relevant)):
            knowledge = name if any(each is known for each in pairs) else knowledge
    side = "items+map" if attack.histories and attack.side == "both" else attack.side
    threat = Threat("row" if own else attack.budget.name, unit, side, knowledge)
    name = f"{type(attack).__module__}:{type(attack).__name__}"
    return AttackSpec(name, getattr(objective, "name", None)), threat
