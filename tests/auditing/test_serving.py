"""Ways of serving against brute force, their words, and what the verdict is about."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcf.auditing import audit, serving
from robustcf.auditing.serving import Way
from robustcf.auditing.subject import Subject
from robustcf.errors import InputError
from robustcf.recommender import Recommender
from robustcf.robustness import quantize
from tests.auditing.helpers import naive_top, small_split, small_target

SEEDS = (0, 1, 2)


def embeddings(seed, users=30, items=400, dim=8):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(users, dim)).astype("f4"), rng.normal(size=(items, dim)).astype("f4")


def test_words_of_ways():
    way = Way.parse("int8+hnsw:links=16,ef=32")
    assert (way.bits, way.search, way.base) == ("int8", "hnsw", "int8+hnsw")
    assert (way.settings["links"], way.settings["ef"], way.settings["build"]) == (16, 32, 40)
    assert Way.parse("exact").settings == {}


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("int9", "must be one of exact"),
        ("int8+int4", "one precision and one search"),
        ("hnsw+ivf", "one precision and one search"),
        ("int8:ef=3", "no parameters"),
        ("hnsw:link=3", "did you mean 'links'"),
        ("hnsw:ef=0", "at least 1"),
        ("hnsw:ef=x", "integer"),
        ("hnsw:ef", "integer"),
        ("", "must be one of"),
    ],
)
def test_bad_ways_are_refused(spec, word):
    with pytest.raises(InputError, match=word):
        Way.parse(spec)


def test_the_verdict_is_about_what_is_served():
    U, V = embeddings(0)
    target = Recommender(U, V * np.random.default_rng(0).lognormal(0, 1, size=(400, 1)))
    names = ["untrained", "cosine", "int8"]
    found = audit(target, only=names)
    assert {found["cosine"].verdict, found["int8"].verdict} == {"info"}
    assert found.verdict == found["untrained"].verdict == "pass"
    served = audit(target, only=names, serve=["cosine"])
    assert served["cosine"].verdict == served.verdict == "fail"
    assert served["int8"].verdict == "info"
    assert served.as_dict()["serve"] == ["cosine"]
    # A job may fail by a way that is not served.
    assert found.failures(["cosine"], {}) != []
    assert found.failures(["int8"], {}) == []
    assert [row[0] for row in served.serving] == ["int8", "cosine"]


@pytest.mark.parametrize("seed", SEEDS)
def test_indexes_that_look_at_everything_are_exact_and_poor_ones_are_not(seed):
    pytest.importorskip("faiss")
    U, V = embeddings(seed)
    model = Recommender(U, V)
    served = ["ivf:cells=8,probes=8", "hnsw:links=32,ef=400", "ivf:cells=20,probes=1", "pq:codes=1"]
    found = audit(model, only=served, serve=served)
    for name in served[:2]:
        assert found[name].number == pytest.approx(1.0)
        assert found[name].details["recall@10"] == pytest.approx(1.0)
        assert found[name].verdict == "pass"
    for name in served[2:]:
        assert found[name].verdict in ("warn", "fail")
    assert found["ivf:cells=20,probes=1"].details["probes"] == 1
    assert found["pq"].details["bytes per item row"] < 40


@pytest.mark.parametrize("seed", SEEDS)
def test_recall_is_of_the_raw_lists_and_overlap_of_the_unseen(seed):
    pytest.importorskip("faiss")
    target = small_target(seed)
    U, V = (part.numpy() for part in target.factors)
    way = Way.parse("ivf:cells=4,probes=1,ask=12")
    subject = Subject(target)
    found = way.found(subject)
    index = way._index(V)
    raw = index.search(U, 10)[1]
    none = small_split().test.take(np.zeros(80, dtype=bool))
    best = naive_top(U, V, none)
    expected = [len(set(a) & set(b)) / 10 for a, b in zip(best, raw.tolist(), strict=True)]
    assert found.details["recall@10"] == pytest.approx(np.mean(expected))
    asked, lists = index.search(U, 12)[1].tolist(), naive_top(U, V, target.split.train)
    kept = []
    for user, own in enumerate(lists):
        have = set(target.split.train.items_of(user).tolist()) | {-1}
        left = [item for item in asked[user] if item not in have][:10]
        kept.append(len(set(own) & set(left)) / len(own))
    assert found.number == pytest.approx(np.mean(kept))
    assert found.error == pytest.approx(np.std(kept) / 40**0.5)


def test_fewer_bits_in_an_index_and_bytes():
    pytest.importorskip("faiss")
    U, V = embeddings(0)
    found = audit(
        Recommender(U, V), only=["exact", "int8", "int4", "int4+hnsw"], serve=["int4+hnsw"]
    )
    names = {name: found[name].details["bytes per item row"] for name in ("exact", "int8", "int4")}
    assert names == {"exact": 32, "int8": 12, "int4": 8}
    rounded = quantize(Recommender(U, V).factors, "int4")
    exact = Recommender(*rounded)
    expected = audit(Recommender(U, V), only=["int4"])["int4"].number
    assert found["int4+hnsw"].number == pytest.approx(expected, abs=0.02)
    assert exact.factors.dim == 8


def test_without_faiss_indexes_are_skipped_and_times_are_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = audit(small_target(0), only=["hnsw", "ivf", "pq", "int8"], serve=["hnsw"])
    assert [found[name].verdict for name in ("hnsw", "ivf", "pq")] == ["skipped"] * 3
    assert "robustcf[serving]" in found["ivf"].sentence
    assert found["int8"].details["microseconds per query"] is None


def test_parameters_that_do_not_fit_the_model_are_skipped():
    pytest.importorskip("faiss")
    served = ["pq:codes=3", "ivf:cells=1000"]
    found = audit(small_target(0), only=served, serve=served)
    assert [f.verdict for f in found.findings] == ["skipped", "skipped"]
    assert "divide" in found["pq"].sentence


def test_findings_say_how_many_users_were_looked_at(monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(serving, "_QUERIES", 9)
    found = audit(small_target(), only=("hnsw",))
    assert "(9 of 40 users looked at)" in found["hnsw"].sentence
    assert torch.get_num_threads() > 0
