"""``sweep`` and ``compare`` over recommenders: which is better where, for any order of rows."""

from __future__ import annotations

import numpy as np
import pytest

import robustcf
from robustcf.data import Interactions, Split, load
from robustcf.errors import InputError
from robustcf.experiments.comparison import Comparison, compare_curves
from robustcf.experiments.in_memory import Sweep, _judged_alike, compare, sweep
from robustcf.factors import Factors
from robustcf.models.voting import fit_vote
from robustcf.recommender import Recommender
from robustcf.robustness import Threat, measure
from tests.robustness.helpers import random_world

SIZES = (0.0, 0.1, 0.4)
USERS, ITEMS = 60, 40
RESAMPLES = 999


def labelled(seed: int = 0) -> tuple[np.ndarray, np.ndarray, Split]:
    """Factors that fit their pairs, and the pairs with labels."""
    U, V, train, test = random_world(seed, USERS, ITEMS)
    users = np.array([f"u{n:02}" for n in range(USERS)])
    items = np.array([f"i{n:02}" for n in range(ITEMS)])
    return U, V, Split.from_csr(train, test, user_labels=users, item_labels=items)


def noisy(V: np.ndarray, size: float, seed: int = 0) -> np.ndarray:
    return V + size * np.random.default_rng(seed).normal(size=V.shape)


def shuffled(model: Recommender, seed: int) -> Recommender:
    """The same recommender with its users and items in another order."""
    rng = np.random.default_rng(seed)
    users, items = rng.permutation(model.n_users), rng.permutation(model.n_items)
    U, V = (part.numpy() for part in model.factors)
    train, test = (
        getattr(model.split, part).csr().toarray()[users][:, items] for part in ("train", "test")
    )
    assert model.user_labels is not None
    assert model.item_labels is not None
    labels = {"user_labels": model.user_labels[users], "item_labels": model.item_labels[items]}
    split = Split.from_csr(train, test, name="another file", **labels)
    return Recommender(U[users], V[items], split, label=model.label)


@pytest.fixture(scope="module")
def models() -> dict[str, Recommender]:
    U, V, split = labelled()
    return {
        "good": Recommender(U, V, split),
        "noisy": Recommender(U, noisy(V, 1.5), split),
        "wrong": Recommender(-U, V, split),
    }


@pytest.fixture(scope="module")
def swept(models) -> Sweep:
    return sweep(models, ["fgm-softmax", "random", "certificate"], epsilons=SIZES, ks=(5, 10))


def verdicts(found: Comparison) -> dict[tuple[str, str], list[int]]:
    return {(c.first, c.second): c.verdict.tolist() for c in found.contrasts}


# --- sweep ------------------------------------------------------------------------------------


def test_every_result_is_that_of_measure(models, swept):
    assert list(swept.results) == ["good", "noisy", "wrong"]
    for label, model in models.items():
        for attack, (result,) in swept.results[label].items():
            alone = measure(model, attack, epsilons=SIZES, ks=(5, 10))
            assert result.curve.as_dict() == alone.curve.as_dict()
            assert result.model is model
    assert swept.metric == "ndcg@5"


def test_threats_and_options_reach_the_attack(models):
    how = (Threat("frobenius", "absolute", "users", "labels"), [0, 1], (5,))
    found = sweep(models, ["pgd-softmax"], *how, steps=2, seed=3)
    alone = measure(models["noisy"], "pgd-softmax", *how, steps=2, seed=3)
    assert found.results["noisy"]["pgd-softmax"][0].curve.as_dict() == alone.curve.as_dict()


def test_tables_of_several_surfaces_say_so(models):
    """A threat to all that is stored means V alone where users are computed."""
    model = models["good"]
    mixed = {"stored": model, "computed": model.serving("fold-in")}
    found = sweep(mixed, ["cutoff"], epsilons=[0, 0.1], ks=(5,), steps=2, control=False)
    words = ["stored (users and items attacked)", "computed (items attacked)"]
    for text in (str(found), str(found.compare(resamples=99))):
        assert all(each in text for each in words)
    assert found.to_frame()["side"].tolist() == ["both", "both", "items", "items"]
    same = sweep(mixed, ["cutoff"], Threat(side="items"), [0, 0.1], (5,), steps=2, control=False)
    assert "attacked" not in str(same)


