"""audit: run the checks that the inputs allow, and say which were skipped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf._checks import check_number
from robustcf._io.progress import bar, shows
from robustcf._io.text import rows_table
from robustcf._runtime import threads_used
from robustcf.auditing.checks import CHECKS, unknown_check
from robustcf.auditing.findings import ORDER, Check, Finding, Verdict
from robustcf.auditing.subject import SIZE, Subject
from robustcf.factors import Factors
from robustcf.recommender import Recommender, check_recommender

if TYPE_CHECKING:
    import pandas as pd

    from robustcf.robustness.measuring import Result

# Of the JSON object: raised when a key changes its meaning or goes away.
SCHEMA = 1


def alignment_caveats(model: Recommender) -> list[str]:
    """Return what could void findings about factors that were imported without being checked."""
    reason = (model.training or {}).get("alignment")
    return [f"The alignment check was skipped although {reason}."] if reason else []


@dataclass(frozen=True, eq=False)
class Audit:
    """All findings of an audit.

    Args:
        model: what was audited.
        findings: one per check, in the order of the page.
        caveats: what could void them, in sentences.
        results: ``attack`` and ``certificate`` -> their curves, where they were run.
        source: what the embeddings came from, in words.
    """

    model: Recommender
    findings: Sequence[Finding]
    caveats: Sequence[str] = ()
    results: Mapping[str, Result] = field(default_factory=dict)
    source: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        found = {finding.verdict for finding in self.findings}
        return next((verdict for verdict in ORDER if verdict in found), "skipped")

    @property
    def numbers(self) -> dict[str, float]:
        """Check -> its number, for those that were run."""
        return {f.check.name: f.number for f in self.findings if f.number is not None}

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.check.name == name:
                return finding
        raise unknown_check(name)

    def failures(self, names: Collection[str], floors: Mapping[str, float]) -> list[str]:
        """Return why an audit does not pass, one clause each.

        Args:
            names: checks that must run and not fail.
            floors: check -> the least number that it may have; the largest, where lower is better.
        """
        reasons = []
        ran = {finding.check.name for finding in self.findings}
        for name in names:
            if name not in ran:
                reasons.append(f"{name} was not run")
            elif self[name].verdict in ("fail", "skipped"):
                word = "failed" if self[name].verdict == "fail" else "could not be run"
                reasons.append(f"{name} {word}: {self[name].sentence}")
        for name, floor in floors.items():
            number = self.numbers.get(name)
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
        """Return one row per check: verdict, number and what was found."""
        import pandas as pd  # slow to import

        return pd.DataFrame(self._rows(), columns=["verdict", "check", "number", "sentence"])

    def _rows(self) -> list[tuple[str, str, float | None, str]]:
        return [(f.verdict, f.check.name, f.number, f.sentence) for f in self.findings]

    def __repr__(self) -> str:
        counts = Counter(finding.verdict for finding in self.findings)
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict])
        return f"Audit({self.verdict}: {told})"

    def _repr_html_(self) -> str:
        rows = [
            [verdict, check, "" if number is None else f"{number:.4g}", sentence]
            for verdict, check, number, sentence in self._rows()
        ]
        caption = "; ".join((f"verdict: {self.verdict}", *self.caveats))
        return rows_table(["verdict", "check", "number", ""], rows, caption)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; the schema is in the documentation."""
        model = self.model
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "source": self.source,
            "caveats": list(self.caveats),
            "subject": {
                "users": model.n_users,
                "items": model.n_items,
                "dim": model.factors.dim,
                "fixed": list(model.fixed),
                "pairs": len(model.known),
                "held_out": len(model.split.test),
                "judged_by": model.part,
            },
            "checks": [finding.as_dict() for finding in self.findings],
        }


def audit(
    model: Recommender,
    *,
    against: Factors | None = None,
    attack: bool = True,
    size: float = SIZE,
    checks: Mapping[str, Check] = CHECKS,
    only: Collection[str] | None = None,
    caveats: Sequence[str] = (),
    source: str = "",
    seed: int = 0,
    progress: bool | None = None,
    threads: int | None = None,
) -> Audit:
    """Check embeddings for what goes wrong with them in practice.

    Args:
        model: embeddings, the pairs they were fit on and, for quality, held-out pairs.
        against: another version of the same embeddings, same ids.
        attack: whether to run the headline attack and the certificate, which take most of the time.
        size: size of the attack, in median row norms.
        checks: checks with their thresholds, see :func:`robustcf.auditing.thresholds_from`.
        only: names of the checks to run; None for all.
        caveats: what is known already that could void the findings.
        source: what the embeddings came from, in words.
        seed: seed of samples and random directions.
        progress: whether to show bars; None: in a terminal and in a notebook.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the cores that may be used.

    Raises:
        InputError: an unknown check, an invalid size, or another version of other users and items.

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
    check_number("size", size, positive=True)
    for name in only or ():
        if name not in checks:
            raise unknown_check(name)
    subject = Subject(
        model, seed, against=against, attack=attack, size=size, progress=shows(progress)
    )
    wanted = [check for name, check in checks.items() if only is None or name in only]
    findings = []
    with (
        threads_used(threads, model.n_users, model.n_items),
        bar(len(wanted), "audit", "check", progress, leave=False) as steps,
    ):
        for check in wanted:
            steps.set_description(check.title)
            findings.append(check.finding(subject))
            steps.update()
    said = [*caveats, *alignment_caveats(model)]
    if subject.sampled:
        said.append(f"Most checks looked at {subject.words}.")
    if model.part == "train":
        said.append(
            "There are no held-out pairs: nothing here tells the quality on new pairs, and what "
            "is lost is lost of what was learnt."
        )
    if any(f.check.name == "leak" and f.verdict == "warn" for f in findings):
        said.insert(0, "The model may have been fit on the held-out pairs.")
    return Audit(model, findings, said, subject.results, source)
