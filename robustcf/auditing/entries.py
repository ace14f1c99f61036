"""Entries of a leaderboard: one small JSON file, and the evidence that it can be verified by.

The evidence is the model in a small precision, which is the model that was measured, and the
perturbation of its embeddings that did the damage, in 5 bits or more. :func:`verify` measures both
again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_choice
from robustcf._io import schema
from robustcf._io.files import read_arrays, write_arrays, write_json
from robustcf._io.reading import read_json, read_plain
from robustcf._io.schema import FLAG, NAME, NUMBER, OBJECT, TEXT, list_of, nullable, record, whole
from robustcf._io.text import aligned
from robustcf._registry import SCORERS
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import Recommender
from robustcf.robustness.measuring import certify, measure
from robustcf.robustness.threat import Threat

FORMAT = "robustcf entry 1"
#: Precision of the model in the evidence; it is measured as it is stored.
PRECISIONS: tuple[str, ...] = ("int8", "int6", "float16", "float32")
#: The metric and the attack size that entries are ordered by.
METRIC, RANKED = "ndcg@10", 0.05
#: How far a number may differ when it is measured again: other processors round differently.
TOLERANCE = 1e-6
# The attacked quality by the stored perturbation may be this much above that by the attack.
_ROUNDING = 1e-3
_LEVELS, _MOVE_LEVELS = {"int8": 127, "int6": 31}, (15, 31, 63, 127)
_MOST_EVIDENCE = 64 << 20

_RATE = schema.Kind("a number in [0, 1]", lambda v: NUMBER.fits(v) and 0 <= v <= 1 + 1e-6)
_SHORT = schema.Kind("text of at most 500 characters", lambda v: TEXT.fits(v) and len(v) <= 500)
_TITLE = schema.Kind("text of 1 to 100 characters", lambda v: NAME.fits(v) and len(v) <= 100)
_SHA = schema.matching("a sha256", "[0-9a-f]{64}")
_FILE = schema.matching("the name of a file next to it", r"[A-Za-z0-9_][\w.-]{0,120}\.npz")
_SIZE = schema.Kind(f"{RANKED:g}", lambda v: v == RANKED)
_EPSILON = schema.Kind("a number in [0, 10]", lambda v: NUMBER.fits(v) and 0 <= v <= 10)
_ATTACKED = record(
    {"epsilon": _EPSILON, "value": _RATE},
    {"random": nullable(_RATE), "without_labels": nullable(_RATE)},
)
_GROUP = record({}, {"clean": _RATE, "attacked": _RATE})
_ENTRY = record(
    {
        "format": schema.choice(FORMAT),
        "name": _TITLE,
        "authors": _SHORT,
        "dataset": record({"name": _TITLE, "fingerprint": _SHA}),
        "surface": _TITLE,
        "model": record(
            {"kind": NAME, "parameters": whole(), "factors": whole(1), "precision": _TITLE}
        ),
        "clean": schema.record({METRIC: _RATE}, others=_RATE),
        "threat": OBJECT,
        "attack": _SHORT,
        "attacked": list_of(_ATTACKED, 1, 50),
        "certified": nullable(list_of(record({"epsilon": _EPSILON, "value": _RATE}), 1, 50)),
        "serving": record({}, others=_RATE),
        "groups": record({}, others=_GROUP),
        "flags": list_of(record({"name": _TITLE, "red": FLAG, "sentence": _SHORT}), 0, 50),
        "commands": list_of(_SHORT, 0, 20),
        "versions": record({}, others=_SHORT),
        "evidence": nullable(
            record({"file": _FILE, "sha256": _SHA, "epsilon": _SIZE, "value": _RATE})
        ),
    },
    {
        "paper": nullable(_SHORT),
        "code": nullable(_SHORT),
        "notes": _SHORT,
        "training": record({"seconds": nullable(schema.NOT_NEGATIVE), "machine": _SHORT}),
        "fakes": nullable(record({}, others=NUMBER)),
    },
)


@dataclass(frozen=True, eq=False)
class Entry:
    """An entry of a leaderboard.

    Args:
        facts: the content of its JSON file, checked.
        path: that file.
    """

    facts: Mapping[str, Any]
    path: Path

    def attacked(self, epsilon: float = RANKED, key: str = "value") -> float | None:
        """Return NDCG@10 under attack at a size, or None where it was not measured."""
        return _at(self.facts["attacked"], epsilon, key)

    def certified(self, epsilon: float = RANKED) -> float | None:
        """Return the certified lower bound of NDCG@10 at a size, or None."""
        return _at(self.facts["certified"] or (), epsilon, "value")

    @property
    def unreliable(self) -> bool:
        """Whether a red flag says that its numbers cannot be trusted."""
        return any(flag["red"] for flag in self.facts["flags"])


def _at(rows: Any, epsilon: float, key: str) -> float | None:
    return next((row.get(key) for row in rows if row["epsilon"] == epsilon), None)


def read_entry(path: str | Path) -> Entry:
    """Read and check the JSON file of an entry, or the one in a folder."""
    place = Path(path)
    if place.is_dir():
        found = sorted(place.glob("[!.]*.json"))
        if len(found) != 1:
            raise InputError(f"{place} must hold one entry, a .json file, got {len(found)}")
        place = found[0]
    facts = read_json(place)
    schema.check_kind(place, facts, _ENTRY)
    return Entry(facts, place)


def write_entry(path: Path, facts: Mapping[str, Any]) -> Entry:
    """Check and write the JSON file of an entry."""
    plain = json.loads(json.dumps(facts))
    schema.check_kind(path, plain, _ENTRY)
    write_json(path, plain)
    return Entry(plain, path)


# --- evidence ---------------------------------------------------------------------------------


def as_stored(model: Recommender, precision: str) -> Recommender:
    """Return the recommender with its arrays rounded as the evidence holds them."""
    check_choice("precision", precision, dict.fromkeys(PRECISIONS))
    return _restored(model.split, _model_arrays(model, precision), model)


def _model_arrays(model: Recommender, precision: str) -> dict[str, npt.NDArray[Any]]:
    stored = model.scorer.stored()
    arrays: dict[str, npt.NDArray[Any]] = {"facts": np.array(json.dumps(dict(stored.facts)))}
    fixed = list(stored.facts.get("fixed", ()))
    for name, tensor in stored.tensors.items():
        part = tensor.detach().cpu()
        if precision in _LEVELS and part.ndim == 2 and part.is_floating_point():
            kept = part[:, fixed].float()
            free = [column for column in range(part.shape[1]) if column not in fixed]
            codes, scale = _codes(part[:, free], _LEVELS[precision])
            arrays |= {f"model.{name}": codes, f"model.{name}.scale": scale}
            arrays[f"model.{name}.fixed"] = kept.numpy()
        elif part.is_floating_point():
            kind = torch.float16 if precision == "float16" else torch.float32
            arrays[f"model.{name}"] = part.to(kind).numpy()
        else:
            arrays[f"model.{name}"] = part.numpy()
    return arrays


def _restored(
    split: Split, arrays: Mapping[str, npt.NDArray[Any]], like: Recommender | None = None
) -> Recommender:
    """Return the recommender of the evidence, judged by the test pairs of a split."""
    facts = json.loads(str(arrays["facts"]))
    kind, fit_on, label = ("factors", "train", "") if like is None else (like.kind, like.fit_on, "")
    if like is None:
        kind, fit_on = facts.pop("_kind"), facts.pop("_fit_on")
    fixed = list(facts.get("fixed", ()))
    tensors = {}
    for key in arrays:
        if not key.startswith("model.") or key.endswith((".scale", ".fixed")):
            continue
        name, part = key.removeprefix("model."), torch.from_numpy(arrays[key])
        if f"{key}.scale" in arrays:
            values = _decoded(arrays[key], arrays[f"{key}.scale"]).float()
            whole_part = values.new_empty(len(values), values.shape[1] + len(fixed))
            free = [column for column in range(whole_part.shape[1]) if column not in fixed]
            whole_part[:, free] = values
            whole_part[:, fixed] = torch.from_numpy(arrays[f"{key}.fixed"])
            part = whole_part
        tensors[name] = part.float() if part.is_floating_point() else part
    scorer = SCORERS[kind].restored(tensors, facts, split.fit_pairs(fit_on))
    return Recommender.of(scorer, split, part="test", fit_on=fit_on, label=label)


def _codes(part: Tensor, levels: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return whole numbers of at most ``levels`` and the scale of each row."""
    wide = part.double()
    most = wide.abs().amax(dim=1) if wide.shape[1] else wide.new_zeros(len(wide))
    scale = (most / levels).float()
    steps = torch.where(scale[:, None] > 0, wide / scale[:, None].double(), 0.0)
    return steps.round().clamp(-levels, levels).to(torch.int8).numpy(), scale.numpy()


