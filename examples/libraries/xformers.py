"""xFormers' RMSNorm, and the one that adds in place, as they are.

git clone https://github.com/facebookresearch/xformers   # commit ca6d2aa0
PYTHONPATH=xformers normtune inspect examples/libraries/xformers.py
"""

from typing import Annotated, Any

from torch.nn import functional as F
from xformers.ops._triton import rmsnorm_kernels

from normtune import Config, kernel_operator


class BlockConfig(Config):
    """What both launchers compute from the length of a row."""

    BLOCK_SIZE: Annotated[int, "elements a program holds at once."] = 1024
    num_warps: Annotated[int, "warps a program."] = 4


ARGUMENTS = {
    "config": BlockConfig,
    "space": {"BLOCK_SIZE": (512, 1024, 2048, 4096, 8192), "num_warps": (1, 2, 4, 8, 16)},
    "scalars": {"eps": 1e-6},
}


@kernel_operator(
    **ARGUMENTS,
    buffers={"x": "input", "w": "weight", "y": "output"},
    reference=lambda x, w, eps: F.rms_norm(x, w.shape, w, eps),
)
def xformers_rms_norm(x: Any, w: Any, eps: float) -> Any:
    """A loop over the row, twice."""
    return rmsnorm_kernels._rms_norm_forward(x, w, eps)


def added(x: Any, y: Any, w: Any, eps: float, dtype: Any) -> Any:
    """The sum, and the norm of the rounded sum by the length of the exact one."""
    total = x + y
    return total, total.to(dtype).double() * (total.square().mean(1, keepdim=True) + eps).rsqrt() * w


@kernel_operator(**ARGUMENTS, buffers={"x": "in-out", "y": "input", "w": "weight", "out": "output"}, reference=added)
def xformers_rms_norm_add(x: Any, y: Any, w: Any, eps: float) -> Any:
    """Writes x + y to x, and returns its norm."""
    return rmsnorm_kernels._rms_norm_add_forward(x, y, w, eps)
