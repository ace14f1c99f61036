"""Recommender: any arrays, judged as a naive ranking judges them; refusals name the reason."""

from __future__ import annotations

import ast

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from robustcf.attacks.cutoff import Cutoff
from robustcf.data import Interactions, Split, checkerboard, load
from robustcf.errors import DataError, InputError
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


# --- what it takes --------------------------------------------------------------------------


ARRAYS = {
    "float64": lambda a: a,
    "float32": lambda a: a.astype(np.float32),
    "fortran": np.asfortranarray,
    "foreign bytes": lambda a: a.astype(a.dtype.newbyteorder()),
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
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


def test_an_array_that_may_not_be_written_to_is_taken_too():
    U, V, train, test = random_world(0)
    U.flags.writeable = False
    expected = Recommender(U.copy(), V, train, test).evaluate()
    assert Recommender(U, V, train, test).evaluate().values == expected.values


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
    pairs = [Interactions(*np.nonzero(matrix), *train.shape) for matrix in (train, test)]
    plain = Recommender(U, V, train, test).evaluate().values
    assert Recommender(U, V, pairs[0], test).evaluate().values == plain
    assert Recommender(U, V, sp.csr_matrix(train), pairs[1]).evaluate().values == plain
    items = np.array([f"item {n}" for n in range(40)])
    labels = {"user_labels": np.arange(30) + 100, "item_labels": items}
    named = Interactions.from_csr(train, **labels)
    assert Recommender(U, V, named, sp.csr_matrix(test)).evaluate().values == plain


def test_a_split_brings_its_parts_and_its_protocol():
    board = checkerboard()
    U, V = (np.random.default_rng(0).normal(size=(n, 3)) for n in (20, 30))
    target = Recommender(U, V, board)
    assert (target.part, target.mask) == ("test", ("train", "valid"))
    assert (target.known, target.relevant) == (board.train, board.test)
    on_valid = Recommender(U, V, board, part="valid")
    assert (on_valid.mask, on_valid.relevant) == (("train",), board.valid)
    refit = Recommender(U, V, board, fit_on="train and valid")
    assert refit.known == board.train_full
    assert refit.mask == ("train", "valid")
    other = Recommender(U, V, board, mask=())
    assert other.seen is None
    assert other.evaluate()["recall@10"] <= target.evaluate()["recall@10"]


@pytest.mark.parametrize("seed", SEEDS)
def test_without_held_out_pairs_it_is_judged_by_what_it_was_fit_on(seed):
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
    assert cutoff["ndcg@10"][1] < curve["ndcg@10"][1], "it attacks the pairs that count"
    with pytest.raises(InputError, match="knowledge 'labels' is about held-out pairs"):
        measure(target, "fgm-softmax", Threat(knowledge="labels"), [0, 1])
    refit = Recommender(U, V, train, fit_on="train and valid")
    assert refit.evaluate().values == target.evaluate().values


def test_one_user_one_item_one_column():
    target = Recommender(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    assert measure(target, "random", epsilons=[0, 0.5]).curve["ndcg@10"].tolist() == [1.0, 1.0]
    assert measure(target, "certificate", epsilons=[0, 0.5]).curve["ndcg@10"][1] == 1.0


def test_what_training_returns_is_a_target():
    split = load("demo")
    trained = fit_split(
        split, TrainConfig.of(model="ultragcn", dim=4, epochs=1, negative_weight=7.0)
    )
    target = trained.recommender()
    assert (target.fit_on, target.label) == ("train and valid", "ultragcn, weight_decay")
    assert target.bce == BCEConfig(negative_weight=7.0)
    assert target.known == split.train_full
    assert target.evaluate().values == trained.evaluate().values
    assert target.renamed("mine").label == "mine"
    bpr = fit_split(split, TrainConfig.of(model="bpr-mf", dim=4, epochs=0)).recommender()
    assert (bpr.bce, bpr.label) == (None, "bpr-mf, weight_decay")
    with pytest.raises(InputError, match="fit on train and valid"):
        target.judged_by("valid")


def test_other_factors_in_the_place_of_the_first():
    target = random_target(0, fixed=(1,), label="mine", bce=BCEConfig(), mask=("train",))
    other = target.with_factors(Factors(2 * target.factors.users, target.factors.items))
    for name in ("split", "part", "mask", "fit_on", "fixed", "label", "bce"):
        assert getattr(other, name) == getattr(target, name)
    assert other.evaluate().values == target.evaluate().values
    assert other.free == [0, 2, 3, 4]
    assert "1 column held fixed" in str(other)


# --- the user's story -----------------------------------------------------------------------

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
    tree = ast.parse(STORY)
    assert len(STORY.strip().splitlines()) <= 6
    assert len(tree.body) <= 6
    assert sum(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)) == 1
    U, V, train, test = random_world(seed)
    V = V + 3.0  # a constant direction, as a cross-entropy leaves it
    names = {"U": U, "V": V, "train": sp.csr_matrix(train), "test": sp.csr_matrix(test)}
    exec(compile(tree, "story", "exec"), names)
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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("n_users", "n_items"), [(30, 40), (3, 40), (30, 3), (2, 2)])
def test_hardening_moves_no_ranking_whatever_the_sizes(seed, n_users, n_items):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(2, 1, (n_users, 5)), rng.normal(-1, 1, (n_items, 5))
    target = Recommender(U, V, np.eye(n_users, n_items))
    safer = harden(target)
    assert safer.factors.dim == 5
    before, after = (t.factors.users @ t.factors.items.T for t in (target, safer))
    moved = (after - before).numpy()
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1], moved.shape), atol=1e-9)
    np.testing.assert_array_equal(after.argsort(dim=1), before.argsort(dim=1))
    gram = [part.T @ part for part in safer.factors]
    torch.testing.assert_close(gram[0], gram[1], atol=1e-8, rtol=1e-8)
    size = sum(float(part.square().sum()) for part in safer.factors)
    singular = np.linalg.svd((before - before.mean(dim=1, keepdim=True)).numpy(), compute_uv=False)
    assert size == pytest.approx(2 * singular.sum(), rel=1e-6), "no smaller one has these scores"


