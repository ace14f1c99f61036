"""``robustcf import``: make a run directory from another library's factors."""

from __future__ import annotations

import click

from robustcf.cli.options import out_option, serve_option
from robustcf.cli.reporting import Report, command, shows_progress
from robustcf.cli.sources import Source, takes_source


@command("import")
@click.option("--test", metavar="FILE", help="Held-out pairs to judge by.")
@out_option("The run directory to make.", "RUN", required=True)
@click.option("--name", help="Name of the data (default: that of the file).")
@click.option("--label", help="Label of the model in tables and pictures (default: its source).")
@serve_option
@takes_source(pairs_required=True)
def import_(
    source: Source, test: str | None, out: str, name: str | None, label: str | None, serve: str
) -> Report:
    """Make a run of factors that another library trained.

    SOURCE is implicit's saved .npz, a .npz or .safetensors with two matrices, a .pth or .pt of
    RecBole or torch, a folder of Spark's ALS model; or two files, users first: .npy and .npy, or
    Parquet and Parquet with ids and vectors. No code in a file is executed.

    Biases become columns that attacks and certificates hold fixed. Ids are matched by labels where
    the source has them, else by row numbers. Factors that do not fit the given pairs are refused.
    """
    from robustcf.adapters.ordering import ordered
    from robustcf.data import Split
    from robustcf.experiments.starting import served_words

    model = source.open(test, name=name)
    facts = dict(model.training or {})
    model = ordered(model, source.pairs if isinstance(source.pairs, Split) else None)
    if label is not None:
        model = model.renamed(label)
    model = model.serving(serve)
    report = model.evaluate(progress=shows_progress())
    model.save(out)
    shown = ("ndcg@10", "recall@20", "mrr@10", "coverage@10")
    lines = [repr(model), *(f"- {note}" for note in facts["notes"])]
    lines += [
        f"columns held fixed: {', '.join(map(str, model.fixed)) or 'none'}",
        f"{model.part:6}" + "  ".join(f"{name} {report[name]:.4f}" for name in shown),
        *served_words(model.training or {}),
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
