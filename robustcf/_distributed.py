"""Ranks: the processes that torchrun started, as one. In one process everything here does nothing.

*Training* holds a part of the users in each process (:mod:`robustcf.data.shards`) and passes its
:class:`Ranks` along. *Everything else* holds everything everywhere; :func:`shared` deals out blocks
of work and joins the results in the order of one process, so that the bits are the same. Without
:func:`joined`, and within :func:`alone`, nothing is shared.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

from robustcf._checks import check_integer
from robustcf.errors import InputError, RanksError

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

_Pieces = TypeVar("_Pieces", bound=Any)
_Found = TypeVar("_Found", bound=Any)

# Seconds that a process waits for the others before it gives up, unless this variable says else.
_TIMEOUT_VARIABLE = "ROBUSTCF_RANK_TIMEOUT"
_TIMEOUT = 600
# What torchrun gives to each process; other launchers may give the same.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Bits of a number that one round of the search for a median settles.
_DIGIT = 11


class Pending:
    """A sum under way; :meth:`wait` returns when it is there."""

    def __init__(self, work: Any = None) -> None:
        self._work = work

    def wait(self) -> None:
        """Return when the sum is in the tensor, or raise a RanksError."""
        if self._work is not None:
            with _reported():
                self._work.wait()


class Ranks:
    """The processes of a job. This class is a job of one, where all methods return at once.

    ``rank`` is the number of this process, from 0, and ``size`` the number of processes.
    """

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """The part of ``count`` things that is this process's: contiguous, ranks in order."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up in place over all processes; every one has the same bits afterwards."""
        self.begin_sum(tensor).wait()
        return tensor

    def begin_sum(self, tensor: Tensor) -> Pending:
        """:meth:`sum`, without waiting: the tensor must be left alone until then."""
        return Pending()

    def greatest(self, *numbers: float) -> tuple[float, ...]:
        """The largest of each number over all processes; NaN where one is NaN."""
        return numbers if self.size == 1 else tuple(self._numbers(numbers).amax(dim=0).tolist())

    def total(self, *numbers: float) -> tuple[float, ...]:
        """The sum of each number over all processes."""
        if self.size == 1:
            return numbers
        # Added in the order of ranks, so the sum is the same on every rank with every backend.
        return tuple(math.fsum(column) for column in self._numbers(numbers).T.tolist())

    def _numbers(self, numbers: tuple[float, ...]) -> Tensor:
        import torch

        return self.joined(torch.tensor([numbers], dtype=torch.float64))

    def joined(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in the order of ranks, everywhere."""
        return rows

    def joined_array(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """:meth:`joined` for numpy arrays."""
        if self.size == 1:
            return rows
        import numpy as np
        import torch

        kept = np.array(rows, order="C")  # torch wants what it could write to
        found: npt.NDArray[Any] = self.joined(torch.from_numpy(kept)).numpy()
        return found

    def to_first(self, rows: Tensor) -> Tensor | None:
        """The rows of all processes, in the order of ranks, on the first one; None elsewhere."""
        return rows

    def from_first(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Overwrite a tensor with that of the first process, or of another."""
        return tensor

    def text_from_first(self, text: str) -> str:
        """What the first process says."""
        if self.size == 1:
            return text
        import torch

        content = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8)
        length = self.from_first(torch.tensor([len(text.encode())], dtype=torch.int64))
        buffer = content if self.first else torch.zeros(max(1, int(length)), dtype=torch.uint8)
        return bytes(self.from_first(buffer).numpy()[: int(length)]).decode()

    def rows_from_first(self, rows: Tensor | None, counts: list[int], like: Tensor) -> Tensor:
        """The reverse of :meth:`to_first`: of all ``rows`` of the first process, ``counts`` each.

        ``like`` has the device, type and columns of the rows.
        """
        return _given(rows)

    def agree(self, what: str, mine: str) -> None:
        """Raise an InputError, on all processes alike, unless all have the same text."""
        if self.size == 1:
            return
        import torch

        digest = torch.tensor([list(hashlib.sha256(mine.encode()).digest())], dtype=torch.uint8)
        rows = self.joined(digest).tolist()
        others = [rank for rank, row in enumerate(rows) if row != rows[0]]
        if others:
            names = ", ".join(map(str, others))
            raise InputError(
                f"{what} must be the same on all ranks, got another on rank {names} than on rank 0"
            )

    def speaks(self) -> bool:
        """Whether this process is the first of the job to ask: the one to say that it failed."""
        return True


def _given(rows: Tensor | None) -> Tensor:
    if rows is None:
        raise InputError("the first process must have the rows that it hands out, got None")
    return rows


