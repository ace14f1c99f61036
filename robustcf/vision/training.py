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

from robustcf._io import schema
from robustcf._io.files import REMOVE, CheckpointFiles
from robustcf._io.schema import NOT_NEGATIVE, NUMBER, record
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
        "epoch": schema.whole(1),
        **dict.fromkeys(("lr", "loss", "train_accuracy", "penalty"), NUMBER),
        "valid_accuracy": schema.nullable(NUMBER),
        **dict.fromkeys(("seconds", "penalty_seconds"), NOT_NEGATIVE),
    },
    others=schema.ABSENT,
)
_STATE_KIND = record({"history": schema.list_of(_ROW_KIND)})


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained network, a row per epoch, and whether training was interrupted."""

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
    """Return the untrained network for a split."""
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

    Returns the network of the last epoch. Deterministic for a seed and a number of threads on the
    CPU, resumed or not.

    Args:
        split: the images; validation images (if any) are only measured.
        model: the network, from pixels in [0, 1] to logits; None for the config's WideResNet.
        checkpoint: where to keep the state, and to resume from.

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
    # One module, so that checkpoints hold net.* and reg.*.
    both = nn.ModuleDict({"net": net} if reg is None else {"net": net, "reg": reg})
    history: list[dict[str, Any]] = []
    saved = checkpoint.load(_STAGE) if checkpoint is not None else None
    if saved is not None and checkpoint is not None:
        try:
            schema.check_kind("", saved[1], _STATE_KIND)
            _restore(saved[0], both, optimizer)
        except InputError as error:
            raise InputError(f"{checkpoint.path(_STAGE)}: {error}; {REMOVE}") from error
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
                state = both.state_dict() | _momentum(optimizer)
                last = epoch + 1 == config.epochs
                checkpoint.save(_STAGE, state, {"history": history}, final=last)
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
        losses += _finite(loss, "the loss", epoch) * len(x)
        loss.backward()  # type: ignore[no-untyped-call]
        right += int((logits.detach().argmax(dim=1) == labels).sum())
        if reg is not None and config.reg_weight:
            start = time.perf_counter()
            penalty: Tensor = reg(net, x)
            if penalty.requires_grad:
                penalties += _finite(penalty, f"the penalty {config.reg}", epoch)
                (config.reg_weight * penalty).backward()  # type: ignore[no-untyped-call]
                acted += 1
            on_penalty += time.perf_counter() - start
        optimizer.step()
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.is_floating_point():
            _finite(tensor.detach().sum(dtype=torch.float64), "an update", epoch)
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
    """Yield the shuffled, augmented batches of an epoch, the same for a seed and an epoch."""
    if not len(train):
        raise InputError("there are no training images")
    order = stream(config.seed, "vision", "order", str(epoch)).permutation(len(train))
    draws = stream(config.seed, "vision", "augment", str(epoch)).integers(2**62)
    generator = torch.Generator().manual_seed(int(draws))
    for index in torch.split(torch.from_numpy(order).to(train.images.device), config.batch_size):
        yield augment(pixels(train.images[index]), generator), train.labels[index]


def _finite(value: Tensor, what: str, epoch: int) -> float:
    number = float(value.detach())
    if not math.isfinite(number):
        raise TrainingError(
            f"{what} is not finite in epoch {epoch + 1} ({number}): lower lr or reg_weight"
        )
    return number


def _postfix(row: dict[str, Any]) -> str:
    valid, penalty = row["valid_accuracy"], row["penalty"]
    shown = f"loss {row['loss']:.3f}, train {row['train_accuracy']:.3f}"
    shown += "" if valid is None else f", valid {valid:.3f}"
    return shown + (f", penalty {penalty:.3g}" if penalty else "")


def restore(module: nn.Module, tensors: dict[str, Tensor], path: object = "") -> None:
    """Load the tensors of a file into a module; raise unless they are finite and fit."""
    where = f"{path}: " if path else ""
    for name, tensor in tensors.items():
        _check_real(name, tensor, where)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"{where}the tensors must be those of this network, got others ({reason})"
        ) from error


def _check_real(name: str, tensor: Tensor, where: str = "") -> None:
    if tensor.is_complex() or not bool(torch.isfinite(tensor.double()).all()):
        raise InputError(f"{where}the tensor {name} must have finite real numbers")


def _momentum(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    buffers = [
        optimizer.state[p].get("momentum_buffer") for p in optimizer.param_groups[0]["params"]
    ]
    return {f"momentum.{n}": kept for n, kept in enumerate(buffers) if kept is not None}


def _restore(
    tensors: dict[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    restore(module, {n: part for n, part in tensors.items() if not n.startswith("momentum.")})
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        kept = tensors.get(f"momentum.{number}")
        if kept is None:
            continue
        if kept.shape != parameter.shape:
            raise InputError(
                f"the tensor momentum.{number} must be of shape {tuple(parameter.shape)}, got "
                f"{tuple(kept.shape)}"
            )
        _check_real(f"momentum.{number}", kept)
        # In the layout of the parameter, so that sums round as in an undisturbed run.
        optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(kept)
