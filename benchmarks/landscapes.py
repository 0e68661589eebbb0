"""Searches on made-up operators with a known optimum (`lib.landscapes`), beside simple ones at as many timings.

In: kinds of landscapes, numbers of configs and shapes. Out: benchmarks/results/strategies/landscapes.json and .md. No
GPU; what is there already is not run again, each search and case in a process of its own. A search that cannot be told
a number of timings takes as many as it wants.

    python benchmarks/landscapes.py [--seeds 10] [--again SEARCH]
    python benchmarks/landscapes.py --case rough,5000,1 --seeds 20 plane    # these only, nothing is written
"""

import argparse
import inspect
import itertools
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import numpy as np

from normtune.benchmarks.lib import kernel_tuner
from normtune.benchmarks.lib.landscapes import Landscape, Tile
from normtune.benchmarks.lib.optuna_samplers import SAMPLERS
from normtune.benchmarks.lib.rivals import OTHERS, RIVALS
from normtune.benchmarks.lib.simulation import simulate
from normtune.benchmarks.places import RESULTS, write
from normtune.kernels.config import COPY
from normtune.tuner.search.protocol import Search, Strategy
from normtune.tuner.search.registry import SEARCHES, search

PLACE = RESULTS / "strategies" / "landscapes.json"
# Timings of each shape, or half of the configs; seeds where a case has as many configs at all shapes as `LARGE`, which
# Kernel Tuner would enumerate anew for each shape, or a search takes long.
TIMINGS = 100
LARGE, SLOW_SEEDS = 1_000_000, 2
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
# Timings of all shapes up to which a search is run: a proposal takes 7 ms with most of these, 0.4 s with the last.
SLOW = {**dict.fromkeys(SAMPLERS, 2500), "gp": 100}
# Searches that are run with few seeds.
_FEW_SEEDS = {*SAMPLERS} - {"random"}


# Searches that time every config of a problem.
_WHOLE = ("adaptive", "exhaustive")


def names() -> list[str]:
    """All searches that can be run, those that take longest at the end."""
    own = sorted((*SEARCHES, *SAMPLERS), key=lambda name: (name == "gp", name))
    return [*RIVALS, *(OTHERS if find_spec("kernel_tuner") else ()), *own]


def strategy(name: str, seed: int, most: int) -> Strategy:
    """A search with the seed and the number of timings of a shape that it can be given."""
    chosen: Callable[..., Search] = SAMPLERS[name] if name in SAMPLERS else search(name)
    options = {"seed": seed, "most": most}
    takes = inspect.signature(chosen).parameters
    return partial(chosen, **{option: value for option, value in options.items() if option in takes})


def run(case: Case, seed: int, name: str, timings: int) -> dict[str, Any]:
    """A search, or a simple one, on one landscape."""
    landscape = Landscape(*case, seed)
    begun = time.process_time()
    failed = 0
    if alone := (RIVALS | OTHERS).get(name):
        chosen, timed = alone(landscape, timings, seed)
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


def _runs(case: Case, seeds: Sequence[int], name: str, timings: int) -> list[dict[str, Any]]:
    return [run(case, seed, name, timings) for seed in seeds]


def missing(cases: Sequence[Case], searches: Sequence[str], seeds: int, runs: list[dict[str, Any]]) -> Any:
    """Run what is not in `runs`, and yield after each."""
    done = {_key(one) for one in runs}
    with ProcessPoolExecutor(1, max_tasks_per_child=1) as process:
        for name, case in itertools.product(searches, cases):
            is_large = case.configs * case.shapes >= LARGE
            is_slow = is_large or name in _FEW_SEEDS
            timings = min(TIMINGS, case.configs // 2)
            is_unfit = name in OTHERS and (is_large or case.configs < kernel_tuner.LEAST)
            is_unfit |= name in _WHOLE and case.configs > TIMINGS
            if is_unfit or timings * case.shapes > SLOW.get(name, sys.maxsize):
                continue
            wanted = range(1, 1 + (min(seeds, SLOW_SEEDS) if is_slow else seeds))
            left = [seed for seed in wanted if (*case, seed, name) not in done]
            new = process.submit(_runs, case, left, name, timings).result() if left else []
            runs.extend(new)
            yield from new


def _key(one: dict[str, Any]) -> Key:
    return one["kind"], one["configs"], one["shapes"], one["seed"], one["search"]


def _place(case: Case) -> int:
    return CASES.index(case) if case in CASES else len(CASES)


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
    order = sorted(by_case, key=lambda key: (_place(key[0]), np.mean([one["mean"] for one in by_case[key]])))
    for case, name in order:
        runs = by_case[case, name]

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
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--again", action="append", default=[], metavar="SEARCH", help="forget the runs of this search")
    options = parser.parse_args()
    is_trial = bool(options.searches or options.case)
    document = {"runs": []} if is_trial or not PLACE.exists() else json.loads(PLACE.read_text("utf-8"))
    document["runs"] = [one for one in document["runs"] if one["search"] not in options.again]
    searches = [*options.searches, *RIVALS] if options.searches else names()
    for one in missing(options.case or CASES, searches, options.seeds, document["runs"]):
        print(json.dumps(one), flush=True)
        if not is_trial:
            write(PLACE, document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
