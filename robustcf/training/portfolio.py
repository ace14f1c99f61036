"""The trials of a search: a portfolio of models, and moves that change one setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from robustcf._registry import MODELS
from robustcf.data.split import Split
from robustcf.models.item_item import MOST_DENSE, MOST_EXACT

_DRAWN_ITEMS = 8_192
_LARGEST_DIM = 512
_WIDE = 256
# The most bytes that the weights of a graph filter may take without a limit of neighbours.
_FILTER_BYTES = 2e9
#: The most users whose validation pairs judge a trial.
MOST_JUDGED = 10_000

Settings = Mapping[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """The size of the data, which decides the cost of trials.

    Args:
        squares: sum over users of their squared numbers of pairs; None for that of a skewed set.
    """

    users: int
    items: int
    pairs: int
    squares: float | None = None

    @classmethod
    def of(cls, split: Split) -> Size:
        """Return the size of the training pairs."""
        squares = float((split.train.user_degrees.astype(float) ** 2).sum())
        return cls(split.n_users, split.n_items, len(split.train), squares)

    @property
    def smaller(self) -> int:
        """The smaller of the numbers of users and items."""
        return min(self.users, self.items)

    @property
    def counts(self) -> float:
        """The multiplications of an item-item matrix of counts."""
        return 3.0 * self.pairs**2 / max(1, self.users) if self.squares is None else self.squares

    def cost(self, settings: Settings) -> float:
        """Return the rough CPU seconds of one training and validation."""
        if settings["model"] == "ensemble":
            return 1.5 * sum(self.cost(own) for own in settings["members"])
        dim = float(settings.get("factors", 64))
        judged, both = float(min(self.users, MOST_JUDGED)), self.users + self.items
        svd = 16.0 * self.pairs * dim / 2e9 + 16.0 * both * dim**2 / 3e10
        shared = self.counts / 3e7
        near = min(float(settings.get("neighbours") or self.items), self.items)
        dense = settings["model"] == "sparse-ease" and settings.get("neighbours") == 0
        per_item = 1e-4 + near**2 / 5e7 + near**3 / 1.5e10
        per_item += 3e-4 * (self.items > MOST_DENSE)
        step = 8.0 * self.pairs * dim / 1e9 + 5.0 * both * dim**2 / 3e10
        own: float | None = {
            "popularity": 0.0,
            "graph-filter": 3.0 * shared,
            "item-knn": shared + 1e-4 * self.items,
            "sparse-ease": shared + per_item * self.items,
            "ease": svd,
            "als": svd + settings.get("iterations", 10) * step,
            "bpr-mf": svd + settings.get("epochs", 10) * self.pairs * (64.0 * 4 + dim * 6) / 1e9,
        }.get(settings["model"])
        if dense:
            own = shared + min(self.items, 2.0 * self.users) ** 2 * self.items / 7e10
            own += judged / self.users * self.pairs * self.items / 1e9
        elif own is None:
            drawn = settings.get("sampled_items") or self.items
            own = svd + settings.get("epochs", 10) * 6.0 * self.users * drawn * dim / 4e10
        return 0.02 + own + judged * self.items * (2.0 * dim / 4e10 + 3e-9)

    def memory(self, settings: Settings) -> float:
        """Return the rough bytes that a trial takes at its peak, next to the data."""
        model, cells = settings["model"], float(self.items) ** 2
        if model == "ensemble":
            return sum(self.memory(own) for own in settings["members"])
        counts = 12.0 * min(self.counts, cells)
        near = settings.get("neighbours", 0)
        if model == "sparse-ease" and (near == 0 or self.items <= MOST_DENSE):
            own = counts + (12.0 if near == 0 else 4.0) * cells
        elif model in ("sparse-ease", "item-knn", "graph-filter"):
            own = 3.0 * min(counts, 12.0 * self.items * near) if near else 4.0 * counts
        else:
            # Parameters, gradients, moments and temporaries.
            own = 24.0 * settings.get("factors", 1) * (self.users + self.items) + 32.0 * self.pairs
        return own + 60.0 * self.pairs + 3e8


def portfolio(size: Size, longest: float = 60.0) -> Iterator[Values]:
    """Yield the first trials: every family in its best-known form, then in other forms.

    Args:
        longest: seconds that a trial may take.
    """
    small, wide = (max(4, min(dim, size.smaller)) for dim in (64, _WIDE))

    def fitting(key: str, least: int, settings: Values) -> Values:
        """Halve a setting until the time suffices."""
        while size.cost(settings) > longest and settings[key] // 2 >= least:
            settings = {**settings, key: settings[key] // 2}
        return settings

    narrow: Values = {"model": "als", "factors": small, "alpha": 20.0, "regularization": 30.0}
    small_als = fitting("factors", 16, narrow)["factors"]
    wide = fitting("factors", small_als, {**narrow, "factors": wide})["factors"]
    als: list[tuple[int, float, float]]
    als = [(small_als, 20.0, 30.0), (wide, 20.0, 30.0), (small_als, 5.0, 10.0)]
    als += [(wide, 40.0, 100.0), (small_als, 40.0, 10.0)]
    full = {"model": "softmax-mf", "factors": small, "epochs": 6}
    drawn: Values = {}
    if size.items > _DRAWN_ITEMS and size.cost(full) > longest / 2:
        few = fitting("sampled_items", 1_024, {**full, "sampled_items": _DRAWN_ITEMS})
        drawn = {"sampled_items": few["sampled_items"]}
    # Denser data need more regularization.
    level = float(f"{max(10.0, 2.0 * size.pairs / max(1, size.items)):.2g}")
    ridges = [level, 4.0 * level, level / 2]
    sparse = {"model": "sparse-ease", "neighbours": 100, "regularization": level}
    near = fitting("neighbours", 25, sparse)["neighbours"]
    whole = 12.0 * min(size.counts, float(size.items) ** 2) <= _FILTER_BYTES
    kept = {} if whole else {"neighbours": 500}
    families: list[list[Values]] = [
        [{"model": "popularity"}],
        [{"model": "graph-filter", "power": power, **kept} for power in (0.25, 0.0)],
        [
            {"model": "als", "factors": dim, "alpha": alpha, "regularization": weight}
            for dim, alpha, weight in als
        ],
        [
            {"model": "sparse-ease", "neighbours": near, "regularization": weight}
            for near, weight in ((near, level), (near, 4.0 * level), (near // 2, level))
        ],
        [
            {"model": "sparse-ease", "neighbours": 0, "regularization": weight}
            for weight in ridges
            if size.items <= MOST_EXACT
        ],
        [
            {"model": "softmax-mf", "factors": small, "temperature": t, "epochs": 6, **drawn}
            for t in (0.13, 0.2, 0.08, 0.3)
        ],
        [{"model": "item-knn", "neighbours": near, "damping": 10.0} for near in (100, 20, 500)],
        # The start alone, a low-pass filter on the graph.
        [
            {"model": "softmax-mf", "normalize": False, "epochs": 0, "factors": dim}
            for dim in (small, wide)
        ],
        # Two families that seldom win come after the second forms of the others.
        [
            {},
            {
                "model": "bpr-mf",
                "factors": small,
                "init": "smooth",
                "epochs": 8,
                "reg_weight": 1e-3,
            },
        ],
        [{}, {"model": "ultragcn", "factors": small, "epochs": 12, "reg_weight": 6.5e-5}],
    ]
    for rung in zip_longest(*families):
        yield from (settings for settings in rung if settings)


Move = Callable[[Settings], Values | None]


def moves(settings: Settings, size: Size) -> list[Move]:
    """Return moves of one setting each, the most promising first; a move returns None to end."""
    wider = _times("factors", 2, most=max(4, min(_LARGEST_DIM, size.smaller)))
    narrower = _times("factors", 0.5, least=4)
    longer, shorter = _times("epochs", 2, most=64), _times("epochs", 0.5, least=1)
    model = settings["model"]
    if model == "softmax-mf" and settings.get("epochs") == 0:
        return [wider, narrower]
    weights, smooth = _both("reg_weight", 3.0), _set("init", "smooth")
    options = [_set("positive_temperature", 1.0), _set("weighting", "damped")]
    trained = [wider, longer, _faster(2.0), shorter]
    nearer = [_times("neighbours", 2, most=1_600), _times("neighbours", 0.5, least=10)]
    if not settings.get("neighbours"):
        nearer = []
    return {
        "graph-filter": [*_both("power", 2.0)],
        "item-knn": [*nearer, *_both("damping", 3.0)],
        "sparse-ease": [*_both("regularization", 2.0), *nearer],
        "ease": [wider, *_both("regularization", 3.0), narrower],
        "als": [*_both("regularization", 2.0), wider, *_both("alpha", 2.0), narrower],
        "softmax-mf": [*_both("temperature", 1.25), *trained, *options, narrower],
        "bpr-mf": [wider, *weights, longer, shorter, narrower],
        "ultragcn": [*weights, wider, longer, shorter, smooth, narrower],
    }.get(model, [])


def _both(key: str, factor: float) -> list[Move]:
    return [_times(key, 1.0 / factor), _times(key, factor)]


def _times(key: str, factor: float, *, least: float = 1e-9, most: float = 1e9) -> Move:
    def move(settings: Settings) -> Values | None:
        value = min(max(settings[key] * factor, least), most)
        value = int(value) if isinstance(settings[key], int) else float(f"{value:.3g}")
        # At the limit, or beyond it from the start.
        if (value - settings[key]) * (factor - 1.0) <= 0:
            return None
        return {**settings, key: value}

    return move


def _faster(factor: float) -> Move:
    """Multiply both learning rates of softmax MF, once."""
    defaults = MODELS["softmax-mf"].training_defaults

    def move(settings: Settings) -> Values | None:
        if "lr" in settings:
            return None
        return {**settings, **{key: factor * defaults[key] for key in ("lr", "user_lr")}}

    return move


def _set(key: str, value: Any) -> Move:
    def move(settings: Settings) -> Values | None:
        return None if settings.get(key) == value else {**settings, key: value}

    return move
