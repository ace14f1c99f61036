"""Read files from strangers in a process of their own, with limits.

A parser of a rich format (pickle, Parquet, zip) may crash, take all memory or never end on a file
made for it. So a child process parses it: it inherits the open file and nothing else, has little
memory, CPU time and output, and answers with facts and with the places of arrays in the file. The
parent reads arrays from there, after it has checked that they have a known type and lie within the
file. Every failure of the child becomes a :class:`DataError` of one line. Without ``fork``
(Windows) the same readers run in this process, without limits on memory and time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from robustcf._io.limits import (
    MOST_ANSWER,
    PATIENCE,
    TYPES,
    check_expansion,
    how_to_raise,
    limits,
    raised_limits,
)
from robustcf._io.reading import open_plain, parse_json, size_of
from robustcf.errors import DataError, InputError

if TYPE_CHECKING:
    import numpy.typing as npt

# numpy is imported where it is needed: that takes longer than to read most headers.

_IN_MEMORY = -1
_NO_MEMORY = 77  # exit code
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", *_LIBRARIES, "SYSTEMROOT", "TMPDIR")
_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Located:
    """An array that lies row after row in a file, or in the child's answer."""

    file: int  # its number; -1 for the child's memory
    offset: int  # of its first byte
    dtype: str  # as numpy writes types, such as <f4; or bfloat16
    shape: tuple[int, ...]
    fortran: bool = False  # whether it lies column after column
    crc: int = -1  # checksum of an archive's member that it ends, or -1 if unknown
    lead: int = 0  # bytes of the member in front of it

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """Return whether it holds floating-point numbers."""
        return "f" in self.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one entry."""
        if self.dtype == "bfloat16":
            return 2
        return int(self.dtype[2:]) * (4 if "U" in self.dtype else 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.itemsize * math.prod(self.shape)

    def check(self, name: str, available: Sequence[int]) -> None:
        """Raise unless this is an array of a known type that lies within its file.

        ``available`` are the bytes of each file; the last one is the child's memory.
        """
        whole = (self.file, self.offset, self.offset - self.lead, *self.shape)
        plain = all(type(number) is int for number in (*whole, self.crc, self.lead))
        plain = plain and isinstance(self.dtype, str) and type(self.fortran) is bool
        if not plain or not -1 <= self.file < len(available) - 1 or not TYPES.fullmatch(self.dtype):
            problem = "is of an unknown type"
        elif len(self.shape) > 8 or min(*whole[1:], self.lead) < 0:
            problem = "has an impossible shape"
        elif self.offset + self.nbytes > available[self.file]:
            problem = f"promises {self.nbytes:,} bytes, more than the file has: it is damaged"
        else:
            return
        raise DataError(f"the array {name[:60]!r} {problem}")


@dataclass(frozen=True)
class Given:
    """A file as a reader in the child gets it, open at its beginning."""

    number: int
    name: str
    file: BinaryIO
    size: int


class Answer:
    """What a child may say: facts, and arrays by name."""

    def __init__(self, memory: BinaryIO, size: int) -> None:
        self.memory, self.size = memory, size
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, Located] = {}

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an array into the answer; raise where its type or the total is not allowed."""
        import numpy as np

        called = f"the array {name[:60]!r}"
        native = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        if not TYPES.fullmatch(native.dtype.str):
            raise DataError(f"{called} holds {array.dtype}, not numbers or short text")
        start = self.memory.seek(0, os.SEEK_END)
        check_expansion(called, "the content up to it", start + native.nbytes, self.size)
        self.memory.write(native.reshape(-1).view(np.uint8).data)
        self.arrays[name] = Located(_IN_MEMORY, start, native.dtype.str, native.shape)


Reader = Callable[[Sequence[Given], Answer, Mapping[str, Any]], None]


