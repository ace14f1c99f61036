"""BPR-MF: a factorization that learns to put a user's items above the others."""

from __future__ import annotations

from robustcf.models.base import Model, ModelConfig


class BPRMF(Model[ModelConfig]):
    """Matrix factorization trained with :class:`robustcf.objectives.BPR`.

    Args:
        train: the pairs to learn from.
        config: columns and start; None for the defaults.
        **options: see :class:`robustcf.models.base.Model`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> BPRMF(checkerboard().train, dim=4).factors().dim
        4
    """

    name = "bpr-mf"
    objective = "bpr"
    # Differences of scores are all that counts: a common level would mean nothing.
    base_logit = 0.0
