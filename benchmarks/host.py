"""Host cost of a call of RMSNorm, beside torch's own: microseconds of Python and launch, not of the kernel.

    python benchmarks/host.py [--json FILE]

Shapes are so small that the GPU waits for the host. Both are called in turns, blocks of calls in random order, and a
block ends with a synchronisation; the result is the median over the blocks. Checks the numbers first.
"""

import argparse
import json
import random
import time
from pathlib import Path
from statistics import median

CALLS = 200
BLOCKS = 60
SHAPES = ((1, 4096), (8, 1024), (64, 768))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here too")
    options = parser.parse_args()
    import torch
    import triton

    name = torch.cuda.get_device_name()
    print(f"{name}, bfloat16, torch {torch.__version__}, triton {triton.__version__}, microseconds a call:\n")
    print("| work | rows x hidden | torch | normtune | ratio |")
    print("|---|---|---:|---:|---:|")
    found = []
    for rows, hidden in SHAPES:
        for work, callers in cases(rows, hidden).items():
            times = compared(callers)
            cell = {"work": work, "rows": rows, "hidden": hidden} | {key: median(of) for key, of in times.items()}
            found.append(cell | {"samples": times})
            ratio = cell["normtune"] / cell["torch"]
            print(f"| {work} | {rows} x {hidden} | {cell['torch']:.2f} | {cell['normtune']:.2f} | {ratio:.2f} |")
    if options.json:
        software = {"torch": torch.__version__, "triton": triton.__version__}
        options.json.write_text(json.dumps({"device": name, "software": software, "cells": found}, indent=1) + "\n")


def cases(rows: int, hidden: int) -> dict:
    """The timed functions, by work and side, without arguments; their results are compared first."""
    import torch
    from torch.nn.functional import rms_norm as torch_rms_norm

    import normtune

    x = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(hidden, device="cuda", dtype=torch.bfloat16)
    dy = torch.randn_like(x)
    grown_x, grown_weight = x.clone().requires_grad_(), weight.clone().requires_grad_()

    def forward(function):
        def call():
            with torch.no_grad():  # for both sides, so that neither alone pays for it
                return function(x, weight)

        return call

    def both(function):
        def call():
            return torch.autograd.grad(function(grown_x, grown_weight), (grown_x, grown_weight), dy)

        return call

    def theirs(x, weight):
        return torch_rms_norm(x, (hidden,), weight, 1e-6)

    sides = {"torch": theirs, "normtune": normtune.rms_norm}
    made = {
        "forward, no_grad": {side: forward(function) for side, function in sides.items()},
        "forward and backward": {side: both(function) for side, function in sides.items()},
    }
    torch.testing.assert_close(made["forward, no_grad"]["normtune"](), made["forward, no_grad"]["torch"]())
    for ours, other in zip(*(made["forward and backward"][side]() for side in ("normtune", "torch")), strict=True):
        torch.testing.assert_close(ours, other, rtol=2e-2, atol=2e-2 * other.abs().max().item())
    return made


def compared(callers: dict) -> dict[str, list[float]]:
    """Microseconds per call of each block, by side."""
    import torch

    times: dict[str, list[float]] = {side: [] for side in callers}
    for caller in callers.values():
        for _ in range(CALLS):
            caller()
    order = list(callers)
    for _ in range(BLOCKS):
        random.shuffle(order)
        for side in order:
            call = callers[side]
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[side].append(1e6 * (time.perf_counter() - start) / CALLS)
    torch.cuda.synchronize()
    return times


if __name__ == "__main__":
    main()
