"""Split: checks, masks of evaluations, and immutability."""

from __future__ import annotations

import copy
import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from robustcf._io.fetching import SourceFile
from robustcf.data import EvaluationProtocol, Interactions, Split, checkerboard, load
from robustcf.data import split as module
from robustcf.data.interactions import user_ranges
from robustcf.errors import DataError
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from tests.data.test_interactions import as_set, pairs
from tests.data.toy import sha256, toy_manifest

LABELS = dict(user_labels=np.array(["ann", "bob", "cy"]), item_labels=np.array([10, 11, 12, 13]))


def split(**parts) -> Split:
    given = {"train": pairs([0, 1], [0, 1]), "valid": pairs([0], [1]), "test": pairs([1], [2])}
    return Split("toy", **{**given, **parts})


def test_split_gives_train_and_valid_back_together():
    assert split().train_full == pairs([0, 0, 1], [0, 1, 1])
    assert (split().n_interactions, split().n_users, split().n_items) == (4, 3, 4)


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        (dict(test=pairs([1, 0], [2, 0])), "1 pairs are in both train and test.*user 0, item 0"),
        (dict(valid=pairs([1], [2])), "1 pairs are in both valid and test"),
        (dict(test=pairs([1], [2], n_items=5)), "same users and items"),
        (dict(test=pairs([1], [2], user_labels=np.array([1, 2, 3]))), "same user labels"),
        (dict(train=pairs([], [])), "no interactions"),
    ],
)
def test_bad_splits_are_refused(parts, word):
    with pytest.raises(DataError, match=word):
        split(**parts)


def test_an_overlap_is_named_by_label():
    train, test = pairs([1], [2], **LABELS), pairs([1], [2], **LABELS)
    with pytest.raises(DataError, match="user"):
        Split("toy", train, pairs([], [], **LABELS), test)


@pytest.mark.parametrize("most", [1, 4, 100])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("cold", [0, 4])
def test_shared_pairs_are_counted_block_by_block(cold, seed, most, monkeypatch):
    monkeypatch.setattr(module, "user_ranges", lambda p: user_ranges(p, most))
    rng = np.random.default_rng(seed)
    left, right = (rng.random((9, 6)) < 0.3 for _ in range(2))
    left[:cold] = False
    sets = (Interactions(*np.nonzero(dense), 9, 6) for dense in (left, right))
    both = np.argwhere(left & right).tolist()
    assert module.shared_pairs(*sets) == (len(both), tuple(both[0]) if both else None)


def test_fingerprint_is_the_documented_digest_and_tells_splits_apart():
    one = split()
    text = b"3,4"
    for part in (one.train, one.valid, one.test):
        text += f";{len(part)};".encode()
        text += np.array(part.users, "<i4").tobytes() + np.array(part.items, "<i4").tobytes()
    assert one.fingerprint == hashlib.sha256(text).hexdigest()
    moved = split(train=pairs([0, 1, 0], [0, 1, 1]), valid=pairs([], []))
    assert len({one.fingerprint, split(valid=pairs([], [])).fingerprint, moved.fingerprint}) == 3


def test_copies_and_pickles_are_equal_and_frozen():
    one = Split("toy", *(pairs([0], [n], **LABELS) for n in range(3)), sources={"a": "b"})
    for twin in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert twin.fingerprint == one.fingerprint
        assert twin.train == one.train
        assert twin.sources == {"a": "b"}
        with pytest.raises(ValueError, match="read-only"):
            twin.train.users[0] = 1
    noted = Split("toy", *(pairs([0], [n]) for n in range(3)), sources={"a": "b"}, notes=["x"])
    assert noted.notes == ("x",)
    with pytest.raises(TypeError):
        noted.sources["c"] = "d"
    assert "toy" in repr(noted)


# --- matrices -------------------------------------------------------------------------------

TRAIN = np.array([[1, 1, 0, 0], [0, 0, 1, 0]])
VALID = np.array([[0, 0, 1, 0], [0, 0, 0, 0]])
TEST = np.array([[0, 0, 0, 1], [1, 0, 0, 1]])


