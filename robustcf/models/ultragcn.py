"""UltraGCN: a plain factorization; its graph is in the weights of its objective."""

from __future__ import annotations

from robustcf.models.base import Model, ModelConfig


class UltraGCN(Model[ModelConfig]):
    """UltraGCN: user and item embeddings, trained with :class:`robustcf.objectives.BCE`.

    The published model skips the layers of a graph network: their limit is put into the weights of
    a cross-entropy and into an item-item term, both of which are the objective's.

    Args:
        train: the pairs to learn from.
        config: columns and start; None for the defaults.
        **options: see :class:`robustcf.models.base.Model`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> UltraGCN(checkerboard().train, dim=4).factors().dim
        4
    """

    name = "ultragcn"
    objective = "bce"
    # Heavy negatives want every score near -5; from 0 it would first have to get there.
    base_logit = 5.0
