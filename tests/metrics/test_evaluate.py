"""Full-ranking evaluation: exact top lists, the protocol, and independence of blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from robustcf.data import EvaluationProtocol, Interactions, Split, load
from robustcf.errors import DataError, InputError
from robustcf.factors import Factors
from robustcf.metrics import evaluate, top_items, topk
from tests.metrics.test_ranking import trec


def slow_top(factors: Factors, users: list[int], k: int, seen: Interactions | None) -> np.ndarray:
    """One user at a time, float64, sorted by Python."""
    U, V = factors.users.double().numpy(), factors.items.double().numpy()
    top = np.full((len(users), min(k, len(V))), -1)
    for row, u in enumerate(users):
        gone = set() if seen is None else set(seen.items_of(u).tolist())
        left = [i for i in range(len(V)) if i not in gone]
        ranked = sorted(left, key=lambda i: (-float(U[u] @ V[i]), i))[:k]
        top[row, : len(ranked)] = ranked
    return top


def tied_factors(rng: np.random.Generator, *rows: int) -> Factors:
    """Few distinct small integers: many exact ties, exact arithmetic."""
    return Factors(*(torch.tensor(rng.integers(-1, 2, (n, 2))).float() for n in rows))


def random_split(rng: np.random.Generator, n_users: int, n_items: int) -> Split:
    """Every cell falls into train, valid, test or none."""
    cells = rng.choice(4, size=(n_users, n_items), p=[0.2, 0.1, 0.2, 0.5])
    cells[0, 0] = 0
    parts = [Interactions(*np.nonzero(cells == part), n_users, n_items) for part in range(3)]
    return Split("random", *parts)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_items_are_those_of_a_plain_sort(seed: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    split = random_split(rng, 30, 25)
    factors = Factors(*(torch.tensor(rng.standard_normal((n, 5)), dtype=dtype) for n in (30, 25)))
    users = rng.permutation(30)[:20].tolist()
    for k in (1, 7, 25, 40):
        got = top_items(factors, users, k, split.train)
        assert np.array_equal(got, slow_top(factors, users, k, split.train))


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_ties_go_to_the_lower_id(seed: int, k: int, n_items: int) -> None:
    rng = np.random.default_rng(seed)
    factors = tied_factors(rng, 6, n_items)
    seen = Interactions(*np.nonzero(rng.random((6, n_items)) < 0.3), 6, n_items)
    got = top_items(factors, range(6), k, seen)
    assert np.array_equal(got, slow_top(factors, list(range(6)), k, seen))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_groups_of_a_large_catalogue(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_items = 5_003  # not a multiple of the group size
    V = rng.standard_normal((n_items, 3)).astype(np.float32)
    V[rng.integers(0, n_items, 2000)] = V[7]  # ties across groups
    factors = Factors(
        torch.tensor(rng.standard_normal((8, 3)), dtype=torch.float32), torch.tensor(V)
    )
    chosen = rng.random((8, n_items)) < np.linspace(0.0, 1.0, 8)[:, None]  # the last has seen all
    seen = Interactions(*np.nonzero(chosen), 8, n_items)
    got = top_items(factors, range(8), 10, seen)
    assert np.array_equal(got, slow_top(factors, list(range(8)), 10, seen))
    assert (got[-1] == -1).all()


@pytest.mark.parametrize("many", [topk._MANY, 20])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_catalogues_that_leave_doubt_everywhere(
    seed: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users of zeros, items in many copies, scores that differ in their last digits alone."""
    monkeypatch.setattr(topk, "_MANY", many)
    rng = np.random.default_rng(seed)
    copies = rng.normal(size=(7, 6))[rng.integers(7, size=300)]
    flat = 1 + rng.normal(size=(300, 6)) * 1e-7
    for items in (copies, flat, rng.normal(size=(300, 6))):
        users = rng.normal(size=(9, 6))
        users[::3] = 0
        factors = Factors.of(users.astype(np.float32), items.astype(np.float32))
        pairs = Interactions.from_pairs(
            rng.integers(9, size=80), rng.integers(300, size=80), 9, 300
        )[0]
        top = top_items(factors, np.arange(9), 10, pairs)
        for user in range(9):
            scores = topk.dot64(factors.users[user][None, :], factors.items).tolist()
            unseen = set(range(300)) - set(pairs.items_of(user).tolist())
            assert top[user].tolist() == sorted(unseen, key=lambda i: (-scores[i], i))[:10]


