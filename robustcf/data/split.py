"""Split: train, valid and test pairs of one set, and the evaluation protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from robustcf._checks import check_integer
from robustcf._io.schema import TEXT, choice, list_of, record, whole
from robustcf._randomness import stream
from robustcf.data.interactions import Interactions, Labels, same_ids, user_ranges
from robustcf.errors import DataError

ValidSource = Literal["published", "carved", "none"]
#: The parts of a split.
PARTS = ("train", "valid", "test")
#: The pairs that a model was fit on.
FIT_ON = ("train", "train and valid")

#: See :class:`robustcf.metrics.evaluate.Protocol`.
PROTOCOL = record(
    {
        "dataset": TEXT,
        "part": choice("train", "valid", "test"),
        "masked": list_of(TEXT),
        "n_users": whole(),
        "n_users_left_out": whole(),
        "n_items": whole(),
    },
    {"capped": list_of(whole(1)), "sampled_from": whole(1), "sample_seed": whole()},
)


@dataclass(frozen=True)
class EvaluationProtocol:
    """For each part that can be evaluated, the parts whose pairs are not candidates there.

    On test, a named set with published validation pairs masks train only, as published results do;
    other sets mask train and valid.

    Args:
        users: evaluate on a seeded sample of so many users; None for all.
        seed: seed of the sample.
    """

    test: tuple[str, ...] = ("train", "valid")
    valid: tuple[str, ...] = ("train",)
    train: tuple[str, ...] = ()
    users: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.users is not None:
            check_integer("eval_users", self.users)
        for part in PARTS:
            masked = tuple(getattr(self, part))
            object.__setattr__(self, part, masked)
            known = {*PARTS} - {part}
            if not set(masked) <= known or len(set(masked)) != len(masked):
                raise DataError(
                    f"masked on {part} may be {' and '.join(sorted(known))}, each once, got "
                    f"{list(masked)}"
                )

    def sample(self, users: npt.NDArray[np.int64], n_users: int) -> npt.NDArray[np.int64]:
        """Return the users to evaluate on, ascending: all, or a seeded sample.

        The users with the smallest random numbers are taken, so the samples of two parts overlap.

        Example:
            >>> protocol = EvaluationProtocol(users=2)
            >>> [protocol.sample(np.arange(n), 10).tolist() for n in (10, 1)]
            [[3, 4], [0]]
        """
        if self.users is None or len(users) <= self.users:
            return users
        drawn = stream(self.seed, "evaluation", "users").random(n_users)[users]
        chosen = np.argsort(drawn, kind="stable")[: self.users]
        return np.sort(users[chosen])


@dataclass(frozen=True, eq=False)
class Split:
    """A data set cut into train, valid and test.

    Args:
        name: name of the set.
        train: pairs to learn from.
        valid: pairs to choose epochs and hyper-parameters on; may be empty.
        test: pairs to report on, never to choose by; may be empty.
        valid_source: ``published`` (a file of its own), ``carved`` (out of train) or ``none``.
        notes: sentences on pairs that were dropped or changed while loading.
        sources: file name -> sha256 of the files read (empty for generated sets).
        protocol: pairs to mask in evaluations; None for the default.

    Example:
        >>> from robustcf.data import load
        >>> load("demo").n_users
        2000
    """

    name: str
    train: Interactions
    valid: Interactions
    test: Interactions
    valid_source: ValidSource = "carved"
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    protocol: EvaluationProtocol | None = None

    def __post_init__(self) -> None:
        if self.protocol is None:
            # Known items are not recommended again.
            known = ("train", "valid") if len(self.valid) else ("train",)
            vars(self)["protocol"] = EvaluationProtocol(test=known)
        if not isinstance(self.protocol, EvaluationProtocol):
            got = type(self.protocol).__name__
            raise DataError(f"{self.name}: protocol must be an EvaluationProtocol, got {got}")
        vars(self).update(sources=MappingProxyType(dict(self.sources)), notes=tuple(self.notes))
        if len(self.train) == 0:
            raise DataError(f"{self.name}: train has no interactions; at least one is needed")
        for part in ("valid", "test"):
            same_ids(f"{self.name}: train and {part}", self.train, getattr(self, part))
        self._check_disjoint()

    def _check_disjoint(self) -> None:
        parts = {part: getattr(self, part) for part in PARTS}
        check_disjoint(self.name, parts, "remove them from one of the two")

    @classmethod
    def from_csr(
        cls,
        train: Any,
        test: Any = None,
        valid: Any = None,
        *,
        name: str = "own data",
        user_labels: Labels | None = None,
        item_labels: Labels | None = None,
    ) -> Split:
        """Build from users x items matrices of one shape, see :meth:`Interactions.from_csr`.

        Example:
            >>> import numpy as np
            >>> Split.from_csr(np.array([[1, 1, 0]]), test=np.array([[0, 0, 1]]))
            Split('own data', 1 users x 3 items, train 2, valid 0, test 1)
        """
        labels: dict[str, Any] = {"user_labels": user_labels, "item_labels": item_labels}
        pairs = Interactions.from_csr(train, **labels)
        none = pairs.take(np.zeros(len(pairs), dtype=bool))
        held, judged = (
            none if matrix is None else Interactions.from_csr(matrix, **labels)
            for matrix in (valid, test)
        )
        source: ValidSource = "none" if valid is None else "published"
        return cls(name, pairs, held, judged, source)

    def with_protocol(self, protocol: EvaluationProtocol) -> Self:
        """Return the same split with another protocol; its pairs are not checked again."""
        split = object.__new__(type(self))
        vars(split).update(vars(self), protocol=protocol)
        return split

    def with_eval_users(self, users: int | None) -> Self:
        """Return the split evaluated on a seeded sample of so many users; None changes nothing."""
        if users is None or self.protocol is None:
            return self
        return self.with_protocol(replace(self.protocol, users=users))

    def masked(self, part: str) -> tuple[str, ...]:
        """Return the parts whose pairs are not candidates when ``part`` is evaluated."""
        if self.protocol is None or part not in PARTS:
            raise DataError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
        masked: tuple[str, ...] = getattr(self.protocol, part)
        return masked

    @property
    def n_users(self) -> int:
        """Number of users, the same in all parts."""
        return self.train.n_users

    @property
    def n_items(self) -> int:
        """Number of items, the same in all parts."""
        return self.train.n_items

    @property
    def user_labels(self) -> Labels | None:
        """Original user names, or None."""
        return self.train.user_labels

    @property
    def item_labels(self) -> Labels | None:
        """Original item names, or None."""
        return self.train.item_labels

    @property
    def n_interactions(self) -> int:
        """Pairs in all three parts."""
        return len(self.train) + len(self.valid) + len(self.test)

    @cached_property
    def train_full(self) -> Interactions:
        """Train and valid together: the training pairs of a final refit."""
        return self.train.union(self.valid)

    def fit_pairs(self, fit_on: str) -> Interactions:
        """Return the pairs that a model was fit on: train, or train and valid after a refit."""
        return self.train if fit_on == "train" else self.train_full

    def fit_mask(self, fit_on: str, part: str) -> tuple[str, ...]:
        """Return the masked parts when a model fit on ``fit_on`` is evaluated on ``part``."""
        if part == "train":
            return ()
        if fit_on == "train":
            return self.masked(part)
        if part == "valid":
            raise DataError("the model was fit on train and valid: evaluate it on test only")
        return ("train", "valid")

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of sizes and pairs: equal for two splits exactly when their pairs are equal."""
        parts = (
            (len(part), (np.ascontiguousarray(c, dtype="<i4") for c in (part.users, part.items)))
            for part in (self.train, self.valid, self.test)
        )
        return fingerprint_of(self.n_users, self.n_items, parts)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return Split, tuple({**values, "sources": dict(self.sources)}.values())

    def __repr__(self) -> str:
        return (
            f"Split({self.name!r}, {self.n_users:,} users x {self.n_items:,} items, "
            f"train {len(self.train):,}, valid {len(self.valid):,}, test {len(self.test):,})"
        )


