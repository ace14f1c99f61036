"""Harden a file of embeddings, and say what changes for serving from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustcf.auditing.audit import audit
from robustcf.recommender import Recommender
from robustcf.robustness import Hardened, harden_by_trial


def harden_file(
    model: Recommender, out: str, step: Callable[[str], None] | None = None
) -> tuple[list[Hardened], Hardened, dict[str, Any]]:
    """Write the hardened factors of a model, with what changes for serving.

    Args:
        model: what to harden; judged by pairs to choose by.
        out: the file, in the format of its source.
        step: called with the name of each candidate before it is tried.

    Returns:
        All that was tried, the choice, and the facts, ready for JSON.
    """
    best, tried, chosen = harden_by_trial(model, step=step)
    best.export(Path(out))
    names = ("int8", "int4", "cosine")
    churn = audit(model, only=("churn",), against=best.factors, attack=False)
    facts = {
        "out": out,
        "chosen": chosen.as_dict(),
        "tried": [trial.as_dict() for trial in tried],
        "serving": {
            word: audit(each, only=names, attack=False).numbers
            for word, each in (("before", model), ("after", best))
        },
        "overlap@10": churn.numbers["churn"],
        "judged_by": model.part,
    }
    return tried, chosen, facts
