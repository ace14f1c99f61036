"""Ranks as threads of one process: for tests that need several and have no time for torchrun."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from robustcf._distributed import Pending, Ranks
from robustcf.data.shards import Shard

T = TypeVar("T")
# Before Python 3.12, a cached property locks its class while it is computed: ranks that are threads
# would wait for each other in it.
for _name in ("item_degrees", "warm_users"):
    Shard.__dict__[_name].lock = nullcontext()


class _Table:
    """What all threads see."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=300)
        self.places: list[Any] = [None] * size


class ThreadRanks(Ranks):
    """A rank that is a thread; all collectives go over one table."""

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        self.rank, self.size, self._table = rank, size, table

    def _all(self, mine: Any) -> list[Any]:
        self._table.places[self.rank] = mine
        self._table.barrier.wait()
        found = list(self._table.places)
        self._table.barrier.wait()
        return found

    def begin_sum(self, tensor: Tensor) -> Pending:
        total = torch.stack(self._all(tensor.clone())).sum(dim=0)
        tensor.copy_(total)
        return Pending()

    def joined(self, rows: Tensor) -> Tensor:
        return torch.cat(self._all(rows.clone()))

    def to_first(self, rows: Tensor) -> Tensor | None:
        found = self.joined(rows)
        return found if self.first else None

    def from_first(self, tensor: Tensor, source: int = 0) -> Tensor:
        return tensor.copy_(self._all(tensor.clone())[source])

    def rows_from_first(self, rows: Tensor | None, counts: list[int], like: Tensor) -> Tensor:
        whole = self._all(rows)[0]
        at = sum(counts[: self.rank])
        part: Tensor = whole[at : at + counts[self.rank]].clone()
        return part


def on_threads(size: int, work: Callable[[Ranks], T]) -> list[T]:
    """What a function returns on each of so many ranks; the first error is raised again."""
    table, found = _Table(size), dict[int, T]()
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = work(ThreadRanks(rank, size, table))
        except threading.BrokenBarrierError:
            return
        except BaseException as error:
            errors.append(error)
            table.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(size)]
