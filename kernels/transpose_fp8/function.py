"""The public function `transpose_fp8`.

In: a tensor. Out: its transpose in new memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normtune.kernels.calling.arguments import check_kind
from normtune.kernels.calling.fallback import transposed
from normtune.kernels.calling.family import OpFamily
from normtune.kernels.calling.operation import Operation
from normtune.kernels.transpose_fp8 import operator as spec

BYTES = getattr(torch, spec.DTYPE)


class _Composed:
    """The formula of the operation."""

    @staticmethod
    def forward(x: Tensor) -> list[Tensor]:
        """The transposed matrix, contiguous."""
        return [transposed(x)]


def _checks(tensors: Sequence[Any]) -> None:
    x = tensors[0]
    if x.dtype != BYTES:
        raise ValueError(f"x is {x.dtype}: expected {BYTES}, as normtune.transpose_fp8 views any dtype of 8 bits")
    if x.dim() != 2:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (rows, columns)")


_OPERATION = Operation(
    name="transpose_fp8",
    forward=spec.transpose_fp8,
    formula=_Composed,
    defaults={},
    x_dtypes={BYTES: "bfloat16"},
    checks=_checks,
)
TRANSPOSE = OpFamily("transpose_fp8", ("x",), {}, {}, lambda: _OPERATION)


def transpose_fp8(x: Tensor) -> Tensor:
    """The transpose of an FP8 matrix in new memory, as `x.t().contiguous()`.

    The kernel runs on GPUs, for up to 2^30 rows of 1 to 2^20 bytes; other inputs use torch's operations.

    Args:
        x: (rows, columns) of any dtype of 8 bits, any strides.

    Returns:
        (columns, rows), contiguous, of x's dtype. It has no gradient.

    Raises:
        TypeError: x is not a tensor.
        ValueError: x is not a dense matrix of a dtype of 8 bits. Nothing was launched.
    """
    if has_torch_function_variadic(x):
        result: Tensor = handle_torch_function(transpose_fp8, (x,), x)
        return result
    check_kind("x", x)
    if x.dtype.itemsize != 1 or x.dtype == torch.bool or x.is_quantized:
        raise ValueError(f"x is {x.dtype}: expected a dtype of 8 bits, such as torch.float8_e4m3fn or torch.uint8")
    if x.layout != torch.strided:
        raise ValueError(f"x has the layout {x.layout}: expected a dense tensor, call x.to_dense()")
    # Every config gives the same bits in every batch.
    (y,) = TRANSPOSE.call((), {"x": x.view(BYTES)}, {}, False)
    return y.view(x.dtype)
