"""``robustcf attack``: what a trained run is worth under attack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.common import ListCommand, Report, reports, table

if TYPE_CHECKING:
    from robustcf.attacks import Attack

_DEFAULT_EPSILONS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
_SHOWN = ("ndcg@10", "mrr@10", "coverage@10", "recall@20")


@click.command(cls=ListCommand)
@click.argument("run")
@click.option(
    "--attack",
    "kind",
    type=click.Choice(["fgm", "pgd", "random"]),
    default="fgm",
    show_default=True,
    help="How to choose the perturbation.",
)
@click.option(
    "--objective",
    type=click.Choice(["bce", "bpr", "softmax"]),
    default="bce",
    show_default=True,
    help="What fgm and pgd make worse: the paper's cross-entropy, pairwise, or the ranking-aware.",
)
@click.option(
    "--budget",
    type=click.Choice(["row", "frobenius", "spectral"]),
    default="row",
    show_default=True,
    help="The norm that epsilon bounds, for each factor.",
)
@click.option(
    "--epsilons",
    type=float,
    multiple=True,
    metavar="E...",
    help="Sizes, ascending (default 0 0.1 0.2 0.4 0.8 1.6).",
)
@click.option("--relative", is_flag=True, help="Sizes in units of the factors' own (see README).")
@click.option(
    "--side",
    type=click.Choice(["both", "users", "items"]),
    default="both",
    show_default=True,
    help="Which factors are perturbed.",
)
@click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True, help="Of pgd.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of noise.")
@click.option("--data-dir", metavar="DIR", help="Where the run's data are, if they have moved.")
@reports
def attack(
    run: str,
    kind: str,
    objective: str,
    budget: str,
    epsilons: tuple[float, ...],
    relative: bool,
    side: str,
    steps: int,
    seed: int,
    data_dir: str | None,
) -> Report:
    """Attack the factors of RUN with growing budgets and evaluate them on the test pairs.

    Writes a JSON file and a picture into RUN/attacks; the random control is always beside.
    """
    from robustcf.attacks import BUDGETS, FGM, PGD, RandomNoise
    from robustcf.plots import plot_curves
    from robustcf.robustness import check_epsilons, objective_for, robustness_curve
    from robustcf.runs import RunDir

    sizes = check_epsilons(epsilons or _DEFAULT_EPSILONS)
    trained = RunDir(run)
    factors, result = trained.factors(), trained.metrics()
    split = trained.split(data_dir)
    seen = trained.learnt_pairs(split)
    options: dict[str, Any] = {"budget": BUDGETS[budget](), "relative": relative, "side": side}
    control: Attack = RandomNoise(seed=seed, **options)
    chosen = control
    if kind != "random":
        aim = objective_for(objective, trained.config.train, factors, seen)
        chosen = FGM(aim, **options) if kind == "fgm" else PGD(aim, steps=steps, **options)
    mask = result["test"]["protocol"]["masked"] if result["test"] else None
    curve = robustness_curve(factors, split, chosen, sizes, mask=mask)
    beside = (
        curve if kind == "random" else robustness_curve(factors, split, control, sizes, mask=mask)
    )

    name = "-".join(
        [
            kind,
            *([objective] if kind != "random" else []),
            budget,
            *(["relative"] if relative else []),
        ]
    )
    folder = trained.path / "attacks"
    label = f"{result['model']}, {result['reg']}"
    picture = plot_curves(
        {label: curve},
        folder / f"{name}.png",
        controls={label: beside} if kind != "random" else None,
    )
    data = {
        "run": str(trained.path),
        **curve.as_dict(),
        "random": {m: beside[m].tolist() for m in _SHOWN},
    }
    target = curve.save(folder / f"{name}.json")
    if kind != "random":
        control_name = "-".join(["random", budget, *(["relative"] if relative else [])])
        beside.save(folder / f"{control_name}.json")
    data |= {"file": str(target), "picture": str(picture)}
    rows = [
        (f"{size:g}", *(f"{curve[m][n]:.4f}" for m in _SHOWN), f"{beside['ndcg@10'][n]:.4f}")
        for n, size in enumerate(sizes)
    ]
    text = table(("epsilon", *_SHOWN, "random ndcg@10"), rows, left=())
    text += f"\n{name.replace('-', ', ')}; {curve.protocol}\npicture: {picture}"
    return Report(data, text)
