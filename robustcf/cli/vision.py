"""``robustcf vision``: train classifiers with Jacobian penalties, measure them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf._io.text import counted
from robustcf.cli.opening import OpenedRun, opens_run
from robustcf.cli.options import free_folder, out_option, parse_settings, typed_threads
from robustcf.cli.reporting import Report, reports, say_replaced, table
from robustcf.cli.words import FINITE, SEED, ListCommand

if TYPE_CHECKING:
    from robustcf.vision.images import ImageSplit
    from robustcf.vision.runs import VisionRun


@click.group(invoke_without_command=True)
@click.option("--data-dir", metavar="DIR", help="Look here first.")
@reports
@click.pass_context
def vision(context: click.Context, data_dir: str | None) -> Report | None:
    """Image classifiers and the norm of their Jacobian; alone, lists the known sets of images."""
    if context.invoked_subcommand is not None:
        if data_dir is not None:
            raise click.UsageError("--data-dir belongs behind the subcommand")
        return None
    from robustcf._io.fetching import locate
    from robustcf.vision.catalog import image_manifests

    entries: list[dict[str, Any]] = []
    for manifest in image_manifests().values():
        found = locate(manifest, manifest.files, data_dir)
        where = None if found is None else str(found.path.parent)
        entries.append({"name": manifest.name, **manifest.counts, "where": where,
                        "title": manifest.title, "licence": manifest.licence})  # fmt: skip
    rows = [
        (e["name"], f"{e['classes']}", f"{e['train']:,}", f"{e['test']:,}", e["where"] or "-")
        for e in entries
    ]
    text = table(("name", "classes", "train", "test", "where"), rows, left=(0, 4))
    text += "\n\nAlso: digits, a folder of images by class, an npz file."
    return Report({"images": entries}, text)


@vision.command()
@click.option(
    "--dataset",
    metavar="NAME|FOLDER|FILE.npz",
    help="digits, cifar10, cifar100, tinyimagenet, a folder of images by class, or an npz file.",
)
@click.option(
    "--reg",
    type=click.Choice(["none", "frobenius", "spectral", "infinity", "two_to_inf"]),
    default="none",
    show_default=True,
    help="The norm of the Jacobian that is penalized.",
)
@click.option("--reg-weight", type=FINITE, help="Weight of the mean squared norm (lambda).")
@click.option("--reg-every", type=int, metavar="K", help="Act in every K-th step only.")
@click.option(
    "--reg-images",
    type=int,
    metavar="N",
    help="Penalize N images of each batch (default 32; all of them: --set reg_images=null).",
)
@click.option("--estimator", metavar="E", help="How two_to_inf finds its row (default twinest).")
@click.option("--reg-budget", type=int, help="Products per image of two_to_inf (default 9).")
@click.option("--reg-steps", type=int, help="Power steps of spectral and infinity (default 1).")
@click.option("--depth", type=int, help="Depth of the WideResNet (default 16).")
@click.option("--width", type=int, help="Width of the WideResNet (default 10).")
@click.option("--epochs", type=int, help="Epochs (default 200).")
@click.option("--lr", type=FINITE, help="Learning rate at the start (default 0.1).")
@click.option("--batch-size", type=int, help="Images per step (default 128).")
@click.option(
    "--set", "options", metavar="KEY=VALUE", multiple=True, help="Any other training setting."
)
@click.option("--size", type=int, metavar="PIXELS", help="Average images down to this size.")
@click.option(
    "--valid-share", type=FINITE, default=0.0, show_default=True,
    help="Share of train that is held out, to choose settings on.",
)  # fmt: skip
@click.option("--seed", type=SEED, default=0, show_default=True, help="Training seed.")
@click.option(
    "--split-seed", type=SEED, default=0, show_default=True, help="Seed of a drawn split."
)
@click.option("--threads", type=int, help="CPU threads (default: OMP_NUM_THREADS, or the cores).")
@click.option("--device", default="cpu", show_default=True, help="Where the tensors live.")
@click.option("--data-dir", metavar="DIR", help="Look here first, and download to here.")
@click.option(
    "--download/--no-download",
    default=None,
    help="Fetch a missing archive (the default, but with --resume).",
)
@out_option("The run directory (default: a new one in runs/).")
@click.option("--resume", metavar="RUN", help="Go on with a run that was killed or interrupted.")
@reports
def train(
    dataset: str | None,
    reg: str,
    options: tuple[str, ...],
    size: int | None,
    valid_share: float,
    seed: int,
    split_seed: int,
    threads: int | None,
    device: str,
    data_dir: str | None,
    download: bool | None,
    out: str | None,
    resume: str | None,
    **given: Any,
) -> Report:
    """Train a WideResNet, evaluate it on the test images, write a run directory.

    The defaults are the paper's recipe (WideResNet-16-10, 200 epochs), which wants a GPU; on a
    CPU try --dataset digits --depth 10 --width 1 --epochs 15.
    """
    if resume is not None:
        return _resume(resume, data_dir, dataset, bool(download))
    if dataset is None:
        raise click.UsageError("give either --dataset or --resume")
    from robustcf._runtime import device_of, set_threads
    from robustcf.vision.config import VisionConfig, VisionRunConfig
    from robustcf.vision.loading import load_images
    from robustcf.vision.runs import VisionRun

    changes = {key: value for key, value in given.items() if value is not None}
    config = VisionConfig.from_dict(
        {"reg": reg, "seed": seed, **changes, **parse_settings(options)}
    )
    if config.reg != "none" and not config.reg_weight:
        raise click.UsageError(f"--reg {config.reg} needs a --reg-weight above 0")
    device_of(device)
    data: dict[str, Any] = {
        "size": size,
        "valid_share": valid_share,
        "seed": split_seed,
        "download": download is not False,
    }
    if data_dir is not None:
        data["data_dir"] = _absolute(data_dir)
    if os.path.exists(os.path.expanduser(dataset)):
        dataset = _absolute(dataset)
    threads = set_threads(typed_threads(threads))
    split = load_images(dataset, **data)
    folder = Path(out) if out else free_folder(f"{split.name}-{reg}-seed{seed}")
    run = VisionRun.create(folder, VisionRunConfig(dataset, data, config, threads, device), split)
    say_replaced(run)
    return _execute(run, split)


def _resume(folder: str, data_dir: str | None, dataset: str | None, download: bool) -> Report:
    from robustcf.vision.runs import VisionRun

    run = VisionRun(folder)
    if run.settle():
        return _report(run)
    return _execute(run, run.split(data_dir, dataset=dataset, download=download))


def _execute(run: VisionRun, split: ImageSplit) -> Report:
    if run.execute(split, progress=sys.stderr.isatty()).interrupted:
        raise run.interrupted()
    return _report(run)


def _report(run: VisionRun) -> Report:
    result = run.metrics()
    lines = [_measured(result["test"])]
    if result["valid_accuracy"] is not None:
        lines.append(f"valid accuracy {result['valid_accuracy']:.4f}")
    spent = f"{counted(result['epochs'], 'epoch')} in {result['train_seconds']:.1f} s"
    if result["reg"] != "none":
        spent += f"; the penalty added {result['overhead']:.0%} to the time of everything else"
    lines += [spent, f"run: {run.path}"]
    return Report(result, "\n".join(lines))


def _measured(test: dict[str, Any]) -> str:
    norms = [
        f"{name} {test[name]:.4g}"
        for name in ("frobenius", "spectral", "infinity", "two_to_inf")
        if name in test
    ]
    return (
        f"accuracy {test['accuracy']:.4f}  FGSM {test['fgsm']:.4f}  PGD {test['pgd']:.4f}  "
        f"stable rank {test['stable_rank']:.3f}\n"
        f"      ({test['images']:,} test images, eps {test['eps']:.5f} in [0, 1], PGD "
        f"{test['pgd_steps']} steps; Jacobian at {test['jacobian_images']} of them: "
        f"{', '.join(norms)})"
    )


@vision.command()
@click.option(
    "--eps",
    type=FINITE,
    default=2 / 255,
    show_default="2/255",
    help="L-infinity size of the attack, for pixel values in [0, 1].",
)
@click.option("--steps", type=int, default=2, show_default=True, help="PGD steps.")
@click.option(
    "--jacobian-images", type=click.IntRange(min=1), default=100, show_default=True,
    help="Test images at which the Jacobian is measured.",
)  # fmt: skip
@opens_run
@reports
def evaluate(opened: OpenedRun, eps: float, steps: int, jacobian_images: int) -> Report:
    """Accuracy of RUN, clean and attacked, and the norms and stable rank of its Jacobian."""
    from robustcf._runtime import set_threads
    from robustcf.vision.measures import report
    from robustcf.vision.runs import VisionRun

    run = VisionRun(opened.path, allow_unfinished=opened.allow_unfinished)
    run.metrics()  # a run without result is an error before any data are read
    set_threads(run.config.threads)
    split = run.split(**opened.places)
    net = run.model(split)
    device = run.config.device
    test = report(
        net, split.test.images.to(device), split.test.labels.to(device), eps=eps, steps=steps,
        jacobian_images=jacobian_images,
    )  # fmt: skip
    return Report({"run": opened.path, "test": test}, _measured(test))


@vision.command(cls=ListCommand)
@click.option(
    "--image",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the test image.",
)
@click.option(
    "--methods", multiple=True, metavar="M...", help="Estimators (default: the paper's and ours)."
)
@click.option("--budgets", type=int, multiple=True, metavar="B...", help="Products (10 20 50 100).")
@click.option("--trials", type=int, default=100, show_default=True, help="Trials for each point.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the first trial.")
@opens_run
@reports
def jacobian(
    opened: OpenedRun,
    image: int,
    methods: tuple[str, ...],
    budgets: tuple[int, ...],
    trials: int,
    seed: int,
) -> Report:
    """Estimators of the two-to-infinity norm on the Jacobian of RUN at one test image."""
    from dataclasses import asdict

    import torch

    from robustcf._runtime import set_threads
    from robustcf.errors import InputError
    from robustcf.vision.comparison import COMPARED, compare, product_gflops
    from robustcf.vision.jacobian import JacobianOperator
    from robustcf.vision.measures import pixels
    from robustcf.vision.runs import VisionRun

    run = VisionRun(opened.path, allow_unfinished=opened.allow_unfinished)
    run.metrics()
    set_threads(run.config.threads)
    split = run.split(**opened.places)
    if image >= len(split.test):
        raise InputError(f"there is no test image {image}: {run.path} has {len(split.test)}")
    net = run.model(split)
    one = pixels(split.test.images[image : image + 1].to(run.config.device))
    with torch.no_grad():
        J = JacobianOperator(net, one, block=16).dense()[0].double()
    costs = product_gflops(net, one)
    points = compare(
        J, costs, methods=methods or COMPARED, budgets=budgets or (10, 20, 50, 100),
        trials=trials, seed=seed,
    )  # fmt: skip
    singular = torch.linalg.svdvals(J)
    data = {
        "run": opened.path,
        "image": image,
        "shape": list(J.shape),
        "two_to_inf": float(J.norm(dim=1).max()),
        "stable_rank": float(singular.square().sum() / singular[0].square()),
        "singular_values": singular.tolist(),
        "gflops": costs,
        "points": [asdict(point) for point in points],
    }
    rows = [
        (p.method, str(p.budget), f"{p.error:.4f}", f"{p.exact:.2f}", f"{p.gflops:.3g}")
        for p in points
    ]
    text = (
        f"Jacobian {J.shape[0]} x {J.shape[1]}, two-to-infinity norm {data['two_to_inf']:.4g}, "
        f"stable rank {data['stable_rank']:.3f}; {trials} trials a point\n\n"
    )
    header = ("method", "products", "error", "exact", "GFLOPs")
    return Report(data, text + table(header, rows))


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
