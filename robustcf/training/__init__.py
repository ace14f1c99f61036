"""Training: data and settings in, a recommender out.

Example:
    >>> from robustcf.data import load
    >>> from robustcf.training import train
    >>> train(load("demo"), "ultragcn", factors=8, epochs=1).factors
    Factors(2,000 users x 1,500 items, dim 8, float32)
"""

from robustcf.training.config import TrainConfig
from robustcf.training.front import train
from robustcf.training.search import Found, search

__all__ = ["Found", "TrainConfig", "search", "train"]
