"""The table of TileGym #60, made on this GPU: throughput of the backward kernel at 4096 rows, in GB/s.

    python benchmarks/tilegym_table.py [--json FILE]

normtune, torch and, if installed, Liger-Kernel, in the same rounds (`beside`): kernel time, cold, through autograd,
without the forward; numbers are checked against float64 first. A written cell is not measured again, unless normtune's
kernels or config, or a version, changed. FILE is tilegym_table.json in the results of this GPU, with a .md beside it.

Two conventions for the bytes. Each tensor once: x, dy, dx, rstd, weight, weight gradient, as for every other figure of
normtune. And with the partial sums of the weight gradient, each written and read once, as in TileGym's benchmark: here
those of normtune's own launch, 0 if it has none. The pull request's own table cannot be compared with this one: it
still counts a temporary buffer of rows x hidden in place of the partial sums, and its inputs may lie in the L2 (TileGym
#82, #118), so that it shows more than any memory gives.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from normtune.benchmarks import places
from normtune.benchmarks.cases import CASES, installed
from normtune.benchmarks.peers import is_done, sides_of
from normtune.benchmarks.peers_report import versions
from normtune.benchmarks.sides import OURS

ROWS = 4096
HIDDEN = (1024, 2048, 4096, 8192, 16384)
DTYPES = ("bfloat16", "float16", "float32")
PEERS = ["torch", "liger"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write here, and a .md beside it")
    options = parser.parse_args()
    from normtune.benchmarks import beside
    from normtune.tuner.device.cuda import CudaEngine

    engine = CudaEngine(0)
    path = options.json or places.folder_of(engine.device.name) / "tilegym_table.json"
    there = installed(CASES["backward"], PEERS)
    cells = {key_of(cell): cell for cell in json.loads(path.read_text())["cells"]} if path.exists() else {}
    for dtype in DTYPES:
        for hidden in HIDDEN:
            problem = ("backward", dtype, ROWS, hidden)
            known = cells.get((dtype, hidden))
            sides = sides_of(known, there, there)
            if not is_done(known, sides, beside.identity(engine.target, *problem)):
                cells[dtype, hidden] = without_samples(beside.measure(engine, problem, sides))
                document = {"device": engine.device._asdict(), "software": engine.software, "cells": [*cells.values()]}
                places.write(path, document, markdown(document))
                print(f"{dtype} {ROWS} x {hidden}", flush=True)
    engine.close()
    print(markdown(json.loads(path.read_text())))


def key_of(cell: dict[str, Any]) -> tuple[str, int]:
    return cell["dtype"], cell["hidden"]


def without_samples(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell of `beside.measure` with medians alone."""
    sides = {
        side: {name: value for name, value in told.items() if name != "samples_ns"}
        for side, told in cell["sides"].items()
    }
    return {"dtype": cell["dtype"], "rows": cell["rows"], "hidden": cell["hidden"], "sides": sides}


def markdown(document: dict[str, Any]) -> str:
    cells = {key_of(cell): cell for cell in document["cells"]}
    told = ", ".join(f"{side} {version}" for side, version in versions([*cells.values()]).items())
    lines = [f"{document['device']['name']}; {told}; backward, {ROWS} rows, GB/s"]
    for dtype in DTYPES:
        found = [cells[dtype, hidden] for hidden in HIDDEN if (dtype, hidden) in cells]
        if found:
            lines += ["", f"**{dtype}**", "", *table(found)]
    return "\n".join(lines)


def table(cells: list[dict[str, Any]]) -> list[str]:
    """The lines of one dtype: a row for each hidden."""
    peers = [peer for peer in PEERS if any(peer in cell["sides"] for cell in cells)]
    heads = ["hidden", OURS, "with partial sums", *peers, "over torch"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---:|" * len(heads)]
    for cell in cells:
        once, partial = nbytes(cell)
        times = {side: told.get("median_us") for side, told in cell["sides"].items()}
        shown = [gbps(once, times[OURS]), gbps(once + partial, times[OURS])]
        shown += [gbps(once, times.get(peer)) for peer in peers]
        ratio = f"{times['torch'] / times[OURS]:.2f}" if times.get("torch") else "-"
        lines.append(f"| {cell['hidden']} | {' | '.join(shown)} | {ratio} |")
    return lines


def nbytes(cell: dict[str, Any]) -> tuple[int, int]:
    """Bytes of a cell: each tensor once, and partial sums, written and read."""
    from normtune.kernels.operator import operator

    spec = operator("rms_norm_backward")
    once = spec.bytes_moved(spec.problem(cell["rows"], cell["hidden"], cell["dtype"]))
    return once, 2 * 4 * cell["sides"][OURS]["workspace"]


def gbps(nbytes: int, microseconds: float | None) -> str:
    return f"{nbytes / microseconds / 1e3:.0f}" if microseconds else "-"


if __name__ == "__main__":
    main()
