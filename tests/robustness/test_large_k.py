"""Cutoffs beyond the catalogue count all items; memory does not grow with users x items."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from robustcf.attacks import Cutoff
from robustcf.attacks.certificates import search
from robustcf.errors import InputError
from robustcf.metrics import topk
from robustcf.metrics.evaluate import user_blocks
from robustcf.robustness import RobustnessCurve, certified_radii, measure, quantization_table
from robustcf.robustness.table import guessed_labels
from tests.robustness.helpers import random_target

N_ITEMS = random_target(0).factors.n_items
ATTACKS = ("auto", "cutoff", "fgm-softmax", "random", "certificate", "personal")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_beyond_the_catalogue_all_items_count(seed):
    target = random_target(seed)
    whole, beyond = target.evaluate((3, N_ITEMS)), target.evaluate((3, 100_000))
    for name in ("ndcg", "recall", "mrr", "hit_rate", "map", "coverage"):
        assert beyond[f"{name}@100000"] == whole[f"{name}@{N_ITEMS}"]
        assert beyond[f"{name}@3"] == whole[f"{name}@3"]
    # Precision is divided by the cutoff that was asked for.
    share = whole[f"precision@{N_ITEMS}"] * N_ITEMS / 100_000
    assert beyond["precision@100000"] == pytest.approx(share)
    assert whole.protocol.capped == ()
    assert "capped" not in whole.as_dict()["protocol"]
    assert beyond.protocol.capped == (100_000,)
    assert beyond.as_dict()["protocol"]["capped"] == [100_000]
    assert f"beyond the catalogue, @100000 counts all {N_ITEMS} items" in " ".join(
        str(beyond).split()
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_and_certificates_too(attack, tmp_path):
    target, sizes = random_target(1), [0, 0.1]
    beyond = measure(target, attack, epsilons=sizes, ks=(10**6,), steps=2, control=False).curve
    whole = measure(target, attack, epsilons=sizes, ks=(N_ITEMS,), steps=2, control=False).curve
    assert beyond["ndcg@1000000"][0] == whole[f"ndcg@{N_ITEMS}"][0]
    if attack in ("fgm-softmax", "random", "certificate"):  # these do not look at the cutoff
        assert np.array_equal(beyond["ndcg@1000000"], whole[f"ndcg@{N_ITEMS}"])
    loaded = RobustnessCurve.load(beyond.save(tmp_path / "curve.json"))
    assert loaded.protocol == beyond.protocol
    assert loaded.protocol.capped == (10**6,)


def test_a_set_of_all_items_never_changes():
    target = random_target(0)
    found = certified_radii(target, ks=(1, N_ITEMS, 10**6)).radii
    assert np.isinf(found[N_ITEMS]).all()
    assert np.isinf(found[10**6]).all()
    assert np.isfinite(found[1]).any()
    lists = target.recommend([0], k=10**6, filter_seen=False, as_ids=True).items
    assert lists.shape == (1, N_ITEMS)
    assert len(guessed_labels(target, 10**6)) > 0


@pytest.mark.parametrize("k", [0, -1, 2**31, 10**30, 1.5, True, "10"])
def test_nonsense_is_refused(k):
    target = random_target(0)
    for ask in (
        lambda: target.evaluate((k,)),
        lambda: measure(target, "random", ks=(k,)),
        lambda: certified_radii(target, ks=(k,)),
        lambda: quantization_table(target, (k,)),
        lambda: topk.top_items(target.factors, [0], k),
        lambda: target.recommend([0], k=k, as_ids=True),
        lambda: Cutoff(target.relevant, None, k),
    ):
        with pytest.raises(InputError, match=r"must be an integer (of at least 1|from 1 to 2147)"):
            ask()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_blocks_change_nothing(seed, monkeypatch):
    target, ks = random_target(seed), (2, N_ITEMS - 1, N_ITEMS)
    asked = [("certificate", {}), ("personal", {}), ("cutoff", {"steps": 3})]

    def everything():
        clean = target.evaluate(ks)
        curves = [measure(target, name, epsilons=[0, 0.1], ks=ks, **o).curve for name, o in asked]
        return clean, curves, certified_radii(target, ks=ks).radii

    before = everything()
    monkeypatch.setattr(user_blocks, "__defaults__", (40,))
    monkeypatch.setattr(topk, "_AGAIN_BYTES", 1)
    monkeypatch.setattr(search, "_MOST_RADII", 7)
    monkeypatch.setattr("robustcf.attacks.cutoff._PLACES", 50)
    after = everything()
    for name, values in before[0].values.items():
        assert after[0][name] == values, name
    for one, other in zip(before[1], after[1], strict=True):
        for name, values in one.values.items():
            np.testing.assert_allclose(other[name], values, atol=1e-9, err_msg=name)
    for k, radii in before[2].items():
        np.testing.assert_allclose(after[2][k], radii, rtol=1e-9)


SCRIPT = """
    import resource
    import numpy as np
    from robustcf.data import load
    from robustcf.recommender import Recommender
    from robustcf.robustness import certified_radii, measure

    rng = np.random.default_rng(0)
    U, V = (rng.normal(size=(n, 16)).astype(np.float32) for n in (2000, 1500))
    target = Recommender(U, V, load("demo"))
    # Beyond what is there already, mapped libraries above all.
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + 1024 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    target.evaluate((10, 100_000))
    certified_radii(target, ks=(100_000,))
    for what in ("certificate", "fgm-bce", "random", "personal", "cutoff"):
        measure(target, what, epsilons=[0.05], ks=(100_000,), steps=1, control=False)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited and counted as on Linux")
@pytest.mark.slow
def test_a_gigabyte_suffices():
    """Users x items x dim in float64 would be 0.4 GB, lists of k = 100,000 items 6.7 GB."""
    words = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
