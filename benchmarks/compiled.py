"""Norms in compiled functions: time of the kernels that `torch.compile` makes of them and of what stands beside them.

    python benchmarks/compiled.py [--json FILE]

Microseconds on the GPU by the profiler, of a forward, and of a forward and backward, all kernels of one call in sum;
the median of 12 calls, with the L2 cache flushed between them. `inductor` is the formula as its users write it; the
others are normtune with `normtune.use(compiled=...)`. Cases: a norm alone; a norm of `x + residual` that also returns
the sum; the same by `fused_add_rms_norm`; a gated norm; a norm to FP8 with a scale a row and a scale for 128 columns;
norms and rotation of queries and keys. FP8 and `qk_norm` are always kernels. Results are compared first.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton
from torch.nn.functional import rms_norm, silu

import normtune
from normtune.benchmarks.lib.profiled import kernel_times
from normtune.kernels.calling.compiled import Compiled

SHAPES = ((8192, 2048), (8192, 4096), (4096, 8192))
WAYS: tuple[Compiled, ...] = ("auto", "formula", "backward", "kernel")
CALLS = 12
EPS = 1e-6
FP8 = torch.float8_e4m3fn
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Compiled, ...]]


def _sum_and_norm(norm: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, z: Any, weight: Any) -> Any:
        s = x + z
        return norm(s, weight), s

    return call


def _to_fp8(columns: int) -> Callable[..., Any]:
    def call(x: Any, z: Any, weight: Any) -> Any:
        wide = x.float()
        y = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)
        blocks = y.float().view(x.shape[0], -1, columns or x.shape[-1])
        scale = blocks.abs().amax(-1, keepdim=True).clamp(1e-10) / 448
        return (blocks / scale).to(FP8).view(x.shape), scale.squeeze(-1)

    return call


def _heads(x: Any, z: Any, weight: Any) -> Any:
    """Norms and rotation of 3/4 of the heads of 128 of each token; the others are values."""
    heads = x.view(x.shape[0], -1, 128)
    count = heads.shape[1] * 3 // 4
    angles = z[:, :64].float()
    cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
    first, second = _normed(heads[:, :count], weight[:128]).chunk(2, -1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((rotated, heads[:, count:]), 1).view(x.shape)


def _our_heads(x: Any, z: Any, weight: Any) -> Any:
    count = x.shape[-1] // 128 * 3 // 4
    angles = z[:, :64].float()
    tables = {"cos": angles.cos().to(x.dtype), "sin": angles.sin().to(x.dtype)}
    return normtune.qk_norm(x, weight[:128], weight[:128], count // 2, count - count // 2, EPS, **tables)


def _normed(x: Any, weight: Any) -> Any:
    return rms_norm(x, (x.shape[-1],), weight, EPS)


def _quantized(**options: Any) -> Callable[..., Any]:
    def call(x: Any, z: Any, weight: Any) -> Any:
        q, scale, *_ = normtune.rms_norm_quantize_fp8(x, weight, EPS, **options)
        return q, scale

    return call


def _ours(x: Any, weight: Any) -> Any:
    return normtune.rms_norm(x, weight, EPS)


# By name: as users write it, by normtune, and the ways in which it is compiled.
CASES: dict[str, Case] = {
    "norm": (lambda x, z, w: _normed(x, w), lambda x, z, w: _ours(x, w), WAYS),
    "sum and norm": (_sum_and_norm(_normed), _sum_and_norm(_ours), WAYS),
    "fused_add_rms_norm": (
        lambda x, z, w: _sum_and_norm(_normed)(x, z, w),
        lambda x, z, w: normtune.fused_add_rms_norm(x, z, w, EPS, rounding="sum"),
        WAYS,
    ),
    "rms_norm_gated": (
        lambda x, z, w: _normed(x, w) * silu(z),
        lambda x, z, w: normtune.rms_norm_gated(x, w, z, EPS),
        WAYS,
    ),
    "FP8, scale a row": (_to_fp8(0), _quantized(scaling="row"), ("kernel",)),
    "FP8, scale a block": (_to_fp8(128), _quantized(scaling="block"), ("kernel",)),
    "qk_norm": (_heads, _our_heads, ("kernel",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here too")
    options = parser.parse_args()
    torch._dynamo.config.recompile_limit = 1000
    name = torch.cuda.get_device_name()
    print(f"{name}, bfloat16, torch {torch.__version__}, triton {triton.__version__}, us of forward / both:\n")
    print(f"| case | rows x hidden | inductor | {' | '.join(WAYS)} |\n|---|---|{'---:|' * (len(WAYS) + 1)}")
    cells = []
    for rows, hidden in SHAPES:
        for case, (plain, ours, ways) in CASES.items():
            given = [torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((rows, hidden),) * 2]
            given.append(torch.rand(hidden, device="cuda", dtype=torch.bfloat16) + 0.5)
            _compare(case, plain(*given), ours(*given))
            needs_gradients = case not in ("FP8, scale a row", "FP8, scale a block")
            times: dict[str, list[float]] = {"inductor": _times(plain, given, needs_gradients)}
            for way in ways:
                normtune.use(compiled=way)
                times[way] = _times(ours, given, needs_gradients)
            normtune.use()
            row = [
                " / ".join(f"{us:.1f}" for us in times[side]) if side in times else "" for side in ("inductor", *WAYS)
            ]
            print(f"| {case} | {rows} x {hidden} | {' | '.join(row)} |", flush=True)
            cells.append({"case": case, "rows": rows, "hidden": hidden, "us": times})
    if options.json:
        software = {"torch": torch.__version__, "triton": triton.__version__}
        options.json.write_text(json.dumps({"device": name, "software": software, "cells": cells}, indent=1) + "\n")


def _compare(case: str, wanted: Any, found: Any) -> None:
    """Raise unless results are close; of FP8, in relation to its spacing."""
    pairs = zip(*(one if isinstance(one, tuple) else (one,) for one in (wanted, found)), strict=True)
    for one, other in pairs:
        tolerance = 0.13 if one.dtype == FP8 else 0.05
        if not torch.allclose(one.float(), other.float().view(one.shape), rtol=tolerance, atol=tolerance):
            raise SystemExit(f"{case}: results differ by more than {tolerance}")


def _times(call: Callable[..., Any], given: list[Any], needs_gradients: bool) -> list[float]:
    """Microseconds of the kernels of a forward, and, where there are gradients, of a forward and backward."""
    torch._dynamo.reset()
    function = torch.compile(call, dynamic=False, fullgraph=True)
    times = [_kernels(lambda: function(*given))]
    if needs_gradients:
        leaves = [given[0].detach().requires_grad_(), given[1], given[2].detach().requires_grad_()]
        out = function(*leaves)
        gradients = [torch.randn_like(one) for one in (out if isinstance(out, tuple) else (out,))]

        def both() -> None:
            out = function(*leaves)
            torch.autograd.grad(out, (leaves[0], leaves[2]), gradients)

        times.append(_kernels(both))
    return times


def _kernels(call: Callable[[], Any]) -> float:
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    for _ in range(3):
        call()

    def after_flush() -> None:
        flush.zero_()
        call()

    times = kernel_times(after_flush, CALLS)
    # The flush is the one fill of all.
    each = [one for name, one in times.items() if "FillFunctor" not in name and len(one) >= CALLS]
    return sum(median(one) * len(one) / CALLS for one in each)


if __name__ == "__main__":
    main()
