"""Saved recommenders: whole on another machine, or refused with a reason."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import robustcf
from robustcf._io import files
from robustcf.data import EvaluationProtocol, Interactions, Split
from robustcf.errors import DataError, InputError, UnfinishedError, WriteError
from robustcf.models.voting import VoteConfig
from robustcf.recommender import FactorScorer, FoldIn, Recommender, open_recommender
from robustcf.robustness import measure
from robustcf.testing import labelled_split
from tests.recommender.tampering import change_arrays, change_json, sign

FILES = ["factors.safetensors", "interactions.npz", "recommender.json"]


def made(kind: str, split: Split | None = None) -> Recommender:
    """A recommender of a kind; factors with a bias column."""
    split = labelled_split() if split is None else split
    if kind == "vote":
        return robustcf.train(split, "vote", cap=0.2, damping=0.5)
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(split.n_users, 4)), rng.normal(size=(split.n_items, 4))
    U[:, 3] = 1.0
    return Recommender(U, V, split, fixed=[3], label="mine", part="valid")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return made("factors").save(tmp_path / "model")


ELSEWHERE = """
import json, sys
from robustcf.recommender import open_recommender
from tests.recommender.test_saved import told
json.dump([told(open_recommender(folder)) for folder in sys.argv[1:]], sys.stdout)
"""


def told(model: Recommender) -> dict[str, Any]:
    """What a recommender is and does, in plain values."""
    found = model.recommend(k=5)
    split = model.split
    return {
        "repr": repr(model),
        "known": found.values.tolist(),
        "new": model.recommend(items=found["item"].tolist()[:2], k=5).values.tolist(),
        "similar": model.similar(found["item"].iloc[0], k=3).values.tolist(),
        "metrics": model.evaluate().as_dict(),
        "facts": [model.label, model.fit_on, model.part, list(model.mask), model.kind],
        "data": [split.name, split.fingerprint, split.valid_source, list(split.notes)],
        "sources": [dict(split.sources), dataclasses.asdict(split.protocol)],
        "labels": [model.user_labels.tolist(), model.item_labels.tolist()],
        "training": None if model.training is None else dict(model.training),
    }


@pytest.mark.slow
def test_another_process_finds_the_same_without_the_data(tmp_path: Path) -> None:
    protocol = EvaluationProtocol(test=("train",), users=30, seed=3)
    split = dataclasses.replace(
        labelled_split(), protocol=protocol, notes=("a note",), sources={"a": "b"}
    )
    models = [made("factors", split), made("vote", split), robustcf.train(split, "als", factors=4)]
    folders = []
    for n, model in enumerate(models):
        folder = model.save(tmp_path / "new" / f"model {n}")
        names = FILES if model.kind != "vote" else FILES[1:]
        assert sorted(path.name for path in folder.iterdir()) == names
        folders.append(folder.rename(tmp_path / f"moved {n}"))
    (tmp_path / "work").mkdir()
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *map(str, folders)],
        capture_output=True, text=True, cwd=tmp_path / "work", check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps([told(model) for model in models]))
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_factors_come_back_bit_by_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    U, V = torch.randn(6, 3).to(dtype), torch.randn(5, 3).to(dtype)
    how = FoldIn("softmax", {}, ridge=0.5, offset=True)
    model = Recommender(U, V, np.eye(6, 5), fixed=[1], fold_in=how)
    again = open_recommender(model.save(tmp_path / "model"))
    assert torch.equal(again.factors.users, U)
    assert torch.equal(again.factors.items, V)
    assert (again.fixed, again.free) == ((1,), [0, 2])
    assert isinstance(again.scorer, FactorScorer)
    assert again.scorer.fold_in == how


@pytest.mark.parametrize("ask", [lambda m: m.bce, lambda m: m.recommend(items=[0])])
def test_unknown_settings_of_a_fold_in_are_refused_where_they_are_used(ask: Any) -> None:
    U, V = torch.randn(6, 3), torch.randn(5, 3)
    model = Recommender(U, V, np.eye(6, 5), fold_in=FoldIn("bce", {"w3²": 1.0}))
    with pytest.raises(InputError, match="unknown setting"):
        ask(model)


def test_what_is_saved_again_has_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    again = open_recommender(saved).save(tmp_path / "again")
    stamps = json.loads((saved / "recommender.json").read_text())["files"]
    for name in FILES:
        content = (saved / name).read_bytes()
        assert content == (again / name).read_bytes(), name
        stamp = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert stamps.get(name) == (None if name == "recommender.json" else stamp)


@pytest.mark.parametrize(
    "labels", [{}, {"user_labels": [7, 5, 2**60, 3], "item_labels": [*"äbcde"]}]
)
def test_labels_and_row_numbers_come_back(tmp_path: Path, labels: dict[str, Any]) -> None:
    model = Recommender(np.eye(4, 3), np.eye(5, 3), np.eye(4, 5), **labels)
    again = open_recommender(model.save(tmp_path / "model"))
    assert (again.user_labels is None) == (not labels)
    pd.testing.assert_frame_equal(again.recommend(k=3), model.recommend(k=3))


def test_labels_of_very_different_lengths_are_read_again(tmp_path: Path) -> None:
    """Packed, they would look like a file that grows without bound."""
    n_users = 10_000
    labels = np.array([str(n) for n in range(n_users - 1)] + ["x" * 900])
    pairs = np.zeros((n_users, 2))
    pairs[:, 0] = 1
    model = Recommender(np.ones((n_users, 1)), np.eye(2, 1), pairs, user_labels=labels)
    again = open_recommender(model.save(tmp_path / "model"))
    assert again.user_labels.tolist() == labels.tolist()


@pytest.fixture(scope="module")
def trained() -> tuple[Split, Recommender]:
    split = labelled_split()
    return split, robustcf.train(split, "als", factors=4)


def test_without_interactions_it_serves_and_says_what_it_lacks(
    trained: Any, tmp_path: Path
) -> None:
    split, model = trained
    folder = model.save(tmp_path / "model", include_interactions=False)
    secret = split.train.items.astype("<i4").tobytes()
    with np.load(folder / "interactions.npz") as arrays:
        assert sorted(arrays.files) == ["item_counts", "item_labels", "meta", "user_labels"]
        assert secret not in b"".join(arrays[name].tobytes() for name in arrays.files)
    bare = open_recommender(folder)
    assert not bare.has_interactions
    np.testing.assert_array_equal(bare.item_counts, model.item_counts)
    asked = {"k": 5, "filter_seen": False}
    pd.testing.assert_frame_equal(bare.recommend(**asked), model.recommend(**asked))
    items = split.item_labels[:3].tolist()
    pd.testing.assert_frame_equal(bare.recommend(items=items), model.recommend(items=items))
    popular = {"users": ["unknown-user"], "unknown": "popular", "filter_seen": False}
    pd.testing.assert_frame_equal(bare.recommend(**popular), model.recommend(**popular))
    for call in (bare.recommend, bare.evaluate, lambda: measure(bare, "fgm")):
        with pytest.raises(InputError, match="interactions"):
            call()
    with pytest.raises(InputError, match="include_interactions"):
        bare.save(tmp_path / "again")
    again = open_recommender(bare.save(tmp_path / "again", include_interactions=False))
    pd.testing.assert_frame_equal(again.recommend(**asked), model.recommend(**asked))


def test_interactions_may_be_given_at_last(trained: Any, tmp_path: Path) -> None:
    split, model = trained
    folder = model.save(tmp_path / "model", include_interactions=False)
    matrix = split.train_full.csr()
    for pairs in (split, matrix, Interactions.from_csr(matrix)):
        again = open_recommender(folder, interactions=pairs)
        pd.testing.assert_frame_equal(again.recommend(k=4), model.recommend(k=4))
        assert pairs is not split or again.evaluate().values == model.evaluate().values
    whole = model.save(tmp_path / "whole")
    for path, other, word in (
        (folder, matrix[:-1], "labels|different data"),
        (folder, labelled_split(1), "other data"),
        (whole, split, "leave interactions out"),
    ):
        with pytest.raises(InputError, match=word):
            open_recommender(path, interactions=other)


def test_without_test_pairs_it_is_judged_by_training_pairs(trained: Any, tmp_path: Path) -> None:
    split, model = trained
    again = open_recommender(model.save(tmp_path / "model", include_test=False))
    assert (again.split.train, again.split.valid) == (split.train, split.valid)
    assert (len(again.split.test), again.part) == (0, "train")
    pd.testing.assert_frame_equal(again.recommend(k=4), model.recommend(k=4))
    facts = json.loads((tmp_path / "model" / "recommender.json").read_text())
    assert facts["fingerprint"] == split.fingerprint
    # One that was judged by validation pairs still is.
    kept = open_recommender(made("factors").save(tmp_path / "valid", include_test=False))
    assert kept.part == "valid"
    assert kept.evaluate().values == made("factors").evaluate().values


def test_a_vote_needs_its_interactions(tmp_path: Path) -> None:
    vote = made("vote")
    with pytest.raises(InputError, match="vote"):
        vote.save(tmp_path / "model", include_interactions=False)
    assert not (tmp_path / "model").exists()
    again = open_recommender(vote.save(tmp_path / "model", include_test=False))
    pd.testing.assert_frame_equal(again.recommend(k=4), vote.recommend(k=4))
    whole = open_recommender(vote.save(tmp_path / "whole"))
    assert whole.scorer.config == vote.scorer.config == VoteConfig(cap=0.2, damping=0.5)
    one, other = (m.scorer.certify_fakes(m.split, [0, 1, 3]) for m in (vote, whole))
    assert one.values == other.values


def test_the_embeddings_alone(saved: Path, tmp_path: Path) -> None:
    model = open_recommender(saved)
    path = model.export(tmp_path / "mine.safetensors")
    tensors, facts = files.read_tensors(path)
    assert torch.equal(tensors["users"], model.factors.users)
    assert json.loads(facts["fixed"]) == [3]
    with np.load(model.export(tmp_path / "mine.npz")) as arrays:
        assert np.array_equal(arrays["items"], model.factors.items.numpy())
    for other in (path, tmp_path / "mine.txt"):
        with pytest.raises(InputError, match="exists|safetensors"):
            model.export(other)


def test_places_that_cannot_be_written_to(tmp_path: Path) -> None:
    model = made("factors")
    with pytest.raises(InputError, match="name"):
        model.save("")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("there", "file"):
        with pytest.raises(InputError, match="exists already"):
            model.save(tmp_path / name)
    with pytest.raises(WriteError, match="file"):
        model.save(tmp_path / "file" / "model")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine.txt"]
    assert (tmp_path / "file").read_text() == "x"
    (tmp_path / "empty").mkdir()
    assert open_recommender(model.save(tmp_path / "empty")).label == "mine"
    with pytest.raises(InputError, match="exists already"):
        model.save(tmp_path / "empty")


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_when_writing_fails_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, there: bool, fault: BaseException
) -> None:
    model = made("factors")
    if there:
        (tmp_path / "model").mkdir()
    fsync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == at + 1:
            raise fault
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((WriteError, KeyboardInterrupt)) as caught:
        model.save(tmp_path / "model")
    monkeypatch.undo()
    assert len(calls) == at + 1
    assert "robustcf-tmp" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == (["model"] if there else [])
    assert not there or not list((tmp_path / "model").iterdir())
    assert open_recommender(model.save(tmp_path / "model")).label == "mine"


def test_the_description_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has it is whole, wherever a kill came."""
    written = []
    write = files.write_parts

    def watched(path: Path, parts: Any) -> None:
        written.append(path.name)
        write(path, parts)

    monkeypatch.setattr(files, "write_parts", watched)
    made("factors").save(tmp_path / "model")
    assert written == FILES


