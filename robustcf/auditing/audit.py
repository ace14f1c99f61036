"""audit: run the checks that the inputs allow, and say which were skipped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf._checks import check_number
from robustcf._io.progress import bar, shows
from robustcf._io.text import rows_table
from robustcf._runtime import threads_used
from robustcf.auditing import quality, serving, shape, stability
from robustcf.auditing.checks import CHECKS, unknown_check
from robustcf.auditing.churn import churn
from robustcf.auditing.findings import ORDER, Check, Finding, Verdict, worst
from robustcf.auditing.outcome import Found, Skip
from robustcf.auditing.subject import Subject
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import Recommender, check_recommender
from robustcf.robustness.measuring import Result

if TYPE_CHECKING:
    import pandas as pd

# Of the JSON object: raised when a key changes its meaning or goes away.
SCHEMA = 1


@dataclass(frozen=True, eq=False)
class Audit:
    """All findings of an audit.

    Args:
        model: what was audited.
        findings: one for each check, in the order of the page.
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
        return worst([finding.verdict for finding in self.findings])

    @property
    def numbers(self) -> dict[str, float]:
        """Check -> its number, for those that were run."""
        return {f.check.name: f.number for f in self.findings if f.number is not None}

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.check.name == name:
                return finding
        raise InputError(unknown_check(name))

    def save(self, path: str | Path) -> Path:
        """Write the page of the audit, one HTML file; returns the path."""
        from robustcf.auditing.page import write_page

        return write_page(self, path)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per check: verdict, number and what was found."""
        import pandas as pd

        names = ("verdict", "check", "number", "sentence")
        return pd.DataFrame([dict(zip(names, row, strict=True)) for row in self._rows()])

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
        """Plain values, ready for JSON; the schema is in the documentation."""
        factors, split = self.model.factors, self.model.split
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "source": self.source,
            "caveats": list(self.caveats),
            "subject": {
                "users": factors.n_users,
                "items": factors.n_items,
                "dim": factors.dim,
                "fixed": list(self.model.fixed),
                "pairs": len(self.model.known),
                "held_out": len(split.test),
                "judged_by": self.model.part,
            },
            "checks": [finding.as_dict() for finding in self.findings],
        }


def audit(
    model: Recommender,
    *,
    against: Factors | None = None,
    attack: bool = True,
    size: float = stability.SIZE,
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
        size: of the attack, in median row norms.
        checks: checks with their thresholds, see :func:`robustcf.auditing.thresholds_from`.
        only: names of the checks to run; None for all.
        caveats: what is known already that could void the findings.
        source: what the embeddings came from, in words.
        seed: of samples and random directions.
        progress: whether to show bars; None: in a terminal and in a notebook.
        threads: CPU threads; None for ``OMP_NUM_THREADS`` or the cores that may be used.

    Returns:
        One finding for each check.

    Raises:
        InputError: a check that there is not, a size that is none, or another version of other
            users and items.

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
            raise InputError(unknown_check(name))
    subject = Subject(model, seed)
    results: dict[str, Result] = {}
    attacked = partial(stability.attacked, subject, size, shows(progress))
    ways = _ways(subject, against, attack, attacked, results)
    wanted = {name: check for name, check in checks.items() if only is None or name in only}
    findings = []
    with (
        threads_used(threads, model.n_users, model.n_items),
        bar(len(wanted), "audit", "check", progress, leave=False) as steps,
    ):
        for name, check in wanted.items():
            steps.set_description(check.title)
            findings.append(_finding(check, ways[name]))
            steps.update()
    said = list(caveats)
    if subject.sampled:
        said.append(f"Most checks looked at {subject.words}.")
    if model.part == "train":
        said.append(
            "There are no held-out pairs: nothing here tells the quality on new pairs, and what "
            "is lost is lost of what was learnt."
        )
    if any(f.check.name == "leak" and f.verdict == "warn" for f in findings):
        said.insert(0, "The model may have been fit on the held-out pairs.")
    return Audit(model, findings, said, results, source)


Way = Callable[[], Found]


def _ways(
    subject: Subject,
    against: Factors | None,
    attack: bool,
    attacked: Callable[[], Result],
    results: dict[str, Result],
) -> dict[str, Way]:
    """Check -> what measures it."""

    def under_attack() -> Found:
        if not attack:
            raise Skip("left out, as asked for")
        results["attack"] = attacked()
        return stability.under_attack(results["attack"])

    def certificate() -> Found:
        if not attack:
            raise Skip("left out, as asked for")
        results["certificate"] = stability.certified(subject)
        return stability.certificate(results["certificate"])

    fresh = cache(partial(quality.against_fresh, subject))

    def moved() -> Found:
        if against is None:
            raise Skip("there is no other version to compare with: give one with --against")
        return churn(subject, against)

    return {
        "popularity": partial(quality.against_popularity, subject),
        "fresh": fresh,
        "leak": lambda: quality.leak(subject, fresh()),
        "near_ties": partial(stability.near_ties, subject),
        "noise": partial(stability.noise, subject),
        "attack": under_attack,
        "certificate": certificate,
        **{k: partial(serving.in_bits(k), subject) for k in ("bfloat16", "int8", "int4")},
        "cosine": partial(serving.by_cosine, subject),
        **{k: partial(serving.by_index(k), subject) for k in ("hnsw", "ivf")},
        "norms": partial(shape.norms, subject),
        "popularity_bias": partial(shape.popularity_bias, subject),
        "coverage": partial(shape.coverage, subject),
        "untrained": partial(shape.untrained, subject),
        "churn": moved,
    }


def _finding(check: Check, way: Way) -> Finding:
    try:
        found = way()
    except Skip as reason:
        return Finding(check, "skipped", None, f"Not run: {reason}.")
    return Finding(
        check,
        check.limit.verdict(found.number),
        found.number,
        found.sentence,
        found.details,
        found.header,
        found.rows,
    )
