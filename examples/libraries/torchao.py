"""The FP8 quantization of torchao's blockwise training, as it is: autotuned, in torch.library.triton_op.

git clone https://github.com/pytorch/ao   # commit 36027d82d
PYTHONPATH=ao normtune inspect examples/libraries/torchao.py
"""

from typing import Any

from torchao.prototype.blockwise_fp8_training import kernels

from normtune import from_autotuned, kernel_operator


def quantized(x: Any) -> Any:
    """Values, and the scales of 128 columns each."""
    scale = x.unflatten(1, (-1, 128)).abs().amax(2).clamp(min=kernels.EPS) / 448
    return x / scale.repeat_interleave(128, 1), scale


@kernel_operator(
    **from_autotuned(kernels.triton_fp8_blockwise_act_quant_lhs_kernel),
    buffers={"x": "input", "y": "output float8_e4m3fn", "scale": "output rows,hidden/128 float32"},
    reference=quantized,
)
def torchao_act_quant(x: Any) -> Any:
    """Scales are stored by columns."""
    return kernels.triton_fp8_blockwise_act_quant_lhs(x)
