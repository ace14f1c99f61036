"""The table of attacks: a name -> how its curves are made, its control, its default epsilons.

A name is ``auto``, ``pairwise``, ``cutoff``, ``random``, ``certificate`` or ``personal``; or
``fgm`` or ``pgd`` with an objective, as ``fgm-softmax``; or ``module:Class``, a custom
:class:`robustcf.attacks.Attack`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np

from robustcf._checks import check_choice, check_integer, near
from robustcf._io.text import counted
from robustcf._registry import ATTACKS, OBJECTIVES
from robustcf.attacks import FGM, PGD, Attack, Cutoff, Pairwise, RandomNoise
from robustcf.attacks.certificates.bounds import BOUNDS
from robustcf.attacks.cutoff import STEPS as CUTOFF_STEPS
from robustcf.attacks.pairwise import STEPS as PAIRWISE_STEPS
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport
from robustcf.metrics.topk import top_items
from robustcf.objectives import BCE, BCEConfig, Objective
from robustcf.recommender import Recommender
from robustcf.robustness import curves
from robustcf.robustness.certified import certified_curve
from robustcf.robustness.curves import RobustnessCurve
from robustcf.robustness.personal import PERSONAL_STEPS, personal_curve
from robustcf.robustness.threat import Threat
from robustcf.robustness.worst import worst_of

AUTO, PAIRWISE, CUTOFF, RANDOM = "auto", "pairwise", "cutoff", "random"
CERTIFICATE, PERSONAL = "certificate", "personal"
_GRADIENT = ("fgm", "pgd")
_OWN_OBJECTIVE = "softmax"  # of a custom gradient attack
_MANY = ("steps", "restarts", "seed")  # options of iterative attacks
CUTOFFS = (10, 20)
# Default steps. An attacker who has to guess the relevant items gains little by more.
STEPS: Mapping[str, int] = {
    "pgd": 8,
    AUTO: PAIRWISE_STEPS,
    PAIRWISE: PAIRWISE_STEPS,
    CUTOFF: CUTOFF_STEPS,
}
_GUESSING_STEPS = 20

# Default epsilons. Certificates need smaller ones than attacks.
ATTACK_SIZES = (0.0, 0.02, 0.05, 0.1, 0.2)
ABSOLUTE_SIZES = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
CERTIFIED_SIZES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class AttackSpec:
    """An attack by name, with its options.

    Args:
        kind: ``auto`` (default): pairwise, or its attack of a smaller size where that is stronger;
            pairwise, cutoff: many steps on the metric; fgm: one gradient step; pgd: several
            gradient steps; random: noise; quantization (command only): fewer bits.
        objective: objective of ``fgm``, ``pgd`` and custom gradient attacks (default bce).
        steps: number of steps (default: auto and pairwise 90, cutoff 50, all three 20 without
            labels; pgd 8).
        restarts: random restarts of auto, pairwise, cutoff and pgd.
        seed: seed of noise and of random restarts.
        bound: certificate: ``tight``, exact for each pair of items, or ``plain``, simpler and
            weaker.

    Example:
        >>> AttackSpec.parse("fgm-softmax")
        AttackSpec(kind='fgm', objective='softmax', steps=None, restarts=1, seed=0, bound='tight')
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
                hint = near(self.name, NAMES)
                hint = "; use quantization_table(model)" if self.kind == "quantization" else hint
                words = f"attack must be one of {', '.join(NAMES)}, got {self.name!r}{hint}"
                raise InputError(words) from None

    @classmethod
    def parse(cls, name: str, **options: Any) -> AttackSpec:
        """Read a name such as ``pgd-bpr``; the class of ``module:Class`` is imported here."""
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
        """How its curves are made."""
        return WAYS.get(self.kind, _OWN)

    def against(self, threat: Threat, part: str) -> tuple[AttackSpec, Threat]:
        """Fill in the defaults of attack and threat for the evaluation on a split."""
        way = self.way
        if threat.knowledge is None or not way.told:
            # Without held-out pairs, the training pairs are the relevant ones and are known.
            data = way.told and part == "train"
            threat = replace(threat, knowledge="data" if data else way.knowledge)
        if self.kind not in STEPS:
            return self, threat
        guesses = self.kind != "pgd" and _guesses(threat, part)
        usual = _GUESSING_STEPS if guesses else STEPS[self.kind]
        return replace(self, steps=self.steps or usual), threat

    @property
    def options(self) -> dict[str, Any]:
        """The options that affect its result."""
        if self.kind in STEPS:
            seed = {"seed": self.seed} if self.restarts > 1 else {}
            return {"steps": self.steps, "restarts": self.restarts, **seed}
        if self.kind == RANDOM:
            return {"seed": self.seed, "draws": 1}
        return {"bound": self.bound} if self.kind == CERTIFICATE else {}

    def settings(
        self, threat: Threat, part: str, epsilons: Sequence[float], ks: Sequence[int]
    ) -> dict[str, Any]:
        """Return the settings of its curve, see :func:`robustcf.robustness.curves.settings_of`."""
        spec, known = self.against(threat, part)
        facts = {"attack": self.kind, "objective": self.objective, "kind": self.way.kind}
        facts |= {"budget": known.norm, **known.as_dict(), **spec.options}
        metrics = [f"ndcg@{k}" for k in ks]
        asked = {"epsilons": epsilons, "metrics": metrics, "protocol": {"part": part}}
        return curves.settings_of({**facts, **asked})

    def control_settings(
        self, threat: Threat, part: str, epsilons: Sequence[float], ks: Sequence[int]
    ) -> dict[str, Any]:
        """Return the settings of its random control."""
        noise = AttackSpec(RANDOM, seed=self.seed).settings(threat, part, epsilons, ks)
        kind = curves.PER_USER if self.way.kind == curves.ALONE else curves.JOINT
        return noise | {"draws": self.way.draws, "kind": kind}

    def sizes(self, threat: Threat) -> tuple[float, ...]:
        """Return its default epsilons."""
        if self.way.certifies:
            return CERTIFIED_SIZES
        return ATTACK_SIZES if threat.relative else ABSOLUTE_SIZES

    def words(self) -> str:
        """Describe the attack in a few words."""
        steps = self.steps or STEPS.get(self.kind, 1)
        many = f"{counted(steps, 'step')}, {counted(self.restarts, 'start')}"
        what = {
            "pgd": f"pgd ({many}; the stronger of PGD and FGM)",
            AUTO: f"auto ({many} on pairs near the cutoff)",
            PAIRWISE: f"pairwise ({many})",
            CUTOFF: f"cutoff ({many})",
            RANDOM: f"random (seed {self.seed})",
            CERTIFICATE: f"certified lower bound ({self.bound})",
            PERSONAL: "each user attacked alone",
        }.get(self.kind, self.kind)
        return f"{what} on {self.objective}" if self.objective else what


