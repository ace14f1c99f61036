"""The paper's synthetic experiments: error and exactness against products and GFLOPs.

Gaussian 5000 x 5000 matrices with gap Delta = 0.1 and 0.01 (figure 1 of the paper and its
supplement: singular values, GFLOPs, the share p of TwINEst++), the same on a tall low-rank matrix
and on SVD factors of MovieLens-1M. The methods beyond the paper are drawn next to the paper's.

A hundred trials of every method take hours. ``--methods`` runs some anew and keeps what the output
folder holds of the others, so that those a statement rests on can have more trials than the rest;
every point says how many it had.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import NullFormatter
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _estimation as common

from robustcf.estimators import LowRank, as_operator, twinest_pp
from robustcf.estimators.operators import Operator

SHARES = (0.0, 0.1, 0.2, 1 / 3, 0.45)


def gflops(name: str, op: Operator, budget: int) -> float:
    """Multiplications and additions in matrix products, as torch counts them in one run."""
    with FlopCounterMode(display=False) as counter:
        common.estimate(name, op, budget, 0)
    return counter.get_total_flops() / 1e9


def curves(
    title: str, op: Operator, budgets: list[int], arguments: Any, before: dict[str, Any]
) -> dict[str, Any]:
    truth = common.truth_of(op)
    out: dict[str, Any] = {"shape": list(op.shape), "norm": truth, "methods": {}}
    kept = before.get("results", {}).get(title, {}).get("methods", {})
    for name in common.PICTURED:
        if name not in arguments.methods and name in kept:
            out["methods"][name] = {int(budget): row for budget, row in kept[name].items()}
            continue
        rows = {}
        for budget in budgets:
            row = common.trials(op, truth, [name], budget, arguments.trials, arguments.seed)[name]
            rows[budget] = {**row, "gflops": gflops(name, op, budget)}
        out["methods"][name] = rows
        line = "  ".join(f"{b}: {r['error']:.1e}/{r['exact']:.2f}" for b, r in rows.items())
        print(f"{title:24s} {name:22s} {line}", flush=True)
    return out


def ablation(op: Operator, budgets: list[int], arguments: Any) -> dict[str, Any]:
    """TwINEst++ with other shares p for its low-rank part."""
    truth = common.truth_of(op)
    out: dict[str, Any] = {}
    for p in SHARES:
        out[f"{p:.2f}"] = {}
        for budget in budgets:
            seeds = range(arguments.seed, arguments.seed + arguments.share_trials)
            values = [float(twinest_pp(op, budget, p=p, generator=seed)) for seed in seeds]
            out[f"{p:.2f}"][budget] = common.summary(np.array(values), truth, 0.0)
    return out


def verdicts(result: dict[str, Any]) -> dict[str, Any]:
    """The paper's statements on the Gaussian, decided by these numbers."""
    methods = result["methods"]
    twinest, averaging = methods["TwINEst"], methods["Rademacher averaging"]
    flat = [row["error"] for row in methods["Adaptive power"].values()]
    lead = {b: _lead(twinest[b], averaging[b]) for b in twinest}
    return {
        "TwINEst outperforms Rademacher averaging at every budget": all(
            twinest[b]["error"] < averaging[b]["error"] for b in twinest
        ),
        "budgets at which averaging has the lower error": [
            b for b in twinest if averaging[b]["error"] < twinest[b]["error"]
        ],
        "error of averaging less that of TwINEst, in standard errors": lead,
        "the adaptive power method stays flat": min(flat) > 0.5 * max(flat),
        "TwINEst by number of samples: error, its standard error, exactness, its standard error": {
            b // 2: [twinest[b][key] for key in ("error", "error_se", "exact", "exact_se")]
            for b in twinest
        },
    }


def _lead(twinest: dict[str, float], averaging: dict[str, float]) -> float | None:
    """How far ahead TwINEst is, in standard errors of the difference; negative: behind."""
    spread = float(np.hypot(twinest["error_se"], averaging["error_se"]))
    return (averaging["error"] - twinest["error"]) / spread if spread else None


