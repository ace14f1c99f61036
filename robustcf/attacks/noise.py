"""The control of every curve: the same budget spent in a random direction."""

from __future__ import annotations

from typing import Any

import torch

from robustcf.attacks.base import Attack, Point
from robustcf.factors import Factors


class RandomNoise(Attack):
    """Gaussian directions taken to the edge of the budget.

    The directions are the same for every epsilon, so that a curve shows the size of the noise and
    not its luck.

    Args:
        *arguments: see :class:`robustcf.attacks.base.Attack`.
        seed: of the directions.
        **options: see :class:`robustcf.attacks.base.Attack`.

    Cost: two random matrices of the factors' size.
    """

    name = "random"

    def __init__(self, *arguments: Any, seed: int = 0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seed = seed

    def propose(self, factors: Factors, allowed: dict[str, float]) -> Point:
        """Return random directions, scaled to the edge."""
        generator = torch.Generator().manual_seed(self.seed)
        # Drawn on the CPU in double precision: the same directions on every device and dtype.
        users, items = (
            torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part)
            for part in factors
        )
        return self._each("scale", (users, items), (allowed["users"], allowed["items"]))
