"""Matrix factorizations: an objective of two tensors, and the parameters it is about."""

from robustcf.models.base import Batch, Gradient, Model
from robustcf.models.bprmf import BPRMF
from robustcf.models.ultragcn import UltraGCN

__all__ = ["BPRMF", "Batch", "Gradient", "Model", "UltraGCN"]
