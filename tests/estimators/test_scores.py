"""Scores by functions: products against the dense matrix, sampled columns, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robustcf.errors import InputError
from robustcf.estimators import Scores, sampled, two_to_inf
from robustcf.regularizers import TwoToInf


class _Pairs(nn.Module):
    """A network of user and item ids, pair by pair."""

    def __init__(self, users: int = 40, items: int = 30, dropout: float = 0.0) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, 6), nn.Embedding(items, 6)
        self.layers = nn.Sequential(
            nn.Linear(12, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)
        )

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.users(users), self.items(items)], dim=1))


def _net(seed: int, **options: float) -> _Pairs:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _Pairs(**options).double()


def _dense(net: _Pairs) -> torch.Tensor:
    return torch.stack([net(torch.full((30,), u), torch.arange(30))[:, 0] for u in range(40)])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("block", [7, 50, 2**20])
def test_products_equal_the_dense_matrix(seed: int, block: int) -> None:
    net = _net(seed)
    dense, A = _dense(net), Scores(net, 40, 30, pairs=True, block=block)
    X, Y = (torch.randn(n, 3, dtype=torch.float64) for n in (30, 40))
    some = torch.tensor([5, 2])
    for operator, matrix in ((A, dense), (A.H, dense.T)):
        x, y = (X, Y) if matrix is dense else (Y, X)
        torch.testing.assert_close(operator.matmat(x), matrix @ x, atol=1e-6, rtol=0)
        torch.testing.assert_close(operator.rmatmat(y), matrix.T @ y, atol=1e-6, rtol=0)
        torch.testing.assert_close(operator.rows(some), matrix[some])
        torch.testing.assert_close(operator.row_norms(), matrix.norm(dim=1))
    answer = two_to_inf(A)
    assert (answer.method, answer.row) == ("exact", int(dense.norm(dim=1).argmax()))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("estimator", ["exact", "sampled", "save"])
@pytest.mark.parametrize("side", ["users", "items"])
def test_the_penalty_differentiates_one_row(seed: int, estimator: str, side: str) -> None:
    net, other = _net(seed), _net(seed)
    reg = TwoToInf(estimator, budget=25, side=side, seed=seed)
    value = reg(Scores(net, 40, 30, pairs=True))
    value.backward()
    dense = _dense(other) if side == "users" else _dense(other).T
    squares = dense.square().sum(dim=1)
    row = int((squares - value).abs().argmin())
    assert estimator != "exact" or row == int(squares.argmax())
    torch.testing.assert_close(value, squares[row])
    squares[row].backward()
    for mine, its in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_columns_bound_the_norm(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(2, 300, 4, generator=generator)

    def function(u: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(table[0, u] @ table[1, i].T)

    A = Scores(function, 300, 300, bound=1.0)
    truth = float(two_to_inf(A))
    answers = [sampled(A, 100, generator=seed * 100 + n) for n in range(50)]
    assert all(a.lower <= truth * (1 + 1e-6) and a.products + a.rproducts <= 100 for a in answers)
    assert sum(a.upper >= truth * (1 - 1e-6) for a in answers) >= 45  # delta = 0.05
    assert all(a.upper <= 300**0.5 for a in answers)
    assert min(a.upper for a in answers) < 0.99 * 300**0.5
    assert sum(float(a) > 0.97 * truth for a in answers) >= 45
    assert sampled(Scores(function, 300, 300), 100, generator=0).upper == float("inf")


def test_sampled_reads_entries_it_needs_only() -> None:
    seen = torch.zeros(50, 40)

    def function(u: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        seen[u[:, None], i] += 1
        return (u[:, None] + 1.0) * torch.ones(len(i))

    A = Scores(function, 50, 40)
    seen.zero_()
    assert sampled(A, 12, verify=2, generator=0).row == 49
    assert seen.sum() <= 10 * 50 + 2 * 40


@pytest.mark.parametrize(
    ("function", "users", "options", "word"),
    [
        (lambda u, i: torch.ones(len(u)), 5, {}, "users x items"),
        (lambda u, i: torch.ones(len(u) + 1), 5, {"pairs": True}, "scores"),
        (lambda u, i: torch.ones(3, 3), 5, {}, "users x items"),
        (lambda u, i: torch.ones(len(u), len(i)).long(), 5, {}, "float"),
        (lambda u, i: None, 5, {}, "NoneType"),
        (lambda u, i: torch.ones(len(u), len(i)), -1, {}, "users"),
        (lambda u, i: torch.ones(len(u), len(i)), [torch.ones(2), torch.ones(3)], {}, "one length"),
        (lambda u, i: torch.rand(len(u), len(i)), 5, {}, r"eval\(\)"),
        (_net(0, dropout=0.5), 5, {"pairs": True}, r"eval\(\)"),
        (
            lambda u, i: nn.functional.batch_norm(u[:, None] * 1.0, None, None, training=True) + i,
            5, {}, r"eval\(\)",
        ),
    ],
)  # fmt: skip
def test_functions_that_give_no_scores(function, users, options, word) -> None:
    with pytest.raises(InputError, match=word):
        Scores(function, users, 4, **options).row_norms()


def test_wrong_options() -> None:
    A = Scores(lambda u, i: 3.0 * torch.ones(len(u), len(i)), 5, 4)
    with pytest.raises(InputError, match="bound"):
        sampled(A, 5, bound=1.0, generator=0)
    with pytest.raises(InputError, match="top"):
        TwoToInf(top=2)(A)


def test_empty_sides() -> None:
    A = Scores(lambda u, i: torch.ones(len(u), len(i)), 0, 4)
    assert float(two_to_inf(A)) == 0
    assert float(TwoToInf()(A)) == 0
