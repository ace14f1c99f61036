"""Tests that every recommender passes, for authors of models and kinds of their own.

Derive a class from :class:`RecommenderContract` in a test file, say how yours is fit, and pytest
(or any other runner of ``test_`` methods) checks the whole contract::

    from robustcf.testing import RecommenderContract

    class TestMine(RecommenderContract):
        def fit(self, split):
            return Mine(dim=8).fit(split)

Nothing here imports pytest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from robustcf._io.schema import shown
from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.recommender import Recommender, open_recommender

__all__ = ["ContractError", "RecommenderContract", "labelled_split"]


class ContractError(AssertionError):
    """A recommender breaks the contract."""


def labelled_split(seed: int = 0, n_users: int = 40, n_items: int = 30) -> Split:
    """Return a small split with text labels, in which users have tastes that can be learnt.

    Example:
        >>> labelled_split().user_labels[:2].tolist()
        ['user 000', 'user 001']
    """
    rng = np.random.default_rng(seed)
    taste, theme = rng.integers(0, 3, n_users), rng.integers(0, 3, n_items)
    chance = np.where(taste[:, None] == theme[None, :], 0.55, 0.08)
    has = rng.random((n_users, n_items)) < chance
    # Every user has an item, and every item a user.
    has[np.arange(n_users), rng.integers(0, n_items, n_users)] = True
    has[rng.integers(0, n_users, n_items), np.arange(n_items)] = True
    part = rng.choice(3, size=has.shape, p=[0.7, 0.1, 0.2])
    part[np.arange(n_users), has.argmax(axis=1)] = 0
    labels = {
        "user_labels": np.array([f"user {n:03d}" for n in range(n_users)]),
        "item_labels": np.array([f"item {n:03d}" for n in range(n_items)]),
    }
    train, valid, test = (
        Interactions.from_csr((has & (part == n)).astype(int), **labels) for n in range(3)
    )
    return Split("labelled", train, valid, test)


class RecommenderContract:
    """Tests for every kind of recommender; define :meth:`fit` and run them."""

    def fit(self, split: Split) -> Recommender:
        """Return a recommender that was fit on the split."""
        raise NotImplementedError("say how the recommender is fit: def fit(self, split)")

    @property
    def _fitted(self) -> tuple[Recommender, Split]:
        split = labelled_split()
        return self.fit(split), split

    def test_is_a_recommender_of_its_data(self) -> None:
        """It has the users, the items and the labels of its training data."""
        model, split = self._fitted
        _expect(isinstance(model, Recommender), "fit must return a Recommender")
        _same((model.n_users, model.n_items), (split.n_users, split.n_items), "sizes")
        _same(model.user_labels, split.user_labels, "user labels")
        _same(model.item_labels, split.item_labels, "item labels")
        _expect("\n" not in repr(model), "the repr must be one line")

    def test_recommends_a_table_of_labels(self) -> None:
        """One label, several and all give the same rows; scores descend and ranks count."""
        model, split = self._fitted
        all_users = model.recommend(k=5)
        _same(all_users.columns.tolist(), ["user", "rank", "item", "score"], "columns")
        known = set(split.item_labels.tolist()) if split.item_labels is not None else set()
        _expect(set(all_users["item"]) <= known, "items must be labels")
        for user, rows in all_users.groupby("user", sort=False):
            _same(rows["rank"].tolist(), list(range(1, len(rows) + 1)), "ranks")
            _expect(bool((np.diff(rows["score"]) <= 0).all()), "scores must descend")
            _expect(rows["item"].is_unique, "an item must be recommended once")
            alone = model.recommend(user, k=5)
            _same(alone["item"].tolist(), rows["item"].tolist(), f"items of {user} alone")
            np.testing.assert_allclose(alone["score"], rows["score"], rtol=1e-9)

    def test_leaves_out_what_users_have(self) -> None:
        """With ``filter_seen`` no item of train or valid is recommended; without, some are."""
        model, split = self._fitted
        whole = model.recommend(k=split.n_items)
        seen = _labelled_pairs(split.train_full)
        found = set(zip(whole["user"], whole["item"], strict=True))
        _expect(not found & seen, "an item that a user has was recommended")
        _same(len(found) + len(seen), split.n_users * split.n_items, "every other item is ranked")
        again = model.recommend(k=split.n_items, filter_seen=False)
        _same(len(again), split.n_users * split.n_items, "pairs without filter_seen")

    def test_keeps_to_the_candidates(self) -> None:
        """Candidates are ranked as in the whole catalogue."""
        model, split = self._fitted
        chosen = np.asarray(split.item_labels)[3:17].tolist()
        whole = model.recommend(k=split.n_items)
        among = whole[whole["item"].isin(chosen)].groupby("user", sort=False)["item"].apply(list)
        part = model.recommend(k=20, candidates=chosen).groupby("user", sort=False)["item"]
        _same(part.apply(list).to_dict(), among.to_dict(), "candidates")

    def test_serves_a_new_user(self) -> None:
        """A history is enough: what it holds is left out, and order and repeats do not matter."""
        model, split = self._fitted
        history = _history(split)
        found = model.recommend(items=history, k=6)
        _same(len(found), 6, "items for a new user")
        _expect(not set(found["item"]) & set(history), "an item of the history was recommended")
        again = model.recommend(items=[*history[::-1], history[0]], k=6)
        _same(again["item"].tolist(), found["item"].tolist(), "order of the history")

    def test_refuses_what_it_does_not_know(self) -> None:
        """Unknown labels are errors; with ``unknown='popular'`` they get popular items."""
        model, split = self._fitted
        _raises(InputError, lambda: model.recommend("unknown"))
        _raises(InputError, lambda: model.recommend(items=["nothing"]))
        _raises(InputError, lambda: model.recommend(items=[]))
        popular = model.recommend(["unknown"], k=3, unknown="popular")
        counts = split.fit_pairs(model.fit_on).item_degrees
        best = np.argsort(-counts, kind="stable")[:3]
        _same(popular["item"].tolist(), np.asarray(split.item_labels)[best].tolist(), "popular")

    def test_finds_similar_items(self) -> None:
        """Similar items differ from the item itself, and scores descend."""
        model, split = self._fitted
        label = str(np.asarray(split.item_labels)[4])
        found = model.similar(label, k=5)
        _same(found.columns.tolist(), ["item", "rank", "similar", "score"], "columns")
        _expect(label not in set(found["similar"]), "an item must not be similar to itself")
        _expect(bool((np.diff(found["score"]) <= 1e-12).all()), "scores must descend")

    def test_is_evaluated_by_its_rankings(self) -> None:
        """The hit rate is that of its own recommendations."""
        model, split = self._fitted
        report = model.evaluate(ks=(5,))
        top = model.scorer.rank(np.arange(split.n_users), 5, model.seen)
        held = [set(split.test.items_of(user).tolist()) for user in range(split.n_users)]
        hits = [not own.isdisjoint(row) for own, row in zip(held, top.tolist(), strict=True) if own]
        _expect(abs(report["hit_rate@5"] - float(np.mean(hits))) < 1e-9, "hit rate")

    def test_is_the_same_after_saving(self) -> None:
        """An opened recommender recommends, folds in and is evaluated as before."""
        model, split = self._fitted
        history = _history(split)
        with tempfile.TemporaryDirectory() as folder:
            opened = open_recommender(model.save(Path(folder) / "model"), allow_code=True)
            before, after = (
                [each.recommend(k=5), each.recommend(items=history, k=5), each.similar(history[0])]
                for each in (model, opened)
            )
            for one, other in zip(before, after, strict=True):
                _expect(other.equals(one), "an opened recommender must be the same")
            _same(opened.evaluate().values, model.evaluate().values, "metrics")
            _same(opened.split.fingerprint, model.split.fingerprint, "pairs")

    def test_serves_without_its_interactions(self) -> None:
        """Saved without interactions it serves, or says that it scores by them."""
        model, split = self._fitted
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "model"
            if model.scorer.stored().needs_interactions:
                _raises(InputError, lambda: model.save(place, include_interactions=False))
                return
            saved = model.save(place, include_interactions=False)
            opened = open_recommender(saved, allow_code=True)
            wanted = model.recommend("user 003", k=5, filter_seen=False)
            _expect(opened.recommend("user 003", k=5, filter_seen=False).equals(wanted), "serving")
            _same(len(opened.recommend(items=_history(split), k=5)), 5, "items for a new user")
            _raises(InputError, lambda: opened.recommend("user 003"))
            _raises(InputError, lambda: opened.evaluate())


def _history(split: Split) -> list[str]:
    own: list[str] = np.asarray(split.item_labels)[split.train.items_of(3)].tolist()
    return own


def _labelled_pairs(pairs: Interactions) -> set[tuple[Any, Any]]:
    users, items = np.asarray(pairs.user_labels), np.asarray(pairs.item_labels)
    return set(zip(users[pairs.users].tolist(), items[pairs.items].tolist(), strict=True))


def _expect(condition: bool, words: str) -> None:
    if not condition:
        raise ContractError(words)


def _same(found: Any, expected: Any, what: str) -> None:
    array = isinstance(expected, np.ndarray)
    alike = np.array_equal(found, expected) if array else found == expected
    _expect(bool(alike), f"{what}: expected {shown(expected)}, got {shown(found)}")


def _raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise ContractError(f"expected {kind.__name__}, got none")
