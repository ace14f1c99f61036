"""Sweeps: settings x seeds trained, attacked and summed up in one folder.

Example:
    >>> from robustcf.experiments.sweeps import SweepPlan
    >>> plan = SweepPlan("demo", regs=("weight_decay", "two_to_inf"), seeds=(0, 1))
    >>> print(plan.command())
    robustcf sweep --dataset demo --model ultragcn --regs weight_decay two_to_inf --seeds 2
    --attacks auto --epsilons 0 0.02 0.05 0.1 0.2 --relative --budget row --preset tuned
    --threads 1 --out DIR

    ``sweep(plan, "DIR")`` does it.
"""

from robustcf.experiments.sweeps.execute import sweep
from robustcf.experiments.sweeps.plan import SweepPlan
from robustcf.experiments.sweeps.summary import Summary

__all__ = ["Summary", "SweepPlan", "sweep"]
