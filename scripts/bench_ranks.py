"""Two processes with one thread each against one process with two threads: a step and a pass.

    python scripts/bench_ranks.py --dataset yelp2018 --steps 16

Both train the same settings, the preset's unless told otherwise, with the same blocks: the ranks
make one process's steps together. A pass over ``--steps`` blocks is timed after one that is not;
the time of a whole pass over the users follows from it. Times are wall times: run this on a machine
that does nothing else. "CPU" is the processor time of a step, of all processes and threads, which a
busy machine changes less. "waiting" is the share of the time that a step spends in collectives: the
sending itself and the wait for a rank that is slower; the mean over ranks.

    python scripts/bench_ranks.py --dataset yelp2018 --weak 1 2 3 4 --share 0.2

is weak scaling: every number of ranks has the same users per rank and step, so an ideal step
takes as long. More ranks than cores would only take turns, so each is slowed down: it sleeps
until its computing has had ``--share`` of the time, as on a machine whose core is that much slower.
What travels is not slowed down, and goes over loopback: this shows what sharing costs next to
computing, not what a network does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch

from robustcf import _distributed as ranks
from robustcf._distributed import Pending, alone, joined
from robustcf._runtime import set_threads
from robustcf.data import load
from robustcf.data.shards import Shard
from robustcf.objectives import Batches
from robustcf.training.fitting import build_model, build_objective, build_regularizer
from robustcf.training.loop import Optimizer, Stop, fit
from robustcf.training.presets import adapted, preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="yelp2018")
    parser.add_argument("--data-dir", default=os.environ.get("ROBUSTCF_DATA"))
    parser.add_argument("--model", default="softmax-mf")
    parser.add_argument("--steps", type=int, default=16, help="timed steps")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts")
    parser.add_argument("--factors", type=int, help="default: the preset's")
    parser.add_argument("--block-users", type=int, help="default: the preset's")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--weak", type=int, nargs="+", metavar="RANKS", help="weak scaling instead")
    parser.add_argument("--share", type=float, help="of a core, for each rank; with --weak")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the figures to this file too")
    options = parser.parse_args()
    if options.share is not None and not 0 < options.share <= 1:
        parser.error("--share must be above 0 and at most 1")
    if options.worker is not None:
        worker(options)
        return
    figures = weak_scaling(options) if options.weak else side_by_side(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


def side_by_side(options: argparse.Namespace) -> dict[str, Any]:
    """One process with as many threads as there are ranks, then the ranks."""
    one = start([sys.executable, __file__, "--worker", str(options.ranks)], options)
    many = start(ranks_of(options.ranks), options)
    print(f"{one['data']}\n{one['settings']}; the items' gradient has {one['megabytes']:.1f} MB\n")
    print(f"{'':34}{'a step':>10}{'CPU':>10}{'a pass':>10}{'waiting':>10}")
    for name, row in (
        (f"1 process, {options.ranks} threads", one),
        (f"{options.ranks} processes, 1 thread each", many),
    ):
        print(
            f"{name:34}{1000 * row['step']:>7.0f} ms{1000 * row['cpu']:>7.0f} ms"
            f"{row['pass']:>8.1f} s"
            f"{100 * row['waiting']:>8.1f} %"
        )
    print(f"\nthroughput of the processes: {one['step'] / many['step']:.2f} of the one's")
    return {"one": one, "many": many}


def weak_scaling(options: argparse.Namespace) -> dict[str, Any]:
    """The same users per rank and step for each number of ranks, all slowed down alike."""
    config = preset(options.dataset, options.model).config
    users = options.block_users or config.batching.block_users
    rows: dict[str, Any] = {}
    for count in options.weak:
        options.block_users = users * count
        rows[str(count)] = start(ranks_of(count), options)
        if len(rows) == 1:
            print(f"{rows[str(count)]['data']}\n{users} users per rank and step\n")
            print(f"{'ranks':>6}{'a step':>10}{'computing':>11}{'waiting':>9}{'received':>10}"
                  f"{'efficiency':>12}")  # fmt: skip
        row, first = rows[str(count)], rows[str(options.weak[0])]
        print(
            f"{count:>6}{1000 * row['step']:>7.0f} ms{1000 * row['cpu'] / count:>8.0f} ms"
            f"{100 * row['waiting']:>7.1f} %{row['megabytes'] * (count > 1):>7.1f} MB"
            f"{first['step'] / row['step']:>12.2f}",
            flush=True,
        )
    return rows


def ranks_of(count: int) -> list[str]:
    """The command of so many ranks with a thread each, on this machine."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    return [sys.executable, *launcher, __file__, "--worker", "1"]


