"""Users computed from their histories: attacks, certificates and errors, against dense formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import robustcf
from robustcf.adapters import joined
from robustcf.adapters.imported import Imported
from robustcf.attacks import FGM, PGD, Attack, Cutoff, OwnRowBudget, Pairwise, RandomNoise, Softmax
from robustcf.attacks.certificates import plain_radius, tight_radius
from robustcf.attacks.certificates.search import Search
from robustcf.data import Interactions, Split, checkerboard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.recommender import FoldedScorer, Recommender
from robustcf.robustness import Threat, certify, measure
from robustcf.robustness.certified import certified_radii

SEEDS = [0, 1, 2]
ITEMS = Threat(unit="own", side="items")
WITH_MAP = Threat(unit="own", side="items+map")


def world(seed: int = 0, users: int = 24, items: int = 40, dim: int = 4, turn: bool = False):
    """A recommender without stored users; user 0 has no history. ``turn``: P is a rotation."""
    rng = np.random.default_rng(seed)
    chosen = rng.random((users, items)) < rng.uniform(0.05, 0.6, size=(users, 1))
    chosen[0] = False
    chosen[1:, 0] = True  # one item at least
    held = (rng.random((users, items)) < 0.15) & ~chosen
    train, test = (Interactions.from_csr(part.astype(float)) for part in (chosen, held))
    P = rng.normal(size=(dim, dim))
    P = 1.5 * np.linalg.qr(P)[0] if turn else P
    table = np.vstack((P, 0.1 * rng.normal(size=(2, dim))))
    V = rng.normal(size=(items, dim))
    scorer = FoldedScorer(torch.from_numpy(table), torch.from_numpy(V), train)
    none = train.take(np.zeros(len(train), dtype=bool))
    return Recommender.of(scorer, Split("small", train, none, test, valid_source="none"))


def by_hand(model: Recommender, V: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The users of altered arrays, dense."""
    h = model.known.csr().toarray().astype(np.float64)
    n = h.sum(axis=1)
    users = (h @ V @ table[:-2] + n[:, None] * table[-2]) / np.sqrt(np.maximum(n, 1))[:, None]
    users[n == 0] = table[-1]
    return users


@pytest.mark.parametrize("side", ["items", "both"])
@pytest.mark.parametrize("kind", ["fgm", "pgd", "cutoff", "pairwise", "random"])
def test_attacks_write_what_is_stored_and_are_judged_by_the_users_it_gives(kind, side):
    model = world()
    how = {"budget": OwnRowBudget(), "side": side, "histories": model.histories}
    aim = Softmax(model.relevant, dtype=torch.float64)
    attack = {
        "fgm": lambda: FGM(aim, **how),
        "pgd": lambda: PGD(aim, steps=3, **how),
        "cutoff": lambda: Cutoff(model.relevant, model.seen, 5, steps=6, **how),
        "pairwise": lambda: Pairwise(model.relevant, model.seen, 5, steps=6, **how),
        "random": lambda: RandomNoise(**how),
    }[kind]()
    found = attack.perturb(model.arrays, 0.1)
    assert set(found.realised) == ({"items", "map"} if side == "both" else {"items"})
    assert all(0.05 < size <= 0.1 for size in found.realised.values())
    V, before = found.factors.items.numpy(), model.arrays.items.numpy()
    lengths = np.linalg.norm(before, axis=1)
    assert (np.linalg.norm(V - before, axis=1) <= 0.1 * lengths * (1 + 1e-12)).all()
    if side == "items":
        expected = by_hand(model, V, model.arrays.users.numpy())
        np.testing.assert_allclose(found.factors.users.numpy(), expected, atol=1e-12)
    clean = attack.perturb(model.arrays, 0.0).factors
    assert torch.equal(clean.users, model.factors.users)


def test_an_attack_finds_more_than_noise():
    model = world(1)
    how = {"threat": ITEMS, "epsilons": (0.0, 0.1), "ks": (5,), "control": False}
    curves = {name: measure(model, name, **how).curve["ndcg@5"] for name in ("auto", "random")}
    assert curves["auto"][0] == curves["random"][0] == model.evaluate((5,))["ndcg@5"]
    assert curves["auto"][1] < curves["random"][1] < 1.1 * curves["random"][0]


