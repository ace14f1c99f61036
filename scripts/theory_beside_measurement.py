"""The paper's bounds, and our upper bounds, next to what is measured.

Three pictures: the probability of exactness that theorem 1 promises TwINEst and the one measured;
the concentration lemma's epsilon and the errors measured; and the share of upper bounds that fail,
over 1,000 trials on five kinds of matrices, next to the delta they were asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _estimation as common

from robustcf.estimators import bounds, certify, hutchinson_diagonal, twinest, two_to_inf

SAMPLES = (1, 2, 5, 10, 20, 50, 100, 200, 400)
COVERED = ("sketch", "twinest", "twinest_pp", "rsvd_sketch", "xrownorm", "xnysdiag", "save")


def matrices() -> dict[str, np.ndarray]:
    """Two for the theorem: nearly orthogonal rows, where it has a say, and correlated ones."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(60, 400))
    A *= np.linspace(0.9, 1.0, 60)[:, None] / np.linalg.norm(A, axis=1, keepdims=True)
    A[7] *= 1.25 / np.linalg.norm(A[7])
    return {"nearly orthogonal rows": A, "correlated rows": common.jacobian_like(60, 40, 0.7, 1)}


def kinds() -> dict[str, np.ndarray]:
    """Five kinds of matrices for the coverage of upper bounds."""
    rng = np.random.default_rng(1)
    complex_rows = rng.normal(size=(80, 60)) + 1j * rng.normal(size=(80, 60))
    complex_rows[11] *= 1.3
    single = np.zeros((90, 70))
    single[33] = rng.normal(size=70)
    return {
        "correlated": common.jacobian_like(120, 90, 0.7, 0),
        "Gaussian": rng.normal(size=(100, 100)),
        "smooth kernel": common.kernel(150, 120, 0.2, 0),
        "complex": complex_rows,
        "a single row": single,
    }


def theorem(A: np.ndarray, count: int, delta: float) -> dict[str, Any]:
    size, gap, d = bounds.offdiagonal_norm(A), bounds.gap(A), len(A)
    truth = np.linalg.norm(A, axis=1).max()
    generator = torch.Generator().manual_seed(0)
    B = A @ A.T
    rows = {}
    for m in SAMPLES:
        values = [float(twinest(A, 2 * m + 1, generator=generator)) for _ in range(count)]
        errors = [
            float(np.abs(hutchinson_diagonal(B, m, generator=generator) - np.diag(B)).max())
            for _ in range(count)
        ]
        rows[m] = {
            "promised": 1 - bounds.twinest_failure(gap, m, d, size),
            "measured": float(np.isclose(values, truth, rtol=1e-9).mean()),
            "epsilon": bounds.diagonal_deviation(m, delta, d, size),
            "error_quantile": float(np.quantile(errors, 1 - delta)),
        }
    return {
        "gap": gap,
        "offdiagonal_norm": size,
        "samples_theorem_1": bounds.twinest_samples(gap, delta, d, size),
        "samples_theorem_2_with_c_1": bounds.twinest_pp_samples(gap, delta, np.linalg.norm(A)),
        "by_samples": rows,
    }


def coverage(count: int, delta: float) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for kind, A in kinds().items():
        top = np.linalg.norm(A, axis=1).max() * (1 - 1e-12)
        out[kind] = {}
        for method in (*COVERED, "certify"):
            generator = torch.Generator().manual_seed(5)
            missed = wrong = certified = 0
            widths = []
            for _ in range(count):
                if method == "certify":
                    answer = certify(A, delta, 60, generator=generator)
                else:
                    answer = two_to_inf(A, 24, method, generator=generator, delta=delta)
                missed += answer.upper < top
                certified += answer.certified
                wrong += answer.certified and float(answer) < top
                widths.append(answer.upper / top)
            out[kind][method] = {
                "upper_failed": missed / count,
                "certified": certified / count,
                "certified_but_wrong": wrong / count,
                "median_upper_over_norm": float(np.median(widths)),
            }
            print(f"{kind:16s} {method:14s} {out[kind][method]}", flush=True)
    return out


def draw(path: Path, theory: dict[str, Any], covered: dict[str, Any], delta: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6))
    styles = (("o", "-"), ("s", "--"))
    for (title, result), (marker, dash) in zip(theory.items(), styles, strict=True):
        rows = result["by_samples"]
        x = list(rows)
        for key, colour, face in (("promised", "0.5", "white"), ("measured", "black", "black")):
            axes[0].plot(
                x, [r[key] for r in rows.values()], color=colour, linestyle=dash, marker=marker,
                markerfacecolor=face, label=f"{key}: {title}",
            )  # fmt: skip
        for key, colour, face in (
            ("epsilon", "0.5", "white"),
            ("error_quantile", "black", "black"),
        ):
            label = "lemma's epsilon" if key == "epsilon" else f"{1 - delta:g} quantile measured"
            axes[1].plot(
                x, [r[key] for r in rows.values()], color=colour, linestyle=dash, marker=marker,
                markerfacecolor=face, label=f"{label}: {title}",
            )  # fmt: skip
    axes[0].set(xscale="log", xlabel="samples m", ylabel="probability of the exact norm")
    axes[0].set_title("theorem 1 (TwINEst)")
    axes[1].set(xscale="log", yscale="log", xlabel="samples m", ylabel="largest error of D")
    axes[1].set_title("concentration lemma")
    names = [*COVERED, "certify"]
    for (kind, rows), marker in zip(covered.items(), "os^Dv", strict=True):
        axes[2].plot(
            range(len(names)), [rows[n]["upper_failed"] for n in names],
            marker=marker, linestyle="none", label=kind, alpha=0.8,
        )  # fmt: skip
    axes[2].axhline(delta, color="black", linestyle="--", label=f"delta = {delta:g}")
    axes[2].set_xticks(range(len(names)), names, rotation=40, ha="right")
    axes[2].set(ylabel="share of upper bounds that failed", title="coverage")
    for axis in axes:
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = common.parser(__doc__.splitlines()[0], 1000)
    parser.add_argument("--delta", type=float, default=0.05)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    count = max(20, arguments.trials // 3)
    theory = {title: theorem(A, count, arguments.delta) for title, A in matrices().items()}
    covered = coverage(arguments.trials, arguments.delta)
    common.save_json(
        arguments.out / "theory.json",
        {
            "delta": arguments.delta,
            "trials": arguments.trials,
            "theory": theory,
            "coverage": covered,
        },
    )
    draw(arguments.out / "theory.png", theory, covered, arguments.delta)


if __name__ == "__main__":
    main()
