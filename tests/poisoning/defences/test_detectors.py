"""Detectors: they flag the fakes that they are for, and no users of clean data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.decomposition import PCA

from robustcf._registry import DEFENCES
from robustcf.data import Interactions
from robustcf.errors import InputError
from robustcf.poisoning import defences
from robustcf.poisoning.defences import AllDetectors, Detector, Groups, PCASelection, Twins
from robustcf.poisoning.defences.detectors import _nearest, _robust_z, _unit_profiles
from robustcf.poisoning.injection import inject
from robustcf.training import TrainConfig

SEEDS = [0, 1, 2]
DETECTORS: list[type[Detector]] = [PCASelection, Twins, Groups, AllDetectors]
CONFIG = TrainConfig.of(model="ultragcn", factors=4, epochs=1)


def tastes(seed: int, n_users: int = 300, n_items: int = 200, kinds: int = 8) -> Interactions:
    """Users of several tastes, items of skewed popularity: a small clean data set."""
    rng = np.random.default_rng(seed)
    kind_of_user = rng.integers(kinds, size=n_users)
    kind_of_item = rng.integers(kinds, size=n_items)
    weight = rng.pareto(1.5, size=n_items) + 0.3
    cells = np.zeros((n_users, n_items), dtype=bool)
    for user in range(n_users):
        chance = weight * np.where(kind_of_item == kind_of_user[user], 6.0, 1.0)
        count = int(rng.integers(10, 31))
        cells[user, rng.choice(n_items, count, replace=False, p=chance / chance.sum())] = True
    return Interactions(*np.nonzero(cells), n_users, n_items)


def rare(train: Interactions, count: int) -> npt.NDArray[np.int64]:
    return np.argsort(train.item_degrees, kind="stable")[:count]


def with_fakes(train: Interactions, fakes: list[Any]) -> tuple[Interactions, Any]:
    """Training pairs with fakes, and whether each user is one."""
    both = inject(train, fakes)
    return both, np.arange(both.n_users) >= train.n_users


def copies(train: Interactions, count: int, targets: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return [np.union1d(train.items_of(user), targets) for user in range(count)]


# --- clean and degenerate data --------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", DETECTORS)
def test_no_user_of_clean_data_is_flagged(kind: type[Detector], seed: int) -> None:
    found = kind().detect(tastes(seed))
    assert not found.flagged.any()
    assert len(found.items) == 0


@pytest.mark.parametrize("kind", DETECTORS)
def test_no_user_of_degenerate_data_is_flagged(kind: type[Detector]) -> None:
    def pairs(users: Any, items: Any, n_users: int, n_items: int) -> Interactions:
        return Interactions(np.array(users, int), np.array(items, int), n_users, n_items)

    all_users = np.arange(40)
    for train in (
        pairs([0, 0], [0, 1], 1, 3),
        pairs([], [], 4, 3),
        tastes(0, n_users=19),
        pairs(np.repeat(all_users, 3), np.tile([0, 1, 2], 40), 40, 5),  # all alike
        pairs(np.repeat(all_users, 5), np.tile(np.arange(5), 40), 40, 5),  # the whole catalogue
        pairs(all_users, all_users, 40, 40),
        pairs(all_users, np.zeros(40), 40, 1),
    ):
        found = kind().detect(train)
        assert found.flagged.shape == found.scores.shape == (train.n_users,)
        assert not found.flagged.any()
        assert np.isfinite(found.scores).all()
        assert kind().apply(train, CONFIG).train == train


@pytest.mark.parametrize("kind", DETECTORS)
def test_users_without_pairs_change_nothing(kind: type[Detector]) -> None:
    train = tastes(0)
    train = inject(train, copies(train, 20, rare(train, 3)))
    found = kind().detect(train)
    # New ids, with gaps at the start, in the middle and at the end.
    places = np.arange(train.n_users) + 2 + (np.arange(train.n_users) > 50)
    wider = Interactions(places[train.users], train.items, train.n_users + 9, train.n_items)
    again = kind().detect(wider)
    assert (again.flagged[places] == found.flagged).all()
    np.testing.assert_allclose(again.scores[places], found.scores, atol=1e-9)
    assert again.flagged.sum() == found.flagged.sum()
    assert (np.delete(again.scores, places) == 0).all()


# --- every detector finds what it is for ----------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_pca_flags_users_outside_of_the_components(seed: int) -> None:
    """Two strict camps, and some who have nothing to do with either."""
    rng = np.random.default_rng(seed)
    blocks = [rng.choice(50, 20, replace=False) + 50 * (user % 2) for user in range(200)]
    strays = [rng.choice(np.arange(100, 1000), 20, replace=False) for _ in range(6)]
    items = np.concatenate([np.sort(each) for each in (*blocks, *strays)])
    train = Interactions(np.repeat(np.arange(206), 20), items, 206, 1000)
    found = PCASelection(components=2).detect(train)
    assert (found.flagged == (np.arange(206) >= 200)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_twins_finds_copies_and_not_the_copied(seed: int) -> None:
    train = tastes(seed)
    target = rare(train, 1)
    both, fake = with_fakes(train, copies(train, 12, target))
    found = Twins().detect(both)
    assert found.judged(fake) == {"precision": 1.0, "recall": 1.0, "false_positive_rate": 0.0}
    assert found.items.tolist() == target.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_twins_that_add_nothing_in_common_are_left_alone(seed: int) -> None:
    train = tastes(seed)
    rng = np.random.default_rng(seed)
    added = rng.permutation(train.n_items)[:12]
    profiles = [np.union1d(train.items_of(u), [added[u]]) for u in range(12)]
    found = Twins().detect(inject(train, profiles))
    assert (found.scores > 6).sum() >= 20, "they are seen"
    assert not found.flagged.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_finds_mixed_profiles_that_share_targets(seed: int) -> None:
    """Fillers drawn from several real profiles: no twins, and yet a group."""
    train = tastes(seed, n_users=600, n_items=400)
    rng = np.random.default_rng(seed)
    targets = rare(train, 5)
    fakes = []
    for _ in range(15):
        pool = np.concatenate([train.items_of(int(u)) for u in rng.integers(600, size=4)])
        fillers = rng.choice(np.setdiff1d(pool, targets), 10, replace=False)
        fakes.append(np.union1d(fillers, targets))
    both, fake = with_fakes(train, fakes)
    found = Groups().detect(both)
    assert found.judged(fake)["recall"] == 1.0
    assert found.judged(fake)["precision"] >= 0.8
    assert set(targets) <= set(found.items.tolist())
    assert not Twins().detect(both).flagged.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_finds_fakes_that_outnumber_the_users_of_their_targets(seed: int) -> None:
    """Random fillers make users different, and the targets have nearly the same users."""
    train = tastes(seed, n_users=600, n_items=400)
    rng = np.random.default_rng(seed)
    targets = rare(train, 3)
    fakes = [np.union1d(rng.choice(400, 40, replace=False), targets) for _ in range(120)]
    both, fake = with_fakes(train, fakes)
    found = Groups().detect(both)
    assert found.judged(fake)["recall"] == 1.0
    assert found.judged(fake)["precision"] > 0.9
    assert found.items.tolist() == sorted(targets.tolist())


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    train = tastes(0, n_users=600, n_items=400)
    both = inject(train, copies(train, 40, rare(train, 4)))
    profiles = _unit_profiles(tastes(1, n_users=50), 1.0)
    whole, near = Groups().detect(both), _nearest(profiles, 5)
    monkeypatch.setattr("robustcf.poisoning.defences.detectors._BLOCK", 7)
    monkeypatch.setattr("robustcf.poisoning.defences.detectors._ENTRIES", 170)
    parts, again = Groups().detect(both), _nearest(profiles, 5)
    assert whole.flagged.sum() >= 40
    assert (whole.flagged == parts.flagged).all()
    assert whole.items.tolist() == parts.items.tolist()
    assert all(map(np.array_equal, near, again))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_detectors_flag_what_one_of_them_flags(seed: int) -> None:
    train = tastes(seed)
    both = inject(train, copies(train, 12, rare(train, 3)))
    every = AllDetectors()
    found = every.detect(both)
    assert [detector.name for detector in every.detectors] == ["pca", "twins", "groups"]
    counts = sum(each.detect(both).flagged.astype(int) for each in every.detectors)
    assert found.scores.tolist() == list(counts)
    assert (found.flagged == (counts > 0)).all()


# --- against independent oracles ------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("components", [1, 3])
def test_pca_shares_are_those_of_sklearn(components: int, seed: int) -> None:
    train = tastes(seed, n_users=60, n_items=40)
    dense = train.csr().toarray().astype(np.float64)
    standard = (dense - dense.mean(axis=1, keepdims=True)) / dense.std(axis=1, keepdims=True)
    # Users are the variables: their columns have mean 0, so that sklearn centres nothing.
    pca = PCA(components, svd_solver="full").fit(standard.T)
    variances = (pca.components_.T**2) @ (pca.explained_variance_ * (40 - 1) / 40)
    shares = PCASelection(components).shares(train)
    np.testing.assert_allclose(shares, variances, rtol=1e-4, atol=1e-6)
    assert ((shares >= 0) & (shares <= 1 + 1e-9)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rarity", [0.0, 1.0, 3.0])
def test_nearest_profiles_are_those_of_all_cosines(rarity: float, seed: int) -> None:
    train = tastes(seed, n_users=50, n_items=30)
    dense = train.csr().toarray() * np.log(50 / train.item_degrees.clip(1)) ** rarity
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    cosines = dense @ dense.T
    np.fill_diagonal(cosines, -1)
    expected = -np.sort(-cosines, axis=1)[:, :7]
    profiles = _unit_profiles(train, rarity)
    found, who = _nearest(profiles, 7)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(cosines, who, axis=1), expected, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_robust_z_of_normal_numbers_is_theirs_whatever_a_third_of_them_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = 5 + 2 * rng.standard_normal(6001)
    np.testing.assert_allclose(_robust_z(numbers), (numbers - 5) / 2, atol=0.25)
    spoilt = numbers.copy()
    spoilt[:600] = 1e9
    np.testing.assert_allclose(_robust_z(spoilt)[600:], (numbers[600:] - 5) / 2, atol=0.9)
    assert _robust_z(np.array([3.0, 3.0, 3.0, 9.0])).tolist() == [0.0] * 4


# --- removal and errors ---------------------------------------------------------------------


def test_removal_drops_the_pairs_and_keeps_the_ids() -> None:
    train = tastes(0)
    both = inject(train, copies(train, 12, rare(train, 1)))
    defended = Twins().apply(both, CONFIG)
    assert defended.train == inject(train, [np.empty(0, dtype=int)] * 12)
    assert defended.config == CONFIG
    assert defended.report == {
        "defence": "twins",
        "flagged": list(range(300, 312)),
        "items": rare(train, 1).tolist(),
    }
    assert defended.detection is not None


def test_a_detector_that_flags_all_users_is_refused() -> None:
    class Paranoid(Twins):
        def find(self, train: Interactions) -> Any:
            found = super().find(train)
            found.flagged[:] = True
            return found

    with pytest.raises(InputError, match="all users"):
        Paranoid().apply(tastes(0), CONFIG)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (PCASelection, {"components": 0}),
        *((PCASelection, {"threshold": value}) for value in (0, float("nan"))),
        (Twins, {"threshold": -1}),
        (Groups, {"least": 1}),
        *((Groups, {"link": value}) for value in (0.0, 1.5)),
        *((defences.LeverageCap, {"max_share": value}) for value in (0.0, 2.0)),
        (defences.SizeByLoss, {"eps": -1.0}),
        (defences.SizeByNorm, {"weight": float("inf")}),
    ],
)
def test_settings_out_of_range(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        kind(**settings)


def test_the_table_names_the_defences_and_judging_needs_a_flag_per_user() -> None:
    assert [DEFENCES[name]().name for name in DEFENCES] == list(DEFENCES)
    found = Twins().detect(tastes(0))
    for wrong in ([True], [0] * 300):
        with pytest.raises(InputError, match="300 users"):
            found.judged(wrong)
    no_fakes = found.judged(np.zeros(300, dtype=bool))
    assert no_fakes == {"precision": 1.0, "recall": 1.0, "false_positive_rate": 0.0}