def draw(path: Path, results: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, len(results), figsize=(4.6 * len(results), 11), squeeze=False)
    for column, (title, result) in enumerate(results.items()):
        for row, (key, x_key) in enumerate((("error", None), ("exact", None), ("error", "gflops"))):
            axis = axes[row][column]
            lines = {
                name: (
                    [points[b][x_key] if x_key else b for b in points],
                    [points[b][key] for b in points],
                )
                for name, points in result["methods"].items()
            }
            common.draw_curves(axis, lines, 1e-5 if key == "error" else 0.0)
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_xlabel("GFLOPs" if x_key else "products with A and its transpose")
            if key == "error":
                axis.set_yscale("log")
                axis.set_ylabel("mean relative error (1e-5: none)")
            else:
                axis.set_ylim(-0.03, 1.03)
                axis.set_ylabel("share of exact answers")
            if row == 0:
                axis.set_title(f"{title}\n{result['shape'][0]} x {result['shape'][1]}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=5, fontsize=9)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=100)


def draw_supplement(path: Path, spectra: dict[str, Any], shares: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 1 + len(shares), figsize=(4.6 * (1 + len(shares)), 4.2))
    dashes = ("-", "--", ":", "-.")
    for (title, values), dash in zip(spectra.items(), dashes, strict=False):
        axes[0].plot(np.arange(1, len(values) + 1), values, dash, label=title, linewidth=1.6)
    axes[0].set(xlabel="index", ylabel="singular value", title="singular values")
    axes[0].set(xscale="log", yscale="log")
    axes[0].legend(fontsize=8)
    axes[0].grid(True, alpha=0.3)
    for axis, (title, lines) in zip(axes[1:], shares.items(), strict=True):
        for (p, points), marker in zip(lines.items(), "ovs^D", strict=True):
            errors = np.maximum([r["error"] for r in points.values()], 1e-5)
            axis.plot(list(points), errors, marker=marker, label=f"p = {p}", linewidth=1.2)
        axis.set(xscale="log", yscale="log", xlabel="products", title=f"TwINEst++: {title}")
        axis.set_ylabel("mean relative error")
        axis.legend(fontsize=8)
        axis.grid(True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0], 10)
    parser.add_argument("--size", type=int, default=5000, help="side of the Gaussian matrices")
    parser.add_argument("--budgets", type=int, nargs="+", default=[100, 200, 400, 800, 1600])
    parser.add_argument(
        "--small-trials", type=int, default=100, help="trials on the other two matrices"
    )
    parser.add_argument(
        "--share-trials", type=int, default=6, help="trials for each share p of TwINEst++"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=common.PICTURED,
        default=list(common.PICTURED),
        help="run these; of the others keep what the output folder holds",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "synthetic.json"
    before = json.loads(path.read_text()) if path.is_file() else {}
    results: dict[str, Any] = {}
    spectra: dict[str, list[float]] = {}
    shares: dict[str, Any] = {}
    for delta in (0.1, 0.01):
        title = f"Gaussian, Delta = {delta:g}"
        A = common.paper_gaussian(delta, arguments.size, seed=42)
        op = as_operator(A)
        results[title] = curves(title, op, arguments.budgets, arguments, before)
        results[title]["statements"] = verdicts(results[title])
        shares[title] = ablation(op, arguments.budgets[:3], arguments)
        gram = (A @ A.T).double()
        spectra[title] = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt().tolist()
    arguments.trials = arguments.small_trials
    generator = torch.Generator().manual_seed(7)
    left = torch.randn(20000, 20, generator=generator) * torch.logspace(0, -2, 20)
    others = {"tall, rank 20": LowRank(left, torch.randn(300, 20, generator=generator))}
    if arguments.data_dir:
        R = common.interactions("ml-1m", arguments.data_dir)
        others["ML-1M SVD-64"] = common.svd_factors(R, 64)
    for title, factors in others.items():
        results[title] = curves(title, factors, [10, 20, 30, 50, 100], arguments, before)
        core = torch.linalg.qr(factors.U).R @ torch.linalg.qr(factors.V).R.T
        spectra[title] = torch.linalg.svdvals(core).tolist()
    shares[title] = ablation(factors, [20, 50, 100], arguments)
    common.save_json(
        path,
        {"results": results, "singular_values": _thin(spectra), "twinest_pp_share": shares},
    )
    draw(arguments.out / "synthetic.png", results)
    draw_supplement(arguments.out / "synthetic_supplement.png", spectra, shares)


def _thin(spectra: dict[str, list[float]]) -> dict[str, list[float]]:
    """Keep about 50 values per matrix, so that the JSON file stays small."""
    return {
        title: [round(v, 6) for v in values[:: max(1, len(values) // 50)]]
        for title, values in spectra.items()
    }


if __name__ == "__main__":
    main()
