"""``robustcf norm``: the two-to-infinity or one-to-two norm of a matrix in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.common import Report, reports

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
    type=float,
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
@click.option("--seed", type=int, metavar="N", help="Seed of the random vectors [default: fresh].")
@reports
def norm(file: Path, method: str, budget: int, delta: float, kind: str, seed: int | None) -> Report:
    """Estimate a norm of the matrix in FILE.

    FILE is .npy; .npz (one dense array, a scipy sparse matrix, or factors U and V of U V^T); .mtx;
    or .safetensors (one tensor, or factors U and V).
    """
    from robustcf.estimators import one_to_two, two_to_inf

    estimate = two_to_inf if kind == "two_to_inf" else one_to_two
    answer = estimate(read_matrix(file), budget, method, generator=seed, delta=delta)
    data = answer.as_dict()
    # One number on the bill: what --budget limits.
    data["products"] += data.pop("rproducts")
    return Report(data=data, text=_describe(answer, kind, delta))


def read_matrix(path: Path) -> Any:
    """The matrix in a file: an ndarray, a tensor, a scipy sparse matrix, or a ``LowRank``."""
    from robustcf.errors import InputError

    readers = {
        ".npy": _read_npy,
        ".npz": _read_npz,
        ".mtx": _read_mtx,
        ".safetensors": _read_safetensors,
    }
    if path.suffix not in readers:
        raise InputError(
            f"expected a file ending in {', '.join(readers)}, got {path.name}: convert it first"
        )
    try:
        return readers[path.suffix](path)
    except InputError:
        raise
    except Exception as problem:  # parsers raise what they like; the reader wants the file's name
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise InputError(f"{path} is no readable {path.suffix} file: {reason}") from problem


def _read_npy(path: Path) -> Any:
    import numpy as np

    return np.load(path, allow_pickle=False)


def _read_npz(path: Path) -> Any:
    import numpy as np

    with np.load(path, allow_pickle=False) as archive:
        names = set(archive.files)
        if {"format", "shape"} <= names:
            import scipy.sparse

            return scipy.sparse.load_npz(path)
        return _one_of({name: archive[name] for name in archive.files}, path)


def _read_mtx(path: Path) -> Any:
    import scipy.io

    return scipy.io.mmread(path)


def _read_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return _one_of(load_file(path), path)


def _one_of(arrays: dict[str, Any], path: Path) -> Any:
    """The only array, or the product of the factors named U and V."""
    from robustcf.errors import InputError
    from robustcf.estimators import LowRank

    if {"U", "V"} <= set(arrays):
        return LowRank(arrays["U"], arrays["V"])
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise InputError(
        f"expected one array, or factors named U and V, got {', '.join(sorted(arrays)) or 'none'} "
        f"in {path.name}: save just one"
    )


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
