"""The table of checks: thresholds, what each number means, what to do about it, what measures it.

Adding a check takes a function ``Subject -> Found`` in ``quality`` or ``stability`` and a row here.
Thresholds are rules of thumb for a first look; ``robustcf audit --thresholds FILE`` takes others.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from robustcf._checks import check_number, unknown_setting
from robustcf._io.reading import read_plain
from robustcf._io.schema import shown
from robustcf.auditing import quality, stability
from robustcf.auditing.findings import Check, Limit
from robustcf.errors import InputError

# One row per check, in the order of the page.
# fmt: off
_ALL = (
    Check(
        "popularity", "Better than popularity", "ndcg@10 over popularity's",
        Limit(1.2, 1.0), "Quality", quality.popularity,
        "NDCG@10 on the held-out pairs, divided by that of showing everybody the most popular "
        "items.",
        "Check that ids and interactions belong together; then train longer or with other "
        "settings.",
    ),
    Check(
        "fresh", "As good as a fresh model", "ndcg@10 over a fresh model's",
        Limit(0.95, 0.7), "Quality", quality.fresh,
        "NDCG@10 on the held-out pairs, divided by that of a smooth spectral model fit here in "
        "seconds on the same interactions.",
        "Better quality is there for the taking: tune the model, or try robustcf train.",
    ),
    Check(
        "leak", "Held-out pairs were held out", "ndcg@10 over a fresh model's",
        Limit(1.5, None, higher_is_better=False), "Quality", quality.leak,
        "The same ratio, the other way round: what is too good to be true. Next to it, the share "
        "of users whose held-out items score as high as their training items; near a half, the "
        "model does not tell them apart.",
        "The model may have been fit on the held-out pairs: then no quality here means anything. "
        "Fit it without them.",
    ),
    Check(
        "near_ties", "No near-ties at the top", "share of users",
        Limit(0.05, 0.5, higher_is_better=False), "Stability", stability.near_ties,
        "The share of users whose first item changes when every row moves by 0.0001 of the median "
        "row length, or less.",
        "These top lists are decided by rounding: break ties on purpose, and expect changes "
        "between machines and versions.",
    ),
    Check(
        "noise", "Random noise is harmless", "ndcg@10 kept at size 0.1",
        Limit(0.9, 0.7), "Stability", stability.noise,
        "The share of NDCG@10 that is left when every row moves by a tenth of the median row "
        "length in a random direction.",
        "Retraining and rounding will move these rankings: use fewer columns or more "
        "regularization.",
    ),
    Check(
        "attack", "Under the headline attack", "ndcg@10 kept, joint",
        Limit(0.5, 0.1), "Attacks on the embeddings", stability.attack,
        "The share of NDCG@10 that is left under one perturbation of all rows, chosen by somebody "
        "who knows the embeddings and the pairs that count.",
        "Who can write to your embedding store can do this: guard it, and see robustcf harden.",
    ),
    Check(
        "certificate", "Certified", "ndcg@10 certified, as a share of clean",
        Limit(0.5, 0.1), "Attacks on the embeddings", stability.certificate,
        "The share of NDCG@10 that no perturbation of a hundredth of the median row length can "
        "take.",
        "Nothing much can be promised for these embeddings: see robustcf harden.",
    ),
    Check(
        "bfloat16", "Served in bfloat16", "overlap@10",
        Limit(0.95, 0.8), "Serving", partial(stability.in_bits, kind="bfloat16"),
        "How much of a user's exact top 10 is still there after rounding both factors to bfloat16.",
        "Serve in float16 or float32.",
    ),
    Check(
        "int8", "Served in int8", "overlap@10",
        Limit(0.95, 0.8), "Serving", partial(stability.in_bits, kind="int8"),
        "How much of a user's exact top 10 is still there with 8 bits a number and one scale for "
        "each row.",
        "Rank a few hundred candidates in int8 and the best of them again in float32.",
    ),
    Check(
        "int4", "Served in int4", "overlap@10",
        Limit(0.8, None), "Serving", partial(stability.in_bits, kind="int4"),
        "The same with 4 bits a number.",
        "Do not serve from 4 bits without ranking the candidates again in float32.",
    ),
    Check(
        "cosine", "Cosine in place of the dot product", "overlap@10",
        Limit(0.95, None), "Serving", stability.by_cosine,
        "How much of a user's exact top 10 is left in an index that compares by cosine.",
        "Use an index for inner products: lengths carry part of this ranking.",
    ),
    Check(
        "hnsw", "An HNSW index", "recall@10",
        Limit(0.95, 0.8), "Serving", partial(stability.by_index, kind="hnsw"),
        "How much of the exact top 10 an HNSW index finds (faiss, 32 neighbours, 64 looked at).",
        "Raise efSearch, or search exactly: catalogues of this size often can.",
    ),
    Check(
        "ivf", "An IVF index", "recall@10",
        Limit(0.95, 0.8), "Serving", partial(stability.by_index, kind="ivf"),
        "How much of the exact top 10 an inverted-file index finds (faiss, an eighth of its cells "
        "looked at).",
        "Look at more cells, or search exactly.",
    ),
    Check(
        "norms", "No row is far longer than the rest", "longest row over the median",
        Limit(10.0, 100.0, higher_is_better=False), "Embeddings and catalogue", quality.norms,
        "The length of the longest row, in median row lengths; the worse of users and items.",
        "Look at these rows: they rank by length alone, and a few of them can fill every list.",
    ),
    Check(
        "popularity_bias", "Popular items stay in proportion",
        "share of places over share of pairs", Limit(3.0, 10.0, higher_is_better=False),
        "Embeddings and catalogue", quality.popularity_bias,
        "How much more often the most popular hundredth of the items is shown than it is "
        "interacted with.",
        "The popular crowd out the rest: weigh negatives by popularity or re-rank.",
    ),
    Check(
        "coverage", "The catalogue is shown", "coverage@10",
        Limit(0.2, 0.02), "Embeddings and catalogue", quality.coverage,
        "The share of items that are in somebody's top 10, of those that could be.",
        "Most of the catalogue is never shown: re-rank for diversity, or use more columns.",
    ),
    Check(
        "untrained", "Every row was trained", "share of rows",
        Limit(0.01, 0.2, higher_is_better=False), "Embeddings and catalogue", quality.untrained,
        "The share of rows of users and items that have no interaction, are all zeros, or are "
        "copies of another row.",
        "Recommend popular items to these users and leave these items out, or fold them in.",
    ),
    Check(
        "churn", "Lists stay between versions", "overlap@10",
        Limit(0.7, 0.3), "Against the other version", stability.churn,
        "How much of a user's top 10 is in the other version's top 10 too.",
        "Start training from the previous version, or average over seeds.",
    ),
)
# fmt: on
CHECKS: Mapping[str, Check] = {check.name: check for check in _ALL}
# Of a file of thresholds. Keys of many dots and deep brackets take the parser hours and gigabytes.
_MOST_BYTES, _MOST_COLUMNS, _MOST_MARKS = 1 << 20, 1000, 32


def unknown_check(name: str) -> InputError:
    """Return the error for a check that does not exist."""
    return InputError(unknown_setting(name, CHECKS).replace("setting", "check"))


def thresholds_from(path: str | Path) -> dict[str, Check]:
    """Return all checks, with the thresholds of a TOML file in place of the usual ones.

    The file has a table per check that it changes; ``false`` takes a threshold away::

        [int8]
        warn = 0.98
        fail = false

    Raises:
        InputError: the file cannot be read, or has an unknown check or value.
    """
    where = Path(path)
    changed = dict(CHECKS)
    for name, values in _toml(where).items():
        if name not in CHECKS:
            raise InputError(f"{where}: {unknown_check(name)}")
        if not isinstance(values, dict) or not set(values) <= {"warn", "fail"}:
            raise InputError(f"{where}: [{name}] takes warn and fail, got {shown(values)}")
        bounds: dict[str, Any] = {
            key: None if value is False else check_number(f"{where}: {name}.{key}", value)
            for key, value in values.items()
        }
        limit = replace(CHECKS[name].limit, **bounds)
        if limit.warn is not None and limit.verdict(limit.warn) == "fail":
            side = "at least" if limit.higher_is_better else "at most"
            raise InputError(
                f"{where}: {name}.warn must be {side} {name}.fail, got {limit.warn:g} and "
                f"{limit.fail:g}"
            )
        changed[name] = replace(CHECKS[name], limit=limit)
    return changed


def _toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, none of whose lines could overwhelm the parser."""
    raw = read_plain(path, _MOST_BYTES, follow=True)
    try:
        text = raw.decode("utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            marks = max(line.count("."), sum(map(line.count, "[{")))
            if len(line) > _MOST_COLUMNS or marks > _MOST_MARKS:
                raise InputError(
                    f"{path}: expected lines of at most {_MOST_COLUMNS:,} characters, "
                    f"{_MOST_MARKS} dots and {_MOST_MARKS} brackets, got more in line "
                    f"{number:,}; write one threshold per line"
                )
        return tomllib.loads(text)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: thresholds must be TOML ({reason})") from error
