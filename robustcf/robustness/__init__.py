"""Robustness: the quality of a recommender under attack, and certified lower bounds.

A :class:`Threat` holds abilities and knowledge of the attacker; :func:`measure` gives the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf._registry import ATTACKS
    from robustcf.robustness.certified import CertifiedRadii, certified_radii
    from robustcf.robustness.curves import RobustnessCurve
    from robustcf.robustness.hardening import Hardened, harden, harden_by_trial
    from robustcf.robustness.measuring import Result, certify, measure
    from robustcf.robustness.quantization import Quantized, quantization_table, quantize
    from robustcf.robustness.table import NAMES, AttackSpec
    from robustcf.robustness.threat import Threat
    from robustcf.robustness.worst import joint_of, worst_counts, worst_of

__all__ = [
    "ATTACKS",
    "NAMES",
    "AttackSpec",
    "CertifiedRadii",
    "Hardened",
    "Quantized",
    "Result",
    "RobustnessCurve",
    "Threat",
    "certified_radii",
    "certify",
    "harden",
    "harden_by_trial",
    "joint_of",
    "measure",
    "quantization_table",
    "quantize",
    "worst_counts",
    "worst_of",
]

_HOMES = {
    ".certified": ("CertifiedRadii", "certified_radii"),
    ".curves": ("RobustnessCurve",),
    ".hardening": ("Hardened", "harden", "harden_by_trial"),
    ".measuring": ("Result", "certify", "measure"),
    ".quantization": ("Quantized", "quantization_table", "quantize"),
    ".table": ("NAMES", "AttackSpec"),
    ".threat": ("Threat",),
    ".worst": ("joint_of", "worst_counts", "worst_of"),
    "robustcf._registry": ("ATTACKS",),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: home for home, names in _HOMES.items() for name in names}
)
