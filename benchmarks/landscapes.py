"""Searches on made-up operators with a known optimum (`lib.landscapes`), beside simple ones at as many timings.

In: kinds of landscapes, numbers of configs and shapes. Out: benchmarks/results/strategies/landscapes.json and .md. No
GPU; what is there already is not run again, each run in a process of its own. A search takes as many timings of each
shape as it wants, at most `TIMINGS` where it can be told so; the simple ones take as many as `plane` took.

    python benchmarks/landscapes.py [--seeds 5]
    python benchmarks/landscapes.py --case rough,5000,1 --seeds 20 plane    # these only, nothing is written
"""

import argparse
import inspect
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from normtune.benchmarks.lib.landscapes import Landscape, Tile
from normtune.benchmarks.lib.rivals import RIVALS
from normtune.benchmarks.lib.simulation import simulate
from normtune.benchmarks.places import RESULTS, write
from normtune.kernels.config import COPY
from normtune.tuner.search.protocol import Search, Strategy
from normtune.tuner.search.registry import search

PLACE = RESULTS / "strategies" / "landscapes.json"
TIMINGS = 100
PLANE = "plane"
LEAST_SEEDS = 2
Key = tuple[str, int, int, int, str]


class Case(NamedTuple):
    """One landscape, for several seeds."""

    kind: str
    configs: int
    shapes: int

    @classmethod
    def of(cls, text: str) -> "Case":
        """The case of `rough,5000,5`."""
        kind, configs, shapes = text.split(",")
        return cls(kind, int(configs), int(shapes))

    def __str__(self) -> str:
        return f"{self.kind}, {self.configs} x {self.shapes}"


CASES = tuple(
    map(
        Case.of,
        [
            "rough,60,25",
            "smooth,5000,5",
            "rough,5000,1",
            "rough,5000,5",
            "rugged,5000,5",
            "needle,5000,5",
            "failing,5000,5",
            "rough,20000,60",
        ],
    )
)
# Proposals of these take 20 ms and 0.2 s: not for every shape of a large case.
SLOW = {"tpe": 100_000, "gp": 25_000}
SEARCHES = (PLANE, "random", *SLOW)


def strategy(name: str, seed: int, most: int) -> Strategy:
    """A search with the seed and the number of timings of a shape that it can be given."""
    chosen: Callable[..., Search] = search(name)
    options = {"seed": seed, "most": most}
    takes = inspect.signature(chosen).parameters
    return partial(chosen, **{option: value for option, value in options.items() if option in takes})


def run(case: Case, seed: int, name: str, timings: int) -> dict[str, Any]:
    """A search, or a simple one, on one landscape."""
    landscape = Landscape(*case, seed)
    begun = time.process_time()
    failed = 0
    if name in RIVALS:
        chosen, timed = RIVALS[name](landscape, timings, seed)
    else:
        found = simulate(strategy(name, seed, timings), landscape.spaces(), seed, math.inf)
        chosen = {moment.problem: cast(Tile, moment.best) for moment in found.moments}
        timed = found.timed
        failed = sum(one.status != "ok" for _, outcomes in found.measured for c, one in outcomes.items() if c != COPY)
    losses = landscape.losses(chosen)
    return {
        **case._asdict(),
        "seed": seed,
        "search": name,
        "allowed": timings,
        "timings": round(timed / len(landscape.problems), 1),
        "failed": round(failed / timed, 3),
        "mean": _percent(losses.mean()),
        "worst": _percent(losses.max()),
        "median": _percent(float(np.median(losses))),
        "cpu_seconds": round(time.process_time() - begun, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _percent(log: float) -> float:
    return round(100 * math.expm1(log), 2)


def missing(cases: Sequence[Case], names: Sequence[str], seeds: int, runs: list[dict[str, Any]]) -> Any:
    """Run what is not in `runs`, and yield after each; simple ones that took another number of timings run again."""
    with ProcessPoolExecutor(1, max_tasks_per_child=1) as process:
        for case in cases:
            for seed in range(1, 1 + seeds):
                timings = TIMINGS
                for name in names:
                    if case.configs * case.shapes > SLOW.get(name, sys.maxsize):
                        continue
                    key = *case, seed, name
                    done = next((one for one in runs if _key(one) == key), None)
                    if done is None or (name in RIVALS and done["allowed"] != timings):
                        runs[:] = [one for one in runs if one is not done]
                        done = process.submit(run, case, seed, name, timings).result()
                        runs.append(done)
                        yield done
                    if name == PLANE:
                        timings = max(1, round(done["timings"]))


def _key(one: dict[str, Any]) -> Key:
    return one["kind"], one["configs"], one["shapes"], one["seed"], one["search"]


def markdown(document: dict[str, Any]) -> str:
    """The table: means over seeds, and the seeds with the least and the greatest mean."""
    lines = [
        "`python benchmarks/landscapes.py`: loss of the chosen configs against the known optimum.",
        "",
        "| landscape, configs x shapes | search | timings a shape | failed | mean | of seeds | median | worst | seeds "
        "| CPU s | MB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    by_case: dict[tuple[Case, str], list[dict[str, Any]]] = {}
    for one in document["runs"]:
        by_case.setdefault((Case(*_key(one)[:3]), one["search"]), []).append(one)
    for (case, name), runs in by_case.items():

        def mean(column: str, runs: list[dict[str, Any]] = runs) -> float:
            return float(np.mean([one[column] for one in runs]))

        means = [one["mean"] for one in runs]
        cells = (
            *(str(case), name, f"{mean('timings'):.0f}", f"{100 * mean('failed'):.0f} %", f"{mean('mean'):.2f} %"),
            *(f"{min(means):.2f} to {max(means):.2f}", f"{mean('median'):.2f} %"),
            *(f"{max(one['worst'] for one in runs):.1f} %", len(runs), f"{mean('cpu_seconds'):.1f}"),
            max(one["peak_mb"] for one in runs),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and write after each run; with a case or searches named, print only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("searches", nargs="*", metavar="SEARCH")
    parser.add_argument("--case", action="append", type=Case.of, metavar="KIND,CONFIGS,SHAPES")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    is_trial = bool(options.searches or options.case)
    document = {"runs": []} if is_trial or not PLACE.exists() else json.loads(PLACE.read_text("utf-8"))
    names = (*(options.searches or SEARCHES), *RIVALS)
    for case in options.case or CASES:
        seeds = options.seeds if case.configs * case.shapes < 1_000_000 else min(options.seeds, LEAST_SEEDS)
        for one in missing([case], names, seeds, document["runs"]):
            print(json.dumps(one), flush=True)
            if not is_trial:
                write(PLACE, document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