def _decoded(codes: npt.NDArray[Any], scale: npt.NDArray[Any], power: int = 1) -> Tensor:
    if codes.ndim != 2 or scale.shape != codes.shape[:1] or scale.dtype.kind != "f":
        raise InputError("the evidence has codes and scales that do not fit each other")
    roots: Tensor = torch.from_numpy(codes).double() * torch.from_numpy(scale).double()[:, None]
    return roots if power == 1 else roots.sign() * roots.abs() ** power


def write_evidence(
    path: Path, model: Recommender, precision: str, attacked: Factors, value: float = 1.0
) -> dict[str, Any]:
    """Write the evidence of an entry and return its facts, measured from the file.

    Args:
        model: the recommender, :func:`as_stored` in this precision.
        attacked: the factors that it serves with under the attack at the size :data:`RANKED`.
        value: NDCG@10 under that attack; the perturbation gets more bits until it leaves this,
            within the rounding that :func:`verify` allows.
    """
    for levels in _MOVE_LEVELS:
        facts = _write_evidence(path, model, precision, attacked, levels)
        if facts["value"] - value <= _ROUNDING:
            break
    return facts


def _write_evidence(
    path: Path, model: Recommender, precision: str, attacked: Factors, levels: int
) -> dict[str, Any]:
    arrays = _model_arrays(model, precision)
    facts = json.loads(str(arrays["facts"]))
    facts |= {"_kind": model.kind, "_fit_on": model.fit_on}
    arrays["facts"] = np.array(json.dumps(facts))
    threat = entry_threat().on(model)
    budget = threat.options(model)["budget"]
    if model.histories is not None:  # the map stays as it is
        attacked = Factors(model.arrays.users, attacked.items)
    for name, before, after in zip(("users", "items"), model.arrays, attacked, strict=True):
        wanted = after.double() - before.double()
        # Square roots: most numbers of a row are far smaller than its largest.
        codes, scale = _codes(wanted.sign() * wanted.abs().sqrt(), levels)
        # As long as the move itself, and within the budget.
        move, own = _decoded(codes, scale, 2), budget.of(before)
        longer = torch.nan_to_num(wanted.norm(dim=1) / move.norm(dim=1), posinf=0.0)
        move *= longer[:, None]
        within = own.project(move, RANKED * own.unit(before)).norm(dim=1) / move.norm(dim=1)
        ratio = longer * torch.nan_to_num(within) * (1 - 1e-6)
        scale *= ratio.sqrt().float().numpy()
        arrays |= {f"move.{name}": codes, f"move.{name}.scale": scale}
    write_arrays(path, arrays)
    found, moved = read_evidence(path, model.split, threat)
    value = attacked_by(found, moved, RANKED)
    digest = hashlib.sha256(read_plain(path, _MOST_EVIDENCE)).hexdigest()
    return {"file": path.name, "sha256": digest, "epsilon": RANKED, "value": value}