class Reading:
    """Facts, and arrays that are loaded on demand."""

    def __init__(
        self, facts: dict[str, Any], arrays: dict[str, Located], files: Sequence[BinaryIO]
    ) -> None:
        self.facts, self.arrays, self._files = facts, arrays, tuple(files)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array by name; of bfloat16, its bits as int16."""
        import numpy as np

        where = self.arrays[name]
        kind = np.dtype("int16" if where.dtype == "bfloat16" else where.dtype)
        count = math.prod(where.shape)
        if not count:
            return np.zeros(where.shape, dtype=kind)
        file = self._files[where.file]
        file.seek(where.offset - where.lead)
        checksum = zlib.crc32(file.read(where.lead))
        flat = np.fromfile(file, dtype=kind, count=count)
        if len(flat) != count:
            raise DataError(f"the array {name[:60]!r} is cut off: the file changed while read")
        if where.crc >= 0 and zlib.crc32(flat.view(np.uint8).data, checksum) != where.crc:
            raise DataError(f"the array {name[:60]!r} is damaged: its checksum differs")
        return flat.reshape(where.shape, order="F" if where.fortran else "C")

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            file.close()


def read_apart(
    reader: str, paths: Sequence[Path | bytes], options: Mapping[str, Any] | None = None
) -> Reading:
    """Read files by a reader that runs in a child process with limits.

    ``reader`` is ``module:function`` of ours (:data:`Reader`), ``paths`` are regular files or the
    content of a file, ``options`` plain values. A DataError says which file is damaged or hostile,
    or takes more than the limits allow. Cost: 0.05 to 0.2 s for the child, and its parsing.
    """
    source = " and ".join(str(path) for path in paths[:2] if isinstance(path, Path))
    with contextlib.ExitStack() as opened:
        try:
            files = [opened.enter_context(_opened(path)) for path in (*paths, b"")]
            names = [getattr(path, "name", "content") for path in paths]
            given = _given(names, files)
            run = _in_a_child if os.name == "posix" else _here
            facts, arrays = _understood(run(reader, given, files[-1], options or {}))
            for name, where in arrays.items():
                where.check(name, [size_of(file) for file in files])
        except MemoryError:  # without a child
            raise DataError(f"{source}: {_ended(_NO_MEMORY, sum(g.size for g in given))}") from None
        except DataError as error:
            prefix = "" if not source or source in str(error) else f"{source}: "
            raise DataError(f"{prefix}{error}") from error
        opened.pop_all()  # the reading closes them
        return Reading(facts, arrays, files)


def _given(names: Sequence[str], files: Sequence[BinaryIO]) -> list[Given]:
    pairs = enumerate(zip(names, files, strict=False))  # the last file is the child's memory
    return [Given(number, name, file, size_of(file)) for number, (name, file) in pairs]


def _opened(path: Path | bytes) -> BinaryIO:
    if isinstance(path, bytes):
        import tempfile

        copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the reading
        copy.write(path)
        copy.seek(0)
        return copy
    try:
        return os.fdopen(open_plain(path, follow=True), "rb")
    except InputError as error:
        raise DataError(str(error)) from error


def _understood(answer: bytes) -> tuple[dict[str, Any], dict[str, Located]]:
    """Return the facts and arrays of an answer, or raise the error in it."""
    try:
        said = parse_json(answer)
        if "error" not in said:
            arrays = {
                name: Located(file, offset, dtype, tuple(shape), fortran, crc, lead)
                for name, (file, offset, dtype, shape, fortran, crc, lead) in said["arrays"].items()
            }
            return {**said["facts"]}, arrays
        kind, words = said["error"]
    except (InputError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"its reader gave an unreadable answer ({error!r})") from error
    raise (InputError if kind == "InputError" else DataError)(str(words)[:2000])


# --- the parent's side ------------------------------------------------------------------------

_CODE = (
    "import json, sys; job = json.loads(sys.argv[1]); sys.path[:] = job['path']; "
    "from robustcf._io.sandbox import child; child(job)"
)


def _in_a_child(
    reader: str, given: Sequence[Given], memory: BinaryIO, options: Mapping[str, Any]
) -> bytes:
    import signal
    import subprocess
    import threading

    descriptors = [file.fileno() for file in (*(one.file for one in given), memory)]
    home, size = str(Path(__file__).resolve().parents[2]), sum(one.size for one in given)
    job = {
        "path": [home, *(entry for entry in sys.path if entry and entry != home)],
        "reader": reader,
        "names": [one.name for one in given],
        "files": descriptors,
        "options": dict(options),
        "limits": asdict(limits()),
    }
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CODE, json.dumps(job)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=kept | _SINGLE,
        cwd="/",
        start_new_session=True,  # Ctrl-C is the parent's to answer
    ) as process:
        timer = threading.Timer(limits().reader_time(size) * PATIENCE, process.kill)
        timer.start()
        try:
            answer = process.stdout.read(MOST_ANSWER + 1)  # type: ignore[union-attr]
            if len(answer) > MOST_ANSWER:
                raise DataError("its reader says more than a file of numbers can: refused")
            process.wait()
        except BaseException:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            timer.cancel()
    if process.returncode:
        raise DataError(_ended(process.returncode, size))
    return answer


def _ended(code: int, size: int) -> str:
    """Say in one line why the child ended without an answer."""
    from signal import SIGABRT, SIGBUS, SIGKILL, SIGSEGV, SIGXCPU

    seconds, most = limits().reader_time(size), limits().reader_allowance(size)
    if code in (-SIGXCPU, -SIGKILL):
        return (
            f"reading it took more than {seconds} s of CPU time, the limit for its size, or was "
            f"ended from outside; {how_to_raise('reader_seconds', 10 * seconds)}"
        )
    if code == _NO_MEMORY:
        return (
            f"reading it takes more than {most >> 20:,} MB of memory, the limit for its size; "
            + how_to_raise("reader_bytes", 4 * most)
        )
    crashed = code in (-SIGSEGV, -SIGABRT, -SIGBUS)
    how = "crashed" if crashed else f"ended without an answer (code {code})"
    return f"its reader {how}: the file is damaged or hostile"


# --- the child's side -------------------------------------------------------------------------


def child(job: Mapping[str, Any]) -> None:
    """Read the files of a job within its limits, and answer on standard output."""
    import_module(job["reader"].partition(":")[0])  # our own code, before the limits
    files = [os.fdopen(number, "rb", closefd=False) for number in job["files"][:-1]]
    memory = os.fdopen(job["files"][-1], "r+b", closefd=False)
    given = _given(job["names"], files)
    with raised_limits(**job["limits"]):
        _limit(sum(one.size for one in given))
        try:
            sys.stdout.buffer.write(_here(job["reader"], given, memory, job["options"]))
            sys.stdout.flush()
        except MemoryError:
            os._exit(_NO_MEMORY)
    os._exit(0)


def _here(
    reader: str, given: Sequence[Given], memory: BinaryIO, options: Mapping[str, Any]
) -> bytes:
    """Run a reader in this process; return its answer as JSON."""
    module, _, name = reader.partition(":")
    function: Reader = getattr(import_module(module), name)
    answer = Answer(memory, sum(one.size for one in given))
    try:
        function(given, answer, options)
        memory.flush()
        arrays = {name: astuple(where) for name, where in answer.arrays.items()}
        return json.dumps({"facts": answer.facts, "arrays": arrays}).encode()
    except MemoryError:
        raise
    except (DataError, InputError) as error:
        said = [type(error).__name__, str(error)]
    except Exception as error:  # a damaged file can fail in any way
        reason = " ".join(str(error).split())[:200]
        said = ["DataError", f"not readable ({type(error).__name__}: {reason})"]
    return json.dumps({"error": said}).encode()


def _limit(size: int) -> None:
    """Limit memory (beyond the present use), CPU time, files and cores of this process."""
    try:
        import resource
    except ImportError:
        return
    held = limits()
    spent = resource.getrusage(resource.RUSAGE_SELF)
    wanted = {
        resource.RLIMIT_CPU: int(spent.ru_utime + spent.ru_stime) + 1 + held.reader_time(size),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_FSIZE: held.allowance(size),
    }
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
        wanted[resource.RLIMIT_AS] = used + held.reader_allowance(size)
    for kind, most in wanted.items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))
