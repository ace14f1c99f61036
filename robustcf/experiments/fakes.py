"""One report on fake accounts: a recommender and a vote under the same injections.

Found exposure in counts of users, next to what is certified for the vote, what detection finds, and
what the change from one to the other costs in quality.
"""

from __future__ import annotations

import base64
import re
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._checks import check_cutoff, check_integer
from robustcf._io.files import read_json, write_bytes, write_json
from robustcf._io.plots import Line, Panel, plot_panels
from robustcf._io.progress import bar
from robustcf._io.schema import OBJECT, check_kind, record
from robustcf._io.temporary import alone_in
from robustcf._io.text import aligned, counted, harmless
from robustcf._registry import POISONINGS
from robustcf._runtime import environment, threads_used
from robustcf.data import Split
from robustcf.errors import InputError, Interrupted
from robustcf.experiments.grid import Array, check_unique, keep_plan, make_folder
from robustcf.experiments.poison import VOTE, count_range, plain, stands_out
from robustcf.models.voting import CertifiedReach, VoteConfig, choose, fit_vote
from robustcf.poisoning.defences import AllDetectors
from robustcf.poisoning.injection import inject
from robustcf.poisoning.threat import PoisonThreat, Targets, fakes_name
from robustcf.poisoning.victim import retrained
from robustcf.recommender import Recommender, check_recommender
from robustcf.training.config import TrainConfig

CLEAN = "clean"
_CELL = record({"exposure": OBJECT, "quality": OBJECT})


