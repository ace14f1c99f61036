"""``robustcf attack``: what a trained run is worth under attack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from robustcf.cli.common import (
    ListCommand,
    NameOf,
    Report,
    budget_option,
    cutoffs_option,
    reports,
    run_data_option,
    side_option,
    table,
    unit_option,
)
from robustcf.support.registry import ATTACKS, OBJECTIVES

if TYPE_CHECKING:
    from pathlib import Path

    from robustcf.robustness import AttackSpec, Result, Target
    from robustcf.runs import RunDir


@click.command(cls=ListCommand)
@click.argument("run")
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
    default="fgm",
    show_default=True,
    help="How to choose the perturbation. fgm: one gradient step; pgd: several projected steps "
    "(per user, the worse of pgd and fgm); auto: per user, the worst of fgm and pgd on all "
    "objectives; random: noise; quantization: rounding to fewer bits.",
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
    default="data",
    show_default=True,
    help="Which positives the attacker knows: data = the training interactions, labels = the "
    "evaluated ones (worst case).",
)
@click.option("--positives", type=click.Choice(["train", "test"]), hidden=True,
              help="Older name of --knowledge: train is data, test is labels.")  # fmt: skip
@budget_option
@click.option(
    "--epsilons",
    type=float,
    multiple=True,
    metavar="E...",
    help="Sizes, ascending (default 0 0.02 0.05 0.1 0.2; absolute: 0 0.1 0.2 0.4 0.8 1.6).",
)
@unit_option
@side_option
@click.option("--users", is_flag=True, help="Perturb the users only: --side users.")
@click.option("--items", is_flag=True, help="Perturb the items only: --side items.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=8, show_default=True, help="PGD steps."
)
@click.option(
    "--restarts", type=click.IntRange(min=1), default=1, show_default=True, help="PGD starts."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the noise, and of PGD's restarts.",
)
@cutoffs_option
@click.option(
    "--part",
    type=click.Choice(["test", "valid"]),
    default="test",
    show_default=True,
    help="The pairs that count; choose by valid, report test.",
)
@run_data_option
@reports
def attack(
    run: str,
    kind: str,
    objective: str | None,
    knowledge: str,
    positives: str | None,
    budget: str,
    epsilons: tuple[float, ...],
    relative: bool,
    side: str,
    users: bool,
    items: bool,
    steps: int,
    restarts: int,
    seed: int,
    ks: tuple[int, ...],
    part: Literal["test", "valid"],
    data_dir: str | None,
) -> Report:
    """Attack the factors of RUN with growing budgets and evaluate them on held-out pairs.

    Writes the curve (JSON, and the values of single users as npz) and a picture (PNG and SVG) into
    RUN/robustness, under a name that tells all settings; so does the random control.
    """
    from robustcf.robustness import AttackSpec, Threat, measure
    from robustcf.runs import RunDir
    from robustcf.support.checks import check_epsilons

    if positives is not None:
        knowledge = "labels" if positives == "test" else "data"
    threat = Threat(
        norm=budget,
        unit="relative" if relative else "absolute",
        side=_side(side, users=users, items=items),
        knowledge=knowledge,
    )
    # What is wrong with the options is said before any data are read.
    if epsilons:
        check_epsilons(epsilons)
    options = {"objective": objective, "steps": steps, "restarts": restarts, "seed": seed}
    spec = None if kind == "quantization" else AttackSpec.parse(kind, **options)
    if idle := _without_effect(kind, spec):
        verb = "has" if len(idle) == 1 else "have"
        click.echo(f"robustcf: {' and '.join(idle)} {verb} no effect on {kind}", err=True)
    trained = RunDir(run)
    trained.factors()
    target = trained.target(trained.split(data_dir), part)
    if spec is None:
        return _quantization(trained, target, ks or (10, 20))
    result = measure(target, spec, threat, epsilons or None, ks or (10, 20))
    saved, replaced = trained.save(result)
    pictures = _draw(result, saved)
    data = {
        "run": str(trained.path),
        **result.as_dict(),
        "file": str(saved),
        "replaced": replaced,
        "picture": pictures[0],
        "pictures": pictures,
    }
    lines = [str(result), *_uneven_note(result)]
    if result.members:
        lines.insert(0, _members_table(result) + "\n")
    if replaced:
        lines.append(f"replaced an earlier result of the same settings: {saved}")
    return Report(data, "\n".join([*lines, f"picture: {pictures[0]}"]))


def _without_effect(kind: str, spec: AttackSpec | None) -> list[str]:
    """The options that were given and that the attack does not look at."""
    idle = ["steps", "restarts"] if kind != "pgd" else []
    if spec is None or spec.objective is None:
        idle.append("objective")
    if kind in ("random", "quantization"):
        idle += ["knowledge", "positives"]
    if kind == "quantization":
        idle += ["budget", "epsilons", "relative", "side", "users", "items", "seed"]
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
    from robustcf.runs.saved import uneven_words

    ratios = result.extra().get("unevenness", {})
    side = result.threat.side
    words = uneven_words({name: ratios[name] for name in ratios if side in ("both", name)})
    if not words:
        return []
    return [
        f"note: {words}: sizes in medians are small for the long rows, which rank first; compare "
        "by --budget frobenius"
    ]


def _members_table(result: Result) -> str:
    """What each member of an ensemble does, and for how many users nothing else does more."""
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
    """Draw the curve, its control and its members; returns the paths of PNG and SVG."""
    from robustcf.robustness import worst_of
    from robustcf.studies.plots import plot_curves

    label = result.target.label
    curves = {label: result.curve}
    members = result.members or {}
    # One line per objective: with all members apart the picture could not be read.
    for n, objective in enumerate(dict.fromkeys(each.objective for each in members.values()), 1):
        same = {name: each for name, each in members.items() if each.objective == objective}
        curves[f"member {n}"] = worst_of(same, "fgm or pgd")
    has_control = result.control is not None and result.control is not result.curve
    controls = {label: result.control} if has_control else None
    return [
        str(
            plot_curves(
                curves,
                saved.with_name(f"{result.picture_stem}.{ending}"),
                metric=result.metric,
                controls=controls,  # type: ignore[arg-type]
            )
        )
        for ending in ("png", "svg")
    ]


def _quantization(trained: RunDir, target: Target, ks: tuple[int, ...]) -> Report:
    from robustcf.robustness import quantization_table
    from robustcf.runs.saved import FOLDER
    from robustcf.support.files import write_json

    found = quantization_table(target, ks)
    cutoffs = sorted(set(ks))
    words = ["quantization", *([target.part] if target.part != "test" else [])]
    name = "-".join([*words, "k" + "_".join(map(str, cutoffs))])
    saved = trained.path / FOLDER / f"{name}.json"
    saved.parent.mkdir(parents=True, exist_ok=True)
    protocol = found[0].metrics.protocol
    data: dict[str, Any] = {
        "run": str(trained.path),
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
