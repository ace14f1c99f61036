"""The penalties: values by hand, gradients by gradcheck, imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustcf._registry import REGULARIZERS
from robustcf.errors import InputError
from robustcf.estimators.twinest import twinest
from robustcf.regularizers import (
    ESTIMATORS,
    Accumulator,
    DegreeDecay,
    MaxNorm,
    NoPenalty,
    Regularizer,
    RegularizerConfig,
    TwoToInf,
    TwoToInfConfig,
    WeightDecay,
    add_gradient,
)

SEEDS = [0, 1, 2]


def factors(seed: int, d: int = 9, n: int = 7, grad: bool = False) -> list[Tensor]:
    how = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    return [torch.randn(rows, 3, requires_grad=grad, **how) for rows in (d, n)]


def by_degree(d: int = 9, n: int = 7) -> DegreeDecay:
    reg = DegreeDecay()
    reg.prepare(torch.arange(d), torch.arange(n).flip(0) * 2)
    return reg


def every_kind() -> list[Any]:
    options = [{}, {"top": 4}, {"top": 100}, {"side": "items"}, {"side": "items", "top": 3}]
    options += [{"estimator": "twinest", "budget": 9}, {"refresh": 4}]
    two_to_inf = (TwoToInf(**given) for given in options)
    return [NoPenalty(), WeightDecay(), MaxNorm(), *two_to_inf, by_degree()]


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_their_definitions(seed: int) -> None:
    U, V = factors(seed)
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
def test_degree_decay_is_what_1024_pairs_are_charged_in_expectation(seed: int) -> None:
    """Half the squared norms of a pair and of a uniform negative, over all of them, one by one."""
    rng = np.random.default_rng(seed)
    U, V = factors(seed)
    pairs = [(int(u), int(i)) for u, i in zip(*np.nonzero(rng.random((9, 7)) < 0.3), strict=True)]
    reg = DegreeDecay()
    reg.prepare(
        torch.tensor(np.bincount([u for u, _ in pairs], minlength=9)),
        torch.tensor(np.bincount([i for _, i in pairs], minlength=7)),
    )
    charges = [
        (U[u].norm() ** 2 + V[i].norm() ** 2 + V[j].norm() ** 2) / 2
        for u, i in pairs
        for j in range(7)
    ]
    torch.testing.assert_close(reg(U, V), 1024 * torch.stack(charges).mean())
    assert reg(U.float(), V.float()).dtype == torch.float32


def test_degree_decay_must_be_told_the_degrees() -> None:
    U, V = factors(0)
    reg, out = DegreeDecay(), (torch.zeros_like(U), torch.zeros_like(V))
    for call in (lambda: reg(U, V), lambda: reg.add_gradient(U, V, Accumulator(*out))):
        with pytest.raises(InputError, match="prepare"):
            call()
    assert reg.state_dict() == {}, "it follows from the data, and need not be saved"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reg", every_kind(), ids=repr)
def test_gradcheck(seed: int, reg: nn.Module) -> None:
    U, V = factors(seed, grad=True)
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
        U, V = factors(seed)
        index = None if rows is None else torch.tensor(rows)
        size = len(U) if rows is None else len(rows)
        mine = torch.ones(size, 3, dtype=U.dtype), torch.ones_like(V)
        theirs = torch.ones(size, 3, dtype=U.dtype), torch.ones_like(V)
        scales = {"weight": 0.3, "row_scale": 5.0}
        reg.add_gradient(U, V, Accumulator(*mine, index, **scales))
        add_gradient(reg, U, V, Accumulator(*theirs, index, **scales))
        torch.testing.assert_close(mine[0], theirs[0])
        torch.testing.assert_close(mine[1], theirs[1])


def test_takes_every_estimator_and_functions() -> None:
    U, V = factors(0, 40, 30)
    for name in ESTIMATORS:
        value = float(TwoToInf(name, budget=40)(U, V))
        assert 0 < value <= float((U @ V.T).square().sum(dim=1).max()) * (1 + 1e-9)
    assert torch.equal(TwoToInf(twinest)(U, V), TwoToInf("twinest")(U, V))


def test_calls_draw_anew_and_state_dict_remembers() -> None:
    U, V = factors(0, 300, 50)
    reg = TwoToInf("twinest", budget=3)
    first = [float(reg(U, V)) for _ in range(6)]
    assert len(set(first)) > 1
    again = TwoToInf("twinest", budget=3)
    state = again.state_dict()
    state["calls"] = torch.tensor(3)
    again.load_state_dict(state)
    assert [float(again(U, V)) for _ in range(3)] == first[3:]


def test_every_keeps_the_mean() -> None:
    U, V = factors(0)
    whole = float(TwoToInf()(U, V))
    reg = TwoToInf(every=3)
    assert [float(reg(U, V)) for _ in range(4)] == pytest.approx([3 * whole, 0, 0, 3 * whole])
    out = torch.zeros_like(U), torch.zeros_like(V)
    assert reg.add_gradient(U, V, Accumulator(*out)) == 0.0
    assert not bool(out[0].any())


@pytest.mark.parametrize("top", [1, 3])
def test_refresh_takes_leaders_in_between(top: int) -> None:
    U, V = factors(0, 500, 50)
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
        if isinstance(reg, DegreeDecay):
            reg.prepare(torch.zeros(0), torch.zeros(3))
        assert float(reg(torch.zeros(0, 2), torch.zeros(3, 2))) == 0.0
    out = torch.zeros(0, 2), torch.zeros(3, 2)
    assert TwoToInf().add_gradient(*(part.clone() for part in out), Accumulator(*out)) == 0.0


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        (TwoToInf, {"estimator": "guess"}, "estimator"),
        (TwoToInf, {"top": 0}, "top"),
        (TwoToInf, {"every": 1.5}, "every"),
        (TwoToInf, {"budget": True}, "budget"),
        (TwoToInf, {"side": "left"}, "side"),
        (TwoToInf, {"estimator": "twinest", "top": 2}, "exact"),
        (RegularizerConfig, {"weight": -1.0}, "reg_weight"),
        (RegularizerConfig, {"weight": "x"}, "reg_weight"),
        (TwoToInfConfig, {"weight": float("nan")}, "reg_weight"),
        (TwoToInfConfig, {"top": 0}, "reg_top"),
        (TwoToInfConfig, {"side": "left"}, "reg_side"),
        (TwoToInfConfig, {"estimator": "save", "top": 2}, "exact"),
    ],
)
def test_refuses(kind: Any, options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        kind(**options)


def test_refuses_an_estimator_without_a_row() -> None:
    def clueless(matrix: Any, budget: int, *, generator: int) -> Any:
        return SimpleNamespace(row=None)

    with pytest.raises(InputError, match="clueless"):
        TwoToInf(clueless)(torch.ones(2, 1), torch.ones(2, 1))


@pytest.mark.slow
def test_importing_loads_torch_numpy_and_estimators_only() -> None:
    code = (
        "import sys; from robustcf.regularizers import TwoToInf; TwoToInf('twinest');"
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('robustcf.')};"
        "print(sorted(rooms)); print([m for m in ('pandas', 'scipy', 'matplotlib', 'pyarrow',"
        " 'click', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms, heavy = done.stdout.splitlines()
    others = {"data", "models", "training", "objectives", "recommender"}
    assert not set(ast.literal_eval(rooms)) & others
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


# --- in training ----------------------------------------------------------------------------


def test_the_tables_names_are_the_classes() -> None:
    for name in REGULARIZERS:
        kind = REGULARIZERS[name]
        assert kind.name == name
        assert issubclass(kind, Regularizer)
        made = kind.configured(kind.Config(), seed=3)
        assert type(made) is kind
        assert kind.on == ("parameters" if name in ("weight_decay", "degree_decay") else "scored")


def test_a_config_describes_the_regularizer() -> None:
    config = TwoToInfConfig(
        weight=0.5, estimator="twinest", budget=7, side="items", every=3, refresh=4
    )
    reg = TwoToInf.configured(config, seed=5)
    assert (reg.estimator_name, reg.budget, reg.side) == ("twinest", 7, "items")
    assert (reg.every, reg.refresh, reg.seed, reg.top) == (3, 4, 5, 1)
    assert TwoToInf.configured(TwoToInfConfig(top=9)).top == 9


class Entropy(Regularizer):
    """A penalty of the user's own, with forward alone."""

    def forward(self, U: Tensor, V: Tensor) -> Tensor:
        return (U @ V.T).softmax(dim=1).square().sum()


