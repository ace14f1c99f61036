"""File names that tell sizes and cutoffs; counts in words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

# More sizes than this are told by their ends, their number and a digest.
_SPELLED = 8


def grid_name(epsilons: Sequence[float], ks: Sequence[int]) -> str:
    """Sizes and cutoffs as part of a file name: different ones never share it.

    Example:
        >>> grid_name((0, 0.05, 0.1), (10, 20))
        'e0_0.05_0.1-k10_20'
        >>> grid_name([n / 10 for n in range(20)], [10])
        'e0_to_1.9_20_76795ec4-k10'
    """
    sizes = [f"{size:g}" for size in epsilons]
    if len(sizes) > _SPELLED or [float(size) for size in sizes] != [float(e) for e in epsilons]:
        exact = ",".join(repr(float(size)) for size in epsilons)
        digest = hashlib.sha256(exact.encode()).hexdigest()[:8]
        sizes = [sizes[0], "to", sizes[-1], str(len(sizes)), digest]
    return "-".join(["e" + "_".join(sizes), "k" + "_".join(map(str, ks))])


def counted(number: int, thing: str) -> str:
    """A number of things, one or several.

    Example:
        >>> counted(1, "epoch"), counted(2000, "pair")
        ('1 epoch', '2,000 pairs')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
