"""The table of attacks: a name -> how its curves are made, its control, its default sizes.

A name is ``auto``, ``cutoff``, ``random``, ``certificate`` or ``personal``; or ``fgm`` or ``pgd``
with an objective, as ``fgm-softmax``; or ``module:Class``, an :class:`robustcf.attacks.Attack` of
the reader's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from robustcf._checks import check_choice, check_integer
from robustcf._io.text import counted
from robustcf._registry import ATTACKS, OBJECTIVES
from robustcf.attacks import FGM, PGD, Attack, Cutoff, RandomNoise
from robustcf.attacks.certificates.bounds import BOUNDS
from robustcf.attacks.cutoff import STEPS as CUTOFF_STEPS
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.evaluate import MetricReport
from robustcf.metrics.topk import top_items
from robustcf.objectives import BCE, BCEConfig, Objective
from robustcf.recommender import Recommender
from robustcf.robustness.certified import certified_curve
from robustcf.robustness.curves import (
    ALONE,
    CERTIFIED,
    JOINT,
    PER_USER,
    RobustnessCurve,
    settings_of,
)
from robustcf.robustness.personal import PERSONAL_STEPS, personal_curve
from robustcf.robustness.threat import Threat

AUTO, CUTOFF, RANDOM = "auto", "cutoff", "random"
CERTIFICATE, PERSONAL = "certificate", "personal"
_GRADIENT = ("fgm", "pgd")
_OWN_OBJECTIVE = "softmax"  # of a gradient attack from outside of the package
_MEMBERS = (CUTOFF, "fgm-softmax", "fgm-bpr", "fgm-bce")  # of auto
_MANY = ("steps", "restarts", "seed")  # options of attacks in steps
# Not an attack of some size -> where it is done.
_ELSEWHERE = {
    "quantization": "use robustcf.robustness.quantization_table(model), or 'robustcf attack RUN "
    "--attack quantization'"
}
CUTOFFS = (10, 20)
# Default steps. An attacker who has to guess the relevant items gains little by more.
STEPS: Mapping[str, int] = {"pgd": 8, AUTO: CUTOFF_STEPS, CUTOFF: CUTOFF_STEPS}
_GUESSING_STEPS = 10

# Default sizes. Where attacks begin to show, nothing is certified: certificates have smaller ones.
ATTACK_SIZES: Mapping[str, tuple[float, ...]] = {
    "relative": (0.0, 0.02, 0.05, 0.1, 0.2),
    "own": (0.0, 0.02, 0.05, 0.1, 0.2),
    "absolute": (0.0, 0.1, 0.2, 0.4, 0.8, 1.6),
}
CERTIFIED_SIZES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class AttackSpec:
    """An attack by name, with its options.

    Args:
        kind: an entry of :data:`WAYS`, or ``module:Class``.
        objective: what ``fgm``, ``pgd`` and gradient attacks of your own make worse (default bce).
        steps: steps of auto and cutoff (default 50, and 10 without labels) and of pgd (8).
        restarts: random restarts of auto, cutoff and pgd.
        seed: seed of noise, and of the second start and later ones.
        bound: certificate: ``tight``, exact for each pair of items, or ``plain``, simpler and
            weaker.

    Example:
        >>> AttackSpec.parse("fgm-softmax")
        AttackSpec(kind='fgm', objective='softmax', steps=None, restarts=1, seed=0, bound='tight')
        >>> AttackSpec.parse("fgm-mse")
        Traceback (most recent call last):
        robustcf.errors.InputError: objective must be one of bce, bpr, softmax, or module:Class,
        got 'mse'
    """

    kind: str
    objective: str | None = None
    steps: int | None = None
    restarts: int = 1
    seed: int = 0
    bound: str = "tight"

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_integer("steps", self.steps)
        check_integer("restarts", self.restarts)
        check_integer("seed", self.seed, 0)
        check_choice("bound", self.bound, BOUNDS)
        if self.kind in _GRADIENT:
            chosen = "bce" if self.objective is None else self.objective
            OBJECTIVES[chosen]
            object.__setattr__(self, "objective", chosen)
        elif self.kind in WAYS:
            object.__setattr__(self, "objective", None)
        elif ":" not in self.kind:
            try:
                ATTACKS[self.kind]  # of an installed package
            except InputError:
                hint = f": {_ELSEWHERE[self.kind]}" if self.kind in _ELSEWHERE else ""
                known = ", ".join(NAMES)
                raise InputError(
                    f"attack must be one of {known}, got {self.name!r}{hint}"
                ) from None

    @classmethod
    def parse(cls, name: str, **options: Any) -> AttackSpec:
        """From a name such as ``pgd-bpr``; the class of ``module:Class`` is imported here."""
        known = [entry.name for entry in fields(cls) if entry.name != "kind"]
        for key in options:
            if key not in known:
                raise InputError(f"unknown option {key!r} of an attack; known: {', '.join(known)}")
        kind, dash, objective = name.partition("-")
        split = dash and (kind in _GRADIENT or ":" in kind)
        if split and options.pop("objective", None) is not None:
            raise InputError(f"{name!r} names its objective: leave the option objective out")
        spec = cls(kind, objective, **options) if split else cls(name, **options)
        if spec.kind in WAYS:
            return spec
        if not issubclass(ATTACKS[spec.kind], FGM):
            return replace(spec, objective=None)
        chosen = spec.objective or _OWN_OBJECTIVE
        OBJECTIVES[chosen]
        return replace(spec, objective=chosen)

    @property
    def name(self) -> str:
        """The name that :meth:`parse` reads."""
        return f"{self.kind}-{self.objective}" if self.objective else self.kind

    @property
    def way(self) -> Way:
        """How it is made."""
        return WAYS.get(self.kind, _OWN)

    def against(self, threat: Threat, part: str) -> tuple[AttackSpec, Threat]:
        """The attack and the threat with their defaults filled in, if this part is judged by."""
        way = self.way
        if threat.knowledge is None or not way.told:
            # Without held-out pairs, those of the training are the relevant ones, and are known.
            data = way.told and part == "train"
            threat = replace(threat, knowledge="data" if data else way.knowledge)
        if self.kind not in STEPS:
            return self, threat
        guesses = self.kind != "pgd" and _guesses(threat, part)
        usual = _GUESSING_STEPS if guesses else STEPS[self.kind]
        return replace(self, steps=self.steps or usual), threat

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide its result."""
        if self.kind in STEPS:
            seed = {"seed": self.seed} if self.restarts > 1 else {}
            return {"steps": self.steps, "restarts": self.restarts, **seed}
        if self.kind == RANDOM:
            return {"seed": self.seed, "draws": 1}
        return {"bound": self.bound} if self.kind == CERTIFICATE else {}

    def settings(
        self, threat: Threat, part: str, epsilons: Sequence[float], ks: Sequence[int]
    ) -> dict[str, Any]:
        """The settings of its curve, as :func:`robustcf.robustness.curves.settings_of` has them."""
        spec, known = self.against(threat, part)
        facts = {"attack": self.kind, "objective": self.objective, "kind": self.way.kind}
        facts |= {"budget": known.norm, **known.as_dict(), **spec.options}
        metrics = [f"ndcg@{k}" for k in ks]
        asked = {"epsilons": epsilons, "metrics": metrics, "protocol": {"part": part}}
        return settings_of({**facts, **asked})

    def control_settings(
        self, threat: Threat, part: str, epsilons: Sequence[float], ks: Sequence[int]
    ) -> dict[str, Any]:
        """The same for its random control, which chooses from as many directions as it does."""
        noise = AttackSpec(RANDOM, seed=self.seed).settings(threat, part, epsilons, ks)
        kind = PER_USER if self.way.kind == ALONE else JOINT
        return noise | {"draws": self.way.draws, "kind": kind}

    def sizes(self, unit: str) -> tuple[float, ...]:
        """Its default sizes."""
        return CERTIFIED_SIZES if self.way.certifies else ATTACK_SIZES[unit]

    def words(self) -> str:
        """The attack in a few words for people."""
        steps = self.steps or STEPS.get(self.kind, 1)
        many = f"{counted(steps, 'step')}, {counted(self.restarts, 'start')}"
        what = {
            "pgd": f"pgd ({many}; or its first step, whichever leaves less)",
            AUTO: f"auto ({many} at the cutoff, or one step on a loss, whichever leaves less)",
            CUTOFF: f"cutoff ({many})",
            RANDOM: f"random (seed {self.seed})",
            CERTIFICATE: f"certified lower bound ({self.bound})",
            PERSONAL: "each user attacked alone",
        }.get(self.kind, self.kind)
        return f"{what} on {self.objective}" if self.objective else what


