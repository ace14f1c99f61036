"""Each check against a naive count, and what is skipped."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from robustcf.auditing import CHECKS, audit, stability
from robustcf.auditing import subject as subject_module
from robustcf.auditing.quality import copies
from robustcf.auditing.stability import rank_biased_overlap, turned_rows
from robustcf.auditing.subject import Subject
from robustcf.data import load
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import Recommender
from robustcf.robustness import measure, quantize
from robustcf.training import TrainConfig
from robustcf.training.fitting import fit_split
from tests.auditing.helpers import naive_top, small_split, small_target

SEEDS = (0, 1, 2)


def numbers(target, *names, **options):
    found = audit(target, only=names, attack=False, **options)
    return [found[name].number for name in names]


def mean_overlap(left, right):
    return np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(left, right, strict=True)])


@pytest.mark.parametrize("seed", SEEDS)
def test_serving_is_the_overlap_of_naive_lists(seed):
    target = small_target(seed)
    users, items = (part.numpy() for part in target.factors)
    seen = target.split.train
    exact = naive_top(users, items, seen)

    def steps(part, levels):
        scale = np.abs(part.astype(np.float64)).max(axis=1, keepdims=True) / levels
        return (np.round(part / scale) * scale).astype(np.float32)

    def half(part):
        return torch.from_numpy(part).bfloat16().float().numpy()

    served = (
        (half(users), half(items)),
        (steps(users, 127), steps(items, 127)),
        (steps(users, 7), steps(items, 7)),
        (users, items / np.linalg.norm(items, axis=1, keepdims=True)),
    )
    expected = [mean_overlap(exact, naive_top(*each, seen)) for each in served]
    assert numbers(target, "bfloat16", "int8", "int4", "cosine") == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_catalogue_and_rows_are_naive_counts(seed):
    target = small_target(seed)
    users, items = (part.numpy() for part in target.factors)
    lists = naive_top(users, items, target.split.train)
    shown = [item for row in lists for item in row]
    degrees = target.split.train.item_degrees
    best = int(np.lexsort((np.arange(len(degrees)), -degrees))[0])
    lengths = [np.linalg.norm(part, axis=1) for part in (users, items)]
    expected = [
        len(set(shown)) / len(items),
        (shown.count(best) / len(shown)) / (degrees[best] / degrees.sum()),
        max(length.max() / np.median(length) for length in lengths),
    ]
    assert numbers(target, "coverage", "popularity_bias", "norms") == pytest.approx(expected)


def test_rows_that_were_never_trained_are_counted_once():
    split = small_split()
    train_pairs = split.train.csr().toarray()
    train_pairs[3] = 0  # a user without pairs, whose row is a copy as well
    rng = np.random.default_rng(0)
    users, items = rng.normal(size=(40, 4)), rng.normal(size=(30, 4))
    users[3] = users[5]
    items[7] = 0.0
    target = Recommender(users, items, train_pairs, split.test.csr().toarray())
    found = audit(target, only=["untrained"])["untrained"]
    without = int((train_pairs.sum(axis=0) == 0).sum())
    assert found.details["rows"] == 2 + 1 + without
    assert copies(torch.tensor([[0.0], [1.0], [0.0]])).tolist() == [True, False, True]


@pytest.mark.slow
def test_quality_is_that_of_the_evaluation():
    split = load("demo")
    trained = fit_split(split, TrainConfig.of(model="ultragcn", factors=8, epochs=1))
    target = trained.recommender()
    found = audit(target, only=["popularity", "fresh"])
    own = trained.evaluate((10,))["ndcg@10"]
    degrees = torch.from_numpy(target.known.item_degrees.astype(np.float32))
    popular = Factors(torch.ones(split.n_users, 1), degrees[:, None])
    other = target.evaluate((10,), popular)["ndcg@10"]
    assert found["popularity"].number == pytest.approx(own / other)
    assert found["popularity"].details["standard error"] > 0
    assert found["fresh"].details["ndcg@10"] == own
    assert found["fresh"].number < 3


def test_a_model_that_learnt_the_test_pairs_is_suspected():
    split = small_split()
    both = split.train.csr() + split.test.csr()
    left, sizes, right = np.linalg.svd(both.toarray())
    leaky = Recommender((left[:, :30] * sizes), right.T, split)
    fair = np.linalg.svd(split.train.csr().toarray())
    honest = Recommender(fair[0][:, :30] * fair[1], fair[2].T, split)
    assert audit(honest, only=["leak"])["leak"].verdict == "pass"
    found = audit(leaky, only=["leak"])
    assert found["leak"].verdict == "warn"
    assert "held-out pairs" in found.caveats[0]


def test_ties_are_seen():
    target = small_target(0)
    users, items = (part.clone() for part in target.factors)
    items[1::2] = items[::2]  # every item has a twin: no first item is safe
    tied = target.with_factors(Factors(users, items))
    assert audit(tied, only=["near_ties"])["near_ties"].number > 0.5
    assert audit(target, only=["near_ties"])["near_ties"].number < 0.1


def test_noise_attack_and_certificate_are_those_of_measure():
    target = small_target(1)
    found = audit(target, only=["noise", "attack", "certificate"], size=0.2)
    attacked = measure(target, "auto", None, (0.0, 0.2), (10,)).curve["ndcg@10"]
    assert found["attack"].number == attacked[1] / attacked[0]
    assert found["attack"].details["joint"] == attacked[1]
    drawn = next(curve for curve in found.curves if curve["kind"] == "attack")
    curve = measure(target, "auto", None, drawn["sizes"], (10,)).curve["ndcg@10"]
    assert len(curve) == 5
    assert drawn["ndcg@10"] == curve.tolist()
    sizes = found["certificate"].details["sizes"]
    proved = measure(target, "certificate", None, sizes, (10,)).curve["ndcg@10"]
    assert found["certificate"].number == proved[sizes.index(0.01)] / proved[0]
    assert set(found.results) == {"attack", "certificate"}
    assert 0 < found["noise"].number <= 1.2


def test_what_cannot_be_run_is_skipped_with_the_reason():
    split = small_split()
    target = Recommender(np.eye(40, 4), np.eye(30, 4), split.train.csr())
    found = audit(target, attack=False)
    reasons = {f.check.name: f.sentence for f in found.findings if f.verdict == "skipped"}
    for words, names in (
        ("no held-out pairs", ("popularity", "leak")),
        ("left out", ("attack", "certificate")),
        ("--against", ("churn",)),
        ("zeros", ("norms",)),
    ):
        assert all(words in reasons[name] for name in names)
    assert all(found[name].number is None for name in reasons)
    assert any("no held-out pairs" in caveat for caveat in found.caveats)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rotation_changes_no_list_and_turns_back(seed):
    target = small_target(seed, labels=True)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(seed)))
    users, items = target.factors
    other = Factors(users @ rotation, items @ rotation)
    found = audit(target, only=["churn"], against=other)["churn"]
    assert found.number == 1.0
    assert found.details["rank-biased overlap"] == pytest.approx(1.0)
    assert found.details["mean cosine of items after alignment"] == pytest.approx(1.0)


def test_churn_is_the_overlap_and_names_who_moved():
    target = small_target(0, labels=True)
    other = small_target(5)
    users, items = (part.numpy() for part in target.factors)
    theirs = (part.numpy() for part in other.factors)
    seen = target.split.train
    expected = mean_overlap(naive_top(users, items, seen), naive_top(*theirs, seen))
    found = audit(target, only=["churn"], against=other.factors)["churn"]
    assert found.number == pytest.approx(expected)
    assert {row[0] for row in found.rows} == {"user", "item"}
    assert found.rows[0][1].startswith("u")
    assert found.details["mean cosine of items after alignment"] < 0.9


def test_rank_biased_overlap_is_its_sum():
    rng = np.random.default_rng(0)
    for _ in range(20):
        left, right = rng.permutation(12)[:6], rng.permutation(12)[:6]
        weights = [0.9**d for d in range(6)]
        shares = [len(set(left[:d]) & set(right[:d])) / d for d in range(1, 7)]
        expected = sum(w * s for w, s in zip(weights, shares, strict=True)) / sum(weights)
        assert rank_biased_overlap(left[None], right[None])[0] == pytest.approx(expected)


def test_versions_of_other_width_compare():
    factors = small_target(0).factors
    wide = Factors(*(torch.nn.functional.pad(part, (0, 3)) for part in factors))
    assert turned_rows(factors, wide)["users"] == pytest.approx(1.0)


def test_a_large_subject_is_sampled_and_says_so(monkeypatch):
    monkeypatch.setattr(subject_module, "MOST_SCORES", 100)
    monkeypatch.setattr(subject_module, "SAMPLE", 15)
    target = small_target(0)
    subject = Subject(target)
    assert subject.sampled
    assert subject.model.factors.n_users == 15
    for place, user in enumerate(subject.users):
        own = subject.model.split.train.items_of(place)
        assert own.tolist() == target.split.train.items_of(int(user)).tolist()
    users, items = (part.numpy() for part in target.factors)
    lists = naive_top(users, items, target.split.train)
    assert subject.top.tolist() == [lists[user] for user in subject.users]
    folded = Subject(target.serving("fold-in"))
    assert folded.model.kind == "fold-in"
    assert torch.equal(folded.model.factors.users, folded.whole.factors.users[folded.users])
    found = audit(target, only=["popularity", "int8", "coverage"])
    assert any("a sample of 15 of 40 users" in caveat for caveat in found.caveats)
    report = target.evaluate((10,))
    chosen = np.isin(report.users, subject.users)
    expected = report.per_user["ndcg@10"][chosen].mean()
    assert found["popularity"].details["ndcg@10"] == pytest.approx(expected)
    found = audit(target, only=["attack"])["attack"]
    assert (found.verdict, "too many to attack" in found.sentence) == ("skipped", True)


def test_biases_stay_out_of_norms_and_copies():
    rng = np.random.default_rng(0)
    users = np.c_[rng.normal(size=(40, 3)), np.ones(40)]
    items = np.c_[rng.normal(size=(30, 3)), 1000 * rng.normal(size=30)]
    free = Recommender(users[:, :3], items[:, :3], small_split())
    held = Recommender(users, items, small_split(), fixed=[3])
    assert numbers(held, "norms") == pytest.approx(numbers(free, "norms"))


def test_a_json_object_of_plain_values():
    blind = small_target(0).with_factors(Factors(torch.zeros(40, 2), torch.zeros(30, 2)))
    found = audit(blind, only=["noise", "certificate", "coverage"])
    json.dumps(found.as_dict(), allow_nan=False)  # no division by a quality of 0
    found = audit(small_target(0), attack=False, source="mine.npz")
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["schema"] == 2
    assert data["source"] == "mine.npz"
    assert {entry["check"] for entry in data["checks"]} == set(CHECKS)
    assert data["subject"]["users"] == 40
    for entry in data["checks"]:
        assert entry["verdict"] in ("pass", "warn", "fail", "info", "skipped")
        assert (entry["number"] is None) == (entry["verdict"] == "skipped")


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda model: audit(model, only=["int9"]), "did you mean 'int8'"),
        (lambda model: audit(model, size=0.0), "size"),
        (lambda model: audit(model, size=float("nan")), "size"),
        (lambda model: audit(model.factors), "Recommender"),
        (lambda model: audit(model, only=["norms"])["x"], "unknown check"),
        (lambda model: audit(model, only=["churn"], against=Factors.of([[1]], [[1]])), "version"),
    ],
)
def test_errors(call, word):
    with pytest.raises(InputError, match=word):
        call(small_target(0))


@pytest.mark.parametrize("seed", SEEDS)
def test_biases_are_served_in_full_precision(seed):
    plain = small_target(seed)
    rng = np.random.default_rng([seed, 2])
    bias = 20 * rng.normal(size=(30, 1)).astype(np.float32)  # in its scale, the rest would vanish

    def with_bias(factors):
        users, items = (part.numpy() for part in factors)
        return np.hstack([users, np.ones((40, 1), np.float32)]), np.hstack([items, bias])

    wide = Recommender(*with_bias(plain.factors), plain.split, fixed=(5,))
    found = audit(wide, only=("int4",))["int4"]
    exact = naive_top(*with_bias(plain.factors), plain.split.train)
    rounded = naive_top(*with_bias(quantize(plain.factors, "int4")), plain.split.train)
    shares = [len(set(a) & set(b)) / 10 for a, b in zip(exact, rounded, strict=True)]
    assert found.number == pytest.approx(np.mean(shares))
    assert found.sentence.endswith("Biases are kept in full precision.")
    free = audit(Recommender(*wide.factors, plain.split), only=("int4",))["int4"]
    assert free.number != pytest.approx(np.mean(shares))


def test_findings_say_how_many_users_were_looked_at(monkeypatch):
    target = small_target()
    monkeypatch.setattr(stability, "FEW", 7)
    found = audit(target, only=("near_ties",), attack=False)
    assert "(7 of 40 users looked at)" in found["near_ties"].sentence
    monkeypatch.undo()
    assert "looked at" not in audit(target, only=("near_ties",))["near_ties"].sentence
