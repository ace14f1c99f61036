"""``robustcf audit`` and ``robustcf report``: checks of embeddings, on a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf._distributed import job
from robustcf.cli.kinds import FINITE, FiniteRange
from robustcf.cli.options import out_option, refuse
from robustcf.cli.reporting import Report, command, shows_progress
from robustcf.cli.signatures import options
from robustcf.cli.sources import Opener, Source, is_run, run_options, takes_source
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.recommender import Recommender

_attack_option = click.option(
    "--no-attack", is_flag=True, help="Leave out the attack and the certificate."
)


@command()
@click.option("--test", metavar="FILE", help="Held-out pairs to judge by.")
@click.option(
    "--against",
    metavar="OTHER",
    help="Another version of the embeddings to compare lists with, or LAST.json, an earlier audit.",
)
@out_option("Write the page here, one HTML file.", "FILE")
@click.option("--card", metavar="FILE", help="Write a model card here, in Markdown.")
@click.option("--mlflow", is_flag=True, help="Log numbers and page into the active MLflow run.")
@options("auditing.audit:audit", "serve", "only")
@click.option("--user-groups", metavar="FILE", help="Groups of users: CSV of user, group.")
@click.option("--item-groups", metavar="FILE", help="Groups of items: CSV of item, group.")
@_attack_option
@options("auditing.audit:audit", "size", size=FiniteRange(0, min_open=True))
@click.option("--thresholds", metavar="FILE", help="Other thresholds, a TOML file.")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="CHECK...",
    help="Exit with 1 if one of these checks fails; worse: if any check is worse than in "
    "LAST.json, beyond the noise.",
)
@click.option(
    "--fail-under",
    multiple=True,
    metavar="CHECK=VALUE...",
    help="Exit with 1 if the number of a check is below VALUE; above it, where lower is better.",
)
@options("auditing.audit:audit", "seed")
@takes_source()
def audit(
    source: Source, test: str | None, against: str | None, out: str | None, **given: Any
) -> Report:
    """Check the embeddings of any recommender.

    SOURCE is a run directory, or a file that 'robustcf import' reads, with --interactions. Each
    check has a number, a verdict and advice; --out writes them as a page. The overall verdict is
    about exact search, or about the ways that --serve names. A check whose inputs are missing is
    skipped, and the reason is given.
    """
    from robustcf.auditing import CHECKS, thresholds_from, write_page
    from robustcf.auditing import audit as run_audit
    from robustcf.auditing.audit import SCHEMA
    from robustcf.auditing.checks import serving_checks, unknown_check
    from robustcf.auditing.earlier import read_audit

    if given["no_attack"]:
        refuse("has no effect with --no-attack", "size")
    checks = thresholds_from(given["thresholds"]) if given["thresholds"] else CHECKS
    known = serving_checks(given["serve"], checks)
    floors = dict(_floor(word) for word in given["fail_under"])
    earlier = against is not None and Path(against).suffix.lower() == ".json"
    named = [name for name in given["fail_on"] if name != "worse" or not earlier]
    if "worse" in named:
        raise click.UsageError("--fail-on worse needs --against LAST.json")
    for name in (*given["only"], *named, *floors):
        if name not in known:
            raise click.UsageError(str(unknown_check(name)))
    before = read_audit(against, SCHEMA) if against is not None and earlier else None
    model = source.open(test)
    by, caveats = _groups(model, given["user_groups"], given["item_groups"])
    found = run_audit(
        model,
        serve=given["serve"],
        by=by,
        against=None if against is None or earlier else source.other_version(against, model),
        compare_with=before,
        attack=not given["no_attack"],
        size=given["size"],
        checks=checks,
        only=given["only"] or None,
        caveats=caveats,
        source=source.describe(model),
        seed=given["seed"],
        progress=shows_progress(),
    )
    written: dict[str, str | None] = {"page": None, "card": None, "logged": None}
    if job().first:
        if out is not None:
            written["page"] = str(write_page(found, out))
        if given["card"] is not None:
            from robustcf._io.files import write_bytes

            write_bytes(Path(given["card"]), found.card().encode())
            written["card"] = given["card"]
        if given["mlflow"]:
            written["logged"] = found.log("mlflow")
    lines = [f"{name}: {place}" for name, place in written.items() if place]
    failed = "; ".join(found.failures(given["fail_on"], floors))
    data = {**found.as_dict(), **written, "failed": failed or None}
    return Report(data, "\n".join([str(found), *lines]), failed)


def _groups(model: Recommender, users: str | None, items: str | None) -> tuple[Any, list[str]]:
    """Return the groups of files with those made from the data, and caveats; None for the usual."""
    from robustcf.auditing.audit import usual_groups
    from robustcf.recommender.labels import read_groups

    by, caveats = usual_groups(model), []
    for kind, path in (("user", users), ("item", items)):
        if path is None:
            continue
        groups, unknown = read_groups(Path(path), model.index(kind))
        by.append(groups)
        if unknown:
            caveats.append(f"{path} names {unknown:,} unknown {kind}s: left out.")
    return by, caveats


@command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@out_option("The page, one HTML file.", "FILE", required=True)
@_attack_option
@run_options
def report(runs: tuple[str, ...], out: str, no_attack: bool, opener: Opener) -> Report:
    """Write the audit page of runs, or of all runs of a sweep."""
    from robustcf.auditing import audit as run_audit
    from robustcf.auditing import write_page

    audits = []
    for folder in [folder for run in runs for folder in _run_folders(run)]:
        model = opener.recommender(folder)
        words = f"run {folder}, {model.split.name}"
        audits.append(run_audit(model, attack=not no_attack, source=words))
    page = str(write_page(audits, out))
    text = "\n\n".join(f"{one.source}\n{one}" for one in audits)
    data = {"page": page, "runs": [one.as_dict() for one in audits]}
    return Report(data, f"{text}\npage: {page}")


def _run_folders(path: str) -> list[str]:
    """Return a run, or the runs below the folder of a sweep."""
    if is_run(path):
        return [path]
    found = sorted(str(record.parent) for record in Path(path).glob("**/recommender.json"))
    if not found:
        words = f"{path} is neither a run nor the folder of a sweep"
        raise InputError(f"{words}: it has no recommender.json")
    return found


def _floor(word: str) -> tuple[str, float]:
    name, _, value = word.partition("=")
    try:
        return name, float(FINITE.convert(value, None, None))
    except click.BadParameter:
        expected = "expected CHECK=NUMBER with a finite number"
        raise click.UsageError(f"--fail-under: {expected}, got {word!r}") from None
