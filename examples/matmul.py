"""A product of matrices, whose tables have three sizes.

normtune sweep --load examples/matmul.py --operator matmul --dtype bfloat16
normtune fit --load examples/matmul.py --operator matmul --out matmul_table.py
"""

from typing import Annotated, Any

import torch
import triton
import triton.language as tl

from normtune import Config, kernel_operator


class MatmulConfig(Config):
    """How the product is launched."""

    BLOCK_M: Annotated[int, "rows of the product a program."] = 64
    BLOCK_N: Annotated[int, "columns of the product a program."] = 64
    BLOCK_K: Annotated[int, "terms of its sums at once."] = 64
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[int, "loads in flight."] = 3


@triton.jit
def _matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    b_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        terms = start + tl.arange(0, BLOCK_K)
        in_a, in_b = (rows[:, None] < m) & (terms < k), (terms[:, None] < k) & (columns < n)
        b_a = tl.load(a_ptr + rows[:, None].to(tl.int64) * k + terms, mask=in_a, other=0.0)
        b_b = tl.load(b_ptr + terms[:, None].to(tl.int64) * n + columns, mask=in_b, other=0.0)
        b_sum = tl.dot(b_a, b_b, b_sum)
    in_c = (rows[:, None] < m) & (columns < n)
    tl.store(c_ptr + rows[:, None].to(tl.int64) * n + columns, b_sum.to(c_ptr.dtype.element_ty), mask=in_c)


def is_worth_it(config: Any, problem: Any, target: Any) -> bool:
    """Whether a sweep times a config: no more than 128 accumulators a thread, no tile of mostly padding."""
    tile, threads = config.BLOCK_M * config.BLOCK_N, 32 * config.num_warps
    return tile <= 128 * threads and max(16, 2 * problem.sizes["m"]) >= config.BLOCK_M


@kernel_operator(
    config=MatmulConfig,
    space={
        **{"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (32, 64, 128)},
        **{"num_warps": (4, 8), "num_stages": (2, 3, 4)},
    },
    axes={
        **{"m": (1, 16, 48, 128, 384, 1024, 4096), "n": (1024, 4096, 8192, 14336)},
        **{"k": (1024, 4096, 8192, 14336)},
    },
    buffers={"a": "input m,k", "b": "input k,n", "c": "output m,n"},
    reference=lambda a, b: a @ b,
    derived="m * n",
    leaves_out=lambda *given: not is_worth_it(*given),
    dtypes=("bfloat16", "float16"),
)
def matmul(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, config: MatmulConfig) -> None:
    """Write a @ b to c."""
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, config.BLOCK_M), triton.cdiv(n, config.BLOCK_N))
    _matmul_kernel[grid](a, b, c, m, n, k, **config._asdict())
