"""``fit``: the training loop of classifiers, with a penalty on the Jacobian."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from robustcf._io.files import REMOVE, CheckpointFiles
from robustcf._io.schema import (
    ABSENT,
    NOT_NEGATIVE,
    NUMBER,
    check_kind,
    list_of,
    nullable,
    record,
    whole,
)
from robustcf._randomness import stream
from robustcf.errors import InputError, TrainingError
from robustcf.vision.augment import NOTHING, Augmentation
from robustcf.vision.config import VisionConfig
from robustcf.vision.images import ImageSet, ImageSplit
from robustcf.vision.loading import augmentation_for
from robustcf.vision.measures import accuracy, pixels
from robustcf.vision.wideresnet import classifier

_STAGE = "vision"
_ROW_KIND = record(
    {
        "epoch": whole(1),
        **dict.fromkeys(("lr", "loss", "train_accuracy", "penalty"), NUMBER),
        "valid_accuracy": nullable(NUMBER),
        **dict.fromkeys(("seconds", "penalty_seconds"), NOT_NEGATIVE),
    },
    others=ABSENT,
)
_STATE_KIND = record({"history": list_of(_ROW_KIND)})


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit leaves."""

    model: nn.Module
    history: list[dict[str, Any]]
    interrupted: bool

    @property
    def overhead(self) -> float:
        """Time spent on the penalty, as a share of the time spent on everything else."""
        penalty = sum(row["penalty_seconds"] for row in self.history)
        rest = sum(row["seconds"] for row in self.history) - penalty
        return penalty / rest if rest > 0 else 0.0


def build(split: ImageSplit, config: VisionConfig) -> nn.Sequential:
    """The network for a split, at its first weights."""
    seed = int(stream(config.seed, "vision", "weights").integers(2**62))
    return classifier(
        config.depth, config.width, len(split.classes), split.mean, split.std, generator=seed
    )


def fit(
    split: ImageSplit,
    config: VisionConfig,
    *,
    model: nn.Module | None = None,
    device: torch.device | str = "cpu",
    checkpoint: CheckpointFiles | None = None,
    progress: bool = False,
) -> Fitted:
    """Train a classifier: cross-entropy plus reg_weight times the penalty on its Jacobian.

    The network of the last epoch is returned: nothing is chosen, on valid or elsewhere.
    Deterministic for a seed and a number of threads on the CPU, resumed or not.

    Args:
        split: the images; train is learnt from, valid (if any) is watched.
        model: what to train, from pixels in [0, 1] to logits; None for the config's WideResNet.
        checkpoint: where to keep the state, and to go on from.

    Raises:
        TrainingError: the loss or the penalty is not finite any more.

    Cost: a step without penalty is one forward and backward pass; with one, see its class.

    Example:
        >>> from robustcf.vision.loading import load_images
        >>> split = load_images("digits")
        >>> config = VisionConfig(depth=10, width=1, epochs=1, reg="frobenius", reg_weight=1e-3)
        >>> len(fit(split, config).history)
        1
    """
    place = torch.device(device)
    net = (build(split, config) if model is None else model).to(place)
    # Channels last: the faster layout for convolutions on CPUs and GPUs alike.
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    reg = config.regularizer()
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=True,
    )
    size = split.train.images.shape[2]
    augment = augmentation_for(split.name, size) if config.augment else NOTHING
    train = ImageSet(split.train.images.to(place), split.train.labels.to(place))
    history: list[dict[str, Any]] = []
    saved = checkpoint.load(_STAGE) if checkpoint is not None else None
    if saved is not None:
        where = checkpoint.path(_STAGE) if checkpoint is not None else ""
        try:
            check_kind("", saved[1], _STATE_KIND)
            _restore(saved[0], net, optimizer, reg)
        except InputError as error:
            raise InputError(f"{where}: {error}; {REMOVE}") from error
        history = saved[1]["history"]

    interrupted = False
    bar = tqdm(
        total=config.epochs, initial=len(history), desc=f"{split.name} {config.reg}", unit="epoch",
        disable=not progress, file=sys.stderr,
    )  # fmt: skip
    try:
        for epoch in range(len(history), config.epochs):
            for group in optimizer.param_groups:
                group["lr"] = config.lr_at(epoch)
            row = _epoch(net, optimizer, reg, train, augment, config, epoch)
            if len(split.valid):
                images, labels = split.valid.images.to(place), split.valid.labels.to(place)
                row["valid_accuracy"] = accuracy(net, images, labels)
            history.append(row)
            bar.set_postfix_str(_postfix(row))
            bar.update()
            if checkpoint is not None:
                state = _state(net, optimizer, reg)
                checkpoint.save(
                    _STAGE, state, {"history": history}, final=epoch + 1 == config.epochs
                )
    except KeyboardInterrupt:
        interrupted = True
        if checkpoint is not None:
            checkpoint.flush()
    finally:
        bar.close()
    return Fitted(net.eval(), history, interrupted)


