"""The search `plane` on recordings: what it times, and what its tables lose, beside a search that times every config.

In: the H200 recordings, and one of RMSNorm's full space on an H100, each operator's plain problems in bfloat16. Out:
benchmarks/results/strategies/plane.json and .md. No GPU. Only problems of which a sweep timed every config. Both
searches run until they end; a table is fitted to what each has seen, and scored at these problems, those left out where
its launch was not recorded.

    python benchmarks/plane.py [RECORDING ...]
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normtune.benchmarks.lib.simulation import Space, simulate
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import FULL_SPACE, recorded
from normtune.benchmarks.table_after import evidence
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.kernels.config import COPY
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.kernels.target import TARGETS
from normtune.results.exchange.recording import recordings
from normtune.tuner.plan.binaries import compile_class
from normtune.tuner.search.registry import search

SEARCHES = ("adaptive", "plane")
LEAVES = 32
# Problems of an operator at most, evenly spread: the plane of the RMSNorm recording is denser than anybody's.
PROBLEMS = 200


def measured(name: str, spaces: Sequence[Space], recording: str | Path) -> dict[str, Any]:
    """What a search does with the spaces of one operator."""
    begun = time.perf_counter()
    found = simulate(search(name), spaces, 0, float("inf"))
    seconds = time.perf_counter() - begun
    logs = {
        one.task.problem: {c: float(np.log(np.median(blocks))) for c, blocks in one.blocks.items()} for one in spaces
    }
    launches = {one.task.problem: {c.config: c.launch for c in one.task.candidates} for one in spaces}
    cells = {
        (task.problem, config)
        for task, outcomes in found.measured
        for config, outcome in outcomes.items()
        if config != COPY and len(outcome.nanoseconds)
    }
    least = {problem: min(logs[problem][c] for other, c in cells if other == problem) for problem in logs}
    losses = [least[problem] - min(times.values()) for problem, times in logs.items()]
    (function,) = fit(evidence(found, float("inf"), recording), FitOptions(leaves=LEAVES)).functions
    of_table = table_losses(function.tree, spaces)
    return {
        "search": name,
        "configs": len(cells),
        "binaries": len({compile_class(problem, launches[problem][config]) for problem, config in cells}),
        "device_seconds": round(found.device, 2),
        "host_seconds": round(seconds, 1),
        "best_loses_percent": round(100 * float(np.mean(losses)), 2),
        "best_loses_at_worst": round(100 * max(losses), 1),
        "table_loses_percent": round(100 * float(np.mean(of_table)), 2),
    }


def table_losses(tree: Tree, spaces: Sequence[Space]) -> list[float]:
    """Log ratio of the tree's config to the best, at the problems where its launch was recorded."""
    target, losses = TARGETS["sm_90"], []
    for one in spaces:
        problem = one.task.problem
        times = {c.launch: float(np.log(np.median(one.blocks[c.config]))) for c in one.task.candidates}
        try:
            launch = operator(problem.operator).launch_of(choose(tree, problem.shape), problem=problem, target=target)
        except IllegalConfigError:
            continue
        if launch in times:
            losses.append(times[launch] - min(times.values()))
    return losses


def markdown(document: dict[str, Any]) -> str:
    lines = [
        "`python benchmarks/plane.py`",
        "",
        "| operator | problems | search | configs | binaries | GPU s | best loses: mean | worst | table loses |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in document["operators"]:
        for part in one["searches"]:
            numbers = f"{part['configs']} | {part['binaries']} | {part['device_seconds']}"
            losses = f"{part['best_loses_percent']} % | {part['best_loses_at_worst']} %"
            lines.append(
                f"| {one['operator']} | {one['problems']} | {part['search']} | {numbers} | {losses} | "
                f"{part['table_loses_percent']} % |"
            )
    return "\n".join(lines)


def main() -> None:
    operators = []
    chosen: Sequence[str | Path] = sys.argv[1:] or (*recordings(), FULL_SPACE)
    for recording in chosen:
        spaces = [
            space._replace(overhead=dict.fromkeys(space.overhead, 0.0)) for space in recorded("bfloat16", recording)
        ]
        for name in sorted({space.task.problem.operator for space in spaces}):
            part = [space for space in spaces if space.task.problem.operator == name]
            part = part[:: -(-len(part) // PROBLEMS)]
            searches = [measured(one, part, recording) for one in SEARCHES]
            name += ", full space" if recording == FULL_SPACE else ""
            operators.append({"operator": name, "problems": len(part), "searches": searches})
            print(operators[-1], flush=True)
    if not sys.argv[1:]:
        document = {"leaves": LEAVES, "operators": operators}
        write(RESULTS / "strategies" / "plane.json", document, markdown(document))
        print(markdown(document))


if __name__ == "__main__":
    main()
