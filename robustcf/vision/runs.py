"""Runs of classifiers: train, resume, open, evaluate."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustcf._io import files
from robustcf._io.files import CheckpointFiles, csv_bytes
from robustcf._io.schema import FLAG, NOT_NEGATIVE, NUMBER, TEXT, nullable, record, whole
from robustcf._runtime import device_of, memory, set_threads, threads_used
from robustcf.errors import InputError
from robustcf.experiments.folders import RunBase, free_folder
from robustcf.experiments.records import CONFIG, HISTORY
from robustcf.vision.catalog import image_manifests
from robustcf.vision.comparison import COMPARED, compare, product_gflops
from robustcf.vision.config import VisionConfig, VisionRunConfig
from robustcf.vision.images import ImageSplit
from robustcf.vision.jacobian import JacobianOperator
from robustcf.vision.loading import load_images
from robustcf.vision.measures import accuracy, pixels, report
from robustcf.vision.training import Fitted, build, fit, restore

MODEL = "model.safetensors"
_FORMAT = "robustcf vision run 1"
#: The result of a classifier.
METRICS_KIND = record(
    {
        "model": TEXT,
        "reg": TEXT,
        "test": record(
            {
                **dict.fromkeys(("accuracy", "fgsm", "pgd", "stable_rank", "eps"), NUMBER),
                **dict.fromkeys(("images", "pgd_steps", "jacobian_images"), whole()),
            },
            dict.fromkeys(("frobenius", "spectral", "infinity", "two_to_inf", "strong"), NUMBER),
        ),
        "valid_accuracy": nullable(NUMBER),
        "epochs": whole(),
        "train_seconds": NOT_NEGATIVE,
        "overhead": NUMBER,
        "interrupted": FLAG,
    }
)


class VisionRun(RunBase[VisionRunConfig, ImageSplit]):
    """A run directory of a classifier.

    Example:
        >>> import tempfile
        >>> config = VisionRunConfig("digits", train=VisionConfig(depth=10, width=1, epochs=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = VisionRun.create(Path(folder) / "one", config, load_images("digits"))
        ...     run.complete
        False
    """

    config_type = VisionRunConfig
    result_kind = METRICS_KIND
    command = "robustcf vision train"

    @classmethod
    def check_trainable(cls, config: VisionRunConfig, split: ImageSplit) -> None:
        """Raise for devices, depths, widths and sizes that training would refuse."""
        device_of(config.device)
        there, width = memory(), config.train.width
        with torch.device("meta"):  # checks settings and counts parameters without memory
            net = build(split, dataclasses.replace(config.train, width=1))
        # Parameters, gradients and momentum; almost all weights lie between two wide layers.
        needed = 3 * 4 * width**2 * sum(part.numel() for part in net.parameters())
        if there is not None and needed > there:
            raise InputError(
                f"width {width} at depth {config.train.depth} needs about {needed / 1e9:,.0f} GB "
                f"of memory, and this machine has {there / 1e9:,.0f}: choose smaller numbers"
            )

    def is_named(self) -> bool:
        """Return whether the run is on one of the known sets."""
        return self.config.dataset.lower() in ("digits", *image_manifests())

    @classmethod
    def data_facts(cls, split: ImageSplit) -> dict[str, Any]:
        """Return name, fingerprint, sources and sizes."""
        return {
            "name": split.name,
            "fingerprint": split.fingerprint,
            "sources": dict(split.sources),
            "classes": list(split.classes),
            "shape": list(split.train.images.shape[1:]),
            "images": dict(zip(("train", "valid", "test"), map(len, split.parts), strict=True)),
        }

    def load(self, dataset: str, data: Mapping[str, Any]) -> ImageSplit:
        """Load images with these arguments of :func:`load_images`."""
        return load_images(dataset, **data)

    def model(self, split: ImageSplit) -> nn.Module:
        """Return the trained network, in evaluation mode."""
        path = self.path / MODEL
        if not os.path.lexists(path):
            raise self.unfinished(MODEL)
        self.check_finished()
        tensors, _ = files.read_tensors(path)
        self.check_trainable(self.config, split)
        net = build(split, self.config.train)
        restore(net, tensors, path)
        return net.eval().to(device_of(self.config.device))

    def opened(self, places: Mapping[str, Any]) -> tuple[ImageSplit, nn.Module]:
        """Return the images, looked for in ``places`` (see :meth:`split`), and the network."""
        self.metrics()  # a run without result is an error before any data are read
        set_threads(self.config.threads)
        split = self.split(**places)
        return split, self.model(split)

    def finished(self, split: ImageSplit, *, progress: bool = False) -> VisionRun:
        """Train to the end, and return the run; raise if interrupted."""
        if self.execute(split, progress=progress).interrupted:
            raise self.interrupted()
        return self

    def execute(self, split: ImageSplit, *, progress: bool = False, every: float = 10.0) -> Fitted:
        """Train as configured, from the last checkpoint if there is one, and write the result.

        Args:
            every: seconds between checkpoints; 0 keeps one after every epoch.
        """
        self.check(split)
        checkpoint, device = CheckpointFiles(self.path, every), device_of(self.config.device)
        with threads_used(self.config.threads, exact=True), self.at_work():
            how: dict[str, Any] = {"device": device, "checkpoint": checkpoint, "progress": progress}
            fitted = fit(split, self.config.train, **how)
            self.write(fitted, split)
            if not fitted.interrupted:
                checkpoint.clear()
        return fitted

    def write(self, fitted: Fitted, split: ImageSplit) -> None:
        """Write network, history and, last, the metrics."""
        config, net, history = self.config.train, fitted.model, fitted.history
        device = next(net.parameters()).device
        tensors = {name: value.cpu().contiguous() for name, value in net.state_dict().items()}
        files.write_tensors(self.path / MODEL, tensors, {"format": _FORMAT, "data": split.name})
        files.write_bytes(self.path / HISTORY, csv_bytes(history))
        test, valid = (
            measure(net, part.images.to(device), part.labels.to(device)) if len(part) else None
            for measure, part in ((report, split.test), (accuracy, split.valid))
        )
        result: dict[str, Any] = {
            "run": str(self.path),
            "dataset": split.name,
            "model": f"WideResNet-{config.depth}-{config.width}",
            "reg": config.reg,
            "reg_weight": config.reg_weight,
            "seed": config.seed,
            "test": test,
            "valid_accuracy": valid,
            "train_accuracy": history[-1]["train_accuracy"] if history else None,
            "epochs": len(history),
            "train_seconds": round(sum(row["seconds"] for row in history), 3),
            "overhead": round(fitted.overhead, 4),
            "interrupted": fitted.interrupted,
        }
        self.write_metrics(result)


def open_or_create(
    path: Path, config: VisionRunConfig, split: ImageSplit, *, progress: bool = False
) -> VisionRun:
    """Return a complete run of this configuration: opened, resumed, or trained from scratch."""
    if not (path / CONFIG).is_file():
        VisionRun.create(path, config, split)
    run = VisionRun(path)
    if run.config.train != config.train or run.config.dataset != config.dataset:
        raise InputError(
            f"{path} holds a run of another configuration: choose another folder or remove it"
        )
    return run if run.settle() else run.finished(split, progress=progress)


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
    """Train a classifier in a new folder, and ``say`` lines for people.

    Args:
        dataset: a name or a path, see :func:`robustcf.vision.loading.load_images`.
        data: its other arguments.
        threads: CPU threads; None for ``OMP_NUM_THREADS``, or the cores.
        out: the folder; None for a new one in ``runs/``.
    """
    device_of(device)
    used = set_threads(threads)
    split = load_images(dataset, **data)
    folder = Path(out) if out else free_folder(f"{split.name}-{config.reg}-seed{config.seed}")
    run = VisionRun.create(folder, VisionRunConfig(dataset, data, config, used, device), split)
    if run.replaced:
        say(f"robustcf: {run.path} held a run that ended before its first checkpoint: replaced")
    return run.finished(split, progress=progress)


def resume_run(folder: str, *, progress: bool = False, **places: Any) -> VisionRun:
    """Resume a run with its own settings; ``places`` as in ``VisionRun.split``."""
    run = VisionRun(folder)
    return run if run.settle() else run.finished(run.split(**places), progress=progress)


def evaluate_run(run: VisionRun, places: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return accuracy, clean and attacked, and the norms of the Jacobian of a run.

    Args:
        places: where its images are, see ``VisionRun.split``.
        options: of :func:`robustcf.vision.measures.report`.
    """
    split, net = run.opened(places)
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
        places: where the images of the run are, see ``VisionRun.split``.
        image: number of the test image.
        methods: names of estimators; default: the paper's and ours.
        budgets: numbers of products; default: 10 20 50 100.
        trials: number of trials for each method and budget.
        seed: seed of the first trial.
    """
    split, net = run.opened(places)
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
        "points": [dataclasses.asdict(point) for point in points],
    }


def summary(values: list[float]) -> dict[str, float]:
    """Return mean and sample standard deviation (0 for one value).

    Example:
        >>> summary([1.0, 3.0])
        {'mean': 2.0, 'std': 1.4142135623730951, 'count': 2}
    """
    numbers = torch.tensor(values, dtype=torch.float64)
    spread = float(numbers.std()) if len(values) > 1 else 0.0
    return {"mean": float(numbers.mean()), "std": spread, "count": len(values)}
