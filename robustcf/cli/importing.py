"""``robustcf import``: another library's factors in, a run directory out."""

from __future__ import annotations

import click

from robustcf.cli.options import out_option
from robustcf.cli.reporting import Report, command, shows_progress
from robustcf.cli.sources import Source, takes_source


@command("import")
@click.option("--test", metavar="FILE", help="Held-out pairs to judge by.")
@out_option("The run directory to make.", "RUN", required=True)
@click.option("--name", help="What to call the data (default: the name of the file).")
@click.option("--label", help="What to call it in tables and pictures (default: its source).")
@takes_source(pairs_required=True)
def import_(
    source: Source, test: str | None, out: str, name: str | None, label: str | None
) -> Report:
    """Make a run of factors that another library trained.

    SOURCE is implicit's saved .npz, a .npz or .safetensors with two matrices, a .pth or .pt of
    RecBole or torch, a folder of Spark's ALS model; or two files, users first: .npy and .npy, or
    Parquet and Parquet with ids and vectors. Nothing in a file is run.

    evaluate, recommend, attack, certify and compare work on the run as on any other. Biases become
    columns that attacks and certificates hold fixed. Ids are matched by labels where the source has
    them, else they are row numbers. Factors that do not fit the given pairs are refused.
    """
    from robustcf.adapters.ordering import ordered
    from robustcf.data import Split

    model = source.open(test, name=name)
    facts = dict(model.training or {})
    model = ordered(model, source.pairs if isinstance(source.pairs, Split) else None)
    if label is not None:
        model = model.renamed(label)
    report = model.evaluate(progress=shows_progress())
    model.save(out)
    shown = ("ndcg@10", "recall@20", "mrr@10", "coverage@10")
    lines = [
        repr(model),
        *(f"- {note}" for note in facts["notes"]),
        f"columns held fixed: {', '.join(map(str, model.fixed)) or 'none'}",
        f"{model.part:6}" + "  ".join(f"{name} {report[name]:.4f}" for name in shown),
        f"run: {out}",
    ]
    data = {
        "run": out,
        "dataset": model.split.name,
        "label": model.label,
        "test": None,
        model.part: report.as_dict(),
        "learnt_from": model.fit_on,
        "imported": facts,
        "fixed": list(model.fixed),
    }
    return Report(data, "\n".join(lines))
