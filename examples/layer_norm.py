"""LayerNorm with its statistics, swept and fitted: a kernel with a weight, a bias, a scalar and three outputs.

normtune sweep --load examples/layer_norm.py --operator layer_norm --dtype bfloat16
normtune fit --load examples/layer_norm.py --operator layer_norm --out layer_norm_table.py
"""

from typing import Annotated, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from normtune import Config, kernel_operator


class LayerNormConfig(Config):
    """How LayerNorm is launched."""

    block_row: Annotated[int, "rows a program holds at once."] = 1
    num_warps: Annotated[int, "warps a program."] = 4


@triton.jit
def _layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, rows, hidden, eps,
    BLOCK_ROW: tl.constexpr, BLOCK_COL: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * BLOCK_ROW + tl.arange(0, BLOCK_ROW)
    o_col = tl.arange(0, BLOCK_COL)
    m_row, m_col = o_row < rows, o_col < hidden
    mask = m_row[:, None] & m_col[None, :]
    offsets = o_row[:, None] * hidden + o_col[None, :]
    b_x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    b_mean = tl.sum(b_x, axis=1) / hidden
    b_x = tl.where(mask, b_x - b_mean[:, None], 0.0)
    b_rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / hidden + eps)
    b_weight = tl.load(weight_ptr + o_col, mask=m_col, other=0.0).to(tl.float32)
    b_bias = tl.load(bias_ptr + o_col, mask=m_col, other=0.0).to(tl.float32)
    tl.store(y_ptr + offsets, b_x * b_rstd[:, None] * b_weight[None, :] + b_bias[None, :], mask=mask)
    tl.store(mean_ptr + o_row, b_mean, mask=m_row)
    tl.store(rstd_ptr + o_row, b_rstd, mask=m_row)


def _elements(config: Config, problem: Any, target: Any) -> float:
    """Elements per thread."""
    return config.block_row * triton.next_power_of_2(problem.hidden) / (config.num_warps * target.warp_size)


def _exact(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(dim=1)
    rstd = torch.rsqrt((x - mean[:, None]).square().mean(dim=1) + eps)
    return (x - mean[:, None]) * rstd[:, None] * weight + bias, mean, rstd


@kernel_operator(
    config=LayerNormConfig,
    space={"block_row": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8, 16, 32)},
    buffers={"x": "input", "weight": "weight", "bias": "weight", "y": "output"}
    | dict.fromkeys(("mean", "rstd"), "output rows float32"),
    scalars={"eps": 1e-5},
    reference=_exact,
    legal=lambda *given: _elements(*given) <= 64,
    leaves_out=lambda *given: _elements(*given) < 1,
    max_hidden=32768,
)
def layer_norm(
    x: Any, weight: Any, bias: Any, y: Any, mean: Any, rstd: Any, eps: float, config: LayerNormConfig
) -> None:
    """Write the LayerNorm of each row of x, (rows, hidden) and contiguous, to y; also mean and 1 / deviation."""
    rows, hidden = x.shape
    _layer_norm_kernel[(triton.cdiv(rows, config.block_row),)](
        *(x, weight, bias, y, mean, rstd, rows, hidden, eps),
        BLOCK_ROW=config.block_row,
        BLOCK_COL=triton.next_power_of_2(hidden),
        num_warps=config.num_warps,
    )
