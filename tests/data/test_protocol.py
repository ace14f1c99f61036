"""What is masked belongs to the data: to the pairs and where they come from, not to a name."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robustcf._io.fetching import SourceFile
from robustcf.data import EvaluationProtocol, Interactions, Split, checkerboard, load
from robustcf.errors import DataError
from robustcf.factors import Factors
from robustcf.metrics import evaluate
from tests.data.toy import sha256, toy_manifest

BOTH = {"train": (), "valid": ("train",), "test": ("train", "valid")}
PARTS = ("train", "valid", "test")


def masks(split: Split) -> dict[str, tuple[str, ...]]:
    return {part: split.masked(part) for part in PARTS}


def none_of(pairs: Interactions) -> Interactions:
    return pairs.take(np.zeros(len(pairs), dtype=bool))


# --- where each comes from ------------------------------------------------------------------


def test_what_is_carved_or_drawn_is_masked_on_test() -> None:
    assert masks(load("demo")) == BOTH
    assert masks(checkerboard()) == BOTH


def test_a_split_without_valid_masks_train() -> None:
    board = checkerboard()
    without = Split("x", board.train, none_of(board.valid), board.test, valid_source="none")
    assert masks(without) == {**BOTH, "test": ("train",)}
    assert masks(Split.from_csr(np.eye(3), np.eye(3)[::-1] * [1, 0, 1])) == {
        **BOTH, "test": ("train",),
    }  # fmt: skip


def test_own_data_with_valid_mask_both() -> None:
    board = checkerboard()
    own = Split.from_csr(board.train.csr(), board.test.csr(), board.valid.csr())
    assert own.valid_source == "published"
    assert masks(own) == BOTH


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
    # The very files as data of one's own: what is known of a user is not recommended again.
    folder = tmp_path / "toy"
    own = load(folder / "train.txt", valid_file=folder / "valid.txt", test_file=folder / "test.txt")
    assert own.fingerprint == named.fingerprint
    assert masks(own) == BOTH


def test_a_named_set_whose_valid_is_carved_masks_both(toy: Any) -> None:
    assert masks(load("toy", toy)) == BOTH


@pytest.mark.slow
@pytest.mark.realdata
def test_ml_1m_masks_train_alone(real_data: Path) -> None:
    split = load("ml-1m", real_data, download=False)
    assert masks(split) == {**BOTH, "test": ("train",)}
    report = evaluate(Factors(torch.ones(6022, 1), torch.ones(3043, 1)), split, (10,))
    assert report.protocol.masked == ("train",)


# --- not by name ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x", "ml-1m", "demo", "citeulike-a", "own data"])
@pytest.mark.parametrize("protocol", [None, EvaluationProtocol(test=("train",))])
def test_the_same_pairs_under_another_name_are_masked_alike(
    name: str, protocol: EvaluationProtocol | None
) -> None:
    board = checkerboard()
    one, two = (
        Split(each, board.train, board.valid, board.test, protocol=protocol)
        for each in ("first", name)
    )
    assert masks(one) == masks(two)
    g = torch.Generator().manual_seed(0)
    factors = Factors(torch.randn(20, 3, generator=g), torch.randn(30, 3, generator=g))
    left, right = evaluate(factors, one), evaluate(factors, two)
    assert left.values == right.values
    assert left.protocol.masked == right.protocol.masked == one.masked("test")


def test_the_mask_decides_what_is_ranked() -> None:
    """With valid among the candidates, a model that knows it by heart puts it first."""
    board = checkerboard()
    score = torch.tensor(board.valid.csr().toarray()) * 2 + torch.tensor(board.test.csr().toarray())
    factors = Factors(score, torch.eye(30))
    both = Split("a", board.train, board.valid, board.test)
    alone = Split(
        "b", board.train, board.valid, board.test, protocol=EvaluationProtocol(test=("train",))
    )
    assert evaluate(factors, both, (3,))["recall@3"] == 1.0
    assert evaluate(factors, alone, (3,))["recall@3"] < 1.0


# --- its rules ------------------------------------------------------------------------------


def test_a_protocol_of_ones_own_is_kept_as_tuples() -> None:
    protocol = EvaluationProtocol(test=["valid"], valid=[], train=["test"])  # type: ignore[arg-type]
    assert protocol == EvaluationProtocol(test=("valid",), valid=(), train=("test",))
    board = checkerboard()
    split = Split("x", board.train, board.valid, board.test, protocol=protocol)
    assert masks(split) == {"train": ("test",), "valid": (), "test": ("valid",)}
    for twin in (copy.deepcopy(split), pickle.loads(pickle.dumps(split))):
        assert twin.protocol == protocol
        assert masks(twin) == masks(split)


@pytest.mark.parametrize(
    ("masked", "message"),
    [
        ({"test": ("test",)}, "masked on test may be train and valid, each once, got"),
        ({"valid": ("train", "valid")}, "masked on valid may be test and train, each once, got"),
        ({"train": ("train",)}, "masked on train may be test and valid, each once"),
        ({"test": ("train", "train")}, "each once, got .'train', 'train'."),
        ({"test": ("everything",)}, "masked on test may be train and valid"),
        ({"test": "train"}, "masked on test may be train and valid, each once, got .'t', 'r'"),
    ],
)
def test_protocols_that_make_no_sense_are_refused(masked: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        EvaluationProtocol(**masked)


@pytest.mark.parametrize("protocol", [{"test": ("train",)}, ("train",), "train"])
def test_a_split_takes_nothing_else_for_a_protocol(protocol: Any) -> None:
    board = checkerboard()
    with pytest.raises(DataError, match="x: protocol must be an EvaluationProtocol or None, got"):
        Split("x", board.train, board.valid, board.test, protocol=protocol)


@pytest.mark.parametrize("part", ["all", "", None, "masked"])
def test_only_parts_can_be_evaluated(part: Any) -> None:
    with pytest.raises(DataError, match="part must be one of train, valid, test, got"):
        checkerboard().masked(part)