class _Group(Ranks):
    """Several processes, over torch.distributed."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank, self.size, self._store = rank, size, store
        self._speaks: bool | None = None

    def begin_sum(self, tensor: Tensor) -> Pending:
        from torch import distributed

        with _reported():
            return Pending(distributed.all_reduce(tensor, async_op=True))

    def joined(self, rows: Tensor) -> Tensor:
        import torch

        counts = self._counts(rows)
        if max(counts) == 0:
            return rows
        # Collectives want equal shapes: the longest part sets it.
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = self._gathered(padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _counts(self, rows: Tensor) -> list[int]:
        import torch

        own = torch.tensor([len(rows)], dtype=torch.int64, device=rows.device)
        return [int(part) for part in self._gathered(own)]

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        import torch
        from torch import distributed

        parts = [torch.empty_like(mine) for _ in range(self.size)]
        with _reported():
            distributed.all_gather(parts, mine)
        return parts

    def to_first(self, rows: Tensor) -> Tensor | None:
        import torch
        from torch import distributed

        counts = self._counts(rows)
        with _reported():
            if not self.first:
                if len(rows):
                    distributed.send(rows.contiguous(), 0)
                return None
            parts = [rows]
            for rank in range(1, self.size):
                part = rows.new_empty((counts[rank], *rows.shape[1:]))
                if counts[rank]:
                    distributed.recv(part, rank)
                parts.append(part)
        return torch.cat(parts)

    def from_first(self, tensor: Tensor, source: int = 0) -> Tensor:
        from torch import distributed

        with _reported():
            distributed.broadcast(tensor, source)
        return tensor

    def rows_from_first(self, rows: Tensor | None, counts: list[int], like: Tensor) -> Tensor:
        from torch import distributed

        mine = like.new_empty((counts[self.rank], *like.shape[1:]))
        with _reported():
            if not self.first:
                if len(mine):
                    distributed.recv(mine, 0)
                return mine
            every, at = _given(rows), [0, *accumulate(counts)]
            for rank in range(1, self.size):
                if counts[rank]:
                    distributed.send(every[at[rank] : at[rank + 1]].to(like).contiguous(), rank)
        mine.copy_(every[: counts[0]])
        return mine

    def speaks(self) -> bool:
        # torchrun's own process keeps the store, so that it outlives each of ours.
        if self._speaks is None:
            try:
                self._speaks = int(self._store.add("robustcf/failed", 1)) == 1
            except Exception:
                self._speaks = self.first
        return self._speaks


@contextmanager
def _reported() -> Iterator[None]:
    """What the backends raise, in words."""
    try:
        yield
    except (InputError, RanksError):
        raise
    except (RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RanksError(
            "another process of this job has ended or does not answer, so this one ends too "
            f"({reason}); see what that one said; what was finished before is kept"
        ) from error


_ONE = Ranks()
_current: ContextVar[Ranks] = ContextVar("ranks", default=_ONE)
# The processes of the job that this one was started for, whether it shares its work now or not.
_job: list[Ranks] = [_ONE]


def current() -> Ranks:
    """The processes that this one shares its work with: itself alone, unless in :func:`joined`."""
    return _current.get()


def job() -> Ranks:
    """The processes of this one's job, whether it shares its work now or not; the first writes."""
    return _job[-1]


@contextmanager
def alone() -> Iterator[None]:
    """Share nothing meanwhile: for what processes do with different data, or one of them does."""
    token = _current.set(_ONE)
    try:
        yield
    finally:
        _current.reset(token)


def shared(pieces: _Pieces, work: Callable[[_Pieces], _Found]) -> _Found:
    """Return ``work(pieces)``, each of the current processes doing a contiguous part of it.

    ``pieces`` are users, or blocks of them where other blocks would round differently. ``work``
    gets some of them, perhaps none, and returns an array, or arrays by name, with rows in order.
    """
    team = current()
    with alone():
        found = work(pieces[team.share(len(pieces))])
    if isinstance(found, dict):
        return cast(_Found, {name: team.joined_array(rows) for name, rows in found.items()})
    return cast(_Found, team.joined_array(found))


def launched() -> int:
    """How many processes a launcher started for this job, by the environment; 1 for none."""
    if not all(name in os.environ for name in _VARIABLES):
        return 1
    return check_integer("WORLD_SIZE", _number("WORLD_SIZE"), 1)


def restarts() -> tuple[int, int]:
    """How often torchrun has started this job again, and how often it may."""
    return _number("TORCHELASTIC_RESTART_COUNT"), _number("TORCHELASTIC_MAX_RESTARTS")


def local_rank() -> int:
    """The number of this process among those on its machine: which GPU is its own."""
    return _number("LOCAL_RANK")


