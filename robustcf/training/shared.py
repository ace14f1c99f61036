"""A checkpoint of several ranks: one file, as one process writes it, for any number of ranks."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from robustcf._distributed import Rows
from robustcf._io.files import REMOVE
from robustcf._io.reading import parse_json
from robustcf.errors import InputError
from robustcf.training.loop import Checkpoint


class SharedCheckpoint:
    """Where ranks keep their state together: the first one gathers and writes, reads and hands out.

    All ranks call every method. What is written is what one process would write, so a training
    goes on with any number of ranks, or in one process.

    Args:
        kept: where the first rank keeps it, or None for nowhere; None on the others.
        rows: the users of this rank.

    Cost: on the first rank, the state of all users at once, for as long as it writes or reads.
    """

    def __init__(self, kept: Checkpoint | None, rows: Rows) -> None:
        """Keep both."""
        self.kept, self.rows = (kept if rows.ranks.first else None), rows

    def path(self, stage: str) -> Any:
        """The place of a stage's state, for a message."""
        place = getattr(self.kept, "path", "the checkpoint of {}".format)
        return place(stage)

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state saved last for this stage, with this rank's users of it, or None."""
        ranks = self.rows.ranks
        found = None if self.kept is None else self.kept.load(stage)
        told = "" if found is None else json.dumps(self._told(stage, *found))
        told = ranks.text_from_first(told)
        if not told:
            return None
        facts = parse_json(told)
        tensors: dict[str, Tensor] = {}
        for name, (kind, shape, by_user) in facts["tensors"].items():
            whole = found[0][name] if found is not None else None
            like = torch.empty(shape, dtype=getattr(torch, kind)) if whole is None else whole
            if by_user:
                tensors[name] = ranks.rows_from_first(whole, self.rows.counts, like[:0])
            else:
                tensors[name] = ranks.from_first(like.contiguous())
        return tensors, facts["state"]

    def _told(self, stage: str, tensors: dict[str, Tensor], state: dict[str, Any]) -> Any:
        """What the others must know of a state before they get theirs of it."""
        kinds = {}
        for name, tensor in tensors.items():
            by_user = _by_user(name)
            if by_user and (tensor.ndim == 0 or len(tensor) != self.rows.count):
                raise InputError(
                    f"{self.path(stage)}: the tensor {name} must have {self.rows.count} rows, got "
                    f"the shape {tuple(tensor.shape)}; {REMOVE}"
                )
            shape = [0, *tensor.shape[1:]] if by_user else list(tensor.shape)
            kinds[name] = [str(tensor.dtype).removeprefix("torch."), shape, by_user]
        return {"tensors": kinds, "state": state}

    def save(
        self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any], *, final: bool
    ) -> None:
        """Replace the stage's state, all or nothing; unless final, the first may find it too early.

        Nobody goes on before it is written: what all have reached is kept, or what all had before.
        """
        ranks = self.rows.ranks
        due = getattr(self.kept, "due", None)
        wanted = self.kept is not None and (final or due is None or due())
        if ranks.text_from_first("due" if wanted else "") == "":
            return
        whole: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            part = tensor.detach().cpu()
            joined = ranks.to_first(part) if _by_user(name) else part
            if joined is not None:
                whole[name] = joined
        if self.kept is not None:
            self.kept.save(stage, whole, facts, final=True)
        ranks.text_from_first("written")

    def flush(self) -> None:
        """Write nothing: ranks stop at different places, and the last checkpoint is kept."""


def _by_user(name: str) -> bool:
    """Whether a tensor of a state has one row a user."""
    return name in ("users", "best.users") or name.startswith("adam.users.")
