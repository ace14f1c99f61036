"""The restricted reader of pickles: arrays as numpy pickles them, and pickles that mean harm."""

from __future__ import annotations

import os
import pickle
import subprocess
import tracemalloc

import numpy as np
import pytest

from robustcf._io.unpickling import read_pickle
from robustcf.errors import DataError


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", "f8", "?"])
def test_arrays_as_numpy_writes_them(protocol, dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    value = {"data": array, "labels": [1, 2, 3], "name": "batch", b"raw": (1.5, None)}
    found = read_pickle(pickle.dumps(value, protocol=protocol), "here")
    assert found["data"].array.dtype == array.dtype
    assert np.array_equal(found["data"].array, array)
    assert (found["labels"], found["name"]) == ([1, 2, 3], "batch")
    fortran = np.asfortranarray(array)
    found = read_pickle(pickle.dumps(fortran, protocol=protocol), "x")
    assert np.array_equal(found.array, fortran)


def test_python_2_spelling():
    """As CIFAR's files spell it: protocol 2, str for bytes, numpy.core."""
    opcodes = (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87Rq\x03(K\x01K\x02K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87Rq\x04"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x04\x01\x02\x03\xfftb"
        b"U\x06labelsq\x05]q\x06(K\x05K\x07eu."
    )
    found = read_pickle(opcodes, "batch")
    assert found["data"].array.tolist() == [[1, 2], [3, 255]]
    assert found["labels"] == [5, 7]


class Calls:
    def __init__(self, function, *arguments) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, subprocess.check_output, getattr])
def test_a_pickle_that_calls_a_function_is_refused_and_not_run(tmp_path, protocol, function):
    witness = tmp_path / "ran"
    text = f"touch {witness}" if function is not eval else f"open({str(witness)!r}, 'w')"
    content = pickle.dumps({"data": Calls(function, text)}, protocol=protocol)
    with pytest.raises(DataError, match="refused"):
        read_pickle(content, "evil")
    assert not witness.exists()


WHOLE = pickle.dumps({"data": np.arange(100, dtype=np.uint8), "labels": [1]}, protocol=2)
SMALL = pickle.dumps(np.arange(3, dtype=np.uint8), protocol=3)
REFUSED = {
    "dates": (pickle.dumps(np.array(["2001-01-01"], dtype="M8[D]")), "not numbers"),
    **{
        f"cut at {end}": (WHOLE[:end], "x: ") for end in (0, 1, 10, len(WHOLE) // 2, len(WHOLE) - 1)
    },
    "a shape of more than there is": (SMALL.replace(b"K\x03\x85", b"K\x09\x85"), "damaged"),
    # A length in place of the content: bytes(n) would make room for n of them.
    "content that is a number": (
        SMALL.replace(b"C\x03\x00\x01\x02", b"\x8a\x05\x00\x00\x00\x00\x10"),
        "damaged .its content is a int",
    ),
    # The names that are let through cannot be used for anything else either.
    "another encoding": (b"c_codecs\nencode\n(Vabc\nVrot13\ntR.", "encoding"),
    "a state for a function": (b"c_codecs\nencode\n}(VX\nI1\nub.", "x: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    content, word = REFUSED[name]
    with pytest.raises(DataError, match=word):
        read_pickle(content, "x")


def test_a_pickle_may_not_claim_memory_by_a_number():
    # LONG_BINPUT: keep this list as number 2^31 - 1 of the memo.
    program = b"\x80\x02]r\xff\xff\xff\x7f."
    tracemalloc.start()
    try:
        assert read_pickle(program, "x") == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
