"""lightllm's SiLU and product, and its embedding, as they are.

git clone https://github.com/ModelTC/lightllm   # commit fc72ffab
PYTHONPATH=lightllm/lightllm/models/llama/triton_kernel normtune inspect examples/libraries/lightllm.py
"""

from typing import Annotated, Any

import embedding
import silu_and_mul
import torch
from torch.nn import functional as F

from normtune import Config, kernel_operator


class WarpConfig(Config):
    """What the launchers leave to Triton, or fix; their blocks also stand in their grids, as numbers."""

    num_warps: Annotated[int, "warps a program."] = 4


@kernel_operator(
    config=WarpConfig,
    space={"num_warps": (4, 8, 16, 32)},
    buffers={"x": "input rows,2*hidden", "y": "output"},
    reference=lambda x: F.silu(x.chunk(2, 1)[0]) * x.chunk(2, 1)[1],
    tolerance={"y": 2.0},
)
def lightllm_silu_and_mul(x: Any, y: Any) -> None:
    """Tiles of 128 x 128."""
    silu_and_mul.silu_and_mul_fwd(x, y)


def inputs(problem: Any, generator: Any, device: Any) -> Any:
    """A matrix of normal values, and any of its rows."""
    count, dtype = problem.sizes["vocabulary"], getattr(torch, problem.dtype)
    weight = torch.randn((count, problem.hidden), generator=generator, device=device).to(dtype)
    return {"weight": weight, "ids": torch.randint(count, (problem.rows,), generator=generator, device=device)}


@kernel_operator(
    config=WarpConfig,
    space={"num_warps": (1, 2, 4, 8)},
    buffers={"ids": "input rows int64", "weight": "input vocabulary,hidden", "out": "output"},
    sizes={"vocabulary": (32768,)},
    inputs=inputs,
    reference=lambda ids, weight: weight[ids],
)
def lightllm_embedding(ids: Any, weight: Any, out: Any) -> None:
    """A program 64 rows, one after the other."""
    embedding.embedding(ids, weight, 0, weight.shape[0], out)
