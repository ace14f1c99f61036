"""``robustcf train``: make a run directory from a data set."""

from __future__ import annotations

import functools
from typing import Any

import click

from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, REGULARIZERS
from robustcf.cli.kinds import FINITE, Choice, NameOf
from robustcf.cli.options import data_options, refuse, refuse_with_resume, training_options
from robustcf.cli.reporting import Report, command, say, shows_progress
from robustcf.cli.signatures import options
from robustcf.cli.sources import code_option

# With --resume, a run has all settings but where its data are.
_PLACES = ("dataset", "data_dir", "download", "valid_file", "test_file")
# Options whose defaults are those of the preset.
_set = functools.partial(options, unset=True)


@command(threads=False)
@click.option(
    "--model",
    type=NameOf(MODELS, "vote"),
    help="Model (default: the best known for the data, or ultragcn if --reg is given). A vote has "
    "no embeddings, and is certified against fake accounts.",
)
@click.option("--objective", type=NameOf(OBJECTIVES), help="Loss (default: the model's own).")
@click.option("--reg", type=NameOf(REGULARIZERS), help="Regularizer (default: the model's own).")
@click.option(
    "--preset",
    metavar="[auto|tuned|robust|paper|FILE]",
    help="tuned: settings for clean quality; robust: for quality under attack; paper: those of the "
    "paper; auto: search for model and settings on valid; FILE: written by 'robustcf tune'.",
)
@click.option(
    "--minutes", type=FINITE, help="Maximum CPU time of the search, in minutes (default 5)."
)
@_set("training.search:tune_to_file", "trials", "memory")
@_set("regularizers.base:RegularizerConfig", "weight=reg_weight")
@_set(
    "regularizers.two_to_inf:TwoToInfConfig",
    *("estimator", "top=reg_top", "side=reg_side", "every=reg_every"),
    side=Choice(["users", "items"]),
)
@click.option(
    "--adversarial",
    type=NameOf(ADVERSARIES),
    help="Adversarial training against an attack on this objective; margin: the certified margin "
    "loss.",
)
@_set(
    "training.adversarial:AdversaryConfig",
    *("eps=adv_eps", "weight=adv_weight", "size=adv_size"),
    size="training.adversarial:SIZES",
)
@_set("models.base:ModelConfig", "factors", "init", init="models.base:INITS")
@_set(
    "training.config:TrainConfig",
    *("gauge", "serve", "epochs", "lr", "user_lr", "refit"),
    gauge="training.config:GAUGES",
    serve="training.config:SERVES",
    refit="training.config:REFITS",
)
@_set("objectives.batches:BatchConfig", "kind=batching", kind="objectives.batches:BATCHINGS")
@_set("objectives.bce:BCEConfig", "precision", precision="objectives.kernels:PRECISIONS")
@training_options
@code_option
@data_options(required=False)
def train(
    dataset: str | None,
    settings: dict[str, Any],
    resume: str | None,
    allow_code: bool,
    data: dict[str, Any],
    **given: Any,
) -> Report:
    """Train a recommender and evaluate it on the test pairs.

    Settings come from the preset of the data set, model and regularizer. A tuned preset includes
    the number of epochs; if you change a setting, the number is chosen again on validation data.
    For data without a tuned preset, model and settings are searched for on validation data.

    Under torchrun, the processes train one model together: each has a share of the users.
    """
    from robustcf.experiments.starting import describe, resume_run, start_run

    how: dict[str, Any] = {"progress": shows_progress(), "say": say}
    if resume is not None:
        refuse_with_resume("allow_code", *_PLACES)
        typed = click.get_current_context().params
        places = {name: typed[name] for name in _PLACES} | {"download": bool(typed["download"])}
        run = resume_run(resume, allow_code=allow_code, **how, **places)
    elif dataset is not None:
        limits = ("minutes", "trials", "memory")
        if given["model"] == "vote":
            refuse("has no effect on a vote", "reg", "preset", *limits)
        names = ("model", "reg", "preset", *limits, "seed", "threads", "device", "out")
        how |= {name: given.pop(name) for name in names}
        changes = {key: value for key, value in given.items() if value is not None}
        run = start_run(dataset, data, changes=changes | settings, **how)
    else:
        raise click.UsageError("give either --dataset or --resume")
    if run is None:  # another rank than the first
        return Report({}, "")
    return Report(run.metrics(), describe(run))
