"""Target: what is attacked. Embeddings, the pairs they are judged by, what may not be touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustcf.data.interactions import Interactions
from robustcf.data.split import Split
from robustcf.errors import InputError
from robustcf.factors import Factors
from robustcf.metrics.evaluate import (
    PARTS,
    MetricReport,
    Part,
    check_same_data,
    evaluate,
    judged_users,
    masked_pairs,
)
from robustcf.models.gauge import Gauge, shrink, truncate
from robustcf.objectives import BCEConfig
from robustcf.support.checks import check_choice, check_integer, check_list, check_number
from robustcf.support.naming import counted
from robustcf.training.train import FIT_ON, Trained, fit_mask, fit_pairs

Matrix = Tensor | npt.NDArray[Any]


class Target:
    """A recommender under attack: anybody's U and V, and the interactions behind them.

    Args:
        users: U, users x dim: a tensor, a numpy array or lists of numbers.
        items: V, items x dim. The score of user u and item i is ``U[u] @ V[i]``.
        data: the pairs that the factors were fit on: a scipy or numpy matrix (users x items), an
            :class:`robustcf.data.Interactions`, or a whole :class:`robustcf.data.Split`.
        test: held-out pairs, a matrix too; only with a matrix or Interactions.
        part: the pairs that count as relevant: ``test`` by default, or ``valid`` to choose by.
            Without any held-out pairs it is ``train``: then the curve tells how what was learnt
            holds, and nothing of quality on new pairs.
        mask: parts that are no candidates; None for the protocol of the split.
        fit_on: ``train``, or ``train and valid`` for factors that were refit on both.
        fixed: columns that no attack may touch: a bias, and the constant 1 it is multiplied with.
        label: what to call it in tables and pictures.
        bce: weights of the cross-entropy it was trained with, for attacks on that.

    Raises:
        InputError: factors that are no finite matrices, or do not fit the data.

    Cost: none but a check that all numbers are finite; floating-point numbers of one precision are
    not copied.

    Example:
        >>> import numpy as np
        >>> U, V = np.eye(3, 2), np.eye(4, 2)
        >>> pairs = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]])
        >>> Target(U, V, pairs)
        Target(3 users x 4 items, dim 2, judged by 4 train pairs)
    """

    def __init__(
        self,
        users: Matrix | Sequence[Sequence[float]],
        items: Matrix | Sequence[Sequence[float]],
        data: Any,
        test: Any = None,
        *,
        part: Part | None = None,
        mask: Sequence[str] | None = None,
        fit_on: str = "train",
        fixed: Sequence[int] = (),
        label: str = "",
        bce: BCEConfig | None = None,
    ) -> None:
        """Check that factors and data belong together."""
        self.factors = Factors.of(users, items)
        self.factors.check_finite()
        self.split = _split_of(data, test)
        check_same_data(self.factors, self.split)
        check_choice("part", part or "test", PARTS)
        check_choice("fit_on", fit_on, FIT_ON)
        self.part: Part = part or ("test" if len(self.split.test) else "train")
        if part is not None and len(getattr(self.split, part)) == 0:
            raise InputError(
                f"{self.split.name} has no {part} pairs to judge by: give some, or leave part out"
            )
        self.fit_on, self.label = fit_on, label
        # An attack computes in full precision, whatever training did.
        self.bce = None if bce is None else replace(bce, precision="float32")
        # Judged by the very pairs it was fit on, nothing of them can be masked.
        judged_by_train = self.part == "train"
        own = () if judged_by_train else fit_mask(self.split, fit_on, self.part)
        self.mask = own if mask is None else tuple(mask)
        columns = check_list("fixed", fixed)
        self.fixed = tuple(check_integer("a fixed column", column, 0) for column in columns)
        if any(not 0 <= column < self.factors.dim for column in self.fixed):
            raise InputError(
                f"fixed columns must be in [0, {self.factors.dim}), got {list(self.fixed)}"
            )
        if len(set(self.fixed)) == self.factors.dim:
            raise InputError("all columns are held fixed: there is nothing to attack")

    @classmethod
    def of(cls, trained: Trained, **options: Any) -> Target:
        """What :func:`robustcf.training.train` returned, as a target.

        Example:
            >>> from robustcf.data import load
            >>> from robustcf.training import TrainConfig, train
            >>> Target.of(train(load("demo"), TrainConfig.of(dim=4, epochs=0))).part
            'test'
        """
        if not isinstance(trained, Trained):
            raise InputError(
                f"Target.of takes what robustcf.training.train returned, got "
                f"{type(trained).__name__}: for embeddings of your own use Target(U, V, pairs)"
            )
        objective = trained.config.resolved().objective.settings
        own: dict[str, Any] = {
            "fit_on": trained.fit_on,
            "label": f"{trained.config.model.name}, {trained.config.reg.name}",
            "bce": objective if isinstance(objective, BCEConfig) else None,
        }
        users, items = trained.factors
        return cls(users, items, trained.split, **{**own, **options})

    @property
    def known(self) -> Interactions:
        """The pairs that the factors were fit on: what an attacker who has the data knows."""
        return fit_pairs(self.split, self.fit_on)

    @cached_property
    def relevant(self) -> Interactions:
        """The pairs that count: what an attacker who has the labels knows.

        Where a sample of the users is evaluated, theirs: an attack on pairs that do not count would
        look weaker than it is.
        """
        pairs: Interactions = getattr(self.split, self.part)
        protocol = self.split.protocol
        if protocol is None or protocol.users is None or len(pairs) == 0:
            return pairs
        counts = np.zeros(pairs.n_users, dtype=bool)
        counts[judged_users(self.split, self.part, self.mask).users] = True
        return pairs if counts.all() else pairs.take(counts[pairs.users])

    @property
    def seen(self) -> Interactions | None:
        """The pairs that are no candidates."""
        return masked_pairs(self.split, self.part, self.mask)

    @property
    def free(self) -> list[int]:
        """The columns that an attack may touch."""
        return [column for column in range(self.factors.dim) if column not in self.fixed]

    def evaluate(
        self,
        ks: Sequence[int] = (10, 20),
        factors: Factors | None = None,
        *,
        progress: bool = False,
    ) -> MetricReport:
        """Metrics of the factors, or of others in their place; with a bar on stderr, if asked for.

        Example:
            >>> import numpy as np
            >>> Target(np.eye(2), np.eye(2), np.eye(2)).evaluate(ks=(1,))["ndcg@1"]
            1.0
        """
        chosen = self.factors if factors is None else factors
        return evaluate(chosen, self.split, ks, part=self.part, mask=self.mask, progress=progress)

    def with_factors(self, factors: Factors) -> Target:
        """The same target with other factors."""
        users, items = factors
        other = Target(
            users,
            items,
            self.split,
            part=self.part,
            mask=self.mask,
            fit_on=self.fit_on,
            fixed=self.fixed,
            label=self.label,
            bce=self.bce,
        )
        other.relevant = self.relevant  # the very same: attacks are told apart by what they hold
        return other

    def __repr__(self) -> str:
        held = f", {counted(len(self.fixed), 'column')} held fixed" if self.fixed else ""
        return (
            f"Target({self.factors.n_users:,} users x {self.factors.n_items:,} items, dim "
            f"{self.factors.dim}{held}, judged by {len(self.relevant):,} {self.part} pairs)"
        )


def check_target(target: object) -> None:
    """Raise unless this is a target.

    Example:
        >>> check_target(([[1.0]], [[1.0]]))
        Traceback (most recent call last):
        robustcf.errors.InputError: target must be a Target, got tuple: make one of your embeddings
        and the pairs they were fit on, Target(U, V, pairs)
    """
    if not isinstance(target, Target):
        raise InputError(
            f"target must be a Target, got {type(target).__name__}: make one of your embeddings "
            "and the pairs they were fit on, Target(U, V, pairs)"
        )


def harden(target: Target, *, shrink_by: float = 0.0, rank: int | None = None) -> Target:
    """An equivalent factorization (same rankings) on which perturbations usually do less damage.

    It removes the common item direction and balances U and V: the balanced gauge. That usually
    raises the certificate, and much so for models trained with a cross-entropy, but there is no
    guarantee: measure both. Needs no data and no training, see :mod:`robustcf.models.gauge`.
    Columns held fixed stay as they are.

    Args:
        target: what to harden.
        shrink_by: how much shorter the singular values of the scores become, in their median; 0
            leaves every ranking as it is.
        rank: how many of the strongest directions of the scores to keep; None for all, which leaves
            every ranking as it is. Fewer cost some quality and leave more of it under attack.

    Cost: a QR decomposition of each factor, O((users + items) dim^2).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> target = Target(rng.normal(3, 1, (9, 4)), rng.normal(-3, 1, (7, 4)), np.eye(9, 7))
        >>> safer = harden(target)
        >>> bool(safer.factors.items.norm() < target.factors.items.norm())
        True
    """
    check_target(target)
    check_number("shrink_by", shrink_by)
    if rank is not None:
        check_integer("rank", rank)
    free = torch.tensor(target.free)
    moved = Factors(target.factors.users[:, free], target.factors.items[:, free])
    safer = truncate(shrink(Gauge.balanced(*moved).apply(moved), shrink_by), rank)
    parts = []
    for whole, part in zip(target.factors, safer, strict=True):
        changed = whole.clone()
        # With fewer users or items than columns, there are fewer directions than that.
        changed[:, free] = 0.0
        changed[:, free[: part.shape[1]]] = part
        parts.append(changed)
    return target.with_factors(Factors(*parts))


def _split_of(data: Any, test: Any) -> Split:
    if isinstance(data, Split):
        if test is not None:
            raise InputError("a Split has its own test pairs: leave test out")
        return data
    if data is None:
        raise InputError(
            "a target needs the pairs that its factors were fit on: a users x items matrix"
        )
    pairs = data if isinstance(data, Interactions) else Interactions.from_csr(data)
    none = pairs.take(pairs.users < 0)
    if test is None:
        return Split("own data", pairs, none, none, valid_source="none")
    labels = {"user_labels": pairs.user_labels, "item_labels": pairs.item_labels}
    held = test if isinstance(test, Interactions) else Interactions.from_csr(test, **labels)
    if len(held) == 0:
        raise InputError("test has no pairs to judge by: give some, or leave test out")
    return Split("own data", pairs, none, held, valid_source="none")
