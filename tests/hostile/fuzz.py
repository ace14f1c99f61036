"""The fuzzer: spoilt files, and fake accounts against certificates; two numbers name a case.

``python -m tests.hostile.fuzz --cases 1000 --seed 0`` tries cases 0 to 999 of seed 0;
``--case 17`` tries that one alone and shows its traceback. A case passes when it is read, or
refused by a clear error; one of ``votes`` when no injection breaks a certificate
(:mod:`tests.hostile.votes`). It fails on any other exception or warning, beyond 5 s of processor
time, when it waits for longer than 30 s, beyond 1 GB of memory, or when it ends the process.

Cases run in processes of their own. The kernel ends one that takes too long,
and another process continues after the case that it was at.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch

from robustcf.errors import RobustcfError
from tests.hostile.folders import FOLDERS, Workshop
from tests.hostile.readers import Reader, readers_by_name
from tests.hostile.votes import try_votes

# Cases of a process before it makes room for a fresh one.
SHIFT = 2000
# A reader takes a millisecond, a command some twenty: of a hundred cases, so many are commands.
COMMANDS = 20
# Certificates of votes, by who votes; of a hundred cases, so many, each a tenth of a second.
VOTES = {"votes of accounts": "accounts", "votes of groups": "groups"}
CERTIFICATES = 4


@dataclass
class Case:
    """What a case did."""

    number: int  # with the seed, all that is needed to repeat it
    target: str  # the reader, or the kind of folder
    what: str = ""  # was spoilt, where it can be told
    outcome: str = "read"  # or refused, certified, failed
    fault: str = ""


@dataclass
class Outcome:
    """What came of many cases."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[Case] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}, case {case.number} ({case.target}; {case.what}): {case.fault}\n"
            f"  again: make fuzz SEED={self.seed} CASE={case.number}"
            for case in self.failed
        ]
        told = ", ".join(f"{count:,} {words}" for words, count in sorted(self.counts.items()))
        return "\n".join([*lines, f"{self.cases:,} cases of seed {self.seed}: {told}"])


@dataclass(frozen=True)
class Limits:
    """What a case may take: processor time, time and memory."""

    seconds: float = 5.0
    wait: float = 30.0
    bytes: int = 1 << 30


