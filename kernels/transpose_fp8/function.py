"""The public function that transposes a matrix of bytes.

In: a tensor. Out: its transpose in memory of its own.
"""

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normtune.kernels.calling.arguments import check_kind
from normtune.kernels.transpose_fp8.operation import BYTES, TRANSPOSE


def transpose_fp8(x: Tensor) -> Tensor:
    """The transpose of an FP8 matrix in memory of its own, as `x.t().contiguous()`.

    The kernel runs on GPUs, for up to 2^30 rows of 1 to 2^20 bytes; elsewhere torch's operations do the same.

    Args:
        x: (rows, columns) of any dtype of 8 bits, any strides.

    Returns:
        (columns, rows), contiguous, of x's dtype. It has no gradient.

    Raises:
        TypeError: x is not a tensor.
        ValueError: it is not a dense matrix of 8 bits an element. Nothing was launched.
    """
    if has_torch_function_variadic(x):
        found: Tensor = handle_torch_function(transpose_fp8, (x,), x)
        return found
    check_kind("x", x)
    if x.dtype.itemsize != 1 or x.dtype == torch.bool or x.is_quantized:
        raise ValueError(f"x is {x.dtype}: expected a dtype of 8 bits, such as torch.float8_e4m3fn or torch.uint8")
    if x.layout != torch.strided:
        raise ValueError(f"x has the layout {x.layout}: expected a dense tensor, call x.to_dense()")
    # No batch changes a bit of it, so every config serves.
    return TRANSPOSE.call((), {"x": x.view(BYTES)}, {}, False)["y"].view(x.dtype)
