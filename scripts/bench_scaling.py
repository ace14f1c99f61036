"""How the cost of an epoch grows: a few steps on random data of many sizes.

    python scripts/bench_scaling.py

For each size: seconds per step, seconds per epoch (steps times that), peak memory of the process,
and the same in units of parameters and optimizer state. Every size runs in a process of its own,
so that its peak is its own. Large catalogues use a shared sample of items for each block.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

# users, items, pairs, dim, sampled items
SIZES = [
    (10_000, 5_000, 500_000, 64, 0),
    (20_000, 5_000, 1_000_000, 64, 0),
    (20_000, 10_000, 1_000_000, 64, 0),
    (20_000, 10_000, 2_000_000, 64, 0),
    (20_000, 10_000, 1_000_000, 128, 0),
    (100_000, 20_000, 2_000_000, 64, 0),
    (100_000, 100_000, 2_000_000, 64, 4096),
    (1_000_000, 100_000, 10_000_000, 64, 4096),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--one", help="internal: one size, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one), options.steps, options.threads)))
        return
    header = ("users", "items", "pairs", "factors", "sampled", "s/step", "s/epoch", "ns/cell")
    print("".join(f"{name:>11}" for name in (*header, "peak MB", "state MB", "data MB", "ratio")))
    for size in SIZES:
        command = [sys.executable, __file__, "--one", json.dumps(size)]
        command += ["--steps", str(options.steps)]
        command += ["--threads", str(options.threads)] if options.threads else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        r = json.loads(done.stdout)
        cells = size[0] * (size[4] or size[1])
        row = [f"{n:,}" for n in size[:3]] + [str(size[3]), str(size[4] or "all")]
        row += [f"{r['step']:.3f}", f"{r['epoch']:.1f}", f"{r['epoch'] / cells * 1e9:.1f}"]
        row += [f"{r['peak']:.0f}", f"{r['state']:.0f}", f"{r['data']:.0f}"]
        row += [f"{(r['peak'] - r['before'] - r['blocks']) / r['state']:.2f}"]
        print("".join(f"{cell:>11}" for cell in row), flush=True)
    print(
        "\nstate: parameters and both Adam moments. ratio: (peak - interpreter, libraries and "
        "pairs - blocks) / state."
    )


def measure(
    users: int, items: int, pairs: int, dim: int, sampled: int, steps: int, threads: int | None
) -> dict[str, float]:
    import numpy as np
    import torch

    from robustcf._runtime import set_threads
    from robustcf.data import Interactions
    from robustcf.models import UltraGCN
    from robustcf.objectives import BCE, BatchConfig, Batches
    from robustcf.objectives.kernels import BLOCK_BYTES
    from robustcf.regularizers import Accumulator, WeightDecay
    from robustcf.training.optim import Adam

    set_threads(threads)
    rng = np.random.default_rng(0)
    # Popularity falls like one over the rank, as catalogues' do.
    ranks = np.minimum(np.floor(np.exp(rng.random(pairs) * np.log(items))), items - 1)
    owners = rng.integers(users, size=pairs)
    train, _ = Interactions.from_pairs(owners, ranks.astype(np.int64), users, items)
    del ranks, owners
    train.csr()
    before = peak()
    model = UltraGCN(train, factors=dim, init="normal", init_std=0.1)
    objective = BCE(train, sampled_items=sampled or None)
    batches = Batches(objective, BatchConfig(block_users=512))
    model.users[:, -1], model.items[:, -1] = 5**0.5, -(5**0.5)
    adam = Adam(model.users), Adam(model.items)
    reg = WeightDecay()
    times = []
    for number, batch in enumerate(batches.epoch(0)):
        if number == 0:
            _ = objective.graph
        began = time.perf_counter()
        gradient = objective.gradient(batch, model.users, model.items)
        into = Accumulator(gradient.users, gradient.items, gradient.rows, weight=1e-5)
        reg.add_gradient(model.users, model.items, into)
        adam[0].step(gradient.users, 1e-3, gradient.rows)
        adam[1].step(gradient.items, 1e-3)
        times.append(time.perf_counter() - began)
        if number == steps:
            break
    state = 3 * (users + items) * dim * 4 / 2**20
    step = float(np.median(times[1:]))
    torch.zeros(1)
    return {
        "step": step,
        "epoch": step * batches.n_steps,
        "peak": peak(),
        "before": before,
        "state": state,
        "data": len(train) * 16 / 2**20,
        "blocks": 2 * BLOCK_BYTES / 2**20,
    }


def peak() -> float:
    """Most memory this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
