"""Softmax over rows: a Triton kernel outside of normtune, swept and fitted.

normtune sweep --load examples/softmax.py --operator softmax --dtype bfloat16
normtune fit --load examples/softmax.py --operator softmax --out softmax_table.py
"""

from typing import Annotated, Any

import torch
import triton
import triton.language as tl

from normtune import Config, kernel_operator


class SoftmaxConfig(Config):
    """How softmax is launched."""

    block_row: Annotated[int, "rows a program holds at once."] = 1
    num_warps: Annotated[int, "warps a program."] = 4


@triton.jit
def _softmax_kernel(x_ptr, y_ptr, rows, hidden, BLOCK_ROW: tl.constexpr, BLOCK_COL: tl.constexpr):
    o_row = tl.program_id(0).to(tl.int64) * BLOCK_ROW + tl.arange(0, BLOCK_ROW)
    o_col = tl.arange(0, BLOCK_COL)
    mask = (o_row < rows)[:, None] & (o_col < hidden)[None, :]
    offsets = o_row[:, None] * hidden + o_col[None, :]
    b_x = tl.load(x_ptr + offsets, mask=mask, other=float("-inf")).to(tl.float32)
    b_x = tl.where((o_row < rows)[:, None], b_x, 0.0)
    b_exp = tl.exp(b_x - tl.max(b_x, axis=1)[:, None])
    tl.store(y_ptr + offsets, b_exp / tl.sum(b_exp, axis=1)[:, None], mask=mask)


def _elements(config: Config, problem: Any, target: Any) -> float:
    """Elements per thread."""
    return config.block_row * triton.next_power_of_2(problem.hidden) / (config.num_warps * target.warp_size)


@kernel_operator(
    config=SoftmaxConfig,
    space={"block_row": (1, 2, 4, 8, 16, 32), "num_warps": (1, 2, 4, 8, 16, 32)},
    buffers={"x": "input", "y": "output"},
    reference=lambda x: torch.softmax(x, dim=1),
    implementations={"torch": lambda x: torch.softmax(x, dim=1)},
    legal=lambda *given: _elements(*given) <= 64,
    leaves_out=lambda *given: _elements(*given) < 1,
    max_hidden=32768,
)
def softmax(x: torch.Tensor, y: torch.Tensor, config: SoftmaxConfig) -> None:
    """Write the softmax of each row of x, (rows, hidden) and contiguous, to y."""
    rows, hidden = x.shape
    _softmax_kernel[(triton.cdiv(rows, config.block_row),)](
        x,
        y,
        rows,
        hidden,
        BLOCK_ROW=config.block_row,
        BLOCK_COL=triton.next_power_of_2(hidden),
        num_warps=config.num_warps,
    )
