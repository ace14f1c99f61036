"""PartitionVote: a recommender by vote, with a certificate against fake accounts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_cutoff, check_cutoffs, check_known
from robustcf._io.schema import OBJECT, check_kind
from robustcf._io.text import rows_table
from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.metrics.evaluate import (
    MetricReport,
    Part,
    Protocol,
    evaluate_rankings,
    judged_users,
    masked_pairs,
)
from robustcf.metrics.topk import user_ids
from robustcf.models.scorer import Ids, Ranking, Scorer, Stored
from robustcf.models.voting.config import FALLBACK, VoteConfig, check_fakes, trusted_accounts
from robustcf.models.voting.reach import CertifiedReach, ReachCount
from robustcf.models.voting.voters import (
    Accounts,
    Groups,
    Served,
    blocks_of,
    check_members,
    masked_rows,
    members_by,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_TRUSTED = "trusted"


@dataclass(frozen=True)
class ChosenUsers(Protocol):
    """The protocol of users that the caller has named, in place of a sample."""

    @property
    def _users_words(self) -> str:
        return f"{self.n_users:,} chosen of the {self.sampled_from:,} users"

    @property
    def _sample(self) -> dict[str, int]:
        return {"chosen_from": self.sampled_from or 0}


@dataclass(frozen=True, eq=False)
class CertifiedVotes:
    """Lower bounds of every metric per number of fake accounts with any content.

    Args:
        fakes: numbers of fake accounts.
        values: ``"precision@10"`` and the like -> one mean over users per number.
        per_user: the same names -> fakes x users.
        users: ids of the users.
        protocol: how items were ranked and masked.
    """

    fakes: tuple[int, ...]
    values: Mapping[str, list[float]]
    per_user: Mapping[str, npt.NDArray[np.float64]]
    users: Ids
    protocol: Protocol

    def __getitem__(self, metric: str) -> list[float]:
        if metric not in self.values:
            raise InputError(f"metric must be one of {', '.join(self.values)}, got {metric!r}")
        return self.values[metric]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per number of fakes, one column per certified metric."""
        import pandas as pd

        return pd.DataFrame({"fakes": self.fakes, **self.values})

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure | Path:
        """Draw a certified metric (None: the first precision) against the number of fake accounts.

        Returns the figure, or the path of the ``.png`` or ``.svg`` that it was written to.
        """
        from robustcf._io.plots import Line, Panel, plot_panels

        first = min(int(name.split("@")[1]) for name in self.values)
        chosen = f"precision@{first}" if metric is None else metric
        lines = [Line("vote", self.fakes, np.array([self[chosen]]), "certificate")]
        name = f"{chosen} on {self.protocol.dataset} ({self.protocol.part})"
        return plot_panels([[Panel(lines, "fake accounts", name)]], path)

    def __repr__(self) -> str:
        metric, bounds = next(iter(self.values.items()))
        pairs = zip(self.fakes, bounds, strict=True)
        values = ", ".join(f"{number:,}: {value:.4f}" for number, value in pairs)
        return f"CertifiedVotes({metric} at {values} fakes)"

    def _repr_html_(self) -> str:
        shown = list(self.values)[:4]
        rows = [
            [f"{number:,}", *(f"{self.values[name][n]:.4f}" for name in shown)]
            for n, number in enumerate(self.fakes)
        ]
        return rows_table(["fakes", *shown], rows, "certified lower bounds")

    def as_dict(self) -> dict[str, Any]:
        """Return ``fakes``, one list per metric, and the protocol; ready for JSON."""
        return {"fakes": list(self.fakes), **self.values, "protocol": self.protocol.as_dict()}


def stored_config(facts: Mapping[str, Any]) -> VoteConfig:
    """Return the settings of a stored vote, checked."""
    settings: dict[str, Any] = facts.get("settings")  # type: ignore[assignment]
    check_kind("", settings, OBJECT, "settings")
    check_known(VoteConfig, settings)
    config = VoteConfig(**settings)
    _check_chosen(config)
    return config


def _check_chosen(config: VoteConfig) -> None:
    if config.groups is None and (config.cap is None or config.damping is None):
        raise InputError(
            "cap and damping must be numbers, or chosen on validation pairs first, by "
            "robustcf.models.voting.choose(split, config).config"
        )