def test_few_directions_are_for_the_asking():
    target = random_target(0)
    cut = harden(target, rank=2)
    U, V = (part.double() for part in target.factors)
    a, values, b = torch.linalg.svd(U @ (V - V.mean(dim=0)).T)
    best = (a[:, :2] * values[:2]) @ b[:2]
    scores = cut.factors.users.double() @ cut.factors.items.double().T
    torch.testing.assert_close(scores, best, atol=1e-4, rtol=1e-4)
    for wrong in (0, -1, 1.5, "all"):
        with pytest.raises(InputError, match="rank must be"):
            harden(target, rank=wrong)


def test_shrinking_is_for_the_asking():
    target = random_target(0)
    shorter = harden(target, shrink_by=1.0)
    assert shorter.factors.users.norm() < harden(target).factors.users.norm()
    for wrong in (-0.1, float("nan"), "much"):
        with pytest.raises(InputError, match="shrink_by must be a finite number"):
            harden(target, shrink_by=wrong)


# --- what people have -----------------------------------------------------------------------


def test_lists_whole_numbers_and_two_precisions_are_taken():
    U, V, train, test = random_world(0)
    plain = Recommender(U, V, train, test)
    for lists in (U.tolist(), [tuple(row) for row in U], tuple(map(list, U))):
        same = Recommender(lists, V, train, test)
        assert same.evaluate().values == plain.evaluate().values
    mixed = Recommender(U.astype(np.float32), V, train, test).factors
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


# --- what it refuses ------------------------------------------------------------------------


def refuse(message: str, *arguments, kind=InputError, **options) -> None:
    with pytest.raises(kind, match=message):
        Recommender(*arguments, **options)


def test_factors_that_are_none():
    U, V, train, test = random_world(0)
    refuse("factors are for 29 users x 40 items, own data has 30 x 40", U[:-1], V, train, test)
    refuse("factors are for 30 users x 39 items.*different data", U, V[:-1], train, test)
    refuse("same number of columns, got 5 and 4", U, V[:, :-1], train)
    refuse("floating-point matrix.* of shape \\(30,\\)", U[:, 0], V, train)
    refuse("users must be a matrix of numbers", [[1.0], [1.0, 2.0]], V, train)
    refuse("users must be a tensor or a numpy array of numbers, got <U1", [["a"]], V, train)
    refuse("floating-point matrix, got torch.bool", torch.ones(30, 5, dtype=torch.bool), V, train)
    sparse = torch.from_numpy(V).to_sparse()
    refuse("items must be a dense matrix, got torch.sparse_coo: use .to_dense", U, sparse, train)
    refuse("U has no rows: give", U[:0], V, train)
    refuse("V has no rows: give", U, V[:0], train)
    refuse("U has no columns: give", U[:, :0], V[:, :0], train)
    refuse("40 users x 30 items, own data has 30 x 40: are U and V swapped", V, U, train, test)
    refuse("must be a tensor or a numpy array of numbers, got object", U.astype(object), V, train)
    refuse("must be a tensor or a numpy array of numbers, got complex128", U * 1j, V, train)
    spoilt = U.copy()
    spoilt[7, 2] = np.nan
    refuse(r"users must be finite, got nan in row 7 \(1 such row of U\): repair", spoilt, V, train)
    refuse("items must be finite, got -inf in row 0", U, np.full_like(V, -np.inf), train)


def test_data_that_are_none():
    U, V, train, test = random_world(0)
    refuse("test needs interactions", U, V, None, test)
    refuse("matrix", U, V, train[0], kind=DataError)
    refuse("no such file", U, V, "nowhere/train.csv", kind=DataError)
    sparse = torch.from_numpy(train).to_sparse()
    words = "users x items matrix, scipy or numpy, got a Tensor that numpy cannot read"
    refuse(words, U, V, sparse, kind=DataError)
    refuse(words, U, V, train, sparse, kind=DataError)
    refuse("negative numbers, got -1", U, V, -train, kind=DataError)
    refuse("finite numbers", U, V, np.where(train, np.nan, 0), kind=DataError)
    refuse("at least one is needed", U, V, np.zeros_like(train), kind=DataError)
    refuse("must have the same users and items", U, V, train, test[:, :-1], kind=DataError)
    refuse("pairs are in both train and test", U, V, train, train, kind=DataError)
    refuse("test has no pairs to judge by", U, V, train, np.zeros_like(test))
    board = checkerboard()
    refuse("a Split has its own test pairs: leave test out", U[:20], V[:30], board, test)


