"""Audit the reference models, and write their numbers for the percentiles of audits.

Models of every kind are trained at their usual settings on MovieLens-100K and -1M, CiteULike-a and
the demo data, and audited on the test pairs; the attack and the certificate are run where --attacks
names the data set.

    python scripts/audit_reference.py --data-dir DIR --out robustcf/auditing/reference.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from robustcf import audit, load, train

DATA = ("demo", "ml-100k", "citeulike-a", "ml-1m")
MODELS = {
    "als": ({"factors": 32}, {"factors": 64}, {"factors": 128}),
    "bpr-mf": ({"factors": 64},),
    "softmax-mf": ({"factors": 64},),
    "ultragcn": ({"factors": 64},),
}
SERVE = ("bfloat16", "int8", "int4", "pq", "cosine", "hnsw", "ivf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--attacks", nargs="*", default=["demo", "ml-100k", "ml-1m"])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    models = []
    if options.out.exists():  # results of other data sets stay
        known = json.loads(options.out.read_text(encoding="utf-8"))["models"]
        models = [model for model in known if model["data"] not in options.data]
    for name in options.data:
        places = {} if name == "demo" else {"data_dir": options.data_dir}
        split = load(name, **places)
        for family, settings in MODELS.items():
            for setting in settings:
                model = train(split, family, **setting)
                found = audit(model, serve=SERVE, attack=name in options.attacks)
                numbers = {check: round(number, 5) for check, number in found.numbers.items()}
                told = {"family": family, "data": name, "settings": setting, "numbers": numbers}
                models.append(told)
                print(name, family, setting, numbers, flush=True)
                lines = ",\n".join(json.dumps(each) for each in models)
                options.out.write_text(f'{{"models": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
