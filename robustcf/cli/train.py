"""``robustcf train``: a data set in, a run directory out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from robustcf._io.text import counted
from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, REGULARIZERS
from robustcf.cli.kinds import FINITE, SEED, NameOf
from robustcf.cli.options import (
    data_options,
    device_option,
    load_arguments,
    out_option,
    own_threads_option,
    parse_settings,
    refuse,
    settings_option,
    split_seed_option,
)
from robustcf.cli.reporting import Report, command, say, shows_progress, typed_threads
from robustcf.cli.signatures import choice, options
from robustcf.cli.sources import code_option

if TYPE_CHECKING:
    from robustcf.experiments import RunDir

_BASELINE = "\n      (a baseline without training: nothing that was trained did better on valid)"
_SHOWN = ("ndcg@10", "recall@20", "ndcg@20", "mrr@10", "coverage@10")
# With --resume, the run has all settings but where its data are.
_RESUMES = (
    *("resume", "dataset", "allow_code", "data_dir", "download", "valid_file", "test_file"),
    *("as_json", "debug"),
)


@command(threads=False)
@click.option("--dataset", metavar="NAME|FILE", help="A known set, or a file of your own.")
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
    "kind",
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
@settings_option
@click.option("--seed", type=SEED, default=0, show_default=True, help="Training seed.")
@split_seed_option
@own_threads_option
@device_option
@out_option("The run directory (default: a new one in runs/).")
@click.option("--resume", metavar="RUN", help="Resume a run that was killed or interrupted.")
@code_option
@data_options
def train(
    dataset: str | None,
    model: str | None,
    reg: str | None,
    kind: str | None,
    minutes: float | None,
    settings: tuple[str, ...],
    seed: int,
    split_seed: int,
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
    from robustcf.experiments.starting import resume_run, start_run

    how: dict[str, Any] = {"progress": shows_progress(), "say": say}
    if resume is not None:
        names = {each.name or "" for each in click.get_current_context().command.params}
        refuse("has no effect with --resume", *names - set(_RESUMES))
        places: dict[str, Any] = {
            name: data.get(name) for name in ("data_dir", "valid_file", "test_file")
        }
        places |= {"dataset": dataset, "download": data.get("download", False)}
        run = resume_run(resume, allow_code=allow_code, **places, **how)
    elif dataset is not None:
        if model == "vote":
            refuse("has no effect on a vote", "reg", "kind", "minutes")
        changes = {key: value for key, value in given.items() if value is not None}
        dataset, data = load_arguments(dataset, data, split_seed)
        how |= {"model": model, "reg": reg, "preset": kind, "minutes": minutes, "seed": seed}
        how |= {"threads": typed_threads(threads), "device": device, "out": out}
        run = start_run(dataset, data, changes=changes | parse_settings(settings), **how)
    else:
        raise click.UsageError("give either --dataset or --resume")
    if run is None:  # another rank than the first
        return Report({}, "")
    result = run.metrics()
    return Report(result, _text(result, run))


def _text(result: dict[str, Any], run: RunDir) -> str:
    lines = _metric_lines(result)
    seconds, fit_on = f"{result['train_seconds']:.1f} s", f"fit on {result['learnt_from']}"
    if run.is_vote:
        lines += [
            f"{_voters(run)}; {fit_on} in {seconds}",
            f"run: {run.path}",
            f"next: robustcf certify {run.path} --fakes 0 1 2 5 10 20",
        ]
        return "\n".join(lines)
    lines.append(
        f"{counted(result['epochs'], 'epoch')} in {seconds}, {fit_on}; norm of the scores "
        f"(two-to-infinity) {result['two_to_inf']:.2f}"
    )
    searched = result.get("search")
    if searched is not None:
        lines.append(
            f"chosen out of {searched['trials']} trials in {searched['seconds']:.0f} s: "
            f"{searched['chosen']}{_BASELINE if searched['baseline'] else ''}"
        )
    return "\n".join([*lines, f"run: {run.path}"])


def _voters(run: RunDir) -> str:
    """Who votes, and how, in words."""
    from robustcf.models.voting.vote import stored_config
    from robustcf.recommender.saved import read_recommender

    config = stored_config(read_recommender(run.path)["scorer"])
    if config.groups is None:
        return f"every account votes: cap {config.cap:g}, damping {config.damping:g}"
    return f"{config.groups:,} groups vote for {config.votes} items each ({config.base})"


def _metric_lines(result: Mapping[str, Any]) -> list[str]:
    """The metrics of a run's parts, with their protocol."""
    lines = []
    for part in ("test", "valid"):
        if (values := result[part]) is None:
            continue
        protocol = values["protocol"]
        masked = " and ".join(protocol["masked"])
        known = protocol.get("sampled_from")
        sample = f", a sample of {known:,}" if known else ""
        lines.append(f"{part:6}" + "  ".join(f"{name} {values[name]:.4f}" for name in _SHOWN))
        lines.append(
            f"      ({protocol['dataset']}: full ranking, {masked} masked, "
            f"{protocol['n_users']:,} users{sample})"
        )
    return lines
