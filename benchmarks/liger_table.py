"""The tables of Liger-Kernel #1238, made on this GPU: single-row against tuned dispatch.

    python benchmarks/liger_table.py [--json FILE]
    python benchmarks/liger_table.py --from benchmarks/results/nvidia_h200/liger_table.json

Three tables of the same cells: forward and backward, backward, forward. Each cell: single-row time -> time of the
table's config, and the change. The single-row config is that of Liger's rule outside its block-row regime, on
normtune's kernels. The last column is a control: the single-row config timed a second time beside itself; its change is
noise. If Liger-Kernel is installed, three further tables compare with its own kernels in place of its rule on
normtune's, in the same rounds, the backward through autograd (`beside`). Times follow docs/measuring.md, "Timing":
kernel time, cold. FILE is liger_table.json in the results of this GPU, with a .md beside it; `--from` makes the .md
again and needs no GPU.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from normtune.benchmarks import places

if TYPE_CHECKING:
    from normtune.kernels.call import AnyLaunch
    from normtune.tuner.plan.plan import Task

OPERATORS = ("rms_norm_forward", "rms_norm_backward")
TITLES = {"forward + backward": OPERATORS, "backward": OPERATORS[1:], "forward": OPERATORS[:1]}
ROWS = (4096, 8192, 16384, 32768)
HIDDEN = (64, 128, 256, 512, 768)
CONTROL_HIDDEN = 768
BLOCKS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write here, and a .md beside it")
    parser.add_argument("--from", type=Path, dest="made", help="measure nothing: make the .md of this .json again")
    options = parser.parse_args()
    if options.made:
        path, document = options.made, json.loads(options.made.read_text())
    else:
        document = measured()
        path = options.json or places.folder_of(document["device"]["name"]) / "liger_table.json"
    places.write(path, document, markdown(document))
    print(markdown(document))


def measured() -> dict[str, Any]:
    """Measure all cells on the first GPU."""
    from normtune.tuner.compiling.pool import compile_all
    from normtune.tuner.device.cuda import CudaEngine
    from normtune.tuner.plan.plan import Plan

    engine = CudaEngine(0)
    trials = [plan(engine, name, rows, hidden) for name in OPERATORS for rows in ROWS for hidden in HIDDEN]
    for _ in compile_all(Plan(tuple(trial.task for trial in trials), {}).jobs(), engine.target.name):
        pass
    cells = []
    for trial in trials:
        problem = trial.task.problem
        cell = {"operator": problem.operator, "rows": problem.rows, "hidden": problem.hidden}
        cells.append(cell | measure(engine, trial) | of_liger(engine, problem))
    engine.close()
    return {"device": engine.device._asdict(), "software": engine.software, "cells": cells}


def markdown(document: dict[str, Any]) -> str:
    software = document["software"]
    lines = [f"{document['device']['name']}, bfloat16, torch {software['torch']}, triton {software['triton']}"]
    for title, names in TITLES.items():
        lines += ["", f"{title}, ms:", "", *table(document, names)]
    version = document["cells"][0].get("liger_version")
    for title, names in TITLES.items() if version else ():
        lines += ["", f"{title}, Liger-Kernel {version}'s own kernels, ms:", "", *table(document, names, own=True)]
    return "\n".join(lines)


def table(document: dict[str, Any], names: tuple[str, ...], own: bool = False) -> list[str]:
    """The lines of one table, times summed over these operators; `own` compares with Liger's own kernels."""
    cells = {(cell["operator"], cell["rows"], cell["hidden"]): cell for cell in document["cells"]}
    head = [f"h={hidden}" for hidden in HIDDEN] + [f"h={CONTROL_HIDDEN}, control"] * (not own)
    lines = ["| rows | " + " | ".join(head) + " |", "|---:" * (1 + len(head)) + "|"]
    for rows in ROWS:
        labels = ("liger", "beside_liger") if own else ("single_row", "tuned")
        shown = [told([cells[name, rows, hidden] for name in names], *labels) for hidden in HIDDEN]
        if not own:
            shown.append(told([cells[name, rows, CONTROL_HIDDEN] for name in names], "single_row", "control"))
        lines.append(f"| {rows} | " + " | ".join(shown) + " |")
    return lines


class Trial(NamedTuple):
    """One cell of the table: the problem with its two configs, and the launches by label, the control among them."""

    task: "Task"
    launches: "dict[str, AnyLaunch]"


def plan(engine, name: str, rows: int, hidden: int) -> Trial:
    """The single-row config, twice, and the table's config of one shape."""
    from normtune.heuristics.rules import liger
    from normtune.kernels.calling.dispatch import config_for
    from normtune.kernels.operator import operator
    from normtune.tuner.plan.plan import Task
    from normtune.tuner.plan.pool import Candidate

    spec = operator(name)
    problem = spec.problem(rows, hidden, "bfloat16")
    single_row = liger.choose(name, 1, hidden)
    assert single_row
    configs = {"single_row": single_row, "tuned": config_for(spec, problem, engine.target, 0)}
    launches = {label: spec.resolve(config, problem, engine.target, None) for label, config in configs.items()}
    task = Task(problem, tuple(Candidate(config, launches[label]) for label, config in configs.items()))
    return Trial(task, launches | {"control": launches["single_row"]})


def measure(engine, trial: Trial) -> dict[str, object]:
    """Median nanoseconds by label, in the same rounds, and the two configs."""
    from normtune.kernels.operator import operator
    from normtune.tuner.timing.timing import CudaSession

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


def of_liger(engine, problem) -> dict[str, object]:
    """Median nanoseconds of Liger's own kernel and of normtune's beside it; empty if Liger is not installed."""
    from normtune.benchmarks import beside
    from normtune.benchmarks.cases import CASES, installed
    from normtune.benchmarks.sides import OURS

    there = installed(CASES["forward"], ["liger"])
    if "liger" not in there:
        return {}
    passed = problem.operator.removeprefix("rms_norm_")
    sides = beside.measure(engine, (passed, problem.dtype, *problem.shape), there)["sides"]
    found = {label: 1000 * sides[side]["median_us"] for label, side in (("liger", "liger"), ("beside_liger", OURS))}
    return found | {"liger_version": there["liger"].version}


def told(cells: list[dict], first: str, second: str) -> str:
    """Milliseconds before and after, summed over the cells' operators, and the change."""
    before, after = (sum(cell[key] for cell in cells) / 1e6 for key in (first, second))
    return f"{before:.4f} → {after:.4f} ({100 * (after / before - 1):+.1f} %)"


if __name__ == "__main__":
    main()
