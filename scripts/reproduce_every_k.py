"""The paper's ablation: the two-to-infinity penalty in every k-th step only.

Accuracy against k (several seeds), and what the penalty costs: CPU time of a step with it and of
a plain step, measured side by side in one process, in turns (on an otherwise idle machine), and
the same ratio in counted floating point operations, which no machine disturbs. Small scale:
digits; paper scale: WideResNet-16-10 on CIFAR-100 (``--device cuda``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _estimation import save_json
from torch.nn import functional as F

from robustcf._runtime import set_threads
from robustcf.vision.comparison import count_gflops
from robustcf.vision.config import VisionConfig, VisionRunConfig
from robustcf.vision.loading import load_images
from robustcf.vision.regularizers import Frobenius, Infinity, Spectral, TwoToInf
from robustcf.vision.runs import open_or_create, summary
from robustcf.vision.wideresnet import classifier


def costs(
    depth: int, width: int, size: int, batch: int, repeats: int, device: str
) -> dict[str, Any]:
    """Time of a penalty over that of a plain step, on random pixels, medians of ``repeats``."""
    place = torch.device(device)
    net = classifier(depth, width, 100, [0.5] * 3, [0.5] * 3, generator=0).to(place).train()
    net = net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    x = torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(0)).to(place)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.arange(batch, device=place) % 100

    def plain() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    def penalty(reg: TwoToInf) -> Callable[[], None]:
        def act() -> None:
            (1e-6 * reg(net, x)).backward()

        return act

    quarter = max(1, batch // 4)
    calls = {
        "plain": plain,
        "two_to_inf": penalty(TwoToInf()),
        "two_to_inf, 5 products": penalty(TwoToInf(budget=5)),
        "two_to_inf by sketch, 5 products": penalty(TwoToInf(estimator="sketch", budget=5)),
        f"two_to_inf, {quarter} images": penalty(TwoToInf(images=quarter)),
        f"two_to_inf by sketch, 5 products, {quarter} images": penalty(
            TwoToInf(estimator="sketch", budget=5, images=quarter)
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = _clock(place)
            call()
            if turn:  # the first turn warms up
                times[name].append(_clock(place) - start)
    middle = {name: statistics.median(values) for name, values in times.items()}
    base = middle.pop("plain")
    return {
        "network": f"WideResNet-{depth}-{width}, {batch} images of {size} x {size}",
        "plain_step_seconds": base,
        "penalty_over_plain_step": {name: value / base for name, value in middle.items()},
        "overhead_every_50": {name: value / base / 50 for name, value in middle.items()},
        "threads": torch.get_num_threads(),
        "clock": "CPU time of the process" if place.type == "cpu" else "wall time, synchronized",
        "repeats": repeats,
    }


def operations(depth: int, width: int, size: int, batch: int = 128) -> dict[str, Any]:
    """The same ratio in floating point operations: counted, so no machine disturbs it."""
    net = classifier(depth, width, 100, [0.5] * 3, [0.5] * 3, generator=0).train().to("meta")
    x = torch.rand(batch, 3, size, size, device="meta")
    y = torch.zeros(batch, dtype=torch.int64, device="meta")
    plain = count_gflops(lambda: F.cross_entropy(net(x), y).backward())
    quarter = batch // 4
    regs = {
        "frobenius": Frobenius(),
        "spectral": Spectral(),
        "infinity": Infinity(),
        "two_to_inf": TwoToInf(),
        "two_to_inf, 5 products": TwoToInf(budget=5),
        "two_to_inf by sketch, 5 products": TwoToInf(estimator="sketch", budget=5),
        f"two_to_inf, {quarter} images": TwoToInf(images=quarter),
        f"two_to_inf by sketch, 5 products, {quarter} images": TwoToInf(
            estimator="sketch", budget=5, images=quarter
        ),
    }
    ratios = {
        name: count_gflops(lambda reg=reg: reg(net, x).backward()) / plain
        for name, reg in regs.items()
    }
    return {
        "network": f"WideResNet-{depth}-{width}, {batch} images of {size} x {size}",
        "plain_step_gflops": plain,
        "penalty_over_plain_step": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "overhead_every_50": {name: round(ratio / 50, 4) for name, ratio in ratios.items()},
    }


def _clock(place: torch.device) -> float:
    if place.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(place)
    return time.perf_counter()


def accuracies(options: argparse.Namespace, threads: int) -> dict[str, Any]:
    small = options.scale == "small"
    if small:
        recipe = VisionConfig(depth=10, width=1, epochs=8, reg_images=16)
        dataset = "digits"
    else:
        recipe, dataset = VisionConfig(reg_images=None), "cifar100"
    if options.epochs is not None:
        recipe = recipe.replace(epochs=options.epochs)
    where = {} if options.data_dir is None else {"data_dir": os.path.abspath(options.data_dir)}
    split = load_images(dataset, **where)
    table: dict[str, Any] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        for k in (0, *options.ks):  # 0: no penalty at all
            train = recipe.replace(seed=seed)
            if k:
                train = train.replace(reg="two_to_inf", reg_weight=options.weight, reg_every=k)
            config = VisionRunConfig(dataset, where, train, threads, options.device)
            folder = options.work / options.scale / "every_k" / f"k{k}-{options.weight:g}-{seed}"
            name = f"every {k}" if k else "none"
            found.setdefault(name, []).append(open_or_create(folder, config, split).metrics())
            table = {
                row: {
                    "accuracy": summary([run["test"]["accuracy"] for run in runs]),
                    "pgd": summary([run["test"]["pgd"] for run in runs]),
                    "two_to_inf": summary([run["test"]["two_to_inf"] for run in runs]),
                }
                for row, runs in found.items()
                if "two_to_inf" in runs[0]["test"]
            }
            print(name, seed, found[name][-1]["test"]["accuracy"], flush=True)
    return {"dataset": dataset, "weight": options.weight, "seeds": options.seeds, "rows": table}


def draw(data: dict[str, Any], target: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = data["accuracy"]["rows"]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, column in zip(figure.subplots(1, 2), ("accuracy", "two_to_inf"), strict=True):
        means = [row[column]["mean"] for row in rows.values()]
        spread = [row[column]["std"] for row in rows.values()]
        axis.errorbar(list(rows), means, yerr=spread, fmt="o", color="#1b4f8a", capsize=4)
        axis.set_ylabel("test accuracy" if column == "accuracy" else "mean ||J|| two-to-infinity")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=120)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", choices=["small", "paper"], default="small")
    arguments.add_argument("--ks", type=int, nargs="+", default=[1, 10, 50])
    arguments.add_argument("--weight", type=float, default=0.01, help="lambda (default 0.01)")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--epochs", type=int, help="another number than the recipe's")
    arguments.add_argument("--repeats", type=int, default=15, help="of each timed step")
    arguments.add_argument("--skip-accuracy", action="store_true", help="measure costs only")
    arguments.add_argument("--skip-times", action="store_true", help="count operations only")
    arguments.add_argument("--data-dir", help="folder with the data sets")
    arguments.add_argument("--threads", type=int, default=None, help="CPU threads")
    arguments.add_argument("--device", default="cpu", help="where the tensors live")
    arguments.add_argument("--work", type=Path, default=Path("runs/vision"), help="run folders")
    arguments.add_argument("--out", type=Path, default=Path("results"), help="output folder")
    options = arguments.parse_args()
    threads = set_threads(options.threads)
    shapes = [(10, 1, 16, 128), (10, 1, 32, 128)]
    if options.scale == "paper":
        shapes = [(16, 10, 32, 128)]
    target = options.out / f"every_k_{options.scale}.json"
    # What is skipped now may be there from before.
    data: dict[str, Any] = {}
    if target.is_file():
        data = json.loads(target.read_text(encoding="utf-8"))
    data |= {"scale": options.scale, "operations": operations(16, 10, 32)}
    if not options.skip_times:
        data["costs"] = [costs(*shape, options.repeats, options.device) for shape in shapes]
    for entry in (data["operations"], *([] if options.skip_times else data["costs"])):
        unit = "operations" if "plain_step_gflops" in entry else "time"
        print(f"{entry['network']}, by {unit}")
        for name, ratio in entry["penalty_over_plain_step"].items():
            print(f"  {name:<44} {ratio:5.2f} plain steps; every 50: {ratio / 50:.1%} overhead")
    if not options.skip_accuracy:
        data["accuracy"] = accuracies(options, threads)
        draw(data, options.out / f"every_k_{options.scale}.png")
    save_json(target, data)


if __name__ == "__main__":
    main()
