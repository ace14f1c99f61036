"""implicit and Cornac themselves: what they score is what is imported."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.adapters import from_cornac, from_implicit
from robustcf.adapters.ordering import ordered
from robustcf.adapters.reading import read
from robustcf.cli.main import run
from robustcf.data import load
from robustcf.recommender import Recommender, open_recommender
from robustcf.robustness import harden
from tests.adapters.helpers import library, naive_ndcg, world, write_pairs

pytestmark = pytest.mark.filterwarnings("ignore")

IMPLICIT = {
    "als": ("implicit.cpu.als", "AlternatingLeastSquares", ()),
    "bpr": ("implicit.cpu.bpr", "BayesianPersonalizedRanking", (6,)),
    "lmf": ("implicit.cpu.lmf", "LogisticMatrixFactorization", (6, 7)),
}


def fitted(kind, pairs, seed=0, factors=6, iterations=30):
    module, name, fixed = IMPLICIT[kind]
    library("implicit")
    model = getattr(library(module), name)(
        factors=factors, iterations=iterations, random_state=seed, num_threads=1
    )
    model.fit(pairs.csr().copy(), show_progress=False)
    return model, fixed


def own_ndcg(model, train, test, k=10):
    """NDCG@k of the lists that implicit itself recommends."""
    users = np.flatnonzero(test.user_degrees)
    seen = train.csr()[users].copy()
    lists, _ = model.recommend(users, seen, N=k, filter_already_liked_items=True)
    values = []
    for user, items in zip(users, lists, strict=True):
        own = set(test.items_of(int(user)).tolist())
        gain = sum(1 / np.log2(n + 2) for n, item in enumerate(items.tolist()) if item in own)
        values.append(gain / sum(1 / np.log2(n + 2) for n in range(min(k, len(own)))))
    return float(np.mean(values))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", IMPLICIT)
def test_implicit(tmp_path, kind, seed):
    _, _, split = world(seed, 120, 80)
    model, fixed = fitted(kind, split.train, seed)
    model.save(str(tmp_path / "model.npz"))
    train = write_pairs(tmp_path / "train.csv", split.train)
    test = write_pairs(tmp_path / "test.csv", split.test)
    code = run(
        ["import", str(tmp_path / "model.npz"), "--interactions", str(train), "--test", str(test),
         "--out", str(tmp_path / "run")]
    )  # fmt: skip
    assert code == 0
    opened = open_recommender(tmp_path / "run")
    assert opened.fixed == fixed
    found = opened.evaluate()["ndcg@10"]
    scores = model.user_factors.astype(np.float64) @ model.item_factors.astype(np.float64).T
    assert found == pytest.approx(naive_ndcg(scores, split.train, split.test), abs=1e-6)
    assert found == pytest.approx(own_ndcg(model, split.train, split.test), abs=1e-6)
    live = from_implicit(model)
    assert live.fixed == fixed
    for mine, theirs in zip(live.factors, opened.factors, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", IMPLICIT)
def test_implicit_loads_what_is_written_back(tmp_path, kind):
    _, _, split = world(0, 120, 80)
    model, fixed = fitted(kind, split.train)
    model.save(str(tmp_path / "model.npz"))
    found = read(tmp_path / "model.npz")
    target = Recommender(found.factors.users, found.factors.items, split, fixed=found.fixed)
    safer = harden(target)
    found.write_back(safer.factors, tmp_path / "safer.npz")
    again = type(model).load(str(tmp_path / "safer.npz"))
    users = np.arange(120)
    before, after = (m.recommend(users, split.train.csr().copy(), N=5)[0] for m in (model, again))
    np.testing.assert_array_equal(after, before)
    assert not np.array_equal(again.item_factors, model.item_factors)
    raw, new = np.load(tmp_path / "model.npz"), np.load(tmp_path / "safer.npz")
    assert set(raw.files) == set(new.files)
    assert again.factors == model.factors


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.parametrize("kind", IMPLICIT)
def test_implicit_on_ml_1m(real_data, kind):
    split = load("ml-1m", real_data, download=False)
    model, fixed = fitted(kind, split.train, factors=32, iterations=5)
    imported = from_implicit(model, split.train, split.test)
    assert imported.fixed == (() if kind == "als" else tuple(range(32, 32 + len(fixed))))
    expected = own_ndcg(model, split.train, split.test)
    assert imported.evaluate()["ndcg@10"] == pytest.approx(expected, abs=1e-6)


# --- Cornac -----------------------------------------------------------------------------------


def cornac_set(split, users, items):
    cornac = library("cornac")
    triples = [
        (users[u], items[i], 1.0 + (u + i) % 3)
        for u, i in zip(split.train.users.tolist(), split.train.items.tolist(), strict=True)
    ]
    return cornac.data.Dataset.from_uir(triples, seed=1)


CORNAC = {
    "BPR": dict(k=6, max_iter=200, learning_rate=0.05, seed=1),
    "WBPR": dict(k=6, max_iter=200, learning_rate=0.05, seed=1),
    "MF": dict(k=6, max_iter=50, seed=1),
    "PMF": dict(k=6, max_iter=20, seed=1),
    "SVD": dict(k=6, max_iter=50, seed=1),
}


# Importing Cornac alone takes seconds.
@pytest.mark.slow
@pytest.mark.parametrize("name", CORNAC)
def test_cornac(tmp_path, name):
    cornac = library("cornac")
    _, _, split = world(0, 60, 40)
    rng = np.random.default_rng(0)
    users = [f"u{n}" for n in rng.permutation(60)]
    items = [f"i{n}" for n in rng.permutation(40)]
    model = getattr(cornac.models, name)(**CORNAC[name])
    model.fit(cornac_set(split, users, items))
    found = from_cornac(model)
    has_bias = name in ("BPR", "WBPR", "MF", "SVD")
    assert bool(found.fixed) == has_bias
    # Cornac's own scores, by its own ids, in our order of rows.
    scores = np.full((60, 40), -np.inf)
    for u in range(60):
        if users[u] not in model.uid_map:
            continue
        row = model.score(model.uid_map[users[u]])
        for i in range(40):
            if items[i] in model.iid_map:
                scores[u, i] = row[model.iid_map[items[i]]]
    known = np.isfinite(scores)
    held = split.test.take(known[split.test.users, split.test.items])
    train = write_pairs(tmp_path / "train.csv", split.train, users, items)
    test = write_pairs(tmp_path / "test.csv", held, users, items)
    made = from_cornac(model, train, test, check=name not in ("MF", "PMF", "SVD"))
    expected = naive_ndcg(scores, split.train, held)
    assert made.evaluate()["ndcg@10"] == pytest.approx(expected, abs=1e-6)
    by_label = open_recommender(ordered(made).save(tmp_path / "run"))
    assert by_label.user_labels.tolist() == sorted(users)
    assert by_label.evaluate()["ndcg@10"] == pytest.approx(expected, abs=1e-6)
    product = (found.factors.users.double() @ found.factors.items.double().T).numpy()
    if has_bias:
        rows = [model.uid_map[user] for user in users]
        columns = [n for n, item in enumerate(items) if item in model.iid_map]
        here = product[rows][:, [model.iid_map[items[n]] for n in columns]]
        np.testing.assert_allclose(here, scores[:, columns], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_five_lines_of_python(tmp_path):
    """As the page on Cornac shows it."""
    cornac = library("cornac")
    _, _, split = world(0, 60, 40)
    model = cornac.models.BPR(k=6, max_iter=200, learning_rate=0.05, seed=1)
    model.fit(cornac_set(split, [f"u{n}" for n in range(60)], [f"i{n}" for n in range(40)]))
    train = write_pairs(tmp_path / "t.csv", split.train, [f"u{n}" for n in range(60)], [f"i{n}" for n in range(40)])  # fmt: skip  # noqa: E501
    folder = from_cornac(model, train).save(tmp_path / "run")
    assert run(["certify", str(folder), "--k", "5"]) == 0