def test_the_frame_has_a_row_for_each_model_attack_and_size(models, swept):
    frame = swept.to_frame()
    assert frame.columns.tolist()[:5] == ["model", "seed", "attack", "epsilon", "side"]
    assert {"ndcg@5", "ndcg@10", "recall@5", "recall@10"} <= set(frame.columns)
    assert len(frame) == 3 * 3 * len(SIZES)
    rows = frame.set_index(["model", "attack", "epsilon"])
    for label in models:
        curve = swept.results[label]["fgm-softmax"][0].curve
        for n, size in enumerate(SIZES):
            assert rows.loc[(label, "fgm-softmax", size), "ndcg@5"] == curve["ndcg@5"][n]
    assert (frame["seed"] == 0).all()


def test_as_text_it_is_a_table_that_fits_a_terminal(models, swept):
    header, *rows = str(swept).splitlines()
    assert header.split() == ["model", "ndcg@5", "0", "0.1", "0.4"]
    assert len(rows) == 9
    first = swept.results["good"]["fgm-softmax"][0].curve["ndcg@5"]
    assert rows[0].split() == ["good", "fgm-softmax", *(f"{value:.4f}" for value in first)]
    names = ("ultragcn, two_to_inf", "softmax-mf, none", "bpr-mf, weight_decay")
    named = dict(zip(names, models.values(), strict=True))
    long = sweep(named, ["auto", "certificate"], steps=2)
    assert max(map(len, str(long).splitlines())) <= 100
    assert repr(swept) == "Sweep(3 recommenders x fgm-softmax, random, certificate, ndcg@5)"
    html = swept._repr_html_()
    assert html.count("<tr") == 1 + 9
    assert "good" in html


def test_attacks_with_sizes_of_their_own_each_have_a_header(models):
    """Sizes that are left out are those of the attack, and attacks differ in them."""
    found = sweep(models, ["fgm-softmax", "certificate"])
    sizes = {
        attack: [f"{size:g}" for size in result[0].curve.epsilons]
        for attack, result in found.results["good"].items()
    }
    assert sizes["fgm-softmax"] != sizes["certificate"]
    lines = [line.split() for line in str(found).splitlines()]
    headers = [line[2:] for line in lines if line and line[0] == "model"]
    assert headers == list(sizes.values())
    for label in models:
        for attack in sizes:
            curve = found.results[label][attack][0].curve
            assert [label, attack, *(f"{v:.4f}" for v in curve["ndcg@10"])] in lines
    html = found._repr_html_()
    for values in sizes.values():
        assert all(size in html for size in values)
    assert len(found.to_frame()) == 3 * sum(map(len, sizes.values()))


def test_recommenders_are_called_by_their_labels(models):
    named = [model.renamed(name) for name, model in models.items()]
    found = sweep(named, ["fgm-softmax"], epsilons=[0, 0.1])
    assert list(found.results) == list(models)
    again = sweep(iter(named), ["fgm-softmax"], epsilons=[0, 0.1])
    assert again.to_frame().equals(found.to_frame())


