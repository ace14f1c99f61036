"""File names that tell sizes and cutoffs, counts in words, and text that is safe to show."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

# More sizes than this are told by their ends, their number and a digest.
_SPELLED = 8
# Unicode's categories of control, format, surrogate and other invisible characters.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


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


def harmless(text: str) -> str:
    r"""Text with its control characters spelt out, but for ends of lines and tabs.

    Labels, names and messages may be a stranger's: none of them may steer a terminal, reverse the
    text on it or on a page, or be impossible to write.

    Example:
        >>> harmless("a" + chr(27) + "[2J")
        'a\\x1b[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        mark.encode("unicode_escape").decode()
        if unicodedata.category(mark) in _UNSEEN and mark not in "\n\t"
        else mark
        for mark in text
    )