def fingerprint_of(
    n_users: int, n_items: int, parts: Iterable[tuple[int, Iterable[npt.NDArray[np.int32]]]]
) -> str:
    """Return :attr:`Split.fingerprint` of parts: the number of pairs, then users, then items."""
    digest = hashlib.sha256(f"{n_users},{n_items}".encode())
    for count, columns in parts:
        digest.update(f";{count};".encode())
        for column in columns:
            digest.update(column.data)  # without a copy
    return digest.hexdigest()


def check_disjoint(
    name: str, parts: Mapping[str, Interactions], advice: str, first_user: int = 0
) -> None:
    """Raise where two parts of the same ids share a pair."""
    for (left, a), (right, b) in combinations(parts.items(), 2):
        count, first = shared_pairs(a, b) if len(a) and len(b) else (0, None)
        if first is not None:
            user, item = (
                str(shift + number) if labels is None else repr(labels[number].item())
                for number, labels, shift in (
                    (first[0], a.user_labels, first_user),
                    (first[1], a.item_labels, 0),
                )
            )
            raise DataError(
                f"{name}: {count} pairs are in both {left} and {right}, the first is user {user}, "
                f"item {item}; {advice}"
            )


def shared_pairs(a: Interactions, b: Interactions) -> tuple[int, tuple[int, int] | None]:
    """Return how many pairs two sets of the same ids share, and the first; in blocks of users."""
    n_items, count = max(a.n_items, 1), 0
    first: tuple[int, int] | None = None
    for start, stop in user_ranges(a.indptr + b.indptr):
        parts = [pairs.between(start, stop) for pairs in (a, b)]
        keys = [part.users.astype(np.int64) * n_items + part.items for part in parts]
        # Both are sorted: looking the smaller up in the larger beats a set intersection.
        small, large = sorted(keys, key=len)
        if len(small) == 0:
            continue
        places = np.minimum(np.searchsorted(large, small), len(large) - 1)
        shared = small[large[places] == small]
        count += len(shared)
        if first is None and len(shared):
            row, item = divmod(int(shared[0]), n_items)
            first = start + row, item
    return count, first
