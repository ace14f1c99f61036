"""Recommender: what scores, the interactions it was fit on, and the caller's labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, overload

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice, check_cutoff
from robustcf._io.text import counted
from robustcf.data.interactions import Interactions, Labels, checked_labels
from robustcf.data.split import FIT_ON, Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import (
    PARTS,
    MetricReport,
    Part,
    evaluate,
    evaluate_rankings,
    judged_users,
    masked_pairs,
)
from robustcf.models.factorized import FactorScorer
from robustcf.models.folding import FoldIn
from robustcf.models.scorer import Ids, Ranking, Scorer, padded
from robustcf.recommender.labels import LabelIndex, listed

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from robustcf.objectives import BCEConfig

    Matrix = Tensor | npt.NDArray[Any] | Sequence[Sequence[float]]

UNKNOWN = ("error", "popular")


class Origin(Protocol):
    """Where factors of another library came from, and how they are written back."""

    @property
    def format(self) -> str:
        """What they were read from."""

    def write_back(self, factors: Factors, path: str | Path) -> None:
        """Write factors in the format in which they came."""


class Recommender:
    """A recommender of any origin: a scorer, its interactions and labels.

    Returned by :func:`robustcf.train`, :func:`robustcf.open`, ``fit`` of a model,
    :func:`robustcf.harden` and the functions of :mod:`robustcf.adapters`; or made of embeddings, as
    here.

    Args:
        users: U, users x factors: a tensor, a numpy array or lists of numbers.
        items: V, items x factors. The score of user u and item i is ``U[u] @ V[i]``.
        interactions: the pairs that it was fit on: a scipy or numpy matrix (users x items), an
            :class:`robustcf.data.Interactions`, a whole :class:`robustcf.data.Split`, or a table
            with a user and an item column (a DataFrame, a file), whose ids are matched with
            ``user_labels`` and ``item_labels``; None if they are not at hand.
        test: held-out pairs in the same form; only without a Split.
        user_labels: the caller's own id of each row of U; None for those of the interactions, or
            row numbers.
        item_labels: the same for V.
        part: the pairs that it is judged by; None for ``test``, or ``train`` where there are no
            held-out pairs (figures then say nothing about the quality on new pairs).
        mask: parts that are not candidates when it is evaluated; None for the split's protocol.
        fit_on: ``train``, or ``train and valid`` where it was refit on both.
        fixed: columns that no attack may move: a bias, and the constant 1 it is multiplied with.
        label: its name in tables and pictures.
        bce: weights of the cross-entropy that it was trained with, for attacks on it.
        fold_in: how a new user is embedded; None for a softmax over the catalogue, or for ``bce``.

    Raises:
        InputError: factors that are not finite matrices, or do not fit the interactions.

    Cost: a check that all numbers are finite; floats of one precision are not copied.

    Example:
        >>> U, V = np.eye(3, 2), np.eye(4, 2)
        >>> pairs = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]])
        >>> model = Recommender(U, V, pairs, item_labels=["a", "b", "c", "d"])
        >>> model
        Recommender(3 users x 4 items, 2 factors, judged by 4 train pairs)
        >>> model.recommend(0, k=2)
           user  rank item  score
        0     0     1    b    0.0
        1     0     2    c    0.0
    """

    scorer: Scorer
    user_labels: Labels | None
    item_labels: Labels | None
    part: Part
    mask: tuple[str, ...]
    fit_on: str
    label: str
    #: How it was trained (settings, epochs, seconds, search); None if not trained here.
    training: Mapping[str, Any] | None
    #: Where the factors of another library came from.
    origin: Origin | None
    _split: Split | None
    _item_counts: npt.NDArray[np.int64] | None

    def __init__(
        self,
        users: Matrix,
        items: Matrix,
        interactions: Any = None,
        test: Any = None,
        *,
        user_labels: Any = None,
        item_labels: Any = None,
        part: Part | None = None,
        mask: Sequence[str] | None = None,
        fit_on: str = "train",
        fixed: Sequence[int] = (),
        label: str = "",
        bce: BCEConfig | None = None,
        fold_in: FoldIn | None = None,
    ) -> None:
        factors = Factors.of(users, items)
        if fold_in is None and bce is not None:
            fold_in = FoldIn("bce", vars(bce))
        scorer = FactorScorer(factors, fixed, fold_in)
        labels: dict[str, Any] = {
            name: None if given is None else checked_labels(name[:4], np.asarray(given), rows)
            for name, given, rows in (
                ("user_labels", user_labels, factors.n_users),
                ("item_labels", item_labels, factors.n_items),
            )
        }
        if interactions is None and test is not None:
            raise InputError("test needs interactions, the pairs that the factors were fit on")
        split = None if interactions is None else _split_of(factors, interactions, test, labels)
        made = self.of(scorer, split, part=part, mask=mask, fit_on=fit_on, label=label, **labels)
        vars(self).update(vars(made))

    @classmethod
    def of(
        cls,
        scorer: Scorer,
        split: Split | None,
        *,
        part: Part | None = None,
        mask: Sequence[str] | None = None,
        fit_on: str = "train",
        label: str = "",
        user_labels: Labels | None = None,
        item_labels: Labels | None = None,
        item_counts: npt.NDArray[np.int64] | None = None,
        training: Mapping[str, Any] | None = None,
        origin: Origin | None = None,
    ) -> Self:
        """Return a recommender of any kind, by what scores.

        See the class for most arguments. ``split`` is None where the interactions are not at hand;
        then ``item_counts`` has the training pairs per item. ``training`` tells how it was trained
        in plain values, ``origin`` where its factors came from.
        """
        check_choice("part", part or "test", PARTS)
        check_choice("fit_on", fit_on, FIT_ON)
        self = cls.__new__(cls)
        self.scorer, self._split, self._item_counts = scorer, split, item_counts
        self.fit_on, self.label, self.origin = fit_on, label, origin
        self.training = None if training is None else MappingProxyType(dict(training))
        has_test = split is not None and len(split.test) > 0
        self.part = part or ("test" if has_test or split is None else "train")
        self.mask = () if mask is None else tuple(mask)
        if split is not None:
            _check_same_data(scorer, split)
            if part is not None and len(getattr(split, part)) == 0:
                raise InputError(
                    f"{split.name} has no {part} pairs to judge by: give some, or leave part out"
                )
            own = split.fit_mask(fit_on, self.part)  # refuses pairs that it was fit on
            if mask is None:
                self.mask = own
            user_labels, item_labels = split.user_labels, split.item_labels
        self.user_labels, self.item_labels = user_labels, item_labels
        return self

    # --- what it holds ----------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """What scores: ``factors``, ``vote``."""
        return self.scorer.kind

    @property
    def n_users(self) -> int:
        """The number of users."""
        return self.scorer.n_users

    @property
    def n_items(self) -> int:
        """The number of items in the catalogue."""
        return self.scorer.n_items

    @property
    def has_interactions(self) -> bool:
        """Whether the interactions are at hand; they may be left out of a saved recommender."""
        return self._split is not None

    @property
    def split(self) -> Split:
        """The interactions: train, valid and test; an InputError where they are not at hand."""
        if self._split is None:
            raise InputError(
                "this needs the interactions, and this recommender has none with it: give them, "
                "robustcf.open(path, interactions=...) or Recommender(U, V, interactions)"
            )
        return self._split

    @property
    def factors(self) -> Factors:
        """The embeddings; an InputError for a kind that has none."""
        return self._factorized.factors

    @property
    def _factorized(self) -> FactorScorer:
        if not isinstance(self.scorer, FactorScorer):
            self.scorer.no_embeddings()
        return self.scorer

    @property
    def fixed(self) -> tuple[int, ...]:
        """The columns that no attack, budget or certificate moves: biases."""
        return self._factorized.fixed

    @property
    def free(self) -> list[int]:
        """The columns that an attack may move."""
        return self._factorized.free

    @property
    def fold_in(self) -> FoldIn:
        """How a new user is embedded."""
        return self._factorized.fold_in

    @cached_property
    def bce(self) -> BCEConfig | None:
        """The cross-entropy that it was trained with, if it was; in full precision."""
        how = self._factorized.fold_in
        if how.objective != "bce":
            return None
        from robustcf.objectives import BCEConfig

        # An attack computes in full precision, whatever training did.
        return replace(BCEConfig(**how.settings), precision="float32")

    @property
    def known(self) -> Interactions:
        """The pairs that it was fit on: what an attacker with the training data knows."""
        return self.split.fit_pairs(self.fit_on)

    @cached_property
    def relevant(self) -> Interactions:
        """The pairs that it is judged by: what an attacker with the labels knows.

        Of the evaluated users alone: an attack on the pairs of others would look weaker than it is.
        """
        pairs: Interactions = getattr(self.split, self.part)
        protocol = self.split.protocol
        if protocol is None or protocol.users is None or len(pairs) == 0:
            return pairs
        counts = np.zeros(pairs.n_users, dtype=bool)
        counts[judged_users(self.split, self.part, self.mask).users] = True
        return pairs if counts.all() else pairs.take(counts[pairs.users])

    @property
    def seen(self) -> Interactions | None:
        """The pairs that are not candidates when it is evaluated."""
        return masked_pairs(self.split, self.part, self.mask)

    @cached_property
    def item_counts(self) -> npt.NDArray[np.int64]:
        """The number of training pairs per item: its popularity."""
        if self._split is None and self._item_counts is not None:
            return self._item_counts
        return self.known.item_degrees

    @cached_property
    def _users(self) -> LabelIndex:
        return LabelIndex("user", self.user_labels, self.n_users)

    @cached_property
    def _items(self) -> LabelIndex:
        return LabelIndex("item", self.item_labels, self.n_items)

    # --- recommending -----------------------------------------------------------------------

    @overload
    def recommend(
        self, users: object = None, items: object = None, k: int = 10, filter_seen: bool = True,
        candidates: object = None, *, unknown: str = "error", as_ids: Literal[False] = False,
    ) -> pd.DataFrame: ...  # fmt: skip

    @overload
    def recommend(
        self, users: object = None, items: object = None, k: int = 10, filter_seen: bool = True,
        candidates: object = None, *, unknown: str = "error", as_ids: Literal[True],
    ) -> Ranking: ...  # fmt: skip

    def recommend(
        self,
        users: object = None,
        items: object = None,
        k: int = 10,
        filter_seen: bool = True,
        candidates: object = None,
        *,
        unknown: str = "error",
        as_ids: bool = False,
    ) -> pd.DataFrame | Ranking:
        """Return the k best items for users, or for a new user by the items that they have.

        Args:
            users: one label or several; None, and no ``items``, for all users.
            items: labels of the items of a new user, who is folded in.
            k: items per user; fewer where the catalogue ends.
            filter_seen: whether to leave out the items that a user has (train and valid, or
                ``items``).
            candidates: labels of the items to choose from; None for all.
            unknown: ``error``, or ``popular``: a user whose label is unknown, or a new user without
                known items, gets the most popular items, scored by their number of training pairs.
            as_ids: return ids as arrays (:class:`Ranking`) instead of a table of labels.

        Returns:
            A DataFrame with the columns ``user, rank, item, score``, ranks from 1; the ``user`` of
            a new user is None.

        Raises:
            InputError: a label is unknown; users and items are both given; the interactions are
                needed and not at hand.

        Cost: one product of users x items x factors, in blocks: memory for the result alone. A new
        user is folded in, which takes some milliseconds.

        Example:
            >>> from robustcf.data import checkerboard
            >>> parity = np.eye(2)[np.arange(30) % 2]
            >>> model = Recommender(parity[:20], parity, checkerboard())
            >>> model.recommend(items=[0, 2], k=1)["item"].tolist()[0] % 2
            0
        """
        k = check_cutoff("k", k)
        check_choice("unknown", unknown, UNKNOWN)
        allowed = None if candidates is None else np.unique(self._items.ids(candidates))
        if allowed is not None and len(allowed) == 0:
            raise InputError("candidates must be at least one item, got none: leave it out for all")
        if items is not None:
            if users is not None:
                raise InputError("give users, or the items of a new user, not both")
            found = self._for_history(items, k, filter_seen, allowed, unknown)
            return found if as_ids else self._table(np.array([None]), "user", "item", found)
        if users is None:
            ids = np.arange(self.n_users)
            names: Any = self._users.labels(ids)
        else:
            ids = self._users.ids(users, known_only=unknown == "error")
            names = self._users.labels(ids)
            if unknown != "error":
                names = np.empty(len(ids), dtype=object)
                names[:] = listed(users)
        found = self._for_users(ids, k, filter_seen, allowed)
        return found if as_ids else self._table(names, "user", "item", found)

    def _for_users(self, ids: Ids, k: int, filter_seen: bool, allowed: Ids | None) -> Ranking:
        if filter_seen and self._split is None:
            raise InputError(
                "filter_seen=True needs the interactions, and this recommender has none with it: "
                "give them to robustcf.open(path, interactions=...), or use filter_seen=False"
            )
        seen = self.split.train_full if filter_seen else None
        known = ids >= 0
        if known.all():
            return self.scorer.top(ids, k, seen, allowed)
        width = min(k, self.n_items if allowed is None else len(allowed))
        items = np.empty((len(ids), width), dtype=np.int64)
        scores = np.empty((len(ids), width))
        items[known], scores[known] = padded(self.scorer.top(ids[known], k, seen, allowed), width)
        items[~known], scores[~known] = padded(self._popular(k, allowed), width)
        return Ranking(items, scores)

    def _for_history(
        self, items: object, k: int, filter_seen: bool, allowed: Ids | None, unknown: str
    ) -> Ranking:
        history = self._items.ids(items, known_only=unknown == "error")
        history = np.unique(history[history >= 0])
        if len(history) == 0:
            if unknown == "error":
                raise InputError(
                    "a new user needs at least one item, got none: give some, or "
                    "unknown='popular' for the most popular items"
                )
            return self._popular(k, allowed)
        return self.scorer.top_for_history(
            history, k, self._pairs_or_stand_in(), filter_seen=filter_seen, candidates=allowed
        )

    def _popular(self, k: int, allowed: Ids | None) -> Ranking:
        """Return the most popular items, one row; ties to the lower id."""
        items = np.arange(self.n_items) if allowed is None else allowed
        counts = self.item_counts[items]
        best = np.argsort(-counts, kind="stable")[:k]
        return Ranking(items[best][None, :], counts[best][None, :].astype(np.float64))

    def _pairs_or_stand_in(self) -> Interactions:
        """Return the training pairs, or pairs with the same number per item without them."""
        if self._split is not None:
            return self.known
        counts = self.item_counts
        items = np.repeat(np.arange(self.n_items), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        users = np.arange(len(items)) - first
        return Interactions(users, items, int(counts.max(initial=1)), self.n_items)

    def _table(self, names: Any, first: str, second: str, found: Ranking) -> pd.DataFrame:
        import pandas as pd  # slow to import

        rows, places = np.nonzero(found.items >= 0)
        return pd.DataFrame(
            {
                first: names[rows],
                "rank": places + 1,
                second: self._items.labels(found.items[rows, places]),
                "score": found.scores[rows, places],
            }
        )

    def similar(self, items: object, k: int = 10) -> pd.DataFrame:
        """Return the k items most similar to each of some items: ``item, rank, similar, score``.

        By the cosine of their embeddings; of a vote, of the users who have them.

        Example:
            >>> model = Recommender(np.eye(2), [[1.0, 0.1], [0.0, 1.0], [1.0, 0.0]])
            >>> model.similar(0, k=1)
               item  rank  similar     score
            0     0     1        2  0.995037
        """
        ids = self._items.ids(items)
        found = self.scorer.similar(ids, min(check_cutoff("k", k), max(1, self.n_items - 1)))
        return self._table(self._items.labels(ids), "item", "similar", found)

    # --- judging ----------------------------------------------------------------------------

    def evaluate(
        self,
        ks: Sequence[int] = (10, 20),
        factors: Factors | None = None,
        *,
        mask: Sequence[str] | None = None,
        progress: bool = False,
    ) -> MetricReport:
        """Rank the whole catalogue for every user and compare with the held-out pairs.

        Args:
            ks: cutoffs.
            factors: other embeddings in place of its own.
            mask: parts that are not candidates; None for its own.
            progress: whether to show a bar on stderr.

        Example:
            >>> Recommender(np.eye(2), np.eye(2), np.eye(2)).evaluate(ks=(1,))["ndcg@1"]
            1.0
        """
        how: dict[str, Any] = {"part": self.part, "progress": progress}
        how["mask"] = self.mask if mask is None else mask
        if factors is not None:
            return evaluate(factors, self.split, ks, **how)
        return evaluate_rankings(self.scorer.rank, self.split, ks, **how)

    def judged_by(self, part: Part) -> Self:
        """Return the same recommender, judged by other pairs; not by pairs that it was fit on."""
        return self._like(self.scorer, part=part, mask=None)

    def renamed(self, label: str) -> Self:
        """Return the same recommender under another label, text on one line."""
        if not label.strip() or not label.isprintable():
            raise InputError(f"a label must be text on one line, got {label!r}")
        return self._like(self.scorer, label=label)

    def with_eval_users(self, users: int | None) -> Self:
        """Return the same recommender, judged by a seeded sample of the users; None: as it is."""
        if users is None:
            return self
        return self._like(self.scorer, split=self.split.with_eval_users(users))

    def with_factors(self, factors: Factors) -> Self:
        """Return the same recommender with other embeddings of the same users and items."""
        own = self._factorized
        other = self._like(FactorScorer(factors, own.fixed, own.fold_in))
        if self._split is not None:
            other.relevant = self.relevant  # the very same: attacks are told apart by it
        return other

    def _like(self, scorer: Scorer, **changes: Any) -> Self:
        kept = ("mask", "fit_on", "label", "user_labels", "item_labels", "training", "origin")
        own: dict[str, Any] = {name: getattr(self, name) for name in kept}
        own |= {"split": self._split, "item_counts": self._item_counts}
        own |= {"part": None if self._split is None else self.part}
        return type(self).of(scorer, **(own | changes))

    # --- keeping ----------------------------------------------------------------------------

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        include_interactions: bool = True,
        include_test: bool = True,
    ) -> Path:
        """Write a folder that :func:`robustcf.open` reads on any machine, without the source data.

        Nothing is pickled, and the folder is there whole or not at all.

        Args:
            path: the folder; it must not exist yet, or be empty.
            include_interactions: whether the interactions are written; without them (for privacy)
                a recommender still serves, but for ``filter_seen`` and evaluations.
            include_test: whether the held-out test pairs are written.

        Raises:
            InputError: there is something at the path, or the kind scores by its interactions.
            WriteError: it cannot be written.

        Example:
            >>> import tempfile, robustcf
            >>> model = Recommender(np.eye(2), np.eye(2), np.eye(2))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = model.save(f"{folder}/model")
            ...     robustcf.open(f"{folder}/model")
            Recommender(2 users x 2 items, 2 factors, judged by 2 train pairs)
        """
        from robustcf.recommender.saved import save  # with the schema of files, for files alone

        return save(
            self, path, include_interactions=include_interactions, include_test=include_test
        )

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the embeddings to a new file, in the format in which another library's came.

        A recommender that came from none gives a ``.safetensors`` file of ``users`` and ``items``.
        """
        from robustcf.recommender.saved import export

        return export(self, Path(path))

    # --- reprs ------------------------------------------------------------------------------

    @property
    def _facts(self) -> dict[str, str]:
        facts = {"": self.label} if self.label else {}
        facts["size"] = f"{self.n_users:,} users x {self.n_items:,} items"
        if isinstance(self.scorer, FactorScorer):
            facts["scores"] = counted(self.scorer.factors.dim, "factor")
            if self.fixed:
                facts["fixed"] = f"{counted(len(self.fixed), 'column')} held fixed"
        elif self.kind != self.label:
            facts["scores"] = self.kind
        if self._split is None:
            facts["judged"] = "without interactions"
        else:
            facts["judged"] = f"judged by {len(self.relevant):,} {self.part} pairs"
        return facts

    def __repr__(self) -> str:
        return f"Recommender({', '.join(self._facts.values())})"

    def _repr_html_(self) -> str:
        from robustcf._io.text import facts_table

        rows = {"": "Recommender"} | {k or "label": v for k, v in self._facts.items()}
        trained: Mapping[str, Any] = self.training or {}
        rows |= {name: str(trained[name]) for name in ("preset", "epochs") if trained.get(name)}
        return facts_table(rows)


