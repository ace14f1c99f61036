"""Models: parameters, where they start, what is scored, how a new user folds in.

Trained by a loop: UltraGCN, BPR-MF and softmax MF (``factorizations``), LightGCN. Fit at once: ALS,
EASE, popularity. By vote: :mod:`robustcf.models.voting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf._registry import MODELS
    from robustcf.models.als import ALS, ALSConfig
    from robustcf.models.base import INITS, Model, ModelConfig
    from robustcf.models.ease import EASE, EASEConfig
    from robustcf.models.factorizations import BPRMF, SoftmaxMF, SoftmaxMFConfig, UltraGCN
    from robustcf.models.folding import FoldIn, fold_in
    from robustcf.models.lightgcn import LightGCN, LightGCNConfig
    from robustcf.models.popularity import Popularity, PopularityConfig

__all__ = [
    "ALS",
    "BPRMF",
    "EASE",
    "INITS",
    "MODELS",
    "ALSConfig",
    "EASEConfig",
    "FoldIn",
    "LightGCN",
    "LightGCNConfig",
    "Model",
    "ModelConfig",
    "Popularity",
    "PopularityConfig",
    "SoftmaxMF",
    "SoftmaxMFConfig",
    "UltraGCN",
    "fold_in",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ALS": ".als",
        "ALSConfig": ".als",
        "INITS": ".base",
        "Model": ".base",
        "ModelConfig": ".base",
        "BPRMF": ".factorizations",
        "EASE": ".ease",
        "EASEConfig": ".ease",
        "FoldIn": ".folding",
        "fold_in": ".folding",
        "LightGCN": ".lightgcn",
        "LightGCNConfig": ".lightgcn",
        "Popularity": ".popularity",
        "PopularityConfig": ".popularity",
        "SoftmaxMF": ".factorizations",
        "SoftmaxMFConfig": ".factorizations",
        "UltraGCN": ".factorizations",
        "MODELS": "robustcf._registry",
    },
)
