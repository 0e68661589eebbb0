"""The FP8 quantization of DeepSeek-V3's inference code, as it is: 128 columns a scale.

git clone https://github.com/deepseek-ai/DeepSeek-V3   # commit 9b4e978
PYTHONPATH=DeepSeek-V3/inference normtune inspect examples/libraries/deepseek.py
"""

from typing import Annotated, Any

import kernel

from normtune import Config, kernel_operator


class WarpConfig(Config):
    """The launcher leaves warps to Triton, and its block is the group of a scale."""

    num_warps: Annotated[int, "warps a program."] = 4


def quantized(x: Any) -> Any:
    """Values and scales; each is rounded once."""
    scale = x.unflatten(1, (-1, 128)).abs().amax(2).clamp(min=1e-4) / 448
    return x / scale.repeat_interleave(128, 1), scale


@kernel_operator(
    config=WarpConfig,
    space={"num_warps": (1, 2, 4, 8)},
    buffers={"x": "input", "y": "output float8_e4m3fn", "scale": "output rows,hidden/128 float32"},
    reference=quantized,
)
def deepseek_act_quant(x: Any) -> Any:
    """A program a group."""
    return kernel.act_quant(x)
