"""The Model contract: parameters, initialization, scored factors, and fold-in of new users.

An :class:`robustcf.objectives.Objective` is a function of the two scored factors. Where these are
not the parameters themselves (propagation over a graph, rows of length 1), a model defines
:meth:`Model.scored`, and takes gradients back to its parameters by :meth:`Model.pull_back`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from robustcf._checks import check_choice, check_number, check_numbers
from robustcf._distributed import alone
from robustcf._randomness import stream
from robustcf._registry import TRAINING
from robustcf.data.interactions import Interactions
from robustcf.data.shards import Shard
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.models.folding import FoldIn
from robustcf.models.scorer import Scorer
from robustcf.models.spectral import POPULARITY, spectral_factors
from robustcf.objectives.base import Gradient, configured

if TYPE_CHECKING:
    from robustcf.recommender import Recommender

# Rows of the normal start that are drawn at a time.
_DRAWN_ROWS = 2**16
INITS: tuple[str, ...] = ("spectral", "smooth", "normal")


@dataclass(frozen=True)
class ModelConfig:
    """Settings of every factorization that is trained from a start.

    Args:
        factors: columns of the factors.
        init: initialization: ``spectral`` (truncated SVD), ``smooth`` (low-pass filter on the
            graph) or ``normal`` (Gaussian).
        init_std: for ``normal``.
        popularity: for ``smooth``: the exponent of an item's degree in the length of its row; more
            is less personal, and harder to attack.
    """

    factors: int = 64
    init: str = "spectral"
    init_std: float = 1e-3
    popularity: float = POPULARITY

    def __post_init__(self) -> None:
        check_choice("init", self.init, INITS)
        check_numbers(self)
        check_number("init_std", self.init_std, positive=True)


ConfigT = TypeVar("ConfigT")


class Model(ABC, Generic[ConfigT]):
    """A factorization: the score of user u and item i is the product of their scored rows.

    Args:
        train: the pairs to build parameters for, as the training loop does; None to call
            :meth:`fit`.
        config: its settings; None for the defaults.
        start: factors to start from instead of ``config.init``.
        seed: of the initialization.
        device: of the tensors, as for ``dtype``.
        shard: facts of all pairs, where ``train`` has those of one rank's users.
        **settings: single settings instead of a config; with :meth:`fit`, those of training too:
            ``lr=0.01``, ``epochs=20``, ``reg="two_to_inf"``.
    """

    name: ClassVar[str] = ""
    Config: ClassVar[type[Any]] = ModelConfig
    #: The default objective.
    objective: ClassVar[str] = "bce"
    #: The default regularizer.
    reg: ClassVar[str] = "weight_decay"
    #: For ``spectral`` and ``smooth``: minus the score of every pair at the start.
    base_logit: ClassVar[float] = 5.0
    #: Whether it scores by user and item embeddings; otherwise it has a method ``scorer``.
    has_embeddings: ClassVar[bool] = True
    #: Settings of :class:`robustcf.training.TrainConfig` that suit it better than the defaults.
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
        _check_gradients(type(self))
        kind = type(self).__name__
        self.seed = seed
        self.device, self.dtype = torch.device(device), dtype
        if train is None:
            if start is not None or shard is not None or dtype != torch.float32:
                raise InputError(f"start, shard and dtype need pairs: build {kind}(train, ...)")
            own = settings
            if config is not None:
                own = vars(configured(type(self), config, settings))
            self._recipe = TRAINING["config"](type(self), {**own, "seed": seed})
            return
        with alone():
            self.shard = Shard.of(train) if shard is None else shard
        if self.shard.n_pairs == 0:
            raise InputError("train has no pairs: there is nothing to learn from")
        self.train, self.config = train, configured(type(self), config, settings)
        sizes = train.n_users, train.n_items
        if start is not None and (start.n_users, start.n_items) != sizes:
            raise InputError(
                f"start is for {start.n_users} users x {start.n_items} items, train has "
                f"{sizes[0]} x {sizes[1]}: they belong to different data"
            )
        self.users, self.items = self._placed(*(self._start() if start is None else start))
        self.updated(None)

    def fit(self, data: Any, **options: Any) -> Recommender:
        """Train on data and return the recommender.

        Args:
            data: a :class:`robustcf.data.Split`, or anything that :func:`robustcf.load` takes and
                holds out from.
            **options: ``device``, ``threads`` and ``progress``, see :func:`robustcf.train`.

        Example:
            >>> from robustcf.data import checkerboard
            >>> from robustcf.models import BPRMF
            >>> BPRMF(factors=4, epochs=2).fit(checkerboard()).label
            'bpr-mf, weight_decay'
        """
        if hasattr(self, "train"):
            kind = type(self).__name__
            raise InputError(f"this {kind} has its pairs already: use {kind}(factors=64).fit(data)")
        options = {"device": self.device, **options}
        found: Recommender = TRAINING["fit"](data, self._recipe, **options)
        return found

    @classmethod
    def fold_in_by(cls, config: Any, pairs: Interactions) -> FoldIn | None:
        """Return how new users of a model fit on pairs are embedded; None: by the objective."""
        return None

    @property
    def dim(self) -> int:
        """Columns of the parameters."""
        return int(self.users.shape[1])

    def _start(self) -> tuple[Tensor, Tensor]:
        """Return the parameters at the start; :meth:`_placed` moves them to device and dtype."""
        config: Any = self.config
        if config.init != "normal":
            return self._spectral(config.factors, self.base_logit, smooth=config.init == "smooth")
        rng, rows = stream(self.seed, "init"), self.shard.rows
        U = np.empty((self.train.n_users, config.factors), dtype=np.float32)
        # Every rank draws the users of all ranks, in blocks, so that all have the same start.
        for at in range(0, rows.count, _DRAWN_ROWS):
            size = min(_DRAWN_ROWS, rows.count - at), config.factors
            drawn = rng.normal(0.0, config.init_std, size)
            begin, end = max(at, rows.start), min(at + len(drawn), rows.stop)
            if begin < end:
                U[begin - rows.start : end - rows.start] = drawn[begin - at : end - at]
        V = rng.normal(0.0, config.init_std, (self.train.n_items, config.factors)).astype(
            np.float32
        )
        return torch.from_numpy(U), torch.from_numpy(V)

    def _spectral(
        self, dim: int, base_logit: float = 0.0, *, smooth: bool = False, constant: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the spectral start; ``constant=False`` leaves out the constant direction."""
        rng, width = stream(self.seed, "init"), dim if constant else dim + 1
        power: float = getattr(self.config, "popularity", POPULARITY)
        how: dict[str, Any] = {"base_logit": base_logit, "smooth": smooth, "popularity": power}
        U, V = spectral_factors(self.shard, width, rng, **how)
        return torch.tensor(U[:, :dim]), torch.tensor(V[:, :dim])

    def _placed(self, *factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies with the model's device and dtype."""
        layout = torch.contiguous_format
        users, items = (
            part.detach().to(self.device, self.dtype, copy=True, memory_format=layout)
            for part in factors
        )
        return users, items

    def scored(self) -> tuple[Tensor, Tensor]:
        """Return the factors whose products are the scores: here the parameters themselves."""
        return self.users, self.items

    def pull_back(self, gradient: Gradient) -> Gradient:
        """Return the gradient for the parameters; the argument may be overwritten."""
        return gradient

    def updated(self, rows: Tensor | None) -> None:
        """Update the scored rows after a training step on all items and these users (None: all)."""

    def factors(self) -> Factors:
        """Return the scored factors; users without training pairs get the mean of the others.

        They have no gradient of their own, and the mean ranks by average taste. An item without
        pairs is pushed down as a negative of every user.
        """
        U, V = self.scored()
        users = U.clone()
        cold = torch.from_numpy(self.train.user_degrees == 0).to(self.device)
        whole = self.shard.rows.whole
        if not whole or cold.any():
            warm = users[~cold]
            if whole:
                mean = warm.mean(dim=0)
            else:
                mean = self.shard.ranks.sum(warm.sum(dim=0)) / len(self.shard.warm_users)
            users[cold] = mean
        return Factors(users, V.clone())


class FitAtOnce(Model[ConfigT]):
    """Base of models that are fit at their start and have no epochs."""

    objective = "softmax"
    reg = "none"
    training_defaults = MappingProxyType({"epochs": 0, "epochs_chosen": True})


class WithoutEmbeddings(FitAtOnce[ConfigT]):
    """Base of models with a scorer in place of embeddings, fit by one process."""

    has_embeddings = False
    _scorer: Any

    @abstractmethod
    def _fitted(self) -> Scorer:
        """Return the scorer, fit to the training pairs."""

    def _start(self) -> tuple[Tensor, Tensor]:
        if not self.shard.rows.whole:
            raise InputError(f"{self.name} is fit by one process: start it without torchrun")
        self._scorer = self._fitted()
        return torch.empty(self.train.n_users, 0), torch.empty(self.train.n_items, 0)

    def scorer(self) -> Scorer:
        """Return the scorer by the pairs that it was fit on."""
        scorer: Scorer = self._scorer
        return scorer

    def factors(self) -> NoReturn:
        """Raise the error of a model without embeddings."""
        self.scorer().no_embeddings()


def _check_gradients(kind: type[Model[Any]]) -> None:
    """Raise for a class that overrides ``scored`` below the last override of ``pull_back``."""
    line = kind.__mro__
    scored, back = (
        next(n for n, each in enumerate(line) if name in vars(each))
        for name in ("scored", "pull_back")
    )
    if scored < back:
        raise InputError(
            f"{line[scored].__name__} defines scored and not pull_back: define pull_back, which "
            "turns the gradient for the scored factors into that for the parameters"
        )