@pytest.mark.parametrize("rows", [None, [1, 4]])
def test_a_penalty_of_the_users_own_has_its_gradient_by_autograd(rows: list[int] | None) -> None:
    U, V = factors(0, grad=True)
    to_users, to_items = torch.autograd.grad(Entropy()(U, V), (U, V))
    index = None if rows is None else torch.tensor(rows)
    out = torch.ones_like(U if rows is None else U[rows]), torch.ones_like(V)
    into = Accumulator(*out, index, weight=0.5, row_scale=3.0)
    value = Entropy().add_gradient(U.detach(), V.detach(), into)
    assert value == pytest.approx(float(Entropy()(U, V).detach()))
    torch.testing.assert_close(out[0], 1 + 1.5 * (to_users if rows is None else to_users[rows]))
    torch.testing.assert_close(out[1], 1 + 0.5 * to_items)
    assert Entropy.configured(RegularizerConfig()).name == ""


@pytest.mark.parametrize(
    ("penalty", "word"),
    [
        (lambda U: U.square().sum(dim=1), "Mine .* shape"),
        (lambda U: U.square().sum().item(), "Mine .* float"),
        (lambda U: None, "Mine .* NoneType"),
        (lambda U: U.detach().square().sum(), "Mine .* gradient"),
        (lambda U: U.new_zeros(()), None),
        (lambda U: U.sum().reshape(1), None),
    ],
)
def test_a_penalty_is_one_number_with_a_gradient(penalty: Any, word: str | None) -> None:
    class Mine(Regularizer):
        def forward(self, U: Tensor, V: Tensor) -> Tensor:
            return penalty(U)

    U, V = torch.ones(6, 2), torch.ones(4, 2)
    with pytest.raises(InputError, match=word) if word else nullcontext():
        Mine().add_gradient(U, V, Accumulator(torch.zeros_like(U), torch.zeros_like(V)))