def _epoch(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    reg: nn.Module | None,
    train: ImageSet,
    augment: Augmentation,
    config: VisionConfig,
    epoch: int,
) -> dict[str, Any]:
    net.train()
    began, on_penalty = time.perf_counter(), 0.0
    losses = right = penalties = 0.0
    acted = 0
    for images, labels in batches(train, augment, config, epoch):
        x = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        logits = net(x)
        loss = F.cross_entropy(logits, labels)
        _check(float(loss.detach()), "the loss", epoch)
        loss.backward()  # type: ignore[no-untyped-call]
        losses += float(loss.detach()) * len(x)
        right += int((logits.detach().argmax(dim=1) == labels).sum())
        if reg is not None and config.reg_weight:
            start = time.perf_counter()
            penalty: Tensor = reg(net, x)
            if penalty.requires_grad:
                _check(float(penalty.detach()), f"the penalty {config.reg}", epoch)
                (config.reg_weight * penalty).backward()  # type: ignore[no-untyped-call]
                penalties += float(penalty.detach())
                acted += 1
            on_penalty += time.perf_counter() - start
        optimizer.step()
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.is_floating_point():
            _check(float(tensor.detach().sum(dtype=torch.float64)), "an update", epoch)
    return {
        "epoch": epoch + 1,
        "lr": optimizer.param_groups[0]["lr"],
        "loss": losses / len(train),
        "train_accuracy": right / len(train),
        "penalty": penalties / acted if acted else 0.0,
        "valid_accuracy": None,
        "seconds": time.perf_counter() - began,
        "penalty_seconds": on_penalty,
    }


def batches(
    train: ImageSet, augment: Augmentation, config: VisionConfig, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch: shuffled, in [0, 1], augmented; the same for seed and epoch."""
    if not len(train):
        raise InputError("there are no training images")
    order = stream(config.seed, "vision", "order", str(epoch)).permutation(len(train))
    draws = stream(config.seed, "vision", "augment", str(epoch)).integers(2**62)
    generator = torch.Generator().manual_seed(int(draws))
    for start in range(0, len(order), config.batch_size):
        index = torch.from_numpy(order[start : start + config.batch_size])
        index = index.to(train.images.device)
        yield augment(pixels(train.images[index]), generator), train.labels[index]


def _check(value: float, what: str, epoch: int) -> None:
    if not math.isfinite(value):
        raise TrainingError(
            f"{what} is not finite in epoch {epoch + 1} ({value}): lower lr or reg_weight"
        )


def _postfix(row: dict[str, Any]) -> str:
    valid = row["valid_accuracy"]
    shown = f"loss {row['loss']:.3f}, train {row['train_accuracy']:.3f}"
    shown += "" if valid is None else f", valid {valid:.3f}"
    return shown + (f", penalty {row['penalty']:.3g}" if row["penalty"] else "")


def restore(module: nn.Module, tensors: dict[str, Tensor], path: object = "") -> None:
    """Give a module what a file holds of it."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.double()).all()):
            raise InputError(f"{f'{path}: ' if path else ''}the tensor {name} must be finite")
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"{f'{path}: ' if path else ''}the tensors must be those of this network, got others "
            f"({reason})"
        ) from error


def _state(
    net: nn.Module, optimizer: torch.optim.Optimizer, reg: nn.Module | None
) -> dict[str, Tensor]:
    tensors = {f"net.{name}": value for name, value in net.state_dict().items()}
    for number, parameter in enumerate(net.parameters()):
        momentum = optimizer.state[parameter].get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum.{number}"] = momentum
    if reg is not None:
        tensors |= {f"reg.{name}": value for name, value in reg.state_dict().items()}
    return tensors


def _restore(
    tensors: dict[str, Tensor],
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    reg: nn.Module | None,
) -> None:
    def part(prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }

    restore(net, part("net."))
    if reg is not None:
        restore(reg, part("reg."))
    for number, parameter in enumerate(net.parameters()):
        if f"momentum.{number}" in tensors:
            kept = tensors[f"momentum.{number}"].to(parameter.device)
            if kept.shape != parameter.shape:
                raise InputError(
                    f"the tensor momentum.{number} must be of shape {tuple(parameter.shape)}, got "
                    f"{tuple(kept.shape)}"
                )
            # The layout of the parameter too, so that sums round as they would have.
            buffer = torch.empty_like(parameter).copy_(kept)
            optimizer.state[parameter]["momentum_buffer"] = buffer