def check_recommender(model: object) -> None:
    """Raise an InputError unless this is a recommender."""
    if not isinstance(model, Recommender):
        raise InputError(
            f"expected a Recommender, got {type(model).__name__}: make one of your embeddings and "
            "the pairs they were fit on, Recommender(U, V, interactions)"
        )


def _check_same_data(scorer: Scorer, split: Split) -> None:
    """Raise unless what scores has the sizes of a split."""
    own, theirs = (scorer.n_users, scorer.n_items), (split.n_users, split.n_items)
    if own != theirs:
        why = "are U and V swapped?" if own[::-1] == theirs else "they belong to different data"
        raise InputError(
            f"factors are for {own[0]} users x {own[1]} items, {split.name} has {theirs[0]} x "
            f"{theirs[1]}: {why}"
        )


def _split_of(factors: Factors, data: Any, test: Any, labels: Mapping[str, Any]) -> Split:
    """Return the interactions as a split by rows of the factors."""
    if isinstance(data, Split):
        if test is not None:
            raise InputError("a Split has its own test pairs: leave test out")
        return data
    table = hasattr(data, "__dataframe__") or hasattr(data, "__arrow_c_stream__")
    if table or isinstance(data, str | os.PathLike):
        from robustcf.recommender.matching import Rows, match  # with the readers of tables

        return match(Rows(factors.n_users, factors.n_items, **labels), data, test).split
    own = {name: values for name, values in labels.items() if values is not None}
    pairs = data if isinstance(data, Interactions) else Interactions.from_csr(data, **own)
    none = held = pairs.take(np.zeros(len(pairs), dtype=bool))
    if test is not None:
        own = {"user_labels": pairs.user_labels, "item_labels": pairs.item_labels}
        held = test if isinstance(test, Interactions) else Interactions.from_csr(test, **own)
        if len(held) == 0:
            raise InputError("test has no pairs to judge by: give some, or leave test out")
    return Split("own data", pairs, none, held, valid_source="none")
