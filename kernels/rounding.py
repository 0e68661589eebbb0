"""Tolerance of a computed output against the exact one.

In: float64 tensors. Out: `Expected`, and the distance of neighbouring numbers of a dtype.
"""

from typing import NamedTuple

import torch
from torch import Tensor

FLOAT32_EPSILON = 2.0**-23
# Units in the last place of float32 that rstd may be off, which grow as the root of the sums a lane: on an H200 128
# reached 4.3 and 384 reached 7.3, so the longest chain, of 65536 columns by 32, reaches 17.
RSTD_UNITS = 20
_BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float8_e4m3fn: 4, torch.float8_e5m2: 3}
_BITS |= {torch.float8_e4m3fnuz: 4, torch.float8_e5m2fnuz: 3}
_LEAST_EXPONENT = {torch.bfloat16: -126, torch.float16: -14, torch.float32: -126, torch.float8_e4m3fn: -6}
_LEAST_EXPONENT |= {torch.float8_e5m2: -14, torch.float8_e4m3fnuz: -7, torch.float8_e5m2fnuz: -15}


class Expected(NamedTuple):
    """The exact value of an output and its tolerance, both float64 and of the output's shape."""

    value: Tensor
    tolerance: Tensor


def unit_in_last_place(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of neighbouring numbers of `dtype` at `value` (float64); below the least normal one, that of it."""
    exponent = torch.frexp(value).exponent.to(torch.float64) - 1
    least = _LEAST_EXPONENT[dtype]
    exponent = exponent.clamp_(min=least).masked_fill_(value == 0, least)  # frexp gives zero the exponent 0
    return torch.exp2(exponent - (_BITS[dtype] - 1))
