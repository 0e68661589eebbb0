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

ROWS = (4096, 8192, 16384, 32768)
HIDDEN = (64, 128, 256, 512, 768)
CONTROL_HIDDEN = 768
BLOCKS = 12


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here too")
    options = parser.parse_args()
    from normtune.tuner.cuda import CudaBench

    bench = CudaBench(0)
    cells = {
        (name, rows, hidden): measure(bench, name, rows, hidden)
        for name in ("rms_norm_forward", "rms_norm_backward")
        for rows in ROWS
        for hidden in HIDDEN
    }
    bench.close()
    print(f"{bench.device.name}, bfloat16, torch {bench.software['torch']}, triton {bench.software['triton']}")
    titles = {"forward + backward": ("rms_norm_forward", "rms_norm_backward"), "backward": ("rms_norm_backward",)}
    titles["forward"] = ("rms_norm_forward",)
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
        document = {"device": bench.device._asdict(), "software": bench.software, "cells": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def measure(bench, name: str, rows: int, hidden: int) -> dict[str, object]:
    """Median nanoseconds of the single-row config, twice, and of the table's config, in the same rounds."""
    from normtune.heuristics.rules import liger
    from normtune.kernels.dispatch import config_for
    from normtune.kernels.operator import operator
    from normtune.tuner.planning import Candidate, Task
    from normtune.tuner.timing import CudaSession

    spec = operator(name)
    problem = spec.problem(rows, hidden, "bfloat16")
    chosen = {
        "single_row": liger.choose(name, 1, hidden),
        "tuned": config_for(spec, problem, bench.target, 0),
    }
    launches = {label: spec.resolve(config, problem, bench.target, None) for label, config in chosen.items()}
    launches["control"] = launches["single_row"]
    task = Task(problem, tuple(Candidate(config, launches[label]) for label, config in chosen.items()))
    for _ in bench.prepare([task]):
        pass
    for candidate in task.candidates:
        failure = bench.check(task, candidate)
        if failure:
            raise SystemExit(f"{problem}, {candidate.config}: {failure.reason}")
    session = CudaSession(bench.ready(), spec, problem, launches)
    times: dict[str, list[int]] = {label: [] for label in launches}
    for label in launches:
        session.warm_up(label)
    for _ in range(BLOCKS):
        for label, samples in session.block(list(launches)).items():
            times[label] += samples
    return {
        "configs": {label: str(config) for label, config in chosen.items()},
        **{label: median(samples) for label, samples in times.items()},
    }


def told(cells: list[dict], label: str) -> str:
    """Milliseconds before and after, summed over the cells' operators, and the change."""
    before, after = (sum(cell[key] for cell in cells) / 1e6 for key in ("single_row", label))
    return f"{before:.4f} → {after:.4f} ({100 * (after / before - 1):+.1f} %)"


if __name__ == "__main__":
    main()
