"""Grids of poisoning: models x attacks x numbers of fake users x seeds, retrained and summed up.

Example:
    >>> from robustcf.experiments.poisoning import PoisonPlan
    >>> plan = PoisonPlan("demo", models=("als",), fakes=(0.01, 0.03), attacks=("auto",))
    >>> print(plan.command())
    robustcf poison --dataset demo --model als --attack auto --fakes 1% 3% --targets 5 --seeds 3
    --k 10 50 --threads 1 --out DIR

    ``poison(plan, "DIR")`` does it.
"""

from robustcf.experiments.poisoning.execute import poison
from robustcf.experiments.poisoning.plan import PoisonPlan
from robustcf.experiments.poisoning.summary import PoisonSummary

__all__ = ["PoisonPlan", "PoisonSummary", "poison"]
