"""Start, evaluate and look into runs of classifiers: what the command line does with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from robustcf._runtime import device_of, set_threads
from robustcf.errors import InputError
from robustcf.experiments.folders import free_folder
from robustcf.vision.comparison import COMPARED, compare, product_gflops
from robustcf.vision.config import VisionConfig, VisionRunConfig
from robustcf.vision.images import ImageSplit
from robustcf.vision.jacobian import JacobianOperator
from robustcf.vision.loading import load_images
from robustcf.vision.measures import pixels, report
from robustcf.vision.runs import VisionRun


def start_run(
    dataset: str,
    data: Mapping[str, Any],
    config: VisionConfig,
    *,
    threads: int | None = None,
    device: str = "cpu",
    out: str | None = None,
    progress: bool = False,
    say: Callable[[str], None],
) -> VisionRun:
    """Train a classifier in a new folder.

    Args:
        dataset: a name or a path, see :func:`robustcf.vision.loading.load_images`.
        data: its other arguments.
        config: how to train.
        threads: CPU threads; None for ``OMP_NUM_THREADS``, or the cores.
        device: torch device.
        out: the folder; None for a new one in ``runs/``.
        progress: whether to show a bar.
        say: called with lines for people.
    """
    device_of(device)
    used = set_threads(threads)
    split = load_images(dataset, **data)
    folder = Path(out) if out else free_folder(f"{split.name}-{config.reg}-seed{config.seed}")
    run = VisionRun.create(folder, VisionRunConfig(dataset, data, config, used, device), split)
    if run.replaced:
        say(f"robustcf: {run.path} held a run that ended before its first checkpoint: replaced")
    return _executed(run, split, progress)


def resume_run(folder: str, *, progress: bool = False, **places: Any) -> VisionRun:
    """Resume a run with its own settings; ``places`` say where its images are."""
    run = VisionRun(folder)
    return run if run.settle() else _executed(run, run.split(**places), progress)


def _executed(run: VisionRun, split: ImageSplit, progress: bool) -> VisionRun:
    if run.execute(split, progress=progress).interrupted:
        raise run.interrupted()
    return run


def evaluate_run(run: VisionRun, places: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return accuracy, clean and attacked, and the norms of the Jacobian of a run.

    Args:
        run: the run.
        places: where its images are, see ``VisionRun.split``.
        options: of :func:`robustcf.vision.measures.report`.
    """
    split, net = _opened(run, places)
    images, labels = (part.to(run.config.device) for part in (split.test.images, split.test.labels))
    return report(net, images, labels, **options)


def jacobian_of_run(
    run: VisionRun,
    places: Mapping[str, Any],
    *,
    image: int = 0,
    methods: Sequence[str] = (),
    budgets: Sequence[int] = (),
    trials: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """Return errors of estimators of the two-to-infinity norm on the Jacobian at one test image.

    Args:
        run: the run.
        places: where its images are, see ``VisionRun.split``.
        image: number of the test image.
        methods: names of estimators; default: the paper's and ours.
        budgets: numbers of products; default: 10 20 50 100.
        trials: number of trials for each method and budget.
        seed: seed of the first trial.
    """
    split, net = _opened(run, places)
    if image >= len(split.test):
        raise InputError(f"there is no test image {image}: {run.path} has {len(split.test)}")
    one = pixels(split.test.images[image : image + 1].to(run.config.device))
    with torch.no_grad():
        J = JacobianOperator(net, one, block=16).dense()[0].double()
    costs = product_gflops(net, one)
    how: dict[str, Any] = {"methods": methods or COMPARED, "budgets": budgets or (10, 20, 50, 100)}
    points = compare(J, costs, trials=trials, seed=seed, **how)
    singular = torch.linalg.svdvals(J)
    return {
        "image": image,
        "shape": list(J.shape),
        "two_to_inf": float(J.norm(dim=1).max()),
        "stable_rank": float(singular.square().sum() / singular[0].square()),
        "singular_values": singular.tolist(),
        "gflops": costs,
        "points": [asdict(point) for point in points],
    }


def _opened(run: VisionRun, places: Mapping[str, Any]) -> tuple[ImageSplit, torch.nn.Module]:
    run.metrics()  # a run without result is an error before any data are read
    set_threads(run.config.threads)
    split = run.split(**places)
    return split, run.model(split)
