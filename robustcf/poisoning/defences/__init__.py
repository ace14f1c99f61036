"""Defences against fake users: who looks fake, and training that a few accounts cannot steer."""

from robustcf.poisoning.defences.adversarial import SizeByLoss, SizeByNorm
from robustcf.poisoning.defences.base import Defence, Defended, Detection, Detector
from robustcf.poisoning.defences.combined import AllDetectors
from robustcf.poisoning.defences.groups import Groups
from robustcf.poisoning.defences.leverage import LeverageCap
from robustcf.poisoning.defences.pca import PCASelection
from robustcf.poisoning.defences.twins import Twins

__all__ = [
    "AllDetectors",
    "Defence",
    "Defended",
    "Detection",
    "Detector",
    "Groups",
    "LeverageCap",
    "PCASelection",
    "SizeByLoss",
    "SizeByNorm",
    "Twins",
]
