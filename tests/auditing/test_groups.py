"""Who loses: the checks of groups against plain counts, and a planted victim of every check."""

from __future__ import annotations

import numpy as np
import pytest

from robustcf.auditing import CHECKS, audit
from robustcf.data import checkerboard
from robustcf.factors import Factors
from robustcf.metrics.groups import Groups
from robustcf.recommender import Recommender
from robustcf.robustness import quantize
from tests.auditing.helpers import naive_top, small_split, small_target

PARITY = np.eye(2)[np.arange(30) % 2]


def good(**changes):
    """Factors that know the taste of all users, with a little of everything."""
    rng = np.random.default_rng(1)
    users = np.hstack([3 * PARITY[:20], rng.normal(size=(20, 6))])
    items = np.hstack([3 * PARITY, rng.normal(size=(30, 6))])
    parts = {"users": users, "items": items, **changes}
    return Recommender(parts["users"], parts["items"], checkerboard())


def crowded():
    """A catalogue of 1,500 items of which all users get the same ones."""
    rng = np.random.default_rng(2)
    likely = 1 / np.arange(3, 1503) ** 0.3
    pairs = np.zeros((100, 1500))
    for user in pairs:
        user[rng.choice(1500, 8, replace=False, p=likely / likely.sum())] = 1
    counts = pairs.sum(axis=0)
    return Recommender(np.ones((100, 1)), counts[:, None] + 1.0, pairs)


def planted():
    """Check -> a model on which it does not pass."""
    rng = np.random.default_rng(3)
    users, items = (part.numpy().copy() for part in good().factors)
    wrong, long, zero, lost = -users, items.copy(), items.copy(), users.copy()
    long[0] *= 1000
    zero[:15] = 0
    lost[:7] = -lost[:7]
    # A direction that all rows share: no ranking sees it, rounding and perturbations do.
    shared = (np.full((20, 1), 1e3), np.full((30, 1), 1e3))
    drowned = good(users=np.hstack([shared[0], users]), items=np.hstack([shared[1], items]))
    rounded = Recommender(
        *(np.hstack([np.full((n, 1), 1e5), rng.normal(size=(n, 6))]) for n in (20, 600))
    )
    return {
        **dict.fromkeys(("popularity", "fresh"), good(users=wrong)),
        **dict.fromkeys(("noise", "attack", "certificate"), drowned),
        **dict.fromkeys(("int8", "int4"), rounded),
        "bfloat16": Recommender(rng.normal(size=(20, 6)), 100 + rng.normal(0, 0.05, (600, 6))),
        "near_ties": good(items=np.ones((30, 8))),
        "cosine": Recommender(
            *(rng.normal(size=(n, 6)) * rng.lognormal(0, 1, (n, 1)) for n in (20, 600))
        ),
        "norms": good(items=long),
        **dict.fromkeys(("hubs", "popularity_bias", "coverage", "item_groups"), crowded()),
        "untrained": good(items=zero),
        "user_groups": good(users=lost),
        "churn": good(),
        "leak": None,
        **dict.fromkeys(
            ("pq", "hnsw", "ivf"), Recommender(rng.normal(size=(20, 9)), rng.normal(size=(600, 9)))
        ),
    }


PLANTED = planted()
#: Ways that are poor on any model, and the check whose thresholds they have.
POOR = {
    "pq": "pq:codes=1,bits=1",
    "hnsw": "hnsw:links=2,ef=1,build=1,ask=10",
    "ivf": "ivf:probes=1,cells=60",
}


@pytest.mark.parametrize("name", [n for n, c in CHECKS.items() if c.limit.words != "none"])
def test_every_check_passes_on_a_good_model_and_not_on_a_planted_one(name):
    if name in POOR:
        pytest.importorskip("faiss")
    model, against = PLANTED[name], None
    groups = [Groups("user", "country", ("lost", "served"), (np.arange(20) >= 7).astype(np.int64))]
    how = {"by": groups if name == "user_groups" else None}
    if name == "leak":
        # See test_a_model_that_learnt_the_test_pairs_is_suspected.
        model = leaky()
    if name == "churn":
        against = Factors(-model.factors.users, model.factors.items)
    served = POOR.get(name, name)
    ways = [served] if CHECKS[name].group == "Serving" else []
    bad = audit(model, only=[served], serve=ways, against=against, **how)[served]
    assert bad.verdict == ("warn" if CHECKS[name].limit.fail is None else "fail"), bad.sentence
    fine = good()
    same = fine.factors if name == "churn" else None
    ways = [name] if ways else []
    found = audit(fine, only=[name], serve=ways, against=same, **how)[name]
    assert found.verdict == "pass", found.sentence


def leaky():
    """Factors of training and test pairs, of random users whom no other model can predict."""
    split = small_split()
    both = (split.train.csr() + split.test.csr()).toarray()
    left, sizes, right = np.linalg.svd(both)
    return Recommender(left[:, :30] * sizes, right.T, split)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exposure_and_kept_places_of_groups_are_plain_counts(seed):
    target = small_target(seed)
    U, V = (part.numpy() for part in target.factors)
    codes = np.random.default_rng(seed).permutation(np.arange(30) % 2)
    groups = Groups("item", "kind", ("a", "b"), codes)
    found = audit(target, only=["item_groups"], by=[groups], serve=["int4"], attack=False)
    audited = audit(target, only=["int4", "item_groups"], by=[groups], serve=["int4"], attack=False)
    assert found["item_groups"].details["groups"][0]["size"] == (codes == 0).sum()
    seen = target.split.train
    exact = naive_top(U, V, seen)
    served = naive_top(*(part.numpy() for part in quantize(target.factors, "int4")), seen)
    shown = np.zeros(2)
    kept = {0: [], 1: []}
    for own, other in zip(exact, served, strict=True):
        for place, item in enumerate(own):
            shown[codes[item]] += 1 / np.log2(place + 2)
        for group in (0, 1):
            places = [item for item in own if codes[item] == group]
            if places:
                kept[group].append(len(set(places) & set(other)) / len(places))
    for row, share, own in zip(
        audited["item_groups"].details["groups"], shown / shown.sum(), kept.values(), strict=True
    ):
        assert row["share of exposure"] == pytest.approx(share)
        assert row["measures"]["kept as int4"]["value"] == pytest.approx(np.mean(own))
    taken = [np.isin(seen.items, np.flatnonzero(codes == g)).mean() for g in (0, 1)]
    ratios = shown / shown.sum() / np.array(taken)
    assert audited["item_groups"].number == pytest.approx(ratios.min())
