"""One report on fake accounts: a recommender and a vote under the same injections.

Found exposure in counts of users, next to what is certified for the vote, what detection finds, and
what the change from one to the other costs in quality. The trainings are a grid of poisonings.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._checks import check_integer
from robustcf._io.files import write_bytes, write_json
from robustcf._io.plots import Line, Panel, plot_panels
from robustcf._io.schema import Kind, record, whole
from robustcf._io.text import aligned, counted, harmless, wrapped
from robustcf.data import Split, load
from robustcf.errors import InputError, Interrupted
from robustcf.experiments.grid import Array, check_unique, run_grid
from robustcf.experiments.poison import (
    CLEAN,
    VOTE,
    PoisonPlan,
    PoisonSummary,
    Row,
    count_range,
    stands_out,
)
from robustcf.models.voting import CertifiedReach, VoteConfig, choose, fit_vote
from robustcf.poisoning.defences import AllDetectors
from robustcf.poisoning.injection import inject
from robustcf.poisoning.threat import UNDEFENDED, ItemIds, Targets, fakes_name
from robustcf.recommender import Recommender, check_recommender
from robustcf.training.config import TrainConfig

ATTACKS = ("random", "bandwagon", "copy", "surrogate")
_DETECTED = record(dict.fromkeys(("fakes", "genuine", "targets"), whole()))


def report(
    model: Recommender,
    fakes: Sequence[float] = (10, 50),
    *,
    attacks: Sequence[str] = ATTACKS,
    targets: int = 5,
    target_kind: str = "rare",
    seeds: int = 3,
    k: int = 10,
    out: str | Path | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> FakesReport:
    """Report what fake accounts do to a recommender trained here, and to a vote on its data.

    Args:
        model: the recommender; it is trained anew with its settings for each injection.
        fakes: numbers of accounts, or shares of the genuine users.
        attacks: how the fake users choose their items.
        targets: the number of promoted items, drawn anew for each seed.
        target_kind: the popularity of the targets.
        seeds: number of seeds, of targets, attacks and training.
        k: places of a list.
        out: a folder for the report and its parts, from which a stopped one is resumed.
        threads: CPU threads.
        progress: whether to show a bar; None: in a terminal and in a notebook.

    Raises:
        InputError: the recommender was not trained here, or the threat does not fit its data.

    Cost: trainings of both for every seed, attack and number of fakes, and once without.
    """
    check_recommender(model)
    training: Mapping[str, Any] = model.training or {}
    settings = training.get("config")
    if not isinstance(settings, Mapping) or "model" not in settings:
        raise InputError(
            "a report needs a recommender that robustcf.train made, other than a vote: it is "
            "trained again with fake accounts"
        )
    plan = FakesPlan(
        model.split.name,
        models=(TrainConfig.from_dict(settings).model.name, VOTE),
        given=settings,
        attacks=tuple(attacks),
        fakes=tuple(fakes),
        targets=Targets(targets, target_kind),
        seeds=tuple(range(check_integer("seeds", seeds, 1, 1000))),
        ks=(k,),
        threads=threads,
    )
    return fakes_report(plan, out, split=model.split, progress=progress)


@dataclass(frozen=True)
class FakesPlan(PoisonPlan):
    """A model and a vote under the same injections, see :class:`PoisonPlan`.

    Args:
        fakes: fake users, as numbers or in percent of the genuine ones (default 10 50).
        attacks: how the fake users choose their items (default random bandwagon copy surrogate).
        ks: the number of places of a list (default 10).
        given: all training settings of the model; None for those of its preset.
    """

    grid, verb = "report on fake accounts", "fakes"

    fakes: tuple[float, ...] = (10, 50)
    attacks: tuple[str, ...] = ATTACKS
    ks: tuple[int, ...] = (10,)
    given: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        names = [name for name in self.models or (self.best_model,) if name != VOTE]
        if len(names) != 1 or self.preset == "auto":
            raise InputError(
                f"a report compares one model with the vote: give another model, got {self.models}"
            )
        object.__setattr__(self, "models", (*names, VOTE))
        super().__post_init__()
        if len(self.ks) != 1:
            raise InputError(f"a report is about one number of places, got {list(self.ks)}")
        if not all(self.fakes):
            raise InputError("fakes must be above 0: the report always has none, too")
        if self.profiles or self.goal != "promote" or self.defences != (UNDEFENDED,):
            raise InputError("a report promotes items, without files or defences: use PoisonPlan")

    def train_config(self, model: str, seed: int) -> tuple[TrainConfig | VoteConfig, str]:
        """Return how a victim trains, see :meth:`PoisonPlan.train_config`."""
        if model == VOTE or self.given is None:
            return super().train_config(model, seed)
        return TrainConfig.from_dict(self.given).replace(seed=seed), "given"

    @property
    def named(self) -> tuple[str, ...]:
        """The model; a report always has the vote, too."""
        return self.models[:1]

    def command(self) -> str | None:
        """Return the equivalent command; None for settings that it cannot express."""
        return None if self.given is not None else super().command()

    def counts(self, split: Split) -> dict[float, int]:
        """Return the number of accounts per entry of ``fakes``."""
        return {size: self.threat(size).granted(split.train, 0)[0] for size in self.sizes}

    def pinned(self, split: Split) -> dict[str, Any]:
        """Return other facts that must stay, see :meth:`PoisonPlan.pinned`."""
        pinned = super().pinned(split)
        check_unique("fakes, as numbers of accounts,", list(self.counts(split).values()))
        return pinned

    def more_kinds(self, row: Row, seed: int) -> Mapping[str, Kind]:
        """Return what detection finds with the most accounts, and once without, as counts."""
        wanted = row.fakes == self.sizes[-1] or (row.attack == CLEAN and seed == self.seeds[0])
        return {"detected": _DETECTED} if row.model == VOTE and wanted else {}

    def more(self, split: Split, profiles: Sequence[ItemIds], targets: ItemIds) -> dict[str, Any]:
        """Return fakes and genuine users among the suspects, and the targets that are named."""
        found = AllDetectors().detect(inject(split.train, profiles))
        fakes, genuine = found.flagged[split.n_users :], found.flagged[: split.n_users]
        counts = {"fakes": fakes.sum(), "genuine": genuine.sum()}
        counts["targets"] = np.isin(targets, found.items).sum()
        return {"detected": {key: int(count) for key, count in counts.items()}}


def fakes_report(
    plan: FakesPlan,
    out: str | Path | None = None,
    *,
    split: Split | None = None,
    jobs: int = 1,
    progress: bool | None = None,
) -> FakesReport:
    """Make or resume a report; see :func:`report` and :func:`robustcf.experiments.grid.run_grid`.

    The settings of the vote that are open are chosen once, without fakes: its certificate takes
    them as fixed.
    """
    data = load(plan.dataset, **plan.data) if split is None else split
    chosen = choose(data, plan.vote_config(0)).config
    fixed = {name: getattr(chosen, name) for name in ("cap", "damping")}
    fixed = {name: value for name, value in fixed.items() if value is not None}
    counts = plan.counts(data)
    ordered = tuple(sorted(counts, key=lambda size: counts[size]))
    plan = dataclasses.replace(plan, fakes=ordered, changes={**plan.changes, **fixed})

    def summarize(plan: FakesPlan, split: Split) -> FakesReport:
        vote = fit_vote(split, chosen)
        numbers = sorted(plan.counts(split).values())
        reach: CertifiedReach = vote.scorer.certify_reach(
            split,
            numbers,
            plan.ks,
            mask=vote.mask,
            targets=len(plan.targets.choose(split.train, 0)),
        )
        return FakesReport(PoisonSummary.read(plan, folder, split), plan, split, chosen, reach)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()) if out is None else out)
        try:
            found = run_grid(plan, folder, summarize, split=data, jobs=jobs, progress=progress)
        except Interrupted as error:
            if out is not None:
                raise
            raise KeyboardInterrupt from error  # nothing is kept
        if out is not None:
            found.save(folder)
    return found


@dataclass(frozen=True, eq=False)
class FakesReport:
    """The results of the trainings, and the certificate of the vote; sizes as in the plan."""

    summary: PoisonSummary
    plan: FakesPlan
    split: Split
    vote: VoteConfig
    reach: CertifiedReach

    @property
    def k(self) -> int:
        """The number of places of a list."""
        return self.plan.ks[0]

    @property
    def current(self) -> str:
        """The name of the model."""
        return self.plan.models[0]

    @cached_property
    def sizes(self) -> dict[float, int]:
        """Entry of ``fakes`` -> number of accounts."""
        return self.plan.counts(self.split)

    def users(self, victim: str, attack: str = CLEAN, size: float = 0) -> Array:
        """Return how many genuine users see a target that they lack, seed by seed."""
        return self.summary.counts(Row(victim, UNDEFENDED, attack, size))

    def per_target(self, victim: str, attack: str = CLEAN, size: float = 0) -> Array:
        """Return how many genuine users see each single target, of all seeds."""
        cells = self.summary.of_seeds(Row(victim, UNDEFENDED, attack, size))
        rates = [cell["exposure"]["by_target"][f"hit_rate@{self.k}"] for cell in cells]
        lacking = [self.reach.lacking[cell["targets"]] for cell in cells]
        return np.asarray(np.rint(np.concatenate(rates) * np.concatenate(lacking)))

    def quality(self, victim: str, metric: str, attack: str = CLEAN, size: float = 0) -> Array:
        """Return a metric of the genuine users, seed by seed."""
        return self.summary.values(Row(victim, UNDEFENDED, attack, size), metric)

    def certified(self, size: float) -> Array:
        """Return to how many users the vote can show a target with any accounts, at most."""
        place = self.reach.fakes.index(self.sizes[size])
        cells = self.summary.of_seeds(Row(VOTE, UNDEFENDED))
        return np.array([self.reach.of(cell["targets"], self.k)[place] for cell in cells], float)

    def strongest(self, victim: str, size: float) -> tuple[str, bool]:
        """Return the attack that reaches most users, and whether by more than noise."""
        counts = {attack: self.users(victim, attack, size) for attack in self.plan.tried}
        worst = max(counts, key=lambda name: counts[name].sum())
        return worst, stands_out({**counts, CLEAN: self.users(victim)}, worst)

    def findings(self) -> list[str]:
        """Return what the numbers say, in sentences."""
        both, kind, lines = (self.current, VOTE), self.plan.targets.kind, []
        for size, number in self.sizes.items():
            counts = {}
            for victim in both:
                worst, clear = self.strongest(victim, size)
                counts[victim] = self.users(victim, worst, size)
                by = f"`{worst}` does most" if clear else "no attack does more than noise"
                lines.append(
                    f"{victim}, {number} accounts: {by}; {count_range(counts[victim])} users see a "
                    f"target (without: {count_range(self.users(victim))})."
                )
            less, more = sorted(both, key=lambda name: counts[name].sum())
            told = f"{less} shows a target to fewer users than {more}"
            same = "the two differ by no more than noise"
            lines.append(f"{number} accounts: {told if stands_out(counts, more) else same}.")
            worst_item = self.reach.worst(kind, self.k)[self.reach.fakes.index(number)]
            lines.append(
                f"vote, {number} accounts with any content: certified that at most "
                f"{count_range(self.certified(size))} users see a target, and at most "
                f"{worst_item:,} of {self.split.n_users:,} the worst {kind} item."
            )
        now, then = (float(self.quality(name, "ndcg@10").mean()) for name in both)
        part = 100 * (then - now) / now if now else 0.0
        lines.append(
            f"The change to the vote: NDCG@10 {now:.4f} to {then:.4f} ({part:+.0f} %), without "
            "fakes."
        )
        return lines

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return title, header and rows of each table."""
        both, size = (self.current, VOTE), self.plan.sizes[-1]
        number = self.sizes[size]
        rows = [(CLEAN, 0.0), *((attack, s) for s in self.sizes for attack in self.plan.tried)]
        exposed = []
        for attack, each in rows:
            told = [f"{self.sizes.get(each, 0)}", attack]
            for name in both:
                alone = self.per_target(name, attack, each)
                told.append(count_range(self.users(name, attack, each)))
                told.append(f"{alone.min():,.0f}-{alone.max():,.0f}")
            exposed.append([*told, count_range(self.certified(each)) if each else "-"])
        caught = []
        for row in (
            Row(VOTE, UNDEFENDED, a, size if a != CLEAN else 0) for a in (CLEAN, *self.plan.tried)
        ):
            parts = [c["detected"] for c in self.summary.of_seeds(row) if "detected" in c]
            counts = [
                [float(part[key]) for part in parts] for key in ("fakes", "genuine", "targets")
            ]
            cells = (count_range(np.array(values)) for values in counts)
            caught.append([row.attack, f"{number if row.fakes else 0}", *cells])
        rated = []
        for name in both:
            qualities = [self.quality(name, metric) for metric in ("ndcg@10", "recall@20")]
            qualities.append(self.quality(name, "ndcg@10", self.strongest(name, size)[0], size))
            rated.append([name, *(f"{values.mean():.4f}" for values in qualities)])
        targets = len(self.summary.of_seeds(Row(VOTE, UNDEFENDED))[0]["targets"])
        return [
            (
                f"Genuine users who see a target in their first {self.k}, counts",
                ["accounts", "attack", both[0], "per target", "vote", "per target", "vote at most"],
                exposed,
            ),
            (
                f"Suspects of the detectors (of {targets} targets), counts",
                ["attack", "accounts", "fakes found", "genuine flagged", "targets named"],
                caught,
            ),
            (
                "Quality of genuine users (metrics)",
                ["model", "ndcg@10", "recall@20", f"ndcg@10, strongest of {number} accounts"],
                rated,
            ),
        ]

    @property
    def notes(self) -> list[str]:
        """How it was made, and what is trusted."""
        command = self.plan.command()
        drawn = "for each" if self.plan.targets.labels else "drawn for each"
        return [
            f"{self.split.name}: {self.split.n_users:,} genuine users, {self.split.n_items:,} "
            f"items; {self.plan.targets.words()}, {drawn} of "
            f"{counted(len(self.plan.seeds), 'seed')}; counts are means over seeds "
            "(lowest-highest); per target: the lowest and highest count of a single one.",
            "The attacker adds accounts with any items, and knows all training pairs. Trusted: a "
            "user's own history, the settings, the catalogue.",
            f"Vote: {self.vote.words}; settings chosen without fakes.",
            "Found is what these attacks reached; a stronger one may exist. Certified holds for "
            "every attack of that size, each user attacked alone.",
            *([] if command is None else [f"Command: {command}"]),
        ]

    def __str__(self) -> str:
        parts = [
            f"{title}\n{aligned(header, rows, left=(0, 1) if n < 2 else (0,))}"
            for n, (title, header, rows) in enumerate(self.tables())
        ]
        lines = map(wrapped, (*self.findings(), *self.notes))
        return "\n\n".join([*parts, *lines])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        cells = self.summary.cells.values()
        return {
            **self.summary.facts,
            "dataset": self.split.name,
            "n_users": self.split.n_users,
            "accounts": {fakes_name(size): number for size, number in self.sizes.items()},
            "vote": asdict(self.vote),
            "findings": self.findings(),
            "certified": {self.sizes[s]: self.certified(s).tolist() for s in self.sizes},
            "reach": self.reach.rows(),
            "results": [{**cell, "fakes": self.sizes.get(cell["fakes"], 0)} for cell in cells],
        }

    def html(self) -> str:
        """Return the page: one file, without scripts, that fetches nothing."""
        from jinja2 import Environment, StrictUndefined

        files = resources.files("robustcf")
        audit = files.joinpath("auditing/page.html").read_text(encoding="utf-8")
        style = re.search(r"<style>.*?</style>", audit, re.DOTALL)
        text = files.joinpath("experiments/fakes.html").read_text(encoding="utf-8")
        page = Environment(
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            finalize=lambda value: harmless(value[:1000]) if type(value) is str else value,
        ).from_string(text)
        with tempfile.TemporaryDirectory() as folder:
            path = plot_panels([[self._panel()]], Path(folder) / "found.svg")
            picture = base64.b64encode(path.read_bytes()).decode()
        shown = {"tables": self.tables(), "findings": self.findings(), "notes": self.notes}
        return page.render(
            report=shown, title=f"Fake accounts on {self.split.name}: {self.current}",
            style=style[0] if style else "", picture=picture,
        )  # fmt: skip

    def _panel(self) -> Panel:
        lines = []
        for name in (self.current, VOTE):
            found = [self.users(name, self.strongest(name, size)[0], size) for size in self.sizes]
            values = np.stack([self.users(name), *found], axis=1)
            lines.append(Line(name, [0, *self.sizes.values()], values))
        bound = np.stack([self.certified(size) for size in self.sizes], axis=1)
        lines.append(Line("vote, at most", list(self.sizes.values()), bound, "bound"))
        return Panel(lines, "fake accounts", f"users who see a target (first {self.k})")

    def save(self, folder: Path) -> None:
        """Write ``report.html``, ``report.json`` and ``report.txt``."""
        write_json(folder / "report.json", self.as_dict())
        write_bytes(folder / "report.txt", f"{self}\n".encode())
        write_bytes(folder / "report.html", self.html().encode())
