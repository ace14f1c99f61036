"""How an epoch is cut into steps: blocks of users (``rows``), or sampled pairs (``pairs``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustcf._checks import check_choice, check_numbers
from robustcf._randomness import stream
from robustcf.data.shards import Shard
from robustcf.objectives.base import Batch, Ids, Objective

BATCHINGS: tuple[str, ...] = ("rows", "pairs")

# Prepared blocks are kept up to this many entries (20 bytes each), others made in each step.
_KEEP_ENTRIES = 12_000_000


@dataclass(frozen=True)
class BatchConfig:
    """The users or pairs per step.

    Args:
        kind: ``rows``: a block of users against all items (or a shared sample of them);
            ``pairs``: the published procedure, sampled negatives for each positive.
        block_users: users per step (rows).
        batch_size: pairs per step (pairs).
    """

    kind: str = "rows"
    block_users: int = 256
    batch_size: int = 1024

    def __post_init__(self) -> None:
        check_choice("batching", self.kind, BATCHINGS)
        check_numbers(self)


class Batches:
    """The batches of every epoch of an objective, in an order that depends on the seed alone.

    Of several ranks (:mod:`robustcf.data.shards`), all draw the batches of one process, and each
    takes its own users or pairs of them; some batches may be empty.

    Example:
        >>> from robustcf.data import checkerboard
        >>> from robustcf.objectives import BPR
        >>> batches = Batches(BPR(checkerboard().train), BatchConfig(block_users=8))
        >>> [len(batch.users) for batch in batches.epoch(0)]
        [7, 7, 6]
    """

    def __init__(
        self, objective: Objective[Any], config: BatchConfig | None = None, *, seed: int = 0
    ) -> None:
        self.objective, self.seed = objective, seed
        self.config = BatchConfig() if config is None else config
        shard = objective.shard
        warm = stream(seed, "blocks").permutation(shard.warm_users)
        count = -(-len(warm) // self.config.block_users)
        self.blocks = [_own(np.sort(part), shard) for part in np.array_split(warm, count)]
        self._prepared: list[Any] | None = None

    @property
    def by_rows(self) -> bool:
        """Whether a step is a block of users, each visited once per epoch."""
        return self.config.kind == "rows"

    @property
    def n_steps(self) -> int:
        """Steps per epoch."""
        if self.by_rows:
            return len(self.blocks)
        return -(-self.objective.shard.n_pairs // self.config.batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, which depend on the seed and the number only."""
        rng = stream(self.seed, "batches", str(number))
        if not self.by_rows:
            yield from self._pair_batches(rng)
            return
        if self._prepared is None:
            # All before the first step, so that small tensors do not fragment the heap.
            self._prepared = self._prepare()
        for block in rng.permutation(len(self.blocks)).tolist():
            users = self.objective.tensor(self.blocks[block], torch.int64)
            negatives = self.objective.shared_negatives(rng)
            yield Batch(users, negatives=negatives, prepared=self._prepared[block])

    def _prepare(self) -> list[Any]:
        kept: list[Any] = [None] * len(self.blocks)
        entries = 0
        for number, users in enumerate(self.blocks):
            prepared, size = self.objective.prepare(users)
            entries += size
            if entries > _KEEP_ENTRIES:
                break
            kept[number] = prepared
        return kept

    def _pair_batches(self, rng: np.random.Generator) -> Iterator[Batch]:
        pairs, tensor, shard = self.objective.pairs, self.objective.tensor, self.objective.shard
        order = rng.permutation(shard.n_pairs)
        for start in range(0, len(order), self.config.batch_size):
            chosen = order[start : start + self.config.batch_size] - shard.first_pair
            # The pairs of a rank are contiguous.
            mine = np.flatnonzero((chosen >= 0) & (chosen < len(pairs)))
            users, items = pairs.users[chosen[mine]], pairs.items[chosen[mine]]
            negatives = self._negatives(rng, len(chosen), mine, users)
            yield Batch(
                tensor(users, torch.int64),
                tensor(items, torch.int64),
                None if negatives is None else tensor(negatives, torch.int64),
            )

    def _negatives(
        self, rng: np.random.Generator, count: int, mine: Ids, users: npt.NDArray[Any]
    ) -> Ids | None:
        """Negatives for these of ``count`` pairs, drawn as if for all of them."""
        if len(mine) == count or len(self.objective.pairs) == 0:
            return self.objective.pair_negatives(rng, users)
        # The draws depend on the number of pairs alone: any user stands in for other ranks' users.
        all_users = np.full(count, self.objective.pairs.users[0])
        all_users[mine] = users
        drawn = self.objective.pair_negatives(rng, all_users)
        return None if drawn is None else drawn[mine]


def _own(users: npt.NDArray[Any], shard: Shard) -> npt.NDArray[Any]:
    """Of ascending ids of users, those of a shard, by their numbers in it."""
    if shard.rows.whole:
        return users
    begin, end = np.searchsorted(users, (shard.rows.start, shard.rows.stop)).tolist()
    return users[begin:end] - shard.rows.start
