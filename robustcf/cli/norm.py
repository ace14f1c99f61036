"""``robustcf norm``: the two-to-infinity or one-to-two norm of a matrix in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from robustcf.cli.options import threads_option
from robustcf.cli.reporting import Report, reports
from robustcf.cli.words import FINITE

if TYPE_CHECKING:
    from robustcf.estimators import NormEstimate

# Kept here as well as in robustcf.estimators, so that --help need not load torch; a test compares.
METHODS = (
    *("auto", "exact", "save", "sketch", "rsvd_sketch", "xrownorm", "xnysdiag", "twinest"),
    *("twinest_pp", "rademacher_averaging", "adaptive_power"),
)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="auto",
    show_default=True,
    help="How to estimate; auto is exact where that is cheaper, else save.",
)
@click.option(
    "--budget",
    type=int,
    default=50,
    show_default=True,
    metavar="N",
    help="Products with the matrix and its transpose, in all.",
)
@click.option(
    "--delta",
    type=FINITE,
    default=0.05,
    show_default=True,
    metavar="X",
    help="The upper bound may fail with this probability.",
)
@click.option(
    "--norm",
    "kind",
    type=click.Choice(("two_to_inf", "one_to_two")),
    default="two_to_inf",
    show_default=True,
    help="Largest norm of a row, or of a column.",
)
@click.option("--seed", type=int, metavar="N", help="Seed of the random vectors [default: random].")
@threads_option
@reports
def norm(file: Path, method: str, budget: int, delta: float, kind: str, seed: int | None) -> Report:
    """Estimate a norm of the matrix in FILE.

    FILE is .npy; .npz (one dense array, a scipy sparse matrix, or factors U and V of U V^T); .mtx;
    or .safetensors (one tensor, or factors U and V).
    """
    from robustcf.estimators import one_to_two, read_matrix, two_to_inf

    estimate = two_to_inf if kind == "two_to_inf" else one_to_two
    answer = estimate(read_matrix(file), budget, method, generator=seed, delta=delta)
    data = answer.as_dict()
    # One number on the bill: what --budget limits.
    data["products"] += data.pop("rproducts")
    return Report(data=data, text=_describe(answer, kind, delta))


def _describe(answer: NormEstimate, kind: str, delta: float) -> str:
    name, side = ("||A||_2->inf", "row") if kind == "two_to_inf" else ("||A||_1->2", "column")
    products = answer.products + answer.rproducts
    if answer.certified:
        sure = "exact" if answer.method == "exact" else f"exact with probability {1 - delta:g}"
    else:
        sure = f"between {answer.lower:.8g} and {answer.upper:.8g} with probability {1 - delta:g}"
    where = "an empty matrix" if answer.row is None else f"{side} {answer.row}"
    note = "" if answer.witness else f" (not the norm of that {side})"
    return (
        f"{name} = {float(answer):.8g}{note}, {where}\n{sure}; "
        f"method {answer.method}, {products} product{'' if products == 1 else 's'}"
    )
