"""The transposition as an operation.

In: nothing. Out: `TRANSPOSE`, a family of one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.forward_only import Family
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.wide import transposed
from normtune.kernels.transpose_fp8.spec import DTYPE, transpose_fp8

BYTES = getattr(torch, DTYPE)


class _Composed:
    """The formula."""

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
    forward=transpose_fp8,
    formula=_Composed,
    defaults={},
    x_dtypes={BYTES: "bfloat16"},
    checks=_checks,
)
TRANSPOSE = Family("transpose_fp8", ("x",), {}, (), lambda: _OPERATION)
