"""``robustcf train``: a data set in, a run directory out."""

from __future__ import annotations

from typing import Any

import click

from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, REGULARIZERS
from robustcf.cli.kinds import FINITE, NameOf
from robustcf.cli.options import data_options, refuse, refuse_with_resume, training_options
from robustcf.cli.reporting import Report, command, say, shows_progress
from robustcf.cli.signatures import choice, options
from robustcf.cli.sources import code_option

# With --resume, a run has all settings but where its data are.
_PLACES = ("dataset", "data_dir", "download", "valid_file", "test_file")


@command(threads=False)
@click.option(
    "--model",
    type=NameOf(MODELS, "vote"),
    help="What to train (default: the best known for the data; with --reg, ultragcn); vote: "
    "certified against fake accounts, without embeddings.",
)
@click.option(
    "--objective", type=NameOf(OBJECTIVES), help="What is minimized (default: the model's own)."
)
@click.option(
    "--reg", type=NameOf(REGULARIZERS), help="The regularizer (default: the model's own)."
)
@click.option(
    "--preset",
    metavar="[auto|tuned|robust|paper|FILE]",
    help="Settings: tuned for clean quality, robust for quality under attack, the paper's; auto: "
    "search for model and settings on valid; or a file that 'robustcf tune' wrote.",
)
@click.option("--minutes", type=FINITE, help="Time of the search of 'auto' at most (default 5).")
@options("regularizers.base:RegularizerConfig", "weight=reg_weight", unset=True)
@options(
    "regularizers.two_to_inf:TwoToInfConfig",
    *("estimator", "top=reg_top", "side=reg_side", "every=reg_every"),
    unset=True,
    side=click.Choice(["users", "items"]),
)
@click.option(
    "--adversarial",
    type=NameOf(ADVERSARIES),
    help="Adversarial training: the objective of the attack to train against; margin: certified "
    "margin loss.",
)
@options(
    "training.adversarial:AdversaryConfig",
    *("eps=adv_eps", "weight=adv_weight", "size=adv_size"),
    unset=True,
    size=choice("training.adversarial:SIZES"),
)
@options("models.base:ModelConfig", "dim", "init", unset=True, init=choice("models.base:INITS"))
@options(
    "training.config:TrainConfig",
    *("gauge", "epochs", "lr", "user_lr", "refit"),
    unset=True,
    gauge=choice("training.config:GAUGES"),
    refit=choice("training.config:REFITS"),
)
@options(
    "objectives.batches:BatchConfig",
    "kind=batching",
    unset=True,
    kind=choice("objectives.batches:BATCHINGS"),
)
@options(
    "objectives.bce:BCEConfig",
    "precision",
    unset=True,
    precision=choice("objectives.kernels:PRECISIONS"),
)
@training_options
@code_option
@data_options(required=False)
def train(
    dataset: str | None,
    model: str | None,
    reg: str | None,
    preset: str | None,
    minutes: float | None,
    settings: dict[str, Any],
    seed: int,
    threads: int | None,
    device: str,
    out: str | None,
    resume: str | None,
    allow_code: bool,
    data: dict[str, Any],
    **given: Any,
) -> Report:
    """Train a recommender and evaluate it on the test pairs.

    Settings come from the preset of the data set, model and regularizer. A tuned one's number of
    epochs was chosen on validation data; once you change a setting, the number is chosen again.
    For data that has no tuned preset, model and settings are searched for on validation data.

    Started by torchrun, processes train together: each has a part of the users.
    """
    from robustcf.experiments.starting import describe, resume_run, start_run

    if resume is not None:
        refuse_with_resume("allow_code", *_PLACES)
        typed = click.get_current_context().params
        places = {name: typed[name] for name in _PLACES} | {"download": bool(typed["download"])}
        run = resume_run(
            resume, allow_code=allow_code, progress=shows_progress(), say=say, **places
        )
    elif dataset is not None:
        if model == "vote":
            refuse("has no effect on a vote", "reg", "preset", "minutes")
        changes = {key: value for key, value in given.items() if value is not None}
        run = start_run(
            dataset,
            data,
            model=model,
            reg=reg,
            preset=preset,
            changes=changes | settings,
            minutes=minutes,
            seed=seed,
            threads=threads,
            device=device,
            out=out,
            progress=shows_progress(),
            say=say,
        )
    else:
        raise click.UsageError("give either --dataset or --resume")
    if run is None:  # another rank than the first
        return Report({}, "")
    return Report(run.metrics(), describe(run))