def start(command: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run a worker, or several by torchrun, and take the line of figures."""
    words = ["--dataset", options.dataset, "--model", options.model]
    for name in ("steps", "repeats", "factors", "block_users", "data_dir", "share"):
        if getattr(options, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    done = subprocess.run([*command, *words], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def slow_down(share: float, team: ranks.Ranks) -> None:
    """Let this process sleep in every step, until it has computed for ``share`` of the time.

    Ranks compute one after another as far as that goes: real ones would not share caches.
    """
    add_up, mark, early = ranks.Ranks.sum, [time.process_time()], [0.0]

    def slowed(self: ranks.Ranks, tensor: torch.Tensor) -> torch.Tensor:
        pause = (1 / share - 1) * (time.process_time() - mark[0])
        time.sleep(max(0.0, pause - early[0]))
        done = add_up(self, tensor)
        # The next step's pause is about as long: some of it comes first, more for a later rank.
        early[0] = pause * team.rank / team.size
        time.sleep(early[0])
        mark[0] = time.process_time()
        return done

    ranks.Ranks.sum = slowed  # type: ignore[method-assign]


def worker(options: argparse.Namespace) -> None:
    set_threads(options.worker)
    split = load(options.dataset, data_dir=options.data_dir)
    names = {"factors": options.factors, "block_users": options.block_users}
    changes = {name: value for name, value in names.items() if value is not None}
    config = adapted(preset(options.dataset, options.model).config, changes).resolved()
    pairs = split.train_full if split.valid_source == "carved" else split.train
    with joined() as team, alone():
        shard = Shard.of(pairs, team)
        part = None if team.size == 1 else shard
        objective = build_objective(config, shard.pairs, shard=part)
        batches = Batches(objective, config.batching, seed=0)
        steps = len(batches.blocks)
        batches.blocks = batches.blocks[: options.steps]
        model = build_model(config.replace(init="normal"), shard.pairs, shard=part)
        reg = build_regularizer(config)
        degrees = (shard.pairs.user_degrees, shard.item_degrees)
        reg.prepare(*(torch.tensor(each) for each in degrees))
        waited = [0.0]
        wait = Pending.wait

        def timed(pending: Pending) -> None:
            began = time.perf_counter()
            wait(pending)
            waited[0] += time.perf_counter() - began

        ranks.Pending.wait = timed  # type: ignore[method-assign]
        if options.share is not None:
            slow_down(options.share, team)
        best: tuple[float, float, float] | None = None
        for number in range(options.repeats + 1):
            waited[0], busy = 0.0, time.process_time()
            done = fit(
                model,
                batches,
                Stop(1),
                reg=reg,
                reg_weight=config.reg.settings.weight,
                optimizer=Optimizer(config.lr, config.user_lr, "constant"),
            )
            seconds = team.greatest(done.history[0]["seconds"])[0]
            share = team.total(waited[0])[0] / team.size / seconds
            busy = team.total(time.process_time() - busy)[0]
            if number and (best is None or seconds < best[0]):
                best = seconds, share, busy
        if best is None:
            raise SystemExit("--repeats must be at least 1")
        step = best[0] / len(batches.blocks)
        figures = {
            "data": repr(split),
            "settings": f"{options.model}, {model.factors} factors, "
            f"{config.batching.block_users} users",
            "megabytes": model.items.numel() * model.items.element_size() / 1e6,
            "step": step,
            "pass": step * steps,
            "waiting": best[1],
            "cpu": best[2] / len(batches.blocks),
            "ranks": team.size,
        }
        if team.first:
            print(json.dumps(figures))


if __name__ == "__main__":
    main()
