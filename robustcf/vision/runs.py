"""VisionRun: what a vision run writes, how it is opened again, how it goes on after a kill.

The conventions are those of the recommender side: configuration, environment and data checksums
first, ``metrics.json`` last, every file whole or absent.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustcf import files
from robustcf.errors import InputError
from robustcf.files import CheckpointFiles, csv_bytes, json_bytes
from robustcf.runtime import device_of, environment, set_threads
from robustcf.vision.config import VisionRunConfig
from robustcf.vision.images import ImageSplit
from robustcf.vision.loading import load_images
from robustcf.vision.measures import accuracy, report
from robustcf.vision.training import Fitted, build, fit

CONFIG, ENVIRONMENT, DATA = "config.json", "environment.json", "data.json"
MODEL, METRICS, HISTORY = "model.safetensors", "metrics.json", "history.csv"
_FORMAT = "robustcf vision run 1"


class VisionRun:
    """A run directory of a classifier.

    Args:
        path: the directory; it must hold the configuration of a vision run.

    Raises:
        InputError: there is no vision run at this path.

    Example:
        >>> import tempfile
        >>> from robustcf.vision.config import VisionConfig
        >>> config = VisionRunConfig("digits", train=VisionConfig(depth=10, width=1, epochs=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = VisionRun.create(Path(folder) / "one", config, load_images("digits"))
        ...     run.complete
        False
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a run; reads its configuration only."""
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            raise InputError(
                f"{self.path} is no run directory (no {CONFIG} in it): "
                "give the directory that 'robustcf vision train' wrote"
            )
        try:
            text = (self.path / CONFIG).read_text(encoding="utf-8")
            self.config = VisionRunConfig.from_json(text)
        except InputError as error:
            raise InputError(f"{self.path / CONFIG}: no vision run ({error})") from error

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], config: VisionRunConfig, split: ImageSplit
    ) -> VisionRun:
        """Make a run directory with configuration, versions and data checksums in it.

        Args:
            path: must not exist yet, or be an empty directory.
            config: what the run will do.
            split: the images it will use; their checksum is written down.
        """
        facts = {
            "name": split.name,
            "fingerprint": split.fingerprint,
            "sources": dict(split.sources),
            "classes": list(split.classes),
            "shape": list(split.train.images.shape[1:]),
            "images": {
                "train": len(split.train), "valid": len(split.valid), "test": len(split.test),
            },
        }  # fmt: skip
        contents = {
            CONFIG: config.to_json().encode(),
            ENVIRONMENT: json_bytes({**environment(), "seed": config.train.seed}),
            DATA: json_bytes(facts),
        }
        files.create_folder(Path(path), contents)
        return cls(path)

    @property
    def complete(self) -> bool:
        """Whether the run has its result, and that of all its epochs."""
        return (self.path / METRICS).is_file() and not self.metrics()["interrupted"]

    def metrics(self) -> dict[str, Any]:
        """The result, as ``metrics.json`` has it."""
        if not (self.path / METRICS).is_file():
            raise self._unfinished("result")
        found: dict[str, Any] = json.loads((self.path / METRICS).read_text(encoding="utf-8"))
        return found

    def split(self, data_dir: str | None = None) -> ImageSplit:
        """The images of the run, loaded again and checked to be the very same.

        Args:
            data_dir: where to look first, instead of where the run found them.
        """
        data = dict(self.config.data)
        if data_dir is not None:
            data["data_dir"] = data_dir
        split = load_images(self.config.dataset, **data)
        self.check(split)
        return split

    def check(self, split: ImageSplit) -> None:
        """Raise unless these are the images the run was made from."""
        files.check_fingerprint(self.path / DATA, split.name, split.fingerprint)

    def model(self, split: ImageSplit) -> nn.Module:
        """The trained network, in evaluation mode."""
        path = self.path / MODEL
        if not path.is_file():
            raise self._unfinished(MODEL)
        tensors, _ = files.read_tensors(path)
        net = build(split, self.config.train)
        net.load_state_dict(tensors)
        return net.eval().to(device_of(self.config.device))

    def execute(self, split: ImageSplit, *, progress: bool = False, every: float = 10.0) -> Fitted:
        """Train as the configuration says, from where an earlier attempt stopped, and write.

        Args:
            split: the run's images.
            progress: whether to show a bar.
            every: seconds between checkpoints; 0 keeps one after every epoch.
        """
        self.check(split)
        set_threads(self.config.threads)
        checkpoint = CheckpointFiles(self.path, every)
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
        result = {
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
        files.write_bytes(self.path / METRICS, json_bytes(result))

    def _unfinished(self, what: str) -> InputError:
        return InputError(
            f"{self.path} has no {what} yet: finish it with "
            f"'robustcf vision train --resume {self.path}'"
        )


def open_or_create(
    path: Path, config: VisionRunConfig, split: ImageSplit, *, progress: bool = False
) -> VisionRun:
    """A complete run of this configuration: opened, gone on with, or made from scratch.

    Raises:
        InputError: the directory holds a run of another configuration.
    """
    if not (path / CONFIG).is_file():
        VisionRun.create(path, config, split)
    run = VisionRun(path)
    if run.config.train != config.train or run.config.dataset != config.dataset:
        raise InputError(
            f"{path} holds a run of another configuration: choose another folder or remove it"
        )
    if not run.complete:
        run.execute(split, progress=progress)
        if not run.complete:
            raise KeyboardInterrupt
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
