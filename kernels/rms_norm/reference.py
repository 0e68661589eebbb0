"""The float64 reference of the RMSNorm operators, and inputs for their checks.

In: a problem, a generator and tensors. Out: inputs, and for each output the exact value and its tolerance. The bounds
are those of docs/measuring.md, "The gate".
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from normtune.kernels.mode import Dweight, Product, Rstd, Statistics
from normtune.kernels.problem import Problem
from normtune.kernels.rounding import FLOAT32_EPSILON, RSTD_UNITS, Expected, unit_in_last_place


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """Fresh inputs of a problem on `device`.

    Args:
        problem: of either operator.
        generator: of that device.
        device: of the tensors.
        hostile: include rows of zeros, tiny, huge and outlier values, in turn from row 0 on.

    Returns:
        `x` (rows, hidden), `weight` (hidden,), and for the backward also `dy` (rows, hidden) and `rstd` (rows,).
    """
    dtype = getattr(torch, problem.dtype)
    shape = (problem.rows, problem.hidden)

    def normal(*extents: int) -> Tensor:
        return torch.randn(extents, generator=generator, device=device, dtype=torch.float32)

    x = normal(*shape)
    if hostile:
        _make_hostile(x, dtype)
    tensors = {"x": x.to(dtype), "weight": (1 + 0.5 * normal(problem.hidden)).to(dtype)}
    if problem.operator == "rms_norm_backward":
        tensors["dy"] = normal(*shape).to(dtype)
        exact = tensors["x"].double()
        tensors["rstd"] = torch.rsqrt(exact.square().mean(dim=1) + 1e-6).float()
    return tensors


def _make_hostile(x: Tensor, dtype: torch.dtype) -> None:
    """Zeros, 1e-3, 1e4 and one outlier, in rows 1, 2, 3, 4 of every five; the last row is one of them too."""
    largest = torch.finfo(dtype).max
    x[1::5] = 0.0
    x[2::5] *= 1e-3
    x[3::5] = (x[3::5] * 1e4).clamp_(-largest, largest)
    x[4::5, x.shape[1] // 3] = 6e4 if dtype == torch.float16 else 1e10
    if x.shape[0] == 1:
        x[0, x.shape[1] // 3] = 100.0


def reference(problem: Problem, tensors: Mapping[str, Tensor], eps: float, offset: float) -> dict[str, Expected]:
    """Exact outputs of a problem, from the rounded inputs, in float64.

    Args:
        problem: of either operator; its variant decides which outputs exist.
        tensors: from `inputs`.
        eps: added to the mean square (forward only).
        offset: added to the weight.

    Returns:
        Forward `y` and `rstd`, backward `dx` and `dweight`.
    """
    dtype = tensors["x"].dtype
    x = tensors["x"].double()
    weight = tensors["weight"].double() + offset
    if problem.operator == "rms_norm_forward":
        return normalized(problem, x, tensors["weight"], eps, offset, dtype)
    dy, rstd = tensors["dy"].double(), tensors["rstd"].double()[:, None]
    xhat = x * rstd
    gradient = dy * weight
    product = gradient * xhat
    dx = rstd * (gradient - xhat * product.mean(dim=1, keepdim=True))
    terms = rstd.abs() * (gradient.abs() + xhat.abs() * product.abs().mean(dim=1, keepdim=True))
    expected = {"dx": Expected(dx, unit_in_last_place(dx, dtype) + 8 * FLOAT32_EPSILON * terms)}
    if Dweight.of(problem) is Dweight.COMPUTED:
        part = dy * xhat
        if Product.of(problem) is Product.ROUNDED:  # each factor is a float32, as in the kernels, so these are exact
            rounded = (tensors["x"].float() * tensors["rstd"][:, None]).to(dtype).float()
            part = (tensors["dy"].float() * rounded).to(dtype).double()
        dweight = part.sum(dim=0)
        depth = 8 + max(problem.rows - 1, 0).bit_length()
        tolerance = unit_in_last_place(dweight, tensors["weight"].dtype) + FLOAT32_EPSILON * depth * part.abs().sum(
            dim=0
        )
        expected["dweight"] = Expected(dweight, tolerance)
    return expected


def normalized(
    problem: Problem, x: Tensor, weight: Tensor, eps: float, offset: float, dtype: torch.dtype
) -> dict[str, Expected]:
    """The outputs `y` and `rstd` of rows, of which `x` (rows, hidden) float64 is normalized and y is of `dtype`.

    The variant of the problem decides which outputs exist and what is rounded.
    """
    square, scale = x.square(), weight.double() + offset
    if Statistics.of(problem) is Statistics.ROUNDED:
        square = x.float().square().to(dtype).double()
        eps, offset = (torch.tensor(value, dtype=torch.float32).to(dtype).item() for value in (eps, offset))
        scale = (weight.float() + offset).to(dtype).double()
    rstd = torch.rsqrt(square.mean(dim=1) + eps)
    xhat = x * rstd[:, None]
    y = xhat * scale
    tolerance = unit_in_last_place(y, dtype) + 8 * FLOAT32_EPSILON * y.abs()
    if Product.of(problem) is Product.ROUNDED:
        tolerance = tolerance + unit_in_last_place(xhat, dtype) * scale.abs()
    expected = {"y": Expected(y, tolerance)}
    if Rstd.of(problem) is Rstd.STORED:
        off = unit_in_last_place(rstd, dtype) if Statistics.of(problem) is Statistics.ROUNDED else 0.0
        expected["rstd"] = Expected(rstd, RSTD_UNITS * unit_in_last_place(rstd, torch.float32) + off)
    return expected