@pytest.mark.parametrize("name", FILES[:2])
@pytest.mark.parametrize("place", [0, 100, -1, "length"])
def test_a_changed_byte_or_length_is_noticed(saved: Path, name: str, place: Any) -> None:
    if place == "length":
        os.truncate(saved / name, 1 << 40)  # takes no space on disk, and an hour to read
    else:
        content = bytearray((saved / name).read_bytes())
        content[place] ^= 1
        (saved / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} was changed"):
        open_recommender(saved)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("way", ["missing", "link", "pipe", "folder"])
def test_only_plain_files_are_read(saved: Path, tmp_path: Path, name: str, way: str) -> None:
    (saved / name).rename(tmp_path / "elsewhere")
    if way == "link":
        (saved / name).symlink_to(tmp_path / "elsewhere")
    elif way == "pipe":
        os.mkfifo(saved / name)
    elif way == "folder":
        (saved / name).mkdir()
    with pytest.raises(InputError, match=name):
        open_recommender(saved)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match=r"recommender\.json"):
            open_recommender(folder)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnfinishedError, match="--resume"):
        open_recommender(tmp_path)


MISSING = object()
FOLD_IN = {"objective": "softmax", "settings": {}, "ridge": 0.01, "offset": False, "unit": False}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("format", value) for value in ("robustcf recommender 2", None, 5, ["x"] * 1000)),
        *(("kind", value) for value in ("graph", "os:system", "tests.recommender.test_saved:Evil")),
        *((key, MISSING) for key in "kind label fit_on part mask scorer files".split()),
        ("kind", ""), ("kind", 5), ("kind", "vote"), ("label", None), ("label", ["x"]),
        ("fit_on", "test"), ("fit_on", []), ("fit_on", "train and valid"),
        ("part", "other"), ("part", 0), ("part", ["test"]),
        ("mask", "train"), ("mask", ["all"]), ("mask", None),
        ("scorer", []), ("scorer", {}), ("scorer", {"fixed": [3]}),
        ("scorer", {"fixed": [9], "fold_in": FOLD_IN}),
        ("scorer", {"fixed": [-1], "fold_in": FOLD_IN}),
        ("scorer", {"fixed": [0, 1, 2, 3], "fold_in": FOLD_IN}),
        ("scorer", {"fixed": "3", "fold_in": FOLD_IN}),
        ("scorer", {"fixed": [1.0], "fold_in": FOLD_IN}),
        ("scorer", {"fixed": [], "fold_in": {**FOLD_IN, "ridge": -1}}),
        ("scorer", {"fixed": [], "fold_in": {**FOLD_IN, "ridge": "x"}}),
        ("scorer", {"fixed": [], "fold_in": {**FOLD_IN, "settings": [1]}}),
        ("scorer", {"fixed": [], "fold_in": {**FOLD_IN, "objective": ""}}),
        ("scorer", {"fixed": [], "fold_in": {**FOLD_IN, "unit": 1}}),
        ("fingerprint", 7), ("interrupted", 0), ("interrupted", "no"), ("training", []),
        ("files", []), ("files", {}), ("files", {"interactions.npz": 5}),
        ("files", {"interactions.npz": {"bytes": -1, "sha256": "x"}}),
        ("files", {"interactions.npz": {"bytes": 10**40, "sha256": "x"}}),
        ("files", {"../../etc/passwd": {"bytes": 1, "sha256": "x"}}),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused(saved: Path, key: str, value: object) -> None:
    facts = json.loads((saved / "recommender.json").read_text()) | {key: value}
    if value is MISSING:
        del facts[key]
    (saved / "recommender.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=f"{saved}.*{key if value is MISSING else ''}") as caught:
        open_recommender(saved)
    assert len(str(caught.value)) < 1000
    assert key != "format" or "version" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": 1, "a": 2}', b'{"a": NaN}'],
    ids=lambda content: repr(content[:12]),
)
def test_a_description_that_is_not_json(saved: Path, content: bytes) -> None:
    (saved / "recommender.json").write_bytes(content)
    with pytest.raises(InputError, match=r"recommender\.json"):
        open_recommender(saved)


