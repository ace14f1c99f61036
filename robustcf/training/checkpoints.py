"""The state of a fit between epochs, and its checkpoint, also of several ranks in one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._distributed import Rows
from robustcf._io import schema
from robustcf._io.files import REMOVE
from robustcf._io.reading import parse_json
from robustcf._io.schema import NUMBER, list_of, nullable, record, whole
from robustcf.errors import InputError
from robustcf.factors import Factors

Values = npt.NDArray[np.float64]
Tensors = Mapping[str, Tensor]

_ROW_KIND = record(
    {"stage": schema.TEXT, "epoch": whole(1), "loss": NUMBER, "seconds": schema.NOT_NEGATIVE},
    {
        **dict.fromkeys(("penalty", "two_to_inf", "attacked_loss"), NUMBER),
        "valid_ndcg@10": nullable(NUMBER),
    },
    others=schema.ABSENT,
)
_STATE_KIND = record(
    {
        "history": list_of(_ROW_KIND),
        "since_best": whole(),
        "worse": whole(),
        "best": nullable(list_of(NUMBER, 2, 2)),
    }
)
# A fit that is neither better nor clearly worse ends after this many times the patience.
_PLATEAU = 3


class Checkpoint(Protocol):
    """Storage for the state of a fit between epochs, so that it can be resumed after a kill."""

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the state saved last for this stage, or None."""

    def save(
        self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any], *, final: bool
    ) -> None:
        """Replace the stage's state atomically; unless final, it may skip an early one."""

    def flush(self) -> None:
        """Write the last state if it was skipped and can still be written."""


def place_of(checkpoint: Checkpoint | None, stage: str) -> Any:
    """Return the place of a stage's state, for a message."""
    return getattr(checkpoint, "path", "the checkpoint of {}".format)(stage)