@pytest.mark.parametrize("wrap", [np.array, sp.csr_matrix, sp.coo_array, sp.lil_matrix])
@pytest.mark.parametrize("given", [(), ("test",), ("valid",), ("test", "valid")])
def test_a_split_from_matrices(wrap, given):
    matrices = {"train": TRAIN, "test": TEST, "valid": VALID}
    wrapped = {part: wrap(matrices[part]) for part in ("train", *given)}
    found = Split.from_csr(**wrapped, name="mine")
    assert found.name == "mine"
    for part, matrix in matrices.items():
        expected = np.argwhere(matrix).tolist() if part in wrapped else []
        assert as_set(getattr(found, part)) == set(map(tuple, expected))
    assert found.valid_source == ("published" if "valid" in given else "none")


def test_matrices_have_one_set_of_labels_and_keep_weights():
    users, items = np.array(["a", "b"]), np.array([7, 8, 9, 10])
    found = Split.from_csr(3 * TRAIN, TEST, VALID, user_labels=users, item_labels=items)
    for part in (found.train, found.valid, found.test):
        assert part.user_labels.tolist() == ["a", "b"]
        assert part.item_labels.tolist() == [7, 8, 9, 10]
    assert found.train.weights.tolist() == [3.0, 3.0, 3.0]
    assert found.test.weights is None


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({"train": np.zeros((2, 4))}, "no interactions"),
        ({"test": TEST[:, :3]}, "same users and items"),
        ({"valid": VALID.T}, "same users and items"),
        ({"test": TRAIN}, "3 pairs are in both train and test"),
        ({"user_labels": np.array(["a"])}, "n_users = 2, got 1"),
    ],
)
def test_bad_matrices_are_refused(parts, word):
    with pytest.raises(DataError, match=word):
        Split.from_csr(**{"train": TRAIN, "test": TEST, "valid": VALID, **parts})


# --- masks ----------------------------------------------------------------------------------

BOTH = {"train": (), "valid": ("train",), "test": ("train", "valid")}


def masks(of: Split) -> dict[str, tuple[str, ...]]:
    return {part: of.masked(part) for part in ("train", "valid", "test")}


def test_masks_follow_from_where_valid_comes(toy: Any) -> None:
    board = checkerboard()
    none = board.valid.take(np.zeros(len(board.valid), dtype=bool))
    own = Split.from_csr(board.train.csr(), board.test.csr(), board.valid.csr())
    for carved in (load("demo"), board, own, load("toy", toy)):
        assert masks(carved) == BOTH
    for without in (
        Split("x", board.train, none, board.test, valid_source="none"),
        Split.from_csr(board.train.csr(), board.test.csr()),
    ):
        assert masks(without) == {**BOTH, "test": ("train",)}


def test_a_named_set_that_publishes_valid_masks_train_alone(tmp_path: Path, register: Any) -> None:
    files = {"train": b"0 0 1\n1 1 3\n", "valid": b"0 2\n", "test": b"0 3\n1 0\n"}
    (tmp_path / "toy").mkdir()
    for part, content in files.items():
        (tmp_path / "toy" / f"{part}.txt").write_bytes(content)
    sources = {
        part: (SourceFile(f"{part}.txt", "adjacency", (sha256(content),)),)
        for part, content in files.items()
    }
    counts = {"users": 2, "items": 4, "train": 4, "valid": 1, "test": 2}
    register(toy_manifest(parts=sources, counts=counts))
    named = load("toy", tmp_path)
    assert named.valid_source == "published"
    assert masks(named) == {**BOTH, "test": ("train",)}
    # The same files as own data: known items are not recommended again.
    folder = tmp_path / "toy"
    own = load(folder / "train.txt", valid_file=folder / "valid.txt", test_file=folder / "test.txt")
    assert own.fingerprint == named.fingerprint
    assert masks(own) == BOTH


