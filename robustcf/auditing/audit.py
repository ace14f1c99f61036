"""audit: run the checks that the inputs allow; the others are skipped with the reason."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf._checks import check_number
from robustcf._io.progress import bar, shows
from robustcf._io.text import aligned, rows_table, wrapped
from robustcf._runtime import threads_used
from robustcf.auditing import earlier, reference
from robustcf.auditing.checks import CHECKS, SERVING, serving_checks, unknown_check
from robustcf.auditing.findings import ORDER, Check, Finding, Verdict
from robustcf.auditing.subject import SIZE, Subject
from robustcf.factors import Factors
from robustcf.recommender import Recommender, check_recommender

if TYPE_CHECKING:
    import pandas as pd

    from robustcf.robustness.measuring import Result

# Of the JSON object: raised when a key changes its meaning or is removed.
SCHEMA = 2
_HEADER = ("verdict", "check", "number", "")
_SERVED = ("way", "overlap@10", "recall@10", "bytes per item row", "CPU microseconds per query")
_WORDS = {
    "pass": "no check found a problem",
    "warn": "some checks need attention",
    "fail": "some checks failed",
    "info": "no check has a threshold",
    "skipped": "no check could be run",
}


def import_caveats(model: Recommender) -> list[str]:
    """Return caveats of the import: a skipped alignment check, left-out pairs, ratings."""
    facts = model.training or {}
    reason = facts.get("alignment")
    said = [f"The alignment check was skipped although {reason}."] if reason else []
    return [*said, *(f"{text[:1].upper()}{text[1:]}." for text in facts.get("caveats", ()))]


def usual_groups(model: Recommender) -> list[Any]:
    """Return the groups that can be made from the interactions, by name."""
    if not model.has_interactions:
        return []
    timed = model.known.timestamps is not None
    return ["activity", "popularity", *(["time"] if timed else [])]


@dataclass(frozen=True, eq=False)
class Audit:
    """All findings of an audit, in the order of the page.

    ``results`` are those of ``attack`` and ``certificate``, where they were run; ``curves`` is what
    the picture draws; ``compared`` the changes since an earlier audit; the rest is as in
    :func:`audit`.
    """

    model: Recommender
    findings: Sequence[Finding]
    caveats: Sequence[str] = ()
    results: Mapping[str, Result] = field(default_factory=dict)
    source: str = ""
    serve: Sequence[str] = ("exact",)
    curves: Sequence[Mapping[str, Any]] = ()
    compared: Sequence[Mapping[str, Any]] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        found = {finding.verdict for finding in self.findings}
        return next((verdict for verdict in ORDER if verdict in found), "skipped")

    @property
    def numbers(self) -> dict[str, float]:
        """Check -> its number, for those that were run."""
        return {f.check.name: f.number for f in self.findings if f.number is not None}

    @property
    def serving(self) -> list[list[str]]:
        """How it could be served: the rows of a table, see the documentation."""
        return [
            [f.check.name, *(_cell(f.details.get(name)) for name in _MEASURED)]
            for f in self.findings
            if f.check.group == SERVING and f.number is not None
        ]

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if name in (finding.check.name, finding.check.name.partition(":")[0]):
                return finding
        raise unknown_check(name)

    def failures(self, names: Collection[str], floors: Mapping[str, float]) -> list[str]:
        """Return the reasons why an audit does not pass, one clause each.

        The checks of ``names`` must run and not fail, whether or not the verdict is about them;
        ``worse`` stands for no check worse than in the earlier audit. ``floors`` are the least
        numbers of checks, or the largest where lower is better.
        """
        reasons = []
        ran = {name for f in self.findings for name in (f.check.name, f.check.name.split(":")[0])}
        for name in names:
            if name == "worse":
                reasons += [row["sentence"] for row in self.compared if row["worse"]]
            elif name not in ran:
                reasons.append(f"{name} was not run")
            elif (number := self[name].number) is None:
                reasons.append(f"{name} could not be run: {self[name].sentence}")
            elif self[name].check.limit.verdict(number) == "fail":
                reasons.append(f"{name} failed: {self[name].sentence}")
        for name, floor in floors.items():
            number = self[name].number if name in ran else None
            if number is None:
                reasons.append(f"{name} has no number")
            elif (number < floor) if self[name].check.limit.higher_is_better else (number > floor):
                side = "below" if number < floor else "above"
                reasons.append(f"{name} is {number:.4g}, {side} {floor:g}")
        return reasons

    def save(self, path: str | Path) -> Path:
        """Write the page of the audit, one HTML file, and return its path."""
        from robustcf.auditing.page import write_page  # which imports this module

        return write_page(self, path)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per check: verdict, number and sentence."""
        import pandas as pd  # slow to import

        rows = [(f.verdict, f.check.name, f.number, f.sentence) for f in self.findings]
        return pd.DataFrame(rows, columns=["verdict", "check", "number", "sentence"])

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (f.verdict, f.check.name, "" if f.number is None else f"{f.number:.4g}", f.sentence)
            for f in self.findings
            if f.check.group != SERVING or f.verdict != "info"
        ]

    def __repr__(self) -> str:
        counts = Counter(finding.verdict for finding in self.findings)
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict])
        return f"Audit({self.verdict}: {told})"

    def __str__(self) -> str:
        lines = [*(wrapped(f"! {caveat}", 2) for caveat in self.caveats)]
        lines.append(aligned(_HEADER, self._rows(), left=(0, 1, 3)))
        if self.serving:
            lines += ["", "how you could serve it", aligned(_SERVED, self.serving)]
        said = [f"{f.check.name}: {f.advice}" for f in self.findings if f.advice]
        changed = [row["sentence"] for row in self.compared if row["worse"] or row["better"]]
        said += changed
        if self.compared and not changed:
            said.append(f"compared with the earlier audit: {len(self.compared)} numbers unchanged")
        return "\n".join([*lines, *map(wrapped, said), f"verdict, {self._about}: {self.verdict}"])

    @property
    def _about(self) -> str:
        return f"served by {' and '.join(self.serve).replace('exact', 'exact search')}"

    def _repr_html_(self) -> str:
        caption = "; ".join((f"verdict, {self._about}: {self.verdict}", *self.caveats))
        return rows_table(_HEADER, self._rows(), caption)

    def card(self) -> str:
        """Return a model card in Markdown, see :meth:`robustcf.Recommender.card`."""
        from robustcf.auditing.sharing import card  # which imports this module

        return card(self.as_dict())

    def log(self, to: str = "mlflow") -> str:
        """Log the numbers and the page into the active run of ``mlflow`` or ``wandb``."""
        from robustcf.auditing.sharing import log  # which imports this module

        return log(self, to)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; the schema is in the documentation."""
        model, has = self.model, self.model.has_interactions
        checks = []
        for finding in self.findings:
            told = reference.words(finding, model.label)
            checks.append({**finding.as_dict(), "reference": told})
        return {
            "schema": SCHEMA,
            "label": model.label or "embeddings",
            "verdict": self.verdict,
            "words": _WORDS[self.verdict],
            "serve": list(self.serve),
            "source": self.source,
            "caveats": list(self.caveats),
            "subject": {
                "users": model.n_users,
                "items": model.n_items,
                "dim": model.factors.dim,
                "fixed": list(model.fixed),
                "pairs": len(model.known) if has else None,
                "held_out": len(model.split.test) if has else None,
                "judged_by": model.part if has else None,
                "data": model.split.name if has else None,
            },
            "checks": checks,
            "serving": {"header": list(_SERVED), "rows": self.serving},
            "curves": [dict(curve) for curve in self.curves],
            "compared": [dict(row) for row in self.compared],
        }


_MEASURED = ("overlap@10", "recall@10", "bytes per item row", "microseconds per query")


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value <= 1 else f"{value:,.0f}"


def audit(
    model: Recommender,
    *,
    serve: Sequence[str] = (),
    by: Any = None,
    against: Factors | None = None,
    compare_with: Mapping[str, Any] | None = None,
    attack: bool = True,
    size: float = SIZE,
    checks: Mapping[str, Check] = CHECKS,
    only: Sequence[str] | None = None,
    caveats: Sequence[str] = (),
    source: str = "",
    seed: int = 0,
    progress: bool | None = None,
    threads: int | None = None,
) -> Audit:
    """Check embeddings for common problems.

    Args:
        model: embeddings; with their training pairs and, for quality, held-out pairs.
        serve: ways of serving that the verdict is about: exact (default), bfloat16, int8, int4, pq,
            cosine, hnsw, ivf, with parameters as in ``hnsw:links=16,ef=64``, or joined as in
            ``int8+hnsw``. Other ways are measured without a verdict.
        by: groups, see :meth:`robustcf.Recommender.groups`; None: activity, popularity and, where
            there are times, new users and items.
        against: another version of the same embeddings, same ids.
        compare_with: ``as_dict()`` of an earlier audit.
        attack: whether to run the headline attack and the certificate, which take most of the time.
        size: size of the attack, in lengths of each row.
        checks: checks with their thresholds, see :func:`robustcf.auditing.thresholds_from`.
        only: names of the checks to run; None for all.
        caveats: sentences on what could void the findings.
        source: origin of the embeddings, in words.
        seed: seed of samples and random directions.
        progress: whether to show a bar; None: in a terminal and in a notebook.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the cores that may be used.

    Cost: a dozen full rankings of all users, or of 20,000 where there are more than 2 * 10^9
    scores; with the attack, the cost of ``robustcf attack`` at one size.

    Example:
        >>> import torch
        >>> from robustcf.data import checkerboard
        >>> parity = torch.eye(2)[torch.arange(30) % 2]
        >>> found = audit(Recommender(parity[:20], parity, checkerboard()), attack=False)
        >>> found["popularity"].verdict, found["attack"].verdict
        ('pass', 'skipped')
    """
    check_recommender(model)
    _ = model.factors  # an error for kinds without them
    check_number("size", size, positive=True)
    ways = tuple(dict.fromkeys(serve)) or ("exact",)
    every = serving_checks(ways, checks)
    for name in only or ():
        if name not in every:
            raise unknown_check(name)
    groups = model.groups(usual_groups(model) if by is None else by)
    subject = Subject(model, seed, against, attack, size, groups, ways)
    wanted = [check for name, check in every.items() if only is None or name in only]
    sections = list(dict.fromkeys(check.group for check in checks.values()))
    wanted.sort(key=lambda check: sections.index(check.group))
    findings = []
    with (
        threads_used(threads, model.n_users, model.n_items),
        bar(len(wanted), "audit", "check", shows(progress), leave=False) as steps,
    ):
        # Groups look at attacks, lists served and the other version.
        for check in sorted(wanted, key=lambda check: check.name.endswith("_groups")):
            steps.set_description(check.title)
            judged = check.group != SERVING or check.name in ways
            findings.append(check.finding(subject, judged=judged))
            steps.update()
    findings.sort(key=lambda finding: wanted.index(finding.check))
    said = [*caveats, *import_caveats(model)]
    if subject.sampled:
        said.append(f"Most checks looked at {subject.words}.")
    if not model.has_interactions:
        said.append("There are no interactions: quality, groups and attacks were not looked at.")
    elif model.part == "train":
        said.append("There are no held-out pairs: quality and losses are those on training pairs.")
    if any(f.check.name == "leak" and f.verdict == "warn" for f in findings):
        said.insert(0, "The model may have been fit on the held-out pairs.")
    found = Audit(model, findings, said, subject.results, source, ways, subject.curves)
    if compare_with is None:
        return found
    changes = earlier.changes(found.as_dict(), compare_with)
    return dataclasses.replace(found, compared=changes)
