"""The penalties: values by hand, gradients by gradcheck, and what importing them loads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustcf.errors import InputError
from robustcf.estimators.twinest import twinest
from robustcf.regularizers import (
    ESTIMATORS,
    MaxNorm,
    NoPenalty,
    TwoToInf,
    WeightDecay,
    add_gradient,
)

SEEDS = [0, 1, 2]


def factors(seed: int, d: int = 9, n: int = 7, r: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(d, r, generator=generator, dtype=torch.float64, requires_grad=True),
        torch.randn(n, r, generator=generator, dtype=torch.float64, requires_grad=True),
    )


def every_kind() -> list[Any]:
    return [
        NoPenalty(),
        WeightDecay(),
        MaxNorm(),
        TwoToInf(),
        TwoToInf(top=4),
        TwoToInf(top=100),
        TwoToInf(side="items"),
        TwoToInf(side="items", top=3),
        TwoToInf("twinest", budget=9),
        TwoToInf(refresh=4),
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_their_definitions(seed: int) -> None:
    U, V = (part.detach() for part in factors(seed))
    rows = (U @ V.T).square().sum(dim=1)
    columns = (U @ V.T).square().sum(dim=0)
    close = torch.testing.assert_close
    close(WeightDecay()(U, V), U.norm() ** 2 + V.norm() ** 2)
    close(MaxNorm()(U, V), U.norm(dim=1).max() ** 2 + V.norm(dim=1).max() ** 2)
    close(TwoToInf()(U, V), rows.max())
    close(TwoToInf(side="items")(U, V), columns.max())
    close(TwoToInf(top=4)(U, V), rows.sort().values[-4:].mean())
    close(TwoToInf(top=100)(U, V), rows.mean())
    assert float(NoPenalty()(U, V)) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reg", every_kind(), ids=repr)
def test_gradcheck(seed: int, reg: nn.Module) -> None:
    U, V = factors(seed)
    # In eval mode a random estimator draws the same numbers in every call.
    reg.eval()
    if isinstance(reg, NoPenalty):
        assert not reg(U, V).requires_grad
        return
    assert torch.autograd.gradcheck(reg, (U, V))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [None, [0, 2, 3], [8], list(range(9))])
def test_gradients_in_place_are_those_of_autograd(seed: int, rows: list[int] | None) -> None:
    for reg in every_kind():
        reg.eval()
        U, V = (part.detach() for part in factors(seed))
        index = None if rows is None else torch.tensor(rows)
        size = len(U) if rows is None else len(rows)
        mine = torch.ones(size, 3, dtype=U.dtype), torch.ones_like(V)
        theirs = torch.ones(size, 3, dtype=U.dtype), torch.ones_like(V)
        scales = {"weight": 0.3, "row_scale": 5.0}
        reg.add_gradient(U, V, index, *mine, **scales)
        add_gradient(reg, U, V, index, *theirs, **scales)
        torch.testing.assert_close(mine[0], theirs[0])
        torch.testing.assert_close(mine[1], theirs[1])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_takes_every_estimator(name: str) -> None:
    U, V = (part.detach() for part in factors(0, 40, 30))
    value = float(TwoToInf(name, budget=40)(U, V))
    assert 0 < value <= float((U @ V.T).square().sum(dim=1).max()) * (1 + 1e-9)


def test_takes_a_function() -> None:
    U, V = (part.detach() for part in factors(0))
    assert torch.equal(TwoToInf(twinest)(U, V), TwoToInf("twinest")(U, V))


def test_calls_draw_anew_and_state_dict_remembers() -> None:
    U, V = (part.detach() for part in factors(0, 300, 50))
    reg = TwoToInf("twinest", budget=3)
    first = [float(reg(U, V)) for _ in range(6)]
    assert len(set(first)) > 1
    again = TwoToInf("twinest", budget=3)
    state = again.state_dict()
    state["calls"] = torch.tensor(3)
    again.load_state_dict(state)
    assert [float(again(U, V)) for _ in range(3)] == first[3:]


def test_every_keeps_the_mean() -> None:
    U, V = (part.detach() for part in factors(0))
    whole = float(TwoToInf()(U, V))
    reg = TwoToInf(every=3)
    assert [float(reg(U, V)) for _ in range(4)] == pytest.approx([3 * whole, 0, 0, 3 * whole])
    out = torch.zeros_like(U), torch.zeros_like(V)
    assert reg.add_gradient(U, V, None, *out) == 0.0
    assert not bool(out[0].any())


@pytest.mark.parametrize("top", [1, 3])
def test_refresh_takes_leaders_in_between(top: int) -> None:
    U, V = (part.detach() for part in factors(0, 500, 50))
    reg, exact = TwoToInf(refresh=3, top=top), TwoToInf(top=top)
    assert float(reg(U, V)) == pytest.approx(float(exact(U, V)))
    assert len(reg.leaders) == 32
    # Leaders change places: seen at once.
    second = int(reg.leaders[5])
    U[second] *= 3
    assert float(reg(U, V)) == pytest.approx(float(exact(U, V)))
    # A row from outside overtakes: seen at the next look at all rows.
    outside = int(np.setdiff1d(np.arange(500), reg.leaders.numpy())[0])
    U[outside] = 4 * U[second]
    assert float(reg(U, V)) < float(exact(U, V))
    assert float(reg(U, V)) == pytest.approx(float(exact(U, V)))
    reg.eval()
    U[outside] = 0
    assert float(reg(U, V)) == pytest.approx(float(exact(U, V)))


def test_empty_factors_cost_nothing() -> None:
    for reg in every_kind():
        assert float(reg(torch.zeros(0, 2), torch.zeros(3, 2))) == 0.0
    out = torch.zeros(0, 2), torch.zeros(3, 2)
    assert TwoToInf().add_gradient(torch.zeros(0, 2), torch.zeros(3, 2), None, *out) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "guess"}, "estimator must be one of exact, save"),
        ({"top": 0}, "top must be an integer of at least 1, got 0"),
        ({"every": 1.5}, "every must be an integer"),
        ({"budget": True}, "budget must be an integer"),
        ({"side": "left"}, "side must be 'users' or 'items'"),
        ({"estimator": "twinest", "top": 2}, "need estimator='exact'"),
    ],
)
def test_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TwoToInf(**options)


def test_refuses_an_estimator_without_a_row() -> None:
    class Nothing:
        row = None

    def clueless(matrix: Any, budget: int, *, generator: int) -> Nothing:
        return Nothing()

    with pytest.raises(InputError, match="'clueless' returned no row"):
        TwoToInf(clueless)(torch.ones(2, 1), torch.ones(2, 1))


def test_importing_loads_torch_numpy_and_estimators_only() -> None:
    code = (
        "import sys; from robustcf.regularizers import TwoToInf; TwoToInf('twinest');"
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('robustcf.')};"
        "print(sorted(rooms)); print([m for m in ('pandas', 'scipy', 'matplotlib', 'pyarrow',"
        " 'click', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms, heavy = done.stdout.splitlines()
    assert rooms == "['errors', 'estimators', 'regularizers']"
    assert heavy == "[]"


def test_ten_lines_of_plain_pytorch() -> None:
    """The README's example: any matrix factorization, one line more."""
    torch.manual_seed(0)
    R = (torch.rand(50, 40) < 0.2).float()
    norms = []
    for weight in (0.0, 1e-3):
        U = (0.1 * torch.randn(50, 8)).requires_grad_()
        V = (0.1 * torch.randn(40, 8)).requires_grad_()
        reg, optimizer = TwoToInf(), torch.optim.Adam([U, V], lr=0.05)
        for _ in range(60):
            loss = nn.functional.binary_cross_entropy_with_logits(U @ V.T, R)
            loss = loss + weight * reg(U, V)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        norms.append(float((U @ V.T).norm(dim=1).max().detach()))
    assert norms[1] < 0.7 * norms[0]
