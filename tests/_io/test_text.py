"""Names of files: sizes and cutoffs that differ never share one."""

from __future__ import annotations

import itertools

from robustcf._io.text import grid_name


def test_few_sizes_are_spelled_out() -> None:
    assert grid_name((0, 0.05, 0.1), (10, 20)) == "e0_0.05_0.1-k10_20"
    assert grid_name([0.0], [5]) == "e0-k5"


def test_different_grids_have_different_names() -> None:
    grids = [
        (0, 0.1), (0, 0.1, 0.2), (0.1,), (0, 0.1 + 1e-12), (0, 0.10000001),
        tuple(n / 10 for n in range(20)), tuple(n / 10 for n in range(21)),
        tuple(n / 10 for n in (*range(18), 18.5, 19)), tuple(n / 10 for n in range(8)),
    ]  # fmt: skip
    names = [grid_name(sizes, ks) for sizes in grids for ks in ([10], [10, 20], [1, 20])]
    assert len(set(names)) == len(names)
    assert all(len(name) < 100 for name in names)


def test_equal_grids_have_one_name() -> None:
    for sizes in ((0, 0.5), [n / 7 for n in range(12)]):
        one, two = grid_name(sizes, [10]), grid_name([float(size) for size in sizes], (10,))
        assert one == two


def test_names_are_safe_in_a_path() -> None:
    for sizes, ks in itertools.product(([0, 1e-7], [1e9]), ([10], [1, 2, 3])):
        assert not set(grid_name(sizes, ks)) & set(" /\\:*?\"<>|'")
