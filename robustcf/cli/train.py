"""``robustcf train``: a data set in, a run directory out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustcf._distributed import job, restarts
from robustcf._io.text import counted
from robustcf._registry import ADVERSARIES, MODELS, OBJECTIVES, REGULARIZERS
from robustcf.cli.opening import check_one_process, check_same, code_option, in_turn
from robustcf.cli.options import (
    data_options,
    free_folder,
    load_arguments,
    out_option,
    parse_settings,
    typed_threads,
)
from robustcf.cli.reporting import Report, reports, say, say_replaced, shows_progress
from robustcf.cli.words import FINITE, SEED, NameOf
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.data import Split
    from robustcf.experiments import RunDir
    from robustcf.experiments.config import RunConfig
    from robustcf.training import TrainConfig

BASELINE = "\n      (a baseline without training: nothing that was trained did better on valid)"


@click.command()
@click.option("--dataset", metavar="NAME|FILE", help="A known set, or a file of your own.")
@click.option(
    "--model",
    type=NameOf(MODELS, "vote"),
    help="What to train (default: the best known for the data; with --reg, ultragcn); vote: a "
    "recommender without embeddings that is certified against fake accounts.",
)
@click.option(
    "--objective",
    type=NameOf(OBJECTIVES),
    help="What is minimized (default: the model's own).",
)
@click.option(
    "--reg",
    type=NameOf(REGULARIZERS),
    help="The regularizer (default: the model's own, which is weight_decay or none).",
)
@click.option(
    "--preset",
    "kind",
    metavar="[auto|tuned|robust|paper|FILE]",
    help="tuned: settings chosen on validation data for clean quality; robust: for quality under "
    "attack; paper: the paper's; auto: search for the best model and settings on validation data "
    "(the default for data without a tuned preset); or a file that 'robustcf tune' wrote.",
)
@click.option("--minutes", type=FINITE, help="Time of the search of 'auto' at most (default 5).")
@click.option(
    "--reg-weight", type=FINITE, help="Weight of the regularizer, for every 1,024 training pairs."
)
@click.option("--estimator", metavar="E", help="How two_to_inf finds its row (default exact).")
@click.option("--reg-top", type=int, help="Rows that two_to_inf averages over.")
@click.option(
    "--reg-side",
    type=click.Choice(["users", "items"]),
    help="Penalize rows (users) or columns (items) of the scores.",
)
@click.option("--reg-every", type=int, help="Apply the penalty every N steps.")
@click.option(
    "--adversarial",
    type=NameOf(ADVERSARIES),
    help="Adversarial training: the objective of the attack to train against; margin: certified "
    "margin loss.",
)
@click.option("--adv-eps", type=FINITE, help="Size of that attack, in median row norms.")
@click.option("--adv-weight", type=FINITE, help="Weight of the attacked loss.")
@click.option(
    "--adv-size",
    type=click.Choice(["same", "loss", "norm"]),
    help="A user's size: the same for all (default), by the user's loss, by the row's norm.",
)
@click.option(
    "--gauge",
    type=click.Choice(["none", "balanced"]),
    help="balanced: rewrite U and V without changing any ranking: remove the mean item row and "
    "balance both factors (smallest norms).",
)
@click.option("--dim", type=int, help="Columns of the factors.")
@click.option("--epochs", type=int, help="Epochs at most; 0: evaluate the start itself.")
@click.option("--lr", type=FINITE, help="Learning rate of the items; the users' follows it.")
@click.option("--user-lr", type=FINITE, help="Learning rate of the users.")
@click.option(
    "--batching",
    type=click.Choice(["rows", "pairs"]),
    help="rows: blocks of users against all items; pairs: sampled interactions.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    help="Products of a block of users with the catalogue, for bce and softmax (default float32).",
)
@click.option(
    "--init",
    type=click.Choice(["spectral", "smooth", "normal"]),
    help="Initialization: spectral (truncated SVD), smooth (low-pass filter on the graph), normal "
    "(Gaussian).",
)
@click.option(
    "--refit",
    type=click.Choice(["auto", "yes", "no"]),
    help="Train again on train and valid (auto: where valid was held out from the training set).",
)
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any other training setting."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Training seed.")
@click.option(
    "--split-seed", type=SEED, default=0, show_default=True, help="Seed of a drawn split."
)
@click.option(
    "--threads",
    type=int,
    help="CPU threads (default: OMP_NUM_THREADS, or the cores, fewer for small data).",
)
@click.option("--device", default="cpu", show_default=True, help="Torch device.")
@out_option("The run directory (default: a new one in runs/).")
@click.option("--resume", metavar="RUN", help="Go on with a run that was killed or interrupted.")
@code_option
@data_options
@reports
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
    if resume is not None:
        return _resume(resume, dataset, data, allow_code)
    if dataset is None:
        raise click.UsageError("give either --dataset or --resume")
    from robustcf._checks import check_known
    from robustcf._runtime import device_of, set_threads, threads_for
    from robustcf.data import load
    from robustcf.data.catalog import find
    from robustcf.experiments import RunDir
    from robustcf.experiments.config import RunConfig
    from robustcf.models.voting import VoteConfig
    from robustcf.training.presets import adapted, choose
    from robustcf.training.search import search_settings

    manifest = find(dataset)
    name = manifest.name if manifest is not None else Path(dataset).name
    changes = {key: value for key, value in given.items() if value is not None}
    changes |= parse_settings(settings)
    config: TrainConfig | VoteConfig
    preset, searches = None, False
    if model == "vote":
        named = {"--reg": reg, "--preset": kind, "--minutes": minutes}
        refused = [option for option, value in named.items() if value is not None]
        if refused:
            raise click.UsageError(f"a vote has no {' and '.join(refused)}: leave it out")
        check_one_process()
        check_known(VoteConfig, changes)
        config = VoteConfig(seed=seed, **changes)
    else:
        chosen = choose(name, model, reg, kind, changed=changes)
        if kind == "robust" and "valid" not in chosen.found:
            say(f"the robust preset is not tuned for {name}: {chosen.name} is used")
        if minutes is not None and not chosen.searches:
            raise click.UsageError("--minutes is for --preset auto, which searches")
        _check_ranks(out, searches=chosen.searches)
        preset, searches = chosen.name, chosen.searches
        config = adapted(chosen.config, changes).replace(seed=seed)
    device_of(device)
    dataset, options = load_arguments(dataset, data, split_seed)
    asked = typed_threads(threads)
    set_threads(asked)
    split = in_turn(lambda: load(dataset, **options))
    run_config = RunConfig(
        dataset,
        options,
        config,
        set_threads(asked or threads_for(split.n_users, split.n_items)),
        device,
        preset=preset,
        search=search_settings(minutes) if searches else None,
    )
    label = "-".join((preset or "set.vote").split(".")[1:]).replace(":", ".") or preset
    folder = Path(out) if out else free_folder(f"{Path(name).stem}-{label}-seed{seed}")
    check_same(split, config=run_config.to_json())
    if not job().first:
        return _assist(run_config, split)
    if restarts()[0] and folder.exists():
        run = RunDir(folder, allow_code=True)
        if run.config.to_json() != run_config.to_json():
            raise InputError(
                f"{folder} holds another run than the one that was started again: choose another "
                "--out"
            )
        return _report(run) if run.settle() else _execute(run, split)
    run = RunDir.create(folder, run_config, split)
    say_replaced(run)
    return _execute(run, split)


def _check_ranks(out: str | None, *, searches: bool) -> None:
    """Raise for what several ranks, or a launcher that starts again, cannot do."""
    if searches and job().size > 1:
        raise InputError(
            "settings are searched for in one process: 'robustcf tune' writes them into a file, "
            "which several train with by --preset FILE"
        )
    if out is None and restarts()[1]:
        raise InputError(
            "a training that may be started again (--max-restarts) must know its folder: give "
            "--out DIR"
        )


def _assist(config: RunConfig, split: Split) -> Report:
    """What the ranks do that do not write."""
    from robustcf.experiments.run import assist

    assist(config, split)
    return Report({}, "")


def _resume(folder: str, dataset: str | None, data: Mapping[str, Any], allow_code: bool) -> Report:
    """Go on with a run; its settings are its own, only where its data are may be said."""
    from robustcf._runtime import set_threads
    from robustcf.experiments import RunDir

    team = job()
    run = RunDir(folder, allow_code=allow_code)
    if run.is_vote:
        check_one_process()
    # One rank looks: it removes what a kill left.
    done = team.first and run.settle()
    if team.text_from_first("done" if done else ""):
        return _report(run) if team.first else Report({}, "")
    set_threads(run.config.threads)
    places = {key: data[key] for key in ("data_dir", "valid_file", "test_file")}
    split = in_turn(lambda: run.split(dataset=dataset, download=bool(data["download"]), **places))
    _check_ranks(folder, searches=run.config.search is not None)
    check_same(split, config=run.config.to_json())
    return _execute(run, split) if team.first else _assist(run.config, split)


def _execute(run: RunDir, split: Split) -> Report:
    if not run.execute(split, progress=shows_progress(), report=say):
        raise run.interrupted()
    return _report(run)


def _report(run: RunDir) -> Report:
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
            f"{searched['chosen']}{BASELINE if searched['baseline'] else ''}"
        )
    lines.append(f"run: {run.path}")
    return "\n".join(lines)


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
        values = result[part]
        if values is None:
            continue
        protocol = values["protocol"]
        masked = " and ".join(protocol["masked"])
        known = protocol.get("sampled_from")
        sample = f", a sample of {known:,}" if known else ""
        shown = ("ndcg@10", "recall@20", "ndcg@20", "mrr@10", "coverage@10")
        lines.append(f"{part:6}" + "  ".join(f"{name} {values[name]:.4f}" for name in shown))
        lines.append(
            f"      ({protocol['dataset']}: full ranking, {masked} masked, "
            f"{protocol['n_users']:,} users{sample})"
        )
    return lines
