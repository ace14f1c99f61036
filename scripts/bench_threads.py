"""CPU time of real commands on a busy machine: one thread, the default, and all cores.

    python scripts/bench_threads.py

Each command runs next to processes that keep a core busy each (``--burners``). Its CPU time, user
and system, of all its threads and processes, is compared with that of one thread; both are measured
in turns, in one run. A ratio above ``--most`` makes the exit code 1.

    python scripts/bench_threads.py --tree OTHER --commands attack harden

measures the package of another checkout, with the libraries of this one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: Name -> words of the command; RUN is a trained run, OUT a place that is not there yet.
COMMANDS = {
    "train": "train --dataset DATA --out OUT",
    "evaluate": "evaluate RUN",
    "attack": "attack RUN --epsilons 0 0.05 --steps 10",
    "certify": "certify RUN",
    "audit": "audit RUN",
    "harden": "harden RUN --out OUT.safetensors",
    "poison": "poison --dataset DATA --model als --attack random --seeds 2 --out OUT",
    "detect": "detect --dataset DATA",
}
#: Those with --threads in every version; the others had none once, and heed the variable.
_WITH_OPTION = ("train", "poison")
_HEEDED = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_ONE, _DEFAULT, _ALL = "one thread", "default", "all cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--data-dir", default=os.environ.get("ROBUSTCF_DATA"))
    parser.add_argument("--burners", type=int, nargs="+", default=[1], metavar="N",
                        help="busy processes next to it; 0 for an idle machine")  # fmt: skip
    parser.add_argument("--settings", nargs="+", choices=("default", "all"), default=["default"],
                        help="compared with one thread: no number given, all cores")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=1, help="the median counts")
    parser.add_argument("--most", type=float, default=1.5, help="ratio that is acceptable")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to measure")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = Bench(options, Path(folder)).table()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    worst = max(row["ratio"] for row in found)
    print(f"\nlargest ratio {worst:.2f}, acceptable up to {options.most:g}")
    sys.exit(worst > options.most)


class Bench:
    """Commands of one checkout, in a folder of their own."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.run = folder / "run"
        own = {k: value for k, value in os.environ.items() if k not in _HEEDED}
        self.environment = own | {
            "PYTHONPATH": os.fspath(options.tree.resolve()),
            "ROBUSTCF_CACHE": os.fspath(folder / "cache"),
        }

    def table(self) -> list[dict[str, Any]]:
        """Measure everything; print a row for each command, setting and number of burners."""
        options, found = self.options, []
        self.measure("train", "train --dataset DATA --out RUN", _ONE)
        self.measure("evaluate", "evaluate RUN", _ONE)  # caches are warm from here on
        others = [{"default": _DEFAULT, "all": _ALL}[word] for word in options.settings]
        print(f"{len(os.sched_getaffinity(0))} CPUs, {options.dataset}; seconds of CPU time (wall)")
        head = f"{'command':10}{'busy':>5}{_ONE:>18}"
        print(head + "".join(f"{word:>18}{'ratio':>7}" for word in others), flush=True)
        for name in options.commands:
            for burners in options.burners:
                with busy(burners):
                    times: dict[str, list[tuple[float, float]]] = {}
                    for _ in range(options.repeats):
                        for word in (_ONE, *others):
                            each = self.measure(name, COMMANDS[name], word)
                            times.setdefault(word, []).append(each)
                middle = {word: sorted(each)[len(each) // 2] for word, each in times.items()}
                line = f"{name:10}{burners:5}{_cell(middle[_ONE])}"
                for word in others:
                    ratio = middle[word][0] / middle[_ONE][0]
                    line += f"{_cell(middle[word])}{ratio:7.2f}"
                    row = {"command": name, "burners": burners, "setting": word, "ratio": ratio}
                    found.append(row | {"cpu": middle[word][0], "one": middle[_ONE][0]})
                print(line, flush=True)
        return found

    def measure(self, name: str, command: str, setting: str) -> tuple[float, float]:
        """Run a command; returns its CPU time and its wall time, in seconds."""
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.with_name("out.safetensors").unlink(missing_ok=True)
        paths = {"RUN": self.run, "OUT": out, "OUT.safetensors": f"{out}.safetensors"}
        places = {word: os.fspath(path) for word, path in paths.items()}
        places["DATA"] = self.options.dataset
        words = [places.get(word, word) for word in command.split()]
        if self.options.data_dir and name != "harden":
            words += ["--data-dir", self.options.data_dir]
        environment = dict(self.environment)
        if setting != _DEFAULT:
            count = "1" if setting == _ONE else str(len(os.sched_getaffinity(0)))
            environment["OMP_NUM_THREADS"] = count
            words += ["--threads", count] if name in _WITH_OPTION else []
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "robustcf", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            sys.exit(f"robustcf {' '.join(words)}: {done.stderr.strip()}")
        spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return spent, wall


def _cell(times: tuple[float, float]) -> str:
    return f"{times[0]:10.1f} ({times[1]:5.1f})"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that keep a core busy each, until the end of the block."""
    # A burner ends with this process, however that ends.
    code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10**5))"
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        # Burners are children too: they are waited for here, before the next measurement begins.
        for burner in burners:
            burner.kill()
            burner.wait()


if __name__ == "__main__":
    main()