def test_near_ties_are_ranked_exactly() -> None:
    # All scores agree to about float32's last digit: bulk scores alone cannot rank them.
    rng = np.random.default_rng(0)
    V = np.ones((3000, 4), dtype=np.float32)
    V[:, 0] += rng.integers(0, 4, 3000) * np.float32(2**-23)
    factors = Factors(torch.tensor([[1.0, 1e3, -1e3, 1.0]]), torch.tensor(V))
    assert np.array_equal(top_items(factors, [0], 12), slow_top(factors, [0], 12, None))


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_every_user_agrees_with_trec_eval(seed: int, n_users: int, n_items: int) -> None:
    """Ties in masses, users with few items left, cutoffs beyond the catalogue, one item."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(4, size=(n_users, n_items), p=[0.4, 0.1, 0.3, 0.2])
    cells[0, 0] = 0
    parts = [Interactions(*np.nonzero(cells == n), n_users, n_items) for n in range(3)]
    assume(len(parts[2]))
    split = Split("random", *parts)
    factors = tied_factors(rng, n_users, n_items)
    report = evaluate(factors, split, ks=(1, 3, 15))
    users = report.users.tolist()
    top = slow_top(factors, users, 15, split.train_full)
    relevant = [set(split.test.items_of(u).tolist()) for u in users]
    names = {"ndcg": "ndcg", "recall": "recall", "precision": "precision", "hit_rate": "hit_rate",
             "average_precision": "map", "reciprocal_rank": "mrr"}  # fmt: skip
    for k in (1, 3, 15):
        for theirs, expected in trec(top, relevant, k).items():
            got = report.per_user[f"{names[theirs]}@{k}"]
            np.testing.assert_allclose(got, expected, atol=1e-12, err_msg=f"{theirs}@{k}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_ranked_as_its_float32_value(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    half = Factors(*(torch.tensor(rng.standard_normal((n, 3))).to(dtype) for n in (4, 50)))
    wide = Factors(half.users.float(), half.items.float())
    assert np.array_equal(top_items(half, range(4), 5), top_items(wide, range(4), 5))


def test_one_item_and_more_ranks_than_items() -> None:
    factors = Factors(torch.ones(2, 1), torch.ones(1, 1))
    assert top_items(factors, [0, 1], 3).tolist() == [[0], [0]], "no more than there are"
    assert top_items(Factors(torch.ones(2, 1), torch.ones(0, 1)), [0], 2).shape == (1, 0)
    assert top_items(factors, [], 3).shape == (0, 1)


def test_protocol_counts_users_and_names_masks() -> None:
    train = Interactions.from_pairs([0, 1, 2], [0, 1, 2], 3, 4)[0]
    valid = Interactions.from_pairs([0], [1], 3, 4)[0]
    test = Interactions.from_pairs([0, 1], [2, 3], 3, 4)[0]
    split = Split("own.csv", train, valid, test)
    report = evaluate(Factors(torch.ones(3, 1), torch.ones(4, 1)), split, ks=(1, 2))
    protocol = report.protocol
    assert (protocol.n_users, protocol.n_users_left_out) == (2, 1)
    assert protocol.masked == ("train", "valid")
    assert report.users.tolist() == [0, 1]
    # User 0: items 0 and 1 masked, 2 comes first. User 1: item 1 masked, then 0, 2, 3 tie.
    assert report.per_user["recall@1"].tolist() == [1.0, 0.0]
    assert report["coverage@1"] == 0.5
    assert "1 without are left out" in str(report.protocol)
    assert report.as_dict()["protocol"]["masked"] == ["train", "valid"]
    assert "recall" in str(report)
    assert "pairs of train and valid masked" in str(report)
    on_valid = evaluate(Factors(torch.ones(3, 1), torch.ones(4, 1)), split, part="valid")
    assert on_valid.protocol.masked == ("train",)


def test_mask_is_an_option() -> None:
    split = random_split(np.random.default_rng(0), 20, 15)
    factors = Factors(torch.ones(20, 1), torch.ones(15, 1))
    nothing = evaluate(factors, split, mask=())
    assert nothing.protocol.masked == ()
    assert "pairs of nothing masked" in str(nothing.protocol)
    less = evaluate(factors, split, mask=("train",))
    more = evaluate(factors, split, mask=("train", "valid"))
    assert less["recall@10"] <= more["recall@10"]
    rest = evaluate(factors, split, part="valid", mask=("train", "test"))
    assert rest.protocol.masked == ("train", "test")


def test_the_protocol_of_a_split_says_what_is_masked() -> None:
    train, valid, test = (Interactions.from_pairs([0], [n], 1, 3)[0] for n in range(3))
    published = Split("set", train, valid, test, protocol=EvaluationProtocol(test=("train",)))
    assert published.masked("test") == ("train",)
    carved = Split("set", train, valid, test, valid_source="carved")
    assert carved.masked("test") == ("train", "valid")
    own = Split("mine.csv", train, valid, test, valid_source="published")
    assert own.masked("test") == ("train", "valid")
    assert own.masked("valid") == ("train",)
    assert own.masked("train") == ()
    without = Split("mine.csv", train, valid.take(np.array([False])), test, valid_source="none")
    assert without.masked("test") == ("train",)
    # And an evaluation goes by it.
    factors = Factors(torch.ones(1, 1), torch.tensor([[3.0], [2.0], [1.0]]))
    assert evaluate(factors, published, (1,))["recall@1"] == 0.0, "valid stays a candidate"
    assert evaluate(factors, own, (1,))["recall@1"] == 1.0
    with pytest.raises(DataError, match="train"):
        own.masked("tset")


def test_train_is_for_what_was_learnt() -> None:
    split = random_split(np.random.default_rng(1), 12, 9)
    rng = np.random.default_rng(2)
    factors = Factors(*(torch.tensor(rng.normal(size=(n, 3))) for n in (12, 9)))
    report = evaluate(factors, split, ks=(4,), part="train")
    assert (report.protocol.part, report.protocol.masked) == ("train", ())
    users = report.users.tolist()
    assert users == np.flatnonzero(split.train.user_degrees).tolist()
    top = slow_top(factors, users, 4, None)
    relevant = [set(split.train.items_of(u).tolist()) for u in users]
    expected = trec(top, relevant, 4)["ndcg"]
    np.testing.assert_allclose(report.per_user["ndcg@4"], expected, atol=1e-12)
    with pytest.raises(InputError, match="evaluating"):
        evaluate(factors, split, part="train", mask=("train",))


@pytest.mark.realdata
def test_the_protocols_of_the_real_sets(real_data: Path) -> None:
    for name, masked in (("ml-1m", ("train",)), ("yelp2018", ("train", "valid"))):
        split = load(name, data_dir=real_data, download=False)
        assert split.masked("test") == masked
        assert split.masked("valid") == ("train",)


def test_bad_input() -> None:
    split = random_split(np.random.default_rng(0), 6, 5)
    good = Factors(torch.ones(6, 2), torch.ones(5, 2))
    nan = Factors(torch.full((6, 2), torch.nan), torch.ones(5, 2))
    inf = Factors(torch.ones(6, 2), torch.full((5, 2), torch.inf))
    tiny, one = Factors(*torch.ones(2, 1, 1)), Interactions.from_pairs([0], [0], 1, 1)[0]
    none = one.take(np.array([False]))
    cases = [
        (lambda: evaluate(good, split, ks=()), "at least one cutoff"),
        (lambda: evaluate(good, split, ks=(0,)), "every cutoff"),
        (lambda: evaluate(good, split, ks=(True,)), "every cutoff"),
        (lambda: evaluate(good, split, part="tests"), "part must be one of train, valid, test"),
        (lambda: evaluate(good, split, mask=("test",)), "cannot be masked"),
        (lambda: evaluate(good, split, mask=("tset",)), "mask must name parts"),
        (lambda: evaluate(good, split, mask=("train", "train")), "mask must name parts"),
        (lambda: evaluate(Factors(torch.ones(2, 2), good.items), split), "different data"),
        (lambda: evaluate(nan, split), "users must be finite, got nan in row 0"),
        (lambda: evaluate(inf, split), "items must be finite, got inf in row 0"),
        (lambda: evaluate(tiny, Split("x", one, none, none)), "nothing to evaluate"),
        (lambda: top_items(good, [6], 1), r"must be in \[0, 6\)"),
        (lambda: top_items(good, [-1], 1), "user ids"),
        (lambda: top_items(good, [0.5], 1), "integer ids"),
        (lambda: top_items(good, [0], 0), "k must be"),
        (lambda: top_items(good, [0], 1, one), "different data"),
        (lambda: top_items(good, [0], 1, block_users=0), "block_users"),
        (lambda: evaluate(good, split)["auc@3"], "no metric 'auc@3'"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
