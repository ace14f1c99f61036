"""Certificates of votes against injections: small worlds, random settings, accounts made to hurt.

A case fits a vote to a small world, takes its certificates for some fakes, injects accounts, fits
it again, and fails if any user has less, or is shown more, than was certified. Some accounts are
random; others copy a user, push an item and hold its rivals, and change while that helps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from random import Random

import numpy as np
import numpy.typing as npt

from robustcf.data import Interactions, Split, load
from robustcf.metrics.evaluate import hits_of, judged_users, per_user_metrics
from robustcf.models.voting import PartitionVote, VoteConfig

Ids = npt.NDArray[np.int64]
KS = (1, 2, 3)
FRESH = 6  # injections of a case, and steps of each that is improved
STEPS = 3


class Violation(AssertionError):
    """A certificate that does not hold."""


def world(rng: Random) -> Split:
    """Pairs with some taste; users have train items, but for one at times, and some test items."""
    random = np.random.default_rng(rng.getrandbits(32))
    n_users, n_items = rng.randint(3, 14), rng.randint(3, 8)
    taste = random.random((2, n_items)) * rng.choice((0.6, 1.0, 1.4))
    has = random.random((n_users, n_items)) < taste[random.integers(2, size=n_users)]
    has[np.arange(n_users), random.integers(n_items, size=n_users)] = True
    test = has & (random.random(has.shape) < 0.4)
    if rng.random() < 0.8:
        test[~(has & ~test).any(axis=1)] = False
    if not test.any() or not (has & ~test).any():
        return world(rng)
    labels = np.array([f"u{n}" for n in range(n_users)])
    return Split.from_csr(has & ~test, test=test, user_labels=labels)


def settings(rng: Random, split: Split, kind: str) -> VoteConfig:
    """Settings of accounts or groups that vote; some trust a part of the accounts."""
    if kind == "groups":
        base, groups = rng.choice(("ridge", "knn")), rng.randint(1, split.n_users)
        return VoteConfig(groups=groups, votes=rng.randint(1, 3), base=base, key=str(rng.random()))
    names = split.train.user_labels.tolist()
    young = rng.random() < 0.4
    return VoteConfig(
        cap=rng.choice((0.05, 0.15, 0.3, 0.5, 0.8, 1.0)),
        power=rng.randint(1, 6),
        excess=rng.choice((0.0, 0.5, 1.0)),
        damping=rng.choice((0.0, 0.3, 0.6, 0.9)),
        prior=rng.choice((1.0, 5.0, 50.0)),
        new_account_weight=rng.choice((0.01, 0.2, 0.5, 0.77)) if young else 1.0,
        trusted=tuple(rng.sample(names, rng.randint(1, len(names)))) if young else (),
        new_account_items=rng.choice((None, None, 1, 2, 3, 4)),
    )


def allowed(profiles: Ids, config: VoteConfig, rng: Random) -> Ids:
    """The profiles with at most so many items as the limit allows, at least one."""
    for profile in profiles:
        if not profile.any():
            profile[rng.randrange(len(profile))] = 1
        held = np.flatnonzero(profile).tolist()
        limit = config.new_account_items or len(profile)
        profile[rng.sample(held, max(0, len(held) - limit))] = 0
    return profiles


def poisoned(train: Interactions, profiles: Ids, rng: Random) -> Interactions:
    """The pairs with these accounts, in groups by chance."""
    fakes, items = np.nonzero(profiles)
    names = [f"fake{n}-{rng.randrange(99)}" for n in range(len(profiles))]
    return Interactions(
        np.concatenate((train.users, train.n_users + fakes)),
        np.concatenate((train.items, items)),
        train.n_users + len(profiles),
        train.n_items,
        user_labels=np.array([*train.user_labels.tolist(), *names]),
    )


def aimed(rng: Random, split: Split, number: int) -> Ids:
    """Accounts that copy one user's history and hold one or more other items."""
    held = split.train.csr().toarray() > 0
    user = rng.randrange(split.n_users)
    found = np.tile(held[user].astype(np.int64), (number, 1))
    found[:, rng.randrange(split.n_items)] = 1
    for profile in found[: rng.randrange(number + 1)]:
        profile ^= np.array([rng.random() < 0.3 for _ in profile])
    return found