@dataclass(frozen=True, eq=False)
class Request:
    """One measurement, with all defaults filled in.

    ``built`` is an attack object, ``keep`` whether perturbed factors are kept; ``on_attacked`` gets
    the size, the attacked factors and their metrics. Derived requests share ``clean``, the
    unattacked evaluation.
    """

    model: Recommender
    threat: Threat
    spec: AttackSpec
    epsilons: tuple[float, ...]
    ks: tuple[int, ...]
    progress: bool = False
    built: Attack | None = None
    keep: bool = False
    clean: list[MetricReport] = field(default_factory=list)
    on_attacked: Callable[[float, Factors, MetricReport], None] | None = None

    def __post_init__(self) -> None:
        spec, threat = self.spec.against(self.threat, self.model.part)
        object.__setattr__(self, "spec", spec)
        object.__setattr__(self, "threat", threat)

    def curve(self, attack: Attack) -> RobustnessCurve:
        """Return the curve of a single attack, at epsilon 0 the clean result to the bit."""
        if self.epsilons[0] == 0 and not self.clean:
            self.clean.append(self.model.evaluate(self.ks))
        reports, realised, kept = [], [], []
        for epsilon in self.epsilons:
            attacked = attack.perturb(self.model.arrays, epsilon)
            realised.append(attacked.realised)
            kept += [attacked.factors] * self.keep
            known = self.clean[0] if epsilon == 0 else None
            reports.append(known or self.model.evaluate(self.ks, attacked.factors))
            if self.on_attacked is not None:
                self.on_attacked(epsilon, attacked.factors, reports[-1])
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
            attacked=tuple(kept),
        )

    def objective(self) -> Objective[Any]:
        """Return the objective to attack, on the pairs that the attacker knows.

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
        """Return the options of an attack object: those of the threat, and these of the spec."""
        return {**self.threat.options(self.model), **{n: getattr(self.spec, n) for n in names}}


Curves = dict[str, RobustnessCurve]


@dataclass(frozen=True, eq=False)
class Way:
    """How the curves of an attack are made.

    Args:
        members: makes the curves, one or several, that the result is chosen from.
        draws: the number of members, and of random directions that the control chooses from.
        knowledge: default knowledge of the attacker.
        told: whether the knowledge can be changed.
        kind: see :class:`RobustnessCurve`.
    """

    members: Callable[[Request], Curves]
    draws: int = 1
    knowledge: str = "data"
    told: bool = True
    kind: str = curves.JOINT

    @property
    def certifies(self) -> bool:
        """Whether its default epsilons are those of certificates."""
        return self.kind != curves.JOINT


def _fgm(request: Request) -> Curves:
    return {"fgm": request.curve(FGM(request.objective(), **request.options()))}


def _pgd(request: Request) -> Curves:
    """PGD and FGM: the objective is not the metric, on which one long step may do more."""
    objective = request.objective()
    pgd = PGD(objective, **request.options(*_MANY))
    fgm = FGM(objective, **request.options())
    fgm.views = pgd.views
    return {"pgd": request.curve(pgd), "fgm": request.curve(fgm)}


def _ranked(kind: type[Cutoff], request: Request) -> Curves:
    """An attack on the metric; without labels, on guessed ones."""
    model, k = request.model, request.ks[0]
    pairs = request.threat.pairs(model)
    if model.part == "train":
        pairs = model.all_relevant  # known
    elif _guesses(request.threat, model.part):
        pairs = guessed_labels(model, k)
    how = {"progress": request.progress, **request.options(*_MANY)}
    return {kind.name: request.curve(kind(pairs, model.seen, k, **how))}


def _guesses(threat: Threat, part: str) -> bool:
    """Whether the relevant items are held out and unknown."""
    return threat.knowledge == "data" and part != "train"


def guessed_labels(model: Recommender, k: int) -> Interactions:
    """Return the top k items per user, which an attacker without labels takes for them."""
    users = np.flatnonzero(model.all_relevant.user_degrees)
    top = top_items(model.factors, users, k, model.seen)
    rows, places = np.nonzero(top >= 0)
    shape = model.factors.n_users, model.factors.n_items
    return Interactions.from_pairs(users[rows], top[rows, places], *shape)[0]


def _random(request: Request) -> Curves:
    return {RANDOM: request.curve(RandomNoise(**request.options("seed")))}


def random_directions(request: Request, draws: int) -> Curves:
    """Return curves of random directions: the control of an attack with as many members."""
    found = Curves()
    for number in range(draws):
        spec = AttackSpec(RANDOM, seed=request.spec.seed + number)
        noise = replace(request, spec=spec, built=None, progress=False, on_attacked=None)
        found[str(number)] = _random(noise)[RANDOM]
    return found


def _certificate(request: Request) -> Curves:
    asked = (request.model, request.threat, request.epsilons, request.ks)
    curve = certified_curve(*asked, bound=request.spec.bound)
    return {CERTIFICATE: replace(curve, options=request.spec.options)}


def _personal(request: Request) -> Curves:
    """The search; where users may move, the joint attack is one on each user alone, too."""
    found = personal_curve(request.model, request.threat, request.epsilons, request.ks)
    if request.threat.side != "items":  # where the search is exact
        told = replace(request.threat, knowledge=None)
        spec = AttackSpec(PAIRWISE)
        asked = replace(request, spec=spec, threat=told, progress=False, on_attacked=None)
        (joint,) = _ranked(Pairwise, asked).values()
        kept = {name: joint.values[name] for name in found.values}
        per_user = {name: joint.per_user[name] for name in found.per_user}
        joint = replace(joint, threat=found.threat, values=kept, per_user=per_user)
        worst = worst_of({"search": found, "joint": joint}, PERSONAL, cumulative=True)
        found = replace(found, values=worst.values, per_user=worst.per_user)
    return {PERSONAL: found}


def _own(request: Request) -> Curves:
    """A custom attack; one that follows a gradient gets an objective."""
    name, attack, options = request.spec.kind, request.built, {}
    if attack is None:
        kind = ATTACKS[name]
        aim: list[Any] = [request.objective()] if issubclass(kind, FGM) else []
        attack = kind(*aim, **request.options())
    else:
        told = {key: getattr(attack, key, None) for key in _MANY}
        options = {key: value for key, value in told.items() if type(value) is int}
    # A class that derives from FGM has inherited its name.
    return {name: replace(request.curve(attack), attack=name, options=options)}


WAYS: Mapping[str, Way] = {
    AUTO: Way(partial(_ranked, Pairwise), knowledge="labels"),
    PAIRWISE: Way(partial(_ranked, Pairwise), knowledge="labels"),
    CUTOFF: Way(partial(_ranked, Cutoff), knowledge="labels"),
    "fgm": Way(_fgm),
    "pgd": Way(_pgd, draws=2),
    RANDOM: Way(_random, knowledge="none", told=False),
    CERTIFICATE: Way(_certificate, knowledge="labels", told=False, kind=curves.CERTIFIED),
    # Its control chooses from as many directions per user as its search tries.
    PERSONAL: Way(_personal, PERSONAL_STEPS + 1, "labels", told=False, kind=curves.ALONE),
}
_OWN = Way(_own)

NAMES = (
    *(f"{kind}-{objective}" for kind in _GRADIENT for objective in OBJECTIVES),
    *(kind for kind in WAYS if kind not in _GRADIENT),
)
