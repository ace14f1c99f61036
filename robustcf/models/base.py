"""The Model contract: parameters, where they start, what is scored, and how a new user folds in.

What a model learns from is an :class:`robustcf.objectives.Objective`, a function of the two scored
factors. In a plain factorization these are the parameters themselves. A model whose scored factors
are a function of its parameters (propagation over a graph, rows of length 1) says so by
:meth:`Model.scored`, and takes gradients back to its parameters by :meth:`Model.pull_back`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf._checks import check_choice, check_known, check_number, check_numbers
from robustcf._distributed import alone
from robustcf._randomness import stream
from robustcf._registry import TRAINING
from robustcf.data.interactions import Interactions
from robustcf.data.shards import Shard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.folding import FoldIn
from robustcf.models.spectral import spectral_factors
from robustcf.objectives.base import Gradient

if TYPE_CHECKING:
    from robustcf.recommender import Recommender

# Rows of the normal start that are drawn at a time.
_DRAWN_ROWS = 2**16
INITS: tuple[str, ...] = ("spectral", "smooth", "normal")


@dataclass(frozen=True)
class ModelConfig:
    """Settings that every factorization has.

    Args:
        dim: columns of the factors.
        init: ``spectral`` or ``smooth``, see :func:`robustcf.models.spectral.spectral_factors`, or
            ``normal`` with standard deviation ``init_std``.
        init_std: for ``normal``.
    """

    dim: int = 64
    init: str = "spectral"
    init_std: float = 1e-3

    def __post_init__(self) -> None:
        check_choice("init", self.init, INITS)
        check_numbers(self)
        check_number("init_std", self.init_std, positive=True)


ConfigT = TypeVar("ConfigT", bound=ModelConfig)


class Model(ABC, Generic[ConfigT]):
    """A factorization: the score of user u and item i is the product of their scored rows.

    Args:
        train: the pairs to build parameters for, as the training loop does; None to call
            :meth:`fit`.
        config: its settings; None for the defaults.
        start: factors to start from instead of ``config.init``.
        seed: of the initialization.
        device: where the tensors live.
        dtype: of the tensors.
        shard: where the pairs are those of one rank's users, what to know of all pairs.
        **settings: single settings instead of a config; with :meth:`fit`, those of training too:
            ``lr=0.01``, ``epochs=20``, ``reg="two_to_inf"``.
    """

    name: ClassVar[str] = ""
    Config: ClassVar[type[ModelConfig]] = ModelConfig
    #: The objective that it is trained with unless told otherwise.
    objective: ClassVar[str] = "bce"
    #: The regularizer that it is trained with unless told otherwise.
    reg: ClassVar[str] = "weight_decay"
    #: For ``spectral`` and ``smooth``: minus the score that everything starts from.
    base_logit: ClassVar[float] = 5.0
    #: Training settings that suit it better than the defaults of
    #: :class:`robustcf.training.TrainConfig`, by their names there.
    training_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    config: ConfigT
    users: Tensor
    items: Tensor

    def __init__(
        self,
        train: Interactions | None = None,
        config: ConfigT | None = None,
        *,
        start: Factors | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        shard: Shard | None = None,
        **settings: Any,
    ) -> None:
        """Build the parameters; nothing is learnt yet."""
        _check_gradients(type(self))
        if config is not None and settings:
            raise InputError(f"give {type(self).__name__} a config or single settings, not both")
        self.seed = seed
        self.device, self.dtype = torch.device(device), dtype
        if train is None:
            if start is not None or shard is not None or dtype != torch.float32:
                raise InputError(
                    "start, shard and dtype are for a model that is built on pairs: leave them "
                    f"out, or build {type(self).__name__}(train, ...)"
                )
            own = settings if config is None else vars(config)
            self._recipe = TRAINING["config"](type(self), {**own, "seed": seed})
            return
        with alone():
            self.shard = Shard.of(train) if shard is None else shard
        if self.shard.n_pairs == 0:
            raise InputError("train has no pairs: there is nothing to learn from")
        if config is None:
            check_known(self.Config, settings)
            config = self.Config(**settings)  # type: ignore[assignment]
        if not isinstance(config, self.Config):
            raise InputError(
                f"{type(self).__name__} takes a {self.Config.__name__}, got a "
                f"{type(config).__name__}"
            )
        self.train, self.config = train, config
        self.users, self.items = self._start() if start is None else self._started_from(start)
        self.updated(None)

    def fit(self, data: Any, **options: Any) -> Recommender:
        """Train on data and return the recommender, as other libraries' ``fit`` does.

        Args:
            data: a :class:`robustcf.data.Split`, or anything that :func:`robustcf.load` takes: a
                DataFrame, a users x items matrix, a file. Data that are not split yet are held out
                from as ``load`` does.
            **options: ``device``, ``threads`` and ``progress``, see :func:`robustcf.train`.

        Raises:
            InputError: it was built on pairs already.

        Example:
            >>> from robustcf.data import checkerboard
            >>> from robustcf.models import BPRMF
            >>> BPRMF(dim=4, epochs=2).fit(checkerboard()).label
            'bpr-mf, weight_decay'
        """
        if hasattr(self, "train"):
            raise InputError(
                f"this {type(self).__name__} has its pairs already: make one without, "
                f"{type(self).__name__}(dim=64).fit(data)"
            )
        found: Recommender = TRAINING["fit"](
            data, self._recipe, **{"device": self.device, **options}
        )
        return found

    @classmethod
    def fold_in_by(cls, config: Any, pairs: Interactions) -> FoldIn | None:
        """Return how a new user is embedded, where that is not by the objective.

        Args:
            config: the model's settings.
            pairs: the interactions that it was fit on.
        """
        return None

    @property
    def dim(self) -> int:
        """Columns of the parameters."""
        return int(self.users.shape[1])

    def _started_from(self, start: Factors) -> tuple[Tensor, Tensor]:
        if (start.n_users, start.n_items) != (self.train.n_users, self.train.n_items):
            raise InputError(
                f"start is for {start.n_users} users x {start.n_items} items, train has "
                f"{self.train.n_users} x {self.train.n_items}: they belong to different data"
            )
        users, items = (
            part.detach().to(device=self.device, dtype=self.dtype).clone() for part in start
        )
        return users, items

    def _start(self) -> tuple[Tensor, Tensor]:
        rng, config, train = stream(self.seed, "init"), self.config, self.train
        if config.init != "normal":
            U, V = spectral_factors(
                self.shard,
                config.dim,
                rng,
                base_logit=self.base_logit,
                smooth=config.init == "smooth",
            )
        else:
            rows, dim, std = self.shard.rows, config.dim, config.init_std
            U = np.empty((train.n_users, dim), dtype=np.float32)
            # The users of all ranks are drawn everywhere, some at a time: one stream, one start.
            for at in range(0, rows.count, _DRAWN_ROWS):
                drawn = rng.normal(0.0, std, (min(_DRAWN_ROWS, rows.count - at), dim))
                begin, end = max(at, rows.start), min(at + len(drawn), rows.stop)
                if begin < end:
                    U[begin - rows.start : end - rows.start] = drawn[begin - at : end - at]
            V = rng.normal(0.0, std, (train.n_items, dim)).astype(np.float32)
        return self._tensor(U, self.dtype), self._tensor(V, self.dtype)

    def _tensor(self, array: npt.NDArray[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(array, dtype=dtype, device=self.device)

    # --- what is scored ---------------------------------------------------------------------

    def scored(self) -> tuple[Tensor, Tensor]:
        """The factors whose products are the scores: here the parameters themselves."""
        return self.users, self.items

    def pull_back(self, gradient: Gradient) -> Gradient:
        """The gradient for the parameters, from that for the scored factors.

        What is given is not needed afterwards: it may be overwritten.
        """
        return gradient

    def updated(self, rows: Tensor | None) -> None:
        """Training has changed all items, and these users (None: all): scored rows follow."""

    def factors(self) -> Factors:
        """The scored factors. A user without training pairs gets the mean of those who have some.

        Such a user has no gradient of their own; the mean ranks by average taste, which is the
        best guess there is. An item without pairs is pushed down as everybody's negative.
        """
        U, V = self.scored()
        users = U.clone()
        cold = np.flatnonzero(self.train.user_degrees == 0)
        if self.shard.rows.whole and len(cold) == 0:
            return Factors(users, V.clone())
        warm = self._tensor(np.flatnonzero(self.train.user_degrees), torch.int64)
        if self.shard.rows.whole:
            mean = users[warm].mean(dim=0)
        else:
            mean = self.shard.ranks.sum(users[warm].sum(dim=0)) / len(self.shard.warm_users)
        users[self._tensor(cold, torch.int64)] = mean
        return Factors(users, V.clone())


def _check_gradients(kind: type[Model[Any]]) -> None:
    """Raise for a class that changes what is scored, but not how gradients get back from there."""
    line = kind.__mro__
    scored, back = (
        next(n for n, each in enumerate(line) if name in vars(each))
        for name in ("scored", "pull_back")
    )
    if scored < back:
        raise InputError(
            f"{line[scored].__name__} defines scored and not pull_back: its gradients would be "
            "those of other factors; define pull_back, the gradient for the parameters from that "
            "for the scored factors"
        )