class PartitionVote(Scorer):
    """A recommender that counts votes, so that a few fake accounts move little.

    Every account has a similarity-weighted vote, at most one, for the items that it holds; or, with
    ``groups``, each group of accounts votes for N' items. The user's own history, the catalogue and
    the settings are trusted.

    Args:
        pairs: the items of the accounts.
        config: its settings, with cap and damping, see :func:`robustcf.models.voting.choose`; None
            for the defaults, with a cap of 0.15 and a damping of 0.3.
        trusted: whether each account is trusted; None: by the settings and these pairs.

    Cost: serving a user costs the pairs of all accounts that share an item with the user.

    Example:
        >>> pairs = Interactions.from_pairs([0, 0, 1, 1, 1], [0, 1, 0, 1, 2], 2, 4)[0]
        >>> PartitionVote(pairs).top(np.array([0]), 2, pairs).items.tolist()
        [[2, 3]]
    """

    kind = "vote"

    def __init__(
        self,
        pairs: Interactions,
        config: VoteConfig | None = None,
        trusted: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        if len(pairs) == 0:
            raise InputError("pairs must not be empty: without interactions there are no votes")
        if config is None:
            config = VoteConfig(**FALLBACK)
        _check_chosen(config)
        self.pairs, self.config = pairs, config
        self.n_users, self.n_items = pairs.n_users, pairs.n_items
        self.trusted = trusted_accounts(pairs, config) if trusted is None else trusted
        self.voters: Accounts | Groups = (
            Accounts(pairs, config, self.trusted)
            if config.groups is None
            else Groups(pairs, config)
        )

    def _blocks(
        self, users: Ids, seen: Interactions | None, candidates: Ids | None = None
    ) -> Iterator[tuple[Ids, Served]]:
        votes = (self.config.groups or 0) * self.config.votes
        for block in blocks_of(users, self.pairs, votes):
            masked = masked_rows(seen, block, self.n_items)
            yield block, _among(self.voters.serve(self.pairs.csr()[block], masked), candidates)

    def top(
        self, users: Ids, k: int, seen: Interactions | None = None, candidates: Ids | None = None
    ) -> Ranking:
        """See :meth:`Scorer.top`; scores are votes."""
        k = min(check_cutoff("k", k), self.n_items if candidates is None else len(candidates))
        blocks = self._blocks(user_ids(users, self.n_users), seen, candidates)
        items, scores = zip(*(_ranking(served, k) for _, served in blocks), strict=True)
        return Ranking(np.concatenate(items), np.concatenate(scores))

    def top_for_history(
        self,
        history: Ids,
        k: int,
        pairs: Interactions,
        *,
        filter_seen: bool = True,
        candidates: Ids | None = None,
    ) -> Ranking:
        """See :meth:`Scorer.top_for_history`; an empty history gets popular items."""
        ids = np.unique(np.asarray(history, dtype=np.int64))
        if len(ids) and (ids[0] < 0 or ids[-1] >= self.n_items):
            raise InputError(f"item ids must be in [0, {self.n_items}), got {ids.tolist()}")
        one = Interactions(np.zeros_like(ids), ids, 1, self.n_items)
        masked = masked_rows(one if filter_seen else None, np.zeros(1, np.int64), self.n_items)
        most = self.n_items if candidates is None else len(candidates)
        served = _among(self.voters.serve(one.csr(), masked), candidates)
        return _ranking(served, min(check_cutoff("k", k), most))

    def similar(self, items: Ids, k: int) -> Ranking:
        """Return items by the cosine of the accounts that hold them."""
        columns = self.pairs.csr().T.tocsr().astype(np.float64)
        lengths = np.sqrt(np.maximum(self.pairs.item_degrees, 1))
        found = []
        for item in items.tolist():
            shared = (columns @ columns[[item]].T).toarray().ravel()
            scores = shared / (lengths * lengths[item])
            scores[item] = -1.0
            best = np.argsort(-scores, kind="stable")[:k]
            found.append((best, scores[best]))
        return Ranking(np.array([row for row, _ in found]), np.array([row for _, row in found]))

    def stored(self) -> Stored:
        """See :meth:`Scorer.stored`; the vote also needs the interactions."""
        facts = {"settings": asdict(self.config), "members": members_by(self.pairs)}
        if self.trusted is None:
            return Stored(facts=facts, needs_interactions=True)
        from torch import from_numpy

        # Saved interactions have no times.
        tensors = {_TRUSTED: from_numpy(self.trusted.astype(np.uint8))}
        return Stored(tensors, facts, needs_interactions=True)

    @classmethod
    def restored(
        cls, tensors: Mapping[str, Any], facts: Mapping[str, Any], pairs: Interactions | None
    ) -> PartitionVote:
        """See :meth:`Scorer.restored`."""
        config = stored_config(facts)
        if pairs is None:
            raise InputError("a vote scores by its interactions: give them")
        if config.groups is not None:
            check_members(facts.get("members"), pairs)
        if not config.knows_new:
            return cls(pairs, config)
        found = tensors.get(_TRUSTED)
        if found is None or tuple(found.shape) != (pairs.n_users,):
            raise InputError(f"a vote that trusts some accounts must say which, in {_TRUSTED!r}")
        return cls(pairs, config, np.asarray(found) > 0)

    def evaluate(
        self,
        split: Split,
        ks: Sequence[int] = (10, 20),
        *,
        part: Part = "test",
        mask: Sequence[str] | None = None,
    ) -> MetricReport:
        """Return metrics, see :func:`robustcf.metrics.evaluate.evaluate_rankings`."""
        self._check(split)
        return evaluate_rankings(self.rank, split, ks, part=part, mask=mask)

    def certify_fakes(
        self,
        split: Split,
        fakes: Sequence[int],
        ks: Sequence[int] = (10, 20),
        *,
        part: Part = "test",
        mask: Sequence[str] | None = None,
        users: Ids | None = None,
    ) -> CertifiedVotes:
        """Return lower bounds of all metrics under fake accounts with any content.

        Where every account votes, up to ``fakes`` accounts are added, with any items of the
        catalogue. Where groups vote, as many accounts are added, altered or removed, but not the
        served user's own; all accounts stay in their groups, and with ``ridge`` no group grows
        beyond its limit of members. Proofs: :mod:`robustcf.models.voting.certificate`.

        Args:
            split: the data; the vote must have been fit on its pairs.
            fakes: numbers of fake accounts, ascending; 0 gives the clean values.
            ks: cutoffs.
            part: the part of the split whose pairs are relevant.
            mask: parts whose pairs are not candidates; None for the split's own protocol.
            users: ids of users with a relevant item; None for all of them.

        Cost: one serving of all users; of accounts, also hits x items x log(fakes) comparisons.

        Example:
            >>> from robustcf.data import load
            >>> split = load("demo")
            >>> vote = PartitionVote(split.train, VoteConfig(cap=0.2, damping=0.5))
            >>> certified = vote.certify_fakes(split, [0, 1], [10], part="valid")
            >>> clean, attacked = certified["precision@10"]
            >>> clean > attacked > 0
            True
        """
        self._check(split)
        numbers, cutoffs = check_fakes(fakes), check_cutoffs(ks)
        judged = judged_users(split, part, mask)
        chosen = judged.users if users is None else user_ids(users, self.n_users)
        if len(chosen) == 0:
            raise InputError("users must be at least one, got none: leave it out for all")
        parts = [
            served.certified(judged, block, numbers, cutoffs)
            for block, served in self._blocks(chosen, judged.seen)
        ]
        per_user = {
            name: np.stack(
                [np.concatenate([each[n][name] for each in parts]) for n in range(len(numbers))]
            )
            for name in parts[0][0]
        }
        values = {name: [float(row.mean()) for row in rows] for name, rows in per_user.items()}
        protocol = judged.protocol(cutoffs, len(chosen))
        if users is not None:
            chosen_from = {"sampled_from": judged.n_known, "sample_seed": 0}
            protocol = ChosenUsers(**(vars(protocol) | chosen_from))
        return CertifiedVotes(numbers, values, per_user, chosen, protocol)

    def certify_reach(
        self,
        split: Split,
        fakes: Sequence[int],
        ks: Sequence[int] = (10,),
        *,
        part: Part = "test",
        mask: Sequence[str] | None = None,
        targets: int = 5,
    ) -> CertifiedReach:
        """Bound to how many users fake accounts can show an item, or from how many take it.

        What the accounts may be: see :meth:`certify_fakes`. All users count, with candidates and
        lacked items as in :func:`robustcf.poisoning.exposure`. The attacker chooses all fakes anew
        for every item and every user: the bounds hold for any fakes that serve all at once.

        Args:
            split, fakes, ks, part, mask: see :meth:`certify_fakes`.
            targets: the number of items of the worst set.

        Cost: one serving of all users, and per number of fakes about 2 log2(fakes) partitions of
        users x items. Memory of users x items bits per number of fakes and cutoff.

        Example:
            >>> from robustcf.data import load
            >>> vote = PartitionVote(load("demo").train, VoteConfig(cap=0.2, damping=0.5))
            >>> found = vote.certify_reach(load("demo"), [0, 1])
            >>> today, attacked = found.worst("rare", 10)
            >>> today <= attacked <= 2000
            True
        """
        self._check(split)
        masked = split.masked(part) if mask is None else tuple(mask)
        counting = ReachCount(split, check_fakes(fakes), check_cutoffs(ks), targets)
        seen = masked_pairs(split, part, masked)
        for block, served in self._blocks(np.arange(self.n_users), seen):
            counting.add(block, served)
        return counting.result(self.pairs.item_degrees)

    def _check(self, split: Split) -> None:
        if (split.n_users, split.n_items) != (self.n_users, self.n_items):
            raise InputError(
                f"expected {self.n_users} users x {self.n_items} items, {split.name} has "
                f"{split.n_users} x {split.n_items}: they are different data"
            )
        if self.config.groups is not None:
            check_members(members_by(self.pairs), split)


def _among(served: Served, candidates: Ids | None) -> Served:
    """Mask all items but the candidates."""
    if candidates is None:
        return served
    out = np.ones(served.masked.shape[1], dtype=bool)
    out[candidates] = False
    return replace(served, masked=served.masked | out)


def _ranking(served: Served, k: int) -> Ranking:
    items = served.top(k)
    scores = np.take_along_axis(served.scores, np.maximum(items, 0), axis=1).astype(np.float64)
    return Ranking(items, np.where(items >= 0, scores, np.nan))
