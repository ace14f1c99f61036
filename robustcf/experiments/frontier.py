"""``frontier``: clean quality against quality under attack, for models of one data set.

Starts that need no training and short trainings are judged on validation data in the balanced
gauge, at several ranks, with stored users and without. The result is a frontier, from which a
stated rule chooses: the most quality under attack that costs at most a given share of clean
quality.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf._checks import check_number
from robustcf._io.files import write_json
from robustcf._io.text import aligned, counted
from robustcf.data.split import Split
from robustcf.errors import InputError, TrainingError
from robustcf.recommender import Recommender
from robustcf.robustness.hardening import harden
from robustcf.robustness.measuring import measure
from robustcf.robustness.table import PAIRWISE
from robustcf.robustness.threat import Threat
from robustcf.training.config import TrainConfig
from robustcf.training.fitting import fit_split
from robustcf.training.presets import best_model, preset

if TYPE_CHECKING:
    import pandas as pd

SIZE = 0.05
KEPT = 0.98
MINUTES = 5.0
METRIC = "ndcg@10"
# Fewer steps than the headline attack order candidates alike.
_STEPS = 20
_RANKS = (48, 32, 64, 24, 96, 128, 256)
_POWERS = (0.25, 0.35, 0.15, 0.5)
# Candidates with less clean quality than this share of the best are not attacked.
_FLOOR = 0.9
Values = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A candidate: its settings, NDCG@10 on validation data, and what the attack leaves of it."""

    settings: Mapping[str, Any]
    clean: float
    left: float

    @property
    def stored(self) -> str:
        """The embeddings that are stored, and that the attack writes."""
        return "items" if self.settings.get("serve") == "fold-in" else "users, items"

    @property
    def words(self) -> str:
        """The settings in a line."""
        hidden = ("model", "gauge", "serve")
        rest = [f"{k}={v}" for k, v in self.settings.items() if k not in hidden]
        return " ".join([str(self.settings["model"]), *rest])


@dataclass(frozen=True)
class Frontier:
    """All candidates that were judged, and the rule of the choice.

    Args:
        points: candidates, in the order in which they were tried.
        best_clean: the best clean NDCG@10 of any model tried, of those not attacked too.
        size: attack size, as a share of each row's own length.
        kept: the share of ``best_clean`` that the choice must keep.
        skipped: number of candidates that the time did not allow.
    """

    points: tuple[Point, ...]
    best_clean: float
    size: float
    kept: float
    skipped: int = 0

    @property
    def front(self) -> list[Point]:
        """The points that no other exceeds in both qualities, the best clean one first."""
        found: list[Point] = []
        for point in sorted(self.points, key=lambda p: (-p.clean, -p.left)):
            if not found or point.left > found[-1].left:
                found.append(point)
        return found

    @property
    def chosen(self) -> Point:
        """The most quality under attack of all that keep the clean quality."""
        floor = self.kept * self.best_clean
        good = [point for point in self.points if point.clean >= floor]
        return max(good or self.points, key=lambda p: (p.left if good else p.clean, p.clean))

    @property
    def config(self) -> TrainConfig:
        """The settings of the choice, for :func:`robustcf.train`."""
        return TrainConfig.of(**self.chosen.settings, epochs_chosen=True)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per candidate: clean, left, whether on the frontier, settings."""
        import pandas as pd

        front = self.front
        rows = [(p.clean, p.left, p in front, p.stored, p.words) for p in self.points]
        return pd.DataFrame(rows, columns=["clean", "left", "frontier", "stored", "settings"])

    def plot(self, path: str | Path) -> Path:
        """Draw the candidates and the frontier."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.0, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.plot([p.clean for p in self.points], [p.left for p in self.points], "o", alpha=0.4)
        axes.plot(
            [p.clean for p in self.front], [p.left for p in self.front], "o-", label="frontier"
        )
        axes.plot(self.chosen.clean, self.chosen.left, "*", markersize=16, label="chosen")
        axes.axvline(
            self.kept * self.best_clean, linestyle=":", label=f"{self.kept:.0%} of the best"
        )
        axes.set_xlabel("clean NDCG@10, validation")
        axes.set_ylabel(f"NDCG@10 attacked at {self.size:g}, validation")
        axes.legend(frameon=False, fontsize="small")
        figure.savefig(path)
        return Path(path)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        facts: Values = {"size": self.size, "kept": self.kept, "best_clean": self.best_clean}
        facts |= {"skipped": self.skipped, "chosen": asdict(self.chosen)}
        return facts | {"points": [asdict(point) for point in self.points]}

    def __str__(self) -> str:
        rows = [
            (f"{p.clean:.4f}", f"{p.left:.4f}", "*" * (p == self.chosen), p.stored, p.words)
            for p in self.front
        ]
        lines = [
            aligned(("clean", f"at {self.size:g}", "", "stored", "settings"), rows, left=(2, 3, 4))
        ]
        share = self.chosen.clean / self.best_clean if self.best_clean else 0.0
        lines.append(
            f"chosen (*): keeps {share:.1%} of the best clean NDCG@10 ({self.best_clean:.4f}); "
            f"the rule asks for {self.kept:.0%}"
        )
        if self.skipped:
            lines.append(f"not tried, for lack of time: {counted(self.skipped, 'model')}")
        return "\n".join(lines)


