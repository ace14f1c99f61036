"""Recommender of any arrays: evaluated as by a naive ranking; errors name the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from robustcf.attacks.cutoff import Cutoff
from robustcf.data import Interactions, Split, checkerboard, load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.objectives import BCEConfig
from robustcf.recommender import Recommender
from robustcf.robustness import Threat, harden, measure
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from tests.robustness.helpers import random_target, random_world

SEEDS = [0, 1, 2]


def naive_recall(U, V, hidden, relevant, k) -> dict[int, float]:
    """User by user, sorted by Python; ties to the lower id."""
    found = {}
    for user in range(len(U)):
        own = set(np.flatnonzero(relevant[user]))
        if own:
            left = [item for item in range(len(V)) if not hidden[user, item]]
            top = sorted(left, key=lambda item: (-float(U[user] @ V[item]), item))[:k]
            found[user] = len(own & set(top)) / len(own)
    return found


def check_clean(target: Recommender, expected: dict[int, float], k: int) -> None:
    report = target.evaluate((k,))
    assert report.users.tolist() == list(expected)
    np.testing.assert_allclose(report.per_user[f"recall@{k}"], list(expected.values()))


ARRAYS = {
    "float64": lambda a: a,
    "float32": lambda a: a.astype(np.float32),
    "fortran": np.asfortranarray,
    "foreign bytes": lambda a: a.astype(a.dtype.newbyteorder()),
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "read-only": lambda a: np.frombuffer(a.tobytes()).reshape(a.shape),
    "lists": lambda a: a.tolist(),
    "tuples": lambda a: tuple(map(tuple, a)),
    "tensor": torch.from_numpy,
    "float32 tensor": lambda a: torch.from_numpy(a).float(),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ARRAYS)
def test_any_array_of_numbers_is_judged_as_a_naive_ranking_does(kind, seed):
    U, V, train, test = random_world(seed)
    made = [ARRAYS[kind](part) for part in (U, V)]
    target = Recommender(*made, train, test)
    assert (target.part, target.mask, target.fit_on) == ("test", ("train",), "train")
    wide = [np.asarray(part).astype(np.float64) for part in made]
    check_clean(target, naive_recall(*wide, train, test, 5), 5)
    assert target.factors.users.dtype == (torch.float32 if "32" in kind else torch.float64)


MATRICES = {
    **{
        f"{name}_{kind}": getattr(sp, f"{name}_{kind}")
        for name in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")
        for kind in ("matrix", "array")
    },
    "bool": lambda a: a.astype(bool),
    "float": lambda a: a.astype(np.float64),
    "int8": lambda a: a.astype(np.int8),
    "ratings": lambda a: 3.5 * a,
    "stored zeros": lambda a: sp.csr_matrix(
        (a.ravel(), np.tile(np.arange(a.shape[1]), len(a)), np.arange(len(a) + 1) * a.shape[1]),
        shape=a.shape,
    ),
    "Interactions": lambda a: Interactions(*np.nonzero(a), *a.shape),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_any_matrix_of_interactions_is_the_same_pairs(kind):
    U, V, train, test = random_world(1)
    make = MATRICES[kind]
    target = Recommender(U, V, make(train), make(test))
    plain = Recommender(U, V, train, test)
    for part in ("known", "relevant", "seen"):
        ours, theirs = getattr(target, part), getattr(plain, part)
        np.testing.assert_array_equal(ours.users, theirs.users)
        np.testing.assert_array_equal(ours.items, theirs.items)
    assert target.evaluate().values == plain.evaluate().values
    first, second = (measure(t, "fgm-bce", epsilons=[0, 0.3]).curve for t in (target, plain))
    assert first.as_dict() == second.as_dict(), "ratings do not count, pairs do"


def test_kinds_of_interactions_may_be_mixed_and_named():
    U, V, train, test = random_world(2)
    plain = Recommender(U, V, train, test).evaluate().values
    held, pairs = (Interactions(*np.nonzero(matrix), *train.shape) for matrix in (test, train))
    names = {"user_labels": np.arange(30) + 100, "item_labels": [f"item {n}" for n in range(40)]}
    named = Interactions.from_csr(train, **{name: np.array(own) for name, own in names.items()})
    for given in ((pairs, test), (sp.csr_matrix(train), held), (named, sp.csr_matrix(test))):
        assert Recommender(U, V, *given).evaluate().values == plain


def test_a_split_brings_its_parts_and_its_protocol():
    board = checkerboard()
    U, V = (np.random.default_rng(0).normal(size=(n, 3)) for n in (20, 30))
    target = Recommender(U, V, board)
    assert (target.part, target.mask) == ("test", ("train", "valid"))
    assert (target.known, target.relevant) == (board.train, board.test)
    on_valid = Recommender(U, V, board, part="valid")
    assert (on_valid.mask, on_valid.relevant) == (("train",), board.valid)
    refit = Recommender(U, V, board, fit_on="train and valid")
    assert (refit.known, refit.mask) == (board.train_full, ("train", "valid"))
    other = Recommender(U, V, board, mask=())
    assert other.seen is None
    assert other.evaluate()["recall@10"] <= target.evaluate()["recall@10"]


@pytest.mark.parametrize("seed", SEEDS)
def test_without_held_out_pairs_it_is_judged_by_training_pairs(seed):
    U, V, train, _ = random_world(seed)
    target = Recommender(U, V, train)
    assert (target.part, target.mask, target.seen) == ("train", (), None)
    assert target.relevant is target.known
    check_clean(target, naive_recall(U, V, np.zeros_like(train), train, 5), 5)
    assert str(target).endswith(f"judged by {train.sum()} train pairs)")
    curve = measure(target, "fgm-softmax", epsilons=[0, 1]).curve
    assert (curve.protocol.part, curve.protocol.masked) == ("train", ())
    assert curve["ndcg@10"][1] < curve["ndcg@10"][0]
    certified = measure(target, "certificate", epsilons=[0, 0.01]).curve
    assert 0 < certified["ndcg@10"][1] <= certified["ndcg@10"][0]
    cutoff = measure(target, "cutoff", epsilons=[0, 1], steps=5).curve
    assert cutoff.threat.knowledge == "data"
    assert cutoff["ndcg@10"][1] < curve["ndcg@10"][1], "it attacks the relevant pairs"
    with pytest.raises(InputError, match="knowledge"):
        measure(target, "fgm-softmax", Threat(knowledge="labels"), [0, 1])
    refit = Recommender(U, V, train, fit_on="train and valid")
    assert refit.evaluate().values == target.evaluate().values


def test_one_user_one_item_one_column():
    target = Recommender(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    assert measure(target, "random", epsilons=[0, 0.5]).curve["ndcg@10"].tolist() == [1.0, 1.0]
    assert measure(target, "certificate", epsilons=[0, 0.5]).curve["ndcg@10"][1] == 1.0


def test_a_trained_model_is_a_target():
    split = load("demo")
    trained = fit_split(
        split, TrainConfig.of(model="ultragcn", factors=4, epochs=1, negative_weight=7.0)
    )
    target = trained.recommender()
    assert (target.fit_on, target.label) == ("train and valid", "ultragcn, weight_decay")
    assert target.bce == BCEConfig(negative_weight=7.0)
    assert target.known == split.train_full
    assert target.evaluate().values == trained.evaluate().values
    assert target.renamed("mine").label == "mine"
    bpr = fit_split(split, TrainConfig.of(model="bpr-mf", factors=4, epochs=0)).recommender()
    assert (bpr.bce, bpr.label) == (None, "bpr-mf, weight_decay")
    with pytest.raises(InputError, match="train"):
        target.judged_by("valid")


def test_other_factors_in_the_place_of_the_first():
    target = random_target(0, fixed=(1,), label="mine", bce=BCEConfig(), mask=("train",))
    other = target.with_factors(Factors(2 * target.factors.users, target.factors.items))
    for name in ("split", "part", "mask", "fit_on", "fixed", "label", "bce"):
        assert getattr(other, name) == getattr(target, name)
    assert other.evaluate().values == target.evaluate().values
    assert other.free == [0, 2, 3, 4]
    assert "1 column held fixed" in str(other)


STORY = """
from robustcf import Recommender, certify, harden, measure
model = Recommender(U, V, train, test)
attacked = measure(model, "auto", epsilons=[0, 0.01, 0.1])
certified = certify(model, [0, 0.01, 0.1])
safer = harden(model)
print(attacked, certified, measure(safer, "auto", epsilons=[0, 0.01, 0.1]), sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_numpy_and_scipy_are_attacked_certified_and_hardened_in_six_lines(seed, capsys):
    U, V, train, test = random_world(seed)
    V = V + 3.0  # a constant direction, as a cross-entropy leaves it
    names = {"U": U, "V": V, "train": sp.csr_matrix(train), "test": sp.csr_matrix(test)}
    exec(STORY, names)
    printed = capsys.readouterr().out
    assert sum(line.lstrip().startswith("size  ndcg@10") for line in printed.splitlines()) == 3
    attacked, certified, safer = names["attacked"], names["certified"], names["safer"]
    expected = naive_recall(U, V, train, test, 20)
    assert attacked.curve["recall@20"][0] == pytest.approx(np.mean(list(expected.values())))
    assert certified.curve["recall@20"][0] == attacked.curve["recall@20"][0]
    for metric, values in certified.curve.per_user.items():
        assert (values <= attacked.curve.per_user[metric] + 1e-12).all()
    assert safer.evaluate()["ndcg@10"] == attacked.curve["ndcg@10"][0], "the same rankings"
    proved = measure(safer, "certificate", epsilons=[0.01]).curve["ndcg@10"][0]
    assert proved > certified.curve["ndcg@10"][1], "and more of them can be proved"


def test_precisions_and_integers_become_floats_of_one_precision():
    U, V, train, _ = random_world(0)
    mixed = Recommender(U.astype(np.float32), V, train).factors
    assert mixed.users.dtype == mixed.items.dtype == torch.float64
    np.testing.assert_array_equal(mixed.users.numpy(), U.astype(np.float32))
    half = Recommender(torch.from_numpy(U).half(), torch.from_numpy(V).bfloat16(), train).factors
    assert half.users.dtype == half.items.dtype == torch.float32
    for whole in (np.int8, np.uint8, np.int64):
        counts = (np.arange(150).reshape(30, 5) % 7).astype(whole)
        factors = Recommender(counts, torch.ones(40, 5, dtype=torch.int32), train).factors
        assert factors.users.dtype == factors.items.dtype == torch.float32
        np.testing.assert_array_equal(factors.users.numpy(), counts)


def test_tensors_of_a_graph_are_taken_out_of_it():
    U, V, train, test = random_world(0)
    own = torch.from_numpy(U.copy()).requires_grad_()
    target = Recommender(own, torch.nn.Parameter(torch.from_numpy(V.copy())), train, test)
    assert not target.factors.users.requires_grad
    assert not target.factors.items.requires_grad
    assert target.factors.users.data_ptr() == own.data_ptr(), "not copied"
    plain = measure(Recommender(U, V, train, test), "pgd-softmax", epsilons=[0, 0.3])
    assert measure(target, "pgd-softmax", epsilons=[0, 0.3]).curve.as_lists() == (
        plain.curve.as_lists()
    )
    assert own.requires_grad
    assert own.grad is None


U, V, TRAIN, TEST = random_world(0)
BOARD = checkerboard()
SPARSE = torch.from_numpy(TRAIN).to_sparse()


def spoilt(value: float) -> np.ndarray:
    return np.where(np.arange(U.size).reshape(U.shape) == 7 * U.shape[1] + 2, value, U)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((U[:-1], V, TRAIN, TEST), "different data"),
        ((U, V[:-1], TRAIN, TEST), "different data"),
        ((V, U, TRAIN, TEST), "swapped"),
        ((U, V[:, :-1], TRAIN), "columns"),
        ((U[:, 0], V, TRAIN), "matrix"),
        (([[1.0], [1.0, 2.0]], V, TRAIN), "matrix"),
        (([["a"]], V, TRAIN), "numbers"),
        ((torch.ones(30, 5, dtype=torch.bool), V, TRAIN), "bool"),
        ((U, torch.from_numpy(V).to_sparse(), TRAIN), "dense"),
        ((U[:0], V, TRAIN), "U has no rows"),
        ((U, V[:0], TRAIN), "V has no rows"),
        ((U[:, :0], V[:, :0], TRAIN), "U has no columns"),
        ((U.astype(object), V, TRAIN), "object"),
        ((U * 1j, V, TRAIN), "complex"),
        ((spoilt(np.nan), V, TRAIN), "got nan in row 7"),
        ((spoilt(-np.inf), V, TRAIN), "got -inf in row 7"),
        ((U, V, None, TEST), "needs interactions"),
        ((U, V, TRAIN[0]), "matrix"),
        ((U, V, "nowhere/train.csv"), "no such file"),
        ((U, V, SPARSE), "Tensor"),
        ((U, V, TRAIN, SPARSE), "Tensor"),
        ((U, V, -TRAIN), "at least 0"),
        ((U, V, np.where(TRAIN, np.nan, 0)), "finite"),
        ((U, V, np.zeros_like(TRAIN)), "at least one"),
        ((U, V, TRAIN, TEST[:, :-1]), "same users and items"),
        ((U, V, TRAIN, TRAIN), "both"),
        ((U, V, TRAIN, np.zeros_like(TEST)), "no pairs"),
        ((U[:20], V[:30], BOARD, TEST), "Split"),
    ],
)
def test_data_that_do_not_fit(arguments: tuple[Any, ...], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Recommender(*arguments)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"part": "valid"}, "no valid pairs"),
        ({"part": "tset"}, "part"),
        ({"fit_on": "all"}, "fit_on"),
        ({"fixed": [5]}, "fixed columns"),
        ({"fixed": [-1]}, "at least 0"),
        ({"fixed": [0.5]}, "integer"),
        ({"fixed": 3}, "list"),
        ({"fixed": range(5)}, "all columns"),
        ({"mask": ["tests"]}, "mask"),
        ({"mask": ["test"]}, "masked"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Recommender(U, V, TRAIN, TEST, **options).evaluate()
    with pytest.raises(InputError):
        Recommender(U[:20], V[:30], BOARD, fit_on="train and valid", part="valid")
    with pytest.raises(InputError):
        Recommender(U, V, TRAIN, part="test")


def test_a_split_without_test_pairs_is_judged_by_train_unless_valid_is_asked_for():
    none = BOARD.test.take(np.zeros(len(BOARD.test), dtype=bool))
    split = Split("half", BOARD.train, BOARD.valid, none)
    assert Recommender(U[:20], V[:30], split).part == "train"
    assert Recommender(U[:20], V[:30], split, part="valid").relevant == BOARD.valid


@pytest.fixture(scope="module")
def demo() -> tuple[Split, Factors]:
    split = load("demo")
    how = {"model": "ultragcn", "factors": 8, "init": "smooth", "epochs": 0, "refit": "no"}
    return split, fit_split(split, TrainConfig.of(**how)).factors


@pytest.mark.parametrize("part", ["test", "valid"])
def test_pairs_of_a_sample_of_users_are_the_labels(demo, part):
    split, factors = demo
    whole = Recommender(*factors, split, part=part)
    assert whole.relevant is getattr(split, part)
    some = Recommender(*factors, split.with_eval_users(60), part=part)
    judged = some.evaluate((10,)).users
    assert len(judged) == 60
    assert np.array_equal(np.unique(some.relevant.users), judged)
    degrees = whole.relevant.user_degrees
    assert np.array_equal(some.relevant.user_degrees[judged], degrees[judged])
    # The perturbation is the one for all users; one for the sample alone does them more harm.
    how = {"epsilons": [0.0, 0.02], "ks": (10,), "steps": 8, "control": False}
    left = {}
    for name, target, knowledge in (
        ("whole", whole, "labels"), ("some", some, "labels"), ("alone", some, "sample"),
    ):  # fmt: skip
        curve = measure(target, "cutoff", Threat(knowledge=knowledge), **how).curve
        left[name] = curve.per_user["ndcg@10"][1][np.isin(curve.users, judged)]
    np.testing.assert_array_equal(left["some"], left["whole"])
    assert left["alone"].mean() < left["some"].mean()
    with pytest.raises(InputError, match="sample"):
        measure(whole, "cutoff", Threat(knowledge="sample"), **how)
    all_users = Recommender(*factors, split.with_eval_users(split.n_users), part=part)
    assert len(all_users.relevant) == len(whole.relevant)


def test_built_attacks_on_a_sample_of_users_know_the_labels(demo):
    split, factors = demo
    target = Recommender(*factors, split.with_eval_users(60))
    how = {"epsilons": [0.0, 0.1], "ks": (10,), "control": False}
    for name, pairs in (("labels", target.split.test), ("sample", target.relevant)):
        for judged in (target, target.with_factors(target.factors), harden(target)):
            result = measure(judged, Cutoff(pairs, target.seen, 10, steps=1), **how)
            assert result.threat.knowledge == name
    result = measure(target, Cutoff(target.known, None, 10, steps=1), **how)
    assert result.threat.knowledge == "data"


def test_judged_by_training_pairs_of_a_sample_all_users_are_attacked(demo):
    split, factors = demo
    how = {"epsilons": [0.05], "ks": (10,), "steps": 2, "control": False}
    whole, some = (
        measure(Recommender(*factors, data, part="train"), "cutoff", **how).curve
        for data in (split, split.with_eval_users(60))
    )
    assert len(some.users) == 60
    judged = np.isin(whole.users, some.users)
    np.testing.assert_array_equal(some.per_user["ndcg@10"][0], whole.per_user["ndcg@10"][0][judged])
