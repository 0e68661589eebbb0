"""The relatives of RMSNorm beside their peers, and beside a plain copy of as many bytes: kernel time, cold.

    python benchmarks/relatives.py [--cases gated,fp8_row] [--shapes 4096x4096,64x4096] [--dtypes bfloat16]
                                   [--budget SECONDS]

A case is a call as users make it: `fused_add`, `gated`, `fp8_static`, `fp8_row`, `fp8_block`, `fp8_transpose`
(static, in both layouts), and the backward of the first two. Every installed peer takes part: Inductor with the plain
formula, `chain` (RMSNorm of torch, then torch's other operations), Liger-Kernel, quack, flash-linear-attention. All
sides are checked against float64 first, get the same number of samples, and are resumed, as in `benchmarks/peers.py`.
The cases are in `benchmarks/relative_cases.py`; `benchmarks/relatives_report.py` makes the table.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normtune.benchmarks.peers import is_done, keep_newest, run
from normtune.benchmarks.peers_report import key_of, read
from normtune.benchmarks.relative_cases import CASES, SHAPES, Case, Function, ours
from normtune.benchmarks.sides import OURS, Side

# Largest error over the largest value.
TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 2e-5}


def main() -> None:
    """Measure the missing problems and print."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--shapes", help="only these, as 4096x4096,64x4096")
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--budget", type=float, help="begin no problem after so many seconds")
    parser.add_argument("--out", type=Path, help="default: relatives.jsonl in the results of this GPU")
    options = parser.parse_args()
    if unknown := set(options.cases.split(",")) - set(CASES):
        raise SystemExit(f"unknown case {min(unknown)!r}: expected some of {', '.join(CASES)}")

    from normtune.benchmarks import beside, places
    from normtune.tuner.device.cuda import CudaEngine

    engine = CudaEngine(0)
    out = options.out or places.folder_of(engine.device.name) / "relatives.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {key_of(cell): cell for cell in read(out)}
    left = []
    for name in options.cases.split(","):
        there = installed(CASES[name])
        shapes = SHAPES[CASES[name].shapes]
        if options.shapes:
            shapes = tuple(tuple(map(int, shape.split("x"))) for shape in options.shapes.split(","))
        for dtype in options.dtypes.split(","):
            for rows, hidden in shapes:
                key = (name, dtype, rows, hidden)
                identity = beside.identity_of(engine.target, *problem_of(*key))
                if not is_done(known.get(key), there, identity):
                    left.append((key, there))
    failed = run(left, out, options.budget, start, lambda key, sides: measure(engine, *key, sides))
    engine.close()
    keep_newest(out)
    if failed:
        raise SystemExit(f"normtune failed at {len(failed)} problems: {', '.join(failed)}")


def installed(case: Case) -> dict[str, Side]:
    """The sides of a case that are installed, normtune first."""
    import normtune

    found = {OURS: Side(normtune.__version__, lambda rows, hidden: ours(case))}
    for name, make in case.sides.items():
        try:
            found[name] = make()
        except ImportError as error:
            print(f"{name} takes no part in {case.operator}: {error}")
    return found


def problem_of(name: str, dtype: str, rows: int, hidden: int) -> tuple[Any, Any]:
    """The operator of a case and the problem."""
    from normtune.kernels.operator import operator

    spec = operator(CASES[name].operator)
    return spec, spec.problem(rows, hidden, dtype, CASES[name].variant)


def buffers_of(case: Case, dtype: str, rows: int, hidden: int) -> list[Any]:
    """What a launch of a case reads; FP8's given scale is one more."""
    from normtune.kernels.problem import Buffer

    buffers = [Buffer(name, (rows, hidden), dtype, "input") for name in case.rows_of]
    return buffers + [Buffer(name, (hidden,), dtype, "weight") for name in case.columns_of]


def measure(engine: Any, name: str, dtype: str, rows: int, hidden: int, sides: dict[str, Side]) -> dict[str, Any]:
    """One problem of a case, as `beside.measure`."""
    from normtune.benchmarks import beside

    case = CASES[name]

    def calls(function: Function, tensors: dict[str, Any], stream: Any) -> Callable[[], Any]:
        if case.inputs:
            return beside.gradients(function, tensors, case.inputs, case.outer, stream)
        return beside.without_gradients(lambda: function(tensors))

    spec, problem = problem_of(name, dtype, rows, hidden)
    found = beside.compare(
        engine,
        spec,
        problem,
        buffers_of(case, dtype, rows, hidden),
        calls,
        lambda function, part: check(function, part, case, dtype, rows, hidden),
        sides,
    )
    return {"pass": name, "dtype": dtype, "rows": rows, "hidden": hidden, "bytes": spec.bytes_moved(problem), **found}


def check(function: Function, part: Side, case: Case, dtype: str, rows: int, hidden: int, device: str = "cuda") -> None:
    """Compare a case with float64, under the witness of its side.

    Raises:
        ValueError: the error is too large.
    """
    import torch

    kind = getattr(torch, dtype)
    tensors = {name: torch.randn(rows, hidden, device=device, dtype=kind) for name in case.rows_of}
    tensors |= {name: torch.randn(hidden, device=device, dtype=kind) for name in case.columns_of}
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    with torch.set_grad_enabled(bool(case.inputs)), part.witness():
        given, exact = ({**of, **{name: of[name].requires_grad_() for name in case.inputs}} for of in (tensors, wide))
        results = function(given)
        wanted = case.exact(exact)
        if case.inputs:
            pairs = ((results, given), (wanted, exact))
            results, wanted = (
                torch.autograd.grad(
                    made,
                    [of[name] for name in case.inputs],
                    [of[name].clone() for name in case.outer],
                    retain_graph=True,
                )
                for made, of in pairs
            )
        results = case.readable(results, tensors)
    for place, (value, right) in enumerate(zip(results, wanted, strict=True)):
        off = float((value.detach().double() - right.detach()).abs().max() / right.detach().abs().max())
        if not off <= (case.tolerance or TOLERANCE[dtype]):
            raise ValueError(f"result {place} is off by {off:.2g} of its largest value")


if __name__ == "__main__":
    main()
