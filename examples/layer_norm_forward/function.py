"""The public function `layer_norm`, and its formula in torch's operations."""

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from layer_norm_forward.operator import layer_norm_forward
from normtune.kernels.calling.fallback import compute_dtype
from normtune.kernels.calling.family import OpFamily
from normtune.kernels.calling.operation import Operation


class _Decomposition:
    """The formula of the operation."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> list[Tensor]:
        """The rows y, of x's shape and dtype, and their mean and rstd, (rows,) float32."""
        wide = x.to(compute_dtype(x))
        y, *statistics = torch.native_layer_norm(wide, x.shape[-1:], weight.to(wide.dtype), bias.to(wide.dtype), eps)
        return [y.to(x.dtype), *(each.reshape(-1).float() for each in statistics)]


_OPERATION = Operation(name="layer_norm", forward=layer_norm_forward, formula=_Decomposition, defaults={"eps": 1e-5})
LAYER_NORM = OpFamily("layer_norm", ("x", "weight", "bias"), {"eps": 1e-5}, {}, lambda: _OPERATION)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm over the last dimension, without gradients: for inference, or inside of an autograd function.

    y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps), var = mean((x - mean)^2), all in float32. The
    kernel takes bfloat16, float16 and float32 on a GPU, rows of 1 to 65536 elements and up to 2^30 rows. The table in
    use has its config. All other inputs are composed of torch's operations, float64 in float64.

    Args:
        x: (..., hidden), a dense floating-point tensor of 16 to 64 bits, any strides.
        weight: (hidden,), of any such dtype, on x's device.
        bias: as weight.
        eps: added to the variance, less than 1.

    Returns:
        y, of x's shape and dtype, contiguous; mean and rstd, of x's shape without the last dimension, float32. They
        have no graph, whatever needs gradients.

    Raises:
        TypeError: x, weight or bias is not a tensor, or eps not a number.
        ValueError: another argument is wrong; the message names it and its value. Nothing was launched.
    """
    if has_torch_function_variadic(x, weight, bias):
        return handle_torch_function(layer_norm, (x, weight, bias), x, weight, bias, eps)
    y, mean, rstd = LAYER_NORM.call((), {"x": x, "weight": weight, "bias": bias}, {"eps": eps}, None)
    return y, mean.view(x.shape[:-1]), rstd.view(x.shape[:-1])
