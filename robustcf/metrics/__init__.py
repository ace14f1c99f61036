"""Ranking metrics, one value per user, and the full-ranking evaluation on top of them."""

from robustcf.metrics.evaluate import MetricReport, Protocol, evaluate
from robustcf.metrics.ranking import (
    average_precision,
    coverage,
    hit_rate,
    ndcg,
    precision,
    recall,
    reciprocal_rank,
)
from robustcf.metrics.topk import top_items

__all__ = [
    "MetricReport",
    "Protocol",
    "average_precision",
    "coverage",
    "evaluate",
    "hit_rate",
    "ndcg",
    "precision",
    "recall",
    "reciprocal_rank",
    "top_items",
]
