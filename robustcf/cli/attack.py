"""``robustcf attack``: the quality of a run under attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from robustcf._registry import ATTACKS, OBJECTIVES
from robustcf.cli.evaluate import part_option
from robustcf.cli.kinds import COUNT, Choice, NameOf
from robustcf.cli.options import (
    budget_option,
    cutoffs_option,
    eval_users_option,
    refuse,
    side_option,
    unit_options,
)
from robustcf.cli.reporting import Report, command, numbers, say_capped, shows_progress, table
from robustcf.cli.signatures import options
from robustcf.cli.sources import Opener, opens_run

if TYPE_CHECKING:
    from robustcf.recommender import Recommender

_SPEC = "robustness.table:AttackSpec"
_ELSEWHERE = {
    "certificate": "robustcf certify RUN",
    "personal": "robustcf certify RUN --personal",
}
_NAMES = NameOf(ATTACKS, "auto", "quantization", elsewhere=_ELSEWHERE)
# Options that quantization, which has no size, does not use.
_SIZED = (
    *("budget", "epsilons", "relative", "absolute", "side", "users", "items", "seed", "personal"),
)


@command()
@options(_SPEC, "kind=attack", "objective", kind=_NAMES, objective=NameOf(OBJECTIVES))
@options("robustness.threat:Threat", "knowledge", knowledge=Choice(["data", "labels", "sample"]))
@click.option("--positives", type=Choice(["train", "test"]), hidden=True,
              help="Older name of --knowledge: train is data, test is labels.")  # fmt: skip
@budget_option
@options("robustness.measuring:measure", "epsilons")
@unit_options
@side_option
@click.option("--users", is_flag=True, help="Perturb the users only: --side users.")
@click.option("--items", is_flag=True, help="Perturb the items only: --side items.")
@click.option("--personal", is_flag=True, help="Also attack each user alone (slower; row budget).")
@options(_SPEC, "steps", "restarts", "seed", steps=COUNT, restarts=COUNT)
@cutoffs_option
@part_option
@eval_users_option
@opens_run
def attack(
    run: str, opener: Opener, epsilons: tuple[float, ...], personal: bool, **given: Any
) -> Report:
    """Attack the factors of RUN with growing budgets and evaluate them on held-out pairs.

    The headline is joint: the mean of the metric under one perturbation of all embeddings. The
    random control stands next to it, and for pgd the mean over each user's worst perturbation.

    Writes the curve (JSON, and the values per user as npz), the random control and a picture (PNG
    and SVG) into RUN/robustness. The settings decide the names of the files.
    """
    from robustcf._checks import check_cutoffs, check_epsilons
    from robustcf.experiments.results import attack_run
    from robustcf.robustness import AttackSpec, Threat

    settings = {name: given[name] for name in ("objective", "steps", "restarts", "seed")}
    kind = given["attack"] or ("auto" if settings["objective"] is None else "fgm")
    # Options are checked before any data are read.
    threat = Threat(given["budget"], given["unit"], _side(given), _knowledge(given))
    if epsilons:
        check_epsilons(epsilons)
    cutoffs = check_cutoffs(given["ks"])
    if personal and threat.norm != "row":
        raise click.UsageError("--personal needs --budget row: leave --budget out")
    spec = None if kind == "quantization" else AttackSpec.parse(kind, **settings)
    idle = [] if kind in ("auto", "pairwise", "cutoff", "pgd") else ["steps", "restarts"]
    idle += ["objective"] if spec is None or spec.objective is None else []
    idle += ["knowledge", "positives"] if kind in ("random", "quantization") else []
    refuse(f"has no effect on {kind}", *idle, *(_SIZED if spec is None else ()))
    model = opener.recommender(run)
    if given["part"] != "test":
        model = model.judged_by(given["part"])
    model = model.with_eval_users(given["eval_users"])
    say_capped(cutoffs, model.factors.n_items)
    if spec is None:
        return _quantization(run, model, cutoffs)
    how = {"personal": personal, "progress": shows_progress()}
    result, alone, facts = attack_run(run, model, spec, threat, epsilons or None, cutoffs, **how)
    lines = [str(result)]
    if alone is not None:
        lines.append(f"\n{alone}")
    return Report(facts, "\n".join([*lines, *places(facts)]))


def places(facts: Mapping[str, object]) -> list[str]:
    """Return lines on the files that a command wrote."""
    replaced = [f"replaced an earlier result of the same settings: {facts['file']}"]
    return [*(replaced if facts["replaced"] else []), f"picture: {facts['picture']}"]


def _side(given: Mapping[str, Any]) -> str:
    """``--users`` and ``--items`` are short for ``--side``, and exclude each other."""
    sides = {name for name in ("users", "items") if given[name]} | {given["side"]} - {"both"}
    if len(sides) > 1:
        advice = "leave all out to perturb both factors"
        raise click.UsageError(f"--users, --items and --side exclude each other: {advice}")
    return sides.pop() if sides else "both"


def _knowledge(given: Mapping[str, Any]) -> str | None:
    older: dict[str | None, str | None] = {"train": "data", "test": "labels"}
    return older.get(given["positives"], given["knowledge"])


def _quantization(run: str, model: Recommender, ks: tuple[int, ...]) -> Report:
    from robustcf.experiments.results import quantize_run

    found, facts = quantize_run(run, model, ks)
    first, last = min(ks), max(ks)
    shown = (f"ndcg@{first}", f"mrr@{first}", f"coverage@{first}", f"recall@{last}")
    rows = []
    for row in found:
        moved = [kind[name] for kind in (row.absolute, row.relative) for name in ("users", "items")]
        cells = ("-" if size is None else f"{size:.2g}" for size in moved)
        rows.append((row.kind, *numbers([row.metrics[metric] for metric in shown]), *cells))
    header = ("users moved", "items moved", "users, relative", "items, relative")
    words = "moved: the largest row of the perturbation; relative: in median row norms"
    lines = [table(("kind", *shown, *header), rows), words, str(found[0].metrics.protocol)]
    return Report(facts, "\n".join(lines))
