"""``report.md`` and ``report.txt``: what fake users did, said first, then the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robustcf._io.files import write_bytes
from robustcf._io.text import counted
from robustcf._runtime import environment
from robustcf.experiments.grids import markdown
from robustcf.experiments.poisoning.plan import CLEAN, UNDEFENDED
from robustcf.experiments.poisoning.summary import LOST, PoisonSummary
from robustcf.poisoning.threat import fakes_name
from robustcf.poisoning.victim import AUTO

_NAMED = ("model", "defence", "attack", "fakes")
_KNOWS = {
    "data": "all training pairs",
    "part": "the training pairs of some users",
    "none": "how popular the items are, and nothing else",
}
_WANTS = {
    "promote": "to have the targets shown",
    "demote": "to keep the targets from being shown",
    "availability": "to make recommendations worse for everybody",
}


def write_report(summary: PoisonSummary) -> None:
    """Write ``report.md`` and ``report.txt`` into the folder of the grid."""
    models = " and ".join(summary.plan.models)
    parts = [
        f"# {models} on {summary.dataset} with fake users",
        "## What the result says",
        "\n".join(f"- {finding}" for finding in findings(summary)),
        "![users who see a target, and quality lost, by the number of fake users](poison.png)",
        "## Numbers",
        "Mean over seeds (lowest to highest seed), in percent. Each seed draws its targets anew.",
        *(_table(summary, model, defence) for model, defence in summary.plan.victims()),
        "## What the numbers mean",
        _meaning(summary),
        "## How it was made",
        _how(summary),
    ]
    write_bytes(summary.out / "report.md", ("\n\n".join(parts) + "\n").encode())
    write_bytes(summary.out / "report.txt", (text(summary) + "\n").encode())


def text(summary: PoisonSummary) -> str:
    """The report for a terminal: one table, and what it says."""
    header, rows = [*_NAMED, *_columns(summary)], []
    for model, defence, attack, fakes in summary.rows():
        cells = [
            f"{100 * _mean(summary, model, defence, attack, fakes, name):.3f}"
            for name in _columns(summary)
        ]
        rows.append([model, defence, attack, _size(fakes, attack), *cells])
    widths = [max(len(row[n]) for row in (header, *rows)) for n in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.ljust(width) if n < len(_NAMED) else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(aligned).rstrip()

    table = "\n".join(map(line, (header, *rows)))
    return "\n\n".join([f"{table}\n(in percent, mean over seeds)", *findings(summary)])


def findings(summary: PoisonSummary) -> list[str]:
    """What the numbers support, in sentences: the worst for each victim, and its price."""
    plan, sentences = summary.plan, []
    metric = summary.headline
    for model, defence in plan.victims():
        victim = model if defence == UNDEFENDED else f"{model} with {defence}"
        clean = _mean(summary, model, defence, CLEAN, 0, metric)
        for fakes in plan.sizes:
            named = [name for name in summary.attacks if name != AUTO]
            means = {name: _mean(summary, model, defence, name, fakes, metric) for name in named}
            worst = (min if plan.goal == "demote" else max)(means, key=lambda name: means[name])
            lost = _mean(summary, model, defence, worst, fakes, LOST)
            sentences.append(
                f"{victim}, {_size(fakes, worst)} fakes: `{worst}` did most, {metric} "
                f"{100 * means[worst]:.2f} % (clean {100 * clean:.2f} %); NDCG@10 of genuine users "
                f"{'fell' if lost >= 0 else 'rose'} by {abs(lost):.4f}."
            )
    return sentences


def _columns(summary: PoisonSummary) -> list[str]:
    return [name for name in summary.metrics if name != "recall@20"]


def _mean(
    summary: PoisonSummary, model: str, defence: str, attack: str, fakes: float, metric: str
) -> float:
    return float(np.mean(summary.values(model, defence, attack, fakes, metric)))


def _size(fakes: float, attack: str) -> str:
    return {"clean": "0", "file": "those of the file"}.get(attack, fakes_name(fakes))


def _table(summary: PoisonSummary, model: str, defence: str) -> str:
    k = max(summary.plan.ks)
    header = ["attack", "fakes", *_columns(summary), f"single targets, hit_rate@{k}"]
    rows = []
    for row_model, row_defence, attack, fakes in summary.rows():
        if (row_model, row_defence) != (model, defence):
            continue
        cells = [attack, _size(fakes, attack)]
        for metric in _columns(summary):
            values = 100 * summary.values(model, defence, attack, fakes, metric)
            spread = f" ({values.min():.3f} to {values.max():.3f})" if len(values) > 1 else ""
            cells.append(f"{values.mean():.3f}{spread}")
        low, mean, high = (100 * v for v in summary.target_spread(model, defence, attack, fakes))
        cells.append(f"{mean:.3f} ({low:.3f} to {high:.3f})")
        if attack == AUTO:
            chosen = dict.fromkeys(summary.chosen(model, defence, fakes))
            cells[0] = f"{AUTO} ({', '.join(chosen)})"
        rows.append(cells)
    title = model if defence == UNDEFENDED else f"{model} with {defence}"
    return f"### {title}\n\n{markdown(header, rows)}"


def _meaning(summary: PoisonSummary) -> str:
    return "\n".join(
        [
            "- Genuine users only. A user lacks a target without a pair of it in train, valid or "
            "test; targets that a user has do not count.",
            "- `target hit_rate@k`: users with at least one lacked target in their first k places, "
            "divided by users who lack at least one. `target ndcg@k`: NDCG with the lacked targets "
            "as the relevant items, over the same users.",
            "- `target share@k`: places of the first k that hold a lacked target, divided by all "
            "places, over all genuine users.",
            f"- `{LOST}`: NDCG@10 on test of the clean recommender of the same seed, minus that of "
            "the poisoned one.",
            "- `auto`: for each seed the attack that did most to this victim once it was retrained"
            f", by {summary.headline}.",
        ]
    )


def _how(summary: PoisonSummary) -> str:
    plan = summary.plan
    versions = environment()["packages"]
    lines = [
        f"- The attacker wants {_WANTS[plan.goal]} ({plan.targets.words()}) and knows "
        f"{_KNOWS[plan.knowledge]}.",
        f"- {counted(len(plan.seeds), 'seed')} ({', '.join(map(str, plan.seeds))}), each for "
        "targets, attack and training. The victim is trained anew for each cell: all its epochs, "
        "by its own rule.",
        f"- {summary.n_users:,} genuine users.",
        "- Presets: "
        + ", ".join(f"{model}: {plan.train_config(model, 0)[1]}" for model in plan.models)
        + ".",
        *([f"- Command: `{command}`"] if (command := plan.command()) is not None else []),
        f"- Threads per training: {plan.threads}. Versions: "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
    ]
    return "\n".join(lines)
