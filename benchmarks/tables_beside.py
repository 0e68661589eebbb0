"""What two tables choose, timed in the same rounds on this GPU, at shapes of a recording.

    python benchmarks/tables_beside.py ONE.py OTHER.py [--device cuda:0] [--recording nvidia-h200] [--shapes 60]
                                       [--json FILE]

In: the tables, of whose plain functions those that both have, in bfloat16, are compared. Out: what each loses against
the fastest of both and of the recording's best config, mean and worst, by operator. Shapes are drawn with a fixed seed.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from normtune import load_table
from normtune.kernels.config import COPY, Config
from normtune.kernels.key import Key
from normtune.kernels.operator import operator, operators, read_config
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.target import Target
from normtune.results.exchange.recording import load_recording
from normtune.results.records import Outcome
from normtune.tuner.checking.recheck import recheck
from normtune.tuner.device.open import open_device
from normtune.tuner.plan.plan import Task, candidates

DTYPE = "bfloat16"


class Losses:
    """Receives the outcomes; see `recheck.Probes`.

    Attributes:
        logs: by problem, the log time of each launch.
    """

    def __init__(self) -> None:
        self.logs: dict[Problem, dict[Any, float]] = {}

    def wants(self, task: Task) -> bool:
        return task.problem not in self.logs

    def learn(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        launches = {candidate.config: candidate.launch for candidate in task.candidates}
        self.logs[task.problem] = {
            launches[config]: float(np.log(np.median(one.nanoseconds)))
            for config, one in outcomes.items()
            if config != COPY and len(one.nanoseconds)
        }


def bests(recording: str, names: list[str]) -> dict[Problem, Config]:
    """The best config of each recorded problem of these operators."""
    frame = load_recording(recording, None).frame
    frame = frame[(frame.status == "ok") & (frame.variant == "") & (frame.dtype == DTYPE) & frame.operator.isin(names)]
    found: dict[Problem, tuple[float, Config]] = {}
    for name, rows, hidden, text, samples in frame[["operator", "rows", "hidden", "config", "samples"]].itertuples(
        index=False
    ):
        config, problem = read_config(name, text), Problem.of(name, rows, hidden, DTYPE)
        if config != COPY:
            found[problem] = min(found.get(problem, (np.inf, config)), (float(np.median(samples)), config))
    return {problem: config for problem, (_, config) in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs=2, metavar="TABLE", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--recording", default="nvidia-h200")
    parser.add_argument("--shapes", type=int, default=60, help="of each operator")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    tables = [load_table(path) for path in options.tables]
    names = [name for name in sorted(operators()) if all(table.function(Key.of(name, "", DTYPE)) for table in tables)]
    best = bests(options.recording, names)
    bench = open_device(options.device)
    tasks, chosen = [], {}
    for name in names:
        problems = sorted(
            (problem for problem in best if problem.operator == name), key=lambda problem: problem.columns
        )
        for problem in Random(0).sample(problems, min(options.shapes, len(problems))):
            answers = [answer(table, problem) for table in tables]
            kept, _ = candidates(operator(name), {*answers, best[problem]}, problem, bench.target)
            tasks.append(Task(problem, tuple(kept)))
            chosen[problem] = [_launch(config, problem, bench.target) for config in answers]
    losses = Losses()
    counts = recheck(bench, tasks, losses)
    document: dict[str, Any] = {"device": bench.device.name, "seconds": round(counts.seconds, 1), "operators": {}}
    for name in names:
        found = [
            [logs[launch] - min(logs.values()) for launch in chosen[problem]]
            for problem, logs in losses.logs.items()
            if problem.operator == name and all(launch in logs for launch in chosen[problem])
        ]
        percent = 100 * np.expm1(np.array(found))
        document["operators"][name] = {
            "shapes": len(found),
            **{
                str(path.name): {"mean": round(float(of.mean()), 3), "worst": round(float(of.max()), 1)}
                for path, of in zip(options.tables, percent.T, strict=True)
            },
            "more": round(float((percent[:, 0] - percent[:, 1]).mean()), 3),
        }
    print(json.dumps(document, indent=1))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def answer(table: LoadedTable, problem: Problem) -> Config:
    """The table's config for a problem."""
    function = table.answer(problem.key)
    assert function is not None
    return function(problem.rows, problem.hidden)


def _launch(config: Config, problem: Problem, target: Target) -> Any:
    return operator(problem.operator).launch_of(config, problem, target)


if __name__ == "__main__":
    main()
