"""The cross entropy and the rotary embedding of FlashAttention, as they are.

git clone https://github.com/Dao-AILab/flash-attention   # commit 0251105a
PYTHONPATH=flash-attention/flash_attn/ops/triton normtune inspect examples/libraries/flash_attention.py
"""

from typing import Annotated, Any

import cross_entropy
import rotary
import torch
from torch.nn import functional as F

from normtune import Config, kernel_operator


class BlockConfig(Config):
    """What the launcher computes from the number of classes."""

    BLOCK_SIZE: Annotated[int, "logits a program holds at once."] = 4096
    num_warps: Annotated[int, "warps a program."] = 4


TURNS = {"cos": "input rows,hidden/2", "sin": "input rows,hidden/2"}


class TileConfig(Config):
    """What the launcher fixes."""

    BLOCK_M: Annotated[int, "positions a program."] = 8
    num_warps: Annotated[int, "warps a program."] = 4


def inputs(problem: Any, generator: Any, device: Any) -> Any:
    """Normal logits, and labels of which every fifth is to be ignored."""
    logits = torch.randn((problem.rows, problem.hidden), generator=generator, device=device)
    labels = torch.randint(problem.hidden, (problem.rows,), generator=generator, device=device)
    labels[::5] = -100
    return {"logits": logits.to(getattr(torch, problem.dtype)), "labels": labels}


@kernel_operator(
    config=BlockConfig,
    space={"BLOCK_SIZE": (1024, 4096, 16384), "num_warps": (4, 8, 16)},
    buffers={"logits": "input", "labels": "input rows int64", "losses": "output rows float32"},
    inputs=inputs,
    reference=lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"),
)
def flash_attn_cross_entropy(logits: Any, labels: Any) -> Any:
    """The forward of an autograd function."""
    return cross_entropy.cross_entropy_loss(logits, labels)[0]


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    """NeoX pairs."""
    (first, second), cos, sin = x.chunk(2, 2), cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], 2)


@kernel_operator(
    config=TileConfig,
    space={"BLOCK_M": (4, 8, 16), "num_warps": (2, 4, 8)},
    buffers={"x": "input rows,heads,hidden", **TURNS, "y": "output rows,heads,hidden"},
    sizes={"heads": (8, 32)},
    reference=rotated,
    max_hidden=256,
)
def flash_attn_rotary(x: Any, cos: Any, sin: Any) -> Any:
    """One sequence; the kernel is in torch.library.wrap_triton."""
    return rotary.apply_rotary(x[None], cos, sin)[0]
