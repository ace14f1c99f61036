"""Attack and certify recommenders; results are kept in the folders of their runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._io.files import write_arrays, write_json
from robustcf._io.plots import Line, Panel, plot_panels
from robustcf._io.text import digest_name
from robustcf.data import Split
from robustcf.experiments.records import FAKES, results_folder
from robustcf.models.voting import CertifiedReach, CertifiedVotes
from robustcf.recommender import Recommender
from robustcf.robustness import (
    AttackSpec,
    CertifiedRadii,
    Result,
    RobustnessCurve,
    Threat,
    certified_radii,
    certify,
    measure,
    quantization_table,
)
from robustcf.robustness.plots import plot_curves
from robustcf.robustness.quantization import Quantized

#: Results and the names of their files, ready for JSON.
Facts = dict[str, Any]

# PORE (USENIX Security 2023), recomputed from the counts that it released: MovieLens 100K, a
# quarter of each user's items held out, certified precision@10.
_PORE = {0: 0.333, 1: 0.141, 2: 0.093, 5: 0.023, 10: 0.0}
_PORE_DATA = (943, 1682, 100_000)


def attack_run(
    run: str,
    model: Recommender,
    spec: AttackSpec,
    threat: Threat,
    epsilons: Sequence[float] | None,
    ks: Sequence[int],
    *,
    personal: bool = False,
    progress: bool = False,
) -> tuple[Result, Result | None, Facts]:
    """Attack the model of a run; save and draw the curve.

    Returns the result, that of the worst attack on each user alone (if ``personal``, else None),
    and the facts. ``epsilons`` None are those of the attack.
    """
    folder = results_folder(Path(run))
    result = measure(model, spec, threat, epsilons, ks, progress=progress)
    alone = measure(model, "personal", threat, result.curve.epsilons, ks) if personal else None
    saved, replaced = result.save(folder)
    pictures = _draw(result, saved)
    facts = {
        "run": run,
        **result.as_dict(),
        "file": str(saved),
        "replaced": replaced,
        "picture": pictures[0],
        "pictures": pictures,
    }
    if alone is not None:
        alone.save(folder)
        facts["personal"] = alone.curve.as_lists()
        facts["random_personal"] = alone.control.as_lists() if alone.control else None
    return result, alone, facts


def _draw(result: Result, saved: Path) -> list[str]:
    endings = ("png", "svg")
    return [str(result.plot(saved.with_name(f"{result.picture_stem}.{e}"))) for e in endings]


def quantize_run(
    run: str, model: Recommender, ks: Sequence[int]
) -> tuple[tuple[Quantized, ...], Facts]:
    """Evaluate the model of a run in fewer bits and save the table; returns rows and facts."""
    found = quantization_table(model, ks)
    words = ["quantization", *([model.part] if model.part != "test" else [])]
    name = "-".join([*words, "k" + "_".join(map(str, sorted(set(ks))))])
    saved = results_folder(Path(run)) / f"{name}.json"
    saved.parent.mkdir(parents=True, exist_ok=True)
    facts: Facts = {
        "run": run,
        "attack": "quantization",
        "kinds": {row.kind: row.as_dict() for row in found},
        "protocol": found[0].metrics.protocol.as_dict(),
    }
    write_json(saved, {"format": "robustcf quantization 1", **facts})
    return found, {**facts, "file": str(saved)}


def certify_run(
    run: str,
    model: Recommender,
    threat: Threat,
    epsilons: Sequence[float],
    ks: Sequence[int],
    *,
    bound: str = "tight",
    personal: bool = False,
    seed: int = 0,
) -> tuple[RobustnessCurve, dict[str, RobustnessCurve], CertifiedRadii, Facts]:
    """Certify the model of a run (``bound`` tight or plain); save and draw.

    Returns the certificate, the curves next to it by name (an attack, noise from ``seed`` and, if
    ``personal``, the worst attack on each user alone), the radii, and the facts.
    """
    if model.part == "train":  # without test pairs: those it was fit on count
        threat = dataclasses.replace(threat, knowledge="data")
    result = measure(model, "certificate", threat, epsilons, ks, bound=bound)
    radii = certified_radii(model, threat, (1, *ks), bound=bound)
    attacked = measure(model, "fgm-softmax", threat, epsilons, ks, seed=seed)
    others: dict[str, RobustnessCurve] = {"fgm_softmax": attacked.curve}
    if attacked.control is not None:
        others["random"] = attacked.control
    if personal:
        others["personal"] = measure(model, "personal", threat, epsilons, ks).curve
    saved, replaced = result.save(results_folder(Path(run)))
    radii_file = saved.with_name(f"{saved.stem}-radii.npz")
    write_arrays(
        radii_file, {"users": radii.users, **{f"top{k}": r for k, r in radii.radii.items()}}
    )
    label, drawn = model.label, {model.label: attacked.curve}
    if personal:
        drawn[f"{label}, each user alone"] = others["personal"]
    picture = plot_curves(
        drawn,
        saved.with_name(f"{saved.stem}-seed{seed}.png" if seed else f"{saved.stem}.png"),
        metric=result.metric,
        controls={label: others["random"]},
        certificates={label: result.curve},
    )
    facts = {
        "run": run,
        **result.as_dict(),
        "bound": radii.bound,
        "radii": radii.as_dict(),
        **{
            kind: {metric: other[metric].tolist() for metric in result.curve.values}
            for kind, other in others.items()
        },
        "file": str(saved),
        "replaced": replaced,
        "radii_file": str(radii_file),
        "picture": str(picture),
    }
    return result.curve, others, radii, facts


def certify_vote_run(
    run: str, model: Recommender, fakes: Sequence[int], ks: Sequence[int], *, reach: bool = False
) -> tuple[CertifiedVotes, CertifiedReach | None, Facts]:
    """Certify the vote of a run against fake accounts; save and draw.

    Returns the certificate, with ``reach`` that of the users who can be shown an item, too (else
    None), and the facts.
    """
    certified = certify(model, fakes=fakes, ks=ks)
    saved, replaced = _save_certificate(Path(run), certified)
    found: CertifiedReach | None = None
    also: Facts = {}
    if reach:
        found = certify(model, fakes=fakes, ks=ks, reach=True)
        place = saved.with_name(f"{saved.stem}-reach.json")
        write_json(place, {"format": "robustcf reach 1", **found.as_dict()})
        also = {"reach": found.rows(), "reach_file": str(place)}
        also["reach_picture"] = str(found.plot(place.with_suffix(".png")))
    picture = plot_fakes(
        {"vote": certified},
        saved.with_suffix(".png"),
        metric=f"precision@{ks[0]}",
        published=published(model.split, ks[0]),
    )
    where = {"file": str(saved), "replaced": replaced, "picture": str(picture)}
    return certified, found, {"run": run, **certified.as_dict(), **where, **also}


def published(split: Split, k: int) -> Mapping[str, Mapping[int, float]]:
    """Return published certificates on these data: name -> fakes -> certified precision@k.

    Example:
        >>> from robustcf.data import load
        >>> published(load("demo"), 10)
        {}
    """
    same = (split.n_users, split.n_items, split.n_interactions) == _PORE_DATA and k == 10
    quarter = abs(len(split.test) / split.n_interactions - 0.25) < 0.01
    return {"PORE, from its released counts": _PORE} if same and quarter else {}


def plot_fakes(
    certified: Mapping[str, CertifiedVotes],
    path: Path,
    *,
    metric: str = "precision@10",
    published: Mapping[str, Mapping[int, float]] | None = None,
) -> Path:
    """Draw a certified metric against the number of fake accounts; returns the path.

    ``certified`` and the curves of others, ``published`` (fakes -> value), are by label.
    """
    lines = [
        Line(label, found.fakes, np.array([found[metric]]), "certificate")
        for label, found in certified.items()
    ]
    lines += [
        Line(label, tuple(values), np.array([list(values.values())]), "certificate")
        for label, values in (published or {}).items()
    ]
    protocol = next(iter(certified.values())).protocol
    name = f"{metric} on {protocol.dataset} ({protocol.part})"
    return plot_panels([[Panel(lines, "fake accounts", name)]], path)


def _save_certificate(run: Path, certified: CertifiedVotes) -> tuple[Path, bool]:
    folder = results_folder(run, FAKES)
    told = [list(certified.fakes), sorted(certified.values)]
    path = folder / f"{digest_name(f'certified-{certified.protocol.part}', told)}.json"
    replaced = path.exists()
    folder.mkdir(exist_ok=True)
    users = {"users": certified.users, **certified.per_user}
    write_arrays(path.with_suffix(".npz"), users)
    write_json(path, {"format": "robustcf fakes 1", **certified.as_dict()})
    return path, replaced
