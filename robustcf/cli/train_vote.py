"""``robustcf train --model vote``: a recommender without embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustcf.cli.opening import check_one_process
from robustcf.cli.options import free_folder
from robustcf.cli.reporting import Report, say_replaced

if TYPE_CHECKING:
    from robustcf.runs.vote import VoteRun


def train_vote(
    dataset: str,
    name: str,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    threads: int | None,
    device: str,
    out: str | None,
) -> Report:
    """Make the run of a vote: load the data, choose what is not given, evaluate."""
    from robustcf.data import load
    from robustcf.runs.vote import VoteRun, VoteRunConfig
    from robustcf.support.checks import check_known
    from robustcf.support.runtime import set_threads
    from robustcf.voting import VoteConfig

    check_one_process()
    check_known(VoteConfig, settings)
    config = VoteConfig(**settings)
    used = set_threads(threads)
    split = load(dataset, **options)
    folder = Path(out) if out else free_folder(f"{Path(name).stem}-vote-seed{config.seed}")
    run = VoteRun.create(folder, VoteRunConfig(dataset, options, config, used, device), split)
    say_replaced(run)
    run.execute(split)
    return report_vote(run)


def report_vote(run: VoteRun) -> Report:
    """What a finished run says."""
    result, settings = run.metrics(), run.settings
    voters = (
        f"every account votes: cap {settings.cap:g}, damping {settings.damping:g}"
        if settings.groups is None
        else f"{settings.groups:,} groups vote for {settings.votes} items each ({settings.base})"
    )
    lines = [
        *metric_lines(result),
        f"{voters}; fit on {result['learnt_from']} in {result['train_seconds']:.1f} s",
        f"run: {run.path}",
        f"next: robustcf certify {run.path} --fakes 0 1 2 5 10 20",
    ]
    return Report(result, "\n".join(lines))


def metric_lines(result: Mapping[str, Any]) -> list[str]:
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
