"""Data larger than memory: what preparing, one epoch, evaluating and recommending take.

    python scripts/make_large.py /big/raw
    python scripts/bench_large.py prepare /big/raw --out /big/set
    python scripts/bench_large.py train /big/set --out /big/run
    python scripts/bench_large.py recommend /big/run
    python scripts/bench_large.py engines /big/raw --out /big/scratch

Each line of JSON has seconds of the clock and of the processor, and the largest resident memory of
the process. ``engines`` runs the same steps (labels, one row per pair, 10-core, split, sorted) as
plain queries of DuckDB and of Polars' streaming engine, each in a process of its own; Polars is
ended where it asks for more than --limit bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CORE = 10


def timed(what: str, action: Callable[[], Any]) -> Any:
    """Do something, and print what it took."""
    start, before = time.perf_counter(), _cpu()
    done = action()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures = {
        "what": what,
        "seconds": round(time.perf_counter() - start, 1),
        "cpu": round(_cpu() - before, 1),
        "peak_gb": round(peak, 2),
    }
    print(json.dumps(figures), flush=True)
    return done


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def prepare(given: argparse.Namespace) -> None:
    from robustcf.data import prepare as make

    options = {"k_core": _CORE, "eval_users": 50_000, "threads": given.threads}
    made = timed("prepare", lambda: make(given.source, given.out, **options))
    facts = made.manifest
    print(json.dumps({key: facts[key] for key in ("n_users", "n_items", "parts", "notes")}))


def train(given: argparse.Namespace) -> None:
    from robustcf.cli.main import run

    words = [
        *("train", "--dataset", str(given.source), "--out", str(given.out)),
        *("--model", "softmax-mf", "--epochs", "1"),
        *("--factors", str(given.factors), "--init", given.init),
        *("--set", "sampled_items=2000", "--set", "block_users=2048", "--refit", "no"),
        *("--threads", str(given.threads)),
    ]
    timed("train and evaluate", lambda: run(words))


def recommend(given: argparse.Namespace) -> None:
    import numpy as np

    from robustcf.experiments import RunDir
    from robustcf.recommender import FactorScorer

    run = RunDir(given.source)
    split = timed("open the set", run.split)
    factors = timed("open the factors", lambda: run.recommender().factors)
    scorer, seen = FactorScorer(factors), split.train_full

    def serve(user: int) -> None:
        scorer.top(np.array([user]), 10, seen)

    timed("first user, with the check of the shard", lambda: serve(0))
    users = range(1, split.n_users, max(1, split.n_users // 100))
    times = []
    for user in users:
        start = time.perf_counter()
        serve(user)
        times.append(1000 * (time.perf_counter() - start))
    times.sort()
    figures = {"users": len(times), "median_ms": times[len(times) // 2], "worst_ms": times[-1]}
    print(json.dumps(figures))


# --- two engines ----------------------------------------------------------------------------


def engines(given: argparse.Namespace) -> None:
    for engine in ("duckdb", "polars"):
        shutil.rmtree(given.out, ignore_errors=True)
        given.out.mkdir(parents=True)
        words = [sys.executable, __file__, engine, str(given.source), "--out", str(given.out)]
        limit = given.limit

        def limited(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

        settings = {**os.environ, "POLARS_MAX_THREADS": str(given.threads)}
        done = subprocess.run(
            [*words, "--threads", str(given.threads)],
            env=settings,
            preexec_fn=limited if engine == "polars" else None,
            check=False,
        )
        print(json.dumps({"engine": engine, "exit": done.returncode}), flush=True)
    shutil.rmtree(given.out, ignore_errors=True)


def duckdb(given: argparse.Namespace) -> None:
    import duckdb as engine

    connection = engine.connect(
        str(given.out / "pairs.db"),
        config={
            "threads": str(given.threads), "memory_limit": "3GB", "temp_directory": str(given.out),
            "preserve_insertion_order": "false",
        },
    )  # fmt: skip
    raw = f"read_parquet('{given.source}/*.parquet')"

    def run(query: str) -> Any:
        return connection.execute(query).fetchall()

    def labels() -> int:
        for role in ("user", "item"):
            run(
                f"create table {role}s as select label, (row_number() over (order by label) - 1)"
                f"::int as id from (select distinct {role}_id as label from {raw})"
            )
        return int(run("select count(*) from items")[0][0])

    n = timed("labels", labels)
    timed(
        "encode, one row per pair",
        lambda: run(
            f"create table pairs as select u.id::bigint * {n} + i.id as k, max(timestamp) t "
            f"from {raw} r join users u on r.user_id = u.label join items i on r.item_id = i.label "
            "group by 1"
        ),
    )

    def core() -> str:
        table = "pairs"
        before = int(run(f"select count(*) from {table}")[0][0])
        for number in range(1000):
            enough = f"group by 1 having count(*) >= {_CORE}"
            run(f"create or replace table good_users as select k // {n} as u from {table} {enough}")
            of_users = f"k // {n} in (select u from good_users)"
            run(
                f"create or replace table good_items as select k % {n} as i from {table} "
                f"where {of_users} {enough}"
            )
            kept = f"{table} where {of_users} and k % {n} in (select i from good_items)"
            left = int(run(f"select count(*) from {kept}")[0][0])
            if left == before:
                break
            other = f"core{number % 2}"
            run(f"create or replace table {other} as select * from {kept}")
            table, before = other, left
        return table

    table = timed("10-core", core)
    parts, target = given.out / "parts.parquet", given.out / "sorted.parquet"
    timed(
        "split",
        lambda: run(
            f"copy (select (k // {n})::int as u, (k % {n})::int as i, t, "
            f"row_number() over (partition by k // {n} order by hash(k)) as rank, "
            f"count(*) over (partition by k // {n}) as n from {table}) to '{parts}'"
        ),
    )
    timed(
        "sort",
        lambda: run(
            "copy (select u, i, t, case when rank <= round(n * 0.1) then 2 "
            "when rank <= round(n * 0.19) then 1 else 0 end as part "
            f"from '{parts}' order by u, i) to '{target}'"
        ),
    )


def polars(given: argparse.Namespace) -> None:
    import polars as pl

    raw = pl.scan_parquet(f"{given.source}/*.parquet").with_columns(
        pl.col("item_id").cast(pl.String)
    )

    def labels() -> dict[str, Any]:
        return {
            role: raw.select(f"{role}_id").unique().collect(engine="streaming")
            .sort(f"{role}_id").with_row_index(role)
            for role in ("user", "item")
        }  # fmt: skip

    known = timed("labels", labels)
    n = len(known["item"])
    key = (pl.col("user").cast(pl.Int64) * n + pl.col("item")).alias("k")
    encoded = given.out / "encoded.parquet"
    joined = raw.join(known["user"].lazy(), on="user_id").join(known["item"].lazy(), on="item_id")
    chosen = joined.select(key, pl.col("timestamp").alias("t"))
    timed("encode", lambda: chosen.sink_parquet(encoded, engine="streaming"))
    pairs = given.out / "pairs.parquet"
    grouped = pl.scan_parquet(encoded).group_by("k").agg(pl.col("t").max())
    if given.sort:
        grouped = pl.scan_parquet(encoded).sort("k", "t")
    what = "sort" if given.sort else "one row per pair"
    timed(what, lambda: grouped.sink_parquet(pairs, engine="streaming"))


def main() -> None:
    """Choose and run."""
    actions = {f.__name__: f for f in (prepare, train, recommend, engines, duckdb, polars)}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=actions)
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--init", default="normal")
    parser.add_argument("--limit", type=int, default=7_000_000_000)
    parser.add_argument("--sort", action="store_true", help="polars: sort instead of grouping")
    given = parser.parse_args()
    actions[given.action](given)


if __name__ == "__main__":
    main()
