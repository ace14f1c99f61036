"""The bounds themselves, against every change of votes that fakes could make."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from robustcf.errors import InputError
from robustcf.models.voting.certificate import (
    FULL_VOTE,
    AccountVotes,
    above_by_accounts,
    above_by_groups,
)
from robustcf.models.voting.config import check_fakes


def flat_votes(votes, degrees, power, prior=1.0, most=1.0, mass=1.0):
    """Votes in units of the full one, as the certificate takes them."""
    degrees = np.asarray(degrees, dtype=float)
    return AccountVotes(
        np.asarray(votes, dtype=float) * FULL_VOTE,
        degrees,
        lambda added: (prior + degrees + added) ** -power,
        prior,
        power,
        np.full(len(votes), most * FULL_VOTE),
        mass,
    )


def outsiders_above(scores, outsiders, item):
    ids = np.arange(len(scores))
    above = (scores > scores[item]) | ((scores == scores[item]) & (ids < item))
    return int((above & outsiders).sum())


def all_ballots(candidates, limit):
    return [
        chosen for size in range(limit + 1) for chosen in itertools.combinations(candidates, size)
    ]


def every_corruption(ballots, candidates, fakes):
    """Yield the votes after up to ``fakes`` groups cast arbitrary votes."""
    n_items = max(candidates) + 1
    for groups in itertools.combinations(range(len(ballots)), fakes):
        kept = [row for g, row in enumerate(ballots) if g not in groups]
        base = np.bincount([i for row in kept for i in row if i >= 0], minlength=n_items)
        for new in itertools.product(all_ballots(candidates, len(ballots[0])), repeat=fakes):
            added = [i for row in new for i in row]
            yield base + np.bincount(added, minlength=n_items)[:n_items] if added else base


@pytest.mark.parametrize("fakes", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_groups_against_all_corruptions(seed, fakes):
    rng = np.random.default_rng(seed)
    n_items, limit, groups = 4, 2, 5
    met = 0
    for _ in range(4):
        popular = rng.random(n_items) ** 2
        ballots = np.array(
            [np.argsort(-(popular + 0.4 * rng.random(n_items)))[:limit] for _ in range(groups)]
        )
        ballots[rng.random(ballots.shape) < 0.15] = -1
        relevant = int(rng.integers(n_items))
        outsiders = np.arange(n_items) != relevant
        worst = max(
            outsiders_above(votes, outsiders, relevant)
            for votes in every_corruption(ballots.tolist(), range(n_items), fakes)
        )
        bound = above_by_groups(ballots, outsiders, relevant, fakes)
        assert bound >= worst
        met += bound == worst
    assert met >= (4 if fakes == 0 else 2)


@pytest.mark.parametrize("seed", range(5))
def test_corrupting_the_same_groups_is_worse_than_counting_each_item_alone(seed, monkeypatch):
    """The third condition refutes what the first two allow, and never more than is possible."""
    rng = np.random.default_rng(seed)
    popular = rng.random(30)
    noise = rng.random((60, 30))
    ballots = np.argsort(-(popular + noise), axis=1)[:, :10]
    outsiders = np.arange(30) != (item := int(np.argmax(popular)))
    tight = [above_by_groups(ballots, outsiders, item, e) for e in range(1, 25)]
    monkeypatch.setattr("robustcf.models.voting.certificate._HANGERS", ())
    loose = [above_by_groups(ballots, outsiders, item, e) for e in range(1, 25)]
    assert all(a <= b for a, b in zip(tight, loose, strict=True))
    assert tight != loose
    # A greedy attack: corrupt groups that vote for the item and not for its rivals.
    rivals = np.argsort(-np.bincount(ballots.ravel(), minlength=30))
    rivals = [r for r in rivals if r != item][:10]
    for e, bound in zip(range(1, 25), tight, strict=True):
        value = (ballots == item).any(1) * 10.0 - np.isin(ballots, rivals).sum(1)
        changed = ballots.copy()
        changed[np.argsort(-value)[:e]] = rivals
        votes = np.bincount(changed.ravel(), minlength=30)
        assert outsiders_above(votes, outsiders, item) <= bound


@pytest.mark.parametrize("power", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.slow
def test_accounts_against_all_fakes(seed, power):
    """Each fake has one vote for all that it holds: 0, a part, or the full one."""
    rng = np.random.default_rng(seed)
    n_items, most = 4, 8
    degrees = rng.integers(1, 9, size=n_items)
    votes = np.array([[float(rng.integers(0, most * d + 1)) for d in degrees]])
    damping = (1.0 + np.arange(20)) ** -power
    fakes = [
        (weight, held)
        for weight in (0, 1, 3, most)
        for size in range(n_items + 1)
        for held in itertools.combinations(range(n_items), size)
    ]
    for item, number in itertools.product(range(n_items), (1, 2)):
        outsiders = np.arange(n_items) != item
        worst = 0
        for chosen in itertools.combinations_with_replacement(fakes, number):
            total, count = votes[0].copy(), degrees.copy()
            for weight, held in chosen:
                total[list(held)] += weight
                count[list(held)] += 1
            worst = max(worst, outsiders_above(total * damping[count], outsiders, item))
        where = np.array([0]), np.array([item])
        cast = flat_votes(votes / most, degrees, power)
        bound = above_by_accounts(cast, outsiders[None], *where, number)
        assert bound[0] >= worst
        if power == 0:
            assert bound[0] == worst


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_fakes_never_help_and_blocks_do_not_matter(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    degrees = rng.integers(1, 50, size=40)
    votes = rng.integers(0, 100, size=(6, 40)) * np.minimum(degrees, 9) * 1.0
    outsiders = rng.random((6, 40)) < 0.8
    owners, items = np.nonzero(~outsiders)
    cast = flat_votes(votes / 900, degrees, 0.5, prior=5.0)

    def found():
        return [
            above_by_accounts(cast, outsiders, owners, items, e).tolist()
            for e in (0, 1, 2, 3, 7, 20, 100)
        ]

    whole = found()
    monkeypatch.setattr("robustcf.models.voting.certificate._BLOCK", 50)
    assert found() == whole
    assert (np.diff(np.array(whole), axis=0) >= 0).all()


@pytest.mark.parametrize("fakes", [[], [1, 1], [2, 1], [-1], [0.5], [True], ["3"], [10**7]])
def test_numbers_of_fakes_are_checked(fakes):
    with pytest.raises(InputError, match="fakes"):
        check_fakes(fakes)
