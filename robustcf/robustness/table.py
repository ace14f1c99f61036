"""The one table of attacks: a name -> how it is made, its control, its default sizes, its file.

A name is ``auto``, ``random``, ``certificate`` or ``personal``; or ``fgm`` or ``pgd`` with an
objective, ``fgm-softmax`` say; or ``module:Class``, an :class:`robustcf.attacks.Attack` of the
reader's own. The command line, sweeps, the demo and the scripts all go by this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from robustcf.attacks import FGM, PGD, Attack, RandomNoise
from robustcf.certificates.bounds import BOUNDS
from robustcf.errors import InputError
from robustcf.objectives import BCE, BCEConfig, Objective
from robustcf.robustness.certified import certified_curve
from robustcf.robustness.curves import RobustnessCurve, attack_curve
from robustcf.robustness.personal import personal_curve
from robustcf.robustness.target import Target
from robustcf.robustness.threat import Threat
from robustcf.support.checks import check_choice, check_integer
from robustcf.support.naming import counted, grid_name
from robustcf.support.registry import ATTACKS, OBJECTIVES

AUTO, RANDOM, CERTIFICATE, PERSONAL = "auto", "random", "certificate", "personal"
GRADIENT = ("fgm", "pgd")
OWN_OBJECTIVE = "softmax"  # of a gradient attack from outside of the package, unless it is told
# Not an attack of some size -> where it is done.
_ELSEWHERE = {
    "quantization": "use robustcf.robustness.quantization_table(target), or 'robustcf attack RUN "
    "--attack quantization'"
}
CUTOFFS = (10, 20)
STEPS = 8

# What sizes are asked for unless told otherwise. At a size where attacks begin to show, nothing is
# certain any more: certificates have smaller ones.
ATTACK_SIZES: Mapping[str, tuple[float, ...]] = {
    "relative": (0.0, 0.02, 0.05, 0.1, 0.2),
    "absolute": (0.0, 0.1, 0.2, 0.4, 0.8, 1.6),
}
CERTIFIED_SIZES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True)
class AttackSpec:
    """An attack by name, with its options.

    Args:
        kind: an entry of :data:`WAYS`, or ``module:Class``.
        objective: what ``fgm`` and ``pgd`` make worse, and attacks of the reader's own that follow
            a gradient; None for the others.
        steps: PGD steps.
        restarts: PGD starts.
        seed: of noise, and of PGD's restarts.
        bound: of certificates, ``tight`` or ``plain``.

    Example:
        >>> AttackSpec.parse("fgm-softmax")
        AttackSpec(kind='fgm', objective='softmax', steps=8, restarts=1, seed=0, bound='tight')
        >>> AttackSpec.parse("fgm-mse")
        Traceback (most recent call last):
        robustcf.errors.InputError: objective must be one of bce, bpr, softmax, or module:Class,
        got 'mse'
    """

    kind: str
    objective: str | None = None
    steps: int = STEPS
    restarts: int = 1
    seed: int = 0
    bound: str = "tight"

    def __post_init__(self) -> None:
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

    @property
    def way(self) -> Way:
        """How it is made."""
        return WAYS.get(self.kind, _OWN)

    def sizes(self, unit: str) -> tuple[float, ...]:
        """The sizes asked for unless told otherwise."""
        return CERTIFIED_SIZES if self.way.certifies else ATTACK_SIZES[unit]

    def words(self) -> str:
        """The attack in a few words for people."""
        many = f"{counted(self.steps, 'step')}, {counted(self.restarts, 'start')}"
        what = {
            "pgd": f"pgd ({many}; the worst of it and fgm, user by user)",
            AUTO: "auto (the worst of its members at this size or a smaller one, user by user)",
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
            'random-worst-of-8-cumulative-row-relative-e0_0.1-k10'
        """
        draws = self.way.draws(threat)
        words = [f"worst-of-{draws}"] if draws > 1 else []
        words += ["cumulative"] if self.way.cumulative and draws > 1 else []
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
        if self.kind == "pgd":
            parts += [f"steps{self.steps}"] if self.steps != STEPS else []
            parts += [f"restarts{self.restarts}"] if self.restarts > 1 else []
        parts += [self.bound] if self.kind == CERTIFICATE and self.bound != "tight" else []
        parts += [f"seed{self.seed}"] if self.seed and self.way.seeded(self) else []
        parts += [threat.norm, threat.unit]
        parts += [threat.side] if threat.side != "both" else []
        parts += ["labels"] if threat.knowledge == "labels" and self.way.uses_pairs else []
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
    """One measurement: what, by whom, how, at which sizes and cutoffs."""

    target: Target
    threat: Threat
    spec: AttackSpec
    epsilons: tuple[float, ...]
    ks: tuple[int, ...]

    def curve(self, attack: Attack) -> RobustnessCurve:
        """The curve of a single attack."""
        curve = attack_curve(self.target, attack, self.threat, self.epsilons, self.ks)
        # As it was asked for: a class from outside of the package may have no name.
        return replace(curve, objective=self.spec.objective) if self.spec.objective else curve

    def objective(self, name: str) -> Objective[Any]:
        """What to make worse, on the pairs that the attacker knows.

        The cross-entropy has the weights of the target's training, without the item-item term,
        which is a constraint of training and no part of the paper's attack.
        """
        users = self.target.factors.users
        place: dict[str, Any] = {"dtype": users.dtype, "device": users.device}
        kind, pairs = OBJECTIVES[name], self.threat.pairs(self.target)
        if kind is BCE:
            weights = replace(self.target.bce or BCEConfig(), item_weight=0.0, sampled_items=None)
            return kind(pairs, weights, **place)
        return kind(pairs, **place)

    def options(self) -> dict[str, Any]:
        """The options of an attack on the target."""
        return self.threat.options(self.target)