def test_parts_and_columns_that_are_none():
    U, V, train, test = random_world(0)
    refuse("own data has no valid pairs to judge by", U, V, train, test, part="valid")
    refuse("own data has no test pairs to judge by", U, V, train, part="test")
    refuse("part must be one of train, valid, test, got 'tset'", U, V, train, part="tset")
    refuse("fit_on must be one of train, train and valid, got 'all'", U, V, train, fit_on="all")
    board, few = checkerboard(), (U[:20], V[:30])
    both = {"fit_on": "train and valid", "part": "valid"}
    refuse("train and valid", *few, board, **both)
    for fixed in ([5], [-1], [0, 99]):
        words = "at least 0" if -1 in fixed else r"fixed columns must be in \[0, 5\)"
        refuse(words, U, V, train, fixed=fixed)
    refuse("a fixed column must be an integer", U, V, train, fixed=[0.5])
    refuse(r"fixed must be a list, got 3: give \[3\]", U, V, train, fixed=3)
    refuse("all columns", U, V, train, fixed=range(5))
    with pytest.raises(InputError, match="mask must name parts"):
        Recommender(U, V, train, test, mask=["tests"]).evaluate()
    with pytest.raises(InputError, match="test cannot be masked when evaluating on test"):
        Recommender(U, V, train, test, mask=["test"]).evaluate()


def test_a_split_without_test_pairs_is_judged_by_train_unless_valid_is_asked_for():
    board = checkerboard()
    none = board.test.take(np.zeros(len(board.test), dtype=bool))
    split = Split("half", board.train, board.valid, none)
    U, V = (np.random.default_rng(0).normal(size=(n, 3)) for n in (20, 30))
    assert Recommender(U, V, split).part == "train"
    assert Recommender(U, V, split, part="valid").relevant == board.valid


@pytest.mark.parametrize("part", ["test", "valid"])
def test_where_some_users_are_evaluated_theirs_are_the_labels(part: str) -> None:
    split = load("demo")
    U, V = fit_split(
        split, TrainConfig.of(model="ultragcn", dim=8, init="smooth", epochs=0, refit="no")
    ).factors
    whole = Recommender(U, V, split, part=part)
    assert whole.relevant is getattr(split, part)
    some = Recommender(U, V, split.with_eval_users(60), part=part)
    judged = some.evaluate((10,)).users
    assert len(judged) == 60
    assert np.array_equal(np.unique(some.relevant.users), judged)
    degrees = whole.relevant.user_degrees
    assert np.array_equal(some.relevant.user_degrees[judged], degrees[judged])
    # One perturbation for fewer users does each of them more harm.
    attacked = [
        measure(target, "cutoff", epsilons=[0.0, 0.02], ks=(10,), steps=8, control=False).curve
        for target in (some, whole)
    ]
    left = [curve.per_user["ndcg@10"][1][np.isin(curve.users, judged)] for curve in attacked]
    assert left[0].mean() < left[1].mean()
    everybody = Recommender(U, V, split.with_eval_users(split.n_users), part=part)
    assert len(everybody.relevant) == len(whole.relevant)


def test_built_attacks_on_a_sample_of_users_know_the_labels() -> None:
    split = load("demo").with_eval_users(60)
    U, V = fit_split(
        split, TrainConfig.of(model="ultragcn", dim=4, init="smooth", epochs=0, refit="no")
    ).factors
    target = Recommender(U, V, split)
    for pairs in (split.test, target.relevant):
        for judged in (target, target.with_factors(target.factors), harden(target)):
            attack = Cutoff(pairs, target.seen, 10, steps=1)
            result = measure(judged, attack, epsilons=[0.0, 0.1], ks=(10,), control=False)
            assert result.threat.knowledge == "labels"
    attack = Cutoff(target.known, None, 10, steps=1)
    result = measure(target, attack, epsilons=[0.0, 0.1], ks=(10,), control=False)
    assert result.threat.knowledge == "data"


def test_judged_by_training_pairs_a_sample_is_what_is_attacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = load("demo").with_eval_users(60)
    U, V = fit_split(
        split, TrainConfig.of(model="ultragcn", dim=4, init="smooth", epochs=0, refit="no")
    ).factors
    target = Recommender(U, V, split, part="train")
    given = []
    monkeypatch.setattr(
        "robustcf.robustness.table.Cutoff",
        lambda pairs, *a, **o: given.append(pairs) or Cutoff(pairs, *a, **o),
    )
    measure(target, "cutoff", epsilons=[0.0, 0.1], ks=(10,), steps=1, control=False)
    assert np.array_equal(np.unique(given[0].users), target.evaluate((10,)).users)
