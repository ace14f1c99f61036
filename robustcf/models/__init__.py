"""Models: parameters, where they start, what is scored, how a new user folds in."""

from robustcf.models.base import INITS, Model, ModelConfig, fold_in
from robustcf.models.bprmf import BPRMF
from robustcf.models.lightgcn import LightGCN, LightGCNConfig
from robustcf.models.softmaxmf import SoftmaxMF, SoftmaxMFConfig
from robustcf.models.ultragcn import UltraGCN
from robustcf.support.registry import MODELS

__all__ = [
    "BPRMF",
    "INITS",
    "MODELS",
    "LightGCN",
    "LightGCNConfig",
    "Model",
    "ModelConfig",
    "SoftmaxMF",
    "SoftmaxMFConfig",
    "UltraGCN",
    "fold_in",
]
