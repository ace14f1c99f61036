"""``robustcf attack``: what a trained run is worth under attack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from robustcf.attack_settings import STEPS, Settings
from robustcf.cli.attack_report import curve_table, draw, members_table, uneven_note
from robustcf.cli.common import ListCommand, Report, budget_option, reports, table

if TYPE_CHECKING:
    from robustcf.attacks import Objective
    from robustcf.data import Split
    from robustcf.factors import Factors
    from robustcf.robustness import RobustnessCurve
    from robustcf.runs import RunDir


@click.command(cls=ListCommand)
@click.argument("run")
@click.option(
    "--attack",
    "kind",
    type=click.Choice(["fgm", "pgd", "auto", "random", "quantization"]),
    default="fgm",
    show_default=True,
    help="How to choose the perturbation: one gradient step; many (the worst of both, user by "
    "user); the worst over fgm and pgd on all objectives, the number to quote; noise; rounding.",
)
@click.option(
    "--objective",
    type=click.Choice(["bce", "bpr", "softmax"]),
    default="bce",
    show_default=True,
    help="What fgm and pgd make worse: the paper's cross-entropy, pairwise, or the ranking-aware.",
)
@click.option(
    "--positives",
    type=click.Choice(["train", "test"]),
    default="train",
    show_default=True,
    help="Whose items softmax pushes down; test is an oracle that no attacker has.",
)
@budget_option
@click.option(
    "--epsilons",
    type=float,
    multiple=True,
    metavar="E...",
    help="Sizes, ascending (default 0 0.1 0.2 0.4 0.8 1.6; relative: 0 0.02 0.05 0.1 0.2).",
)
@click.option(
    "--relative/--absolute",
    default=None,
    help="Sizes in the factors' own: median row norm, Frobenius or spectral norm, by the budget "
    "(default for auto); or as they are (default for the others).",
)
@click.option(
    "--side",
    type=click.Choice(["both", "users", "items"]),
    help="Which factors are perturbed (default both).",
)
@click.option("--users", is_flag=True, help="Perturb the users: --side users.")
@click.option("--items", is_flag=True, help="Perturb the items: --side items.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=STEPS, show_default=True, help="Of pgd."
)
@click.option(
    "--restarts", type=click.IntRange(min=1), default=1, show_default=True, help="Starts of pgd."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the noise, and of pgd's restarts.",
)
@click.option(
    "--k", "ks", type=click.IntRange(min=1), multiple=True, metavar="K...",
    help="Cutoffs of the metrics (default 10 20).",
)  # fmt: skip
@click.option(
    "--part",
    type=click.Choice(["test", "valid"]),
    default="test",
    show_default=True,
    help="The pairs that count; choose by valid, report test.",
)
@click.option("--data-dir", metavar="DIR", help="Where the run's data are, if they have moved.")
@reports
def attack(
    run: str,
    data_dir: str | None,
    side: str | None,
    users: bool,
    items: bool,
    **options: Any,
) -> Report:
    """Attack the factors of RUN with growing budgets and evaluate them on held-out pairs.

    Writes the curve (JSON, and the values of single users as npz) and a picture (PNG and SVG) into
    RUN/attacks, under a name that tells all settings; the random control is always beside.
    """
    from robustcf.runs import RunDir

    asked = Settings.of(side=_side(side, users=users, items=items), **options)
    trained = RunDir(run)
    factors, split = trained.factors(), trained.split(data_dir)
    where = {"part": asked.part, "mask": trained.mask(split, asked.part)}
    if asked.kind == "quantization":
        return _quantization(trained, factors, split, asked, where)
    return _curves(trained, factors, split, asked, where)


def _side(side: str | None, *, users: bool, items: bool) -> str:
    """``--users`` and ``--items`` together mean both, as neither does."""
    flagged = {(True, False): "users", (False, True): "items", (True, True): "both"}.get(
        (users, items)
    )
    if side is not None and flagged not in (None, side):
        raise click.UsageError(f"--side {side} and --users/--items contradict each other")
    return side or flagged or "both"


def _curves(
    trained: RunDir, factors: Factors, split: Split, asked: Settings, where: dict[str, Any]
) -> Report:
    from robustcf.attacks import BUDGETS, FGM, PGD
    from robustcf.robustness import (
        auto_members,
        pgd_curve,
        random_curve,
        robustness_curve,
        worst_counts,
        worst_of,
    )

    sizes, ks, norm = asked.epsilons, asked.ks, BUDGETS[asked.budget]()
    how: dict[str, Any] = {"relative": asked.relative, "side": asked.side}
    members: dict[str, RobustnessCurve] = {}
    extra: dict[str, Any] = {"positives": asked.positives, "oracle": asked.positives == "test"}

    def control_of(draws: int, *, carry: bool = False) -> RobustnessCurve:
        return random_curve(
            factors, split, sizes, ks, draws=draws, carry=carry, seed=asked.seed, budget=norm,
            **how, **where,
        )  # fmt: skip

    draws = 1
    if asked.kind == "random":
        curve = control = control_of(draws)
    elif asked.kind == "auto":
        aims = _objectives(trained, factors, split, asked)
        members = auto_members(factors, split, aims, sizes, ks, budget=norm, **how, **where)
        curve, draws = worst_of(members, "auto", carry=True), len(members)
        control = control_of(draws, carry=True)
        counts = worst_counts(members, asked.metric)
        extra["members"] = {
            name: {**member.as_lists(), **counts[name]} for name, member in members.items()
        }
    else:
        (aim,) = _objectives(trained, factors, split, asked)
        if asked.kind == "fgm":
            curve = robustness_curve(factors, split, FGM(aim, norm, **how), sizes, ks, **where)
        else:
            many = {"steps": asked.steps, "restarts": asked.restarts, "seed": asked.seed}
            steps = PGD(aim, norm, **many, **how)
            curve, draws = pgd_curve(factors, split, steps, sizes, ks, **where), 2
        control = control_of(draws)

    note = ""
    if asked.relative and asked.budget == "row":
        ratios, note = uneven_note(factors, asked.side)
        extra |= ratios
    folder, name = trained.path / "attacks", asked.name()
    target = curve.save(folder / f"{name}.json", extra)
    if curve is not control:
        control.save(folder / f"{asked.name('random', draws)}.json")
    pictures = draw(trained, curve, control, members, asked.metric, folder / name)
    data = {
        "run": str(trained.path),
        **curve.as_dict(),
        **extra,
        "random": control.as_lists(),
        "random_draws": draws,
        "file": str(target),
        "picture": pictures[0],
        "pictures": pictures,
    }
    text = curve_table(curve, control, draws, asked)
    if members:
        text += "\n\n" + members_table(members, extra["members"], asked)
    text += f"\n{asked.words()}; {curve.protocol}{note}\npicture: {pictures[0]}"
    return Report(data, text)


def _objectives(
    trained: RunDir, factors: Factors, split: Split, asked: Settings
) -> list[Objective]:
    from robustcf.attacks import Softmax
    from robustcf.robustness import OBJECTIVES, objective_for

    if asked.positives == "test":
        return [Softmax(split.test, oracle=True)]
    names = OBJECTIVES if asked.kind == "auto" else (asked.objective,)
    seen = trained.learnt_pairs(split)
    return [objective_for(name, trained.config.train, factors, seen) for name in names]


def _quantization(
    trained: RunDir, factors: Factors, split: Split, asked: Settings, where: dict[str, Any]
) -> Report:
    from robustcf.files import write_json
    from robustcf.robustness import quantization_table

    found = quantization_table(factors, split, asked.ks, **where)
    target = trained.path / "attacks" / f"{asked.name()}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    protocol = found[0].metrics.protocol
    data: dict[str, Any] = {
        "run": str(trained.path),
        "attack": "quantization",
        "kinds": {row.kind: row.as_dict() for row in found},
        "protocol": protocol.as_dict(),
    }
    write_json(target, data)
    rows = [
        (
            row.kind,
            *(f"{row.metrics[metric]:.4f}" for metric in asked.shown),
            *(f"{row.absolute[name]:.2g}" for name in ("users", "items")),
            *(
                "-" if row.relative[name] is None else f"{row.relative[name]:.2g}"
                for name in ("users", "items")
            ),
        )
        for row in found
    ]
    moved = ("users moved", "items moved", "users, relative", "items, relative")
    text = table(("kind", *asked.shown, *moved), rows)
    text += (
        f"\nmoved: the largest row of the perturbation; relative: in median row norms\n{protocol}"
    )
    return Report({**data, "file": str(target)}, text)
