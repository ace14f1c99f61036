"""Models: parameters, where they start, what is scored, how a new user folds in."""

from robustcf.models.als import ALS, ALSConfig
from robustcf.models.base import INITS, Model, ModelConfig, fold_in
from robustcf.models.bprmf import BPRMF
from robustcf.models.ease import EASE, EASEConfig
from robustcf.models.lightgcn import LightGCN, LightGCNConfig
from robustcf.models.popularity import Popularity, PopularityConfig
from robustcf.models.softmaxmf import SoftmaxMF, SoftmaxMFConfig
from robustcf.models.ultragcn import UltraGCN
from robustcf.support.registry import MODELS

__all__ = [
    "ALS",
    "BPRMF",
    "EASE",
    "INITS",
    "MODELS",
    "ALSConfig",
    "EASEConfig",
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
