"""What version 0.1 computed, by its commands: trainings, attack curves and certificates.

    python tests/recorded/cases.py demo          # prints the values of this tree as JSON
    python tests/recorded/cases.py ml-1m DIR     # DIR: where the real data are

The commands name every option that matters, so that they mean the same in every version.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

MODELS = ("ultragcn", "bpr-mf")
REGULARIZERS = ("none", "weight_decay", "two_to_inf", "max_norm")
ADVERSARIES = ("bpr", "bce", "softmax", "margin")
METRICS = ("ndcg@10", "recall@20", "mrr@10")
SHORT = ("--epochs", "3", "--set", "epochs_chosen=true")


def trainings(dataset: str) -> dict[str, tuple[str, ...]]:
    """Name -> the options of ``robustcf train``."""
    found: dict[str, tuple[str, ...]] = {}
    for model in MODELS:
        for reg in REGULARIZERS:
            found[f"{model} {reg}"] = ("--model", model, "--reg", reg)
        for adversary in ADVERSARIES:
            adversarial = ("--adversarial", adversary, "--adv-eps", "0.1", "--adv-weight", "0.5")
            found[f"{model} adversarial {adversary}"] = (
                *("--model", model, "--reg", "weight_decay"),
                *adversarial,
                *SHORT,
            )
    # What version 0.1 called so; another one has been chosen since.
    shrunk = ("--gauge", "balanced", "--set", "shrink=0.7", "--set", "epochs_chosen=true")
    found["robust preset"] = ("--model", "bpr-mf", *shrunk)
    if dataset != "demo":
        return found
    for model in MODELS:
        for extra in ("pairs", "smooth", "normal"):
            option = "--batching" if extra == "pairs" else "--init"
            base = ("--model", model, "--reg", "weight_decay", *SHORT)
            found[f"{model} {extra}"] = (*base, option, extra)
        for adversary in ADVERSARIES:
            found[f"{model} pairs adversarial {adversary}"] = (
                *("--model", model, "--reg", "weight_decay", *SHORT, "--batching", "pairs"),
                *("--adversarial", adversary, "--adv-eps", "0.1", "--set", "negatives=3"),
            )
    two_to_inf = ("--model", "ultragcn", "--reg", "two_to_inf", *SHORT)
    found["two_to_inf twinest"] = (*two_to_inf, "--estimator", "twinest")
    found["two_to_inf eight rows of items"] = (
        *(*two_to_inf, "--reg-top", "8"),
        *("--reg-side", "items", "--reg-every", "3"),
    )
    found["sampled items"] = (
        *("--model", "ultragcn", "--reg", "weight_decay", *SHORT, "--set", "sampled_items=200"),
    )
    found["gauge of a weight decay"] = (
        *("--model", "ultragcn", "--reg", "weight_decay", "--gauge", "balanced"),
        *("--set", "shrink=0.5", "--set", "epochs_chosen=true"),
    )
    found["chosen on valid"] = ("--model", "bpr-mf", "--reg", "weight_decay", "--factors", "8")
    return found


ATTACKED = ("ultragcn weight_decay", "bpr-mf two_to_inf", "robust preset")
SIZES = ("--epsilons", "0", "0.05", "0.2")
ATTACKS: dict[str, tuple[str, ...]] = {
    "fgm bce absolute": ("--attack", "fgm", "--objective", "bce", "--absolute"),
    "fgm bce": ("--attack", "fgm", "--objective", "bce", "--relative"),
    "fgm softmax": ("--attack", "fgm", "--objective", "softmax", "--relative"),
    "fgm softmax users frobenius": (
        *("--attack", "fgm", "--objective", "softmax", "--absolute"),
        *("--budget", "frobenius", "--side", "users"),
    ),
    "random": ("--attack", "random", "--relative", "--seed", "3"),
}
# Commands tell the joint number now. That of 0.1 was the worst for each user, at each size by
# itself; its members are what they were, but for those of auto.
ENSEMBLES: dict[str, tuple[str, str, dict[str, int]]] = {
    "pgd bpr": ("pgd-bpr", "row", {"restarts": 2}),
    "pgd softmax spectral": ("pgd-softmax", "spectral", {}),
}
OF_ANOTHER_KIND = ("auto",)
CERTIFICATES: dict[str, tuple[str, ...]] = {
    "tight": ("--relative", "--personal"),
    "plain items": ("--relative", "--bound", "plain", "--side", "items"),
    "tight users": ("--relative", "--side", "users"),
}


def robustcf(*words: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    from robustcf.cli.main import run

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*words, "--json"])
    if code:
        raise RuntimeError(f"robustcf {' '.join(words)}: {err.getvalue()}")
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def digest(run: Path) -> str:
    """sha256 of the trained embeddings' bytes."""
    from safetensors.torch import load_file

    tensors = load_file(run / "factors.safetensors")
    hashed = hashlib.sha256()
    for name in ("users", "items"):
        hashed.update(np.ascontiguousarray(tensors[name].numpy()).tobytes())
    return hashed.hexdigest()