def report(
    model: Recommender,
    fakes: Sequence[float] = (10, 50),
    *,
    attacks: Sequence[str] = ("random", "bandwagon", "copy", "surrogate"),
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
    config = TrainConfig.from_dict(settings)
    plan = FakesPlan(tuple(fakes), tuple(attacks), targets, target_kind, seeds, k)
    return fakes_report(model.split, config, plan, out, threads=threads, progress=progress)


@dataclass(frozen=True)
class FakesPlan:
    """What a report tries; see :func:`report`."""

    fakes: tuple[float, ...]
    attacks: tuple[str, ...]
    targets: int
    target_kind: str
    seeds: int
    k: int

    def __post_init__(self) -> None:
        check_integer("seeds", self.seeds, 1, 1000)
        check_cutoff("k", self.k)
        check_unique("fakes", [fakes_name(number) for number in self.fakes])
        check_unique("attacks", self.attacks)
        for name in self.attacks:
            POISONINGS[name]
        for number in self.fakes:
            self.threat(number)
            if not number:
                raise InputError("fakes must be above 0: the report always has none, too")

    def threat(self, number: float) -> PoisonThreat:
        """Return the threat of so many accounts."""
        return PoisonThreat(number, targets=Targets(self.targets, self.target_kind))


def fakes_report(
    split: Split,
    config: TrainConfig | VoteConfig,
    plan: FakesPlan,
    out: str | Path | None = None,
    *,
    threads: int | None = None,
    progress: bool | None = None,
) -> FakesReport:
    """Report on a model by its settings, see :func:`report`."""
    if isinstance(config, VoteConfig):
        raise InputError("a report compares a model with the vote: give another model")
    if len(split.test) == 0:
        raise InputError(f"{split.name} has no test pairs to measure quality by")
    sizes = [plan.threat(number).granted(split.train, 0)[0] for number in plan.fakes]
    check_unique("fakes, as numbers of accounts,", sizes)
    folder = None if out is None else Path(out)
    if folder is not None:
        make_folder(folder)
    lock = nullcontext() if folder is None else alone_in(folder, "another report", file=".lock")
    with lock, threads_used(threads, split.n_users, split.n_items):
        if folder is not None:
            facts = {**asdict(plan), "config": config.as_dict(), "fingerprint": split.fingerprint}
            keep_plan(folder / "plan.json", {**facts, "threads": 1}, "report on fake accounts")
            make_folder(folder / "cells")
        work = _Work(split, plan, folder, sizes)
        # Settings of the vote are chosen once, without fakes: the certificate takes them as fixed.
        chosen = choose(split).config
        victims = {config.model.name: config, VOTE: chosen}
        steps = plan.seeds * (1 + len(plan.attacks) * len(sizes)) * len(victims)
        try:
            with bar(steps, "fake accounts", "training", progress) as shown:
                cells = {}
                for place, key in work.places():
                    for name, settings in victims.items():
                        cells[name, *key] = work.cell(name, settings, place, *key)
                        shown.update()
            vote = fit_vote(split, chosen)
            reach: CertifiedReach = vote.scorer.certify_reach(
                split, sorted(sizes), (plan.k,), mask=vote.mask, targets=plan.targets
            )
        except KeyboardInterrupt as error:
            if folder is None:
                raise
            raise Interrupted(f"interrupted, {folder} keeps what is done: repeat it") from error
        found = FakesReport(split, plan, tuple(sizes), config.model.name, chosen, cells, reach)
        if folder is not None:
            found.save(folder)
        return found


class _Work:
    """The parts of a report, each kept in a file of its own."""

    def __init__(
        self, split: Split, plan: FakesPlan, folder: Path | None, sizes: list[int]
    ) -> None:
        self.split, self.plan, self.folder = split, plan, folder
        self.sizes = sizes
        self._made: dict[tuple[str, int, int], Any] = {}

    def places(self) -> list[tuple[str, tuple[str, int, int]]]:
        """Return names and keys of the injections: attack, number of fakes and seed."""
        made = [(attack, size) for size in self.sizes for attack in self.plan.attacks]
        keys = [(*each, seed) for seed in range(self.plan.seeds) for each in ((CLEAN, 0), *made)]
        return [(f"{a.replace(':', '.')}-{n}-seed{seed}", (a, n, seed)) for a, n, seed in keys]

    def cell(
        self, name: str, config: Any, place: str, attack: str, size: int, seed: int
    ) -> dict[str, Any]:
        """Return a result, from its file where it is whole; detection is with the vote."""
        path = self.folder and self.folder / "cells" / f"{name.replace(':', '.')}-{place}.json"
        if path is not None and path.is_file():
            try:
                kept = read_json(path)
                check_kind(path, kept, _CELL)
                return kept
            except InputError:
                pass  # damaged: it is made again
        profiles, targets = self._profiles(attack, size, seed)
        if isinstance(config, TrainConfig):
            config = config.replace(seed=seed)
        found = retrained(self.split, config, profiles, targets, ks=(self.plan.k,))
        cell = plain({**found.as_dict(), "targets": targets, "spent": len(profiles)})
        if name == VOTE and size in (0, max(self.sizes)) and (size or not seed):
            cell["detected"] = self._detected(profiles, targets)
        if path is not None:
            write_json(path, cell)
        return dict(cell)

    def _profiles(self, attack: str, size: int, seed: int) -> tuple[Any, Any]:
        threat = self.plan.threat(size)
        if attack == CLEAN:
            return (), threat.targets.choose(self.split.train, seed)
        if (attack, size, seed) not in self._made:
            made = POISONINGS[attack]().attack(self.split.train, threat, seed)
            self._made = {(attack, size, seed): (made.profiles, made.targets)}
        return self._made[attack, size, seed]  # type: ignore[no-any-return]

    def _detected(self, profiles: Any, targets: Any) -> dict[str, int]:
        """Return counts of fakes and genuine users among the suspects, and of targets named."""
        found = AllDetectors().detect(inject(self.split.train, profiles))
        genuine = self.split.n_users
        return {
            "fakes": int(found.flagged[genuine:].sum()),
            "genuine": int(found.flagged[:genuine].sum()),
            "targets": int(np.isin(targets, found.items).sum()),
        }


@dataclass(frozen=True, eq=False)
class FakesReport:
    """Results by victim, attack, number of fakes and seed, and the certificate of the vote."""

    split: Split
    plan: FakesPlan
    sizes: tuple[int, ...]
    current: str
    vote: VoteConfig
    cells: Mapping[tuple[str, str, int, int], Mapping[str, Any]]
    reach: CertifiedReach

    def users(self, victim: str, attack: str = CLEAN, size: int = 0) -> Array:
        """Return how many genuine users see a target that they lack, seed by seed."""
        rate = f"hit_rate@{self.plan.k}"
        found = [part["exposure"] for part in self._parts(victim, attack, size)]
        return np.rint([each[rate] * each["n_users"] for each in found])

    def quality(self, victim: str, metric: str, attack: str = CLEAN, size: int = 0) -> Array:
        """Return a metric of the genuine users, seed by seed."""
        found = [part["quality"][metric] for part in self._parts(victim, attack, size)]
        return np.array(found, dtype=np.float64)

    def certified(self, size: int) -> Array:
        """Return to how many users the vote can show a target with any accounts, at most."""
        n, k = self.reach.fakes.index(size), self.plan.k
        targets = [part["targets"] for part in self._parts(VOTE, CLEAN, 0)]
        return np.array([self.reach.of(each, k)[n] for each in targets], dtype=np.float64)

    def strongest(self, victim: str, size: int) -> tuple[str, bool]:
        """Return the attack that reaches most users, and whether by more than noise."""
        counts = {attack: self.users(victim, attack, size) for attack in self.plan.attacks}
        worst = max(counts, key=lambda name: counts[name].sum())
        return worst, stands_out({**counts, CLEAN: self.users(victim)}, worst)

    def _parts(self, victim: str, attack: str, size: int) -> list[Mapping[str, Any]]:
        return [self.cells[victim, attack, size, seed] for seed in range(self.plan.seeds)]

    def findings(self) -> list[str]:
        """Return what the numbers say, in sentences."""
        k, both, lines = self.plan.k, (self.current, VOTE), []
        for size in self.sizes:
            for victim in both:
                worst, clear = self.strongest(victim, size)
                users = f"{count_range(self.users(victim, worst, size))} users see a target"
                by = f"`{worst}` does most" if clear else "no attack does more than noise"
                clean = count_range(self.users(victim))
                lines.append(f"{victim}, {size} accounts: {by}; {users} (without: {clean}).")
            counts = {name: self.users(name, self.strongest(name, size)[0], size) for name in both}
            less = min(counts, key=lambda name: counts[name].sum())
            more = next(name for name in both if name != less)
            told = f"{less} shows a target to fewer users than {more}"
            same = "the two differ by no more than noise"
            lines.append(f"{size} accounts: {told if stands_out(counts, more) else same}.")
            n = self.reach.fakes.index(size)
            worst_item = self.reach.worst(self.plan.target_kind, k)[n]
            lines.append(
                f"vote, {size} accounts with any content: certified that at most "
                f"{count_range(self.certified(size))} users see a target, and at most "
                f"{worst_item:,} of {self.split.n_users:,} the worst {self.plan.target_kind} item."
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
        both = (self.current, VOTE)
        exposed = [["0", CLEAN, *(count_range(self.users(name)) for name in both), "-"]]
        for size in self.sizes:
            for attack in self.plan.attacks:
                found = (count_range(self.users(name, attack, size)) for name in both)
                exposed.append([f"{size}", attack, *found, count_range(self.certified(size))])
        title = f"Genuine users who see a target in their first {self.plan.k}, counts"
        most = max(self.sizes)
        caught = []
        for attack in (CLEAN, *self.plan.attacks):
            size = most if attack != CLEAN else 0
            parts = [
                part["detected"] for part in self._parts(VOTE, attack, size)[: None if size else 1]
            ]
            counts = [
                count_range(np.array([part[key] for part in parts], dtype=np.float64))
                for key in ("fakes", "genuine", "targets")
            ]
            caught.append([attack, f"{size}", *counts])
        rated = [
            [name, *(f"{values.mean():.4f}" for values in qualities)]
            for name in both
            for qualities in (
                (
                    self.quality(name, "ndcg@10"),
                    self.quality(name, "recall@20"),
                    self.quality(name, "ndcg@10", self.strongest(name, most)[0], most),
                ),
            )
        ]
        return [
            (
                title,
                ["accounts", "attack", f"{both[0]} found", "vote found", "vote at most"],
                exposed,
            ),
            (
                f"Suspects of the detectors (of {self.plan.targets} targets), counts",
                ["attack", "accounts", "fakes found", "genuine flagged", "targets named"],
                caught,
            ),
            (
                "Quality of genuine users (metrics)",
                ["model", "ndcg@10", "recall@20", f"ndcg@10, strongest of {most} accounts"],
                rated,
            ),
        ]

    @property
    def notes(self) -> list[str]:
        """How it was made, and what is trusted."""
        plan = self.plan
        return [
            f"{self.split.name}: {self.split.n_users:,} genuine users, {self.split.n_items:,} "
            f"items; {plan.targets} {plan.target_kind} targets drawn for each of "
            f"{counted(plan.seeds, 'seed')}; counts are means over seeds (lowest-highest).",
            "The attacker adds accounts with any items, and knows all training pairs. Trusted: a "
            "user's own history, the settings, the catalogue.",
            f"Vote: cap {self.vote.cap:g}, damping {self.vote.damping:g}, chosen on validation "
            "pairs without fakes.",
            "Found is what these attacks reached; a stronger one may exist. Certified holds for "
            "every attack of that size, each user attacked alone.",
        ]

    def __str__(self) -> str:
        parts = [
            f"{title}\n{aligned(header, rows, left=(0, 1) if n < 2 else (0,))}"
            for n, (title, header, rows) in enumerate(self.tables())
        ]
        lines = [textwrap.fill(line, 100) for line in (*self.findings(), *self.notes)]
        return "\n\n".join([*parts, *lines])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        cells = [
            {"model": name, "attack": attack, "fakes": size, "seed": seed, **cell}
            for (name, attack, size, seed), cell in self.cells.items()
        ]
        return {
            "format": "robustcf fakes report 1",
            "plan": asdict(self.plan),
            "dataset": self.split.name,
            "n_users": self.split.n_users,
            "vote": asdict(self.vote),
            "findings": self.findings(),
            "certified": {size: self.certified(size).tolist() for size in self.sizes},
            "reach": self.reach.rows(),
            "results": cells,
            "environment": environment(),
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
        lines = [
            Line(
                name,
                [0, *self.sizes],
                np.stack(
                    [
                        self.users(name),
                        *(self.users(name, self.strongest(name, n)[0], n) for n in self.sizes),
                    ],
                    axis=1,
                ),
            )
            for name in (self.current, VOTE)
        ]
        bound = np.stack([self.certified(n) for n in self.sizes], axis=1)
        lines.append(Line("vote, at most", self.sizes, bound, "certificate"))
        return Panel(lines, "fake accounts", f"users who see a target (first {self.plan.k})")

    def save(self, folder: Path) -> None:
        """Write ``report.html``, ``report.json`` and ``report.txt``."""
        write_json(folder / "report.json", self.as_dict())
        write_bytes(folder / "report.txt", f"{self}\n".encode())
        write_bytes(folder / "report.html", self.html().encode())
