"""Recommender: a scorer, the interactions it was fit on, and the caller's labels."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_choice, check_cutoff
from robustcf._io.text import counted, wrapped
from robustcf.data.interactions import Interactions, Labels, checked_labels
from robustcf.data.split import FIT_ON, Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import (
    PARTS,
    MetricReport,
    Part,
    check_same_data,
    evaluate,
    evaluate_rankings,
    hits_of,
    judged_users,
    masked_pairs,
    per_user_metrics,
)
from robustcf.metrics.groups import Groups, by_group
from robustcf.metrics.topk import top_items
from robustcf.models.factorized import FactorScorer, served
from robustcf.models.folding import FoldIn, Histories
from robustcf.models.scorer import Ids, Ranking, Scorer
from robustcf.recommender.labels import LabelIndex, listed

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from robustcf.adapters.imported import Imported
    from robustcf.objectives import BCEConfig

    Matrix = Tensor | npt.NDArray[Any] | Sequence[Sequence[float]]

UNKNOWN = ("error", "popular")
# Users that stored and computed users are compared by.
_COMPARED = 2000


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
        user_labels: the caller's id of each row of U; None for those of the interactions, or row
            numbers.
        item_labels: the same for V.
        part: the pairs to evaluate by; None for ``test``, or ``train`` without held-out pairs
            (metrics then say nothing about the quality on new pairs).
        mask: parts that are not candidates in evaluations; None for the split's protocol.
        fit_on: ``train``, or ``train and valid`` where it was refit on both.
        fixed: columns that no attack may move: a bias, and the constant 1 it is multiplied with.
        label: its name in tables and figures.
        bce: weights of the cross-entropy that it was trained with, for attacks on it.
        fold_in: how a new user is embedded; None for a softmax over the catalogue, or for ``bce``.
        serve: ``stored`` users, or ``fold-in``: see :meth:`serving`.

    Raises:
        InputError: factors that are not finite matrices, or do not fit the interactions.

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
    #: What scores: ``factors``, ``vote``.
    kind: str
    n_users: int
    n_items: int
    #: Whether the interactions are at hand; they may be left out of a saved recommender.
    has_interactions: bool
    user_labels: Labels | None
    item_labels: Labels | None
    part: Part
    mask: tuple[str, ...]
    fit_on: str
    label: str
    #: How it was trained (settings, epochs, seconds, search); None if not trained here.
    training: Mapping[str, Any] | None
    #: The source of another library's factors.
    origin: Imported | None
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
        serve: str = "stored",
    ) -> None:
        factors = Factors.of(users, items)
        if fold_in is None and bce is not None:
            fold_in = FoldIn("bce", vars(bce))
        scorer = FactorScorer(factors, fixed, fold_in)
        given = {"user": (user_labels, factors.n_users), "item": (item_labels, factors.n_items)}
        labels: dict[str, Any] = {
            f"{kind}_labels": None if own is None else checked_labels(kind, np.asarray(own), rows)
            for kind, (own, rows) in given.items()
        }
        if interactions is None and test is not None:
            raise InputError("test needs interactions, the pairs that the factors were fit on")
        split = None if interactions is None else _split_of(factors, interactions, test, labels)
        made = self.of(scorer, split, part=part, mask=mask, fit_on=fit_on, label=label, **labels)
        vars(self).update(vars(made.serving(serve)))

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
        origin: Imported | None = None,
    ) -> Self:
        """Return a recommender of any kind by its scorer; see the class for most arguments.

        Args:
            split: the interactions; None where they are not at hand.
            item_counts: then the number of training pairs per item.
        """
        check_choice("part", part or "test", PARTS)
        check_choice("fit_on", fit_on, FIT_ON)
        self = cls.__new__(cls)
        self.scorer, self._split, self._item_counts = scorer, split, item_counts
        self.kind, self.n_users, self.n_items = scorer.kind, scorer.n_users, scorer.n_items
        self.has_interactions = split is not None
        self.fit_on, self.label, self.origin = fit_on, label, origin
        self.training = None if training is None else MappingProxyType(dict(training))
        has_test = split is not None and len(split.test) > 0
        self.part = part or ("test" if has_test or split is None else "train")
        self.mask = () if mask is None else tuple(mask)
        if split is not None:
            sized: Any = scorer
            check_same_data(sized, split)
            if part is not None and len(getattr(split, part)) == 0:
                raise InputError(f"{split.name} has no {part} pairs to judge by: leave part out")
            own = split.fit_mask(fit_on, self.part)  # refuses pairs that it was fit on
            if mask is None:
                self.mask = own
            user_labels, item_labels = split.user_labels, split.item_labels
        self.user_labels, self.item_labels = user_labels, item_labels
        return self

    @property
    def split(self) -> Split:
        """The interactions: train, valid and test; an InputError where they are not at hand."""
        if self._split is None:
            raise InputError(
                "this needs the interactions: give them, robustcf.open(path, interactions=...) or "
                "Recommender(U, V, interactions)"
            )
        return self._split

    @property
    def factors(self) -> Factors:
        """The embeddings; an InputError for a kind without them."""
        return self._factorized.factors

    @property
    def _factorized(self) -> FactorScorer:
        if not isinstance(self.scorer, FactorScorer):
            self.scorer.no_embeddings()
        return self.scorer

    @property
    def fixed(self) -> tuple[int, ...]:
        """The columns that no attack or certificate moves: biases."""
        return self._factorized.fixed

    @property
    def free(self) -> list[int]:
        """The columns that an attack may move."""
        return self._factorized.free

    @property
    def stores(self) -> tuple[str, ...]:
        """Names of the stored arrays, of which a threat's ``side`` says which are written.

        Example:
            >>> Recommender(np.eye(2), np.eye(2)).stores
            ('users', 'items')
        """
        return self.scorer.stores

    @property
    def arrays(self) -> Factors:
        """The stored arrays that an attack may alter: U and V; without users, the map and V."""
        return self._factorized.arrays

    @property
    def histories(self) -> Histories | None:
        """What computes users from their histories; None where users are stored."""
        return self._factorized.histories

    @property
    def fold_in(self) -> FoldIn:
        """How a new user is embedded."""
        return self._factorized.fold_in

    @cached_property
    def bce(self) -> BCEConfig | None:
        """The cross-entropy that it was trained with, or None; in full precision, for attacks."""
        if self.fold_in.objective != "bce":
            return None
        config: BCEConfig = replace(self.fold_in.config(), precision="float32")
        return config

    @property
    def known(self) -> Interactions:
        """The pairs that it was fit on, known to an attacker with the training data."""
        return self.split.fit_pairs(self.fit_on)

    @cached_property
    def relevant(self) -> Interactions:
        """The pairs that it is judged by: those of the evaluated users, all or a sample."""
        pairs, protocol = self.all_relevant, self.split.protocol
        if protocol is None or protocol.users is None or len(pairs) == 0:
            return pairs
        counts = np.zeros(pairs.n_users, dtype=bool)
        counts[judged_users(self.split, self.part, self.mask).users] = True
        return pairs if counts.all() else pairs.take(counts[pairs.users])

    @property
    def all_relevant(self) -> Interactions:
        """The pairs of all users, evaluated or not, that the strongest joint attacker knows.

        One perturbation serves all users: an attack on a sample of users alone would move items for
        each of them, and look stronger than any attack on a service.
        """
        pairs: Interactions = getattr(self.split, self.part)
        return pairs

    @property
    def seen(self) -> Interactions | None:
        """The pairs that are not candidates in evaluations."""
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

    def index(self, kind: str) -> LabelIndex:
        """Return the labels of ``user`` or ``item``, both ways."""
        check_choice("kind", kind, ("user", "item"))
        return self._users if kind == "user" else self._items

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
            filter_seen: whether to leave out a user's own items (train and valid, or ``items``).
            candidates: labels of the items to choose from; None for all.
            unknown: ``error``, or ``popular``: unknown users, and new users without known items,
                get the most popular items, scored by their number of training pairs.
            as_ids: return ids as arrays (:class:`Ranking`) instead of a table of labels.

        Returns:
            A DataFrame with the columns ``user, rank, item, score``, ranks from 1; the ``user`` of
            a new user is None.

        Raises:
            InputError: a label is unknown, or the interactions are needed and not at hand.

        Cost: one product of users x items x factors, in blocks; some milliseconds for a new user.

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
        ids = np.arange(self.n_users)
        if users is not None:
            ids = self._users.ids(users, known_only=unknown == "error")
        found = self._for_users(ids, k, filter_seen, allowed)
        if as_ids:
            return found
        names = self._users.labels(ids)
        if users is not None and unknown != "error":  # as the caller gave them
            names = np.empty(len(ids), dtype=object)
            names[:] = listed(users)
        return self._table(names, "user", "item", found)

    def _for_users(self, ids: Ids, k: int, filter_seen: bool, allowed: Ids | None) -> Ranking:
        if filter_seen and self._split is None:
            raise InputError(
                "filter_seen=True needs the interactions: give them, robustcf.open(path, "
                "interactions=...), or use filter_seen=False"
            )
        seen = self.split.train_full if filter_seen else None
        known = ids >= 0
        if known.all():
            return self.scorer.top(ids, k, seen, allowed)
        width = min(k, self.n_items if allowed is None else len(allowed))
        items, scores = np.full((len(ids), width), -1), np.full((len(ids), width), np.nan)
        top, popular = self.scorer.top(ids[known], k, seen, allowed), self._popular(k, allowed)
        for rows, found in ((known, top), (~known, popular)):
            length = min(width, found.items.shape[1])
            items[rows, :length] = found.items[:, :length]
            scores[rows, :length] = found.scores[:, :length]
        return Ranking(items, scores)

    def _for_history(
        self, items: object, k: int, filter_seen: bool, allowed: Ids | None, unknown: str
    ) -> Ranking:
        history = self._items.ids(items, known_only=unknown == "error")
        history = np.unique(history[history >= 0])
        if len(history) == 0:
            if unknown == "error":
                raise InputError("a new user needs an item, got none; or use unknown='popular'")
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
        """Return the training pairs, or a stand-in with the same number of pairs per item."""
        if self._split is not None:
            return self.known
        counts = self.item_counts
        items = np.repeat(np.arange(self.n_items), counts)
        users = np.arange(len(items)) - np.repeat(np.cumsum(counts) - counts, counts)
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
        """Return a table of the k most similar items per item: ``item, rank, similar, score``.

        Similarity is the cosine of their embeddings; in a vote, of the users who have them.

        Example:
            >>> model = Recommender(np.eye(2), [[1.0, 0.1], [0.0, 1.0], [1.0, 0.0]])
            >>> model.similar(0, k=1)
               item  rank  similar     score
            0     0     1        2  0.995037
        """
        ids = self._items.ids(items)
        found = self.scorer.similar(ids, min(check_cutoff("k", k), max(1, self.n_items - 1)))
        return self._table(self._items.labels(ids), "item", "similar", found)

    def evaluate(
        self,
        ks: Sequence[int] = (10, 20),
        factors: Factors | None = None,
        *,
        mask: Sequence[str] | None = None,
        by: Any = None,
        progress: bool = False,
    ) -> MetricReport:
        """Rank the whole catalogue for every user and return metrics on the held-out pairs.

        Args:
            ks: cutoffs.
            factors: other embeddings in place of its own.
            mask: parts that are not candidates; None for its own.
            by: groups of users or items, see :meth:`groups`, for ``report.by_group()``.
            progress: show a bar on stderr.

        Example:
            >>> Recommender(np.eye(2), np.eye(2), np.eye(2)).evaluate(ks=(1,))["ndcg@1"]
            1.0
        """
        how: dict[str, Any] = {"part": self.part, "progress": progress}
        how["mask"] = self.mask if mask is None else mask
        if factors is not None:
            report = evaluate(factors, self.split, ks, **how)
        else:
            report = evaluate_rankings(self.scorer.rank, self.split, ks, **how)
        if by is None:
            return report
        groups = self.groups(by)
        values = {name: (report.users, own) for name, own in report.per_user.items()}
        ranked = self.by_items(groups, ks, factors, how["mask"])
        return replace(report, groups=tuple(by_group(groups, values, ranked)))

    def groups(self, by: Any) -> list[Groups]:
        """Return groups of users and items.

        Args:
            by: ``activity`` (users by their number of training pairs), ``popularity`` (items:
                head, middle, tail), ``time`` (new users and items); a table with a column ``user``
                or ``item`` and a column of groups; a :class:`robustcf.metrics.groups.Groups`; or a
                list of these.

        Example:
            >>> model = Recommender(np.eye(3, 2), np.eye(4, 2), np.eye(3, 4))
            >>> [groups.names for groups in model.groups("popularity")]
            [('head', 'middle', 'tail')]
        """
        found: list[Groups] = []
        single = isinstance(by, str | Groups) or hasattr(by, "columns")
        for each in [by] if single else by:
            if isinstance(each, Groups):
                found.append(each)
            elif isinstance(each, str):
                found += Groups.made(each, self.known)
            else:
                kind = next((k for k in ("user", "item") if k in getattr(each, "columns", ())), "")
                others = [name for name in getattr(each, "columns", ()) if name != kind]
                if not kind or len(others) != 1:
                    words = "expected a table with a column user or item, and one of groups"
                    raise InputError(f"{words}, got {type(each).__name__}")
                labels, own = listed(each[kind]), listed(each[others[0]])
                mapping = dict(zip(labels, own, strict=True))
                found.append(Groups.of(kind, mapping, self.index(kind), str(others[0])))
        return found

    def by_items(
        self,
        groups: Sequence[Groups],
        ks: Sequence[int],
        factors: Factors | None = None,
        mask: Sequence[str] | None = None,
    ) -> dict[str, dict[str, tuple[Ids, npt.NDArray[np.float64]]]]:
        """Return name of a group of items -> metrics per user that count its items alone."""
        parts = [partition for partition in groups if partition.kind == "item"]
        if not parts:
            return {}
        judged = judged_users(self.split, self.part, self.mask if mask is None else mask)
        rank = self.scorer.rank
        if factors is not None:
            rank = functools.partial(top_items, factors)
        top = rank(judged.users, max(ks), judged.seen)
        found = {}
        for name, members in itertools.chain(*parts):
            own = judged.relevant.take(members[judged.relevant.items])
            rows = own.user_degrees[judged.users] > 0
            users = judged.users[rows]
            hits = hits_of(top[rows], own, users)
            values = per_user_metrics(hits, own, users, ks) if len(users) else {}
            found[name] = {metric: (users, each) for metric, each in values.items()}
        return found

    def judging_items(self, members: npt.NDArray[np.bool_]) -> Self | None:
        """Return the same recommender, judged by the pairs of some items; None without pairs."""
        pairs: Interactions = getattr(self.split, self.part)
        kept = pairs.take(members[pairs.items])
        part: dict[str, Any] = {self.part: kept}
        return self._like(self.scorer, split=replace(self.split, **part)) if len(kept) else None

    def judged_by(self, part: Part) -> Self:
        """Return the same recommender, judged by another part, which it was not fit on."""
        return self._like(self.scorer, part=part, mask=None)

    def renamed(self, label: str) -> Self:
        """Return the same recommender under another label, text on one line."""
        if not label.strip() or not label.isprintable():
            raise InputError(f"a label must be text on one line, got {label!r}")
        return self._like(self.scorer, label=label)

    def with_eval_users(self, users: int | None) -> Self:
        """Return the same recommender, judged by a seeded sample of users; None: by all."""
        if users is None:
            return self
        return self._like(self.scorer, split=self.split.with_eval_users(users))

    def serving(self, serve: str, damping: float = 0.5) -> Self:
        """Return the same recommender with stored users, or without.

        By ``fold-in``, a user's embedding is a linear function of the items of the user's history,
        fitted to the trained one, see :class:`robustcf.models.folding.Histories`. Known and new
        users are served alike, less memory is used, and an attack has no users to alter. Rankings
        change: compare ``evaluate()`` of both. By ``stored``, they are kept as they are.

        Args:
            serve: ``stored`` or ``fold-in``.
            damping: see :class:`robustcf.models.folding.Histories`.

        Raises:
            InputError: there are no interactions, or the factors have fixed columns.

        Example:
            >>> parity = np.eye(2)[np.arange(30) % 2]
            >>> from robustcf.data import checkerboard
            >>> model = Recommender(parity[:20], parity, checkerboard()).serving("fold-in")
            >>> model.kind, model.arrays.users.shape
            ('fold-in', torch.Size([4, 2]))
        """
        pairs = None if self._split is None else self.known
        scorer = served(self._factorized, serve, pairs, damping)
        if scorer is self.scorer:
            return self
        facts = {k: v for k, v in (self.training or {}).items() if k != "fold-in"}
        if scorer.histories is not None:
            facts["fold-in"] = {"damping": damping, **self._compared(self._like(scorer))}
        return self._like(scorer, training=facts or None)

    def _compared(self, other: Self) -> dict[str, Any]:
        """Return how alike the lists of a sample of users are, and NDCG@10 on valid if held out."""
        users = np.unique(np.linspace(0, self.n_users - 1, _COMPARED).astype(np.int64))
        mine, theirs = (m.scorer.top(users, 10, self.known).items for m in (self, other))
        shared = ((mine[:, :, None] == theirs[:, None, :]) & (mine >= 0)[:, :, None]).sum()
        facts: dict[str, Any] = {"overlap@10": round(float(shared / max(1, (mine >= 0).sum())), 4)}
        if self.fit_on == "train" and len(self.split.valid):
            for name, model in (("stored", self), ("fold-in", other)):
                sample = _COMPARED if self.n_users > _COMPARED else None
                judged = model.judged_by("valid").with_eval_users(sample)
                facts[f"valid ndcg@10, {name}"] = round(judged.evaluate((10,))["ndcg@10"], 4)
        return facts

    def with_factors(self, factors: Factors) -> Self:
        """Return the same recommender with other stored embeddings of its users and items."""
        own = self._factorized
        other = self._like(FactorScorer(factors, own.fixed, own.fold_in))
        if self._split is not None:
            other.relevant = self.relevant  # attacks compare its identity
        return other

    def _like(self, scorer: Scorer, **changes: Any) -> Self:
        kept = ("mask", "fit_on", "label", "user_labels", "item_labels", "training", "origin")
        own: dict[str, Any] = {name: getattr(self, name) for name in kept}
        own |= {"split": self._split, "item_counts": self._item_counts}
        own |= {"part": None if self._split is None else self.part}
        return type(self).of(scorer, **(own | changes))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        include_interactions: bool = True,
        include_test: bool = True,
    ) -> Path:
        """Write a folder that :func:`robustcf.open` reads on any machine, without the source data.

        Nothing is pickled, and the folder is written as a whole or not at all.

        Args:
            path: the folder; it must not exist yet, or be empty.
            include_interactions: without the interactions (for privacy) a recommender still serves,
                except for ``filter_seen`` and evaluations.
            include_test: whether to write the held-out test pairs.

        Raises:
            InputError: the path is taken, or the kind scores by its interactions.
            WriteError: it cannot be written.

        Example:
            >>> import tempfile, robustcf
            >>> model = Recommender(np.eye(2), np.eye(2), np.eye(2))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = model.save(f"{folder}/model")
            ...     robustcf.open(f"{folder}/model")
            Recommender(2 users x 2 items, 2 factors, judged by 2 train pairs)
        """
        from robustcf.recommender.saved import save

        return save(self, path, include_interactions, include_test)

    def card(self) -> str:
        """Audit it, and return a model card in Markdown.

        Data, threat model, quality, attacked and certified quality, serving, groups and limits. For
        other options use ``robustcf.audit(model, ...).card()``. Cost: that of an audit.
        """
        return str(importlib.import_module("robustcf.auditing.sharing").card_of(self))

    def push(
        self,
        repository: str,
        *,
        card: str | None = None,
        private: bool = True,
        token: str | None = None,
        endpoint: str | None = None,
        include_interactions: bool = True,
        include_test: bool = True,
    ) -> str:
        """Upload it to a repository of the Hugging Face hub (extra ``hub``); return the address.

        Args:
            repository: ``owner/name``, made if it does not exist.
            card: the README; None for :meth:`card`.
            private: whether a new repository is private.
            token: None for the one that is logged in.
            endpoint: another server; None for the hub, or ``HF_ENDPOINT``.
            include_interactions: see :meth:`save`.
            include_test: see :meth:`save`.
        """
        from robustcf.recommender.hub import push

        how: dict[str, Any] = {"private": private, "token": token, "endpoint": endpoint}
        how |= {"include_interactions": include_interactions, "include_test": include_test}
        return push(self, repository, self.card() if card is None else card, **how)

    @staticmethod
    def pull(repository: str, **options: Any) -> Recommender:
        """Return the recommender in a repository, see :func:`robustcf.recommender.hub.pull`."""
        from robustcf.recommender.hub import pull

        return pull(repository, **options)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the embeddings to a new file, in the format that they came in.

        Embeddings of this package give a ``.safetensors`` file of ``users`` and ``items``.
        """
        from robustcf.recommender.saved import export

        return export(self, Path(path))

    @property
    def _facts(self) -> dict[str, str]:
        facts = {"": self.label} if self.label else {}
        facts["size"] = f"{self.n_users:,} users x {self.n_items:,} items"
        if isinstance(self.scorer, FactorScorer):
            facts["scores"] = counted(self.scorer.arrays.dim, "factor")
            if self.histories is not None:
                facts["users"] = "users computed from their histories"
            if self.fixed:
                facts["fixed"] = f"{counted(len(self.fixed), 'column')} held fixed"
        elif self.kind != self.label:
            facts["scores"] = self.kind
        facts["judged"] = "without interactions"
        if self.has_interactions:
            facts["judged"] = f"judged by {len(self.relevant):,} {self.part} pairs"
        return facts

    def __repr__(self) -> str:
        return f"Recommender({', '.join(self._facts.values())})"

    def __str__(self) -> str:
        return wrapped(repr(self), indent=12)

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
            f"expected a Recommender, got {type(model).__name__}: make one of embeddings and the "
            "pairs they were fit on, Recommender(U, V, interactions)"
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