@pytest.mark.slow
def test_it_is_drawn(swept, tmp_path):
    figure = swept.plot()
    assert [panel.get_title() for panel in figure.axes][:3] == list(swept.results["good"])
    path = swept.plot(tmp_path / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")


# --- compare ----------------------------------------------------------------------------------


def test_the_better_one_is_found(models, swept):
    found = compare(models, "fgm-softmax", epsilons=SIZES, k=5, resamples=RESAMPLES)
    seen = verdicts(found)
    assert seen[("good", "wrong")] == [1, 1, 1, 1]
    assert seen[("noisy", "wrong")][0] == 1
    assert found.metric == "ndcg@5"
    curves = {
        label: [swept.results[label]["fgm-softmax"][0].curve.per_user["ndcg@5"]] for label in models
    }
    expected = compare_curves(curves, SIZES, metric="ndcg@5", resamples=RESAMPLES)
    assert found.as_dict() == expected.as_dict()
    assert swept.compare("fgm-softmax", resamples=RESAMPLES).as_dict() == expected.as_dict()
    assert swept.compare(resamples=RESAMPLES).as_dict() == expected.as_dict(), "the first attack"
    assert "good is better at epsilon" in str(found)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_users_are_matched_by_their_labels(models, seed):
    """Rows in another order, from another file: the same values, intervals and verdicts."""
    straight = compare(models, "fgm-softmax", epsilons=SIZES, resamples=RESAMPLES)
    mixed = {
        "good": models["good"],
        "noisy": shuffled(models["noisy"], seed),
        "wrong": shuffled(models["wrong"], seed + 10),
    }
    moved = compare(mixed, "fgm-softmax", epsilons=SIZES, resamples=RESAMPLES)
    assert verdicts(moved) == verdicts(straight)
    for one, other in zip(straight.contrasts, moved.contrasts, strict=True):
        np.testing.assert_allclose(other.difference, one.difference, atol=1e-9)
        np.testing.assert_allclose(other.lower, one.lower, atol=1e-9)
        np.testing.assert_allclose(other.p, one.p, atol=1e-9)
    # Row against row, the pairing would be lost and the differences of users would be larger.
    twins = {"one": models["noisy"], "two": shuffled(models["noisy"], seed)}
    (same,) = compare(twins, "fgm-softmax", epsilons=SIZES, resamples=RESAMPLES).contrasts
    np.testing.assert_allclose(same.lower, 0, atol=1e-9)
    np.testing.assert_allclose(same.upper, 0, atol=1e-9)


def test_seeds_of_one_label_are_averaged(models):
    U, V, split = labelled()
    seeds = [Recommender(U, noisy(V, 0.5, seed), split) for seed in (1, 2, 3)]
    groups = {"seeds": seeds, "wrong": [models["wrong"], shuffled(models["wrong"], 4)]}
    found = compare(groups, "fgm-softmax", epsilons=SIZES, resamples=RESAMPLES)
    per_user = [measure(m, "fgm-softmax", epsilons=SIZES).curve["ndcg@10"] for m in seeds]
    group = found.groups[0]
    np.testing.assert_allclose(group.by_seed[:, 1:], per_user)
    np.testing.assert_allclose(group.value[1:], np.mean(per_user, axis=0))
    assert found.contrasts[0].seeds_apart is not None
    assert found.contrasts[0].seeds_apart.all()
    swept = sweep(groups, ["fgm-softmax"], epsilons=SIZES)
    frame = swept.to_frame()
    assert len(frame) == 5 * len(SIZES)
    assert sorted(frame["seed"].unique()) == [0, 1, 2]
    mean = np.mean(per_user, axis=0)
    assert str(swept).splitlines()[1].split()[2:] == [f"{value:.4f}" for value in mean]


def test_a_saved_recommender_and_one_in_memory_are_compared(models, tmp_path):
    others = models["noisy"], robustcf.open(models["noisy"].save(tmp_path / "noisy"))
    one, two = (
        robustcf.compare(
            {"good": models["good"], "other": other}, "fgm-softmax", epsilons=SIZES,
            resamples=RESAMPLES, seed=1, confidence=0.9,
        ).as_dict()
        for other in others
    )  # fmt: skip
    assert one == two
    assert (one["seed"], one["confidence"]) == (1, 0.9)


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda m: compare(m["good"]), "measure"),
        (lambda m: compare({"good": m["good"]}, "fgm-softmax", epsilons=SIZES), "two"),
        (lambda m: compare({"a": [m["good"], m["noisy"]]}, "fgm-softmax", epsilons=SIZES), "two"),
        (lambda m: compare([m["good"], m["noisy"]]), "label"),
        (lambda m: sweep([m["good"].renamed("a"), m["noisy"].renamed("a")]), "label"),
        (lambda m: sweep({}), "at least one"),
        (lambda m: sweep([]), "at least one"),
        (lambda m: sweep({"good": []}), "at least one"),
        (lambda m: sweep(3), "ecommender"),
        (lambda m: sweep(None), "ecommender"),
        (lambda m: sweep("runs/first"), "ecommender"),
        (lambda m: sweep([3]), "ecommender"),
        (lambda m: sweep({"a": ["run"]}), "ecommender"),
        (lambda m: sweep(m, []), "attack"),
        (lambda m: sweep(m, "fgm-softmax"), "attack"),
        (lambda m: sweep(m, ["fgsm"]), "attack"),
        (lambda m: sweep(m, 3), "attack"),
        (lambda m: sweep(m, ["pgd-softmax"], stepz=2), "stepz"),
    ],
)
def test_what_is_no_group_of_recommenders_or_attacks_is_refused(models, call, word):
    with pytest.raises(InputError, match=word):
        call(models)