def read_evidence(
    path: Path, split: Split, threat: Threat, epsilon: float = RANKED
) -> tuple[Recommender, Factors]:
    """Return the recommender of the evidence and its stored arrays under the attack.

    Raises:
        InputError: the file is not one of :func:`write_evidence`, or the perturbation is larger
            than the budget of the threat at this size.
    """
    arrays = read_arrays(path)
    try:
        model = _restored(split, arrays)
        moves = [
            _decoded(arrays[f"move.{name}"], arrays[f"move.{name}.scale"], 2)
            for name in ("users", "items")
        ]
        if any(m.shape != p.shape for m, p in zip(moves, model.arrays, strict=True)):
            raise ValueError("its perturbation is of another size than the model")
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not the evidence of an entry ({reason})") from error
    return model, _within(model, threat, moves, epsilon)


def _within(model: Recommender, threat: Threat, moves: list[Tensor], epsilon: float) -> Factors:
    """Return the moved factors; raise where a move is larger than the budget allows."""
    options = threat.options(model)
    moved = []
    for name, part, move in zip(("users", "items"), model.arrays, moves, strict=True):
        if not bool(torch.isfinite(move).all()):
            raise InputError(f"the perturbation of the {name} has values that are not finite")
        move[:, list(model.fixed)] = 0.0
        budget = options["budget"].of(part)
        allowed = epsilon * budget.unit(part) if threat.side in ("both", name) else 0.0
        size = budget.measure(move)
        if size > allowed * (1 + TOLERANCE):
            raise InputError(
                f"the perturbation of the {name} has size {size:.4g}, more than the allowed "
                f"{allowed:.4g}: the evidence is not within the budget"
            )
        moved.append(budget.apply(part, budget.project(move, allowed).to(part), allowed))
    return Factors(*moved)


