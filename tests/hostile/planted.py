"""Faults on purpose: the fuzzer must find each of them, name its case and go on behind it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from robustcf.errors import DataError
from tests.hostile.fuzz import Fuzzer, Limits
from tests.hostile.readers import Reader


def _sometimes(fault: Callable[[], object]) -> Callable[[Path], None]:
    """A reader that has a fault for files whose first byte is not what it was."""

    def read(path: Path) -> None:
        if path.read_bytes()[:1] == b"a":
            raise DataError(f"{path}: refused, as it should be")
        fault()

    return read


def _wrong_exception() -> None:
    raise KeyError("users")


def _no_message() -> None:
    raise DataError("")


def _hidden_memory_error() -> None:
    try:
        bytearray(1 << 60)
    except MemoryError as error:
        raise DataError("not readable") from error


def _loop() -> None:
    while True:
        pass


def _memory() -> None:
    bytearray(b"x") * (300 << 20)


def _honest_warning() -> None:
    warnings.warn("the gradient of bce is zero everywhere", RuntimeWarning, stacklevel=1)


def _wait() -> None:
    reading, _ = os.pipe()
    os.read(reading, 1)


FAULTS = {
    "wrong exception": (_wrong_exception, "KeyError: 'users'"),
    "no message": (_no_message, "without a message"),
    "megabyte of message": (lambda: (_ for _ in ()).throw(DataError("x" * 10**6)), "a message of"),
    "warning": (lambda: warnings.warn("odd", stacklevel=1), "UserWarning: odd"),
    "memory error": (_hidden_memory_error, "more memory than there may be"),
    "memory": (_memory, "GB of memory"),
    "loop": (_loop, "s of processor time"),
    "wait": (_wait, "it waited for more than"),
    "sleep": (lambda: time.sleep(100), "it waited for more than"),
    "crash": (os.abort, "it ended the process (signal 6"),
    "exit": (lambda: os._exit(3), "it ended the process"),
    "SystemExit": (lambda: sys.exit(0), "SystemExit"),
}


# Enough for each fault to come a few times.
CASES = 110


def main() -> int:
    """Try each fault; says which were not found."""
    missed = []
    # Short ones: most of the time goes into waiting for what never ends.
    limits = Limits(seconds=0.3, wait=1.5, bytes=200 << 20)
    with tempfile.TemporaryDirectory() as home:
        readers = {
            name: Reader(".x", [b"abc"], _sometimes(fault)) for name, (fault, _) in FAULTS.items()
        }
        readers["honest"] = Reader(".x", [b"abc"], _sometimes(_honest_warning))
        fuzzer = Fuzzer(Path(home), planted=readers, limits=limits)
        outcome = fuzzer.run(0, CASES)
        found = defaultdict(list)
        for case in outcome.failed:
            found[case.target].append(case)
        for name, (_, words) in FAULTS.items():
            # On a busy machine the clock may end a case before its own fault does.
            if not any(words in case.fault for case in found[name]):
                missed.append(f"{name}: {[case.fault[-200:] for case in found[name]]}")
        if found["honest"]:
            missed.append(f"an honest warning counts as a fault: {found['honest']}")
        if outcome.cases != CASES or not outcome.counts["refused"]:
            missed.append(f"not all cases were tried: {outcome.counts}")
        again = found["wrong exception"][0]
        if fuzzer.try_case(0, again.number).fault != again.fault:
            missed.append("a case that is tried again gives something else")
    print("\n".join(missed) or f"{len(FAULTS)} kinds of faults were found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
