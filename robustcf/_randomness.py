"""One seed, many named streams.

Every random choice draws from a stream named after what it is for, so drawing more numbers in
one place (more probes, another epoch) never changes another (the split). Nothing here touches
numpy's or torch's global state.
"""

from __future__ import annotations

import hashlib

import numpy as np

from robustcf._checks import check_integer


def stream(seed: int, *names: str) -> np.random.Generator:
    """A generator that depends on the seed and the names, and on nothing else.

    Args:
        seed: a non-negative integer.
        names: what the numbers are for, from the general to the particular.

    Example:
        >>> a = stream(0, "split", "test").integers(1000)
        >>> a == stream(0, "split", "test").integers(1000)
        np.True_
        >>> a == stream(0, "split", "valid").integers(1000)
        np.False_
    """
    check_integer("seed", seed, 0, most=2**128)
    digest = hashlib.sha256("\x00".join(names).encode()).digest()
    words = np.frombuffer(digest[:16], dtype="<u4").tolist()
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=words))
