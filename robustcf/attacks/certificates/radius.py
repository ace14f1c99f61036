r"""How large must an attack be to make one item overtake another? The geometry of a pair.

A user has the embedding u, two items have v_i and v_j, and i is ahead: the *gap*
``u.(v_i - v_j)`` is positive. An attack of size e moves u by at most ``a e`` and the two items by
at most ``b_i e`` and ``b_j e`` (Euclidean norms). Write ``s = b_i + b_j``, ``d = v_i - v_j``,
``D = ||d||``, ``n = ||u||`` and ``theta`` for the angle between u and d.

**Theorem (exact radius of a pair).** Some attack of size e makes the gap zero or negative
exactly when ``e >= r``, where::

    r = gap / sqrt(a^2 D^2 + 2 a s n D sin(theta) + s^2 n^2)

*Proof.* Let the attack move u to x. Moving v_i by -b_i e x / ||x|| and v_j by b_j e x / ||x||
lowers the gap most, by s e ||x|| (Cauchy-Schwarz, attained). So the pair falls exactly when some x
with ``||x - u|| <= a e`` has ``x.d <= s e ||x||``: when u is within a e of the complement of the
open cone around d of the half-angle ``alpha`` given by ``cos(alpha) = s e / D``. (With s e >= D the
cone is empty, every x will do.) If ``theta < alpha <= pi/2``, u lies in the cone, and its distance
from the complement is that from the nearest line of the cone's surface, which is in the plane of u
and d: ``n sin(alpha - theta)``. So the pair holds exactly when ``n sin(alpha - theta) > a e`` and
``s e < D``; by the addition theorem, times D^2, with
``P = n D sin(theta) = sqrt(n^2 D^2 - gap^2)``::

    gap sqrt(D^2 - s^2 e^2)  >  e (a D^2 + s P).

Both sides are positive; squared, this is ``gap^2 D^2 > e^2 ((a D^2 + s P)^2 + s^2 gap^2)``, which
has ``s e < D`` in it. The bracket is D^2 times the radicand of r, as ``P^2 + gap^2 = n^2 D^2``. []

(In one dimension there is no plane to turn in; the formula then is a lower bound.)

The plain bound, the sum of the worst of each term, is ``gap > e (a D + s n) + a s e^2``. It is
never better: its radius is below gap / (a D + s n), which is r for ``sin(theta) = 1``.

**Columns held fixed.** Let some columns not move at all (a bias, and the constant 1 it is
multiplied with). Then ``gap = u.d`` is the sum of the fixed columns' part, which stays, and of the
others', which falls by at most ``e (a D + s n) + a s e^2`` with D and n taken over the columns that
move (the triangle inequality and Cauchy-Schwarz, in those columns alone). So the plain bound holds
with these D and n. The exact radius does not: its proof needs the whole gap to be the product of
what moves.

**Users computed from their histories.** Let the user not be stored, but be ``u = t P + n c``, where
t is a weighted sum of the items of the history and P and c stay. Where item k moves by at most
``b_k e``, t moves by any y with ``||y|| <= E e``, ``E = sum_k h_k b_k`` (the sum of balls is the
ball of the sum), and u by y P. Seen items are not recommended, so the
pair is outside of the history, and y and the pair's moves are independent. (Elsewhere that only
makes the bound lower.) Let p be the largest singular value of P, ``Q = P / p``, ``a = p E``, and
``g = d Q^T``, ``G = ||g||``, ``w = u Q^T``. With x = u + y Q, ``||y|| <= a e = R``, the pair falls
only if ``x.d <= s e ||x||`` for some y. For every t > 0, ``||x|| <= (||x||^2 / t + t) / 2``, and
``||x||^2 <= n^2 + 2 y.w + R^2``, so::

    x.d - s e ||x||  >=  gap + y.(g - k w) - s e (n^2 / t + t) / 2 - k R^2 / 2,     k = s e / t
                     >=  gap - R ||g - k w|| - s e ((n^2 + R^2) / t + t) / 2

by Cauchy-Schwarz. A size e at which this is positive for one t is certified, and so are smaller
ones, whose attacks are among those of e. ``||g - k w||^2 = G^2 - 2 k (w.g) + k^2 ||w||^2`` needs
one more product of users and items, since ``w.g = (w Q).d``. With t near the length of the worst x
this is the exact radius of most pairs if P is a multiple of a rotation, and close to it else.
If the map may move too, each row m of it by at most ``b_m e``, u moves by at most
``e (E p + sum_m |x_m| b_m + e E ||b||)`` in any direction, x_m being the inputs t and n. The plain
bound holds with this length, at the largest e that is asked for.

**Rounding.** Radii are computed in float64 from upper bounds of n and D and a lower bound of the
gap: r falls with n and D and rises with the gap. Ranking the attacked factors rounds as well: it
may misjudge a gap by ``h ||x||``, with h a tiny multiple of the largest item norm. That is as if
every item could move by h / 2 more, so the radius is shortened by as much. A certificate therefore
holds for the ranking that is really computed. With 64 columns the loss is about
``1e-13 ||u|| ||v|| / gap`` of the radius, which shows for items closer than 1e-9 of their length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Keeps squares of subnormal numbers from vanishing, where a norm must not be underestimated.
_TINY = 1e-150
_HALVINGS = 12  # to a few parts in ten thousand of the difference of two bounds


@dataclass(frozen=True)
class Budgets:
    """How far an attack of size 1 may move rows, and the rounding of scores.

    Args:
        users: the Euclidean distance a user's row may move at size 1.
        items: the distance an item's row may move.
        factors: columns of the factors.
        largest_item: an upper bound of the norms of the items' rows.
        own: whether ``users`` and ``items`` are shares of each row's own length.
        computed: relative error of a user's row that is computed, 0 for stored ones.
    """

    users: float
    items: float
    dim: int
    largest_item: float
    own: bool = False
    computed: float = 0.0

    def user_moves(self, lengths: Tensor) -> Tensor:
        """Return how far users may move at size 1, by upper bounds of their lengths."""
        return self.users * (lengths if self.own else torch.ones_like(lengths))

    def item_moves(self, lengths: Tensor) -> Tensor:
        """Return the same for items."""
        return self.items * (lengths if self.own else torch.ones_like(lengths))

    @property
    def rounding(self) -> float:
        """Twice the relative error of an inner product in float64, summed in any order."""
        return (self.dim + 16) * 2.0**-52


#: How far, at size 1, the user may move, and the two items of a pair together: a and s.
Moves = tuple[Tensor, Tensor]
Radius = Callable[[Tensor, Tensor, Tensor, Budgets, Moves], Tensor]


def tight_radius(
    gap: Tensor, user_norm: Tensor, distance: Tensor, budgets: Budgets, moves: Moves
) -> Tensor:
    """Return the exact radius of pairs, shortened for rounding; 0 where i is behind.

    At any size below it, no attack makes j overtake i; see the module for the proof.

    Args:
        gap: u.(v_i - v_j), computed in float64.
        user_norm: upper bounds of ||u||.
        distance: upper bounds of ||v_i - v_j||.
        moves: a and s of each pair.

    Example:
        >>> budgets = Budgets(users=1.0, items=0.0, dim=2, largest_item=1.0)
        >>> gap, n, D, a, s = torch.tensor([0.6, 1.0, 2.0, 1.0, 0.0], dtype=torch.float64)
        >>> round(tight_radius(gap, n, D, budgets, (a, s)).item(), 9)
        0.3
    """
    a, s = moves

    def slope(gap: Tensor, n: Tensor, D: Tensor) -> Tensor:
        turned = (((n * D) ** 2 - gap**2).clamp_min(0)).sqrt()
        return ((a * D) ** 2 + 2 * a * s * turned + (s * n) ** 2).sqrt()

    return _shortened(gap, user_norm, distance, budgets, s, slope)


def plain_radius(
    gap: Tensor, user_norm: Tensor, distance: Tensor, budgets: Budgets, moves: Moves
) -> Tensor:
    """Return the radius by the plain bound, at most the tight one; see :func:`tight_radius`."""
    a, s = moves

    def slope(gap: Tensor, n: Tensor, D: Tensor) -> Tensor:
        linear = a * D + s * n
        return (linear + (linear**2 + 4 * a * s * gap.clamp_min(0)).sqrt()) / 2

    return _shortened(gap, user_norm, distance, budgets, s, slope)


def folded_radius(
    gap: Tensor,
    user_norm: Tensor,
    distance: Tensor,
    budgets: Budgets,
    moves: Moves,
    bend: tuple[Tensor, Tensor],
) -> Tensor:
    """Return a radius of pairs for users computed from their histories, at least the plain one.

    Args:
        distance: upper bounds of G, see the module.
        moves: a and s of each pair.
        bend: lower bounds of w.g, and upper bounds of ||w||.

    Example:
        >>> budgets = Budgets(users=0.0, items=1.0, dim=2, largest_item=1.0)
        >>> gap, n, D, a, s = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.float64)
        >>> turned = folded_radius(gap, n, D, budgets, (a, s), (gap, n))
        >>> tight = tight_radius(gap, n, D, budgets, (a, s))
        >>> bool((turned / tight - 1).abs() < 1e-3)
        True
    """
    (a, s), (product, length) = moves, bend
    low = plain_radius(gap, user_norm, distance, budgets, moves)
    relative = budgets.rounding + budgets.computed
    blur = relative * budgets.largest_item
    n, D = user_norm * (1 + budgets.computed) + _TINY, distance + _TINY
    product, length = product - 8 * blur * n, length * (1 + budgets.computed)
    safe = gap - 4 * blur * n
    high = safe.clamp_min(0) / ((a * D) ** 2 + (s * n) ** 2).sqrt() - 4 * blur / s
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        size = middle + 4 * blur / s  # rounding of the attacked scores, as a move of the items
        R, push = size * a, size * s

        def across(k: Tensor) -> Tensor:
            return (D**2 - 2 * k * product + (k * length) ** 2).clamp_min(0).sqrt()

        first = push / n
        along = R * (product - first * length**2) / (across(first) + _TINY)
        t = (n**2 + R**2 - 2 * along).clamp_min((0.3 * n) ** 2).sqrt()
        left = safe - R * across(push / t) - push * ((n**2 + R**2) / t + t) / 2
        holds = (left > 16 * relative * (R * D + push * n)) & (middle > low)
        low, high = torch.where(holds, middle, low), torch.where(holds, high, middle)
    return low


def _shortened(
    gap: Tensor,
    user_norm: Tensor,
    distance: Tensor,
    budgets: Budgets,
    items: Tensor,
    slope: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """``gap / slope`` with every rounding error taken to the safe side."""
    relative = budgets.rounding + budgets.computed
    blur = relative * budgets.largest_item
    n, D = user_norm * (1 + budgets.computed) + _TINY, distance + _TINY
    safe = gap - 2 * blur * n
    moving = safe / slope(safe, n, D) * (1 - relative) - 2 * blur / items
    # If items may not move, rounding is taken off gap and distance instead.
    safer = safe - 2 * blur * n
    still = safer / slope(safer, n, D + 2 * blur) * (1 - relative)
    radius = torch.where(items > 0, moving, still)
    # A comparison with NaN is false: NaN certifies nothing.
    return torch.where(radius > 0, radius, 0.0)


def worst_case(
    user: npt.ArrayLike, ahead: npt.ArrayLike, behind: npt.ArrayLike, user_size: float
) -> npt.NDArray[np.float64]:
    """Return a user's worst move: at the radius of a pair, the two items draw level.

    It is the foot of the perpendicular from u on the cone of the proof, at distance ``user_size``,
    at most ||u||, from u: u turned away from ``d = v_i - v_j``, and shortened.

    Example:
        >>> worst_case([1.0, 0.0], [1.0, 1.0], [0.0, 1.0], 0.6).round(3).tolist()
        [0.64, 0.48]
    """
    u, d = np.asarray(user, np.float64), np.asarray(ahead, np.float64) - np.asarray(behind)
    n = float(np.linalg.norm(u))
    if n == 0 or user_size == 0:
        return u.copy()
    along = u / n
    away = (d @ along) * along - d  # at a right angle to u, away from d
    if np.linalg.norm(away) <= 1e-12 * np.linalg.norm(d):  # parallel: any right angle will do
        away = np.eye(len(u))[int(np.abs(along).argmin())]
        away = away - (away @ along) * along
    size = float(np.linalg.norm(away))
    sine = min(user_size / n, 1.0)
    turned = away / size if size > 0 else away
    cosine = math.sqrt(1 - sine**2)
    x: npt.NDArray[np.float64] = n * cosine * (cosine * along + sine * turned)
    return x
