"""Robustness: what attacks leave of a recommender's metrics."""

from robustcf.robustness.curves import RobustnessCurve, check_epsilons, robustness_curve
from robustcf.robustness.ensembles import auto_curve, auto_members, pgd_curve, random_curve
from robustcf.robustness.objectives import OBJECTIVES, PassObjective, objective_for
from robustcf.robustness.quantized import Quantized, quantization_table
from robustcf.robustness.worst import worst_counts, worst_of

__all__ = [
    "OBJECTIVES",
    "PassObjective",
    "Quantized",
    "RobustnessCurve",
    "auto_curve",
    "auto_members",
    "check_epsilons",
    "objective_for",
    "pgd_curve",
    "quantization_table",
    "random_curve",
    "robustness_curve",
    "worst_counts",
    "worst_of",
]