META = {"name": "x", "valid_source": "none", "protocol": None, "notes": [], "sources": {}}
DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    "arrays",
    [
        {"meta": None}, {"meta": np.array("{")}, {"meta": np.array(DEEP)}, {"meta": np.zeros(3)},
        {"meta": np.array(b"{}")}, {"meta": np.array("null")}, {"meta": np.array('{"name": NaN}')},
        *({"meta": np.array(json.dumps({**META, **change}))} for change in (
            {"name": 5}, {"valid_source": "stolen"}, {"protocol": []}, {"protocol": {}},
            {"protocol": {"train": [], "valid": [], "test": ["x"], "users": 1, "seed": 0}},
            {"protocol": {"train": [], "valid": [], "test": [], "users": 0, "seed": 0}},
            {"notes": "x"}, {"sources": {"a": 1}}, {"sources": None},
        )),
        {"item_counts": None}, {"item_counts": np.ones(3, int)}, {"item_counts": np.ones(30)},
        {"item_counts": np.full(30, -1)}, {"item_counts": np.ones((30, 1), int)},
        {"item_counts": np.full(30, 10**12)}, {"item_counts": np.full(30, 2**63, "u8")},
        {"train.counts": None}, {"train.items": None}, {"valid.items": np.zeros(0, int)},
        {"train.counts": np.zeros(40, int)}, {"train.counts": np.full(40, 10**9)},
        {"train.counts": np.full(40, 2**62)}, {"train.counts": np.full(40, 2**63, "u8")},
        {"train.counts": np.array([1, -1])}, {"test.counts": np.zeros(41, int)},
        {"train.items": np.array(["a"])}, {"train.items": np.full(10**6, 29)},
        {"user_labels": np.arange(3)}, {"user_labels": np.zeros(40)},
        {"user_labels": np.zeros(40, int)}, {"item_labels": np.array(5)},
        {"item_labels": np.zeros(30, "M8[s]")}, {"item_labels": np.array([b"x"] * 30)},
    ],
    ids=lambda arrays: " ".join(f"{k}={v!r:.60}" for k, v in arrays.items()),
)  # fmt: skip
def test_interactions_of_another_kind_are_refused(saved: Path, arrays: dict[str, Any]) -> None:
    """Even where the checksum fits, since an attacker can change both files."""
    change_arrays(saved, **arrays)
    with pytest.raises((InputError, DataError)) as caught:
        open_recommender(saved)
    assert str(saved) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_items_that_are_twice_or_none_are_refused(saved: Path) -> None:
    with np.load(saved / "interactions.npz") as arrays:
        items = arrays["train.items"].copy()
    for value in (-1, 30, 2**31 - 1, int(items[1])):
        changed = items.copy()
        changed[0] = value
        change_arrays(saved, **{"train.items": changed})
        with pytest.raises((InputError, DataError), match=r"interactions\.npz"):
            open_recommender(saved)


