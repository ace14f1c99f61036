"""Entries of a leaderboard: their numbers are those of the evidence, and others are refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from robustcf._io.files import read_arrays
from robustcf.auditing.battery import submit
from robustcf.auditing.entries import (
    RANKED,
    as_stored,
    entry_threat,
    read_entry,
    read_evidence,
    verify,
    write_evidence,
)
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.factorized import FactorScorer
from robustcf.recommender import Recommender
from robustcf.robustness import measure
from tests.auditing.helpers import small_split

SEEDS = (0, 1, 2)


def small_model(seed=0, fixed=()):
    split = small_split(seed)
    rng = np.random.default_rng(seed)
    users, items = (rng.normal(size=(n, 6)) for n in (split.n_users, split.n_items))
    pairs = split.train
    for user, item in zip(pairs.users, pairs.items, strict=True):
        users[user] += 0.4 * items[item]
    if fixed:
        users[:, list(fixed)] = 1.0
    return Recommender(users.astype(np.float32), items.astype(np.float32), split, fixed=fixed)


@pytest.fixture(scope="module")
def entered(tmp_path_factory):
    model = small_model()
    place = tmp_path_factory.mktemp("entry")
    return submit(model, place / "entry", name="A model", steps=5, progress=False), model.split


@pytest.fixture
def copied(entered, tmp_path):
    entry, split = entered
    shutil.copytree(entry.path.parent, tmp_path / "copy")
    return tmp_path / "copy" / entry.path.name, split


def changed(path, change):
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))
    return path


def test_an_entry_is_verified_from_its_evidence(entered):
    entry, split = entered
    found = verify(entry.path.parent, lambda name: split)
    assert found.passed, str(found)
    assert {row[0] for row in found.rows} > {"clean ndcg@10", "clean recall@20"}


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["clean"].update({"ndcg@10": facts["clean"]["ndcg@10"] + 1e-3}),
        lambda facts: facts["attacked"][2].update(value=facts["attacked"][2]["value"] + 0.01),
        lambda facts: facts["attacked"][2].update(value=0.0),
        lambda facts: facts["evidence"].update(value=facts["evidence"]["value"] + 1e-3),
        lambda facts: facts["certified"][3].update(value=facts["certified"][3]["value"] + 1e-3),
        lambda facts: facts["certified"][1].update(value=facts["certified"][1]["value"] - 1e-3),
        lambda facts: facts["attacked"][1].update(value=facts["clean"]["ndcg@10"]),
        lambda facts: facts["attacked"][2].update(random=facts["attacked"][2]["value"]),
        lambda facts: facts["groups"]["popularity: head"].update(attacked=1.0),
    ],
)
def test_a_changed_number_does_not_pass(copied, change):
    path, split = copied
    assert read_entry(path).facts["attacked"][2]["epsilon"] == RANKED
    assert not verify(changed(path, change), lambda name: split).passed


def test_a_flag_that_was_taken_out_does_not_pass(tmp_path):
    model = small_model()
    U, V = model.factors
    uneven = Recommender(torch.cat([100 * U[:3], U[3:]]), V, model.split)
    entry = submit(uneven, tmp_path / "e", name="uneven", steps=2, progress=False)
    assert "uneven" in {flag["name"] for flag in entry.facts["flags"]}
    assert verify(entry, lambda name: model.split).passed
    changed(entry.path, lambda facts: facts.update(flags=[]))
    assert "flag uneven" in str(verify(entry.path, lambda name: model.split))


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["dataset"].update(fingerprint="0" * 64),
        lambda facts: facts["evidence"].update(sha256="0" * 64),
        lambda facts: facts.update(evidence=None),
        lambda facts: facts["threat"].update(unit="relative"),
        lambda facts: facts["threat"].update(more=1),
        lambda facts: facts["clean"].update(speed=0.5),
        lambda facts: facts["attacked"].pop(2),
        lambda facts: facts["evidence"].update(file="../other.npz"),
        lambda facts: facts["evidence"].update(epsilon=0.1),
        lambda facts: facts["attacked"][3].update(epsilon=0.02),
        lambda facts: facts["attacked"][4].update(epsilon=1e300),
        lambda facts: facts.update(format="robustcf entry 0"),
    ],
)
def test_other_data_evidence_and_terms_are_refused(copied, change):
    path, split = copied
    with pytest.raises(InputError):
        verify(changed(path, change), lambda name: split)


def test_a_perturbation_over_the_budget_is_refused(tmp_path):
    model = as_stored(small_model(), "int8")
    own = FactorScorer(Factors(model.factors.users * 3, model.factors.items))
    facts = write_evidence(tmp_path / "a.npz", model, "int8", own.factors)  # shortened
    assert 0 <= facts["value"] <= 1
    with np.load(tmp_path / "a.npz") as arrays:
        kept = dict(arrays)
    kept["move.users.scale"] = kept["move.users.scale"] * 1.01
    np.savez(tmp_path / "b.npz", **kept)
    with pytest.raises(InputError, match="budget"):
        read_evidence(tmp_path / "b.npz", model.split, entry_threat())


@pytest.mark.parametrize("key", ["facts", "model.users", "move.items", "move.users.scale"])
def test_damaged_evidence_is_refused(entered, tmp_path, key):
    entry, split = entered
    with np.load(entry.path.with_suffix(".npz")) as arrays:
        kept = dict(arrays)
    for name, value in (("gone", None), ("short", kept[key][..., :1] if kept[key].ndim else 1)):
        damaged = (
            {**kept, key: value} if value is not None else {k: kept[k] for k in kept if k != key}
        )
        np.savez(tmp_path / f"{name}.npz", **damaged)
        with pytest.raises(InputError):
            read_evidence(tmp_path / f"{name}.npz", split, entry_threat())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("precision", ["int8", "int6", "float32"])
@pytest.mark.parametrize("fixed", [(), (2,)])
def test_the_evidence_is_the_model_that_was_measured(tmp_path, seed, precision, fixed):
    model = as_stored(small_model(seed, fixed), precision)
    noise = torch.Generator().manual_seed(seed)
    parts = [part + 0.01 * torch.randn(part.shape, generator=noise) for part in model.factors]
    for part, own in zip(parts, model.factors, strict=True):
        part[:, list(fixed)] = own[:, list(fixed)]
    write_evidence(tmp_path / "e.npz", model, precision, Factors(*parts))
    found, moved = read_evidence(tmp_path / "e.npz", model.split, entry_threat())
    assert torch.equal(found.factors.users, model.factors.users)
    assert torch.equal(found.factors.items, model.factors.items)
    for before, after, wanted in zip(model.factors, moved, parts, strict=True):
        move, aim = after - before, wanted - before
        assert torch.cosine_similarity(move, aim, dim=1).min() > 0.97
        lengths = before[:, [c for c in range(6) if c not in fixed]].norm(dim=1)
        assert torch.all(move.norm(dim=1) <= RANKED * lengths.clamp_min(lengths.median()) * 1.0001)
        assert torch.equal(after[:, list(fixed)], before[:, list(fixed)])


def test_bad_input(tmp_path):
    model = small_model()
    with pytest.raises(InputError, match="precision"):
        submit(model, tmp_path / "a", name="a", precision="int3")
    with pytest.raises(InputError, match="name"):
        submit(model, tmp_path / "b", name="  ")
    without = Recommender(*model.factors, model.split.train)
    with pytest.raises(InputError, match="test"):
        submit(without, tmp_path / "c", name="c")
    with pytest.raises(InputError, match="one entry"):
        read_entry(tmp_path)


def test_the_perturbation_gets_more_bits_where_it_needs_them(tmp_path):
    model = as_stored(small_model(), "int8")
    noise = torch.Generator().manual_seed(0)
    moved = Factors(*(p + 0.01 * torch.randn(p.shape, generator=noise) for p in model.factors))
    for value in (1.0, 0.0):  # any evidence is enough, or none is
        write_evidence(tmp_path / f"{value}.npz", model, "int8", moved, value)
    coarse, fine = (read_arrays(tmp_path / f"{v}.npz")["move.items"] for v in (1.0, 0.0))
    assert (abs(coarse).max(), abs(fine).max()) == (15, 127)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_without_stored_users(tmp_path, seed):
    """Its items alone are moved, and users follow them."""
    model = small_model(seed).serving("fold-in")
    entry = submit(
        *(model, tmp_path / "e"), name="folded", steps=20, precision="float32", progress=False
    )
    assert entry.facts["surface"] == "map and items"
    assert entry.facts["threat"]["side"] == "items"
    expected = measure(
        model, "auto", entry_threat(), [0, RANKED], (10,), steps=20, control=False
    ).curve
    assert entry.attacked(0.0) == pytest.approx(expected["ndcg@10"][0], abs=1e-6)
    assert entry.attacked(RANKED) <= expected["ndcg@10"][1] + 1e-3
    found = verify(entry, lambda name: model.split)
    assert found.passed, str(found)