def search_of(model: Recommender, bound, threat: Threat = ITEMS, largest: float = 1.0) -> Search:
    moves = threat.row_moves(model)
    folded = threat.folded(model, moves, largest)
    return Search(model.factors, moves, bound, count=1, folded=folded)


def least_gap(u, P, d, s, reach, rng) -> float:
    """The least attacked gap of a pair found by many starts of projected descent on y."""
    y = rng.normal(size=(40, len(u)))
    y[0], y[1] = -P @ d, P @ u
    for _ in range(60):
        y *= reach / np.linalg.norm(y, axis=1, keepdims=True)
        x = u + y @ P
        length = np.linalg.norm(x, axis=1, keepdims=True)
        y = y / reach - 0.5 * (d - s * x / np.maximum(length, 1e-12)) @ P.T
    y *= reach / np.linalg.norm(y, axis=1, keepdims=True)
    x = u + y @ P
    return float((x @ d - s * np.linalg.norm(x, axis=1)).min())


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_attack_overturns_a_pair_within_its_radius(seed, turn):
    model, rng = world(seed, turn=turn), np.random.default_rng(seed)
    U, V = (part.numpy() for part in model.factors)
    P, h = model.arrays.users.numpy()[:-2], model.known.csr().toarray().astype(np.float64)
    h /= np.sqrt(np.maximum(h.sum(axis=1, keepdims=True), 1))
    lengths = np.linalg.norm(V, axis=1)
    found = {b: search_of(model, r) for b, r in (("t", tight_radius), ("p", plain_radius))}
    near = []
    for user in range(model.n_users):
        unseen = np.flatnonzero(h[user] == 0)
        best = unseen[np.argsort(-V[unseen] @ U[user])][:3]
        # All but one rival are hidden.
        hidden = np.setdiff1d(np.arange(model.n_items), best[[0, 2]])
        seen = Interactions.from_pairs(np.full(len(hidden), user), hidden, *h.shape)[0]
        ask = (np.array([user]), np.zeros(1, dtype=np.int64), best[:1], seen)
        tight, plain = (float(found[bound].radii(*ask)[0, 0]) for bound in "tp")
        assert tight >= plain * (1 - 1e-9)
        i, j = best[0], best[2]
        reach, s = h[user] @ lengths, lengths[i] + lengths[j]

        def gap(size, u=U[user], d=V[i] - V[j], s=s, reach=reach):
            return least_gap(u, P, d, size * s, size * reach + 1e-300, rng)

        assert gap(tight * 0.999) > 0
        near.append(gap(tight * (1.002 if turn else 1.1)) < 0)
    assert np.mean(near) > (0.8 if turn else 0.6), (
        "close; exact for most pairs where the map is a rotation"
    )


@pytest.mark.parametrize("threat", [ITEMS, WITH_MAP, Threat(unit="relative", side="items")])
@pytest.mark.parametrize("seed", SEEDS)
def test_certified_is_below_every_attack(seed, threat):
    model, sizes = world(seed, items=60), (0.0, 0.02, 0.05, 0.1)
    certified = certify(model, sizes, threat=threat, ks=(5,)).curve
    plain = certify(model, sizes, threat=threat, ks=(5,), bound="plain").curve
    assert (plain["ndcg@5"] <= certified["ndcg@5"] + 1e-12).all()
    for name in ("cutoff", "pairwise", "random", "personal"):
        if name == "personal" and threat is WITH_MAP:
            continue
        attacked = measure(model, name, threat, sizes, (5,), control=False).curve
        for metric, values in attacked.per_user.items():
            assert (certified.per_user[metric] <= values + 1e-12).all(), (name, metric)
    if threat is ITEMS:
        assert certified["ndcg@5"][1] > 0.2 * certified["ndcg@5"][0]


def test_a_history_of_any_length_is_certified():
    rng = np.random.default_rng(0)
    degrees = [1, 2, 5, 20, 100, 250, 500]
    chosen = np.zeros((len(degrees), 620))
    for row, degree in zip(chosen, degrees, strict=True):
        row[rng.choice(620, degree, replace=False)] = 1
    train = Interactions.from_csr(chosen)
    V = torch.from_numpy(rng.normal(0.3, 1, size=(620, 3)).astype(np.float32))
    scorer = FoldedScorer(torch.eye(5, 3), V, train)
    held = Interactions.from_csr(((rng.random(chosen.shape) < 0.1) & (chosen == 0)).astype(float))
    none = train.take(np.zeros(len(train), dtype=bool))
    model = Recommender.of(scorer, Split("long", train, none, held, valid_source="none"))
    sizes = (0.0, 0.002, 0.01)
    certified = certify(model, sizes, threat=ITEMS, ks=(10,)).curve.per_user["ndcg@10"]
    attacked = measure(model, "personal", ITEMS, sizes, (10,), control=False).curve
    assert (certified <= attacked.per_user["ndcg@10"] + 1e-12).all()
    joint = measure(model, "cutoff", ITEMS, sizes, (10,), control=False).curve
    assert (certified <= joint.per_user["ndcg@10"] + 1e-12).all()