def lists(vote: PartitionVote, split: Split) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """The first places of the split's users; cutoffs x users x items: whether it is in the list."""
    everyone = np.arange(split.n_users)
    histories = vote.pairs.csr()[everyone]
    masked = split.train.csr().toarray() > 0
    top = vote.voters.serve(histories, masked).top(max(KS))
    found = np.zeros((len(KS), split.n_users, split.n_items + 1), dtype=bool)
    for n, k in enumerate(KS):
        found[n, everyone[:, None], top[:, :k]] = True
    return top, found[:, :, :-1]


def try_votes(rng: Random, kind: str) -> str:
    """One case; returns its settings in words, or raises :class:`Violation`."""
    split = world(rng)
    config, number = settings(rng, split, kind), rng.randint(1, 3)
    vote = PartitionVote(split.train, config)
    (_, served), *_ = vote._blocks(np.arange(split.n_users), split.train)
    reach = served.reach(number, KS)
    reached, kept = (np.stack([each[n] for each in reach]) for n in (0, 1))
    judged = judged_users(split, "test")
    (_, rated), *_ = vote._blocks(judged.users, judged.seen)
    bounds = rated.certified(judged, judged.users, (number,), KS)[0]
    words = f"{split.n_users} users x {split.n_items} items, {number} fakes, {config}"
    today = lists(vote, split)[1]

    def check(profiles: Ids) -> int:
        """Check an injection; returns how many more items users were shown, to climb by."""
        other = PartitionVote(poisoned(split.train, profiles, rng), config)
        top, seen = lists(other, split)
        for what, wrong in (("reached", seen & ~reached), ("kept", kept & ~seen)):
            if wrong.any():
                where = np.argwhere(wrong)[0].tolist()
                raise Violation(f"{what} {where} by {profiles.tolist()} in {words}")
        hits = hits_of(top[judged.users], judged.relevant, judged.users)
        for name, values in per_user_metrics(hits, judged.relevant, judged.users, KS).items():
            if (values < bounds[name]).any():
                raise Violation(f"{name} by {profiles.tolist()} in {words}")
        return int((seen & ~today).sum())

    for profiles in injections(rng, split, config, number):
        most = check(profiles)
        for _ in range(STEPS):
            changed = profiles.copy()
            changed[rng.randrange(number), rng.randrange(split.n_items)] ^= 1
            reaches = check(allowed(changed, config, rng))
            if reaches >= most:
                profiles, most = changed, reaches
    return words


def injections(rng: Random, split: Split, config: VoteConfig, number: int) -> Iterator[Ids]:
    """Yield accounts to begin with: some random, most aimed at a user."""
    for n in range(FRESH):
        random = np.array([[rng.randrange(2) for _ in range(split.n_items)] for _ in range(number)])
        yield allowed(aimed(rng, split, number) if n % 3 else random, config, rng)


# --- real data ----------------------------------------------------------------------------------


