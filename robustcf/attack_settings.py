"""What an attack on a run was asked for, and the file name that tells it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from robustcf.errors import InputError

ABSOLUTE_EPSILONS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
RELATIVE_EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2)
CUTOFFS = (10, 20)
STEPS = 8


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result, given the run.

    Args:
        kind: ``fgm``, ``pgd``, ``auto``, ``random`` or ``quantization``.
        objective: of fgm and pgd.
        positives: ``train``, or ``test`` for the oracle.
        budget: name of the norm.
        relative: whether epsilons are in the factors' own units.
        side: which factors are perturbed.
        part: the pairs that count.
        steps: of pgd.
        restarts: of pgd.
        seed: of the noise and of pgd's restarts.
        epsilons: ascending.
        ks: cutoffs, ascending.
    """

    kind: str
    objective: str
    positives: str
    budget: str
    relative: bool
    side: Any
    part: Any
    steps: int
    restarts: int
    seed: int
    epsilons: tuple[float, ...]
    ks: tuple[int, ...]

    @classmethod
    def of(
        cls,
        *,
        kind: str,
        relative: bool | None,
        epsilons: tuple[float, ...],
        ks: tuple[int, ...],
        **options: Any,
    ) -> Settings:
        """Settings from the options of the command, with defaults that depend on each other.

        Raises:
            InputError: epsilons that are no sizes of attacks, or an oracle where there is none.
        """
        from robustcf.robustness.curves import check_epsilons

        relative = kind == "auto" if relative is None else relative
        default = RELATIVE_EPSILONS if relative else ABSOLUTE_EPSILONS
        settings = cls(
            kind=kind,
            relative=relative,
            epsilons=check_epsilons(epsilons or default),
            ks=tuple(sorted(set(ks))) or CUTOFFS,
            **options,
        )
        settings._check_positives()
        return settings

    def _check_positives(self) -> None:
        if self.positives == "train":
            return
        if self.kind not in ("fgm", "pgd") or self.objective != "softmax":
            raise InputError(
                "--positives test is for fgm and pgd with --objective softmax: the others are not "
                "defined against held-out pairs"
            )
        if self.part != "test":
            raise InputError("--positives test needs --part test: the pairs that count")

    @property
    def metric(self) -> str:
        """The metric that pictures show and members are compared by."""
        return f"ndcg@{self.ks[0]}"

    @property
    def shown(self) -> tuple[str, ...]:
        """The metrics of the table."""
        first, last = self.ks[0], self.ks[-1]
        return self.metric, f"mrr@{first}", f"coverage@{first}", f"recall@{last}"

    def name(self, kind: str | None = None, draws: int = 1) -> str:
        """A file name that tells whatever changes the result: two attacks never share one.

        Defaults are left out. Epsilons other than the default ones are told by a digest.

        Args:
            kind: another attack with these settings; the control, say.
            draws: directions that the control is the worst of.
        """
        kind = kind or self.kind
        parts = [kind]
        if kind in ("fgm", "pgd"):
            parts.append(("oracle-" if self.positives == "test" else "") + self.objective)
        if kind == "pgd":
            parts += [f"steps{self.steps}"] if self.steps != STEPS else []
            parts += [f"restarts{self.restarts}"] if self.restarts > 1 else []
        parts += [f"worst-of-{draws}"] if kind == "random" and draws > 1 else []
        if self.seed and (kind == "random" or (kind == "pgd" and self.restarts > 1)):
            parts.append(f"seed{self.seed}")
        if kind != "quantization":
            parts += [self.budget, *(["relative"] if self.relative else [])]
            parts += [self.side] if self.side != "both" else []
        parts += [self.part] if self.part != "test" else []
        parts += ["k" + "_".join(map(str, self.ks))] if self.ks != CUTOFFS else []
        default = RELATIVE_EPSILONS if self.relative else ABSOLUTE_EPSILONS
        if kind != "quantization" and self.epsilons != default:
            grid = ",".join(map(repr, self.epsilons))
            parts.append("eps" + hashlib.sha256(grid.encode()).hexdigest()[:8])
        return "-".join(parts)

    def words(self) -> str:
        """The settings in a line for people."""
        what = {
            "pgd": f"pgd ({self.steps} steps, {self.restarts} starts; the worst of it and fgm, "
            "user by user)",
            "auto": "auto (the worst of its members at this size or a smaller one, user by user)",
            "random": f"random (seed {self.seed})",
        }.get(self.kind, self.kind)
        words = [what]
        if self.kind in ("fgm", "pgd"):
            oracle = " against the test pairs: an ORACLE, no attacker has them"
            words.append(f"on {self.objective}" + (oracle if self.positives == "test" else ""))
        words.append(f"{self.budget} budget on {self.side}")
        words.append("relative" if self.relative else "absolute")
        return ", ".join(words)
