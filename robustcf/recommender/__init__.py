"""The recommender: one class for trained, opened, imported and hardened models.

:class:`Recommender` recommends, is evaluated, and is saved and opened again by
:func:`open_recommender` (``robustcf.open``). Kinds differ in their :class:`Scorer` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf.models.factorized import FactorScorer, FoldedScorer
    from robustcf.models.folding import FoldIn
    from robustcf.models.scorer import Ranking, Scorer, Stored
    from robustcf.recommender.recommender import Recommender, check_recommender
    from robustcf.recommender.saved import open_recommender

__all__ = [
    "FactorScorer",
    "FoldIn",
    "FoldedScorer",
    "Ranking",
    "Recommender",
    "Scorer",
    "Stored",
    "check_recommender",
    "open_recommender",
]

# On demand: comparing saved curves reads records, and needs no torch for it.
_HOMES = dict.fromkeys(("Ranking", "Scorer", "Stored"), "robustcf.models.scorer")
_HOMES |= dict.fromkeys(("FactorScorer", "FoldedScorer"), "robustcf.models.factorized")
_HOMES |= {"FoldIn": "robustcf.models.folding"}
_HOMES |= {"Recommender": ".recommender", "check_recommender": ".recommender"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES | {"open_recommender": ".saved"})