@dataclass(frozen=True, eq=False)
class Request:
    """One measurement, with all defaults filled in.

    ``built`` is an attack that exists already. Requests that follow from one another share
    ``clean``, the evaluation of the model without attack.
    """

    model: Recommender
    threat: Threat
    spec: AttackSpec
    epsilons: tuple[float, ...]
    ks: tuple[int, ...]
    progress: bool = False
    built: Attack | None = None
    clean: list[MetricReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec, threat = self.spec.against(self.threat, self.model.part)
        object.__setattr__(self, "spec", spec)
        object.__setattr__(self, "threat", threat)

    def curve(self, attack: Attack) -> RobustnessCurve:
        """The curve of a single attack; at epsilon 0 it is the clean result to the bit."""
        if self.epsilons[0] == 0 and not self.clean:
            self.clean.append(self.model.evaluate(self.ks))
        reports, realised = [], []
        for epsilon in self.epsilons:
            attacked = attack.perturb(self.model.factors, epsilon)
            realised.append(attacked.realised)
            known = self.clean[0] if epsilon == 0 else None
            reports.append(known or self.model.evaluate(self.ks, attacked.factors))
        first = reports[0]
        return RobustnessCurve(
            attack=attack.name,
            objective=self.spec.objective,
            threat=self.threat,
            epsilons=self.epsilons,
            values={name: np.array([r.values[name] for r in reports]) for name in first.values},
            per_user={n: np.stack([r.per_user[n] for r in reports]) for n in first.per_user},
            users=first.users,
            realised=tuple(realised),
            protocol=first.protocol,
            options=self.spec.options,
        )

    def objective(self) -> Objective[Any]:
        """What to make worse, on the pairs that the attacker knows.

        The cross-entropy has the weights of the model's training, without the item-item term,
        which is a constraint of training and not part of the paper's attack.
        """
        users = self.model.factors.users
        place: dict[str, Any] = {"dtype": users.dtype, "device": users.device}
        kind, pairs = OBJECTIVES[self.spec.objective or ""], self.threat.pairs(self.model)
        if kind is BCE:
            weights = replace(self.model.bce or BCEConfig(), item_weight=0.0, sampled_items=None)
            return kind(pairs, weights, **place)
        return kind(pairs, **place)

    def options(self, *names: str) -> dict[str, Any]:
        """The options of an attack on the model: norm, unit, side, fixed columns, and these."""
        return {**self.threat.options(self.model), **{n: getattr(self.spec, n) for n in names}}


Curves = dict[str, RobustnessCurve]


@dataclass(frozen=True, eq=False)
class Way:
    """How the curves of an attack are made, and what its control is.

    Args:
        members: the curves that the result is chosen from, by name; one, or several.
        draws: how many these are: its control chooses from as many random directions.
        knowledge: what the attacker knows by default.
        told: whether the attacker can be told to know something else.
        kind: of the curve, see :class:`RobustnessCurve`.
    """

    members: Callable[[Request], Curves]
    draws: int = 1
    knowledge: str = "data"
    told: bool = True
    kind: str = JOINT

    @property
    def certifies(self) -> bool:
        """Whether its sizes are those at which something can be certified."""
        return self.kind != JOINT


def _fgm(request: Request) -> Curves:
    return {"fgm": request.curve(FGM(request.objective(), **request.options()))}


def _pgd(request: Request) -> Curves:
    """PGD, and its first step: the objective is not the metric, where one long step may do more."""
    objective = request.objective()
    pgd = PGD(objective, **request.options(*_MANY))
    fgm = FGM(objective, **request.options())
    fgm.views = pgd.views
    return {"pgd": request.curve(pgd), "fgm": request.curve(fgm)}


def _cutoff(request: Request) -> Curves:
    """The attack at the cutoff; without the labels, on what the attacker guesses them to be."""
    model, k = request.model, request.ks[0]
    pairs = request.threat.pairs(model)
    if model.part == "train":
        pairs = model.relevant  # known
    elif _guesses(request.threat, model.part):
        pairs = guessed_labels(model, k)
    how = {"progress": request.progress, **request.options(*_MANY)}
    return {CUTOFF: request.curve(Cutoff(pairs, model.seen, k, **how))}


def _guesses(threat: Threat, part: str) -> bool:
    """Whether the relevant items are held out and not known."""
    return threat.knowledge == "data" and part != "train"


def guessed_labels(model: Recommender, k: int) -> Interactions:
    """What an attacker without labels takes for them: the top k items of each user."""
    users = np.flatnonzero(model.relevant.user_degrees)
    top = top_items(model.factors, users, k, model.seen)
    rows, places = np.nonzero(top >= 0)
    shape = model.factors.n_users, model.factors.n_items
    return Interactions.from_pairs(users[rows], top[rows, places], *shape)[0]


def _auto(request: Request) -> Curves:
    """The attack at the cutoff, and one step on each objective: each as it is alone."""
    curves = Curves()
    for name in _MEMBERS:
        options = {option: getattr(request.spec, option) for option in _MANY}
        member = replace(request, spec=AttackSpec.parse(name, **options))
        (curves[name],) = member.spec.way.members(member).values()
    return curves


def _random(request: Request) -> Curves:
    return {RANDOM: request.curve(RandomNoise(**request.options("seed")))}


def random_directions(request: Request, draws: int) -> Curves:
    """Curves of random directions: the control of an attack that chooses from as many members.

    Choosing the worst of several does harm by itself.
    """
    found = {}
    for number in range(draws):
        spec = AttackSpec(RANDOM, seed=request.spec.seed + number)
        noise = replace(request, spec=spec, built=None, progress=False)
        (found[str(number)],) = _random(noise).values()
    return found


def _certificate(request: Request) -> Curves:
    asked = (request.model, request.threat, request.epsilons, request.ks)
    curve = certified_curve(*asked, bound=request.spec.bound)
    return {CERTIFICATE: replace(curve, options=request.spec.options)}


def _personal(request: Request) -> Curves:
    asked = (request.model, request.threat, request.epsilons, request.ks)
    return {PERSONAL: personal_curve(*asked)}


def _own(request: Request) -> Curves:
    """An attack from outside of the package; one that follows a gradient gets an objective."""
    name, attack, options = request.spec.kind, request.built, {}
    if attack is None:
        kind = ATTACKS[name]
        aim: list[Any] = [request.objective()] if issubclass(kind, FGM) else []
        attack = kind(*aim, **request.options())
    else:
        told = {key: getattr(attack, key, None) for key in _MANY}
        options = {key: value for key, value in told.items() if type(value) is int}
    # Its own name: a class that derives from FGM has inherited another one.
    return {name: replace(request.curve(attack), attack=name, options=options)}


WAYS: Mapping[str, Way] = {
    AUTO: Way(_auto, draws=len(_MEMBERS), knowledge="labels"),
    CUTOFF: Way(_cutoff, knowledge="labels"),
    "fgm": Way(_fgm),
    "pgd": Way(_pgd, draws=2),
    RANDOM: Way(_random, knowledge="none", told=False),
    CERTIFICATE: Way(_certificate, knowledge="labels", told=False, kind=CERTIFIED),
    # Its control chooses from as many directions for each user as its search looks at.
    PERSONAL: Way(_personal, draws=PERSONAL_STEPS + 1, knowledge="labels", told=False, kind=ALONE),
}
_OWN = Way(_own)

NAMES = (
    *(f"{kind}-{objective}" for kind in _GRADIENT for objective in OBJECTIVES),
    *(kind for kind in WAYS if kind not in _GRADIENT),
)
