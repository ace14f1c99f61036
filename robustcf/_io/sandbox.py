"""Read files from strangers in a process of their own, with limits.

A parser of a rich format (pickles, Parquet, compressed archives) may crash, take all memory, or
never end on a file that was made for it. So a child process parses it: it inherits the open file
and nothing else, may take only so much memory, CPU time and output, and answers with plain facts
and with where arrays are. The parent trusts none of it: every array must have a known type and lie
within the bytes that are really there. Whatever becomes of the child, the caller gets a
:class:`DataError` of one line.

Where the numbers lie in the file as they are (``.npy``, stored ``.npz``, safetensors, torch), the
child says where, and the parent reads them from there. Without ``fork`` (Windows) the same readers
run in this process, without limits on memory and time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import (
    LONGEST_TEXT,
    MOST_ANSWER,
    PATIENCE,
    how_to_raise,
    limits,
    raised_limits,
)
from robustcf._io.reading import open_plain, parse_json, size_of
from robustcf.errors import DataError, InputError

# Types of arrays that may come out of a file; text is ``<U`` and a length.
_NUMBERS = (
    *("float16", "bfloat16", "float32", "float64", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
_IN_MEMORY = -1
_NO_MEMORY = 77  # exit code
_KEPT_VARIABLES = [
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SYSTEMROOT",
    "TMPDIR",
]
_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Located:
    """An array that lies row after row in a file, or in the child's answer."""

    file: int  # its number; -1 for the child's memory
    offset: int  # of its first byte
    dtype: str  # a number type of numpy, bfloat16, or text
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
        return "float" in self.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one entry."""
        return 2 if self.dtype == "bfloat16" else int(np.dtype(self.dtype).itemsize)

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
        if not plain or not -1 <= self.file < len(available) - 1 or not _is_known(self.dtype):
            raise DataError(f"the array {name[:60]!r} is of no type that is read")
        if len(self.shape) > 8 or min(*whole[1:], self.lead) < 0:
            raise DataError(f"the array {name[:60]!r} has an impossible shape")
        if self.offset + self.nbytes > available[self.file]:
            raise DataError(
                f"the array {name[:60]!r} promises {self.nbytes:,} bytes, and the file does not "
                "have them: it is damaged"
            )


def _is_known(dtype: str) -> bool:
    text = dtype[:2] == "<U" and dtype[2:].isdecimal() and len(dtype) < 8
    return dtype in _NUMBERS or (text and 0 < int(dtype[2:]) <= LONGEST_TEXT)


class Answer:
    """What a child may say: facts, and arrays by name."""

    def __init__(self, memory: BinaryIO, size: int) -> None:
        self.memory, self.size = memory, size
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, Located] = {}

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an array into the answer; raise where its type or the total is not allowed."""
        native = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        kind = native.dtype
        dtype = kind.str if kind.kind == "U" else kind.name
        if not _is_known(dtype):
            raise DataError(f"the array {name[:60]!r} holds {kind}, not numbers or short text")
        start, most = self.memory.seek(0, os.SEEK_END), limits().allowance(self.size)
        needed = start + native.nbytes
        if needed > most:
            raise DataError(
                f"its content takes at least {needed:,} bytes in memory, expected at most {most:,} "
                f"for a file of {self.size:,} bytes; "
                + how_to_raise("expansion", -(-needed // max(self.size, 1)))
            )
        self.memory.write(np.atleast_1d(native).view(np.uint8).data if native.size else b"")
        self.arrays[name] = Located(_IN_MEMORY, start, dtype, native.shape)


@dataclass(frozen=True)
class Given:
    """A file as a reader in the child gets it, open at its beginning."""

    number: int
    name: str
    file: BinaryIO
    size: int


Reader = Callable[[Sequence[Given], Answer, Mapping[str, Any]], None]


class Reading:
    """What was read: facts, and arrays that are loaded when they are asked for."""

    def __init__(
        self, facts: dict[str, Any], arrays: dict[str, Located], files: Sequence[BinaryIO]
    ) -> None:
        self.facts, self.arrays, self._files = facts, arrays, tuple(files)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array by name; of bfloat16, its bits as int16."""
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
            raise DataError(f"the array {name[:60]!r} is damaged: its checksum is another")
        return flat.reshape(where.shape, order="F" if where.fortran else "C")

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            file.close()


def read_apart(
    reader: str, paths: Sequence[Path | bytes], options: Mapping[str, Any] | None = None
) -> Reading:
    """Read files by a reader that runs in a child process with limits.

    Args:
        reader: ``module:function`` of ours, see :data:`Reader`.
        paths: regular files; or what a file holds, where it is in memory already.
        options: plain values for the reader.

    Raises:
        DataError: a file is not regular, damaged or hostile, or takes more than the limits allow.

    Cost: about 0.2 s for the child, and its parsing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.npy"
        ...     np.save(path, np.eye(2))
        ...     found = read_apart("robustcf._io.foreign:read_npy", [path])
        ...     found.array("array").tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    source = " and ".join(str(path) for path in paths[:2] if isinstance(path, Path))
    with contextlib.ExitStack() as opened:
        try:
            files = [opened.enter_context(_opened(path)) for path in (*paths, b"")]
            memory = files[-1]
            given = [
                Given(n, getattr(path, "name", "content"), files[n], size_of(files[n]))
                for n, path in enumerate(paths)
            ]
            run = _in_a_child if os.name == "posix" else _here
            facts, arrays = _understood(run(reader, given, memory, dict(options or {})))
            for name, where in arrays.items():
                where.check(name, [size_of(file) for file in files])
        except DataError as error:
            prefix = "" if not source or source in str(error) else f"{source}: "
            raise DataError(f"{prefix}{error}") from error
        opened.pop_all()  # the reading closes them
        return Reading(facts, arrays, files)


def _opened(path: Path | bytes) -> BinaryIO:
    if isinstance(path, bytes):
        copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the reading
        copy.write(path)
        copy.seek(0)
        return copy
    try:
        return os.fdopen(open_plain(path, follow=True), "rb")
    except InputError as error:
        raise DataError(str(error)) from error


def _understood(answer: bytes) -> tuple[dict[str, Any], dict[str, Located]]:
    """Return the facts and arrays of an answer, or raise what it says."""
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
        raise DataError(f"its reader gave no readable answer ({error!r})") from error
    raise (InputError if kind == "InputError" else DataError)(str(words)[:2000])


# --- the parent's side ------------------------------------------------------------------------

_CODE = (
    "import json, sys; job = json.loads(sys.argv[1]); sys.path[:] = job['path']; "
    "from robustcf._io.sandbox import child; child(job)"
)


def _in_a_child(
    reader: str, given: Sequence[Given], memory: BinaryIO, options: Mapping[str, Any]
) -> bytes:
    descriptors = [one.file.fileno() for one in given]
    home = str(Path(__file__).resolve().parents[2])
    size = sum(one.size for one in given)
    job = {
        "path": [home, *(entry for entry in sys.path if entry and entry != home)],
        "reader": reader,
        "files": [[one.name, number] for one, number in zip(given, descriptors, strict=True)],
        "memory": memory.fileno(),
        "options": options,
        "limits": asdict(limits()),
    }
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CODE, json.dumps(job)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(*descriptors, memory.fileno()),
        env=kept | _SINGLE,
        cwd="/",
        start_new_session=True,  # Ctrl-C is the parent's to answer
    ) as process:
        try:
            answer = _heard(process, limits().reader_time(size) * PATIENCE)
        except BaseException:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode:
        raise DataError(_ended(process.returncode, size))
    return answer


def _heard(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return what the child says, at most so many bytes within so many seconds."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        stream = process.stdout
        answer = stream.read(MOST_ANSWER + 1) if stream is not None else b""
        if len(answer) > MOST_ANSWER:
            raise DataError("says more than a file of numbers can: refused")
        process.wait()
        return answer
    finally:
        timer.cancel()


def _ended(code: int, size: int) -> str:
    """Say in one line why the child ended without an answer."""
    seconds, most = limits().reader_time(size), limits().reader_allowance(size)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return (
            f"reading it took more than {seconds} s of CPU time, the limit for its size, or was "
            f"ended from outside; {how_to_raise('reader_seconds', 10 * seconds)}"
        )
    if code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
        return "its reader crashed on it: the file is damaged or hostile"
    if code == _NO_MEMORY:
        return (
            f"reading it takes more than {most >> 20:,} MB of memory, the limit for its size; "
            + how_to_raise("reader_bytes", 4 * most)
        )
    return f"its reader ended without an answer (code {code}): the file is damaged or hostile"


# --- the child's side -------------------------------------------------------------------------


def child(job: Mapping[str, Any]) -> None:
    """Read the files of a job within its limits, and answer on standard output."""
    import_module(job["reader"].partition(":")[0])  # before the limits: what it needs is ours
    files = [os.fdopen(number, "rb", closefd=False) for _, number in job["files"]]
    given = [
        Given(n, name, file, size_of(file))
        for n, ((name, _), file) in enumerate(zip(job["files"], files, strict=True))
    ]
    memory = os.fdopen(job["memory"], "w+b", closefd=False)
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
    """Give up memory beyond what is in use now and an allowance, CPU time, files and cores."""
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