def frontier(
    split: Split,
    *,
    size: float = SIZE,
    kept: float = KEPT,
    minutes: float | None = None,
    seed: int = 0,
    serve: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Frontier:
    """Search for models that hold under attack; test pairs are never looked at.

    Args:
        split: data with validation pairs.
        size: attack size, as a share of each row's own length.
        kept: share of the best clean NDCG@10 that the choice must keep.
        minutes: CPU minutes at most (default 5); the first models are always tried.
        seed: seed of training.
        serve: ``stored`` or ``fold-in`` (users computed from their histories); None for both.
        report: called with a line per candidate.

    The attack is the pairwise one with 20 steps: one perturbation for all users, by an attacker who
    knows the validation pairs. With ``fold-in`` it writes items alone.

    Raises:
        InputError: there are no validation pairs, or a number is out of range.

    Example:
        >>> from robustcf.data import checkerboard
        >>> found = frontier(checkerboard(), minutes=0.01)
        >>> found.chosen.clean >= 0.98 * found.best_clean
        True
    """
    if len(split.valid) == 0:
        raise InputError("the frontier is judged on validation pairs, and the split has none")
    check_number("size", size, positive=True)
    if not 0 < check_number("kept", kept) <= 1:
        raise InputError(f"kept must be a share in (0, 1], got {kept!r}")
    limit = 60 * check_number("minutes", MINUTES if minutes is None else minutes, positive=True)
    serves = ("stored", "fold-in") if serve is None else (serve,)
    best, points, skipped = 0.0, list[Point](), 0
    began, slowest = time.process_time(), 0.0
    for number, settings in enumerate(_models(split)):
        start = time.process_time()
        if number > 1 and start - began + slowest > limit:
            skipped += 1
            continue
        config = TrainConfig.of(**settings, seed=seed, epochs_chosen=True, refit="no")
        try:
            trained = fit_split(split, config)
        except TrainingError:
            continue
        if trained.interrupted:
            raise KeyboardInterrupt
        model = trained.recommender().judged_by("valid")
        judged = [(settings, model), *_variants(settings, model, serves)]
        for values, candidate in judged:
            clean = float(candidate.evaluate((10,)).values[METRIC])
            best = max(best, clean)
            if values is settings or clean < _FLOOR * best:
                continue
            point = Point(values, clean, _left(candidate, size))
            points.append(point)
            if report is not None:
                report(f"{clean:.4f}  {point.left:.4f}  {point.stored:12}  {point.words}")
            if number and time.process_time() - began > limit:
                break
        slowest = max(slowest, time.process_time() - start)
    if not points:
        raise TrainingError("no candidate could be trained: look at the data")
    return Frontier(tuple(points), best, size, kept, skipped)


def _left(model: Recommender, size: float) -> float:
    found = measure(model, PAIRWISE, Threat(), [size], (10,), steps=_STEPS, control=False)
    return float(found.curve[METRIC][0])


def _variants(
    settings: Values, model: Recommender, serves: tuple[str, ...]
) -> Iterator[tuple[Values, Recommender]]:
    """Yield the balanced gauge at all ranks, served in each way."""
    most = model.factors.dim
    for rank in (None, *(rank for rank in _RANKS if rank < most)):
        for serve in serves:
            values = {**settings, "gauge": "balanced"}
            values |= {} if rank is None else {"rank": rank}
            values |= {} if serve == "stored" else {"serve": serve}
            yield values, harden(model, rank=rank, serve=serve)


def _models(split: Split) -> Iterator[Values]:
    """Yield the models to start from, the most promising first."""
    smaller = min(split.n_users, split.n_items)
    widths = [width for width in (128, 512, 256) if width < smaller] or [max(4, smaller // 2)]
    start: Values = {"model": "softmax-mf", "normalize": False, "epochs": 0}
    yield start | {"factors": widths[0], "popularity": _POWERS[0]}
    small = min(64, widths[0])
    known = best_model(split.name)
    if known is not None:
        flat, plain = (
            c.flat() for c in (preset(split.name, known).config, TrainConfig.of(model=known))
        )
        changed = {k: v for k, v in flat.items() if v != plain.get(k) and k not in _CHOSEN}
        yield {"model": known, "epochs": flat["epochs"], **changed}
    else:
        yield {"model": "softmax-mf", "factors": small, "temperature": 0.2, "epochs": 6}
    for power in _POWERS[1:]:
        yield start | {"factors": widths[0], "popularity": power}
    margin = {"adversarial": "margin", "adv_eps": 0.2, "adv_weight": 1.0}
    short = {"factors": widths[0], "init": "smooth", "epochs": 8, "reg_weight": 1e-4}
    yield {"model": "bpr-mf", **short, **margin}
    yield {"model": "als", "factors": small}
    for width in widths[1:]:
        for power in _POWERS[:2]:
            yield start | {"factors": width, "popularity": power}


_CHOSEN = ("seed", "epochs_chosen", "refit", "gauge", "rank", "shrink", "serve")


def write_frontier(found: Frontier, path: str | Path, split: Split) -> None:
    """Write the choice as a preset for ``train --preset FILE``, with all candidates in it."""
    place = Path(path)
    if place.suffix != ".json":
        raise InputError(f"a preset is a .json file, got {place}")
    how = f"the most NDCG@10 at size {found.size:g} of all with {found.kept:.0%} of the best clean"
    facts: Values = {"how": how, "dataset": split.name, "fingerprint": split.fingerprint}
    config = {**found.chosen.settings, "epochs_chosen": True}
    write_json(place, {"config": config, "found": facts | found.as_dict()})
