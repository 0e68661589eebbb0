"""The batch-invariant log-softmax and mean of Thinking Machines, as they are.

git clone https://github.com/thinking-machines-lab/batch_invariant_ops   # commit f22b1fb
PYTHONPATH=batch_invariant_ops normtune inspect examples/libraries/batch_invariant_ops.py
"""

from typing import Annotated, Any

import torch
from batch_invariant_ops import batch_invariant_ops as ops

from normtune import Config, kernel_operator


class BlockConfig(Config):
    """What both launchers fix at 1024 elements and Triton's own warps."""

    BLOCK_SIZE: Annotated[int, "elements a program holds at once."] = 1024
    num_warps: Annotated[int, "warps a program."] = 4


ARGUMENTS = {"config": BlockConfig, "space": {"BLOCK_SIZE": (512, 1024, 2048, 4096, 8192), "num_warps": (1, 2, 4, 8)}}


@kernel_operator(**ARGUMENTS, buffers={"x": "input", "y": "output"}, reference=lambda x: torch.log_softmax(x, 1))
def batch_invariant_log_softmax(x: Any) -> Any:
    """A loop over the row, three times."""
    return ops.log_softmax(x)


@kernel_operator(**ARGUMENTS, buffers={"x": "input", "y": "output rows"}, reference=lambda x: x.mean(1))
def batch_invariant_mean(x: Any) -> Any:
    """Of rows; its kernel is given BLOCK_SIZE by position."""
    return ops.mean_dim(x, 1)