# --- verification -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """The outcome of :func:`verify`: what, claimed, measured, and whether they agree."""

    entry: Entry
    rows: tuple[tuple[str, float, float, bool], ...]

    @property
    def passed(self) -> bool:
        """Whether all numbers agree."""
        return all(agrees for *_, agrees in self.rows)

    def __str__(self) -> str:
        cells = [
            (what, f"{claimed:.6f}", f"{found:.6f}", "agrees" if agrees else "DIFFERS")
            for what, claimed, found, agrees in self.rows
        ]
        table = aligned(("number", "claimed", "measured", ""), cells, left=(0, 3))
        words = "verified" if self.passed else "refused: not all numbers agree"
        return f"{self.entry.facts['name']}\n{table}\n{words}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        keys = ("number", "claimed", "measured", "agrees")
        rows = [dict(zip(keys, row, strict=True)) for row in self.rows]
        return {"name": self.entry.facts["name"], "passed": self.passed, "numbers": rows}


def verify(entry: Entry | str | Path, load: Callable[[str], Split]) -> Verification:
    """Measure the numbers of an entry again, from its evidence.

    Args:
        entry: the entry, or its file or folder.
        load: returns the split of a data set by name.

    Raises:
        InputError: the entry has no evidence, another file than it names, or another split.

    Checked are clean quality, certificates, random directions and groups; the attacked quality at
    the stored size within a rounding, at other sizes between the certificate and the stored
    perturbation scaled; and the flags that need no attack.

    Cost: a dozen evaluations and one certificate.
    """
    one = entry if isinstance(entry, Entry) else read_entry(entry)
    evidence = one.facts["evidence"]
    if evidence is None:
        raise InputError(f"{one.path} has no evidence: measure it again with 'robustcf submit'")
    path = one.path.parent / evidence["file"]
    if hashlib.sha256(read_plain(path, _MOST_EVIDENCE)).hexdigest() != evidence["sha256"]:
        raise InputError(f"{path} is not the file that {one.path.name} names: the sha256 differs")
    named = one.facts["dataset"]
    split = load(named["name"])
    if split.fingerprint != named["fingerprint"]:
        raise InputError(
            f"{one.path} was measured on another split of {named['name']}: expected the "
            f"fingerprint {named['fingerprint'][:12]}..., got {split.fingerprint[:12]}..."
        )
    threat = _threat_of(one)
    epsilon = evidence["epsilon"]
    model, moved = read_evidence(path, split, threat, epsilon)
    rows: list[tuple[str, float, float, bool]] = []

    def compare(what: str, claimed: float, found: float) -> None:
        rows.append((what, claimed, found, abs(claimed - found) <= TOLERANCE))

    clean = model.evaluate((10, 20))
    for name, claimed in one.facts["clean"].items():
        if name not in clean.values:
            raise InputError(f"{one.path}: unknown metric {schema.shown(name)}")
        compare(f"clean {name}", claimed, float(clean.values[name]))
    at = f"attacked {METRIC} at"
    compare(f"{at} {epsilon:g}, stored", evidence["value"], attacked_by(model, moved, epsilon))
    if one.attacked(epsilon) is None:
        raise InputError(f"{one.path} has no attacked quality at size {epsilon:g}")
    sizes = [row["epsilon"] for row in one.facts["attacked"]]
    told = Threat(**{**one.facts["threat"], "knowledge": "none"})
    noise = measure(model, "random", told, sizes, (10,), control=False).curve[METRIC]
    proved = {row["epsilon"]: row["value"] for row in one.facts["certified"] or ()}
    if proved:
        bounds = certify(model, list(proved), threat=threat, ks=(10,)).curve[METRIC]
        for size, bound in zip(proved, map(float, bounds), strict=True):
            compare(f"certified {METRIC} at {size:g}", proved[size], bound)
    for row, undirected in zip(one.facts["attacked"], map(float, noise), strict=True):
        size, claimed = row["epsilon"], row["value"]
        # The stored perturbation is rounded: it may do a little less than the attack at its size,
        # and a larger share less at other sizes, for which it was not made.
        found = attacked_by(model, moved, size)
        exact = size in (0.0, epsilon)
        least = found - _ROUNDING if exact else proved.get(size, 0.0)
        what = f"{at} {size:g}{'' if exact else ', at most'}"
        rows.append((what, claimed, found, least <= claimed <= found + TOLERANCE))
        if row.get("random") is not None:
            compare(f"random directions at {size:g}", row["random"], undirected)
    from robustcf.auditing.battery import group_figures, model_flags, noise_flag  # imports this

    for group, figures in group_figures(model, served(model, moved)).items():
        for key, value in one.facts["groups"].get(group, {}).items():
            compare(f"{key} {METRIC} of {group}", value, figures[key])
    named = {flag["name"] for flag in one.facts["flags"]}
    random = float(noise[sizes.index(epsilon)])
    first = noise_flag(clean.values[METRIC], one.attacked(epsilon) or 0.0, random)
    for flag in model_flags(model) + ([first] if first else []):
        compare(f"flag {flag.name}", float(flag.name in named), 1.0)
    return Verification(one, tuple(rows))


def served(model: Recommender, arrays: Factors) -> Factors:
    """Return the factors that a recommender serves with if its stored arrays are these."""
    return arrays if model.histories is None else model.histories.factors(arrays)


def attacked_by(model: Recommender, moved: Factors, epsilon: float) -> float:
    """Return NDCG@10 under a perturbation of the size :data:`RANKED`, scaled to another size."""
    if epsilon != RANKED:
        pairs = zip(model.arrays, moved, strict=True)
        moved = Factors(*(a + epsilon / RANKED * (b - a) for a, b in pairs))
    return float(model.evaluate((10,), served(model, moved)).values[METRIC])


def entry_threat() -> Threat:
    """Return the threat of all entries: rows in own units, by an attacker with the labels."""
    return Threat(unit="own", knowledge="labels")


def _threat_of(entry: Entry) -> Threat:
    try:
        threat = Threat(**entry.facts["threat"])
    except TypeError as error:
        raise InputError(f"{entry.path}: threat has unknown keys ({error})") from error
    if threat.norm != "row" or threat.unit != "own":
        got = f"{threat.norm}, {threat.unit}"
        raise InputError(f"{entry.path}: entries are attacked per row in own units, got {got}")
    return threat
