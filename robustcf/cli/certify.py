"""``robustcf certify``: what a trained run keeps under any attack, beside what attacks take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.common import ListCommand, Report, reports, table

if TYPE_CHECKING:
    from robustcf.attacks.base import Side
    from robustcf.certificates import CertifiedRadii
    from robustcf.robustness import RobustnessCurve

_DEFAULT_EPSILONS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


@click.command(cls=ListCommand)
@click.argument("run")
@click.option(
    "--epsilons",
    type=float,
    multiple=True,
    metavar="E...",
    help="Sizes, ascending (default 0 0.002 0.005 0.01 0.02 0.05 0.1).",
)
@click.option("--relative", is_flag=True, help="Sizes in median row norms of U and of V.")
@click.option(
    "--side",
    type=click.Choice(["both", "users", "items"]),
    default="both",
    show_default=True,
    help="Which factors may be perturbed.",
)
@click.option("--k", "ks", type=int, multiple=True, metavar="K...", help="Cutoffs (10 20).")
@click.option(
    "--bound",
    type=click.Choice(["tight", "plain"]),
    default="tight",
    show_default=True,
    help="Exact for each pair of items, or the sum of the worst of each term.",
)
@click.option(
    "--personal",
    is_flag=True,
    help="Also attack each user alone (slower): between this and the certificate lies the truth.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of noise.")
@click.option("--data-dir", metavar="DIR", help="Where the run's data are, if they have moved.")
@reports
def certify(
    run: str,
    epsilons: tuple[float, ...],
    relative: bool,
    side: Side,
    ks: tuple[int, ...],
    bound: str,
    personal: bool,
    seed: int,
    data_dir: str | None,
) -> Report:
    """Prove how far the rankings of RUN hold when every row of its factors moves by epsilon.

    No attack takes any user below the certified values. An attack (fgm on softmax) and the random
    control of the same sizes are beside them. Writes JSON, radii of all users and a picture into
    RUN/certificates.
    """
    from robustcf.attacks import FGM, RandomNoise, RowBudget, Softmax
    from robustcf.certificates import certified_curve, certified_radii, personal_curve
    from robustcf.files import write_arrays
    from robustcf.plots import plot_curves
    from robustcf.robustness import check_epsilons, robustness_curve
    from robustcf.runs import RunDir

    sizes = check_epsilons(epsilons or _DEFAULT_EPSILONS)
    cutoffs = tuple(sorted(set(ks or (10, 20))))
    trained = RunDir(run)
    factors, result = trained.factors(), trained.metrics()
    split = trained.split(data_dir)
    mask = result["test"]["protocol"]["masked"] if result["test"] else None
    options: dict[str, Any] = {"relative": relative, "side": side}
    curve = certified_curve(factors, split, sizes, cutoffs, mask=mask, bound=bound, **options)
    radii = certified_radii(factors, split, (1, *cutoffs), mask=mask, bound=bound, **options)
    attacked, control = (
        robustness_curve(factors, split, attack, sizes, cutoffs, mask=mask)
        for attack in (
            FGM(Softmax(trained.learnt_pairs(split)), RowBudget(), **options),
            RandomNoise(RowBudget(), seed=seed, **options),
        )
    )
    beside = {"fgm_softmax": attacked, "random": control}
    if personal:
        beside["personal"] = personal_curve(factors, split, sizes, cutoffs, mask=mask, **options)

    name = "-".join(
        [bound, *(["relative"] if relative else []), *([side] if side != "both" else [])]
    )
    folder, label = trained.path / "certificates", f"{result['model']}, {result['reg']}"
    shown = f"ndcg@{cutoffs[0]}"
    target = curve.save(folder / f"{name}.json")
    radii_file = folder / f"{name}-radii.npz"
    write_arrays(
        radii_file, {"users": radii.users, **{f"top{k}": r for k, r in radii.radii.items()}}
    )
    drawn = {label: attacked}
    if personal:
        drawn[f"{label}, each user alone"] = beside["personal"]
    picture = plot_curves(
        drawn,
        folder / f"{name}.png",
        metric=shown,
        controls={label: control},
        certificates={label: curve},
    )
    data = {
        "run": str(trained.path),
        "bound": bound,
        **curve.as_dict(),
        "radii": radii.as_dict(),
        **{
            kind: {metric: other[metric].tolist() for metric in curve.values}
            for kind, other in beside.items()
        },
        "file": str(target),
        "radii_file": str(radii_file),
        "picture": str(picture),
    }
    text = _text(curve, beside, radii, cutoffs)
    return Report(data, f"{text}\n{curve.protocol}\npicture: {picture}")


def _text(
    curve: RobustnessCurve,
    beside: Mapping[str, RobustnessCurve],
    radii: CertifiedRadii,
    ks: tuple[int, ...],
) -> str:
    first, last = ks[0], ks[-1]
    certified = (f"ndcg@{first}", f"mrr@{first}", f"recall@{last}")
    others = (f"{kind.replace('_', ' ')} {certified[0]}" for kind in beside)
    header = ("epsilon", *(f"certified {metric}" for metric in certified), *others)
    rows = [
        (
            f"{size:g}",
            *(f"{curve[metric][n]:.4f}" for metric in certified),
            *(f"{other[certified[0]][n]:.4f}" for other in beside.values()),
        )
        for n, size in enumerate(curve.epsilons)
    ]
    units = "in median row norms" if curve.relative else "absolute"
    lines = [table(header, rows, left=())]
    for name, found in radii.as_dict().items():
        middle = "unbounded" if found["median"] is None else f"{found['median']:.3g}"
        what = "the first item" if name == "top1" else f"the set of the {name.replace('p', 'p ')}"
        lines.append(f"{what} stays below epsilon {middle} for half of the users")
    exact = ", exact for every pair of items" if radii.bound == "tight" else ""
    moved = "users and items" if curve.side == "both" else curve.side
    lines.append(f"{radii.bound} bound{exact}; row budget on {moved}, {units}")
    return "\n".join(lines)
