"""Defences against fake users: who looks fake, and training that a few accounts cannot steer."""

from robustcf.poisoning.defences.base import Defence, Defended, Detection, Detector
from robustcf.poisoning.defences.detectors import AllDetectors, Groups, PCASelection, Twins
from robustcf.poisoning.defences.training import LeverageCap, SizeByLoss, SizeByNorm

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
