"""Equality of a row's bits across the configs that sum a row in the same order, on a GPU.

    python benchmarks/row_bits.py [--rows 300] [--hidden 64,768,4096] [--json FILE]

Batch-invariant functions change between configs whose launches sum a row in the same
order (`Launch.row_sum`). That different binaries then give equal bits depends on the compiler. This script runs the
configs of the default space on the same inputs and compares y and rstd, or dx, bit by bit, inside each class. A config
alone in its class, or with the binary of another, is not run. Processes share the GPU, because most of the time is the
compiler's.
"""

import argparse
import json
import multiprocessing
from collections import defaultdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

OPERATORS = (
    *("rms_norm_forward", "rms_norm_backward", "fused_add_rms_norm_forward", "fused_add_rms_norm_backward"),
    *("rms_norm_gated_forward", "rms_norm_gated_backward"),
)
DTYPES = ("bfloat16", "float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", default=",".join(OPERATORS[:2]), help="names of operators")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="dtypes")
    parser.add_argument("--rows", type=int, default=300, help="rows of each problem")
    parser.add_argument("--hidden", default="64,192,1001,1024,4096,5120,8192,12288,16384", help="hidden sizes")
    parser.add_argument("--device", default="cuda:0", help="cpu under Triton's interpreter")
    parser.add_argument("--processes", type=int, default=14, help="that compile and run")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    sizes = [int(size) for size in options.hidden.split(",")]
    # Long rows have the most configs and begin first.
    cells = [*product(options.operators.split(","), options.dtypes.split(","), sorted(sizes, reverse=True))]
    compare = partial(compared, rows=options.rows, device=options.device)
    # A child that is forked cannot use CUDA.
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        found = sorted(
            pool.starmap(compare, cells, chunksize=1), key=lambda cell: (*list(cell.values())[:2], cell["hidden"])
        )
    print("| operator | dtype | hidden | configs | classes of several binaries | of equal bits | configs that differ |")
    print("|---|---|---:|---:|---:|---:|---|")
    for cell in found:
        told = "; ".join(cell["differing"][:3]) + (" ..." if len(cell["differing"]) > 3 else "")
        print(
            "|",
            *(f"{cell[name]} |" for name in ("operator", "dtype", "hidden", "configs", "classes", "equal")),
            told,
            "|",
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def compared(name: str, dtype: str, hidden: int, rows: int, device: str) -> dict[str, Any]:
    """Number of classes with several binaries, number of those with equal bits, and the configs that differ."""
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
    # The default space leaves out configs that cannot win at these rows; with more rows it has the fixed grids, too.
    space = {
        config
        for count in (1, rows, 1 << 16)
        for config in spec.configs("default", problem._replace(rows=count), target)
    }
    classes: dict[Any, dict[Any, Any]] = defaultdict(dict)
    for candidate in candidates(spec, space, problem, target)[0]:
        launch: Any = candidate.launch
        classes[launch.row_sum].setdefault(launch.binary, candidate)
    several = [[*members.values()] for members in classes.values() if len(members) > 1]

    def of_rows(launch: Any) -> list[torch.Tensor]:
        outputs = {
            buffer.name: torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=place)
            for buffer in spec.buffers(problem)
            if buffer.role == "output"
        }
        workspace = torch.empty(max(1, launch.workspace), dtype=torch.float32, device=place)
        run(spec.kernels().calls(launch, problem, inputs | outputs, workspace, **spec.scalars))
        return [tensor for tensor in outputs.values() if tensor.shape[0] == rows]

    differing = []
    for members in several:
        wanted, *others = (of_rows(member.launch) for member in members)
        differing.append(
            [
                f"{member.config} is not {members[0].config}"
                for member, tensors in zip(members[1:], others, strict=True)
                if not all(map(torch.equal, wanted, tensors))
            ]
        )
    return {
        **{"operator": name, "dtype": dtype, "hidden": hidden, "rows": rows, "configs": sum(map(len, several))},
        **{"classes": len(several), "equal": sum(not found for found in differing)},
        "differing": [one for found in differing for one in found],
    }


if __name__ == "__main__":
    main()