def canary() -> str:
    """A digest of plain operations: machines that agree on it are expected to agree on all."""
    generator = torch.Generator().manual_seed(0)
    hashed = hashlib.sha256()
    for rows in (64, 300):
        a = torch.randn(rows, 64, generator=generator)
        b = torch.randn(500, 64, generator=generator)
        scores = a @ b.T
        parts = (scores, scores.sigmoid(), scores.exp(), scores.T @ a, torch.linalg.qr(a)[0])
        wide = (torch.linalg.svdvals(a), a.double() @ b.double().T, scores.sum(dim=1))
        for part in (*parts, *wide):
            hashed.update(part.contiguous().numpy().tobytes())
    return f"torch {torch.__version__}, numpy {np.__version__}, {hashed.hexdigest()[:16]}"


def trained(dataset: str, name: str, out: Path, data: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train one case into ``out``: the digest of its embeddings, and its metrics."""
    where = ("--dataset", dataset, *data, "--seed", "0", "--threads", "1", "--out", str(out))
    found = robustcf("train", *where, *trainings(dataset)[name])
    return {"factors": digest(out)} | {metric: found["test"][metric] for metric in METRICS}


def attacked(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """All curves and certificates of a run, which has its data with it."""
    torch.set_num_threads(1)
    one = ("--threads", "1")
    for name, options in ATTACKS.items():
        found = robustcf("attack", str(run), *options, *SIZES, *one)
        yield (
            name,
            {
                **{metric: found[metric] for metric in METRICS},
                "random": found["random"]["ndcg@10"],
                "realised": found["realised"],
            },
        )
    for name, (attack, norm, options) in ENSEMBLES.items():
        yield name, user_by_user(run, attack, norm, options)
    for name, options in CERTIFICATES.items():
        found = robustcf("certify", str(run), *options, "--epsilons", "0", "0.01", "0.05", *one)
        yield (
            f"certificate {name}",
            {
                **{metric: found[metric] for metric in METRICS},
                "radii": found["radii"],
                **({"personal": found["personal"]["ndcg@10"]} if "personal" in found else {}),
            },
        )
    found = robustcf("attack", str(run), "--attack", "quantization", *one)
    yield "quantization", {kind: row["ndcg@10"] for kind, row in found["kinds"].items()}


def user_by_user(run: Path, attack: str, norm: str, options: dict[str, int]) -> dict[str, Any]:
    """An ensemble as version 0.1 took it, from the members that it is made of today."""
    from robustcf.recommender import open_recommender
    from robustcf.robustness import AttackSpec, Threat, worst_of
    from robustcf.robustness.table import Request, random_directions

    target = open_recommender(run)
    spec = AttackSpec.parse(attack, **options)
    sizes = tuple(map(float, SIZES[1:]))
    request = Request(target, Threat(norm, "relative", knowledge="data"), spec, sizes, (10, 20))
    curve = worst_of(spec.way.members(request), attack)
    noise = worst_of(random_directions(request, spec.way.draws), "random")
    return {
        **{metric: curve[metric].tolist() for metric in METRICS},
        "random": noise["ndcg@10"].tolist(),
        "realised": list(curve.realised),
    }


def main() -> None:
    """Record everything for a data set."""
    dataset = sys.argv[1]
    data = ("--data-dir", sys.argv[2]) if len(sys.argv) > 2 else ()
    values: dict[str, Any] = {"canary": canary(), "trainings": {}, "attacks": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in trainings(dataset):
            run = Path(folder) / name.replace(" ", "-")
            values["trainings"][name] = trained(dataset, name, run, data)
            print(name, values["trainings"][name], file=sys.stderr, flush=True)
            if name in ATTACKED:
                values["attacks"][name] = dict(attacked(run))
    print(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