class Evil:
    """Unpickling it would be noticed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def test_nothing_is_unpickled(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    change_arrays(saved, meta=np.array([Evil()], dtype=object))
    with pytest.raises((InputError, DataError), match=r"interactions\.npz"):
        open_recommender(saved)
    assert not (tmp_path / "ran").exists()


def test_factors_of_other_data_are_refused(saved: Path) -> None:
    tensors, facts = files.read_tensors(saved / "factors.safetensors")
    for part in ("users", "items"):
        shorter = {**tensors, part: tensors[part][:-1].contiguous()}
        files.write_tensors(saved / "factors.safetensors", shorter, facts)
        sign(saved)
        with pytest.raises((InputError, DataError), match=str(saved)):
            open_recommender(saved)


def test_settings_of_a_vote_are_checked(tmp_path: Path) -> None:
    folder = made("vote").save(tmp_path / "model")
    known = json.loads((folder / "recommender.json").read_text())["scorer"]["settings"]
    changes = {"cap": "x"}, {"cap": -1}, {"other": 1}, {"groups": 10**9}, {"base": "os:system"}
    wrong = [None, [], {"cap": None}, *({**known, **change} for change in changes)]
    for scorer in ({}, *({"settings": settings} for settings in wrong)):
        change_json(folder / "recommender.json", scorer=scorer)
        with pytest.raises(InputError, match=str(folder)):
            open_recommender(folder)


def test_code_from_outside_is_not_imported_unless_told(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harmful.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    fold_in = {**FOLD_IN, "objective": "harmful:Thing"}
    change_json(saved / "recommender.json", scorer={"fixed": [], "fold_in": fold_in})
    model = open_recommender(saved)
    assert len(model.recommend("user 001", k=3)) == 3
    with pytest.raises(InputError, match="allow_code"):
        model.recommend(items=["item 001"])
    assert not (tmp_path / "ran").exists()
    with pytest.raises(InputError, match="harmful"):
        open_recommender(saved, allow_code=True).recommend(items=["item 001"])
    assert (tmp_path / "ran").exists()


def test_an_unfinished_one_is_used_when_told(saved: Path) -> None:
    change_json(saved / "recommender.json", interrupted=True, training={"epochs": 2})
    with pytest.raises(UnfinishedError, match="2 epochs.*--resume"):
        open_recommender(saved)
    assert open_recommender(saved, allow_unfinished=True).label == "mine"
    # Killed while the next result was being written over it.
    (saved / "factors.safetensors").write_bytes(b"half")
    with pytest.raises(UnfinishedError, match="--resume"):
        open_recommender(saved, allow_unfinished=True)


def test_opening_only_reads_and_ignores_other_files(saved: Path, tmp_path: Path) -> None:
    def content() -> dict[Path, tuple[int, bytes]]:
        found = [path for path in saved.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}

    shutil.copytree(saved, saved / "copy")
    (tmp_path / "link").symlink_to(saved)
    before = content()
    saved.chmod(0o555)
    try:
        for folder in (saved, saved / "copy", tmp_path / "link"):
            model = open_recommender(folder)
            assert len(model.recommend(k=2)) > 0
            assert model.label == "mine"
    finally:
        saved.chmod(0o755)
    assert content() == before
