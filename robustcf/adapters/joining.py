"""``joined``: factors of another library and interactions in, a recommender out."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustcf.adapters.aligning import alignment
from robustcf.adapters.base import Imported
from robustcf.errors import InputError
from robustcf.models.folding import FoldIn
from robustcf.recommender import FactorScorer, Recommender
from robustcf.recommender.matching import Rows, fit_on_of, match


def joined(
    imported: Imported,
    interactions: Any = None,
    test: Any = None,
    *,
    check: bool = True,
    label: str | None = None,
    fold_in: FoldIn | None = None,
    **matching: Any,
) -> Recommender:
    """Return a recommender of factors from elsewhere and the pairs that they were fit on.

    All functions ``from_*`` end here, and pass these options on.

    Args:
        imported: the factors.
        interactions: the pairs: a DataFrame or another table, a file, a users x items matrix, an
            :class:`robustcf.data.Interactions`, a whole :class:`robustcf.data.Split`, or None.
        test: held-out pairs in the same form; without, it is judged by what it was fit on.
        check: whether to refuse factors that do not know the pairs (the alignment check).
        label: what to call it in tables and pictures; None for its source.
        fold_in: how a new user is embedded; None for a softmax over the catalogue.
        **matching: how ids are matched, see :func:`robustcf.recommender.matching.match`: ``rows``,
            ``drop_unknown``, ``user_col``, ``item_col``, ``min_rating``, ``name``, ``with_valid``.

    Raises:
        DataError: ids or counts that do not fit; factors that do not know the pairs.

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.factors import Factors
        >>> parity, split = np.eye(2)[np.arange(30) % 2], checkerboard()
        >>> mine = Imported(Factors.of(parity[:20], parity), "arrays", "parity")
        >>> joined(mine, split.train, split.test).evaluate()["hit_rate@10"]
        1.0
    """
    called = imported.source if label is None else label
    if not called.strip() or not called.isprintable():
        raise InputError(f"a label must be text on one line, got {called!r}")
    factors = imported.factors
    facts: dict[str, Any] = {"source": imported.source, "format": imported.format}
    if interactions is None:
        given = [name for name, value in {"test": test, **matching}.items() if value is not None]
        if given:
            raise InputError(f"{', '.join(given)} needs interactions, and none were given")
        return Recommender.of(
            FactorScorer(factors, imported.fixed, fold_in),
            None,
            label=called,
            user_labels=imported.user_labels,
            item_labels=imported.item_labels,
            item_counts=np.zeros(factors.n_items, dtype=np.int64),
            training={**facts, "notes": list(imported.notes)},
            origin=imported,
        )
    rows = Rows(factors.n_users, factors.n_items, imported.user_labels, imported.item_labels)
    split, notes = match(rows, interactions, test, **matching)
    said = [*imported.notes, *notes]
    found = alignment(factors, split.train)
    if check:
        found.require()
    said.append(str(found))
    if not len(split.test):
        said.append("no test pairs: judged by the pairs it was fit on")
    facts |= {"notes": said, "alignment": found.reason}
    return Recommender.of(
        FactorScorer(factors, imported.fixed, fold_in),
        split,
        fit_on=fit_on_of(split, matching.get("with_valid")),
        label=called,
        training=facts,
        origin=imported,
    )
