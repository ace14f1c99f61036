"""``robustcf attack``: what a trained run is worth under attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from robustcf._registry import ATTACKS, OBJECTIVES
from robustcf.cli.evaluate import part_option
from robustcf.cli.kinds import COUNT, FINITE, NameOf
from robustcf.cli.options import budget_option, cutoffs_option, refuse, side_option, unit_options
from robustcf.cli.reporting import Report, command, numbers, say_capped, shows_progress, table
from robustcf.cli.signatures import options
from robustcf.cli.sources import Opener, opens_run

if TYPE_CHECKING:
    from robustcf.recommender import Recommender
    from robustcf.robustness import Result

_ELSEWHERE = {
    "certificate": "robustcf certify RUN",
    "personal": "robustcf certify RUN --personal",
}
# Options of an attack of some size, which rounding is not.
_SIZED = (
    "budget",
    "epsilons",
    "relative",
    "absolute",
    "side",
    "users",
    "items",
    "seed",
    "personal",
)


@command()
@click.option(
    "--attack",
    "kind",
    type=NameOf(ATTACKS, "auto", "quantization", elsewhere=_ELSEWHERE),
    help="auto (default): the worst of cutoff and of fgm on all objectives; cutoff: many steps on "
    "the metric; fgm: one gradient step; pgd: several; random: noise; quantization: fewer bits.",
)
@options("robustness.table:AttackSpec", "objective", objective=NameOf(OBJECTIVES))
@options("robustness.threat:Threat", "knowledge", knowledge=click.Choice(["data", "labels"]))
@click.option("--positives", type=click.Choice(["train", "test"]), hidden=True,
              help="Older name of --knowledge: train is data, test is labels.")  # fmt: skip
@budget_option
@click.option(
    "--epsilons",
    type=FINITE,
    multiple=True,
    metavar="E...",
    help="Sizes, ascending (default 0 0.02 0.05 0.1 0.2; absolute: 0 0.1 0.2 0.4 0.8 1.6).",
)
@unit_options
@side_option
@click.option("--users", is_flag=True, help="Perturb the users only: --side users.")
@click.option("--items", is_flag=True, help="Perturb the items only: --side items.")
@click.option(
    "--personal",
    is_flag=True,
    help="Also run the worst attack on each user alone (slower; row budget).",
)
@options("robustness.table:AttackSpec", "steps", "restarts", "seed", steps=COUNT, restarts=COUNT)
@cutoffs_option
@part_option
@opens_run
def attack(
    run: str,
    opener: Opener,
    kind: str | None,
    epsilons: tuple[float, ...],
    personal: bool,
    ks: tuple[int, ...],
    part: Literal["test", "valid"],
    **given: Any,
) -> Report:
    """Attack the factors of RUN with growing budgets and evaluate them on held-out pairs.

    The first number is joint: what one perturbation of all embeddings leaves on average. Per user
    is something else, each user's worst of several perturbations, and stands next to it.

    Writes the curve (JSON, and the values of single users as npz) and a picture (PNG and SVG) into
    RUN/robustness, under a name made of its settings; so does the random control.
    """
    from robustcf._checks import check_cutoffs, check_epsilons
    from robustcf.experiments.results import attack_run
    from robustcf.robustness import AttackSpec, Threat

    settings = {name: given[name] for name in ("objective", "steps", "restarts", "seed")}
    if kind is None:
        kind = "auto" if settings["objective"] is None else "fgm"
    # What is wrong with the options is said before any data are read.
    threat = Threat(given["budget"], given["unit"], _side(given), _knowledge(given))
    if epsilons:
        check_epsilons(epsilons)
    cutoffs = check_cutoffs(ks)
    if personal and threat.norm != "row":
        raise click.UsageError("--personal is about rows: use it with --budget row")
    spec = None if kind == "quantization" else AttackSpec.parse(kind, **settings)
    idle = [] if kind in ("auto", "cutoff", "pgd") else ["steps", "restarts"]
    idle += ["objective"] if spec is None or spec.objective is None else []
    idle += ["knowledge", "positives"] if kind in ("random", "quantization") else []
    refuse(f"has no effect on {kind}", *idle, *(_SIZED if spec is None else ()))
    model = opener.recommender(run)
    if part != "test":
        model = model.judged_by(part)
    say_capped(cutoffs, model.factors.n_items)
    if spec is None:
        return _quantization(run, model, cutoffs)
    how = {"personal": personal, "progress": shows_progress()}
    result, alone, facts = attack_run(run, model, spec, threat, epsilons or None, cutoffs, **how)
    lines = [str(result), *_uneven_note(result)]
    if result.members:
        lines.append(f"\n{_members_table(result)}")
    if alone is not None:
        lines.append(f"\n{alone}")
    if facts["replaced"]:
        lines.append(f"replaced an earlier result of the same settings: {facts['file']}")
    return Report(facts, "\n".join([*lines, f"picture: {facts['picture']}"]))


def _side(given: Mapping[str, Any]) -> str:
    """``--users`` and ``--items`` are short for ``--side``, and exclude each other."""
    sides = [name for name in ("users", "items") if given[name]]
    sides += [given["side"]] if given["side"] != "both" else []
    if len(set(sides)) > 1:
        raise click.UsageError(
            "--users, --items and --side exclude each other: leave all out to perturb both factors"
        )
    return sides[0] if sides else "both"


def _knowledge(given: Mapping[str, Any]) -> str | None:
    older: dict[str | None, str | None] = {"train": "data", "test": "labels"}
    return older.get(given["positives"], given["knowledge"])


def _uneven_note(result: Result) -> list[str]:
    """For sizes in median row norms: a warning where the median does not stand for the rows."""
    from robustcf.robustness.curves import uneven_words

    ratios, side = result.extra().get("unevenness", {}), result.threat.side
    words = uneven_words({name: ratios[name] for name in ratios if side in ("both", name)})
    advice = (
        "sizes in medians are small for the long rows, which rank first; compare by --relative own"
    )
    return [f"note: {words}: {advice}"] if words else []


def _members_table(result: Result) -> str:
    """What each member of an ensemble leaves, and for how many users it is the worst."""
    members, counts = result.members or {}, result.extra()["members"]
    rows = []
    for name, curve in members.items():
        worst = zip(numbers(curve[result.metric]), counts[name]["worst"], strict=True)
        rows.append((name, *(f"{value} ({count})" for value, count in worst)))
    title = f"{result.metric} (users it is worst for)"
    return table((title, *(f"{size:g}" for size in result.curve.epsilons)), rows)


def _quantization(run: str, model: Recommender, ks: tuple[int, ...]) -> Report:
    from robustcf.experiments.results import quantize_run

    found, facts = quantize_run(run, model, ks)
    first, last = min(ks), max(ks)
    shown = (f"ndcg@{first}", f"mrr@{first}", f"coverage@{first}", f"recall@{last}")
    rows = [
        (
            row.kind,
            *numbers([row.metrics[metric] for metric in shown]),
            *(
                "-" if moved is None else f"{moved:.2g}"
                for kind in (row.absolute, row.relative)
                for moved in (kind["users"], kind["items"])
            ),
        )
        for row in found
    ]
    moved = ("users moved", "items moved", "users, relative", "items, relative")
    text = table(("kind", *shown, *moved), rows)
    words = "moved: the largest row of the perturbation; relative: in median row norms"
    return Report(facts, f"{text}\n{words}\n{found[0].metrics.protocol}")
