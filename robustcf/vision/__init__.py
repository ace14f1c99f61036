"""The Jacobian experiments: classifiers whose input-output Jacobian is penalized and measured.

Builds on :mod:`robustcf.estimators`; nothing of the recommender side is involved.

Example:
    >>> import torch
    >>> from robustcf.vision import JacobianOperator, WideResNet
    >>> J = JacobianOperator(WideResNet(10, 1, 10, generator=0).eval(), torch.rand(4, 3, 16, 16))
    >>> J.shape  # images, inputs, classes
    (4, 768, 10)
"""

from robustcf.vision.attacks import apgd, fgsm, pgd
from robustcf.vision.config import VisionConfig
from robustcf.vision.images import ImageSet, ImageSplit
from robustcf.vision.jacobian import JacobianOperator
from robustcf.vision.loading import load_images
from robustcf.vision.measures import accuracy, estimated_norms, jacobian_norms
from robustcf.vision.per_image import PerImage
from robustcf.vision.regularizers import Frobenius, Infinity, OperatorNorm, Spectral, TwoToInf
from robustcf.vision.training import fit
from robustcf.vision.wideresnet import Normalize, WideResNet, classifier, parameter_count

__all__ = [
    "Frobenius",
    "ImageSet",
    "ImageSplit",
    "Infinity",
    "JacobianOperator",
    "Normalize",
    "OperatorNorm",
    "PerImage",
    "Spectral",
    "TwoToInf",
    "VisionConfig",
    "WideResNet",
    "accuracy",
    "apgd",
    "classifier",
    "estimated_norms",
    "fgsm",
    "fit",
    "jacobian_norms",
    "load_images",
    "parameter_count",
    "pgd",
]
