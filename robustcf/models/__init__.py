"""Models: parameters, where they start, what is scored, how a new user folds in.

Trained by a loop: UltraGCN, BPR-MF and softmax MF (``factorizations``), LightGCN. Fit at once: ALS,
EASE, popularity, the item-item models (``neighbours``), ensembles of two. By vote:
:mod:`robustcf.models.voting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf._registry import MODELS
    from robustcf.models.als import ALS, ALSConfig
    from robustcf.models.base import INITS, Model, ModelConfig
    from robustcf.models.ease import EASE, EASEConfig
    from robustcf.models.ensemble import Ensemble, EnsembleConfig
    from robustcf.models.factorizations import BPRMF, SoftmaxMF, SoftmaxMFConfig, UltraGCN
    from robustcf.models.folding import FoldIn, fold_in
    from robustcf.models.lightgcn import LightGCN, LightGCNConfig
    from robustcf.models.neighbours import (
        GraphFilter,
        GraphFilterConfig,
        ItemKNN,
        ItemKNNConfig,
        SparseEASE,
        SparseEASEConfig,
    )
    from robustcf.models.popularity import Popularity, PopularityConfig

__all__ = [
    "ALS",
    "BPRMF",
    "EASE",
    "INITS",
    "MODELS",
    "ALSConfig",
    "EASEConfig",
    "Ensemble",
    "EnsembleConfig",
    "FoldIn",
    "GraphFilter",
    "GraphFilterConfig",
    "ItemKNN",
    "ItemKNNConfig",
    "LightGCN",
    "LightGCNConfig",
    "Model",
    "ModelConfig",
    "Popularity",
    "PopularityConfig",
    "SoftmaxMF",
    "SoftmaxMFConfig",
    "SparseEASE",
    "SparseEASEConfig",
    "UltraGCN",
    "fold_in",
]

_HOMES = {
    "robustcf._registry": ("MODELS",),
    ".als": ("ALS", "ALSConfig"),
    ".base": ("INITS", "Model", "ModelConfig"),
    ".ease": ("EASE", "EASEConfig"),
    ".ensemble": ("Ensemble", "EnsembleConfig"),
    ".factorizations": ("BPRMF", "SoftmaxMF", "SoftmaxMFConfig", "UltraGCN"),
    ".folding": ("FoldIn", "fold_in"),
    ".lightgcn": ("LightGCN", "LightGCNConfig"),
    ".neighbours": (
        *("GraphFilter", "GraphFilterConfig", "ItemKNN", "ItemKNNConfig"),
        *("SparseEASE", "SparseEASEConfig"),
    ),
    ".popularity": ("Popularity", "PopularityConfig"),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: home for home, names in _HOMES.items() for name in names}
)