@pytest.mark.slow
@pytest.mark.realdata
def test_ml_1m_masks_train_alone(real_data: Path) -> None:
    ml_1m = load("ml-1m", real_data, download=False)
    assert masks(ml_1m) == {**BOTH, "test": ("train",)}
    report = evaluate(Factors(torch.ones(6022, 1), torch.ones(3043, 1)), ml_1m, (10,))
    assert report.protocol.masked == ("train",)


def test_the_mask_and_not_the_name_decides_what_is_ranked() -> None:
    """A model that has memorised valid ranks it first, if valid is not masked."""
    board = checkerboard()
    score = torch.tensor(board.valid.csr().toarray()) * 2 + torch.tensor(board.test.csr().toarray())
    factors = Factors(score, torch.eye(30))
    parts = (board.train, board.valid, board.test)
    for name in ("x", "ml-1m", "demo"):
        assert evaluate(factors, Split(name, *parts), (3,))["recall@3"] == 1.0
        alone = Split(name, *parts, protocol=EvaluationProtocol(test=("train",)))
        report = evaluate(factors, alone, (3,))
        assert report["recall@3"] < 1.0
        assert report.protocol.masked == alone.masked("test")


def test_a_protocol_of_ones_own_is_kept_as_tuples() -> None:
    protocol = EvaluationProtocol(test=["valid"], valid=[], train=["test"])  # type: ignore[arg-type]
    assert protocol == EvaluationProtocol(test=("valid",), valid=(), train=("test",))
    board = checkerboard()
    own = Split("x", board.train, board.valid, board.test, protocol=protocol)
    for twin in (own, copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert twin.protocol == protocol
        assert masks(twin) == {"train": ("test",), "valid": (), "test": ("valid",)}


def test_bad_protocols_are_refused() -> None:
    board = checkerboard()
    for masks in (
        dict(test=("test",)),
        dict(valid=("train", "valid")),
        dict(train=("train",)),
        dict(test=("train", "train")),
        dict(test=("everything",)),
        dict(test="train"),
    ):
        with pytest.raises(DataError, match="masked on"):
            EvaluationProtocol(**masks)
    with pytest.raises(DataError, match="protocol must"):
        Split("x", board.train, board.valid, board.test, protocol=("train",))
    for part in ("all", None):
        with pytest.raises(DataError, match="part must"):
            board.masked(part)


# --- a sample of the users ------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_sample_of_users_is_seeded_and_recorded(seed):
    demo = load("demo")
    rng = torch.Generator().manual_seed(seed)
    factors = Factors(torch.randn(2000, 3, generator=rng), torch.randn(1500, 3, generator=rng))
    whole = evaluate(factors, demo)
    drawn = demo.with_protocol(EvaluationProtocol(users=300, seed=seed))
    some = evaluate(factors, drawn)
    assert len(some.users) == some.protocol.n_users == 300
    assert np.all(np.diff(some.users) > 0)
    places = np.searchsorted(whole.users, some.users)
    for name, values in some.per_user.items():
        assert values.tolist() == whole.per_user[name][places].tolist()
    told = some.protocol.as_dict()
    assert (told["sampled_from"], told["sample_seed"]) == (2000, seed)
    assert f"a sample of 300 (seed {seed}) of the 2,000 users" in " ".join(str(some).split())
    assert "sampled_from" not in whole.protocol.as_dict()
    again = evaluate(factors, drawn, part="valid")
    assert len(set(again.users) & set(some.users)) > 290, "two parts, the same users"
    more = demo.with_protocol(EvaluationProtocol(users=400, seed=seed))
    assert set(some.users) < set(evaluate(factors, more).users)
    assert evaluate(factors, demo.with_eval_users(5000)).protocol == whole.protocol
    assert len(evaluate(factors, load("demo", eval_users=77)).users) == 77


def test_samples_of_several_seeds_differ():
    users = np.arange(1000)
    samples = {
        tuple(EvaluationProtocol(users=20, seed=seed).sample(users, 1000)) for seed in range(5)
    }
    assert len(samples) == 5
    counts = np.bincount([user // 100 for sample in samples for user in sample], minlength=10)
    assert counts.max() < 25