def test_a_surface_that_is_not_stored_is_refused():
    model = world()
    with pytest.raises(InputError, match="no users"):
        measure(model, "random", Threat(side="users"), (0.0, 0.1))
    with pytest.raises(InputError, match="stores users"):
        measure(model.serving("stored"), "random", WITH_MAP, (0.0, 0.1))
    with pytest.raises(InputError, match="users"):
        RandomNoise(side="users", histories=model.histories)
    with pytest.raises(InputError, match="histories="):
        measure(model, RandomNoise())
    with pytest.raises(InputError, match="map"):
        measure(model, "personal", WITH_MAP, (0.0, 0.1))
    with pytest.raises(InputError, match="radii"):
        certified_radii(model, WITH_MAP)
    assert measure(model, "random", Threat(), (0.0, 0.1)).threat.side == "items"


class Foreign(Attack):
    """An attack that knows of stored users only."""

    def propose(self, factors: Factors, allowed: dict[str, float]):
        return tuple(torch.zeros_like(part) for part in factors)


def test_an_attack_that_expects_stored_users_is_refused():
    model = world()
    with pytest.raises(InputError, match="folds"):
        Foreign(histories=model.histories, side="items").perturb(model.arrays, 0.1)
    Foreign.folds = True
    found = Foreign(histories=model.histories, side="items").perturb(model.arrays, 0.1)
    assert found.realised == {"items": 0.0}


def test_serving_is_an_option_of_training_hardening_and_saving(tmp_path):
    split = checkerboard()
    trained = robustcf.train(split, "bpr-mf", factors=4, epochs=2, serve="fold-in")
    assert trained.kind == "fold-in"
    assert trained.arrays.users.shape == (6, 4)
    assert 0 <= trained.training["fold-in"]["overlap@10"] <= 1
    opened = robustcf.open(trained.save(tmp_path / "model"))
    everyone = trained.recommend(k=3, as_ids=True)
    np.testing.assert_array_equal(opened.recommend(k=3, as_ids=True).items, everyone.items)
    assert opened.histories is not None
    assert opened.fold_in == trained.fold_in
    assert "histories" in repr(opened)
    with pytest.raises(InputError, match="scores by its interactions"):
        trained.save(tmp_path / "other", include_interactions=False)
    # The balanced gauge changes no ranking, and the map is fitted to the same users.
    harder = robustcf.harden(trained)
    assert harder.kind == "fold-in"
    torch.testing.assert_close(
        harder.factors.users @ harder.factors.items.T,
        trained.factors.users @ (trained.factors.items - trained.factors.items.mean(dim=0)).T,
        atol=1e-4,
        rtol=1e-3,
    )
    stored = robustcf.harden(trained, serve="stored")
    assert stored.kind == "factors"
    assert stored.histories is None
    with pytest.raises(InputError, match="stored, fold-in"):
        trained.serving("both")
    with pytest.raises(InputError, match="interactions"):
        Recommender(*stored.factors, serve="fold-in")
    with pytest.raises(InputError, match="serve"):
        robustcf.train(split, "sparse-ease", serve="fold-in")


def test_factors_of_another_library_are_served_by_histories():
    parity, split = np.eye(2)[np.arange(30) % 2], checkerboard()
    mine = Imported(Factors.of(parity[:20], parity), "arrays", "parity")
    model = joined(mine, split.train, split.test, serve="fold-in")
    assert model.kind == "fold-in"
    assert model.evaluate()["hit_rate@10"] == 1.0
    with pytest.raises(InputError, match="serve"):
        joined(mine, serve="fold-in")


def test_users_without_a_history_get_the_mean_of_the_others():
    model = world().serving("stored").serving("fold-in")
    users = model.factors.users
    torch.testing.assert_close(users[0], users[1:].mean(dim=0))
