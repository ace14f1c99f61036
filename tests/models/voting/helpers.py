"""Small worlds to vote in, and ways to inject fake accounts."""

from __future__ import annotations

import numpy as np

from robustcf.data import Split
from robustcf.models.voting import PartitionVote, VoteConfig
from robustcf.models.voting.voters import group_of

ACCOUNTS = VoteConfig(cap=0.5, power=1, excess=0.0, damping=0.0)
DAMPED = VoteConfig(cap=0.4, power=2, excess=0.3, damping=0.6, prior=1.0)


def world(seed: int, n_users: int = 12, n_items: int = 6, share: float = 0.5) -> Split:
    """Random pairs with some taste: every user has a train item, most a test item."""
    rng = np.random.default_rng(seed)
    taste = rng.random((2, n_items)) * 2 * share
    has = rng.random((n_users, n_items)) < taste[rng.integers(2, size=n_users)]
    has[np.arange(n_users), rng.integers(n_items, size=n_users)] = True
    test = has & (rng.random(has.shape) < 0.4)
    test[~(has & ~test).any(axis=1)] = False
    if not test.any():
        return world(seed + 1000, n_users, n_items, share)
    labels = np.array([f"u{n}" for n in range(n_users)])
    return Split.from_csr(has & ~test, test=test, user_labels=labels)


def poisoned(split: Split, fakes: np.ndarray, names: list[str] | None = None) -> Split:
    """The split with fake accounts after its own: rows of 0 and 1."""
    train = np.vstack([split.train.csr().toarray(), fakes])
    test = np.vstack([split.test.csr().toarray(), np.zeros_like(fakes)])
    names = [f"fake{n}" for n in range(len(fakes))] if names is None else names
    labels = np.array([*split.user_labels.tolist(), *names])
    return Split.from_csr(train, test=test, user_labels=labels)


def name_in_group(group: int, config: VoteConfig, number: int = 0) -> str:
    """A name that the hash puts into a group: an attacker who knows the key can find one."""
    for n in range(10_000):
        name = f"fake{number}-{n}"
        if group_of(np.array([name]), config.groups, config.key)[0] == group:
            return name
    raise AssertionError("no name found")


def all_profiles(n_items: int) -> np.ndarray:
    numbers = np.arange(1, 2**n_items)
    return (numbers[:, None] >> np.arange(n_items)) & 1


def check_injections(split, config, number, injections, ks=(1, 2, 3)):
    """Assert that no injection, fakes and their names, takes a user's metric below its bound.

    Returns the certificate, and the smallest distance from it by metric and user.
    """
    certified = PartitionVote(split.train, config).certify_fakes(split, range(number + 1), ks)
    least: dict[str, np.ndarray] = {}
    for fakes, names in injections:
        spoilt = poisoned(split, np.asarray(fakes), names)
        found = PartitionVote(spoilt.train, config).evaluate(spoilt, ks)
        assert found.users.tolist() == certified.users.tolist()
        for name, values in found.per_user.items():
            above = values - certified.per_user[name][number]
            least[name] = np.minimum(least.get(name, np.inf), above)
    assert all((values >= 0).all() for values in least.values())
    return certified, least
