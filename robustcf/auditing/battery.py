"""``submit``: measure a recommender for a leaderboard and write its entry, with flags."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustcf._io.files import versions, write_json
from robustcf._io.progress import bar
from robustcf._io.reading import read_json
from robustcf._runtime import threads_used
from robustcf.attacks import Attack, RandomNoise, unevenness
from robustcf.attacks.cutoff import HeadOfRanking
from robustcf.auditing.audit import audit
from robustcf.auditing.entries import (
    FORMAT,
    METRIC,
    RANKED,
    Entry,
    as_stored,
    attacked_by,
    entry_threat,
    read_entry,
    read_evidence,
    served,
    write_entry,
    write_evidence,
)
from robustcf.errors import InputError, RobustcfError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import MetricReport
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.measuring import certify, measure
from robustcf.robustness.table import STEPS

SIZES = (0.0, 0.02, 0.05, 0.1, 0.2)
_CERTIFIED = (0.0, 0.01, 0.02, RANKED, 0.1)
_SERVED = ("int8", "hnsw")
GROUPS = ("activity", "popularity")
# A loss of this share of the clean quality is more than noise.
_CLEARLY = 0.01
_UNEVEN = 1.2
# Rounds of the attack without gradients, and how often the steps are doubled.
_ROUNDS, _DOUBLINGS, _SEED = 30, 2, 1000
_DEAD, _ALIVE = 0.2, 1e-5
_RED = ("noise", "gradients", "unfinished", "gradient-free", "transfer", "random", "leak")
_STAGES = ".stages.json"


@dataclass(frozen=True)
class Flag:
    """A reason to doubt the numbers of an entry; a red one makes it unreliable."""

    name: str
    sentence: str

    @property
    def red(self) -> bool:
        """Whether the numbers cannot be trusted; otherwise they want an explanation."""
        return self.name in _RED

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {"name": self.name, "red": self.red, "sentence": self.sentence}


def submit(
    model: Recommender,
    out: str | Path,
    *,
    name: str,
    authors: str = "",
    paper: str | None = None,
    code: str | None = None,
    notes: str = "",
    attack: Attack | None = None,
    precision: str = "int8",
    others: Sequence[str | Path] = (),
    steps: int | None = None,
    commands: Sequence[str] = (),
    fakes: Mapping[str, float] | None = None,
    progress: bool | None = None,
    threads: int | None = None,
) -> Entry:
    """Measure a recommender with embeddings and write its entry of a leaderboard.

    Args:
        model: the recommender, with the test pairs of a named data set.
        out: a folder for the entry; an interrupted one is resumed.
        name: name of the model in tables.
        authors: authors of the model.
        paper: address of the paper.
        code: address of the code.
        notes: anything that a reader should know, in a sentence.
        attack: an attack made for this model, next to the headline attack; the worse one counts.
        precision: the model is stored and measured in int8, int6, float16 or float32.
        others: entries on the same data, whose perturbations are tried too.
        steps: steps of the headline attack.
        commands: the commands that made the model.
        fakes: figures of fake accounts where they were measured, by name, see ``robustcf fakes``.
        progress: whether to show a bar; None: in a terminal and in a notebook.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the cores that may be used.

    Cost: the headline attack at five sizes, again with twice the steps at one size, certificates,
    and some fifty evaluations; some minutes on MovieLens-1M.

    Raises:
        InputError: the model has no embeddings or no test pairs, or the folder holds an entry.
    """
    check_recommender(model)
    if model.part != "test":
        raise InputError("an entry needs a model with test pairs: load a data set by its name")
    place = Path(out)
    if sorted(place.glob("[!.]*.json")):
        raise InputError(f"{place} holds an entry already: choose another folder")
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise InputError(f"the name must be a line of 1 to 100 characters, got {name!r}")
    evidence_name = f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-') or 'entry'}.npz"
    stored = as_stored(model, precision)
    stored.factors.check_finite()
    place.mkdir(parents=True, exist_ok=True)
    with threads_used(threads, model.n_users, model.n_items):
        work = _Battery(stored, place, attack, steps, progress)
        with bar(5, "submit", "stage", progress) as steps_done:
            found: dict[str, Any] = {}
            for title, stage in work.stages(others).items():
                steps_done.set_description(title)
                found |= work.kept(title, stage)
                steps_done.update()
        attacked = next(row for row in found["attacked"] if row["epsilon"] == RANKED)
        how = (place / evidence_name, stored, precision, work.worst(), attacked["value"])
        evidence = write_evidence(*how)
    trained = model.training or {}
    part = stored.scorer.stored()
    facts = {
        "format": FORMAT,
        "name": name,
        "authors": authors,
        "paper": paper,
        "code": code,
        "notes": notes,
        "dataset": {"name": model.split.name, "fingerprint": model.split.fingerprint},
        "surface": " and ".join(sorted(part.tensors, reverse=True)),
        "model": {
            "kind": model.kind,
            "parameters": sum(tensor.numel() for tensor in part.tensors.values()),
            "factors": stored.factors.dim,
            "precision": precision,
        },
        "training": {
            "seconds": trained.get("train_seconds", trained.get("seconds")),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        },
        **found,
        "commands": list(commands),
        "fakes": None if fakes is None else dict(fakes),
        "versions": versions(),
        "evidence": evidence,
    }
    # The stored perturbation is one that the attacker has: the entry may not claim more.
    shown, moved = read_evidence(place / evidence_name, model.split, work.threat)
    for row in facts["attacked"]:
        row["value"] = min(row["value"], attacked_by(shown, moved, row["epsilon"]))
    facts["groups"] = group_figures(shown, served(shown, moved))
    entry = write_entry(place / evidence_name.replace(".npz", ".json"), facts)
    (place / _STAGES).unlink(missing_ok=True)
    return entry


class _Battery:
    """All measurements of an entry, stage by stage; finished stages are kept on disk."""

    def __init__(
        self,
        model: Recommender,
        place: Path,
        attack: Attack | None,
        steps: int | None,
        progress: bool | None,
    ) -> None:
        self.model, self.place, self.attack = model, place, attack
        self.steps = STEPS["auto"] if steps is None else steps
        self.progress, self.threat = progress, entry_threat().on(model)
        self._worst: tuple[float, Factors] | None = None
        digest = hashlib.sha256(f"{model.split.fingerprint}{steps}{attack!r}".encode())
        for tensor in model.scorer.stored().tensors.values():
            digest.update(tensor.contiguous().numpy().tobytes())
        self.digest = digest.hexdigest()

    def stages(self, others: Sequence[str | Path]) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return title -> what measures it, in order."""
        return {
            "clean": self._clean,
            "attack": self._attacked,
            "certificate": self._certified,
            "serving": self._serving,
            "flags": lambda: self._flags(others),
        }

    def kept(self, title: str, stage: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a stage, from disk where it was finished before."""
        path = self.place / _STAGES
        known = read_json(path) if path.is_file() else {}
        if known.get("digest") != self.digest:
            known = {"digest": self.digest}
        if title not in known:
            known[title] = stage()
            write_json(path, known)
        found: dict[str, Any] = known[title]
        return found

    def worst(self) -> Factors:
        """Return the factors under the strongest attack found at the size :data:`RANKED`."""
        if self._worst is None:
            self._measure((RANKED,))
        if self._worst is None:
            raise RobustcfError("no attack was made: report this bug")
        return self._worst[1]

    def _measure(
        self, sizes: Sequence[float], attack: str | Attack = "auto", **options: Any
    ) -> Any:
        def keep(epsilon: float, factors: Factors, report: MetricReport) -> None:
            value = report.values[METRIC]
            if epsilon == RANKED and (self._worst is None or value < self._worst[0]):
                self._worst = value, factors

        if attack == "auto":
            options = {"steps": self.steps, "threat": self.threat, **options}
        how = {"control": False, "progress": self.progress, **options}
        return measure(self.model, attack, epsilons=sizes, on_attacked=keep, **how)

    def _clean(self) -> dict[str, Any]:
        report = self.model.evaluate((10, 20))
        return {"clean": {name: float(value) for name, value in report.values.items()}}

    def _attacked(self) -> dict[str, Any]:
        result = self._measure(SIZES, control=True)
        words, values = result.spec.words(), np.asarray(result.curve[METRIC])
        if self.attack is not None:  # the worse of the two counts
            values = np.minimum(values, self._measure(SIZES, self.attack).curve[METRIC])
            words += f"; or {type(self.attack).__name__}, made for it"
        columns = {"epsilon": SIZES, "value": values, "random": result.control[METRIC]}
        columns["without_labels"] = result.with_data.curve[METRIC]
        rows = [{name: float(own[n]) for name, own in columns.items()} for n in range(len(SIZES))]
        return {"attacked": rows, "attack": words[:500], "threat": self.threat.as_dict()}

    def _certified(self) -> dict[str, Any]:
        try:
            curve = certify(self.model, _CERTIFIED, threat=self.threat, ks=(10,)).curve
        except InputError:  # a kind or a column that there is no certificate for
            return {"certified": None}
        pairs = zip(_CERTIFIED, map(float, curve[METRIC]), strict=True)
        return {"certified": [{"epsilon": e, "value": v} for e, v in pairs]}

    def _serving(self) -> dict[str, Any]:
        found = audit(self.model, attack=False, only=_SERVED, progress=False)
        return {"serving": dict(found.numbers)}

    def _flags(self, others: Sequence[str | Path]) -> dict[str, Any]:
        known = read_json(self.place / _STAGES)
        attacked = known["attack"]["attacked"]
        row = next(r for r in attacked if r["epsilon"] == RANKED)
        clean = known["clean"]["clean"][METRIC]
        unfinished = self._unfinished(clean, row)
        value = row["value"]
        found = [
            noise_flag(clean, value, row["random"]),
            unfinished,
            self._gradient_free(clean, value),
            self._transfer(clean, value, others),
            *model_flags(self.model),
            None
            if known["certificate"]["certified"]
            else Flag("no certificate", "There is no certified lower bound."),
        ]
        return {
            "flags": [flag.as_dict() for flag in found if flag is not None],
            "attacked": attacked,
        }

    def _unfinished(self, clean: float, row: dict[str, Any]) -> Flag | None:
        """Double the steps until that does no more harm; the worst of them counts."""
        steps = self.steps
        for _ in range(_DOUBLINGS):
            steps *= 2
            before = row["value"]
            row["value"] = min(
                before, float(self._measure((RANKED,), steps=steps).curve[METRIC][0])
            )
            if before - row["value"] <= _CLEARLY * clean:
                return None
        words = f"{steps} steps still leave less than half of them do ({row['value']:.4f})"
        return Flag("unfinished", f"The attack had not ended: {words}.")

    def _gradient_free(self, clean: float, value: float) -> Flag | None:
        """Random search: random items, and for each user the worst of many random rows."""
        options = self.threat.options(self.model)
        arrays: Factors = self.model.arrays
        least: Any = np.inf
        items = RandomNoise(seed=_SEED, **options).perturb(arrays, RANKED).factors.items
        if self.model.histories is None:  # else there are items alone
            options["side"] = "users"
        for seed in range(1, _ROUNDS):
            moved = RandomNoise(seed=_SEED + seed, **options).perturb(arrays, RANKED).factors
            if self.model.histories is None:
                moved = Factors(moved.users, items)
            least = np.minimum(least, self.model.evaluate((10,), moved).per_user[METRIC])
        found = float(np.mean(least))
        if found >= value - _CLEARLY * clean:
            return None
        words = f"leaves {found:.4f}, the attack {value:.4f}"
        return Flag("gradient-free", f"Random search, which uses no gradient, {words}.")

    def _transfer(self, clean: float, value: float, others: Sequence[str | Path]) -> Flag | None:
        split, own = self.model.split, self.model.arrays
        for entry in map(read_entry, others):
            evidence = entry.facts["evidence"]
            if entry.facts["dataset"]["fingerprint"] != split.fingerprint or evidence is None:
                continue
            path = entry.path.parent / evidence["file"]
            source, moved = read_evidence(path, split, self.threat)
            if source.stores != self.model.stores or source.arrays.users.shape != own.users.shape:
                continue
            budget, parts = self.threat.options(self.model)["budget"], []
            for part, before, after in zip(own, source.arrays, moved, strict=True):
                bound = budget.of(part)
                allowed = RANKED * bound.unit(part)
                parts.append(bound.apply(part, bound.project(after - before, allowed), allowed))
            left = self.model.evaluate((10,), served(self.model, Factors(*parts))).values[METRIC]
            if left < value - _CLEARLY * clean:
                words = f"{entry.facts['name']} leaves {left:.4f}, the attack {value:.4f}"
                return Flag("transfer", f"The perturbation of {words}.")
        return None


# --- flags and figures that the evidence alone gives, again in verify -----------------------------


def noise_flag(clean: float, value: float, noise: float) -> Flag | None:
    """Return a flag where random directions do as much harm as the attack."""
    if noise > value or clean <= 0 or noise > (1 - _CLEARLY) * clean:
        return None
    words = f"random directions leave {noise:.4f}, the attack {value:.4f}"
    return Flag("noise", f"Noise does as much as the attack: {words}.")


def model_flags(model: Recommender) -> list[Flag]:
    """Return the flags of a model that need no attack."""
    found = (flag(model) for flag in (_gradients, _random, _leak, _uneven))
    return [flag for flag in found if flag is not None]


def _gradients(model: Recommender) -> Flag | None:
    """The gradient of the users who have something to lose must not vanish."""
    U, V = model.factors
    head = HeadOfRanking(model.relevant, model.seen, 10)
    heads = head.at(U, V)
    spread = U.new_full((len(head.users),), float((U[:50] @ V.T).std()) + 1e-30)
    to_users, _ = head.gradient(heads, U, V, spread)
    rows = to_users[torch.from_numpy(head.users)]
    # The change of the smooth NDCG that it promises for a row moved by its budget.
    promised = RANKED * U[torch.from_numpy(head.users)].norm(dim=1) * rows.norm(dim=1)
    alive = promised.isfinite() & (promised > _ALIVE)
    losing = torch.from_numpy(heads.values > 0)
    dead = float((~alive & losing).sum()) / max(1, int(losing.sum()))
    if dead <= _DEAD:
        return None
    words = f"for {dead:.0%} of the users with relevant items in their list"
    return Flag("gradients", f"The gradient is zero or not finite {words}.")


def _random(model: Recommender) -> Flag | None:
    one, two = (model.evaluate((10,)).per_user[METRIC] for _ in range(2))
    if np.array_equal(one, two):
        return None
    return Flag("random", "Two evaluations differ: the model answers at random.")


def _leak(model: Recommender) -> Flag | None:
    found = audit(model, attack=False, only=("leak",), progress=False)["leak"]
    if found.verdict in ("pass", "skipped"):
        return None
    return Flag("leak", f"The model may have been fit on test pairs: {found.sentence}"[:490])


def _uneven(model: Recommender) -> Flag | None:
    ratios = [unevenness(part[:, model.free]) or 1.0 for part in model.factors]
    if max(ratios) < _UNEVEN:
        return None
    words = "root mean square over median: users {:.2f}, items {:.2f}".format(*ratios)
    return Flag("uneven", f"Rows differ much in length ({words}).")


def group_figures(model: Recommender, attacked: Factors) -> dict[str, dict[str, float]]:
    """Return group -> clean and attacked NDCG@10: users by activity, items by popularity."""
    found: dict[str, dict[str, float]] = {}
    for key, factors in (("clean", None), ("attacked", attacked)):
        for row in model.evaluate((10,), factors, by=GROUPS).groups:
            if row.metric == METRIC and row.value is not None:
                found.setdefault(f"{row.by}: {row.group}", {})[key] = float(row.value)
    return found
