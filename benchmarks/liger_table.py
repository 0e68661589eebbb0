"""The table of Liger-Kernel #1238, made on this GPU: single-row against tuned dispatch.

    python benchmarks/liger_table.py [--json FILE]

Each cell: single-row time -> time of the table's config, and the change. The single-row config is what Liger's rule
runs outside its block-row regime, on normtune's kernels. The last column is a control: the single-row config timed a
second time beside itself; what it shows is noise. Times follow docs/design.md, "Timing protocol": kernel time, cold.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from normtune.kernels.operator import Launch
    from normtune.tuner.planning import Task

OPERATORS = ("rms_norm_forward", "rms_norm_backward")
ROWS = (4096, 8192, 16384, 32768)
HIDDEN = (64, 128, 256, 512, 768)
CONTROL_HIDDEN = 768
BLOCKS = 12


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here too")
    options = parser.parse_args()
    from normtune.tuner.compiling import compile_all
    from normtune.tuner.cuda import CudaEngine
    from normtune.tuner.planning import Plan

    engine = CudaEngine(0)
    trials = [plan(engine, name, rows, hidden) for name in OPERATORS for rows in ROWS for hidden in HIDDEN]
    for _ in compile_all(Plan(tuple(trial.task for trial in trials), {}).jobs(), engine.target.name):
        pass
    cells = {trial.task.problem[:3]: measure(engine, trial) for trial in trials}
    engine.close()
    print(f"{engine.device.name}, bfloat16, torch {engine.software['torch']}, triton {engine.software['triton']}")
    titles = {"forward + backward": OPERATORS, "backward": OPERATORS[1:], "forward": OPERATORS[:1]}
    for title, names in titles.items():
        print(f"\n{title}, ms:\n")
        head = [f"h={hidden}" for hidden in HIDDEN] + [f"h={CONTROL_HIDDEN}, control"]
        print("| rows | " + " | ".join(head) + " |")
        print("|---:" * (1 + len(head)) + "|")
        for rows in ROWS:
            shown = [told([cells[name, rows, hidden] for name in names], "tuned") for hidden in HIDDEN]
            shown.append(told([cells[name, rows, CONTROL_HIDDEN] for name in names], "control"))
            print(f"| {rows} | " + " | ".join(shown) + " |")
    if options.json:
        found = [{"operator": n, "rows": r, "hidden": h, **cell} for (n, r, h), cell in cells.items()]
        document = {"device": engine.device._asdict(), "software": engine.software, "cells": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


class Trial(NamedTuple):
    """One cell of the table: the problem with its two configs, and the launches by label, the control among them."""

    task: "Task"
    launches: "dict[str, Launch]"


def plan(engine, name: str, rows: int, hidden: int) -> Trial:
    """The single-row config, twice, and the table's config of one shape."""
    from normtune.heuristics.rules import liger
    from normtune.kernels.dispatch import config_for
    from normtune.kernels.operator import operator
    from normtune.tuner.planning import Candidate, Task

    spec = operator(name)
    problem = spec.problem(rows, hidden, "bfloat16")
    configs = {
        "single_row": liger.choose(name, 1, hidden),
        "tuned": config_for(spec, problem, engine.target, 0),
    }
    launches = {label: spec.resolve(config, problem, engine.target, None) for label, config in configs.items()}
    task = Task(problem, tuple(Candidate(config, launches[label]) for label, config in configs.items()))
    return Trial(task, launches | {"control": launches["single_row"]})


def measure(engine, trial: Trial) -> dict[str, object]:
    """Median nanoseconds by label, in the same rounds, and the two configs."""
    from normtune.kernels.operator import operator
    from normtune.tuner.timing import CudaSession

    problem = trial.task.problem
    for candidate in trial.task.candidates:
        failure = engine.gate(problem, candidate)
        if failure:
            raise SystemExit(f"{problem}, {candidate.config}: {failure.reason}")
    session = CudaSession(engine.ready(), operator(problem.operator), problem, trial.launches)
    session.warm_up(list(trial.launches))
    times: dict[str, list[int]] = {label: [] for label in trial.launches}
    for _ in range(BLOCKS):
        for label, samples in session.block(list(trial.launches)).items():
            times[label] += samples
    single_row, tuned = (str(candidate.config) for candidate in trial.task.candidates)
    return {"configs": {"single_row": single_row, "tuned": tuned}} | {k: median(v) for k, v in times.items()}


def told(cells: list[dict], label: str) -> str:
    """Milliseconds before and after, summed over the cells' operators, and the change."""
    before, after = (sum(cell[key] for cell in cells) / 1e6 for key in ("single_row", label))
    return f"{before:.4f} → {after:.4f} ({100 * (after / before - 1):+.1f} %)"


if __name__ == "__main__":
    main()
