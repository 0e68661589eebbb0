"""Every public function on odd shapes, forward and backward, for a tool that watches memory accesses.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python benchmarks/memcheck.py

Without torch's cache each tensor is an allocation of its own, so that an access beside it is an error. Hidden sizes
leave masked columns, rows leave masked rows, and strides leave gaps. Checks that results are finite; `pytest -m gpu`
checks them against references.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

import normtune

SHAPES = ((1, 64), (3, 193), (37, 1000), (130, 2880), (5, 8200), (2, 20001))
DTYPES = (torch.bfloat16, torch.float32)


def made(*shape: int, dtype: torch.dtype, gap: int = 0, needs: bool = True) -> torch.Tensor:
    """A tensor of random numbers whose rows lie `gap` elements apart."""
    whole = torch.randn(*shape[:-1], shape[-1] + gap, device="cuda").to(dtype)
    return whole[..., : shape[-1]].requires_grad_(needs)


def calls(rows: int, hidden: int, dtype: torch.dtype, gap: int) -> Iterator[tuple[str, Any]]:
    make = partial(made, dtype=dtype, gap=gap)
    weight = made(hidden, dtype=dtype)
    x = make(rows, hidden)
    yield "rms_norm", lambda: normtune.rms_norm(x, weight)
    yield "fused_add_rms_norm", lambda: normtune.fused_add_rms_norm(make(rows, hidden), make(rows, hidden), weight)
    for first in (True, False):
        z = make(rows, hidden)
        yield (
            f"rms_norm_gated {first}",
            lambda z=z, first=first: normtune.rms_norm_gated(x, weight, z, norm_before_gate=first),
        )
    still, fixed = make(rows, hidden, needs=False), weight.detach()
    one = torch.ones(1, device="cuda")
    quantize = partial(normtune.rms_norm_quantize_fp8, still, fixed)
    yield "static", lambda: quantize(scale=one, return_amax=True, return_y=True)
    yield "transpose", lambda: quantize(scale=one, return_transpose=True)
    yield "row", lambda: quantize(scaling="row", residual=make(rows, hidden, needs=False))
    for layout in ("row_major", "column_major"):
        yield f"block {layout}", lambda layout=layout: quantize(scaling="block", layout=layout)
    if hidden <= 1000:
        heads = make(rows, 7 * 64)
        of_head, cos = made(64, dtype=dtype), made(rows, 32, dtype=torch.float32, needs=False)
        yield "qk_norm", lambda: normtune.qk_norm(heads, of_head, of_head, 4, 2, cos=cos, sin=cos)


def main() -> None:
    count = 0
    for (rows, hidden), dtype, gap in product(SHAPES, DTYPES, (0, 3)):
        for name, call in calls(rows, hidden, dtype, gap):
            found = call()
            outputs = [one for one in (found if isinstance(found, tuple) else (found,)) if one is not None]
            if needing := [one for one in outputs if one.requires_grad]:
                torch.autograd.backward(needing, [torch.randn_like(one) for one in needing])
            torch.cuda.synchronize()
            finite = all(bool(torch.isfinite(one.float()).all()) for one in outputs)
            assert finite, f"{name} {rows} x {hidden} {dtype} is not finite"
            count += 1
    transposed = normtune.transpose_fp8(torch.randn(37, 1000, device="cuda").to(torch.float8_e4m3fn))
    torch.cuda.synchronize()
    print(f"{count + 1} calls, {tuple(transposed.shape)}")


if __name__ == "__main__":
    main()
