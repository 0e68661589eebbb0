"""Equality of a row's bits across schedules that hold it in the same tile, and a table's possible gain by that.

    python benchmarks/row_bits.py [--rows 300] [--hidden 64,768,4096] [--json FILE]

The batch-invariant mode uses one config for all numbers of rows, which on the recorded H200 costs the backward a third
of its time: the best config of few rows (programs of columns) cannot serve many. If configs of equal tiles gave equal
bits, a table could change between them at a number of rows. This script runs all configs of the default space on the
same inputs and compares y and rstd, or dx, bit by bit, inside each class of equal `Launch.of_a_row` but for the loop.
The losses of such tables are computed from the recording, without a GPU.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

OPERATORS = ("rms_norm_forward", "rms_norm_backward")
DTYPES = ("bfloat16", "float32")


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300, help="rows of each problem")
    parser.add_argument("--hidden", default="64,192,768,1000,4096,8192,12288", help="hidden sizes")
    parser.add_argument("--device", default="cuda:0", help="cpu under Triton's interpreter")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    sizes = [int(size) for size in options.hidden.split(",")]
    found = []
    print("| operator | dtype | hidden | classes of several schedules | of equal bits | configs that differ |")
    print("|---|---|---:|---:|---:|---|")
    for operator in OPERATORS:
        for dtype in DTYPES if options.device != "cpu" else DTYPES[1:]:
            for hidden in sizes:
                cell = compared(operator, dtype, options.rows, hidden, options.device)
                found.append(cell)
                told = "; ".join(cell["differing"][:3]) + (" ..." if len(cell["differing"]) > 3 else "")
                print(f"| {operator} | {dtype} | {hidden} | {cell['classes']} | {cell['equal']} | {told} |")
    lost = {f"{operator} {dtype}": by_class(operator, dtype) for operator in OPERATORS for dtype in DTYPES}
    print("\nLost by one class for each hidden size and its best config for each number of rows, on the recorded H200:")
    for name, (mean, worst) in lost.items():
        print(f"  {name}: {mean:.2f} % on average, {worst:.1f} % at worst")
    if options.json:
        options.json.write_text(json.dumps({"cells": found, "lost": lost}, indent=1) + "\n")


def row_class(launch: Any) -> Any:
    """The common part of two launches whose programs hold a row in the same tile."""
    return launch.of_a_row._replace(looped=False, num_stages=1)


def compared(name: str, dtype: str, rows: int, hidden: int, device: str) -> dict[str, Any]:
    """Number of classes with several schedules, number of those with equal bits, and the configs that differ."""
    import torch

    from normtune.kernels.call import run
    from normtune.kernels.calling.device import describe
    from normtune.kernels.operator import operator
    from normtune.kernels.target import TARGETS
    from normtune.tuner.plan.plan import candidates

    spec, place = operator(name), torch.device(device)
    target = describe(place.index or 0) if place.type == "cuda" else TARGETS["sm_80"]
    problem = spec.problem(rows, hidden, dtype)
    inputs = spec.references().inputs(problem, torch.Generator(place).manual_seed(0), place, False)
    classes = defaultdict(list)
    # The default space leaves out configs that cannot win at these rows; with more rows it has the fixed grids, too.
    space = {
        config for count in (1, rows, 1 << 16) for config in spec.space("default", problem._replace(rows=count), target)
    }
    for candidate in candidates(spec, space, problem, target)[0]:
        tensors = dict(inputs)
        for buffer in spec.buffers(problem):
            if buffer.role == "output":
                tensors[buffer.name] = torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=place)
        workspace = torch.empty(max(1, candidate.launch.workspace), dtype=torch.float32, device=place)
        run(spec.kernels().calls(candidate.launch, problem, tensors, workspace, 1e-6, 0.0))
        of_rows = [tensors[buffer.name] for buffer in spec.buffers(problem) if _is_of_rows(buffer, rows)]
        classes[row_class(candidate.launch)].append((candidate.config, of_rows))
    several = [members for members in classes.values() if len({config.schedule for config, _ in members}) > 1]
    differing = [
        [str(config) for config, tensors in members if not all(map(torch.equal, tensors, members[0][1]))]
        for members in several
    ]
    return {
        **{"operator": name, "dtype": dtype, "hidden": hidden, "rows": rows, "classes": len(several)},
        **{"equal": sum(not found for found in differing), "differing": [one for found in differing for one in found]},
    }


def _is_of_rows(buffer: Any, rows: int) -> bool:
    return buffer.role == "output" and buffer.shape[0] == rows


def by_class(name: str, dtype: str) -> tuple[float, float]:
    """(mean, worst) loss of the best class for each hidden size, percent, over configs timed at all of its rows."""
    from math import expm1

    from normtune.heuristics.regret.matrix import timing_matrix
    from normtune.kernels.operator import operator
    from normtune.kernels.target import target_for
    from normtune.results.exchange.recording import load_recording

    evidence = load_recording("nvidia-h200").current()
    (device,) = evidence.devices()
    spec, target = operator(name), target_for(device.target, device.sms)
    matrix = timing_matrix(evidence, spec, "", dtype, target)
    if matrix is None:
        raise SystemExit(f"the recording has no {name} {dtype}")
    lost: list[int] = []
    for size in sorted({hidden for _, hidden in matrix.problems}):
        places = [place for place, (_, hidden) in enumerate(matrix.problems) if hidden == size]
        least: dict[Any, dict[int, int]] = defaultdict(dict)
        for place in places:
            problem = spec.problem(matrix.problems[place][0], size, dtype)
            for column, config in enumerate(matrix.configs):
                if matrix.usable[place, column]:
                    kind = row_class(spec.resolve(config, problem, target, None))
                    regret = int(matrix.regret[place, column])
                    least[kind][place] = min(least[kind].get(place, regret), regret)
        lost += min((list(of.values()) for of in least.values() if len(of) == len(places)), key=sum)
    return 100 * expm1(sum(lost) / len(lost) / 1e6), 100 * expm1(max(lost) / 1e6)


if __name__ == "__main__":
    main()
