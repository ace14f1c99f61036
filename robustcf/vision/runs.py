"""VisionRun: a classifier's run, from its configuration to its results."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustcf._io import files
from robustcf._io.files import CheckpointFiles, csv_bytes
from robustcf._io.schema import (
    FLAG,
    NOT_NEGATIVE,
    NUMBER,
    TEXT,
    nullable,
    record,
    whole,
)
from robustcf._runtime import device_of, memory, threads_used
from robustcf.errors import InputError
from robustcf.experiments.folders import RunBase
from robustcf.experiments.records import CONFIG, HISTORY
from robustcf.vision.catalog import image_manifests
from robustcf.vision.config import VisionRunConfig
from robustcf.vision.images import ImageSplit
from robustcf.vision.loading import load_images
from robustcf.vision.measures import accuracy, report
from robustcf.vision.training import Fitted, build, fit, restore

MODEL = "model.safetensors"
_FORMAT = "robustcf vision run 1"
_COUNTS = ("images", "pgd_steps", "jacobian_images")
#: The result of a classifier.
METRICS_KIND = record(
    {
        "model": TEXT,
        "reg": TEXT,
        "test": record(
            {
                **dict.fromkeys(("accuracy", "fgsm", "pgd", "stable_rank", "eps"), NUMBER),
                **dict.fromkeys(_COUNTS, whole()),
            },
            dict.fromkeys(("frobenius", "spectral", "infinity", "two_to_inf"), NUMBER),
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
        >>> from robustcf.vision.config import VisionConfig
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
        """Raise for what would only be found wrong in training: devices, depths, widths, sizes."""
        device_of(config.device)
        there = memory()
        # A network on no device at all, to check its settings and to count what it takes.
        with torch.device("meta"):
            net = build(split, dataclasses.replace(config.train, width=1))
        # Parameters, gradients and momentum; almost all weights lie between two wide layers.
        needed = 3 * 4 * config.train.width**2 * sum(part.numel() for part in net.parameters())
        if there is not None and needed > there:
            raise InputError(
                f"width {config.train.width} at depth {config.train.depth} needs about "
                f"{needed / 1e9:,.0f} GB of memory, and this machine has {there / 1e9:,.0f}: "
                "choose smaller numbers"
            )

    def is_named(self) -> bool:
        """Whether the run is on one of the known sets."""
        return self.config.dataset.lower() in ("digits", *image_manifests())

    @classmethod
    def data_facts(cls, split: ImageSplit) -> dict[str, Any]:
        """Name, fingerprint, sources and sizes."""
        return {
            "name": split.name,
            "fingerprint": split.fingerprint,
            "sources": dict(split.sources),
            "classes": list(split.classes),
            "shape": list(split.train.images.shape[1:]),
            "images": {
                "train": len(split.train), "valid": len(split.valid), "test": len(split.test),
            },
        }  # fmt: skip

    def load(self, dataset: str, data: Mapping[str, Any]) -> ImageSplit:
        """Load images with these arguments of :func:`load_images`."""
        return load_images(dataset, **data)

    def model(self, split: ImageSplit) -> nn.Module:
        """The trained network, in evaluation mode."""
        path = self.path / MODEL
        if not os.path.lexists(path):
            raise self.unfinished(MODEL)
        self.check_finished()
        tensors, _ = files.read_tensors(path)
        self.check_trainable(self.config, split)
        net = build(split, self.config.train)
        restore(net, tensors, path)
        return net.eval().to(device_of(self.config.device))

    def execute(self, split: ImageSplit, *, progress: bool = False, every: float = 10.0) -> Fitted:
        """Train as the configuration says, from where an earlier attempt stopped, and write.

        Args:
            every: seconds between checkpoints; 0 keeps one after every epoch.
        """
        self.check(split)
        checkpoint = CheckpointFiles(self.path, every)
        with threads_used(self.config.threads, exact=True), self.at_work():
            fitted = fit(
                split,
                self.config.train,
                device=device_of(self.config.device),
                checkpoint=checkpoint,
                progress=progress,
            )
            self.write(fitted, split)
            if not fitted.interrupted:
                checkpoint.clear()
        return fitted

    def write(self, fitted: Fitted, split: ImageSplit) -> None:
        """Write network, history and, last, the metrics."""
        config, net = self.config.train, fitted.model
        device = next(net.parameters()).device
        tensors = {name: value.cpu().contiguous() for name, value in net.state_dict().items()}
        files.write_tensors(self.path / MODEL, tensors, {"format": _FORMAT, "data": split.name})
        files.write_bytes(self.path / HISTORY, csv_bytes(fitted.history))
        test = report(net, split.test.images.to(device), split.test.labels.to(device))
        valid = None
        if len(split.valid):
            valid = accuracy(net, split.valid.images.to(device), split.valid.labels.to(device))
        result: dict[str, Any] = {
            "run": str(self.path),
            "dataset": split.name,
            "model": f"WideResNet-{config.depth}-{config.width}",
            "reg": config.reg,
            "reg_weight": config.reg_weight,
            "seed": config.seed,
            "test": test,
            "valid_accuracy": valid,
            "train_accuracy": fitted.history[-1]["train_accuracy"] if fitted.history else None,
            "epochs": len(fitted.history),
            "train_seconds": round(sum(row["seconds"] for row in fitted.history), 3),
            "overhead": round(fitted.overhead, 4),
            "interrupted": fitted.interrupted,
        }
        self.write_metrics(result)


def open_or_create(
    path: Path, config: VisionRunConfig, split: ImageSplit, *, progress: bool = False
) -> VisionRun:
    """A complete run of this configuration: opened, gone on with, or made from scratch."""
    if not (path / CONFIG).is_file():
        VisionRun.create(path, config, split)
    run = VisionRun(path)
    if run.config.train != config.train or run.config.dataset != config.dataset:
        raise InputError(
            f"{path} holds a run of another configuration: choose another folder or remove it"
        )
    if not run.settle() and run.execute(split, progress=progress).interrupted:
        raise run.interrupted()
    return run


def summary(values: list[float]) -> dict[str, float]:
    """Mean and sample standard deviation (0 for one value).

    Example:
        >>> summary([1.0, 3.0])
        {'mean': 2.0, 'std': 1.4142135623730951, 'count': 2}
    """
    numbers = torch.tensor(values, dtype=torch.float64)
    spread = float(numbers.std()) if len(values) > 1 else 0.0
    return {"mean": float(numbers.mean()), "std": spread, "count": len(values)}