Curves = dict[str, RobustnessCurve]


@dataclass(frozen=True, eq=False)
class Way:
    """How the curves of an attack are made, and what its control is.

    Args:
        members: the curves that the result is the worst of, by name; one, or several.
        draws: how many these are: its control is the worst of as many random directions.
        cumulative: whether what a smaller size did counts for the larger ones too.
        uses_pairs: whether what the attacker knows matters.
        certifies: whether it is a lower bound and not an attack: it has no control.
        seeded: whether the seed of a spec matters.
        knowledge: what the attacker knows, where that is not a choice.
    """

    members: Callable[[Request], Curves]
    draws: Callable[[Threat], int] = lambda threat: 1
    cumulative: bool = False
    uses_pairs: bool = True
    certifies: bool = False
    seeded: Callable[[AttackSpec], bool] = lambda spec: False
    knowledge: str | None = None


def _fgm(request: Request) -> Curves:
    objective = request.objective(request.spec.objective or "bce")
    return {"fgm": request.curve(FGM(objective, **request.options()))}


def _pgd(request: Request) -> Curves:
    """PGD, and its first step: the objective is not the metric, where one long step may do more."""
    spec = request.spec
    objective = request.objective(spec.objective or "bce")
    many: dict[str, Any] = {"steps": spec.steps, "restarts": spec.restarts, "seed": spec.seed}
    pgd = PGD(objective, **many, **request.options())
    fgm = FGM(objective, **request.options())
    fgm.views = pgd.views
    return {"pgd": request.curve(pgd), "fgm": request.curve(fgm)}


def _auto(request: Request) -> Curves:
    """FGM and PGD on every objective.

    Relative, objectives get the temperature they ask for, and by FGM also at the
    scale where they are least (see :mod:`robustcf.attacks.scale`): two views see more than one.
    """
    options, curves = request.options(), Curves()
    for name in OBJECTIVES:
        objective = request.objective(name)
        fgm, pgd = FGM(objective, **options), PGD(objective, **options)
        pgd.views = fgm.views
        attacks: dict[str, FGM] = {f"fgm-{name}": fgm, f"pgd-{name}": pgd}
        if request.threat.relative and fgm.views.log2_temperature:
            attacks[f"fgm-{name}-fitted"] = FGM(objective, log2_temperature=0.0, **options)
        curves |= {name: request.curve(attack) for name, attack in attacks.items()}
    return curves


def _auto_draws(threat: Threat) -> int:
    fitted = [threat.relative and OBJECTIVES[name].log2_temperature > 0 for name in OBJECTIVES]
    return 2 * len(fitted) + sum(fitted)


def _random(request: Request) -> Curves:
    return {RANDOM: random_member(request, 0)}


def random_member(request: Request, number: int) -> RobustnessCurve:
    """The curve of one random direction; each number has one of its own."""
    seed = request.spec.seed + number
    return request.curve(RandomNoise(seed=seed, **request.options()))


def _certificate(request: Request) -> Curves:
    curve = certified_curve(
        request.target, request.threat, request.epsilons, request.ks, bound=request.spec.bound
    )
    return {CERTIFICATE: curve}


def _personal(request: Request) -> Curves:
    curve = personal_curve(request.target, request.threat, request.epsilons, request.ks)
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
    "fgm": Way(_fgm),
    "pgd": Way(_pgd, draws=lambda threat: 2, seeded=lambda spec: spec.restarts > 1),
    AUTO: Way(_auto, draws=_auto_draws, cumulative=True),
    RANDOM: Way(_random, uses_pairs=False, seeded=lambda spec: True, knowledge="none"),
    CERTIFICATE: Way(_certificate, uses_pairs=False, certifies=True, knowledge="labels"),
    PERSONAL: Way(_personal, uses_pairs=False, certifies=True, knowledge="labels"),
}
_OWN = Way(_own)

NAMES = (
    *(f"{kind}-{objective}" for kind in GRADIENT for objective in OBJECTIVES),
    *(kind for kind in WAYS if kind not in GRADIENT),
)
