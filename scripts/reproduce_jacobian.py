"""The paper's experiment on the Jacobian of a trained WideResNet.

Error of the estimators against products and against GFLOPs, the singular values, and the share p
of TwINEst++ (r = p m). Small scale: a WideResNet-10-1 trained for a few epochs on CIFAR-100
images, so that J is 3072 x 100 as in the paper. Paper scale: WideResNet-16-10, 200 epochs, 500
trials; it wants a GPU (``--device cuda``).
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from _estimation import draw_curves, save_json

from robustcf._runtime import set_threads
from robustcf.estimators import FunctionOperator
from robustcf.estimators.twinest import twinest_pp
from robustcf.vision.comparison import COMPARED, compare, product_gflops
from robustcf.vision.config import VisionConfig, VisionRunConfig
from robustcf.vision.jacobian import JacobianOperator
from robustcf.vision.loading import load_images
from robustcf.vision.measures import pixels
from robustcf.vision.runs import open_or_create

BUDGETS = (10, 20, 50, 100, 200, 300)
SHARES = (0.1, 0.2, 1 / 3, 0.45)
NAMES = {
    "adaptive_power": "Adaptive power",
    "rademacher_averaging": "Rademacher averaging",
    "twinest": "TwINEst",
    "twinest_pp": "TwINEst++",
    "sketch": "sketch, top 16",
    "xrownorm": "XRowNorm, top 4",
    "rsvd_sketch": "rSVD + sketch, top 4",
    "save": "SAVE",
}


def shares_of_twinest_pp(J: torch.Tensor, trials: int, seed: int) -> dict[str, dict[str, float]]:
    """Mean relative error of TwINEst++ for r = p m, by p and budget."""
    truth = float(J.norm(dim=1).max())
    operator = FunctionOperator(
        (J.shape[0], J.shape[1]), lambda X: J @ X, lambda Y: J.mT @ Y, J.dtype
    )
    table: dict[str, dict[str, float]] = {}
    for share in SHARES:
        row = table[f"{share:.2f}"] = {}
        for budget in BUDGETS:
            errors = [
                abs(float(twinest_pp(operator, budget, p=share, generator=seed + n)) / truth - 1)
                for n in range(trials)
            ]
            row[str(budget)] = sum(errors) / trials
    return table


def draw(data: dict[str, Any], target: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    by_products: dict[str, tuple[list[float], list[float]]] = {}
    by_flops: dict[str, tuple[list[float], list[float]]] = {}
    for point in data["points"]:
        name = NAMES[point["method"]]
        for curves, key in ((by_products, "budget"), (by_flops, "gflops")):
            x, y = curves.setdefault(name, ([], []))
            x.append(point[key])
            y.append(point["error"])
    for axis, curves, label in (
        (axes[0, 0], by_products, "products"),
        (axes[0, 1], by_flops, "GFLOPs of the products"),
    ):
        draw_curves(axis, curves, 1e-5)
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel="mean relative error")
    axes[0, 0].legend(frameon=False, fontsize="x-small")
    axes[1, 0].semilogy(data["singular_values"], color="#1b4f8a")
    axes[1, 0].set(xlabel="number", ylabel="singular value of J")
    looks = zip(
        ("o-", "s--", "^-.", "D:"), ("#1b4f8a", "#c2410c", "#3f7d20", "#7a2e8e"), strict=True
    )
    by_share = data["twinest_pp_by_share"].items()
    for (share, row), (look, colour) in zip(by_share, looks, strict=True):
        errors = [max(error, 1e-5) for error in row.values()]
        axes[1, 1].plot([float(b) for b in row], errors, look, color=colour, label=f"p = {share}")
    axes[1, 1].grid(alpha=0.3)
    axes[1, 1].set(xscale="log", yscale="log", xlabel="products", ylabel="error of TwINEst++")
    axes[1, 1].legend(frameon=False, fontsize="x-small")
    figure.suptitle(data["title"], fontsize="medium")
    figure.savefig(target, dpi=120)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", choices=["small", "paper"], default="small")
    arguments.add_argument("--trials", type=int, help="a point (default: 100 small, 500 paper)")
    arguments.add_argument("--image", type=int, default=0, help="test image (default 0)")
    arguments.add_argument("--epochs", type=int, help="of training (default: 4 small, 200 paper)")
    arguments.add_argument("--data-dir", help="folder with the data sets")
    arguments.add_argument("--cifar100", help="npz file instead of the official set")
    arguments.add_argument("--threads", type=int, default=None, help="CPU threads")
    arguments.add_argument("--device", default="cpu", help="where the tensors live")
    arguments.add_argument("--work", type=Path, default=Path("runs/vision"), help="run folders")
    arguments.add_argument("--out", type=Path, default=Path("results"), help="output folder")
    options = arguments.parse_args()
    threads = set_threads(options.threads)
    small = options.scale == "small"
    recipe = VisionConfig(depth=10, width=1, epochs=4) if small else VisionConfig()
    if options.epochs is not None:
        recipe = recipe.replace(epochs=options.epochs)
    dataset = os.path.abspath(options.cifar100) if options.cifar100 else "cifar100"
    where = {} if options.data_dir is None else {"data_dir": os.path.abspath(options.data_dir)}
    split = load_images(dataset, **where)
    config = VisionRunConfig(dataset, where, recipe, threads, options.device)
    folder = options.work / options.scale / f"jacobian-{recipe.epochs}"
    run = open_or_create(folder, config, split)
    net = run.model(split)
    image = pixels(split.test.images[options.image : options.image + 1].to(options.device))
    costs = product_gflops(net, image)
    with torch.no_grad():
        J = JacobianOperator(net, image, block=16).dense()[0].double().cpu()
    trials = options.trials or (100 if small else 500)
    points = compare(J, costs, methods=COMPARED, budgets=BUDGETS, trials=trials)
    singular = torch.linalg.svdvals(J)
    result = run.metrics()
    title = (
        f"Jacobian {J.shape[0]} x {J.shape[1]} of {result['model']} after {result['epochs']} "
        f"epochs on {len(split.train):,} CIFAR-100 images (test accuracy "
        f"{result['test']['accuracy']:.3f}), {trials} trials"
    )
    data = {
        "scale": options.scale,
        "title": title,
        "trials": trials,
        "image": options.image,
        "two_to_inf": float(J.norm(dim=1).max()),
        "stable_rank": float(singular.square().sum() / singular[0].square()),
        "gflops": costs,
        "singular_values": [float(f"{value:.6g}") for value in singular],
        "points": [asdict(point) for point in points],
        "twinest_pp_by_share": shares_of_twinest_pp(J, trials, 0),
    }
    save_json(options.out / f"jacobian_{options.scale}.json", data)
    draw(data, options.out / f"jacobian_{options.scale}.png")
    print(title)
    for point in points:
        print(
            f"{NAMES[point.method]:<22}{point.budget:>5} products {point.gflops:9.3f} GFLOPs  "
            f"error {point.error:.5f} ± {point.error_se:.5f}  exact {point.exact:.2f}"
        )


if __name__ == "__main__":
    main()
