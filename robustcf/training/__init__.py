"""Training: a split and a configuration in, factors out.

Example:
    >>> from robustcf.data import load
    >>> from robustcf.training import TrainConfig, train
    >>> trained = train(load("demo"), TrainConfig.of(dim=8, epochs=1))
    >>> trained.factors
    Factors(2,000 users x 1,500 items, dim 8, float32)
"""

from robustcf.training.config import TrainConfig
from robustcf.training.search import Found, search
from robustcf.training.train import Trained, train

__all__ = ["Found", "TrainConfig", "Trained", "search", "train"]