@dataclass
class FitState:
    """The epochs of a fit so far, and the best of them by validation."""

    history: list[dict[str, Any]] = field(default_factory=list)
    best: tuple[float, int, Factors] | None = None
    since_best: int = 0  # validations
    worse: int = 0  # validations since the best that are clearly worse
    users: Values | None = None  # values per user at the best, if known

    @classmethod
    def restored(cls, tensors: Tensors, facts: Mapping[str, Any]) -> FitState:
        """Return the state of a checkpoint; raise InputError if it is damaged."""
        schema.check_kind("", facts, _STATE_KIND)
        if facts["worse"] > facts["since_best"]:
            raise InputError(
                f"worse must be at most since_best, {facts['since_best']}, got {facts['worse']}"
            )
        best = None
        if facts["best"] is not None:
            value, epoch = facts["best"]
            for name in ("users", "items"):
                check_like(f"best.{name}", tensors.get(f"best.{name}"), tensors[name])
            best = value, int(epoch), Factors(tensors["best.users"], tensors["best.items"])
        users = tensors.get("best.values")
        if users is not None:
            like = torch.zeros(len(users) if users.ndim else 0, dtype=torch.float64)
            check_like("best.values", users, like)
            if not bool(torch.isfinite(users).all()):
                raise InputError("the tensor best.values must be finite")
        values = None if users is None else users.numpy()
        return cls(facts["history"], best, facts["since_best"], facts["worse"], values)

    def validate(
        self, at: Callable[[Factors], float | Values], factors: Factors, epoch: int
    ) -> float:
        """Evaluate on validation data and keep the factors if they are the best so far."""
        found = at(factors)
        users = found if isinstance(found, np.ndarray) else None
        value = float(np.mean(found))
        if self.best is None or value > self.best[0]:
            self.best, self.users = (value, epoch, factors), users
            self.since_best = self.worse = 0
            return value
        self.since_best += 1
        gaps = None
        if users is not None and self.users is not None and len(users) == len(self.users):
            gaps = users - self.users
        if gaps is None or gaps.mean() <= -gaps.std() / len(gaps) ** 0.5:
            self.worse += 1
        return value

    def out_of(self, patience: int) -> bool:
        """Return whether validations were worse for long enough, or not better for too long."""
        ended = self.worse >= patience or self.since_best >= _PLATEAU * patience
        return patience > 0 and ended

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the facts for a checkpoint."""
        facts = {key: getattr(self, key) for key in ("history", "since_best", "worse")}
        if self.best is None:
            return {}, {**facts, "best": None}
        *best, factors = self.best
        tensors = {"best.users": factors.users, "best.items": factors.items}
        if self.users is not None:
            tensors["best.values"] = torch.from_numpy(self.users)
        return tensors, {**facts, "best": best}


def check_like(name: str, found: Tensor | None, mine: Tensor, *, shape: bool = True) -> None:
    """Raise unless a tensor of a checkpoint fits; another shape might be broadcast silently."""
    good = found is not None and (found.dtype, found.ndim) == (mine.dtype, mine.ndim)
    if not good or (shape and found is not None and found.shape != mine.shape):
        got = "nothing" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
        raise InputError(
            f"the tensor {name} must be {mine.dtype} of shape {tuple(mine.shape)}, got {got}"
        )


class SharedCheckpoint:
    """The checkpoint of several ranks: the first rank reads, distributes, gathers and writes.

    All ranks call every method. The file is that of one process, so a training is resumed with any
    number of ranks.

    Args:
        kept: the first rank's checkpoint, or None for none; None on the others.
        rows: the users of this rank.

    Cost: on the first rank, the state of all users at once while it writes or reads.
    """

    def __init__(self, kept: Checkpoint | None, rows: Rows) -> None:
        self.kept, self.rows = (kept if rows.ranks.first else None), rows

    def path(self, stage: str) -> Any:
        """Return the place of a stage's state, for a message."""
        return place_of(self.kept, stage)

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the state saved last for this stage, with this rank's users, or None."""
        ranks = self.rows.ranks
        found = None if self.kept is None else self.kept.load(stage)
        described = "" if found is None else json.dumps(self._described(stage, *found))
        described = ranks.text_from_first(described)
        if not described:
            return None
        facts = parse_json(described)
        tensors: dict[str, Tensor] = {}
        for name, (kind, shape) in facts["tensors"].items():
            mine = found[0][name] if found is not None else None
            like = torch.empty(shape, dtype=getattr(torch, kind)) if mine is None else mine
            if _by_user(name):
                tensors[name] = ranks.rows_from_first(mine, self.rows.counts, like[:0])
            else:
                tensors[name] = ranks.from_first(like.contiguous())
        return tensors, facts["state"]

    def _described(self, stage: str, tensors: Tensors, state: dict[str, Any]) -> dict[str, Any]:
        kinds = {}
        for name, tensor in tensors.items():
            by_user = _by_user(name)
            if by_user and (tensor.ndim == 0 or len(tensor) != self.rows.count):
                raise InputError(
                    f"{self.path(stage)}: the tensor {name} must have {self.rows.count} rows, got "
                    f"the shape {tuple(tensor.shape)}; {REMOVE}"
                )
            shape = [0, *tensor.shape[1:]] if by_user else list(tensor.shape)
            kinds[name] = [str(tensor.dtype).removeprefix("torch."), shape]
        return {"tensors": kinds, "state": state}

    def save(
        self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any], *, final: bool
    ) -> None:
        """Replace the stage's state when the first rank says so; all ranks wait for the write."""
        ranks = self.rows.ranks
        due = getattr(self.kept, "due", None)
        wanted = self.kept is not None and (final or due is None or due())
        if ranks.text_from_first("due" if wanted else "") == "":
            return
        joined: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            part = tensor.detach().cpu()
            every = ranks.to_first(part) if _by_user(name) else part
            if every is not None:
                joined[name] = every
        if self.kept is not None:
            self.kept.save(stage, joined, facts, final=True)
        ranks.text_from_first("written")

    def flush(self) -> None:
        """Write nothing: ranks stop at different places, and the last checkpoint is kept."""


def _by_user(name: str) -> bool:
    return name in ("users", "best.users") or name.startswith("adam.users.")
