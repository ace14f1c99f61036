"""``robustcf harden``: embeddings on which aimed perturbations do less, written back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.options import out_option, threads_option
from robustcf.cli.reporting import Report, reports, say, table
from robustcf.cli.sources import (
    Runs,
    caveats_of,
    interactions_option,
    is_run,
    open_source,
    run_options,
    source_options,
)
from robustcf.cli.words import ListCommand
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.recommender import Recommender
    from robustcf.robustness import Hardened

_WARNING = (
    "for exact search in full precision: cosine search gets far worse, 4 bits and IVF may get "
    "worse too; audit again with what you serve from"
)


@click.command(cls=ListCommand)
@click.argument("source", nargs=-1, required=True, metavar="SOURCE [ITEMS]")
@interactions_option()
@click.option(
    "--valid", metavar="FILE", help="Held-out pairs to choose by, not those you report on."
)
@out_option("The new file, in SOURCE's format.", "FILE", required=True)
@run_options
@source_options
@threads_option
@reports
def harden(
    source: tuple[str, ...],
    interactions: str | None,
    valid: str | None,
    out: str,
    how: dict[str, Any],
    opened: Runs,
) -> Report:
    """Write embeddings of the same quality that hold better under attack.

    Without --interactions: the balanced gauge, which changes no ranking. With them, fewer
    directions and shrunk ones are tried too, which do change lists: of what keeps 97 % of NDCG@10,
    the one that leaves most under attack, judged by --valid, or by the interactions themselves. A
    run directory as SOURCE gives a .safetensors file.
    """
    target = Path(out)
    if target.exists():
        raise InputError(f"{target} exists already: choose another name")
    if valid is not None and interactions is None and not is_run(source):
        raise click.UsageError("--valid needs --interactions")
    model = open_source(source, interactions, valid, how, opened, to_choose=True)
    if not model.has_interactions:
        from robustcf.robustness import harden as balanced

        balanced(model).export(target)
        text = f"the balanced gauge: same rankings, nothing measured\n{_WARNING}\nwritten: {target}"
        return Report({"out": str(target), "chosen": None, "warning": _WARNING}, text)
    from robustcf.robustness import harden_by_trial

    best, tried, chosen = harden_by_trial(model, step=_say)
    best.export(target)
    serving = _serving(model, best)
    kept = _kept(model, best)
    data = {
        "out": str(target),
        "chosen": chosen.as_dict(),
        "tried": [trial.as_dict() for trial in tried],
        "serving": serving,
        "overlap@10": kept,
        "judged_by": model.part,
        "warning": _WARNING,
    }
    return Report(data, _text(model, tried, chosen, serving, kept, target))


def _serving(before: Recommender, after: Recommender) -> dict[str, dict[str, float]]:
    """How the top lists of each hold in fewer bits and by cosine."""
    from robustcf.auditing import audit

    names = ("int8", "int4", "cosine")
    return {
        word: audit(model, only=names, attack=False).numbers
        for word, model in (("before", before), ("after", after))
    }


def _kept(before: Recommender, after: Recommender) -> float:
    """How much of a top 10 is still in it."""
    from robustcf.auditing import audit

    return audit(before, only=("churn",), against=after.factors, attack=False).numbers["churn"]


def _say(name: str) -> None:
    if sys.stderr.isatty():
        say(f"trying: {name}")


def _text(
    model: Recommender,
    tried: list[Hardened],
    chosen: Hardened,
    serving: dict[str, dict[str, float]],
    kept: float,
    target: Path,
) -> str:
    from robustcf.robustness.hardening import PROMISED, SIZES

    header = ("", "clean", *(f"attacked, {size:g}" for size in SIZES), f"certified, {PROMISED:g}")
    rows = [
        (
            f"{'* ' if trial == chosen else '  '}{trial.name}",
            f"{trial.clean:.4f}",
            *(f"{value:.4f}" for value in trial.joint),
            f"{trial.certified:.4f}",
        )
        for trial in tried
    ]
    bits = [
        (f"  {word}", *(f"{numbers[name]:.3f}" for name in ("int8", "int4", "cosine")))
        for word, numbers in serving.items()
    ]
    part = model.part
    by = "the pairs it was fit on" if part == "train" else "held-out pairs to choose by"
    return "\n".join(
        [
            *(f"! {caveat}" for caveat in caveats_of(model)),
            f"NDCG@10, judged by {by}; joint attack, sizes in median row norms",
            table(header, rows),
            f"a top 10 keeps {kept:.1%} of its items; what follows is each version for itself",
            "share of the exact top 10 that stays",
            table(("", "int8", "int4", "cosine"), bits),
            _WARNING,
            f"written: {target} ({chosen.name})",
        ]
    )
