"""The one table of attacks: a name -> how it is made, its control, its default sizes, its file.

A name is ``auto``, ``cutoff``, ``random``, ``certificate`` or ``personal``; or ``fgm`` or ``pgd``
with an objective, ``fgm-softmax`` say; or ``module:Class``, an :class:`robustcf.attacks.Attack` of
the reader's own. The command line, sweeps, the demo and the scripts all go by this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from robustcf._checks import check_choice, check_integer
from robustcf._io.text import counted, grid_name
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
from robustcf.robustness.curves import RobustnessCurve, attack_curve
from robustcf.robustness.personal import PERSONAL_STEPS, personal_curve
from robustcf.robustness.threat import Threat

AUTO, CUTOFF, RANDOM = "auto", "cutoff", "random"
CERTIFICATE, PERSONAL = "certificate", "personal"
GRADIENT = ("fgm", "pgd")
OWN_OBJECTIVE = "softmax"  # of a gradient attack from outside of the package, unless it is told
# Not an attack of some size -> where it is done.
_ELSEWHERE = {
    "quantization": "use robustcf.robustness.quantization_table(model), or 'robustcf attack RUN "
    "--attack quantization'"
}
CUTOFFS = (10, 20)
# Steps unless told otherwise. An attacker who has to guess what counts gains little by more.
STEPS: Mapping[str, int] = {"pgd": 8, AUTO: CUTOFF_STEPS, CUTOFF: CUTOFF_STEPS}
_GUESSING_STEPS = 10

# What sizes are asked for unless told otherwise. At a size where attacks begin to show, nothing is
# certain any more: certificates have smaller ones.
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
        if self.kind not in WAYS:
            if ":" not in self.kind and not _is_installed(self.kind):
                hint = f": {_ELSEWHERE[self.kind]}" if self.kind in _ELSEWHERE else ""
                raise InputError(
                    f"attack must be one of {', '.join(NAMES)}, got {self.name!r}{hint}"
                )
            return
        if self.kind in GRADIENT:
            chosen = "bce" if self.objective is None else self.objective
            OBJECTIVES[chosen]
            object.__setattr__(self, "objective", chosen)
        else:
            object.__setattr__(self, "objective", None)

    @classmethod
    def parse(cls, name: str, **options: Any) -> AttackSpec:
        """From a name such as ``pgd-bpr``; the class of ``module:Class`` is imported here."""
        known = [entry.name for entry in fields(cls) if entry.name != "kind"]
        for key in options:
            if key not in known:
                raise InputError(f"unknown option {key!r} of an attack; known: {', '.join(known)}")
        kind, dash, objective = name.partition("-")
        split = dash and (kind in GRADIENT or ":" in kind)
        if split and options.pop("objective", None) is not None:
            raise InputError(f"{name!r} names its objective: leave the option objective out")
        spec = cls(kind, objective, **options) if split else cls(name, **options)
        if spec.kind in WAYS:
            return spec
        if not issubclass(ATTACKS[spec.kind], FGM):
            return replace(spec, objective=None)
        chosen = OWN_OBJECTIVE if spec.objective is None else spec.objective
        OBJECTIVES[chosen]
        return replace(spec, objective=chosen)

    @property
    def name(self) -> str:
        """The name that :meth:`parse` reads."""
        return f"{self.kind}-{self.objective}" if self.objective else self.kind

    def guesses(self, threat: Threat, part: str) -> bool:
        """Whether the attacker has to guess what counts: held-out pairs, and only training known.

        Args:
            threat: what the attacker knows.
            part: the pairs that count.
        """
        known = threat.knowledge or self.way.knowledge
        return self.kind in (AUTO, CUTOFF) and known == "data" and part != "train"

    def n_steps(self, threat: Threat | None = None, part: str = "test") -> int:
        """Its steps; 1 where it has no choice."""
        return self.steps or self._usual_steps(Threat() if threat is None else threat, part)

    def _usual_steps(self, threat: Threat, part: str) -> int:
        return _GUESSING_STEPS if self.guesses(threat, part) else STEPS.get(self.kind, 1)

    @property
    def way(self) -> Way:
        """How it is made."""
        return WAYS.get(self.kind, _OWN)

    def sizes(self, unit: str) -> tuple[float, ...]:
        """The sizes asked for unless told otherwise."""
        return CERTIFIED_SIZES if self.way.certifies else ATTACK_SIZES[unit]

    def words(self, threat: Threat | None = None, part: str = "test") -> str:
        """The attack in a few words for people."""
        steps = self.n_steps(threat, part)
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

    def file_name(
        self,
        threat: Threat,
        part: str,
        epsilons: Sequence[float],
        ks: Sequence[int],
    ) -> str:
        """A file name that tells whatever changes the result: two results never share one.

        Args:
            threat: what the attacker may do.
            part: the pairs that count.
            epsilons: sizes.
            ks: cutoffs.

        Example:
            >>> AttackSpec.parse("fgm-bce").file_name(Threat(), "test", (0, 0.1), (10, 20))
            'fgm-bce-row-relative-e0_0.1-k10_20'
        """
        return self._file_name([], threat, part, epsilons, ks)

    def control_file_name(
        self, threat: Threat, part: str, epsilons: Sequence[float], ks: Sequence[int]
    ) -> str:
        """The same for its random control, which chooses from as many directions as it does.

        Example:
            >>> AttackSpec("auto").control_file_name(Threat(), "test", (0, 0.1), (10,))
            'random-joint-of-4-row-relative-e0_0.1-k10'
        """
        draws = self.way.draws
        words = [f"joint-of-{draws}"] if draws > 1 else []
        words = [f"worst-of-{draws}"] if self.kind == PERSONAL else words
        return AttackSpec(RANDOM, seed=self.seed)._file_name(words, threat, part, epsilons, ks)

    def _file_name(
        self,
        words: list[str],
        threat: Threat,
        part: str,
        epsilons: Sequence[float],
        ks: Sequence[int],
    ) -> str:
        parts = [self.name.replace(":", "."), *words]
        if self.kind in STEPS:
            steps = self.n_steps(threat, part)
            parts += [f"steps{steps}"] if steps != self._usual_steps(threat, part) else []
            parts += [f"restarts{self.restarts}"] if self.restarts > 1 else []
        parts += [self.bound] if self.kind == CERTIFICATE and self.bound != "tight" else []
        parts += [f"seed{self.seed}"] if self.seed and self.way.seeded(self) else []
        parts += [threat.norm, threat.unit]
        parts += [threat.side] if threat.side != "both" else []
        known = threat.knowledge or self.way.knowledge
        parts += ["labels"] if known == "labels" and self.way.told else []
        parts += [part] if part != "test" else []
        return "-".join([*parts, grid_name(epsilons, ks)])


def _is_installed(name: str) -> bool:
    """Whether an installed package declares an attack of this name."""
    try:
        ATTACKS[name]
    except InputError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class Request:
    """One measurement: what, by whom, how, at which sizes and cutoffs; with a bar or without.

    Where the threat leaves open what is known, it is what the attack assumes.

    Requests that follow from one another share what is known of the model without attack.
    """

    model: Recommender
    threat: Threat
    spec: AttackSpec
    epsilons: tuple[float, ...]
    ks: tuple[int, ...]
    progress: bool = False
    unattacked: dict[tuple[Recommender, tuple[int, ...]], MetricReport] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        way, threat = self.spec.way, self.threat
        if threat.knowledge is None or not way.told:
            # Without held-out pairs, those of the training are all that counts, and are known.
            data = way.told and self.model.part == "train"
            known = replace(threat, knowledge="data" if data else way.knowledge)
            object.__setattr__(self, "threat", known)

    @property
    def metric(self) -> str:
        """What an attack is to make least."""
        return f"ndcg@{self.ks[0]}"

    def curve(self, attack: Attack) -> RobustnessCurve:
        """The curve of a single attack."""
        this = self.model, self.ks
        if self.epsilons[0] == 0 and this not in self.unattacked:
            self.unattacked[this] = self.model.evaluate(self.ks)
        clean = self.unattacked.get(this)
        curve = attack_curve(self.model, attack, self.threat, self.epsilons, self.ks, clean)
        # As it was asked for: a class from outside of the package may have no name.
        return replace(curve, objective=self.spec.objective) if self.spec.objective else curve

    def objective(self, name: str) -> Objective[Any]:
        """What to make worse, on the pairs that the attacker knows.

        The cross-entropy has the weights of the model's training, without the item-item term,
        which is a constraint of training and no part of the paper's attack.
        """
        users = self.model.factors.users
        place: dict[str, Any] = {"dtype": users.dtype, "device": users.device}
        kind, pairs = OBJECTIVES[name], self.threat.pairs(self.model)
        if kind is BCE:
            weights = replace(self.model.bce or BCEConfig(), item_weight=0.0, sampled_items=None)
            return kind(pairs, weights, **place)
        return kind(pairs, **place)

    def options(self) -> dict[str, Any]:
        """The options of an attack on the model."""
        return self.threat.options(self.model)


Curves = dict[str, RobustnessCurve]


@dataclass(frozen=True, eq=False)
class Way:
    """How the curves of an attack are made, and what its control is.

    Args:
        members: the curves that the result is chosen from, by name; one, or several.
        draws: how many these are: its control chooses from as many random directions.
        knowledge: what the attacker knows unless told otherwise.
        told: whether the attacker can be told to know something else.
        certifies: whether its sizes are those at which something can be proved.
        seeded: whether the seed of a spec matters.
    """

    members: Callable[[Request], Curves]
    draws: int = 1
    knowledge: str = "data"
    told: bool = True
    certifies: bool = False
    seeded: Callable[[AttackSpec], bool] = lambda spec: False


def _fgm(request: Request) -> Curves:
    objective = request.objective(request.spec.objective or "bce")
    return {"fgm": request.curve(FGM(objective, **request.options()))}


def _pgd(request: Request) -> Curves:
    """PGD, and its first step: the objective is not the metric, where one long step may do more."""
    spec = request.spec
    objective = request.objective(spec.objective or "bce")
    pgd = PGD(objective, **_many(request), **request.options())
    fgm = FGM(objective, **request.options())
    fgm.views = pgd.views
    return {"pgd": request.curve(pgd), "fgm": request.curve(fgm)}


def _many(request: Request) -> dict[str, int]:
    spec = request.spec
    steps = spec.n_steps(request.threat, request.model.part)
    return {"steps": steps, "restarts": spec.restarts, "seed": spec.seed}


def _cutoff(request: Request) -> Curves:
    """The attack at the cutoff; without the labels, on what the attacker guesses them to be."""
    model, many = request.model, _many(request)
    pairs = request.threat.pairs(model)
    if model.part == "train":
        pairs = model.relevant  # known, and of those that count alone
    if request.spec.guesses(request.threat, model.part):
        pairs = guessed_labels(model, request.ks[0])
    attack = Cutoff(
        pairs, model.seen, request.ks[0], progress=request.progress, **many, **request.options()
    )
    return {CUTOFF: request.curve(attack)}


def guessed_labels(model: Recommender, k: int) -> Interactions:
    """What an attacker without labels takes for them: the k items that each user is shown.

    They rank highest, so none are more likely to be relevant, and pushing them out of the list is
    the most that can be done without knowing more. Pushing down the training pairs, which are no
    candidates, does next to nothing to the others.
    """
    users = np.flatnonzero(model.relevant.user_degrees)
    top = top_items(model.factors, users, k, model.seen)
    rows, places = np.nonzero(top >= 0)
    shape = model.factors.n_users, model.factors.n_items
    return Interactions.from_pairs(users[rows], top[rows, places], *shape)[0]


def _auto(request: Request) -> Curves:
    """The attack at the cutoff, and one step on each of the losses."""
    curves = _cutoff(request)
    for name in ("softmax", "bpr", "bce"):
        attack = FGM(request.objective(name), **request.options())
        curves[f"fgm-{name}"] = request.curve(attack)
    return curves


def _random(request: Request) -> Curves:
    return {RANDOM: random_member(request, 0)}


def random_member(request: Request, number: int) -> RobustnessCurve:
    """The curve of one random direction; each number has one of its own."""
    seed = request.spec.seed + number
    return request.curve(RandomNoise(seed=seed, **request.options()))


def _certificate(request: Request) -> Curves:
    curve = certified_curve(
        request.model, request.threat, request.epsilons, request.ks, bound=request.spec.bound
    )
    return {CERTIFICATE: curve}


def _personal(request: Request) -> Curves:
    curve = personal_curve(request.model, request.threat, request.epsilons, request.ks)
    return {PERSONAL: curve}


def _own(request: Request) -> Curves:
    """An attack from outside of the package; one that follows a gradient gets an objective."""
    name = request.spec.kind
    kind = ATTACKS[name]
    attack: Attack
    if issubclass(kind, FGM):
        objective = request.objective(request.spec.objective or OWN_OBJECTIVE)
        attack = kind(objective, **request.options())
    else:
        attack = kind(**request.options())
    # Its own name: a class that derives from FGM has inherited another one.
    return {name: replace(request.curve(attack), attack=name)}


WAYS: Mapping[str, Way] = {
    AUTO: Way(_auto, draws=4, knowledge="labels", seeded=lambda spec: spec.restarts > 1),
    CUTOFF: Way(_cutoff, knowledge="labels", seeded=lambda spec: spec.restarts > 1),
    "fgm": Way(_fgm),
    "pgd": Way(_pgd, draws=2, seeded=lambda spec: spec.restarts > 1),
    RANDOM: Way(_random, knowledge="none", told=False, seeded=lambda spec: True),
    CERTIFICATE: Way(_certificate, knowledge="labels", told=False, certifies=True),
    # Its control chooses from as many directions for each user as its search looks at.
    PERSONAL: Way(
        _personal, draws=PERSONAL_STEPS + 1, knowledge="labels", told=False, certifies=True
    ),
}
_OWN = Way(_own)

NAMES = (
    *(f"{kind}-{objective}" for kind in GRADIENT for objective in OBJECTIVES),
    *(kind for kind in WAYS if kind not in GRADIENT),
)
