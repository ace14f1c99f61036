"""What a search tries: a portfolio of models, and the moves that improve one setting at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from robustcf._registry import MODELS
from robustcf.data.split import Split
from robustcf.models.als import unobserved_weight
from robustcf.models.ease import is_small

# Beyond this many items a softmax draws some of them for its sum.
_ALL_ITEMS, _DRAWN_ITEMS = 60_000, 8_192
_LARGEST_DIM = 512
_WIDE = 256
# EASE has no epochs: more columns cost it little, and with all of them it is exact.
_LARGEST_EASE = 2_048

Settings = Mapping[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How large the data are: what trials cost follows from it."""

    users: int
    items: int
    pairs: int

    @classmethod
    def of(cls, split: Split) -> Size:
        """Of the pairs that are trained on."""
        return cls(split.n_users, split.n_items, len(split.train))

    @property
    def smaller(self) -> int:
        """The number of users or of items, whichever is less."""
        return min(self.users, self.items)

    @property
    def widest_ease(self) -> int:
        """The most columns of EASE."""
        return _LARGEST_EASE if is_small(self.users, self.items) else _LARGEST_DIM

    def cost(self, settings: Settings) -> float:
        """Seconds of one training and validation, roughly, on one core."""
        dim = float(settings.get("dim", 64))
        cells, both = float(self.users * self.items), self.users + self.items
        svd = 16.0 * self.pairs * dim / 2e9 + 16.0 * both * dim**2 / 3e10
        if settings["model"] == "ease" and dim == self.smaller <= self.widest_ease:
            svd = 4.0 * self.pairs * dim / 2e9 + 2.0 * dim**3 / 3e10
        own: float | None = {
            "popularity": 0.0,
            "ease": svd,
            "als": svd + 40.0 * settings.get("sweeps", 10) * self.pairs * dim / 3e9,
            "bpr-mf": svd + settings.get("epochs", 10) * self.pairs * (64.0 * 4 + dim * 6) / 1e9,
        }.get(settings["model"])
        if own is None:
            drawn = settings.get("sampled_items") or self.items
            own = svd + settings.get("epochs", 10) * 6.0 * self.users * drawn * dim / 5e10
        return 0.02 + own + 2.0 * cells * dim / 5e10 + cells / 1e9


def portfolio(size: Size) -> Iterator[Values]:
    """What is tried first, cheap before dear."""
    small = max(4, min(64, size.smaller))
    yield {"model": "popularity"}
    # The start alone, a low-pass filter on the graph.
    start = {"model": "softmax-mf", "normalize": False, "epochs": 0}
    for dim in (small, max(4, small // 4)):
        yield {**start, "dim": dim}
    wide = size.smaller if size.smaller <= size.widest_ease else _WIDE
    for ridge in (300.0, 100.0, 1000.0):
        yield {"model": "ease", "dim": max(4, wide), "ridge": ridge}
    much = unobserved_weight(size.items, 900.0)
    tried = [(small, much / 3, 0.01), (small, much, 0.01), (small, much, 0.003)]
    if size.smaller >= 2 * _WIDE:
        # Sparse data want many columns, and ALS is the cheapest way to see it.
        tried.append((_WIDE, much / 3, 0.01))
    for dim, unobserved, ridge in tried:
        yield {
            "model": "als", "dim": dim, "unobserved": float(f"{unobserved:.3g}"), "ridge": ridge,
        }  # fmt: skip
    drawn = {} if size.items <= _ALL_ITEMS else {"sampled_items": _DRAWN_ITEMS}
    for temperature in (0.13, 0.2, 0.08, 0.3):
        yield {
            "model": "softmax-mf", "dim": small, "temperature": temperature, "epochs": 6, **drawn,
        }  # fmt: skip
    yield {"model": "bpr-mf", "dim": small, "init": "smooth", "epochs": 8, "reg_weight": 1e-3}
    yield {"model": "ultragcn", "dim": small, "epochs": 12, "reg_weight": 6.5e-5}


Move = Callable[[Settings], Values | None]


def moves(settings: Settings, size: Size) -> list[Move]:
    """Ways to change one setting of a model, the most promising first; None: no further."""
    most = size.widest_ease if settings["model"] == "ease" else _LARGEST_DIM
    wider = _times("dim", 2, most=max(4, min(most, size.smaller)))
    narrower = _times("dim", 0.5, least=4)
    longer, shorter = _times("epochs", 2, most=64), _times("epochs", 0.5, least=1)
    model = settings["model"]
    if model == "softmax-mf" and settings.get("epochs") == 0:
        return [wider, narrower]
    return {
        "popularity": [],
        "ease": [wider, *_both("ridge", 3.0), narrower],
        "als": [wider, *_both("ridge", 2.0), *_both("unobserved", 2.0), narrower],
        "softmax-mf": [
            *_both("temperature", 1.25),
            wider,
            longer,
            _faster(2.0),
            shorter,
            _set("positive_temperature", 1.0),
            _set("weighting", "damped"),
            narrower,
        ],
        "bpr-mf": [wider, *_both("reg_weight", 3.0), longer, shorter, narrower],
        "ultragcn": [
            *_both("reg_weight", 3.0),
            wider,
            longer,
            shorter,
            _set("init", "smooth"),
            narrower,
        ],
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
    """Both learning rates of softmax MF times a factor, once."""
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
