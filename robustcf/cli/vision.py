"""``robustcf vision``: train classifiers with Jacobian penalties, measure them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from robustcf._io.text import counted
from robustcf.cli.kinds import COUNT, FINITE, Choice
from robustcf.cli.options import (
    absolute,
    refuse,
    refuse_with_resume,
    split_seed_option,
    training_options,
)
from robustcf.cli.reporting import Report, command, say, table
from robustcf.cli.signatures import options, values
from robustcf.cli.sources import Opener, opens_run

if TYPE_CHECKING:
    from robustcf.vision.runs import VisionRun

_CONFIG, _JACOBIAN = "vision.config:VisionConfig", "vision.runs:jacobian_of_run"
_REGS = Choice(("none", *values("vision.regularizers:REGULARIZERS")))
# Options that only some regularizers use.
_OF_ONE = {
    **dict.fromkeys(("estimator", "reg_budget"), ("two_to_inf",)),
    "reg_steps": ("spectral", "infinity"),
}


@command(kind=click.Group, threads=False, invoke_without_command=True)
@click.option("--data-dir", metavar="DIR", help="Look here first.")
@click.pass_context
def vision(context: click.Context, data_dir: str | None) -> Report | None:
    """Image classifiers and the norm of their Jacobian; alone, lists the known sets of images."""
    if context.invoked_subcommand is not None:
        if data_dir is not None:
            raise click.UsageError("--data-dir belongs behind the subcommand")
        return None
    from robustcf.vision.catalog import known_images

    entries = known_images(data_dir)
    rows = [
        (e["name"], f"{e['classes']}", f"{e['train']:,}", f"{e['test']:,}", e["where"] or "-")
        for e in entries
    ]
    text = table(("name", "classes", "train", "test", "where"), rows, left=(0, 4))
    text += "\n\nAlso: digits, a folder of images by class, an npz file."
    return Report({"images": entries}, text)


@command(threads=False)
@click.option(
    "--dataset",
    metavar="NAME|FOLDER|FILE.npz",
    help="digits, cifar10, cifar100, tinyimagenet, a folder of images by class, or an npz file.",
)
@options(
    _CONFIG,
    *("reg", "reg_weight", "reg_every", "reg_images", "estimator", "reg_budget", "reg_steps"),
    *("depth", "width", "epochs", "lr", "batch_size"),
    reg=_REGS,
)
@training_options
@options("vision.loading:load_images", "size", "valid_share", "data_dir", "download")
@split_seed_option
def train(
    dataset: str | None,
    settings: dict[str, Any],
    size: int | None,
    valid_share: float,
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
    from robustcf.vision.config import VisionConfig
    from robustcf.vision.runs import resume_run, start_run

    progress = sys.stderr.isatty()
    if resume is not None:
        refuse_with_resume("dataset", "data_dir", "download")
        places = {"data_dir": data_dir, "dataset": dataset, "download": bool(download)}
        return _report(resume_run(resume, progress=progress, **places))
    if dataset is None:
        raise click.UsageError("give either --dataset or --resume")
    config = VisionConfig.from_dict(given | settings)
    if config.reg != "none" and not config.reg_weight:
        raise click.UsageError(f"--reg {config.reg} needs a --reg-weight above 0")
    idle = [name for name, regs in _OF_ONE.items() if config.reg not in regs]
    idle += ["reg_weight", "reg_every", "reg_images"] if config.reg == "none" else []
    refuse(f"has no effect on --reg {config.reg}", *idle)
    data: dict[str, Any] = {"size": size, "valid_share": valid_share, "seed": split_seed}
    data["download"] = download is not False
    if data_dir is not None:
        data["data_dir"] = absolute(data_dir)
    if os.path.exists(os.path.expanduser(dataset)):
        dataset = absolute(dataset)
    how: dict[str, Any] = {"threads": threads, "device": device, "out": out}
    return _report(start_run(dataset, data, config, progress=progress, say=say, **how))


def _report(run: VisionRun) -> Report:
    result = run.metrics()
    lines = [_measured(result["test"])]
    if result["valid_accuracy"] is not None:
        lines.append(f"valid accuracy {result['valid_accuracy']:.4f}")
    spent = f"{counted(result['epochs'], 'epoch')} in {result['train_seconds']:.1f} s"
    if result["reg"] != "none":
        spent += f"; the penalty added {result['overhead']:.0%} to the time of everything else"
    return Report(result, "\n".join([*lines, spent, f"run: {run.path}"]))


def _measured(test: dict[str, Any]) -> str:
    norms = ", ".join(f"{name} {test[name]:.4g}" for name in _REGS.choices if name in test)
    strong = f"strong {test['strong']:.4f}  " if "strong" in test else ""
    return (
        f"accuracy {test['accuracy']:.4f}  FGSM {test['fgsm']:.4f}  PGD {test['pgd']:.4f}  {strong}"
        f"stable rank {test['stable_rank']:.3f}\n"
        f"      ({test['images']:,} test images, eps {test['eps']:.5f} in [0, 1], PGD "
        f"{test['pgd_steps']} steps; Jacobian at {test['jacobian_images']} of them: {norms})"
    )


@command(threads=False)
@click.option(
    "--eps",
    type=FINITE,
    default=2 / 255,
    show_default="2/255",
    help="L-infinity size of the attack, for pixel values in [0, 1].",
)
@options(
    "vision.measures:report", "steps", "strong_steps", "jacobian_images", jacobian_images=COUNT
)
@opens_run
def evaluate(run: str, opener: Opener, **how: Any) -> Report:
    """Accuracy of RUN, clean and attacked, and the norms and stable rank of its Jacobian."""
    from robustcf.vision.runs import VisionRun, evaluate_run

    opened = VisionRun(run, allow_unfinished=opener.allow_unfinished)
    test = evaluate_run(opened, opener.places, **how)
    return Report({"run": run, "test": test}, _measured(test))


@command(threads=False)
@options(_JACOBIAN, "image", "methods", "budgets", "trials", "seed", image=click.IntRange(min=0))
@opens_run
def jacobian(run: str, opener: Opener, trials: int, **how: Any) -> Report:
    """Estimators of the two-to-infinity norm on the Jacobian of RUN at one test image."""
    from robustcf.vision.runs import VisionRun, jacobian_of_run

    opened = VisionRun(run, allow_unfinished=opener.allow_unfinished)
    facts = jacobian_of_run(opened, opener.places, trials=trials, **how)
    columns = {"method": "", "budget": "", "error": ".4f", "exact": ".2f", "gflops": ".3g"}
    rows = [[f"{p[key]:{spec}}" for key, spec in columns.items()] for p in facts["points"]]
    high, wide = facts["shape"]
    text = (
        f"Jacobian {high} x {wide}, two-to-infinity norm {facts['two_to_inf']:.4g}, stable rank "
        f"{facts['stable_rank']:.3f}; {trials} trials per point\n\n"
    )
    header = ("method", "products", "error", "exact", "GFLOPs")
    return Report({"run": run, **facts}, text + table(header, rows))


for subcommand in (train, evaluate, jacobian):
    vision.add_command(subcommand)