def test_other_data_are_refused(models):
    U, V, split = labelled()
    _, _, elsewhere = labelled(1)
    assert len(elsewhere.test) == len(split.test)

    def refused(other: Recommender) -> None:
        with pytest.raises(InputError, match="same"):
            compare({"a": models["good"], "b": other}, "fgm-softmax", epsilons=SIZES)

    refused(Recommender(U, V, elsewhere))
    refused(Recommender(U, V, split, part="train"))
    refused(Recommender(U, V, split, mask=()))
    refused(Recommender(U, V, split.with_eval_users(20)))
    rows = np.arange(USERS)
    labels = {"user_labels": np.array([f"v{n}" for n in rows]), "item_labels": split.item_labels}
    parts = [getattr(split, part).csr() for part in ("train", "test")]
    refused(Recommender(U, V, Split.from_csr(*parts, **labels)))
    refused(Recommender(U, V, Split.from_csr(*parts)))  # without labels
    # Rows without labels are matched by their numbers, and must have the same pairs.
    plain = Recommender(U, V, *parts)
    other = Recommender(U[::-1].copy(), V, parts[0][::-1], parts[1][::-1])
    with pytest.raises(InputError, match="same"):
        compare({"a": plain, "b": other}, "fgm-softmax", epsilons=SIZES)
    found = compare(
        {"a": plain, "b": Recommender(-U, V, *parts)},
        "fgm-softmax", epsilons=SIZES, resamples=RESAMPLES,
    )  # fmt: skip
    assert found.contrasts[0].verdict[0] == 1


def test_a_larger_catalogue_of_the_same_pairs_is_no_other_data(models):
    """Items without interactions are candidates like others."""
    U, V, split = labelled()
    more = np.vstack([V, np.zeros((2, V.shape[1]))])
    assert split.item_labels is not None
    labels = {
        "user_labels": split.user_labels,
        "item_labels": np.array([*split.item_labels, "new", "newer"]),
    }
    wide = [
        Interactions(pairs.users, pairs.items, USERS, ITEMS + 2, **labels)
        for pairs in (split.train, split.test)
    ]
    other = Recommender(U, more, *wide)
    found = compare(
        {"a": models["good"], "b": other}, "fgm-softmax", epsilons=SIZES, resamples=RESAMPLES
    )
    assert found.contrasts[0].verdict.tolist() == [0, 0, 0, 0]


def test_a_sweep_compares_by_an_attack_that_it_has(swept):
    with pytest.raises(InputError, match="fgm-softmax"):
        swept.compare("auto")
    with pytest.raises(InputError, match="resamples"):
        swept.compare(resamples=20)


def test_a_vote_and_factors_without_pairs_are_refused(models):
    split = load("demo")
    vote = fit_vote(split, cap=0.2, damping=0.3)
    with pytest.raises(InputError, match="vote"):
        sweep({"a": vote, "b": vote}, ["fgm-softmax"])
    U, V, _ = labelled()
    alone = Recommender(*Factors.of(U, V))
    with pytest.raises(InputError, match="interactions"):
        sweep({"a": models["good"], "b": alone}, ["fgm-softmax"])


def test_many_users_and_items_are_matched_without_overflow():
    """Users x items beyond 32 bits: pairs are still told apart, and equal ones are found."""
    users, items = 4_000, 1_000_000
    ids = np.arange(users)
    parts = [Interactions.from_pairs(ids, at % items, users, items)[0] for at in (ids, ids + 1)]
    U, V = np.ones((users, 1), dtype=np.float32), np.ones((items, 1), dtype=np.float32)
    one, same = (Recommender(U, V, *parts) for _ in range(2))
    assert _judged_alike(one, same)
    other = Interactions.from_pairs(ids, (ids + 2) % items, users, items)[0]
    assert not _judged_alike(one, Recommender(U, V, parts[0], other))
