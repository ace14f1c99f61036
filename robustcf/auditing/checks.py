"""The table of checks, with their thresholds.

Adding a check takes a function ``Subject -> Found`` in ``quality`` or ``stability`` and a row here.
Thresholds are rules of thumb; ``robustcf audit --thresholds FILE`` takes others.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustcf._checks import check_number, unknown_setting
from robustcf._io.reading import read_plain
from robustcf._io.schema import shown
from robustcf.auditing import groups, quality, stability
from robustcf.auditing.findings import Check, Limit
from robustcf.auditing.serving import Way
from robustcf.errors import InputError

_ATTACKS, _ROWS = "Attacks on the embeddings", "Embeddings and catalogue"
SERVING, _GROUPS = "Serving", "Who loses"


def _served(way: str, title: str, limit: Limit, means: str, advice: str) -> Check:
    found = Way.parse(way).found
    return Check(way, title, "overlap@10", limit, SERVING, found, means, advice)


# One row per check, in the order of the page.
# fmt: off
_ALL = (
    Check(
        "popularity", "Better than popularity", "ndcg@10 over popularity's",
        Limit(1.2, 1.0), "Quality", quality.popularity,
        "NDCG@10 on the held-out pairs, divided by that of the most popular items.",
        "Check that ids and interactions belong together; then train with other settings.",
    ),
    Check(
        "fresh", "As good as a fresh model", "ndcg@10 over a fresh model's",
        Limit(0.95, 0.7), "Quality", quality.fresh,
        "NDCG@10 on the held-out pairs, divided by that of a smooth spectral model fit here.",
        "Tune the model, or try robustcf train.",
    ),
    Check(
        "leak", "Held-out pairs were held out", "ndcg@10 over a fresh model's",
        Limit(1.5, None, higher_is_better=False), "Quality", quality.leak,
        "The ratio of the check `fresh`; a high one is suspicious. Next to it, the share of users "
        "whose held-out items score as high as their training items; near a half, the model cannot "
        "tell them apart.",
        "If the model was fit on the held-out pairs, its quality is void: fit it without them.",
    ),
    Check(
        "near_ties", "No near-ties at the top", "share of users",
        Limit(0.05, 0.5, higher_is_better=False), "Stability", stability.near_ties,
        "The share of users whose first item changes when every row moves by 0.0001 of its "
        "length, or less.",
        "Rounding decides these lists: break ties on purpose, and expect changes across machines.",
    ),
    Check(
        "noise", "Random noise is harmless", "ndcg@10 kept at size 0.1",
        Limit(0.9, 0.7), "Stability", stability.noise,
        "The share of NDCG@10 that is left when every row moves by a tenth of its "
        "length in a random direction.",
        "Small changes of the vectors change these rankings: use fewer columns or regularize more.",
    ),
    Check(
        "attack", "Under the headline attack", "ndcg@10 kept, joint",
        Limit(0.5, 0.1), _ATTACKS, stability.attack,
        "The share of NDCG@10 that is left under one perturbation of all rows, by an attacker who "
        "knows the embeddings and the relevant items. The curve scales that perturbation to other "
        "sizes.",
        "Every attack needs write access to the embedding store: restrict it. The stronger one "
        "needs the held-out pairs (future interactions) too. See robustcf harden.",
    ),
    Check(
        "certificate", "Certified", "ndcg@10 certified, as a share of clean",
        Limit(0.5, 0.1), _ATTACKS, stability.certificate,
        "The certified share of NDCG@10 when rows move by a hundredth of their length.",
        "Certified quality is low: see robustcf harden.",
    ),
    Check(
        "moved", "Items that the attack moves", "share of places",
        Limit(None, None), _ATTACKS, stability.moved,
        "The share of places in the top 10 that the headline attack gives to other items.", "",
    ),
    _served(
        "exact", "Exact search in float32", Limit(None, None),
        "Every item scored in full precision, the reference of the other ways.", "",
    ),
    _served(
        "bfloat16", "Served in bfloat16", Limit(0.95, 0.8),
        "The share of a user's exact top 10 that stays after rounding both factors to bfloat16.",
        "Serve in float16 or float32.",
    ),
    _served(
        "int8", "Served in int8", Limit(0.95, 0.8),
        "The share of a user's exact top 10 that stays with 8 bits per number and a scale per row.",
        "Rank a few hundred candidates in int8 and the best of them again in float32.",
    ),
    _served(
        "int4", "Served in int4", Limit(0.8, 0.5),
        "The same with 4 bits per number.",
        "Do not serve from 4 bits without ranking the candidates again in float32.",
    ),
    _served(
        "pq", "Product quantization", Limit(0.8, 0.5),
        "The same with one code of 8 bits per four columns or so (faiss IndexPQ).",
        "Use more codes, or rank the candidates again in float32.",
    ),
    _served(
        "cosine", "Cosine in place of the dot product", Limit(0.95, 0.8),
        "The share of a user's exact top 10 that stays in an index that compares by cosine.",
        "Use an index for inner products: lengths carry part of this ranking.",
    ),
    _served(
        "hnsw", "An HNSW index", Limit(0.95, 0.8),
        "The share of the exact top 10 that an HNSW index finds (faiss).",
        "Raise ef, or search exactly: catalogues of this size often can.",
    ),
    _served(
        "ivf", "An IVF index", Limit(0.95, 0.8),
        "The share of the exact top 10 that an IVF index finds (faiss).",
        "Probe more cells, or search exactly.",
    ),
    Check(
        "user_groups", "Groups of users", "ndcg@10 of the worst over that of all",
        Limit(0.6, 0.3), _GROUPS, groups.user_groups,
        "NDCG@10 of the worst group of users, divided by that of all. Intervals are 95 %.",
        "Tell whether they have less data or are served worse; weigh or serve them apart.",
    ),
    Check(
        "item_groups", "Groups of items", "exposure over training pairs, worst",
        Limit(0.05, 0.005), _GROUPS, groups.item_groups,
        "The least exposed group's share of exposure, the sum of 1 / log2(rank + 1) over the "
        "lists, divided by its share of the training pairs.",
        "Weigh negatives by popularity, re-rank for exposure, or recommend these items apart.",
    ),
    Check(
        "norms", "No row is far longer than the rest", "longest row over the median",
        Limit(10.0, 100.0, higher_is_better=False), _ROWS, quality.norms,
        "The length of the longest row, in median row lengths; the worse of users and items.",
        "Look at these rows: they rank by length alone, and a few of them can fill every list.",
    ),
    Check(
        "popularity_bias", "Popular items stay in proportion",
        "share of places over share of pairs",
        Limit(3.0, 10.0, higher_is_better=False), _ROWS, quality.popularity_bias,
        "How much more often the most popular 1 % of items is recommended than interacted with.",
        "Popular items crowd out the rest: weigh negatives by popularity or re-rank.",
    ),
    Check(
        "hubs", "No item is in every list", "share of users",
        Limit(0.5, 0.9, higher_is_better=False), _ROWS, quality.hubs,
        "The share of users who have the most recommended item in their top 10.",
        "Look at these items: a constant direction or a long row puts them everywhere.",
    ),
    Check(
        "coverage", "The catalogue is shown", "coverage@10",
        Limit(0.2, 0.02), _ROWS, quality.coverage,
        "The share of items that are in some user's top 10, of those that could be.",
        "Most of the catalogue is never shown: re-rank for diversity, or use more columns.",
    ),
    Check(
        "untrained", "Every row was trained", "share of rows",
        Limit(0.01, 0.2, higher_is_better=False), _ROWS, quality.untrained,
        "The share of rows that have no interaction, are all zeros, or copy another row.",
        "Recommend popular items to these users and leave these items out, or fold them in.",
    ),
    Check(
        "churn", "Lists stay between versions", "overlap@10",
        Limit(0.7, 0.3), "Against the other version", stability.churn,
        "The share of a user's top 10 that is in the other version's top 10 too.",
        "After training again: start from the previous version, or average over seeds. After "
        "another change, such as hardening: roll it out as a new version.",
    ),
)
# fmt: on
CHECKS: Mapping[str, Check] = {check.name: check for check in _ALL}
# Of a file of thresholds. Keys of many dots and deep brackets take the parser hours and gigabytes.
_MOST_BYTES, _MOST_COLUMNS, _MOST_MARKS = 1 << 20, 1000, 32


def serving_checks(serve: Sequence[str], checks: Mapping[str, Check]) -> dict[str, Check]:
    """Return all checks, and one for each way of serving that the table does not have."""
    found = dict(checks)
    for spec in serve:
        way = Way.parse(spec)
        if spec not in found:
            # The last part searches; of several thresholds, those of the search.
            like = checks[way.base.split("+")[-1]]
            found[spec] = replace(like, name=spec, title=f"Served by {spec}", run=way.found)
    return found


def unknown_check(name: str) -> InputError:
    """Return the error for a check that does not exist."""
    return InputError(unknown_setting(name, CHECKS).replace("setting", "check"))


def thresholds_from(path: str | Path) -> dict[str, Check]:
    """Return all checks, with the thresholds of a TOML file in place of the usual ones.

    The file has a table per check that it changes; ``false`` removes a threshold::

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
            got = f"{limit.warn:g} and {limit.fail:g}"
            raise InputError(f"{where}: {name}.warn must be {side} {name}.fail, got {got}")
        changed[name] = replace(CHECKS[name], limit=limit)
    return changed


def _toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, none of whose lines could overwhelm the parser."""
    raw = read_plain(path, _MOST_BYTES, follow=True)
    try:
        text = raw.decode("utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            marks = max(line.count("."), sum(map(line.count, "[{")))
            if len(line) > _MOST_COLUMNS or marks > _MOST_MARKS:
                most = f"{_MOST_COLUMNS:,} characters, {_MOST_MARKS} dots and brackets"
                raise InputError(f"{path}: expected lines of at most {most}, got line {number:,}")
        return tomllib.loads(text)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: thresholds must be TOML ({reason})") from error
