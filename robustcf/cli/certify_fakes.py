"""``robustcf certify RUN --fakes``: what fake accounts cannot take from a vote."""

from __future__ import annotations

from pathlib import Path

from robustcf.cli.opening import OpenedRun
from robustcf.cli.reporting import Report, say_capped, table


def certify_fakes(opened: OpenedRun, fakes: tuple[int, ...], ks: tuple[int, ...]) -> Report:
    """Certify a vote against some numbers of fake accounts, save and draw it."""
    from robustcf._checks import check_cutoffs
    from robustcf.experiments.fakes import plot_fakes, published, save_certificate
    from robustcf.models.voting.config import check_fakes
    from robustcf.robustness import certify

    numbers, cutoffs = check_fakes(fakes), check_cutoffs(ks)
    model = opened.recommender()
    say_capped(cutoffs, model.n_items)
    certified = certify(model, fakes=numbers, ks=cutoffs)
    saved, replaced = save_certificate(Path(opened.path), certified)
    first, last = cutoffs[0], cutoffs[-1]
    picture = plot_fakes(
        {"vote": certified},
        saved.with_suffix(".png"),
        metric=f"precision@{first}",
        published=published(model.split, first),
    )
    data = {
        "run": opened.path,
        **certified.as_dict(),
        "file": str(saved),
        "replaced": replaced,
        "picture": str(picture),
    }
    shown = (f"precision@{first}", f"ndcg@{first}", f"hit_rate@{first}", f"recall@{last}")
    rows = [
        (f"{number:,}", *(f"{certified[metric][n]:.4f}" for metric in shown))
        for n, number in enumerate(certified.fakes)
    ]
    voters = model.scorer.stored().facts["settings"]["groups"]
    what = (
        "fake accounts that are added, whatever they hold"
        if voters is None
        else f"accounts that are added, altered or removed, in {voters:,} groups"
    )
    lines = [table(("fakes", *(f"certified {metric}" for metric in shown)), rows, left=())]
    lines += [f"lower bounds for so many {what}", str(certified.protocol)]
    if replaced:
        lines.append(f"replaced an earlier result of the same settings: {saved}")
    return Report(data, "\n".join([*lines, f"picture: {picture}"]))