class Fuzzer:
    """Tries cases in an empty folder.

    Args:
        home: the folder.
        wanted: says of the name of a target whether its cases are tried.
        planted: other readers than those of the package, to try the fuzzer itself.
        limits: what a case may take.
    """

    def __init__(
        self,
        home: Path,
        *,
        wanted: Callable[[str], bool] = lambda name: True,
        planted: dict[str, Reader] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.home, self.limits, self.wanted = home, limits or Limits(), wanted
        self.readers = readers_by_name() if planted is None else planted
        self.folders = list(FOLDERS) if planted is None else []
        self.workshop = Workshop(home / "workshop")
        needed = {FOLDERS[name].name for name in self.folders if wanted(name)}
        if needed:
            self.workshop.make(needed)

    def target_of(self, rng: Random) -> str:
        """The target of a case; which ones are wanted has no influence on it."""
        number = rng.randrange(100) if self.folders else 100
        kinds = [*VOTES] if number >= 100 - CERTIFICATES and self.folders else [*self.readers]
        return rng.choice(self.folders if number < COMMANDS else kinds)

    def numbers(self, seed: int, cases: int) -> list[int]:
        """The numbers below ``cases`` whose targets are wanted."""
        return [
            number
            for number in range(cases)
            if self.wanted(self.target_of(Random(f"{seed} {number}")))
        ]

    def try_case(self, seed: int, number: int) -> Case:
        """One case, within this process."""
        rng = Random(f"{seed} {number}")
        case = Case(number, self.target_of(rng))
        # Code that draws from the global generators of Python or torch gets the same again.
        random.seed(number)
        work = self.home / f"work-{os.getpid()}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # An attack without a direction warns, which is not a fault.
                warnings.filterwarnings("ignore", "the gradient of .* is zero everywhere")
                if case.target in VOTES:
                    case.what, case.outcome = try_votes(rng, VOTES[case.target]), "certified"
                elif case.target in self.readers:
                    self._read(rng, case, work)
                else:
                    folder = FOLDERS[case.target]
                    case.what, case.outcome, case.fault = self.workshop.try_one(rng, folder, work)
        except BaseException as error:
            case.outcome = "failed"
            case.fault = "".join(traceback.format_exception(error, limit=-4)).strip()
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return case

    def _read(self, rng: Random, case: Case, work: Path) -> None:
        reader = self.readers[case.target]
        path = work / f"a{reader.suffix}"
        path.write_bytes(reader.spoilt(rng))
        try:
            reader.read(path)
        except (RobustcfError, OSError) as error:
            case.outcome = "refused"
            if not isinstance(error, RobustcfError) and error.filename is None:
                raise
            if problem := _unclear(error):
                case.outcome, case.fault = "failed", problem

    # --- processes --------------------------------------------------------------------------

    def run(
        self, seed: int, cases: int, *, jobs: int = 1, say: Callable[[str], Any] = str
    ) -> Outcome:
        """Try many cases, in processes of their own."""
        outcome = Outcome(seed)
        numbers = self.numbers(seed, cases)
        shifts = [numbers[start : start + SHIFT] for start in range(0, len(numbers), SHIFT)]
        at_work: dict[int, _Shift] = {}
        while shifts or at_work:
            while shifts and len(at_work) < jobs:
                shift = _Shift(self, seed, shifts.pop(0))
                at_work[shift.process] = shift
            process, status = os.waitpid(-1, 0)
            shift = at_work.pop(process)
            finished, failed, stopped_at = shift.collect(status)
            outcome.counts += finished
            outcome.failed += failed
            for case in failed:
                say(str(Outcome(seed, failed=[case])).rsplit("\n", 1)[0])
            if stopped_at is not None:
                rest = [number for number in shift.numbers if number > stopped_at]
                shifts[:0] = [rest] if rest else []
        outcome.failed.sort(key=lambda case: case.number)
        return outcome


class _Shift:
    """A process that tries some cases."""

    def __init__(self, fuzzer: Fuzzer, seed: int, numbers: list[int]) -> None:
        self.fuzzer, self.seed, self.numbers = fuzzer, seed, numbers
        self.at = mmap.mmap(-1, 8)  # shared: the case that is being tried
        self._note(numbers[0])
        self.log = fuzzer.home / f"log-{numbers[0]}"
        self.process = os.fork()
        if self.process == 0:
            code = 1
            try:
                self._work()
                code = 0
            finally:
                os._exit(code)

    def _note(self, number: int) -> None:
        self.at.seek(0)
        self.at.write(number.to_bytes(8, "little"))

    def _work(self) -> None:
        limits = self.fuzzer.limits
        trace = self.log.with_suffix(".trace").open("w")
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)  # which ends the process
            faulthandler.register(number, trace, chain=True)
        faulthandler.enable(trace)
        # Beyond this it gets a MemoryError, and the machine stays usable.
        size = _status("VmSize") + 3 * limits.bytes
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with self.log.open("w") as log:
            for number in self.numbers:
                self._note(number)
                before = _status("VmRSS")
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
                signal.setitimer(signal.ITIMER_PROF, limits.seconds)
                signal.setitimer(signal.ITIMER_REAL, limits.wait)
                case = self.fuzzer.try_case(self.seed, number)
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
                grown = _status("VmHWM") - before
                if grown > limits.bytes:
                    case.outcome = "failed"
                    case.fault += f" took {grown / (1 << 30):.2f} GB of memory"
                log.write(json.dumps(asdict(case)) + "\n")
                log.flush()

    def collect(self, status: int) -> tuple[Counter[str], list[Case], int | None]:
        """How many cases ended how, those that failed, and at which the process ended."""
        cases = [Case(**json.loads(line)) for line in self.log.read_text().splitlines()]
        stopped_at = None
        if status != 0:
            stopped_at = int.from_bytes(self.at[:8], "little")
            target = self.fuzzer.target_of(Random(f"{self.seed} {stopped_at}"))
            cases = [case for case in cases if case.number != stopped_at]
            cases.append(Case(stopped_at, target, "", "failed", self._end(status)))
        for left in (self.log, self.log.with_suffix(".trace")):
            left.unlink(missing_ok=True)
        shutil.rmtree(self.fuzzer.home / f"work-{self.process}", ignore_errors=True)
        failed = [case for case in cases if case.outcome == "failed"]
        return Counter(case.outcome for case in cases), failed, stopped_at

    def _end(self, status: int) -> str:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        limits = self.fuzzer.limits
        words = {
            signal.SIGPROF: f"it took more than {limits.seconds:g} s of processor time",
            signal.SIGALRM: f"it waited for more than {limits.wait:g} s",
        }.get(number, f"it ended the process (signal {number}, status {status})")
        trace = self.log.with_suffix(".trace")
        return f"{words}\n{trace.read_text()[:1500] if trace.exists() else ''}".strip()


def _unclear(error: BaseException) -> str | None:
    """What keeps an error from being a clear one, or None."""
    message = str(error)
    if not message.strip():
        return f"{type(error).__name__} without a message"
    if len(message) > 4000:
        return f"a message of {len(message):,} characters: {message[:200]}"
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, MemoryError):
            return f"it asked for more memory than there may be: {inner}"
        inner = inner.__cause__ or inner.__context__
    return None


def _status(name: str) -> int:
    """A figure of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def main(words: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--only", default="", help="targets whose names contain this")
    parser.add_argument("--readers", action="store_true", help="readers alone, and no commands")
    asked = parser.parse_args(words)

    def wanted(name: str) -> bool:
        return asked.only in name and not (asked.readers and (name in FOLDERS or name in VOTES))

    torch.set_num_threads(1)
    os.environ.pop("ROBUSTCF_DATA", None)
    with tempfile.TemporaryDirectory(prefix="robustcf-fuzz-") as home:
        os.environ["ROBUSTCF_CACHE"] = f"{home}/cache"
        fuzzer = Fuzzer(Path(home), wanted=wanted)
        if asked.case is not None:
            case = fuzzer.try_case(asked.seed, asked.case)
            print(json.dumps(asdict(case), indent=2).replace("\\n", "\n"))
            return int(case.outcome == "failed")
        start = time.monotonic()
        outcome = fuzzer.run(
            asked.seed, asked.cases, jobs=asked.jobs, say=lambda text: print(text, flush=True)
        )
    told = str(outcome).rsplit("\n", 1)[-1]
    print(f"{told}, in {time.monotonic() - start:.0f} s")
    return int(bool(outcome.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
