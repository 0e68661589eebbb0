"""The float64 reference of LayerNorm's forward, and inputs for its checks.

In: a problem, a generator and tensors. Out: inputs, and for each output the exact value and its tolerance.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from normtune.kernels.problem import Problem
from normtune.kernels.rounding import FLOAT32_EPSILON, RSTD_UNITS, Expected, unit_in_last_place


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """Fresh `x` (rows, hidden), `weight` and `bias` (hidden,) of the problem's dtype, from the generator of `device`.

    If `hostile`, rows have equal, tiny, far or outlier values, in turn from row 1 on.
    """
    shape = problem.rows, problem.hidden
    x, weight, bias = (torch.randn(size, generator=generator, device=device) for size in (shape, shape[1:], shape[1:]))
    if hostile:
        x[1::5] = 3.0
        x[2::5] *= 1e-3
        x[3::5] += 1e3  # float32 has no digits of mean(x^2) - mean^2 left
        x[4::5, problem.hidden // 3] = 6e4
    dtype = getattr(torch, problem.dtype)
    return {"x": x.to(dtype), "weight": (1 + 0.5 * weight).to(dtype), "bias": bias.to(dtype)}


def reference(problem: Problem, tensors: Mapping[str, Tensor], eps: float) -> dict[str, Expected]:
    """Exact `y`, `mean` and `rstd` of the rounded inputs, in float64.

    A mean is off by the rounding of its sum. That shifts a row, and adds its square to the variance.
    """
    x, weight, bias = (tensors[name].double() for name in ("x", "weight", "bias"))
    mean = x.mean(dim=1)
    centered = x - mean[:, None]
    square = centered.square().mean(dim=1) + eps
    rstd = torch.rsqrt(square)
    product = centered * rstd[:, None] * weight
    y = product + bias
    shift = 8 * FLOAT32_EPSILON * x.abs().mean(dim=1)
    rstd_off = RSTD_UNITS * unit_in_last_place(rstd, torch.float32) + rstd * shift.square() / square
    off = (product.abs() * rstd_off[:, None] / rstd[:, None]) + (shift * rstd)[:, None] * weight.abs()
    rounding = unit_in_last_place(y, tensors["x"].dtype) + 8 * FLOAT32_EPSILON * (product.abs() + bias.abs())
    return {
        "y": Expected(y, off + rounding),
        "mean": Expected(mean, shift + unit_in_last_place(mean, torch.float32)),
        "rstd": Expected(rstd, rstd_off),
    }
