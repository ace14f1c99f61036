"""Item-item models, fit at once: ridge regressions on similar items, item-kNN, a graph filter.

A user's score of item j is the sum of weights B[i, j] over the items i of the history, see
:class:`robustcf.models.item_item.ItemItemScorer`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix, diags, vstack
from torch import Tensor

from robustcf._checks import check_integer, check_number
from robustcf.data.interactions import Interactions
from robustcf.errors import InputError
from robustcf.models.base import ConfigT, WithoutEmbeddings
from robustcf.models.item_item import MOST_DENSE, MOST_EXACT, ItemItemScorer, Weights
from robustcf.models.scorer import Ids
from robustcf.objectives.weights import largest

# Similarities, and matrices that are solved together, at a time.
_BLOCK_BYTES, _SOLVED_BYTES = 64 * 2**20, 64 * 2**20


class ItemItemModel(WithoutEmbeddings[ConfigT]):
    """A model of item-item weights. It has neither epochs nor embeddings."""

    @abstractmethod
    def _weights(self) -> Weights:
        """Return the weights by the training pairs."""

    def _fitted(self) -> ItemItemScorer:
        return ItemItemScorer(self.train, self._weights())

    @property
    def weights(self) -> Weights:
        """Items x items."""
        weights: Weights = self._scorer.weights
        return weights


@dataclass(frozen=True)
class SparseEASEConfig:
    """Settings of sparse EASE.

    Args:
        regularization: the weight of the squared entries of the item-item matrix.
        neighbours: the most similar items that each item is regressed on; 0 for all, which is
            exact EASE with a dense matrix.
        kept: the weights of largest size that are kept per item; 0 for all.
    """

    regularization: float = 50.0
    neighbours: int = 100
    kept: int = 0

    def __post_init__(self) -> None:
        check_number("regularization", self.regularization, positive=True)
        check_integer("neighbours", self.neighbours, 0)
        check_integer("kept", self.kept, 0)


class SparseEASE(ItemItemModel[SparseEASEConfig]):
    """EASE with each item regressed on its most similar items, see :func:`ridge_weights`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> SparseEASE(checkerboard().train, neighbours=5).weights.nnz
        150
    """

    name = "sparse-ease"
    Config = SparseEASEConfig

    def _weights(self) -> Weights:
        own, pairs = self.config, self.train
        if own.neighbours:
            if own.kept:
                raise InputError("kept is for exact EASE: leave it out, or set neighbours=0")
            return ridge_weights(pairs, own.regularization, own.neighbours)
        if pairs.n_items > MOST_EXACT:
            raise InputError(
                f"exact EASE is for at most {MOST_EXACT:,} items, got {pairs.n_items:,}: give a "
                "number of neighbours"
            )
        whole = ease_weights(pairs, own.regularization)
        return largest_weights(whole, own.kept) if 0 < own.kept < pairs.n_items else whole


@dataclass(frozen=True)
class ItemKNNConfig:
    """Settings of item-kNN.

    Args:
        neighbours: the most similar items that score an item.
        damping: lowers the similarity of items with few users.
    """

    neighbours: int = 100
    damping: float = 10.0

    def __post_init__(self) -> None:
        check_integer("neighbours", self.neighbours)
        check_number("damping", self.damping)


class ItemKNN(ItemItemModel[ItemKNNConfig]):
    """Item-kNN by damped cosines, see :func:`cosine_weights`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> ItemKNN(checkerboard().train, neighbours=3).weights.nnz
        90
    """

    name = "item-knn"
    Config = ItemKNNConfig

    def _weights(self) -> Weights:
        return cosine_weights(self.train, self.config.neighbours, self.config.damping)


@dataclass(frozen=True)
class GraphFilterConfig:
    """Settings of the graph filter.

    Args:
        power: how much popular items are favoured.
        neighbours: the weights that are kept per item; 0 for all.
    """

    power: float = 0.25
    neighbours: int = 0

    def __post_init__(self) -> None:
        check_number("power", self.power)
        check_integer("neighbours", self.neighbours, 0)


class GraphFilter(ItemItemModel[GraphFilterConfig]):
    """A linear filter on the graph of items, without training, see :func:`filter_weights`.

    Example:
        >>> from robustcf.data import checkerboard
        >>> GraphFilter(checkerboard().train).weights.shape
        (30, 30)
    """

    name = "graph-filter"
    Config = GraphFilterConfig

    def _weights(self) -> Weights:
        return filter_weights(self.train, self.config.power, self.config.neighbours)


def ease_weights(pairs: Interactions, regularization: float) -> npt.NDArray[np.float32]:
    """Return the dense matrix of EASE (Steck, 2019, arXiv:1905.03375), in float32.

    With P = (R^T R + l I)^-1, l the regularization, it is ``-P / diag(P)`` by columns, 0 on the
    diagonal. Where users are few, P = (I - R^T (R R^T + l I)^-1 R) / l.

    Cost: a Cholesky inverse of items x items, or of users x users for less than half as many users;
    memory for three matrices of items x items in float32.

    Example:
        >>> from robustcf.data import checkerboard
        >>> ease_weights(checkerboard().train, 10.0).shape
        (30, 30)
    """
    R = pairs.csr().astype(np.float32)
    if 2 * pairs.n_users <= pairs.n_items:
        inverse = _regularized_inverse((R @ R.T).toarray(), regularization).numpy()
        found = torch.from_numpy(R.T @ np.ascontiguousarray((R.T @ inverse).T))
        found.div_((1.0 - found.diagonal().double()).clamp_min_(1e-6).float())
    else:
        found = _regularized_inverse((R.T @ R).toarray(), regularization)
        found.div_(-found.diagonal().clone())
    weights: npt.NDArray[np.float32] = found.fill_diagonal_(0.0).numpy()
    return weights


def largest_weights(weights: npt.NDArray[np.float32], most: int) -> csr_matrix:
    """Return the weights of largest size into each item, at most ``most``, as a sparse matrix.

    Example:
        >>> largest_weights(np.float32([[0, 3, 1], [-2, 0, 1], [1, 1, 0]]), 1).toarray().tolist()
        [[0.0, 3.0, 1.0], [-2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    n_items, parts = len(weights), []
    step = max(1, _BLOCK_BYTES // (16 * n_items))
    for start in range(0, n_items, step):
        into = weights[:, start : start + step].T
        order = np.argsort(-np.abs(into), axis=1, kind="stable")[:, :most]
        order.sort(axis=1)
        ends = np.arange(0, order.size + 1, order.shape[1])
        values = np.take_along_axis(into, order, axis=1).ravel()
        parts.append(csr_matrix((values, order.ravel(), ends), (len(into), n_items)))
    return vstack(parts).T.tocsr()


def _regularized_inverse(counts: npt.NDArray[np.float32], regularization: float) -> Tensor:
    """Return (counts + regularization I)^-1; the argument is overwritten."""
    gram = torch.from_numpy(counts)
    gram.diagonal().add_(regularization)
    root, failed = torch.linalg.cholesky_ex(gram)
    if failed:  # in float32 only
        root = torch.linalg.cholesky(gram.double())
    del gram
    # Symmetric, in the order of columns: products with it want rows.
    return torch.cholesky_inverse(root).float().T.contiguous()


def ridge_weights(pairs: Interactions, regularization: float, neighbours: int) -> csr_matrix:
    """Return sparse weights: each item's ridge regression on its most similar items alone.

    Column j minimizes ``||R_j - R_N b||^2 + regularization ||b||^2`` over the items N with the
    highest cosine to j. With all items it is EASE; feature selection before the regression is
    that of fsSLIM (Ning and Karypis, 2011, doi:10.1109/ICDM.2011.134).

    Cost: items x neighbours^3 / 3; up to 16,384 items a dense matrix of item-item counts, beyond
    it the counts of the neighbours of one item at a time.

    Example:
        >>> from robustcf.data import checkerboard
        >>> ridge_weights(checkerboard().train, 10.0, 5).nnz
        150
    """
    nearest = _nearest(pairs, neighbours, damping=0.0)
    R = pairs.csr().astype(np.float32)
    n_items, sizes = pairs.n_items, np.diff(nearest.indptr)
    solved = np.empty(nearest.nnz, dtype=np.float32)
    counts = (R.T @ R).toarray() if n_items <= MOST_DENSE else None
    columns = R.tocsc() if counts is None else None
    for size in np.unique(sizes[sizes > 0]).tolist():
        items = np.flatnonzero(sizes == size)
        step = max(1, _SOLVED_BYTES // (8 * size * size))
        for start in range(0, len(items), step):
            some = items[start : start + step]
            places = nearest.indptr[some][:, None] + np.arange(size)
            others = nearest.indices[places]
            if counts is not None:
                squares = counts[others[:, :, None], others[:, None, :]]
                right = counts[others, some[:, None]]
            else:
                squares, right = _counted(columns, others, some)
            matrix = torch.from_numpy(squares.astype(np.float64))
            matrix.diagonal(dim1=1, dim2=2).add_(regularization)
            values = torch.from_numpy(right.astype(np.float64))[:, :, None]
            root = torch.linalg.cholesky(matrix)
            solved[places] = torch.cholesky_solve(values, root)[:, :, 0].float().numpy()
    # Row j has the weights into item j: the transpose scores histories.
    return csr_matrix((solved, nearest.indices, nearest.indptr), nearest.shape).T.tocsr()


def _counted(
    columns: Any, others: npt.NDArray[Any], items: Ids
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the counts among the neighbours of each item, and with the item itself."""
    squares = np.empty((len(items), others.shape[1], others.shape[1]), dtype=np.float32)
    right = np.empty(others.shape, dtype=np.float32)
    for n, item in enumerate(items.tolist()):
        own = columns[:, others[n]]
        squares[n] = (own.T @ own).toarray()
        right[n] = (own.T @ columns[:, [item]]).toarray()[:, 0]
    return squares, right


def cosine_weights(pairs: Interactions, neighbours: int, damping: float = 10.0) -> csr_matrix:
    """Return the weights of item-kNN: cosines, damped by ``damping``, of the most similar items.

    Weight (i, j) is ``n_ij / (sqrt(n_i n_j) + damping)`` for the ``neighbours`` items i that are
    the most similar to j.
    """
    return _nearest(pairs, neighbours, damping).T.tocsr()


def filter_weights(pairs: Interactions, power: float = 0.25, neighbours: int = 0) -> csr_matrix:
    """Return the weights of a linear filter on the normalized graph, ``D^-p N^T N D^p``.

    N is ``D_u^-1/2 R D^-1/2`` with the degrees of users and items; a positive power p favours
    popular items. 0 neighbours keep all weights.

    Cost: one sparse product; no training.
    """
    users, items = (np.maximum(own, 1.0) for own in (pairs.user_degrees, pairs.item_degrees))
    R = pairs.csr().astype(np.float64)
    # Transposed: row j has the weights into item j.
    into = (diags(items ** (power - 0.5)) @ R.T @ diags(1.0 / users)).tocsr()
    out = (R @ diags(items ** (-0.5 - power))).tocsr()
    rows = [_largest((into[part] @ out).tocsr(), part, neighbours) for part in _item_blocks(pairs)]
    return vstack(rows).T.tocsr().astype(np.float32)


def _nearest(pairs: Interactions, neighbours: int, damping: float) -> csr_matrix:
    """Return the similarities of each item's most similar items, row by row, without itself."""
    R = pairs.csr().astype(np.float64)
    lengths = np.sqrt(np.maximum(pairs.item_degrees, 1.0))
    transposed = R.T.tocsr()
    rows = []
    for part in _item_blocks(pairs):
        shared = (transposed[part] @ R).tocsr()
        own = np.repeat(lengths[part], np.diff(shared.indptr))
        shared.data /= own * lengths[shared.indices] + damping
        rows.append(_largest(shared, part, neighbours))
    return vstack(rows).tocsr().astype(np.float32)


def _item_blocks(pairs: Interactions) -> Iterator[slice]:
    size = max(1, _BLOCK_BYTES // (8 * max(1, pairs.n_items)))
    for start in range(0, pairs.n_items, size):
        yield slice(start, min(start + size, pairs.n_items))


def _largest(rows: csr_matrix, part: slice, most: int) -> csr_matrix:
    """Return rows with their largest entries alone, the diagonal left out, ties to the lower id."""
    rows.sort_indices()
    kept, counts = [], []
    for n in range(rows.shape[0]):
        places = np.arange(rows.indptr[n], rows.indptr[n + 1])
        places = places[(rows.indices[places] != part.start + n) & (rows.data[places] > 0)]
        if 0 < most < len(places):
            places = np.sort(places[largest(rows.data[places], rows.indices[places], most)])
        kept.append(places)
        counts.append(len(places))
    chosen = np.concatenate(kept)
    ends = np.concatenate([[0], np.cumsum(counts)])
    return csr_matrix((rows.data[chosen], rows.indices[chosen], ends), rows.shape)
