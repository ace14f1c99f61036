"""The control of every attack: the same budget in a random direction."""

from __future__ import annotations

from typing import Any

import torch

from robustcf.attacks.base import Attack, Point
from robustcf.factors import Factors


class RandomNoise(Attack):
    """Gaussian directions scaled to the budget, the same directions for every epsilon.

    Other arguments: see :class:`robustcf.attacks.base.Attack`. Cost: two random matrices.
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