class Climber:
    """Injections into a real set, for all users at once, without fitting the vote again.

    The votes of added accounts are computed here from the formula, and added to those of the rest.
    """

    def __init__(self, split: Split, config: VoteConfig, number: int, seed: int) -> None:
        self.split, self.config, self.number = split, config, number
        self.rng = np.random.default_rng(seed)
        self.held = split.train_full.csr().toarray() > 0
        self.pairs = split.train_full.csr().astype(np.float64)
        self.lengths = self.held.sum(axis=1)
        vote = PartitionVote(split.train_full, config)
        (_, self.served), *_ = vote._blocks(np.arange(split.n_users), split.train_full)
        assert len(self.served.scores) == split.n_users, "the set must be one block"
        self.votes, self.degrees = self.served.cast[0], vote.voters.degrees
        [found] = self.served.reach(number, (10,))
        self.reached, self.kept = found
        judged = judged_users(split, "test")
        self.relevant = split.test.csr().toarray() > 0
        rated = self.served.certified(judged, np.arange(split.n_users), (number,), (10,))
        self.hits = np.rint(10 * rated[0]["precision@10"])
        self.checked = 0

    def full(self) -> float:
        return float(np.rint(self.config.new_account_weight * 65536))

    def lists(self, profiles: Ids) -> npt.NDArray[np.bool_]:
        """Users x items: whether it is among the first ten with these accounts."""
        config, full, held = self.config, self.full(), profiles > 0
        both = self.pairs @ held.T.astype(np.float64)
        size = np.sqrt(np.outer(self.lengths, held.sum(axis=1)))
        alike = both / size - config.excess * size / held.shape[1]
        cast = np.rint(np.clip(alike / config.cap, 0, 1) ** config.power * full)
        degrees = self.degrees + held.sum(axis=0) * full / 65536
        scores = (self.votes + cast @ held) * (config.prior + degrees) ** -config.damping
        scores[self.held] = -1.0
        last = np.partition(scores, -10, axis=1)[:, [-10]]
        found = scores > last
        for row, missing in enumerate((10 - found.sum(axis=1)).tolist()):
            found[row, np.flatnonzero(scores[row] == last[row])[:missing]] = True
        return found

    def check(self, profiles: Ids) -> npt.NDArray[np.bool_]:
        """Check the certificates against an injection; returns the lists."""
        seen, self.checked = self.lists(profiles), self.checked + 1
        for what, wrong in (
            ("reached", seen & ~self.reached),
            ("kept", self.kept & ~seen),
            ("precision", (seen & self.relevant).sum(axis=1) < self.hits),
        ):
            if wrong.any():
                raise Violation(f"{what}: {np.argwhere(wrong)[:3].tolist()} with {self.config}")
        return seen

    def profile(self, user: int, items: Ids) -> Ids:
        """A user's history and some items, within the limit."""
        limit = self.config.new_account_items or self.split.n_items
        own = self.rng.permutation(np.flatnonzero(self.held[user]))
        chosen = np.concatenate((items, own))[:limit]
        found = np.zeros(self.split.n_items, dtype=np.int64)
        found[chosen] = 1
        return found

    def climb(self, steps: int) -> tuple[int, int]:
        """Promote an item or oust a user's list; returns users reached, first and last."""
        users = np.flatnonzero(self.lengths)
        item = int(self.rng.integers(self.split.n_items))
        able = np.flatnonzero(self.reached[:, item] & ~self.held[:, item])
        crowd = able if len(able) else users
        demotes = self.rng.random() < 0.3
        victim = int(self.rng.choice(users))

        def drawn() -> Ids:
            if demotes:  # against one user: the best items that are not relevant to that user
                rivals = np.argsort(-self.served.scores[victim] * ~self.held[victim])[:30]
                rivals = rivals[~self.relevant[victim, rivals]]
                return self.profile(victim, rivals[: int(self.rng.integers(8, 20))])
            return self.profile(int(self.rng.choice(crowd)), np.array([item]))

        def worth(seen: npt.NDArray[np.bool_]) -> int:
            if demotes:
                return -int((seen & self.relevant)[victim].sum())
            return int(seen[:, item].sum())

        profiles = np.stack([drawn() for _ in range(self.number)])
        first = most = worth(self.check(profiles))
        for _ in range(steps):
            changed = profiles.copy()
            for place in self.rng.choice(self.number, max(1, self.number // 10), replace=False):
                changed[place] = drawn()
            value = worth(self.check(changed))
            if value >= most:
                profiles, most = changed, value
        return first, most


def climbers(split: Split, seed: int = 0) -> Iterator[Climber]:
    """The settings that are attacked: plain, damped, young accounts, limits of items."""
    old = np.random.default_rng(seed).choice(split.n_users, split.n_users // 2, replace=False)
    labels = split.user_labels
    trusted = tuple(map(str, (old if labels is None else labels[old]).tolist()))
    for more in (
        {"damping": 0.0},
        {"damping": 0.5},
        {"damping": 0.5, "trusted": trusted, "new_account_weight": 0.2},
        {"damping": 0.3, "new_account_items": 3},
        {"damping": 0.5, "new_account_items": 20},
    ):
        for number in (1, 5, 10, 50):
            yield Climber(split, VoteConfig(cap=0.18, **more), number, seed)


def main(words: list[str]) -> int:
    """Attack a real set: ``python -m tests.hostile.votes --data-dir DIR --injections 10000``."""
    parser = argparse.ArgumentParser(prog="votes")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data-dir")
    parser.add_argument("--injections", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    split = load(asked.dataset, data_dir=asked.data_dir)
    every = list(climbers(split, asked.seed))
    for climber in every:
        while climber.checked < asked.injections / len(every):
            climber.climb(19)
    total = sum(climber.checked for climber in every)
    print(f"{total:,} injections into {split.name}, {len(every)} settings: no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
