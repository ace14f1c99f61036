"""Sweeps: settings x seeds trained, attacked and summed up in one folder.

Example:
    >>> import tempfile
    >>> from robustcf.sweeps import SweepPlan, sweep
    >>> plan = SweepPlan(
    ...     "demo", regs=("none", "weight_decay"), seeds=(0,), attacks=("fgm-softmax",),
    ...     epsilons=(0.0, 0.1), changes={"dim": 4, "epochs": 1},
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = sweep(plan, folder)
    ...     (summary.out / "report.md").is_file(), list(summary.settings)
    (True, ['none', 'weight_decay'])
"""

from robustcf.sweeps.execute import sweep
from robustcf.sweeps.plan import SweepPlan
from robustcf.sweeps.summary import Summary

__all__ = ["Summary", "SweepPlan", "sweep"]
