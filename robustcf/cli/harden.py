"""``robustcf harden``: write embeddings that are more robust."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.options import out_option, serve_option
from robustcf.cli.reporting import Report, command, numbers, say, shows_progress, table
from robustcf.cli.signatures import options
from robustcf.cli.sources import Source, takes_source
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.recommender import Recommender

_WARNING = (
    "for exact search in full precision: cosine search gets far worse, 4 bits and IVF may get "
    "worse too; audit again with the index and precision you serve from"
)
_PRICE = {
    "overlap": "lists kept",
    "popular": "top 1 % share",
    "coverage": "coverage",
    "worst_users": "worst users",
    "tail": "tail",
    "int8": "int8",
    "int4": "int4",
    "cosine": "cosine",
}


@command()
@options("robustness.hardening:harden", "shrink_by", "rank", "by_trial")
@click.option(
    "--valid",
    metavar="FILE",
    help="Held-out pairs for --by-trial, which it implies; not those you report on.",
)
@out_option(
    "The new file, in the format of SOURCE, or .npz or .safetensors.", "FILE", required=True
)
@serve_option
@takes_source()
def harden(
    source: Source, valid: str | None, out: str, serve: str, by_trial: bool, **how: Any
) -> Report:
    """Write embeddings of the same quality that hold better under attack.

    By default the balanced gauge is applied, which changes no ranking. --rank keeps fewer
    directions and --shrink-by shortens them; both change rankings.

    --by-trial or --valid tries several of these settings. Of the candidates that keep 97 % of
    NDCG@10, the best one under attack is written, and a table says what each costs.

    If SOURCE is a run directory, --out names a .safetensors or .npz file; with --serve fold-in, a
    folder.
    """
    if Path(out).exists():
        raise InputError(f"{out} exists already: choose another name")
    if valid is not None and source.interactions is None and not source.is_run:
        raise click.UsageError("--valid needs --interactions")
    model = source.open(valid)
    if serve != "stored":
        model = model.serving(serve)
    if by_trial or valid is not None:
        given = [name for name in how if how[name]]
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise click.UsageError(f"--by-trial chooses {option} itself: leave {option} out")
        return _by_trial(model if valid is not None else judged(model), out)
    from robustcf.robustness import harden as hardened

    _write(hardened(model, **how), out)
    same = "same rankings" if not any(how.values()) else "other rankings"
    text = f"the balanced gauge: {same}, nothing measured\n{_WARNING}\nwritten: {out}"
    return Report({"out": out, "chosen": None, "warning": _WARNING}, text)


def _write(model: Recommender, out: str) -> None:
    """Write the factors; without stored users, the recommender as a folder."""
    if model.histories is None:
        model.export(out)
    else:
        model.save(out)


def judged(model: Recommender) -> Recommender:
    """Return the model judged by pairs that it may be chosen by."""
    from robustcf.robustness.hardening import judged_to_choose

    if not model.has_interactions:
        raise InputError("--by-trial needs the training pairs: give --interactions PAIRS")
    return judged_to_choose(model)


def _by_trial(model: Recommender, out: str) -> Report:
    from robustcf.auditing.audit import import_caveats
    from robustcf.robustness import harden_by_trial
    from robustcf.robustness.hardening import PROMISED, SIZES

    step = (lambda name: say(f"trying: {name}")) if shows_progress() else None
    best, tried, chosen = harden_by_trial(model, step=step)
    _write(best, out)
    first = tried[0]
    better = [trial for trial in tried if trial.clean > first.clean]
    header = ("", "clean", *(f"attacked, {size:g}" for size in SIZES), f"certified, {PROMISED:g}")
    rows, prices = [], []
    for trial in tried:
        mark = ("*" if trial == chosen else " ") + ("+" if trial in better else " ")
        rows.append(
            (f"{mark} {trial.name}", *numbers([trial.clean, *trial.joint, trial.certified]))
        )
        prices.append((f"{mark} {trial.name}", *(f"{getattr(trial, n):.3f}" for n in _PRICE)))
    by = "the training pairs" if model.part == "train" else "held-out pairs to choose by"
    found = [f"{trial.name} ({trial.clean:.4f})" for trial in better]
    lines = [
        *(f"! {caveat}" for caveat in import_caveats(model)),
        f"NDCG@10, judged by {by}; joint attack, sizes in lengths of each row; * is the choice, + "
        "is also better without attack",
        table(header, rows),
        "what it costs: share of the lists of 'as it is' that are kept; share of places of the "
        "most popular 1 %; coverage; NDCG@10 of the worst third of users over that of all; "
        "exposure of the tail over its pairs; share of the candidate's top 10 kept with int8, int4 "
        "and cosine",
        table(("", *_PRICE.values()), prices),
        f"also better than 'as it is' ({first.clean:.4f}) without attack: {', '.join(found)}"
        if found
        else "no candidate is better than 'as it is' without attack",
        _WARNING,
        f"written: {out} ({chosen.name})",
    ]
    facts = {
        "out": out,
        "chosen": chosen.as_dict(),
        "tried": [trial.as_dict() for trial in tried],
        "better_clean": [trial.name for trial in better],
        "overlap@10": chosen.overlap,
        "judged_by": model.part,
        "warning": _WARNING,
    }
    return Report(facts, "\n".join(lines))
