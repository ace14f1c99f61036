"""Ensemble of two recommenders: the sum of their scores, each divided by its spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from robustcf._checks import check_number
from robustcf._io.schema import NAME, NOT_NEGATIVE, OBJECT, check_kind, list_of, record
from robustcf._registry import MODELS, TRAINING
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.topk import TopItems
from robustcf.models.base import WithoutEmbeddings
from robustcf.models.factorized import FactorScorer
from robustcf.models.item_item import ItemItemScorer
from robustcf.models.scorer import (
    DenseScorer,
    Ids,
    Ranking,
    Scorer,
    Scores,
    Stored,
    best,
    masked,
    score_blocks,
)

if TYPE_CHECKING:
    from torch import Tensor

Member = FactorScorer | ItemItemScorer
# Users behind the spread of the scores.
_SAMPLE = 1_000
# Rows of one product. A score must not depend on the number of users asked for, so that products
# always have the same shape.
_ROWS = 16
_FACTS = record(
    {
        "scales": list_of(NOT_NEGATIVE),
        "share": NOT_NEGATIVE,
        "members": list_of(record({"kind": NAME, "facts": OBJECT})),
    }
)


def _default_members() -> list[dict[str, Any]]:
    return [{"model": "sparse-ease"}, {"model": "als"}]


@dataclass(frozen=True)
class EnsembleConfig:
    """Settings of an ensemble.

    Args:
        members: the settings of two models by their flat names: one item-item model and one with
            embeddings, or two alike.
        share: weight of the second; that of the first is 1 less it.
    """

    members: Sequence[Mapping[str, Any]] = field(default_factory=_default_members)
    share: float = 0.35

    def __post_init__(self) -> None:
        check_number("share", self.share)
        own = self.members
        if not isinstance(own, list | tuple) or len(own) != 2:
            raise InputError(f"members must be a list of two settings of models, got {own!r}")
        for settings in own:
            name = settings.get("model") if isinstance(settings, Mapping) else None
            if name not in MODELS or name == Ensemble.name:
                raise InputError(f"a member must name a model of {', '.join(MODELS)}, got {name!r}")
        if self.share > 1:
            raise InputError(f"share must be at most 1, got {self.share}")


class Ensemble(WithoutEmbeddings[EnsembleConfig]):
    """Two models that are fit to the same pairs, see :class:`EnsembleScorer`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> Ensemble(checkerboard().train).scorer().kind
        'ensemble'
    """

    name = "ensemble"
    Config = EnsembleConfig

    def _fitted(self) -> EnsembleScorer:
        fit, how = TRAINING["scorer"], {"seed": self.seed, "device": self.device}
        members = [fit(self.train, dict(settings), **how) for settings in self.config.members]
        return EnsembleScorer(members, self.config.share)


class EnsembleScorer(DenseScorer):
    """Scores ``(1 - share) a / scale_a + share b / scale_b`` of two scorers a and b.

    A scale is the standard deviation of a member's scores over 1,000 users, so that shares mean the
    same on all data. A new user is folded into both.

    Args:
        members: two scorers of the kinds factors and item-item.
        share: weight of the second.
        scales: None to measure them.

    Cost: scores of all items, by both.
    """

    kind = "ensemble"

    def __init__(
        self, members: Sequence[Scorer], share: float, scales: Sequence[float] | None = None
    ) -> None:
        sizes = {(own.n_users, own.n_items) for own in members}
        if len(members) != 2 or len(sizes) != 1:
            raise InputError(f"an ensemble has two members of the same data, got {list(members)}")
        self.members = [own for own in members if isinstance(own, Member)]
        if len(self.members) != len(members):
            raise InputError(f"members must be of factors or item-item, got {list(members)}")
        self.share = share
        self.n_users, self.n_items = sizes.pop()
        if scales is None:
            some = np.linspace(0, self.n_users - 1, min(_SAMPLE, self.n_users)).astype(np.int64)
            scales = [self._scale(own, some) for own in self.members]
        self.scales = tuple(scales)

    def rankers(self, shares: Sequence[float]) -> list[Callable[..., TopItems]]:
        """Return functions like :meth:`rank` by other shares, which compute scores once together.

        They keep the last lists of every block of users.
        """
        kept: dict[tuple[int, int], list[TopItems]] = {}

        def ranked(users: Ids, k: int, seen: Interactions | None) -> list[TopItems]:
            found: list[list[TopItems]] = [[] for _ in shares]
            for part in score_blocks(len(users), self.n_items):
                ids = users[part]
                both = [_scores(member, ids) for member in self.members]
                for place, share in enumerate(shares):
                    own = masked(self._sum(share, *both), ids, seen)
                    found[place].append(best(own, k, None).items)
            return [np.concatenate(own) for own in found]

        def ranker(place: int) -> Callable[..., TopItems]:
            def rank(users: Ids, k: int, seen: Interactions | None) -> TopItems:
                key = int(users[0]), len(users)
                if key not in kept:
                    kept[key] = ranked(users, k, seen)
                return kept[key][place]

            return rank

        return [ranker(place) for place in range(len(shares))]

    def _scale(self, member: Member, users: Ids) -> float:
        parts = score_blocks(len(users), self.n_items)
        squares = sum(float(_scores(member, users[part]).var(axis=1).sum()) for part in parts)
        return (squares / len(users)) ** 0.5 or 1.0

    def _sum(self, share: float, first: Scores, second: Scores) -> Scores:
        own: Scores = first * np.float32((1.0 - share) / self.scales[0])
        own += second * np.float32(share / self.scales[1])
        return own

    def user_scores(self, users: Ids) -> Scores:
        """See :meth:`DenseScorer.user_scores`."""
        return self._sum(self.share, *(_scores(member, users) for member in self.members))

    def history_scores(self, history: Ids, pairs: Interactions) -> Scores:
        """See :meth:`DenseScorer.history_scores`."""
        return self._sum(
            self.share,
            *(
                own.history_scores(history, pairs)
                if isinstance(own, ItemItemScorer)
                else _products(own.embed(history, pairs)[None, :], own.factors.items)
                for own in self.members
            ),
        )

    def similar(self, items: Ids, k: int) -> Ranking:
        """Return the similar items of the first member."""
        return self.members[0].similar(items, k)

    def stored(self) -> Stored:
        """See :meth:`Scorer.stored`; the tensors of a member begin with its number."""
        parts = [member.stored() for member in self.members]
        tensors = {f"{n}.{key}": own for n, p in enumerate(parts) for key, own in p.tensors.items()}
        members = [
            {"kind": member.kind, "facts": dict(part.facts)}
            for member, part in zip(self.members, parts, strict=True)
        ]
        facts = {"share": self.share, "scales": list(self.scales), "members": members}
        return Stored(tensors, facts, any(part.needs_interactions for part in parts))

    @classmethod
    def restored(
        cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], pairs: Interactions | None
    ) -> EnsembleScorer:
        """See :meth:`Scorer.restored`."""
        check_kind("", dict(facts), _FACTS)
        members, scales = facts["members"], facts["scales"]
        if len(members) != 2 or len(scales) != 2 or not all(scales) or facts["share"] > 1:
            raise InputError("an ensemble has two members, two scales above 0, and a share to 1")
        own = []
        for n, member in enumerate(members):
            kind = {own.kind: own for own in (FactorScorer, ItemItemScorer)}.get(member["kind"])
            if kind is None:
                raise InputError(f"a member must be of factors or item-item, got {member['kind']}")
            mine = {key[2:]: part for key, part in tensors.items() if key.startswith(f"{n}.")}
            own.append(kind.restored(mine, member["facts"], pairs))
        return cls(own, facts["share"], scales)

    @property
    def allow_code(self) -> bool:
        """Whether code from outside of the package may be imported to fold users in."""
        return all(getattr(own, "allow_code", True) for own in self.members)

    @allow_code.setter
    def allow_code(self, allowed: bool) -> None:
        for own in self.members:
            if isinstance(own, FactorScorer):
                own.allow_code = allowed


def _scores(member: Member, users: Ids) -> Scores:
    """Return the scores of all items for users."""
    if isinstance(member, ItemItemScorer):
        return member.user_scores(users)
    return _products(member.factors.users[torch.from_numpy(users)], member.factors.items)


def _products(rows: Tensor, items: Tensor) -> Scores:
    rows, items = rows.detach().cpu().float(), items.detach().cpu().float().T
    found = torch.empty(len(rows), items.shape[1])
    block = torch.zeros(_ROWS, rows.shape[1])
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        block[: len(some)] = some
        found[start : start + _ROWS] = (block @ items)[: len(some)]
    scores: Scores = found.numpy()
    return scores
