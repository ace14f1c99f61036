"""``robustcf norm``: the two-to-infinity or one-to-two norm of a matrix in a file."""

from __future__ import annotations

from pathlib import Path

import click

from robustcf._io.text import counted
from robustcf.cli.kinds import Choice
from robustcf.cli.reporting import Report, command
from robustcf.cli.signatures import options, values

_METHODS = Choice(("auto", *values("estimators.api:METHODS")))


@command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options("estimators.api:two_to_inf", "method", "budget", "delta", method=_METHODS)
@click.option(
    "--norm",
    "kind",
    type=Choice(("two_to_inf", "one_to_two")),
    default="two_to_inf",
    show_default=True,
    help="Largest norm of a row, or of a column.",
)
@click.option("--seed", type=int, metavar="N", help="Seed of the random vectors [default: random].")
def norm(file: Path, method: str, budget: int, delta: float, kind: str, seed: int | None) -> Report:
    """Estimate a norm of the matrix in FILE.

    FILE is .npy; .npz (one dense array, a scipy sparse matrix, or factors U and V of U V^T); .mtx;
    or .safetensors (one tensor, or factors U and V).
    """
    from robustcf.estimators import one_to_two, read_matrix, two_to_inf

    rows = kind == "two_to_inf"
    estimate = two_to_inf if rows else one_to_two
    answer = estimate(read_matrix(file), budget, method, generator=seed, delta=delta)
    data = answer.as_dict()
    data["products"] += data.pop("rproducts")  # the number that --budget limits
    name, side = ("||A||_2->inf", "row") if rows else ("||A||_1->2", "column")
    sure = f"between {answer.lower:.8g} and {answer.upper:.8g}"
    if answer.certified:
        sure = "exact"
    if not answer.certified or answer.method != "exact":
        sure += f" with probability {1 - delta:g}"
        sure += f"; not certain: --budget {answer.enough} would be" if answer.enough else ""
    where = "an empty matrix" if answer.row is None else f"{side} {answer.row}"
    note = "" if answer.witness else f" (not the norm of that {side})"
    how = f"{sure}; method {answer.method}, {counted(data['products'], 'product')}"
    return Report(data, f"{name} = {float(answer):.8g}{note}, {where}\n{how}")
