"""``robustcf harden``: embeddings on which aimed perturbations do less, written back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf.cli.options import out_option
from robustcf.cli.reporting import Report, command, numbers, say, shows_progress, table
from robustcf.cli.sources import Source, takes_source
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.recommender import Recommender
    from robustcf.robustness import Hardened

_WARNING = (
    "for exact search in full precision: cosine search gets far worse, 4 bits and IVF may get "
    "worse too; audit again with what you serve from"
)


@command()
@click.option(
    "--valid", metavar="FILE", help="Held-out pairs to choose by, not those you report on."
)
@out_option("The new file, in SOURCE's format.", "FILE", required=True)
@takes_source()
def harden(source: Source, valid: str | None, out: str) -> Report:
    """Write embeddings of the same quality that hold better under attack.

    Without --interactions: the balanced gauge, which changes no ranking. With them, fewer
    directions and shrunk ones are tried too, which do change lists: of what keeps 97 % of NDCG@10,
    the one that leaves most under attack, judged by --valid, or by the interactions themselves. A
    run directory as SOURCE gives a .safetensors file.
    """
    if Path(out).exists():
        raise InputError(f"{out} exists already: choose another name")
    if valid is not None and source.interactions is None and not source.is_run:
        raise click.UsageError("--valid needs --interactions")
    model = source.open(valid)
    if not model.has_interactions:
        from robustcf.robustness import harden as balanced

        balanced(model).export(Path(out))
        text = f"the balanced gauge: same rankings, nothing measured\n{_WARNING}\nwritten: {out}"
        return Report({"out": out, "chosen": None, "warning": _WARNING}, text)
    from robustcf.auditing.hardened import harden_file

    if valid is None:  # never by the pairs that will be reported on
        has_valid = model.fit_on == "train" and len(model.split.valid) > 0
        model = model.judged_by("valid" if has_valid else "train")
    step = (lambda name: say(f"trying: {name}")) if shows_progress() else None
    tried, chosen, facts = harden_file(model, out, step)
    return Report({**facts, "warning": _WARNING}, _text(model, tried, chosen, facts))


def _text(
    model: Recommender, tried: list[Hardened], chosen: Hardened, facts: dict[str, Any]
) -> str:
    from robustcf.auditing.audit import alignment_caveats
    from robustcf.robustness.hardening import PROMISED, SIZES

    header = ("", "clean", *(f"attacked, {size:g}" for size in SIZES), f"certified, {PROMISED:g}")
    rows = [
        (
            f"{'* ' if trial == chosen else '  '}{trial.name}",
            *numbers([trial.clean, *trial.joint, trial.certified]),
        )
        for trial in tried
    ]
    names = ("int8", "int4", "cosine")
    bits = [
        (f"  {word}", *(f"{found[name]:.3f}" for name in names))
        for word, found in facts["serving"].items()
    ]
    by = "the pairs it was fit on" if model.part == "train" else "held-out pairs to choose by"
    kept = facts["overlap@10"]
    return "\n".join(
        [
            *(f"! {caveat}" for caveat in alignment_caveats(model)),
            f"NDCG@10, judged by {by}; joint attack, sizes in median row norms",
            table(header, rows),
            f"a top 10 keeps {kept:.1%} of its items; what follows is each version for itself",
            "share of the exact top 10 that stays",
            table(("", *names), bits),
            _WARNING,
            f"written: {facts['out']} ({chosen.name})",
        ]
    )
