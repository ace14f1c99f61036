"""PCA-based selection: users who have little to do with the others."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from robustcf._checks import check_integer, check_number
from robustcf.data.interactions import Interactions
from robustcf.poisoning.defences.base import Detection, Detector
from robustcf.poisoning.defences.outliers import Numbers, robust_z


class PCASelection(Detector):
    """Users whose profiles share least variance with everybody else's.

    The idea of variable selection by principal components (Mehta and Nejdl, 2009): profiles are
    standardized (mean 0 and variance 1 over the items); a profile made of random items has next to
    no part in the leading components of all profiles. The score of a user is the share of their
    variance that lies in the first ``components``; published versions then take as many of the
    lowest as there are fakes. Nobody knows that number here: a user is flagged whose logarithm of
    the share lies more than ``threshold`` robust standard deviations below the median
    (:func:`robustcf.poisoning.defences.outliers.robust_z`). A random profile would have
    ``components / n_items`` anyway; that is added before the logarithm is taken.

    It finds profiles of random items. Profiles copied from real users, or of popular items, it
    cannot find: they have as much to do with the others as genuine ones.

    Args:
        components: principal components that count.
        threshold: see above.

    Cost: a truncated SVD of the pairs, some ten products with ``components`` + 9 columns.

    Example:
        >>> from robustcf.data import load
        >>> found = PCASelection().detect(load("demo").train)
        >>> bool(found.flagged.any())
        False
    """

    name: ClassVar[str] = "pca"

    def __init__(self, components: int = 3, threshold: float = 6.0) -> None:
        """Keep the settings."""
        self.components = check_integer("components", components)
        self.threshold = check_number("threshold", threshold, positive=True)

    def shares(self, train: Interactions) -> Numbers:
        """The share of each user's variance in the leading components; 0 without any variance.

        Cost: see the class.
        """
        n = train.n_items
        mean = train.user_degrees / max(n, 1)
        spread = np.sqrt(mean * (1.0 - mean))
        inverse = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 0.0)
        count = min(self.components, train.n_users, n)
        # Z = diag(inverse) (R - mean 1^T) is dense: only Z Z^T is needed, whose leading
        # eigenvectors subspace iteration finds with products of R alone.
        R, back = train.csr().astype(np.float64), train.csr().T.tocsr().astype(np.float64)

        def forward(X: Numbers) -> Numbers:
            product: Numbers = inverse[:, None] * (R @ X - mean[:, None] * X.sum(axis=0))
            return product

        def backward(Y: Numbers) -> Numbers:
            scaled = inverse[:, None] * Y
            product: Numbers = back @ scaled - (mean[:, None] * scaled).sum(axis=0)
            return product

        width = min(count + 9, train.n_users, n)
        rng = np.random.default_rng(0)  # the answer does not depend on it, only its last digits
        Q = np.linalg.qr(forward(rng.standard_normal((n, width))))[0]
        for _ in range(30):
            Q = np.linalg.qr(forward(backward(Q)))[0]
        small = backward(Q)
        values, vectors = np.linalg.eigh(small.T @ small)
        leading = Q @ vectors[:, ::-1][:, :count]
        strength = np.maximum(values[::-1][:count], 0.0)
        shares: Numbers = (leading**2 @ strength) / max(n, 1)
        return shares

    def find(self, train: Interactions) -> Detection:
        """See :class:`PCASelection`; the score is minus the robust z-score."""
        shares = self.shares(train)
        scores = -robust_z(np.log(shares + self.components / train.n_items))
        return Detection(scores > self.threshold, scores)
