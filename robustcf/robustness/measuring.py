"""``measure`` and ``certify``: a recommender, an attack and a threat in, a result out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf._checks import check_cutoffs
from robustcf._io.progress import shows
from robustcf._runtime import threads_used
from robustcf.attacks import Attack, OwnRowBudget, unevenness
from robustcf.attacks.certificates.bounds import usable_bound
from robustcf.errors import InputError
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.curves import ALONE, RobustnessCurve, frame_table, kind_words
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
        spec: the attack and its options.
        model: what was attacked.
        curve: metrics by size; of an attack, under one perturbation for all users: joint.
        control: the same budget in random directions, chosen from as often; None for certificates.
        members: of ``auto``, name -> curve; else None.
        per_user: of an ensemble, each user's worst over all members: never to be mixed with the
            joint curve; else None.
        per_user_control: each user's worst over as many random directions.
        with_data: of ``auto`` by an attacker with labels: the same attack without them.
    """

    spec: AttackSpec
    model: Recommender
    curve: RobustnessCurve
    control: RobustnessCurve | None = None
    members: dict[str, RobustnessCurve] | None = None
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
    def draws(self) -> int:
        """How many random directions the control is chosen from."""
        return self.spec.way.draws

    @property
    def _noise(self) -> RobustnessCurve | None:
        """The control, unless the attack is the noise itself."""
        return None if self.control is self.curve else self.control

    @property
    def picture_stem(self) -> str:
        """The name of its picture, which shows the control too: it tells the control's seed."""
        told = self.control is None or "seed" in self.curve.options or not self.spec.seed
        return self.curve.name if told else f"{self.curve.name}-seed{self.spec.seed}"

    def extra(self) -> dict[str, Any]:
        """What a file holds next to the curve: the other numbers, and how even the rows are."""
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
        users, items = (unevenness(part[:, self.model.free]) for part in self.model.factors)
        return {"unevenness": {"users": users, "items": items}}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        data = {**self.curve.as_dict(), **self.extra()}
        if self.control is not None:
            data |= {"random": self.control.as_lists(), "random_draws": self.draws}
        if self.per_user_control is not None:
            data["random_per_user"] = self.per_user_control.as_lists()
        if self.with_data is not None:
            per_user = self.with_data.per_user
            others = {} if per_user is None else per_user.as_lists()
            data["with_data"] = {**self.with_data.curve.as_lists(), "per_user": others}
        return data

    def save(self, folder: str | Path) -> tuple[Path, bool]:
        """Write the curve, its control and its companion, each under the name of its settings.

        Returns:
            The curve's file, and whether another result of the same settings was replaced.
        """
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

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure | Path:
        """Draw a metric (None: the first) and its control: a figure, or with a path its file."""
        from robustcf.robustness.plots import plot_curves

        label = self.model.label or "model"
        curves = {label: self.curve}
        if self.per_user is not None:
            curves[f"{label}, per user"] = self.per_user
        if self.with_data is not None:
            curves[f"{label}, without labels"] = self.with_data.curve
        controls = {} if self._noise is None else {label: self._noise}
        return plot_curves(curves, path, metric=metric or self.metric, controls=controls)

    def __repr__(self) -> str:
        return f"Result({self.spec.name} on {self.model!r}: {self.curve!r})"

    def _repr_html_(self) -> str:
        return frame_table(self.to_frame(), self.headline)

    def __str__(self) -> str:
        ks = self.ks
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
        rows = [["size", *columns]]
        for n, size in enumerate(self.curve.epsilons):
            rows.append([f"{size:g}", *(f"{values[n]:.4f}" for values in columns.values())])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        budget = f"{self.threat.norm} budget on {self.threat.side}, {self.threat.unit_words}"
        how = f"{self.spec.words()}; {budget}; {self.curve.protocol}"
        return "\n".join([self.headline, *lines, how])

    @property
    def headline(self) -> str:
        """Whose perturbation it is and what the attacker knows."""
        return kind_words({"kind": self.curve.kind, "knowledge": self.threat.knowledge})


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
    """Attack a recommender at growing sizes, or certify it.

    Args:
        model: the recommender.
        attack: a name (``auto``, ``cutoff``, ``fgm-bce``, ``pgd-softmax``, ``random``,
            ``certificate``, ``personal``, ``module:Class``), see
            :mod:`robustcf.robustness.table`; or an attack object.
        threat: what the attacker may do and knows; None for a row budget in units of the factors'
            own size, on both sides, and what the attack assumes to be known (``auto``: labels).
        epsilons: ascending, from 0 on; None for those of the table.
        ks: cutoffs of the metrics.
        control: whether to make the random control too, and for ``auto`` the attack without
            labels.
        progress: whether to show a bar; None: in a terminal and in a notebook.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the cores that may be used.
        **options: of the attack by name: ``objective``, ``steps``, ``restarts``, ``seed``,
            ``bound``.

    Returns:
        The result; ``print`` shows it as a table, ``.curve["ndcg@10"]`` has the numbers.

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
        raise InputError(
            f"attack must be a name, an AttackSpec with its options in it, or an Attack, got "
            f"{attack!r}"
        )
    threat = check_threat(threat)
    if spec.kind == CERTIFICATE:
        spec = replace(spec, bound=usable_bound(spec.bound, model.fixed))
    sizes = threat.check_sizes(model, spec.sizes(threat.unit) if epsilons is None else epsilons)
    request = Request(model, threat, spec, sizes, cutoffs, shows(progress), built)
    with threads_used(threads, model.n_users, model.n_items):
        result = _result(request, control=control)
        if spec.kind == AUTO and request.threat.knowledge == "labels" and control:
            guessing = replace(request, spec=spec, threat=replace(threat, knowledge="data"))
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
    """Return certified lower bounds on the metrics under every attack of a size.

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
    spec, draws = request.spec, request.spec.way.draws
    members = spec.way.members(request)
    result = Result(spec, request.model, next(iter(members.values())))
    metric = f"ndcg@{request.ks[0]}"  # what an attack is to make least
    if len(members) > 1:
        joint = joint_of(members, spec.kind, metric)
        worst = worst_of(members, spec.kind, cumulative=True)
        result = replace(
            result,
            curve=replace(joint, options=spec.options),
            per_user=replace(worst, options=spec.options),
            members=members if spec.kind == AUTO else None,
        )
    if spec.kind == RANDOM:
        return replace(result, control=result.curve)
    if not control or spec.kind == CERTIFICATE:
        return result
    noise = random_directions(request, draws)
    if draws == 1:  # nothing to choose from, as the attack has not: the curve of random itself
        return replace(result, control=noise["0"])
    options = {**noise["0"].options, "draws": draws}
    worst = replace(worst_of(noise, RANDOM, cumulative=True), options=options)
    if result.curve.kind == ALONE:
        return replace(result, control=worst)
    joint = replace(joint_of(noise, RANDOM, metric), options=options)
    return replace(result, control=joint, per_user_control=worst)


def _described(attack: Attack, model: Recommender) -> tuple[AttackSpec, Threat]:
    """The name and the threat of an attack that is built."""
    if set(attack.fixed) != set(model.fixed):
        raise InputError(
            f"the model holds columns {list(model.fixed)} fixed and the attack "
            f"{list(attack.fixed)}: build it with the same fixed="
        )
    own = isinstance(attack.budget, OwnRowBudget)
    unit = "own" if own else "relative" if attack.relative else "absolute"
    objective = getattr(attack, "objective", None)
    # It knows the labels if the very pairs that it was given are the relevant ones.
    given = (getattr(objective, "pairs", None), getattr(attack, "head", None))
    pairs = (given[0], getattr(given[1], "relevant", None))
    counting = (model.relevant, getattr(model.split, model.part))
    labels = model.part != "train" and any(known is each for known in pairs for each in counting)
    knowledge = "labels" if labels else "data"
    threat = Threat("row" if own else attack.budget.name, unit, attack.side, knowledge)
    name = f"{type(attack).__module__}:{type(attack).__name__}"
    return AttackSpec(name, getattr(objective, "name", None)), threat
