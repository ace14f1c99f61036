"""``robustcf certify``: what a trained run keeps under any attack, next to what attacks take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from robustcf.cli.certify_fakes import certify_fakes
from robustcf.cli.opening import OpenedRun, opens_run
from robustcf.cli.options import cutoffs_option, row_unit_options, side_option, threads_option
from robustcf.cli.reporting import Report, reports, say_capped, table
from robustcf.cli.words import FINITE, SEED, ListCommand

if TYPE_CHECKING:
    from robustcf.robustness import CertifiedRadii, RobustnessCurve


@click.command(cls=ListCommand)
@click.option(
    "--epsilons",
    type=FINITE,
    multiple=True,
    metavar="E...",
    help="Sizes, ascending (default 0 0.002 0.005 0.01 0.02 0.05 0.1).",
)
@click.option(
    "--fakes",
    type=click.IntRange(0),
    multiple=True,
    metavar="N...",
    help="Of a vote ('train --model vote'): certify against so many fake accounts, ascending.",
)
@row_unit_options
@side_option
@cutoffs_option
@click.option(
    "--bound",
    type=click.Choice(["tight", "plain"]),
    default="tight",
    show_default=True,
    help="tight: exact radius for each pair of items; plain: simpler, weaker bound.",
)
@click.option(
    "--personal",
    is_flag=True,
    help="Also run the worst attack on each user alone (slower): the true value lies between it "
    "and the certificate.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the noise.")
@opens_run
@threads_option
@reports
def certify(
    opened: OpenedRun,
    epsilons: tuple[float, ...],
    fakes: tuple[int, ...],
    unit: str,
    side: str,
    ks: tuple[int, ...],
    bound: str,
    personal: bool,
    seed: int,
) -> Report:
    """Certify the rankings of RUN when every row of its factors moves by at most epsilon.

    No attack takes any user below the certified lower bounds. A quick attack by somebody who knows
    the labels (fgm on softmax; 'robustcf attack' has the strongest) and the random control of the
    same sizes are shown next to them. Writes JSON, radii of all users and a
    picture into RUN/robustness.

    With --fakes, RUN is that of a vote: so many fake accounts, whatever they hold, do not take it
    below the certified lower bounds. Writes JSON, values of all users and a picture into RUN/fakes.
    """
    if fakes:
        _refuse_options_of_embeddings()
        return certify_fakes(opened, fakes, ks or (10, 20))
    from robustcf._checks import check_cutoffs, check_epsilons
    from robustcf._io.files import write_arrays
    from robustcf.experiments.records import results_folder
    from robustcf.robustness import Threat, certified_radii, measure
    from robustcf.robustness.plots import plot_curves
    from robustcf.robustness.table import CERTIFIED_SIZES

    sizes = check_epsilons(epsilons or CERTIFIED_SIZES)
    cutoffs = check_cutoffs(ks or (10, 20))
    threat = Threat(unit=unit, side=side, knowledge="labels")
    model = opened.recommender()
    say_capped(cutoffs, model.factors.n_items)
    if model.part == "train":  # an imported run without test pairs: those it was fit on count
        threat = dataclasses.replace(threat, knowledge="data")
    result = measure(model, "certificate", threat, sizes, cutoffs, bound=bound)
    radii = certified_radii(model, threat, (1, *cutoffs), bound=bound)
    attacked = measure(model, "fgm-softmax", threat, sizes, cutoffs, seed=seed)
    others: dict[str, RobustnessCurve] = {"fgm_softmax": attacked.curve}
    if attacked.control is not None:
        others["random"] = attacked.control
    if personal:
        others["personal"] = measure(model, "personal", threat, sizes, cutoffs).curve

    saved, replaced = result.save(results_folder(Path(opened.path)))
    radii_file = saved.with_name(f"{saved.stem}-radii.npz")
    write_arrays(
        radii_file, {"users": radii.users, **{f"top{k}": r for k, r in radii.radii.items()}}
    )
    label, curve = model.label, result.curve
    drawn = {label: attacked.curve}
    if personal:
        drawn[f"{label}, each user alone"] = others["personal"]
    picture = plot_curves(
        drawn,
        saved.with_name(f"{saved.stem}-seed{seed}.png" if seed else f"{saved.stem}.png"),
        metric=result.metric,
        controls={label: others["random"]},
        certificates={label: curve},
    )
    data = {
        "run": opened.path,
        **result.as_dict(),
        "bound": radii.bound,
        "radii": radii.as_dict(),
        **{
            kind: {metric: other[metric].tolist() for metric in curve.values}
            for kind, other in others.items()
        },
        "file": str(saved),
        "replaced": replaced,
        "radii_file": str(radii_file),
        "picture": str(picture),
    }
    lines = [_text(curve, others, radii, cutoffs), str(curve.protocol)]
    if replaced:
        lines.append(f"replaced an earlier result of the same settings: {saved}")
    return Report(data, "\n".join([*lines, f"picture: {picture}"]))


def _refuse_options_of_embeddings() -> None:
    """Raise for what was given besides --fakes and means embeddings: it would be ignored."""
    context = click.get_current_context()
    names = ("epsilons", "relative", "absolute", "side", "bound", "personal", "seed")
    typed = click.core.ParameterSource.COMMANDLINE
    given = [f"--{name}" for name in names if context.get_parameter_source(name) is typed]
    if given:
        raise click.UsageError(
            f"--fakes and {' and '.join(given)} exclude each other: one is about accounts, the "
            "other about embeddings"
        )


def _text(
    curve: RobustnessCurve,
    others: Mapping[str, RobustnessCurve],
    radii: CertifiedRadii,
    ks: tuple[int, ...],
) -> str:
    first, last = ks[0], ks[-1]
    certified = (f"ndcg@{first}", f"mrr@{first}", f"recall@{last}")
    columns = (f"{kind.replace('_', ' ')} {certified[0]}" for kind in others)
    header = ("epsilon", *(f"certified {metric}" for metric in certified), *columns)
    rows = [
        (
            f"{size:g}",
            *(f"{curve[metric][n]:.4f}" for metric in certified),
            *(f"{other[certified[0]][n]:.4f}" for other in others.values()),
        )
        for n, size in enumerate(curve.epsilons)
    ]
    lines = [table(header, rows, left=())]
    for name, found in radii.as_dict().items():
        middle = "unbounded" if found["median"] is None else f"{found['median']:.3g}"
        what = "the first item" if name == "top1" else f"the set of the {name.replace('p', 'p ')}"
        lines.append(f"median certified radius of {what}: {middle}")
    exact = ", exact for every pair of items" if radii.bound == "tight" else ""
    moved = "users and items" if curve.threat.side == "both" else curve.threat.side
    units = curve.threat.unit_words
    lines.append(f"{radii.bound} bound{exact}; row budget on {moved}, {units}")
    return "\n".join(lines)
