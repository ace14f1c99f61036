"""Rows that several ranks share, and what the environment says of a job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robustcf._distributed import (
    Pending,
    Ranks,
    Rows,
    alone,
    current,
    job,
    joined,
    launched,
    local_rank,
    restarts,
    timeout,
)
from robustcf._io.files import write_bytes
from robustcf._runtime import device_of
from robustcf.errors import InputError, RanksError
from tests.distributed.threads import on_threads

SIZES = [2, 3, 5]


def cut(whole: torch.Tensor, ranks: Ranks) -> tuple[Rows, torch.Tensor]:
    rows = Rows.of(len(whole), ranks)
    return rows, whole[rows.start : rows.stop]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("seed", range(3))
def test_a_median_over_ranks_is_that_of_all_rows(size, count, seed):
    rng = np.random.default_rng(seed)
    for scale in (1.0, 1e-300, 1e300):
        whole = torch.from_numpy(rng.exponential(size=count) * scale)
        whole[rng.random(count) < 0.2] = 0.0
        whole[rng.random(count) < 0.2] = float(whole[0])  # ties

        def work(ranks: Ranks, whole: torch.Tensor = whole) -> float:
            rows, mine = cut(whole, ranks)
            return rows.median(mine)

        assert set(on_threads(size, work)) == {float(whole.median())}


@pytest.mark.parametrize("size", [1, *SIZES])
@pytest.mark.parametrize("values", [[1.0, np.inf, np.inf], *np.where(np.eye(3), np.nan, 1.0)])
def test_a_median_of_nan_and_infinities(size, values):
    assert Rows.of(0).median(torch.zeros(0)) == 0.0
    whole = torch.tensor(values)
    found = on_threads(size, lambda ranks: Rows.of(3, ranks).median(cut(whole, ranks)[1]))
    np.testing.assert_array_equal(found, [float(whole.median())] * size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_leaders_and_rows_by_their_numbers(size, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(11, generator=generator)
    matrix = torch.rand(11, 3, generator=generator)
    numbers = torch.randint(11, (6,), generator=generator)

    def work(ranks: Ranks) -> tuple[Any, ...]:
        rows, mine = cut(matrix, ranks)
        leaders = rows.leaders(cut(scores, ranks)[1], 4)
        here, local = rows.own(numbers)
        assert torch.equal(numbers[here] - rows.start, local)
        return leaders.tolist(), rows.fetch(mine, numbers), len(here), rows.counts

    found = on_threads(size, work)
    for leaders, fetched, _, counts in found:
        assert leaders == scores.topk(4).indices.tolist()
        assert torch.equal(fetched, matrix[numbers])
        assert sum(counts) == 11
    assert sum(here for _, _, here, _ in found) == 6


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_shares_are_contiguous_and_are_all(size):
    shares = on_threads(size, lambda ranks: ranks.share(7))
    assert [n for share in shares for n in range(7)[share]] == list(range(7))
    assert max(len(range(7)[share]) for share in shares) <= -(-7 // size)


def test_a_job_of_one_shares_nothing():
    team, rows = Ranks(), torch.ones(2, 1)
    assert team.first
    assert team.speaks()
    for method in (team.sum, team.joined, team.to_first, team.from_first):
        assert method(rows) is rows
    assert team.total(1.0, 2.0) == team.greatest(1.0, 2.0) == (1.0, 2.0)
    assert team.text_from_first("a") == "a"
    assert team.rows_from_first(rows, [2], rows) is rows
    team.agree("the data", "a")
    with pytest.raises(InputError, match="hands"):
        team.rows_from_first(None, [2], rows)
    with joined() as found, alone():
        assert found.size == current().size == job().size == 1


def test_what_backends_raise_is_said_in_words():
    class Lost:
        def wait(self) -> None:
            raise RuntimeError("Connection closed by peer\nand more")

    with pytest.raises(RanksError, match="Connection"):
        Pending(Lost()).wait()


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {
        "RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
        "LOCAL_RANK": "3", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "5",
        "ROBUSTCF_RANK_TIMEOUT": "7",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_the_environment_of_a_launcher(launcher):
    assert (launched(), local_rank(), restarts(), timeout()) == (4, 3, (2, 5), 7)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device 'cuda:3'"):
            device_of("cuda")
    launcher.delenv("MASTER_PORT")
    assert launched() == 1


@pytest.mark.parametrize("name", ["WORLD_SIZE", "ROBUSTCF_RANK_TIMEOUT"])
@pytest.mark.parametrize("value", ["x", "", "0", "-3", "1.5"])
def test_an_environment_that_makes_no_sense(launcher, name, value):
    launcher.setenv(name, value)
    with pytest.raises(InputError, match=name):
        launched() if name == "WORLD_SIZE" else timeout()


def test_ranks_that_disagree_are_named():
    with pytest.raises(InputError, match="ranks"):
        on_threads(3, lambda ranks: ranks.agree("the data", "a" if ranks.rank < 2 else "b"))


def test_only_the_first_rank_writes(tmp_path, monkeypatch):
    second = Ranks()
    second.rank = 1
    with monkeypatch.context() as patch:
        patch.setattr("robustcf._distributed._job", [second])
        write_bytes(tmp_path / "a", b"1")
    assert not (tmp_path / "a").exists()
    write_bytes(tmp_path / "a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"
