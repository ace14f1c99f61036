"""Statistics and comparisons against scipy, naive transcriptions, simulation, planted answers."""

from __future__ import annotations

import itertools
import json
from functools import partial

import numpy as np
import pytest
from scipy import integrate, stats

from robustcf.errors import InputError
from robustcf.experiments import comparison
from robustcf.experiments.comparison import (
    area,
    bootstrap_mean,
    compare_curves,
    holm,
    sign_flip_test,
)
from tests.experiments.test_saved import SIZES, USERS, planted

SEEDS = [0, 1, 2]


def skewed(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Values like NDCG: many zeros, a tail."""
    return np.where(rng.random(shape) < 0.4, 0.0, rng.beta(1, 4, size=shape))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_area_is_the_mean_height_of_the_polygon(seed):
    rng = np.random.default_rng(seed)
    sizes = np.sort(rng.random(6))
    values = rng.random((6, 4))
    expected = [
        integrate.quad(
            lambda x, c=c: np.interp(x, sizes, values[:, c]),
            sizes[0],
            sizes[-1],
            points=sizes[1:-1],
        )[0]
        / (sizes[-1] - sizes[0])
        for c in range(4)
    ]
    np.testing.assert_allclose(area(sizes, values), expected)
    np.testing.assert_allclose(area(sizes, values).mean(), area(sizes, values.mean(axis=1)))
    assert area(sizes, np.full(6, 0.3)) == pytest.approx(0.3)
    assert float(area([0.5], [0.7])) == 0.7, "no width: the limit"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bootstrap_agrees_with_scipys(seed):
    rng = np.random.default_rng(seed)
    values = skewed(rng, 300, 3)
    found = bootstrap_mean(values, np.random.default_rng(seed), resamples=20_000, confidence=0.9)
    np.testing.assert_allclose(found.value, values.mean(axis=0))
    for c in range(3):
        other = stats.bootstrap(
            (values[:, c],),
            np.mean,
            n_resamples=20_000,
            confidence_level=0.9,
            method="percentile",
            rng=np.random.default_rng(seed + 100),
        ).confidence_interval
        width = other.high - other.low
        # Both are drawn; at 20,000 resamples an end is known to about 2 % of the width.
        assert abs(found.lower[c] - other.low) < 0.04 * width
        assert abs(found.upper[c] - other.high) < 0.04 * width
        normal = stats.norm.ppf(0.95) * values[:, c].std() / np.sqrt(300)
        assert abs((found.upper[c] - found.lower[c]) / 2 - normal) < 0.05 * normal


@pytest.mark.parametrize("seed", SEEDS)
def test_differences_are_paired(seed):
    """Two columns that move together have a narrow difference; a linear one is exact."""
    rng = np.random.default_rng(seed)
    first = skewed(rng, 400)
    second = first + 0.01 * rng.normal(size=400)
    both = np.stack([first, second, second - first], axis=1)
    found = bootstrap_mean(both, np.random.default_rng(0), resamples=2000)
    widths = found.upper - found.lower
    assert widths[2] < 0.2 * min(widths[:2])
    alone = bootstrap_mean(second - first, np.random.default_rng(0), resamples=2000)
    np.testing.assert_allclose([alone.lower, alone.upper], [found.lower[2], found.upper[2]])


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_interval_covers_as_often_as_it_says(confidence):
    trials, mean = 500, 0.6 * 0.2
    hits = 0
    for seed in range(trials):
        values = skewed(np.random.default_rng(seed), 150)
        draws = np.random.default_rng(10_000 + seed)
        found = bootstrap_mean(values, draws, resamples=400, confidence=confidence)
        hits += bool(found.lower <= mean <= found.upper)
    # Four standard errors, and 1 % for what percentiles lose at 150 skewed users.
    room = 4 * np.sqrt(confidence * (1 - confidence) / trials)
    assert confidence - room - 0.01 <= hits / trials <= confidence + room


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_do_not_change_what_is_computed(seed, monkeypatch):
    """Draws are taken row after row: many small blocks are one large one."""
    values = skewed(np.random.default_rng(seed), 64, 2) - 0.1
    whole = bootstrap_mean(values, np.random.default_rng(seed), resamples=500)
    p_whole = sign_flip_test(values, np.random.default_rng(seed), resamples=500)
    monkeypatch.setattr(comparison, "_BLOCK_BYTES", 8 * 64 * 7)
    blocked = bootstrap_mean(values, np.random.default_rng(seed), resamples=500)
    p_blocked = sign_flip_test(values, np.random.default_rng(seed), resamples=500)
    np.testing.assert_allclose(whole.lower, blocked.lower, atol=1e-15)
    np.testing.assert_array_equal(p_whole, p_blocked)


@pytest.mark.parametrize("users", [7, 64])
def test_counts_and_signs_are_what_they_say(users):
    rng = np.random.default_rng(0)
    counts = comparison._draw_counts(rng, 4000, users)
    np.testing.assert_array_equal(counts.sum(axis=1), users)
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.08)
    np.testing.assert_allclose(counts.var(axis=0), 1 - 1 / users, atol=0.15)
    signs = comparison._draw_signs(rng, 4000, users)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    np.testing.assert_allclose(signs.mean(axis=0), 0, atol=0.08)
    np.testing.assert_allclose(np.corrcoef(signs.T) - np.eye(users), 0, atol=0.09)


@pytest.mark.parametrize("seed", SEEDS)
def test_sign_flips_agree_with_every_flip_there_is(seed):
    rng = np.random.default_rng(seed)
    differences = rng.normal(0.4, 1, size=10)
    flips = np.array(list(itertools.product([-1, 1], repeat=10)))
    observed = abs(differences.mean())
    exact = np.mean(np.abs(flips @ differences / 10) >= observed - 1e-12)
    found = sign_flip_test(differences, np.random.default_rng(seed), resamples=40_000)
    assert abs(found - exact) < 4 * np.sqrt(exact * (1 - exact) / 40_000) + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_sign_flips_agree_with_scipy(seed):
    rng = np.random.default_rng(seed)
    differences = np.stack([rng.normal(shift, 1, size=250) for shift in (0, 0.08, 0.15)], axis=1)
    found = sign_flip_test(differences, np.random.default_rng(seed), resamples=20_000)
    for c in range(3):
        other = stats.permutation_test(
            (differences[:, c],),
            np.mean,
            permutation_type="samples",
            n_resamples=20_000,
            rng=np.random.default_rng(seed + 50),
        ).pvalue
        assert abs(found[c] - other) < 0.02
        assert abs(found[c] - stats.ttest_1samp(differences[:, c], 0).pvalue) < 0.02


def test_p_values_are_uniform_when_nothing_differs():
    p = [
        float(
            sign_flip_test(
                skewed(np.random.default_rng(s), 60) - skewed(np.random.default_rng(s + 1000), 60),
                np.random.default_rng(s + 2000),
                resamples=199,
            )
        )
        for s in range(600)
    ]
    assert stats.kstest(p, "uniform").pvalue > 1e-3
    assert np.mean(np.array(p) <= 0.05) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 600)


def test_degenerate_values_are_defined():
    rng = np.random.default_rng
    assert float(sign_flip_test(np.zeros(30), rng(0), resamples=99)) == 1.0
    assert float(sign_flip_test(np.full(30, 0.1), rng(0), resamples=99)) == 0.01, "never 0"
    # Every flip of one nonzero difference has the same absolute mean.
    assert float(sign_flip_test([0.3, 0.0, 0.0, 0.0], rng(0), resamples=99)) == 1.0
    flat = bootstrap_mean(np.full((30, 2), 0.1), rng(0), resamples=99)
    np.testing.assert_array_equal(flat.lower, flat.upper)
    np.testing.assert_array_equal(flat.lower, flat.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_holm_agrees_with_the_procedure_step_by_step(seed):
    """Holm (1979): go up from the smallest p and reject while p(k) <= alpha / (m - k + 1)."""
    p = np.random.default_rng(seed).random(12) ** 3
    p[3] = p[7]
    corrected = holm(p.reshape(3, 4)).ravel()
    for alpha in np.linspace(0.001, 0.999, 331):
        rejected = set()
        for k, index in enumerate(np.argsort(p, kind="stable")):
            if p[index] > alpha / (12 - k):
                break
            rejected.add(int(index))
        assert rejected == set(np.flatnonzero(corrected <= alpha).tolist())
    assert holm([]).shape == (0,)


# --- comparisons ------------------------------------------------------------------------------


def test_a_planted_answer_is_found():
    groups = {
        "strong": [planted(0, (0, 0, 0), n) for n in (1, 2, 3)],
        "weak": [planted(0, (0, 0.1, 0.3), n) for n in (4, 5)],
        "alike": [planted(0, (0, 0, 0), 6)],
    }
    found = compare_curves(groups, SIZES, resamples=2000)
    verdicts = {(c.first, c.second): c.verdict.tolist() for c in found.contrasts}
    assert verdicts == {
        ("strong", "weak"): [1, 0, 1, 1],
        ("strong", "alike"): [0, 0, 0, 0],
        ("weak", "alike"): [-1, 0, -1, -1],
    }
    assert found.contrasts[0].seeds_apart is not None
    assert found.contrasts[0].seeds_apart.tolist()[2:] == [True, True]
    assert found.contrasts[1].seeds_apart is None
    words = found.words()
    assert "strong is better at epsilon 0.1, 0.4; not distinguishable at 0; strong" in words[0]
    assert "not distinguishable at any epsilon" in words[1]
    assert "alike is better at epsilon 0.1, 0.4" in words[2]
    assert "alike has the larger area (difference -0." in words[2]
    assert "one seed only" in words[3]
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_numbers_are_those_of_a_naive_calculation(seed):
    rng = np.random.default_rng(seed)
    first = [rng.random((3, 80)) for _ in range(2)]
    second = [rng.random((3, 80))]
    found = compare_curves({"a": first, "b": second}, SIZES, resamples=999, seed=seed)
    a, b = found.groups

    def naive_area(curve: np.ndarray) -> float:
        return float((0.1 * (curve[0] + curve[1]) / 2 + 0.3 * (curve[1] + curve[2]) / 2) / 0.4)

    means = [one.mean(axis=1) for one in first]
    np.testing.assert_allclose(a.value[1:], (means[0] + means[1]) / 2)
    np.testing.assert_allclose(a.value[0], (naive_area(means[0]) + naive_area(means[1])) / 2)
    np.testing.assert_allclose(a.by_seed[:, 1:], means)
    np.testing.assert_allclose(found.contrasts[0].difference, a.value - b.value)
    # A naive bootstrap of one column, user by user.
    averaged = (first[0] + first[1]) / 2 - second[0]
    draws = np.random.default_rng(seed).integers(0, 80, size=(4000, 80))
    lower, upper = np.quantile(averaged[2][draws].mean(axis=1), [0.025, 0.975])
    np.testing.assert_allclose(found.contrasts[0].lower[3], lower, atol=0.01)
    np.testing.assert_allclose(found.contrasts[0].upper[3], upper, atol=0.01)
    again = compare_curves({"a": first, "b": second}, SIZES, resamples=999, seed=seed)
    assert again.as_dict() == found.as_dict()
    other = compare_curves({"a": first, "b": second}, SIZES, resamples=999, seed=seed + 1)
    assert other.as_dict() != found.as_dict()


def test_seeds_that_overlap_are_mentioned():
    rng = np.random.default_rng(0)
    base = rng.random(USERS)
    groups = {
        "a": [np.stack([base + 0.1]), np.stack([base + 0.02])],
        "b": [np.stack([base]), np.stack([base + 0.05])],
    }
    found = compare_curves(groups, [0.5], resamples=999)
    assert found.contrasts[0].verdict.tolist() == [1, 1]
    assert "though seeds overlap at 0.5" in found.words()[0]


def test_false_verdicts_are_as_rare_as_promised():
    """Three settings that are the same: any verdict at all is a false one."""
    wrong = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        base = rng.random(60)
        groups = {name: [base + rng.normal(0, 0.1, size=(2, 60))] for name in "abc"}
        found = compare_curves(groups, [0, 1], resamples=399, confidence=0.9, seed=seed)
        wrong += any(c.verdict.any() for c in found.contrasts)
    assert wrong / 120 <= 0.1 + 3 * np.sqrt(0.09 / 120)


# --- refusals ---------------------------------------------------------------------------------

ZEROS, DRAWS = np.zeros((3, 5)), np.random.default_rng(0)
RESAMPLING = (bootstrap_mean, sign_flip_test)


@pytest.mark.parametrize(
    ("function", "arguments", "word"),
    [
        *((area, bad, "one row") for bad in (([0, 1], [1.0, 2.0, 3.0]), ([], []), ([0.0], 1.0))),
        *((area, (sizes, [1.0, 2.0]), "ascending") for sizes in ([0, 0], [0, np.nan])),
        (area, ([0, 1], [1.0, np.nan]), "finite"),
        *((holm, ([bad],), "p-values") for bad in (-0.1, 1.2, np.nan)),
        *((f, (bad, DRAWS), "two users") for f in RESAMPLING for bad in ([0.5], 0.5)),
        *((f, ([0.5, bad], DRAWS), "finite") for f in RESAMPLING for bad in (np.nan, np.inf)),
        *(
            (partial(f, resamples=bad), ([0.5, 0.6], DRAWS), "resamples")
            for f in RESAMPLING
            for bad in (0, 1.5)
        ),
        *(
            (partial(bootstrap_mean, confidence=bad), ([0.0, 1.0], DRAWS), "confidence")
            for bad in (0, 1, 1.5, float("nan"))
        ),
        (compare_curves, ({"a": [ZEROS]}, SIZES), "at least two settings"),
        *(
            (compare_curves, ({"a": [ZEROS], "b": bad}, SIZES), word)
            for bad, word in (
                ([np.zeros((2, 5))], "3 epsilons x users"),
                ([], "got none"),
                ([np.zeros((3, 6))], "same users"),
                ([np.full((3, 5), np.nan)], "finite"),
            )
        ),
        (partial(compare_curves, resamples=50), ({"a": [ZEROS], "b": [ZEROS]}, SIZES), "least 80"),
    ],
)
def test_bad_arguments_are_refused(function, arguments, word):
    with pytest.raises(InputError, match=word):
        function(*arguments)


def test_bold_only_where_the_best_is_better_than_every_other(tmp_path):
    rng = np.random.default_rng(0)
    base = rng.random((2, 400))
    step = np.array([[0.0], [0.1]])
    groups = {"a_b": [base + 2 * step], "c": [base], "d": [base + step]}
    found = compare_curves(groups, (0.0, 0.1), resamples=999)
    assert found.best() == [0, None, 0]  # equal without attack: no setting is bold
    rows = [line for line in found.latex().split("\n") if line.endswith(r"\\")]
    assert rows[1].startswith(r"a\_b & \textbf{")
    assert rows[1].count("textbf") == 2
    assert not any("textbf" in row for row in (rows[0], *rows[2:]))
    out = found.write(tmp_path / "table", "epsilon")
    names = {path.name for path in out.iterdir()}
    kinds = ("json", "csv", "tex", "png", "svg", "pdf")
    assert names == {"report.md", *(f"comparison.{kind}" for kind in kinds)}
    assert (out / "comparison.pdf").read_bytes().startswith(b"%PDF")
    lines = (out / "comparison.csv").read_text().splitlines()
    assert lines[0] == "setting,seed,epsilon,ndcg@10"
    assert len(lines) == 1 + 3 * 2


def test_two_equal_groups_have_no_best():
    base = np.random.default_rng(0).random((1, 100))
    assert compare_curves({"a": [base], "b": [base]}, (0.1,), resamples=999).best() == [None, None]
