"""Robustness: what attacks leave of a recommender, and certified lower bounds.

Two classes and one function: a :class:`Target` is what is attacked, a :class:`Threat` what the
attacker may do and knows, and :func:`measure` gives the result.

Example:
    >>> import numpy as np
    >>> from robustcf.robustness import Target, harden, measure
    >>> rng = np.random.default_rng(0)
    >>> target = Target(rng.normal(size=(30, 8)), rng.normal(size=(20, 8)), np.eye(30, 20))
    >>> attacked = measure(target, "fgm-softmax", epsilons=[0, 0.1, 0.2])
    >>> certified = measure(target, "certificate", epsilons=[0, 0.1, 0.2])
    >>> bool((certified.curve["ndcg@10"] <= attacked.curve["ndcg@10"]).all())
    True
    >>> harden(target).factors.dim
    8
"""

from robustcf.robustness.certified import CertifiedRadii, certified_radii
from robustcf.robustness.curves import RobustnessCurve
from robustcf.robustness.hardening import Hardened, harden_by_trial
from robustcf.robustness.measure import Result, measure
from robustcf.robustness.quantization import Quantized, quantization_table
from robustcf.robustness.table import NAMES, AttackSpec
from robustcf.robustness.target import Target, harden
from robustcf.robustness.threat import Threat
from robustcf.robustness.worst import joint_of, worst_counts, worst_of
from robustcf.support.registry import ATTACKS

__all__ = [
    "ATTACKS",
    "NAMES",
    "AttackSpec",
    "CertifiedRadii",
    "Hardened",
    "Quantized",
    "Result",
    "RobustnessCurve",
    "Target",
    "Threat",
    "certified_radii",
    "harden",
    "harden_by_trial",
    "joint_of",
    "measure",
    "quantization_table",
    "worst_counts",
    "worst_of",
]
