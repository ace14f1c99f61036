"""Groups against plain loops: who is in them, metrics by group, and measures of fairness."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.groups import (
    Estimate,
    Groups,
    average_popularity,
    calibration,
    exposure,
    gini,
    shares,
)
from robustcf.recommender import Recommender
from robustcf.robustness import measure
from tests.auditing.helpers import naive_top, small_split, small_target

SEEDS = (0, 1, 2)


def lists_of(seed, users=25, items=12, k=4):
    rng = np.random.default_rng(seed)
    top = np.array([rng.permutation(items)[:k] for _ in range(users)])
    top[rng.random(top.shape) < 0.1] = -1
    pairs = Interactions.from_csr((rng.random((users, items)) < 0.3).astype(float))
    return rng, top, pairs


@pytest.mark.parametrize("seed", SEEDS)
def test_fairness_by_plain_loops(seed):
    rng, top, pairs = lists_of(seed)
    counts = pairs.item_degrees
    shown = [0.0] * 12
    means = []
    for row in top.tolist():
        for place, item in enumerate(row):
            if item >= 0:
                shown[item] += 1 / math.log2(place + 2)
        listed = [counts[item] for item in row if item >= 0]
        if listed:
            means.append(sum(listed) / len(listed))
    assert exposure(top, 12) == pytest.approx(shown)
    assert average_popularity(top, counts) == pytest.approx(sum(means) / len(means))
    values = [float(v) for v in rng.integers(0, 9, 20)]
    differences = sum(abs(a - b) for a in values for b in values)
    expected = differences / (2 * len(values) ** 2 * (sum(values) / len(values)))
    assert gini(np.array(values)) == pytest.approx(expected)
    groups = Groups("item", "x", ("a", "b", "c"), rng.permutation(np.arange(12) % 4 - 1))
    told = {n: sum(s for s, c in zip(shown, groups.codes, strict=True) if c == g)
            for g, n in enumerate("abc")}  # fmt: skip
    assert shares(exposure(top, 12), groups) == pytest.approx(
        {name: value / sum(shown) for name, value in told.items()}
    )
    divergences = []
    for user, row in enumerate(top.tolist()):
        history = [groups.codes[i] for i in pairs.items_of(user) if groups.codes[i] >= 0]
        listed = [groups.codes[i] for i in row if i >= 0 and groups.codes[i] >= 0]
        if not history or not listed:
            continue
        total = 0.0
        for group in range(3):
            p, q = history.count(group) / len(history), listed.count(group) / len(listed)
            total += p * math.log(p / (0.99 * q + 0.01 * p)) if p else 0.0
        divergences.append(total)
    found = calibration(top, np.arange(len(top)), pairs, groups)
    assert found == pytest.approx(divergences)


@pytest.mark.parametrize("seed", SEEDS)
def test_made_groups(seed):
    _, _, pairs = lists_of(seed, users=60)
    (activity,) = Groups.made("activity", pairs)
    degrees = pairs.user_degrees
    low, high = (degrees[activity.codes == g] for g in (0, 2))
    assert low.max() < high.min()
    (popularity,) = Groups.made("popularity", pairs)
    counts = pairs.item_degrees
    assert counts[popularity.codes == 0].min() >= counts[popularity.codes == 2].max()
    head = counts[popularity.codes == 0].sum() / counts.sum()
    assert 1 / 3 <= head <= 1 / 3 + counts.max() / counts.sum()
    timed = Interactions(pairs.users, pairs.items, 60, 12, timestamps=np.arange(len(pairs)))
    users, items = Groups.made("time", timed)
    first = {
        user: timed.timestamps[timed.users == user].min() for user in set(timed.users.tolist())
    }
    sides = [[first[user] for user in first if users.codes[user] == code] for code in (0, 1)]
    assert max(sides[0]) < min(sides[1])
    assert {users.codes[user] for user in range(60) if user not in first} <= {-1}
    assert items.names == ("established items", "new items")


@pytest.mark.parametrize("seed", SEEDS)
def test_metrics_by_group_are_means_of_plain_lists(seed):
    target = small_target(seed, labels=True)
    users, items = (part.numpy() for part in target.factors)
    rng = np.random.default_rng(seed)
    kinds = {f"u{n}": str(kind) for n, kind in enumerate(rng.choice(["a", "b"], 40))}
    genres = {f"i{n}": str(kind) for n, kind in enumerate(rng.choice(["x", "y"], 30))}
    tables = [
        pd.DataFrame({"user": list(kinds), "country": list(kinds.values())}),
        pd.DataFrame({"genre": list(genres.values()), "item": list(genres)}),
    ]
    report = target.evaluate((5,), by=tables)
    frame = report.by_group().set_index(["group", "metric"])
    lists = naive_top(users, items, target.split.train, 5)
    test = target.split.test
    values = {"a": [], "b": [], "x": [], "y": []}
    for user in range(40):
        relevant = set(test.items_of(user).tolist())
        hits = len(relevant & set(lists[user])) / len(relevant)
        values[kinds[f"u{user}"]].append(hits)
        for genre in "xy":
            own = {item for item in relevant if genres[f"i{item}"] == genre}
            if own:
                values[genre].append(len(own & set(lists[user])) / len(own))
    for group, expected in values.items():
        row = frame.loc[(group, "recall@5")]
        assert row["value"] == pytest.approx(np.mean(expected))
        assert row["users"] == len(expected)
        reach = stats.t.interval(0.95, len(expected) - 1, np.mean(expected), stats.sem(expected))
        assert (row["low"], row["high"]) == pytest.approx(reach)


def test_attacks_and_certificates_by_group():
    target = small_target(0)
    how = {"ks": (10,), "by": ["activity", "popularity"]}
    attacked = measure(target, "fgm-softmax", epsilons=[0, 0.2], control=False, **how)
    assert len(attacked.curve.attacked) == 2
    frame = attacked.by_group()
    again = target.evaluate((10,), attacked.curve.attacked[1], by=how["by"]).by_group()
    kept = frame[frame["epsilon"] == 0.2].drop(columns="epsilon").reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, again.drop(columns="epsilon"))
    certified = measure(target, "certificate", epsilons=[0, 0.05], **how).by_group()
    ndcg = certified[certified["metric"] == "ndcg@10"]
    for _, rows in ndcg.groupby("group"):
        at_0, at_size = rows.sort_values("epsilon")["value"]
        assert at_size <= at_0
        clean = again.set_index(["group", "metric"])["value"]
        assert clean.index.isin([(rows["group"].iloc[0], "ndcg@10")]).any()
    plain = measure(target, "fgm-softmax", epsilons=[0, 0.2], control=False)
    assert plain.curve.attacked == ()


def test_estimates_of_few():
    assert Estimate.of(np.zeros(0)) == (None, None, None)
    assert str(Estimate.of(np.array([0.25]))) == "0.250"
    assert str(Estimate.of(np.zeros(0))) == "-"


@pytest.mark.parametrize(
    ("by", "word"),
    [
        ("age", "activity"),
        ("time", "time column"),
        (pd.DataFrame({"who": [1], "group": ["a"]}), "column user or item"),
        (pd.DataFrame({"user": ["x"], "group": ["a"]}), "none of the users"),
    ],
)
def test_errors(by, word):
    with pytest.raises(InputError, match=word):
        Recommender(np.eye(40, 4), np.eye(30, 4), small_split()).evaluate(by=by)
