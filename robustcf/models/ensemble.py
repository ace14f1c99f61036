"""Ensemble of two recommenders: the sum of their scores, each divided by its spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from robustcf._checks import check_number
from robustcf._io.schema import NAME, NOT_NEGATIVE, OBJECT, check_kind, list_of, record
from robustcf._registry import MODELS, SCORERS, TRAINING
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.metrics.topk import user_ids
from robustcf.models.base import FitAtOnce
from robustcf.models.factorized import FactorScorer
from robustcf.models.item_item import ItemItemScorer, best, score_blocks
from robustcf.models.scorer import Ids, Ranking, Scorer, Stored

if TYPE_CHECKING:
    from torch import Tensor

Scores = npt.NDArray[np.float32]
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


class Ensemble(FitAtOnce[EnsembleConfig]):
    """Two models that are fit to the same pairs, see :class:`EnsembleScorer`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> Ensemble(checkerboard().train).scorer().kind
        'ensemble'
    """

    name = "ensemble"
    Config = EnsembleConfig
    has_embeddings = False

    def _start(self) -> tuple[Tensor, Tensor]:
        if not self.shard.rows.whole:
            raise InputError(f"{self.name} is fit by one process: start it without torchrun")
        fit, how = TRAINING["scorer"], {"seed": self.seed, "device": self.device}
        members = [fit(self.train, dict(settings), **how) for settings in self.config.members]
        self._scorer = EnsembleScorer(members, self.config.share)
        return torch.empty(self.train.n_users, 0), torch.empty(self.train.n_items, 0)

    def scorer(self) -> EnsembleScorer:
        """Return the scorer of the sum."""
        return self._scorer

    def factors(self) -> NoReturn:
        """Raise the error of a model without embeddings."""
        self._scorer.no_embeddings()


class EnsembleScorer(Scorer):
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
        for own in members:
            if not isinstance(own, FactorScorer | ItemItemScorer):
                raise InputError(f"a member must be of factors or item-item, got {own.kind!r}")
        self.members, self.share = tuple(members), share
        self.n_users, self.n_items = sizes.pop()
        if scales is None:
            some = np.linspace(0, self.n_users - 1, min(_SAMPLE, self.n_users)).astype(np.int64)
            scales = [self._scale(own, some) for own in members]
        self.scales = tuple(scales)

    def with_share(self, share: float) -> EnsembleScorer:
        """Return the same members with another share."""
        return EnsembleScorer(self.members, share, self.scales)

    def _scale(self, member: Scorer, users: Ids) -> float:
        parts = score_blocks(len(users), self.n_items)
        squares = sum(float(_scores(member, users[part]).var(axis=1).sum()) for part in parts)
        return (squares / len(users)) ** 0.5 or 1.0

    def _sum(self, first: Scores, second: Scores) -> Scores:
        first *= (1.0 - self.share) / self.scales[0]
        second *= self.share / self.scales[1]
        first += second
        return first

    def top(
        self, users: Ids, k: int, seen: Interactions | None = None, candidates: Ids | None = None
    ) -> Ranking:
        """See :meth:`Scorer.top`."""
        ids = user_ids(users, self.n_users)
        found = []
        for part in score_blocks(len(ids), self.n_items):
            own = self._sum(*(_scores(member, ids[part]) for member in self.members))
            if seen is not None:
                own[seen.csr()[ids[part]].nonzero()] = -np.inf
            found.append(best(own, k, candidates))
        if not found:
            found = [best(np.empty((0, self.n_items), dtype=np.float32), k, candidates)]
        return Ranking(*(np.concatenate(own) for own in zip(*found, strict=True)))

    def top_for_history(
        self,
        history: Ids,
        k: int,
        pairs: Interactions,
        *,
        filter_seen: bool = True,
        candidates: Ids | None = None,
    ) -> Ranking:
        """See :meth:`Scorer.top_for_history`."""
        parts = []
        for member in self.members:
            if isinstance(member, FactorScorer):
                parts.append(_products(member.embed(history, pairs)[None, :], member.factors.items))
            elif isinstance(member, ItemItemScorer):
                parts.append(member.history_scores(history))
        own = self._sum(*parts)
        if filter_seen:
            own[:, history] = -np.inf
        return best(own, k, candidates)

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
            if member["kind"] not in (FactorScorer.kind, ItemItemScorer.kind):
                raise InputError(f"a member must be of factors or item-item, got {member['kind']}")
            mine = {key[2:]: part for key, part in tensors.items() if key.startswith(f"{n}.")}
            own.append(SCORERS[member["kind"]].restored(mine, member["facts"], pairs))
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


def _scores(member: Scorer, users: Ids) -> Scores:
    """Return the scores of all items for users."""
    if isinstance(member, ItemItemScorer):
        return member.scores(member.pairs.csr()[users])
    if not isinstance(member, FactorScorer):
        member.no_embeddings()
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
