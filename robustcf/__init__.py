"""Robust collaborative filtering: measure, prove and improve how rankings hold under attack.

Nothing is imported here on purpose: each subpackage (``robustcf.data``,
``robustcf.estimators``, ...) loads on its own and brings only what it needs.
"""

__version__ = "0.1.0"
