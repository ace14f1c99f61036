"""``robustcf audit`` and ``robustcf report``: what is safe about embeddings, on a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from robustcf._distributed import job
from robustcf.cli.kinds import FINITE, FiniteRange
from robustcf.cli.options import out_option, refuse
from robustcf.cli.reporting import Report, command, shows_progress, table
from robustcf.cli.signatures import options
from robustcf.cli.sources import Opener, Source, is_run, run_options, takes_source
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.auditing import Audit

_attack_option = click.option(
    "--no-attack", is_flag=True, help="Leave out the attack and the certificate."
)


@command()
@click.option("--test", metavar="FILE", help="Held-out pairs to judge by.")
@click.option("--against", metavar="OTHER", help="Another version, to compare lists with.")
@out_option("Write the page here, one HTML file.", "FILE")
@click.option("--only", multiple=True, metavar="CHECK...", help="Run these checks alone.")
@_attack_option
@options("auditing.audit:audit", "size", size=FiniteRange(0, min_open=True))
@click.option("--thresholds", metavar="FILE", help="Other thresholds, a TOML file.")
@click.option(
    "--fail-on", multiple=True, metavar="CHECK...", help="Exit with 1 if one of these fails."
)
@click.option(
    "--fail-under",
    multiple=True,
    metavar="CHECK=VALUE...",
    help="Exit with 1 if the number of a check is below (where lower is better: above) this.",
)
@options("auditing.audit:audit", "seed")
@takes_source()
def audit(
    source: Source,
    test: str | None,
    against: str | None,
    out: str | None,
    only: tuple[str, ...],
    no_attack: bool,
    size: float,
    thresholds: str | None,
    fail_on: tuple[str, ...],
    fail_under: tuple[str, ...],
    seed: int,
) -> Report:
    """Check the embeddings of any recommender: what is safe about them, and what is not.

    SOURCE is what 'robustcf import' takes, with --interactions, or a run directory. Each check has
    a verdict, its number and what to do; --out writes them as a page. Checks that the inputs do not
    allow are skipped, with the reason.
    """
    from robustcf.auditing import CHECKS, thresholds_from, write_page
    from robustcf.auditing import audit as run_audit

    if no_attack:
        refuse("has no effect with --no-attack", "size")
    checks = thresholds_from(thresholds) if thresholds else CHECKS
    floors = dict(_floor(word) for word in fail_under)
    _known((*only, *fail_on, *floors))
    if source.interactions is None and not source.is_run:
        raise InputError(
            f"{' '.join(source.words)} holds embeddings and no pairs: give those they were fit on "
            "with --interactions PAIRS"
        )
    model = source.open(test)
    found = run_audit(
        model,
        against=None if against is None else source.other_version(against, model),
        attack=not no_attack,
        size=size,
        checks=checks,
        only=only or None,
        source=source.describe(model),
        seed=seed,
        progress=shows_progress(),
    )
    # Its pictures are files for a moment: nothing that other ranks could share.
    page = None if out is None or not job().first else str(write_page(found, out))
    text = _text(found) + (f"\npage: {page}" if page else "")
    failed = "; ".join(found.failures(fail_on, floors))
    return Report({**found.as_dict(), "page": page, "failed": failed or None}, text, failed)


@command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@out_option("The page, one HTML file.", "FILE", required=True)
@_attack_option
@run_options
def report(runs: tuple[str, ...], out: str, no_attack: bool, opener: Opener) -> Report:
    """The page of an audit for runs of our own, or for all runs of a sweep."""
    from robustcf.auditing import audit as run_audit
    from robustcf.auditing import write_page

    folders = [folder for run in runs for folder in _run_folders(run)]
    audits = []
    for folder in folders:
        model = opener.recommender(folder)
        words = f"run {folder}, {model.split.name}"
        audits.append(run_audit(model, attack=not no_attack, source=words))
    page = str(write_page(audits, out))
    text = "\n\n".join(f"{one.source}\n{_text(one)}" for one in audits)
    data = {"page": page, "runs": [one.as_dict() for one in audits]}
    return Report(data, f"{text}\npage: {page}")


def _run_folders(path: str) -> list[str]:
    """A run, or the runs of a sweep, which lie below its folder."""
    if is_run(path):
        return [path]
    found = sorted(str(record.parent) for record in Path(path).glob("**/recommender.json"))
    if not found:
        raise InputError(
            f"{path} is neither a run nor the folder of a sweep: no recommender.json in it"
        )
    return found


def _text(found: Audit) -> str:
    rows = [
        (
            finding.verdict,
            finding.check.name,
            "" if finding.number is None else f"{finding.number:.4g}",
            finding.sentence,
        )
        for finding in found.findings
    ]
    lines = [*(f"! {caveat}" for caveat in found.caveats)]
    lines.append(table(("verdict", "check", "number", ""), rows, left=(0, 1, 3)))
    advice = [f"{f.check.name}: {f.advice}" for f in found.findings if f.advice]
    return "\n".join([*lines, *advice, f"verdict: {found.verdict}"])


def _floor(word: str) -> tuple[str, float]:
    name, _, value = word.partition("=")
    try:
        return name, float(FINITE.convert(value, None, None))
    except click.BadParameter:
        raise click.UsageError(
            f"--fail-under: expected CHECK=NUMBER with a finite number, got {word!r}"
        ) from None


def _known(names: tuple[str, ...]) -> None:
    from robustcf.auditing.checks import CHECKS, unknown_check

    for name in names:
        if name not in CHECKS:
            raise click.UsageError(str(unknown_check(name)))