def timeout() -> int:
    """Seconds that a process waits for the others."""
    return check_integer(_TIMEOUT_VARIABLE, _number(_TIMEOUT_VARIABLE, _TIMEOUT), 1, 10**6)


def _number(name: str, default: int = 0) -> int:
    value = os.environ.get(name, default)
    try:
        return int(value)
    except ValueError as error:
        raise InputError(
            f"the environment variable {name} must be a whole number, got {value!r}: start the "
            "processes by torchrun"
        ) from error


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes that torchrun started, until the end of the block; without, do nothing."""
    if launched() == 1:
        yield _ONE
        return
    import torch
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    wait = datetime.timedelta(seconds=timeout())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=wait)))
        store.set_timeout(wait)
        # torchrun may keep its store when it starts processes again: addresses of those that are
        # gone must not be found there.
        attempt = f"robustcf/attempt/{restarts()[0]}"
        store = distributed.PrefixStore(attempt, store)  # type: ignore[attr-defined]
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=wait
        )
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = " ".join(str(error).split())
        if "EADDRINUSE" in reason or "address already in use" in reason:
            raise InputError(
                f"{where} is in use: give torchrun another --master-port, or --rdzv-endpoint HOST:0"
            ) from error
        raise RanksError(
            f"rank {os.environ['RANK']} did not find all {launched()} processes of the job at "
            f"{where} within {timeout()} s ({reason[:200]}): check that they run and the address"
        ) from error
    token = _current.set(_Group(rank, size, store))
    _job.append(_current.get())  # for as long as the process lives: it may still have to speak
    try:
        yield _current.get()
    finally:
        _current.reset(token)
        # After a failure the others may be gone.
        with suppress(RuntimeError, ValueError):
            distributed.destroy_process_group()


@dataclass(frozen=True)
class Rows:
    """Which rows of a tall matrix this process has: those in ``[start, stop)`` out of ``count``."""

    start: int
    stop: int
    count: int
    ranks: Ranks

    @classmethod
    def of(cls, count: int, ranks: Ranks | None = None) -> Rows:
        """The share of these processes, by default the current ones, of so many rows."""
        team = current() if ranks is None else ranks
        mine = team.share(count)
        return cls(mine.start, mine.stop, count, team)

    @property
    def whole(self) -> bool:
        """Whether there is one process, which has all rows."""
        return self.ranks.size == 1

    @property
    def counts(self) -> list[int]:
        """Rows per process."""
        edges = [rank * self.count // self.ranks.size for rank in range(self.ranks.size + 1)]
        return [stop - start for start, stop in pairwise(edges)]

    def own(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Of some numbers of rows, where those are that are here, and their numbers here."""
        here = ((numbers >= self.start) & (numbers < self.stop)).nonzero()[:, 0]
        return here, numbers[here] - self.start

    def fetch(self, mine: Tensor, numbers: Tensor) -> Tensor:
        """Some rows by their numbers in the whole, everywhere; costs one sum of as many rows."""
        if self.whole:
            return mine[numbers]
        found = mine.new_zeros((len(numbers), *mine.shape[1:]))
        here, local = self.own(numbers)
        found[here] = mine[local]
        return self.ranks.sum(found)

    def leaders(self, scores: Tensor, count: int) -> Tensor:
        """Numbers of the rows with the largest scores, largest first, everywhere."""
        best = scores.topk(min(count, len(scores)))
        if self.whole:
            return best.indices
        values = self.ranks.joined(best.values)
        numbers = self.ranks.joined(best.indices + self.start)
        return numbers[values.topk(min(count, len(values))).indices]

    def median(self, values: Tensor) -> float:
        """The median of non-negative numbers, one per row; the lower of two, NaN where one is NaN.

        Exact: eleven binary digits at a time are settled, at the cost of six sums of 2,048 counts.
        """
        import torch

        if self.count == 0:
            return 0.0
        if self.whole:
            return float(values.median())
        wide = values.double()
        if self.ranks.total(float(wide.isnan().sum()))[0] > 0:
            return float("nan")
        # The order of such numbers is that of their bits.
        bits = wide.abs().view(torch.int64)
        place, known = (self.count - 1) // 2, 0
        for low in range(64 - 64 % _DIGIT, -1, -_DIGIT):
            digits = (bits >> low) & (2**_DIGIT - 1)
            counts = self.ranks.sum(torch.bincount(digits, minlength=2**_DIGIT))
            ends = counts.cumsum(0)
            digit = int(torch.searchsorted(ends, place, right=True))
            place -= int(ends[digit] - counts[digit])
            known |= digit << low
            bits = bits[digits == digit]
        return float(torch.tensor(known, dtype=torch.int64).view(torch.float64))
