"""An operator whose function is a launcher as libraries write it: it allocates, and calls torch beside its kernel."""

from typing import Annotated

import torch
import triton
import triton.language as tl

from normtune import Config, kernel_operator


class TileConfig(Config):
    """How the doubling is launched."""

    BLOCK: Annotated[int, "elements a program."] = 64
    num_warps: Annotated[int, "warps a program."] = 4


@triton.autotune(configs=[triton.Config({"BLOCK": 128}, num_warps=8)], key=["count"])
@triton.heuristics({"EVEN": lambda args: args["count"] % args["BLOCK"] == 0})
@triton.jit
def _double_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    if EVEN:
        tl.store(y_ptr + offsets, tl.load(x_ptr + offsets) * 2)
    else:
        tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


@kernel_operator(
    config=TileConfig,
    space={"BLOCK": (64, 256), "num_warps": (1, 4)},
    buffers={"x": "input", "y": "output", "total": "output hidden float32"},
    reference=lambda x: (2 * x, 2 * x.sum(0)),
    implementations={"torch": lambda x: (2 * x, 2 * x.sum(0, dtype=torch.float32))},
)
def doubled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 2 x and the sums of its columns."""
    rows = x.view(-1, x.shape[-1])
    y = torch.empty_like(rows)
    _double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](rows, y, x.numel())
    return y.view(x.shape), y.sum(0, dtype=torch.float32)
