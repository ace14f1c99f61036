"""Defences against fake users: detectors, and training with bounded influence per account."""

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
