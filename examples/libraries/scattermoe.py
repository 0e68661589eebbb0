"""ScatterMoE's gather of rows in the order of their experts, as it is: autotuned, in torch.library.custom_op.

git clone https://github.com/shawntan/scattermoe   # commit 47b5e15
PYTHONPATH=scattermoe normtune inspect examples/libraries/scattermoe.py
"""

from typing import Annotated, Any

import torch
from scattermoe.kernels import ops

from normtune import Config, kernel_operator


class TileConfig(Config):
    """What its one config of triton.autotune fixes."""

    BLOCK_N: Annotated[int, "rows a program."] = 256
    BLOCK_K: Annotated[int, "columns a program holds at once."] = 128
    num_warps: Annotated[int, "warps a program."] = 4


def inputs(problem: Any, generator: Any, device: Any) -> Any:
    """Normal values, in any order."""
    x = torch.randn((problem.rows, problem.hidden), generator=generator, device=device)
    order = torch.randperm(problem.rows, generator=generator, device=device)
    return {"x": x.to(getattr(torch, problem.dtype)), "order": order}


@kernel_operator(
    config=TileConfig,
    space={"BLOCK_N": (16, 64, 256), "BLOCK_K": (64, 128, 256), "num_warps": (2, 4, 8)},
    buffers={"x": "input", "order": "input rows int64", "y": "output"},
    inputs=inputs,
    reference=lambda x, order: x[order],
)
def scattermoe_group(x: Any, order: Any) -> Any:
    """A program BLOCK_N rows."""
    return ops.group(x, order)
