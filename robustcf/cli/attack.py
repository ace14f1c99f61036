"""``robustcf attack``: what a trained run is worth under attack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from robustcf._registry import ATTACKS, OBJECTIVES
from robustcf.cli.opening import OpenedRun, opens_run
from robustcf.cli.options import (
    budget_option,
    cutoffs_option,
    side_option,
    threads_option,
    unit_options,
)
from robustcf.cli.reporting import Report, reports, say, say_capped, shows_progress, table
from robustcf.cli.words import FINITE, SEED, ListCommand, NameOf

if TYPE_CHECKING:
    from robustcf.recommender import Recommender
    from robustcf.robustness import AttackSpec, Result


@click.command(cls=ListCommand)
@click.option(
    "--attack",
    "kind",
    type=NameOf(
        ATTACKS,
        "auto",
        "quantization",
        elsewhere={
            "certificate": "robustcf certify RUN",
            "personal": "robustcf certify RUN --personal",
        },
    ),
    help="How to choose the perturbation. auto (default): the headline, the worst of cutoff "
    "and of fgm on all objectives; cutoff: many steps on the metric itself; fgm (default with "
    "--objective): one gradient step on a loss; pgd: several; random: noise; quantization: "
    "rounding to fewer bits.",
)
@click.option(
    "--objective",
    type=NameOf(OBJECTIVES),
    help="What fgm and pgd make worse. bce: the paper's cross-entropy (default); bpr: the pairwise "
    "loss; softmax: loss over the whole catalogue; default for gradient attacks of your own.",
)
@click.option(
    "--knowledge",
    type=click.Choice(["data", "labels"]),
    help="What the attacker knows: labels, the pairs that count (the worst case; default of auto "
    "and cutoff), or data, the training pairs (default of fgm and pgd). auto shows both.",
)
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
    help="Show next to it the worst attack on each user alone, all items moved against that user "
    "(slower; row budget).",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Steps of auto and cutoff (default 50, and 10 without labels) and of pgd (8).",
)
@click.option(
    "--restarts", type=click.IntRange(min=1), default=1, show_default=True, help="Their starts."
)
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="Seed of the noise, and of the second start and later ones.",
)
@cutoffs_option
@click.option(
    "--part",
    type=click.Choice(["test", "valid"]),
    default="test",
    show_default=True,
    help="The pairs that count; choose by valid, report test.",
)
@opens_run
@threads_option
@reports
def attack(
    opened: OpenedRun,
    kind: str | None,
    objective: str | None,
    knowledge: str | None,
    positives: str | None,
    budget: str,
    epsilons: tuple[float, ...],
    unit: str,
    side: str,
    users: bool,
    items: bool,
    personal: bool,
    steps: int | None,
    restarts: int,
    seed: int,
    ks: tuple[int, ...],
    part: Literal["test", "valid"],
) -> Report:
    """Attack the factors of RUN with growing budgets and evaluate them on held-out pairs.

    The first number is joint: what one perturbation of all embeddings leaves on average. Per user
    is something else, each user's worst of several perturbations, and stands next to it.

    Writes the curve (JSON, and the values of single users as npz) and a picture (PNG and SVG) into
    RUN/robustness, under a name that tells all settings; so does the random control.
    """
    from robustcf._checks import check_cutoffs, check_epsilons
    from robustcf.experiments.records import results_folder
    from robustcf.robustness import AttackSpec, Threat, measure

    if kind is None:
        kind = "auto" if objective is None else "fgm"
    if positives is not None:
        knowledge = "labels" if positives == "test" else "data"
    threat = Threat(
        norm=budget,
        unit=unit,
        side=_side(side, users=users, items=items),
        knowledge=knowledge,
    )
    # What is wrong with the options is said before any data are read.
    if epsilons:
        check_epsilons(epsilons)
    cutoffs = check_cutoffs(ks or (10, 20))
    if personal and budget != "row":
        raise click.UsageError("--personal is about rows: use it with --budget row")
    options = {"objective": objective, "steps": steps, "restarts": restarts, "seed": seed}
    spec = None if kind == "quantization" else AttackSpec.parse(kind, **options)
    if idle := _without_effect(kind, spec):
        verb = "has" if len(idle) == 1 else "have"
        say(f"robustcf: {' and '.join(idle)} {verb} no effect on {kind}")
    model = _judged(opened.recommender(), part)
    say_capped(cutoffs, model.factors.n_items)
    folder = results_folder(Path(opened.path))
    if spec is None:
        return _quantization(opened.path, model, cutoffs)
    bar = shows_progress()
    result = measure(model, spec, threat, epsilons or None, cutoffs, progress=bar)
    alone = None
    if personal:
        alone = measure(model, "personal", threat, result.curve.epsilons, cutoffs)
    saved, replaced = result.save(folder)
    pictures = _draw(result, saved)
    data = {
        "run": opened.path,
        **result.as_dict(),
        "file": str(saved),
        "replaced": replaced,
        "picture": pictures[0],
        "pictures": pictures,
    }
    lines = [str(result), *_uneven_note(result)]
    if result.members:
        lines.append("\n" + _members_table(result))
    if alone is not None:
        alone.save(folder)
        lines.append(f"\n{alone}")
        data["personal"] = alone.curve.as_lists()
        data["random_personal"] = alone.control.as_lists() if alone.control else None
    if replaced:
        lines.append(f"replaced an earlier result of the same settings: {saved}")
    return Report(data, "\n".join([*lines, f"picture: {pictures[0]}"]))


def _without_effect(kind: str, spec: AttackSpec | None) -> list[str]:
    """The options that were given and that the attack does not look at."""
    idle = [] if kind in ("auto", "cutoff", "pgd") else ["steps", "restarts"]
    if spec is None or spec.objective is None:
        idle.append("objective")
    if kind in ("random", "quantization"):
        idle += ["knowledge", "positives"]
    if kind == "quantization":
        idle += ["budget", "epsilons", "relative", "absolute", "side", "users", "items", "seed"]
        idle.append("personal")
    context = click.get_current_context()
    given = click.core.ParameterSource.COMMANDLINE
    return [
        _spelling(parameter, context.params[parameter.name])
        for parameter in context.command.params
        if parameter.name in idle and context.get_parameter_source(parameter.name) is given
    ]


def _spelling(parameter: click.Parameter, value: object) -> str:
    """The option as it was typed."""
    off = parameter.secondary_opts and value is False
    return parameter.secondary_opts[0] if off else parameter.opts[0]


def _side(side: str, *, users: bool, items: bool) -> str:
    """``--users`` and ``--items`` are short for ``--side``, and exclude each other."""
    if users and items:
        raise click.UsageError(
            "--users and --items exclude each other: leave both out to perturb both factors"
        )
    flagged = {(True, False): "users", (False, True): "items"}.get((users, items), side)
    if side not in ("both", flagged):
        raise click.UsageError(f"--side {side} and --users/--items contradict each other")
    return flagged


def _uneven_note(result: Result) -> list[str]:
    """For sizes in median row norms: a warning where the median does not stand for the rows."""
    from robustcf.experiments.saved import uneven_words

    ratios = result.extra().get("unevenness", {})
    side = result.threat.side
    words = uneven_words({name: ratios[name] for name in ratios if side in ("both", name)})
    if not words:
        return []
    return [
        f"note: {words}: sizes in medians are small for the long rows, which rank first; compare "
        "by --relative own"
    ]


def _members_table(result: Result) -> str:
    """What each member of an ensemble leaves, and for how many users nothing leaves less."""
    members, counts = result.members or {}, result.extra()["members"]
    rows = [
        (
            name,
            *(
                f"{curve[result.metric][n]:.4f} ({counts[name]['worst'][n]})"
                for n in range(len(curve.epsilons))
            ),
        )
        for name, curve in members.items()
    ]
    title = f"{result.metric} (users it is worst for)"
    return table((title, *(f"{size:g}" for size in result.curve.epsilons)), rows)


def _draw(result: Result, saved: Path) -> list[str]:
    """Draw the curve, its control and what stands next to it; returns the paths of PNG and SVG."""
    endings = ("png", "svg")
    return [str(result.plot(saved.with_name(f"{result.picture_stem}.{e}"))) for e in endings]


def _judged(model: Recommender, part: Literal["test", "valid"]) -> Recommender:
    """The recommender judged by these pairs; without test pairs, by those it was fit on."""
    return model if part == "test" else model.judged_by(part)


def _quantization(run: str, model: Recommender, ks: tuple[int, ...]) -> Report:
    from robustcf._io.files import write_json
    from robustcf.experiments.records import results_folder
    from robustcf.robustness import quantization_table

    found = quantization_table(model, ks)
    cutoffs = sorted(set(ks))
    words = ["quantization", *([model.part] if model.part != "test" else [])]
    name = "-".join([*words, "k" + "_".join(map(str, cutoffs))])
    saved = results_folder(Path(run)) / f"{name}.json"
    saved.parent.mkdir(parents=True, exist_ok=True)
    protocol = found[0].metrics.protocol
    data: dict[str, Any] = {
        "run": run,
        "attack": "quantization",
        "kinds": {row.kind: row.as_dict() for row in found},
        "protocol": protocol.as_dict(),
    }
    write_json(saved, {"format": "robustcf quantization 1", **data})
    first, last = cutoffs[0], cutoffs[-1]
    shown = (f"ndcg@{first}", f"mrr@{first}", f"coverage@{first}", f"recall@{last}")
    rows = [
        (
            row.kind,
            *(f"{row.metrics[metric]:.4f}" for metric in shown),
            *(f"{row.absolute[name]:.2g}" for name in ("users", "items")),
            *(
                "-" if row.relative[name] is None else f"{row.relative[name]:.2g}"
                for name in ("users", "items")
            ),
        )
        for row in found
    ]
    moved = ("users moved", "items moved", "users, relative", "items, relative")
    text = table(("kind", *shown, *moved), rows)
    text += (
        f"\nmoved: the largest row of the perturbation; relative: in median row norms\n{protocol}"
    )
    return Report({**data, "file": str(saved)}, text)
