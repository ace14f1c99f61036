"""The paper's recommender figure, and the appendix's, and next to them what the paper leaves out.

    python scripts/reproduce_recsys.py --datasets ml-1m --data-dir DIR
    python scripts/reproduce_recsys.py --figures-only      # draw again from the JSON files

Three data sets x three regularizers x five seeds of UltraGCN. First the paper's attack: one
gradient step on the cross-entropy, every embedding row moved by epsilon, absolute sizes; next to
it a step that is aware of the ranking, and the worst of an ensemble. Then the same at sizes
relative to the embeddings, which compare models of different scale.

Runs go to --work and are resumed there; --out gets one small JSON file for each data set and the
pictures of all data sets whose JSON is there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from robustcf._io.files import write_bytes
from robustcf._io.plots import plot_panels
from robustcf.experiments.grid import compact_json
from robustcf.experiments.sweep import METRIC, SHOWN, SweepPlan, panel, sweep
from robustcf.robustness.table import AUTO

DATASETS = ("ml-1m", "yelp2018", "citeulike")
REGULARIZERS = ("weight_decay", "two_to_inf", "max_norm")
PARTS: dict[str, dict[str, Any]] = {
    "absolute": {
        "attacks": ("fgm-bce", "fgm-softmax", AUTO),
        "epsilons": (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.2, 1.6),
        "unit": "absolute",
    },
    "relative": {
        "attacks": ("fgm-bce", "fgm-softmax", AUTO),
        "epsilons": (0.0, 0.02, 0.05, 0.1, 0.15, 0.2),
        "unit": "relative",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--preset", choices=["tuned", "paper"], default="tuned")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data-dir")
    parser.add_argument("--threads", type=int, default=1, help="of a run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--work", type=Path, default=Path("recsys-runs"), help="where runs live")
    parser.add_argument("--out", type=Path, default=Path("results/recsys"))
    parser.add_argument(
        "--no-auto",
        nargs="*",
        choices=list(PARTS),
        metavar="PART",
        help="leave out the slowest attack, everywhere or in these parts",
    )
    parser.add_argument("--svg", action="store_true", help="write SVG next to PNG")
    parser.add_argument("--figures-only", action="store_true", help="draw from the JSON files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for dataset in () if options.figures_only else options.datasets:
        reproduce(dataset, options)
    draw(options.out, options.preset, ["png", *(["svg"] if options.svg else [])])


def reproduce(dataset: str, options: argparse.Namespace) -> None:
    """Both parts of one data set, on the same runs; one JSON file."""
    data = {"data_dir": options.data_dir} if options.data_dir else {}
    work = options.work / f"{dataset}.{options.preset}"
    result: dict[str, Any] = {}
    for part, settings in PARTS.items():
        plan = SweepPlan(
            dataset,
            data,
            regs=REGULARIZERS,
            seeds=tuple(range(options.seeds)),
            preset=options.preset,
            threads=options.threads,
            **{**settings, "attacks": chosen(part, options)},
        )
        summary = sweep(
            plan,
            work / part,
            runs=work / "runs",
            jobs=options.jobs,
            progress=sys.stderr.isatty(),
        )
        found = summary.as_dict()
        found["curves"] = {
            attack: {
                setting: {metric: metrics[metric] for metric in SHOWN if metric in metrics}
                for setting, metrics in by_setting.items()
            }
            for attack, by_setting in found["curves"].items()
        }
        result[part] = {"findings": summary.findings(), **found}
        print(f"{dataset}, {part}:", *result[part]["findings"], sep="\n  ", flush=True)
    write_bytes(options.out / f"{dataset}.{options.preset}.json", compact_json(result))


def chosen(part: str, options: argparse.Namespace) -> tuple[str, ...]:
    """The attacks of a part, without auto where it would take too long."""
    without = options.no_auto is not None and (not options.no_auto or part in options.no_auto)
    return tuple(a for a in PARTS[part]["attacks"] if a != AUTO or not without)


def draw(out: Path, preset: str, suffixes: list[str]) -> None:
    """The paper's figure, the appendix's, and both again at relative sizes for every attack."""
    results = {
        dataset: json.loads(path.read_text(encoding="utf-8"))
        for dataset in DATASETS
        if (path := out / f"{dataset}.{preset}.json").is_file()
    }
    if not results:
        print(f"nothing to draw: no JSON file of the preset {preset!r} in {out}", file=sys.stderr)
        return
    for part, settings in PARTS.items():
        for attack in settings["attacks"]:
            columns = {
                dataset: result[part]
                for dataset, result in results.items()
                if attack in result.get(part, {"curves": {}})["curves"]
            }
            if not columns:
                continue
            for name, metrics in (("ndcg", (METRIC,)), ("all", SHOWN)):
                panels = [
                    [panel(found, attack, metric, dataset) for dataset, found in columns.items()]
                    for metric in metrics
                ]
                if len(columns) == 1 and len(panels) > 1:  # a square instead of a tower
                    flat = [row[0] for row in panels]
                    panels = [flat[:2], flat[2:]]
                title = f"UltraGCN under {attack}, {part} sizes"
                for suffix in suffixes:
                    path = out / f"{attack}-{part}-{name}.{preset}.{suffix}"
                    print(plot_panels(panels, path, title=title))


if __name__ == "__main__":
    main()
