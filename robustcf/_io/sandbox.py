"""Reading files from strangers in a process of their own, with limits.

A parser of a rich format (pickles, Parquet, compressed archives) may crash, take all memory, or
never end on a file that was made for it. So such files are parsed by a child process: it inherits
the open file and nothing else, may take only so much memory, CPU time and output, and answers with
plain facts and with where arrays are. The parent trusts none of it: every array must have a known
type and lie, row after row, within the bytes that are really there. Whatever becomes of the child,
the caller gets a :class:`DataError` of one line.

Where the numbers lie in the file as they are (``.npy``, stored ``.npz``, safetensors, torch), the
child says where, and the parent reads them from there: nothing is copied through the child.

On platforms without ``fork`` (Windows) the same readers run in this process, without limits on
memory and time; formats are checked all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from robustcf._io.limits import Limits, how_to_raise, limits, raised_limits
from robustcf._io.reading import open_regular, size_of
from robustcf.errors import DataError, InputError

#: Types of arrays that may come out of a file; text is ``<U`` and a length.
NUMBERS = (
    *("float16", "bfloat16", "float32", "float64", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
_LONGEST_TEXT = 1000
_MOST_ANSWER = 16 << 20
_IN_MEMORY = -1
# The parent waits this many times the CPU seconds that the child may take, on a busy machine.
_PATIENCE = 20

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Located:
    """An array that lies row after row in a file, or in the child's answer.

    Args:
        file: number of the file; -1 for the child's memory.
        offset: of its first byte.
        dtype: one of :data:`NUMBERS`, or text.
        shape: of the array.
        fortran: whether it lies column after column.
        crc: checksum of an archive's member that it ends, or -1 if unknown.
        lead: bytes of the member in front of it.
    """

    file: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    fortran: bool = False
    crc: int = -1
    lead: int = 0

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """Whether it holds floating-point numbers."""
        return "float" in self.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one entry."""
        return 2 if self.dtype == "bfloat16" else int(np.dtype(self.dtype).itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the array: Python's integers, so no product is too large."""
        total = self.itemsize
        for length in self.shape:
            total *= length
        return total

    def check(self, name: str, available: Sequence[int]) -> None:
        """Raise unless this is an array of a known type that lies within its file.

        Args:
            name: for the message.
            available: bytes of each file; the last one is the child's memory.
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
    return dtype in NUMBERS or (text and 0 < int(dtype[2:]) <= _LONGEST_TEXT)


class Answer:
    """What a child may say: facts, and arrays by name.

    Args:
        memory: where arrays are written that do not lie in a file as they are; None keeps them.
        most: bytes of these together.
    """

    def __init__(self, memory: BinaryIO, most: int) -> None:
        """Begin with nothing."""
        self.memory, self.most = memory, most
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, Located] = {}

    def put(self, name: str, array: Array) -> None:
        """Write an array into the answer.

        Raises:
            DataError: it is of another type, or all together are more than allowed.
        """
        native = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        kind = native.dtype
        dtype = kind.str if kind.kind == "U" else kind.name
        if not _is_known(dtype):
            raise DataError(f"the array {name[:60]!r} holds {kind}, not numbers or short text")
        start = self.memory.seek(0, os.SEEK_END)
        if start + native.nbytes > self.most:
            raise TooLarge(start + native.nbytes)
        self.memory.write(np.atleast_1d(native).view(np.uint8).data if native.size else b"")
        self.arrays[name] = Located(_IN_MEMORY, start, dtype, native.shape)


class TooLarge(Exception):
    """A file becomes more than its allowance."""


@dataclass(frozen=True)
class Given:
    """A file as a reader in the child gets it.

    Args:
        number: of the file.
        name: without its folder.
        file: open, at its beginning.
        size: bytes of it.
    """

    number: int
    name: str
    file: BinaryIO
    size: int


Reader = Callable[[Sequence[Given], Answer, Mapping[str, Any]], None]


class Reading:
    """What was read: facts, and arrays that are loaded when they are asked for.

    Args:
        facts: plain values.
        arrays: name -> where it is; checked.
        files: open files, the child's memory last.
    """

    def __init__(
        self, facts: dict[str, Any], arrays: dict[str, Located], files: Sequence[BinaryIO]
    ) -> None:
        """Keep the files open as long as this lives."""
        self.facts, self.arrays, self._files = facts, arrays, tuple(files)

    def array(self, name: str) -> Array:
        """Return an array by name; of bfloat16, its bits as int16.

        Cost: reading its bytes.
        """
        where = self.arrays[name]
        kind = np.dtype("int16" if where.dtype == "bfloat16" else where.dtype)
        count = where.nbytes // where.itemsize if where.itemsize else 0
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
    files: list[BinaryIO] = []
    try:
        files += [_opened(path) for path in paths]
        memory: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the reading
        files.append(memory)
        size = sum(size_of(file) for file in files[:-1])
        given = [
            Given(n, getattr(path, "name", "content"), files[n], size_of(files[n]))
            for n, path in enumerate(paths)
        ]
        run = _in_a_child if os.name == "posix" else _here
        facts, arrays = run(reader, given, memory, dict(options or {}), size, source)
        available = [*(one.size for one in given), os.fstat(memory.fileno()).st_size]
        for name, where in arrays.items():
            where.check(name, available)
        return Reading(facts, arrays, files)
    except DataError as error:
        _close(files)
        prefix = "" if not source or source in str(error) else f"{source}: "
        raise DataError(f"{prefix}{error}") from error
    except BaseException:
        _close(files)
        raise


def _opened(path: Path | bytes) -> BinaryIO:
    if isinstance(path, bytes):
        copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the reading
        copy.write(path)
        copy.seek(0)
        return copy
    try:
        return open_regular(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # a NUL in the name
        raise DataError(f"{str(path)!r} is not the name of a file ({error})") from error


def _close(files: Sequence[BinaryIO]) -> None:
    for file in files:
        file.close()


# --- the parent's side ------------------------------------------------------------------------

_CODE = (
    "import json, sys; job = json.loads(sys.argv[1]); sys.path[:] = job['path']; "
    "from robustcf._io.sandbox import child; child(job)"
)


def _in_a_child(
    reader: str,
    given: Sequence[Given],
    memory: BinaryIO,
    options: Mapping[str, Any],
    size: int,
    source: str,
) -> tuple[dict[str, Any], dict[str, Located]]:
    held = limits()
    descriptors = [one.file.fileno() for one in given]
    home = str(Path(__file__).resolve().parents[2])
    seconds = held.reader_time(size)
    job = {
        "path": [home, *(entry for entry in sys.path if entry and entry != home)],
        "reader": reader,
        "files": [[one.name, number] for one, number in zip(given, descriptors, strict=True)],
        "memory": memory.fileno(),
        "options": dict(options),
        "limits": asdict(held),
        "most": held.allowance(size),
        "bytes": held.reader_allowance(size),
        "seconds": seconds,
    }
    command = [sys.executable, "-I", "-S", "-c", _CODE, json.dumps(job)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(*descriptors, memory.fileno()),
        env=_environment(),
        cwd="/",
        start_new_session=True,  # Ctrl-C is the parent's to answer
    ) as process:
        try:
            answer = _heard(process, seconds * _PATIENCE)
        except BaseException:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode:
        raise DataError(_ended(process.returncode, held, size))
    return _understood(answer, held, size)


def _environment() -> dict[str, str]:
    kept = (
        "PATH",
        "LANG",
        "LC_ALL",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "SYSTEMROOT",
        "TMPDIR",
    )
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {name: os.environ[name] for name in kept if name in os.environ} | single


def _heard(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return what the child says, at most so many bytes within so many seconds."""
    import threading

    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        stream = process.stdout
        answer = stream.read(_MOST_ANSWER + 1) if stream is not None else b""
        if len(answer) > _MOST_ANSWER:
            process.kill()
            raise DataError("says more than a file of numbers can: refused")
        process.wait()
        return answer
    finally:
        timer.cancel()


def _ended(code: int, held: Limits, size: int) -> str:
    """Say in one line why the child ended without an answer."""
    seconds, most = held.reader_time(size), held.reader_allowance(size)
    if code == -signal.SIGXCPU or code == -signal.SIGKILL:
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


def _understood(
    answer: bytes, held: Limits, size: int
) -> tuple[dict[str, Any], dict[str, Located]]:
    from robustcf._io.reading import parse_json

    try:
        said = parse_json(answer)
        if "error" in said:
            kind, words = said["error"]
            error = InputError if kind == "InputError" else DataError
            raise error(str(words)[:2000])
        if "too_large" in said:
            most = held.allowance(size)
            raise DataError(
                f"its content takes at least {int(said['too_large']):,} bytes in memory, expected "
                f"at most {most:,} for a file of {size:,} bytes; "
                + how_to_raise("expansion", -(-int(said["too_large"]) // max(size, 1)))
            )
        arrays = {
            str(name): Located(file, offset, dtype, tuple(shape), *rest)
            for name, (file, offset, dtype, shape, *rest) in said["arrays"].items()
        }
        if not isinstance(said["facts"], dict):
            raise TypeError("facts")
        return said["facts"], arrays
    except (DataError, InputError) as error:
        if isinstance(error, DataError) or "error" in locals().get("said", {}):
            raise
        raise DataError(f"its reader gave no readable answer ({error})") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"its reader gave no readable answer ({error!r})") from error


def _here(
    reader: str,
    given: Sequence[Given],
    memory: BinaryIO,
    options: Mapping[str, Any],
    size: int,
    source: str,
) -> tuple[dict[str, Any], dict[str, Located]]:
    """Run the reader in this process, where children cannot be handed files."""
    answer = Answer(memory, limits().allowance(size))
    said = _answered(reader, given, answer, options)
    memory.flush()
    return _understood(json.dumps(said).encode(), limits(), size)


# --- the child's side -------------------------------------------------------------------------

_NO_MEMORY = 77


def child(job: Mapping[str, Any]) -> None:
    """Read the files of a job within its limits, and answer on standard output."""
    import_module(str(job["reader"]).partition(":")[0])  # before the limits: what it needs is ours
    files = [os.fdopen(number, "rb", closefd=False) for _, number in job["files"]]
    given = [
        Given(n, entry[0], file, size_of(file))
        for n, (entry, file) in enumerate(zip(job["files"], files, strict=True))
    ]
    memory = os.fdopen(job["memory"], "w+b", closefd=False)
    _limit(int(job["bytes"]), int(job["seconds"]), int(job["most"]))
    try:
        with raised_limits(**job["limits"]):
            said = _answered(str(job["reader"]), given, Answer(memory, job["most"]), job["options"])
        memory.flush()
        sys.stdout.write(json.dumps(said))
        sys.stdout.flush()
    except MemoryError:
        os._exit(_NO_MEMORY)
    os._exit(0)


def _answered(
    reader: str, given: Sequence[Given], answer: Answer, options: Mapping[str, Any]
) -> dict[str, Any]:
    module, _, name = reader.partition(":")
    function: Reader = getattr(import_module(module), name)
    try:
        function(given, answer, options)
    except TooLarge as error:
        return {"too_large": error.args[0]}
    except (DataError, InputError) as error:
        return {"error": [type(error).__name__, str(error)]}
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        reason = " ".join(str(error).split())[:200]
        return {"error": ["DataError", f"not readable ({type(error).__name__}: {reason})"]}
    arrays = {
        name: [w.file, w.offset, w.dtype, list(w.shape), w.fortran, w.crc, w.lead]
        for name, w in answer.arrays.items()
    }
    return {"facts": answer.facts, "arrays": arrays}


def _limit(memory: int, seconds: int, output: int) -> None:
    """Give up memory beyond what is in use now and so many bytes, CPU time, files and cores."""
    try:
        import resource
    except ImportError:
        return
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(spent.ru_utime + spent.ru_stime) + 1 + seconds
    wanted = {
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_FSIZE: output,
    }
    for kind, most in wanted.items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))
