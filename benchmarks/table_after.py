"""Loss of the table that is fitted after so many seconds of a search, by the whole recording.

In: the shipped H200 recording, its plain operators in bfloat16. Out: benchmarks/results/strategies/table_after.json and
.md. No GPU. The times that a search has seen when its seconds are used up are fitted with as many leaves for all, and
the table is scored at every recorded shape.

    python benchmarks/table_after.py [SEARCH ...]
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normtune.benchmarks.lib.simulation import Simulated, Space, simulate
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import RECORDING, load, recorded
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.tree import choose
from normtune.results.evidence import Evidence
from normtune.results.records import Measurement
from normtune.tuner.search.registry import search

SEARCHES = ("exhaustive", "adaptive")
# Of timing on the device; adaptive takes less than the last.
SECONDS = (10, 20, 40, 80)
LEAVES = 24


def evidence(simulated: Simulated, seconds: float, recording: str | Path = RECORDING) -> Evidence:
    """The measurements of a simulation until a moment, as a sweep would have stored them."""
    whole = load(recording)
    run = whole.runs[-1]
    fingerprints = whole.fingerprints()
    rows: dict[tuple[Problem, Config], list[Any]] = {}
    for (task, outcomes), end in zip(simulated.measured, simulated.ends, strict=True):
        if end > seconds:
            break
        for config, outcome in outcomes.items():
            if outcome.status == "ok":
                rounds, samples = rows.setdefault((task.problem, config), [[], []])
                rounds += outcome.rounds
                samples += outcome.nanoseconds
    return Evidence.from_measurements(
        [
            Measurement(
                *(problem, config, run.id, fingerprints[problem.operator], "ok", ""),
                rounds=np.asarray(rounds, np.int32),
                samples=np.asarray(samples, np.int32),
            )
            for (problem, config), (rounds, samples) in rows.items()
        ],
        [run],
    )


def losses(found: Evidence, spaces: Sequence[Space]) -> dict[str, float]:
    """Mean loss of the fitted functions at every shape where their config was recorded, percent, by operator."""
    trees = {function.key.operator: function.tree for function in fit(found, FitOptions(leaves=LEAVES)).functions}
    result: dict[str, list[float]] = {}
    for space in spaces:
        problem = space.task.problem
        logs = {config: float(np.log(one).mean()) for config, one in space.blocks.items()}
        config = choose(trees[problem.operator], problem.shape)
        if config in logs:
            result.setdefault(problem.operator, []).append(logs[config] - min(logs.values()))
    return {name: round(100 * float(np.mean(one)), 3) for name, one in result.items()}


def markdown(document: dict[str, Any]) -> str:
    lines = ["`python benchmarks/table_after.py`", "", "| search | GPU s | problems | configs | forward | backward |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for one in document["tables"]:
        forward, backward = (value for _, value in sorted(one["loses_percent"].items(), reverse=True))
        cells = one["search"], one["device_seconds"], one["problems"], one["configs"], f"{forward} %", f"{backward} %"
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    spaces = recorded()
    # Compiled ahead beside the timing, as a sweep does: seconds are those of the device.
    spaces = [space._replace(overhead=dict.fromkeys(space.overhead, 0.0)) for space in spaces]
    tables = []
    for name in sys.argv[1:] or SEARCHES:
        simulated = simulate(search(name), spaces, 0, max(SECONDS))
        for seconds in SECONDS:
            found = evidence(simulated, seconds)
            tables.append(
                {
                    "search": name,
                    "device_seconds": round(min(seconds, simulated.device), 1),
                    "problems": int(found.frame.groupby(["operator", "rows", "hidden"]).ngroups),
                    "configs": len(found.frame),
                    "loses_percent": losses(found, spaces),
                }
            )
            print(tables[-1], flush=True)
    if sys.argv[1:]:
        return
    document = {"leaves": LEAVES, "tables": tables}
    write(RESULTS / "strategies" / "table_after.json", document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
