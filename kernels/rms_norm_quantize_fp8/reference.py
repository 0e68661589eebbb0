"""The float64 reference of the quantizing operators, and inputs for their checks.

In: a problem, a generator and tensors. Out: inputs, and for each output the exact value and its tolerance.

The float32 norm lies in an interval around the exact one, whose width is the rounding error that docs/measuring.md,
"The gate", allows. Rounding to a dtype, clamping and scaling are monotone, so each output lies between the outputs of
the interval's ends: an FP8 value is exact unless a rounding boundary lies inside, and then is one of two neighbours.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import torch
from torch import Tensor

from normtune.kernels.mode import Product
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm import reference as of_rms_norm
from normtune.kernels.rms_norm_quantize_fp8.function import in_blocks, stored
from normtune.kernels.rms_norm_quantize_fp8.launch import (
    Amax,
    Norm,
    QuantizedDtype,
    Residual,
    ScaleFormat,
    scaling_of,
)
from normtune.kernels.rounding import FLOAT32_EPSILON, RSTD_UNITS, Expected, unit_in_last_place

# Relative error of the float32 norm: the sum of squares, its root, and two products.
_NORM_ERROR = (RSTD_UNITS + 2) * FLOAT32_EPSILON
# Relative error of one float32 operation.
_ROUNDING = FLOAT32_EPSILON / 2
# The midpoint of an interval is itself rounded, in float64.
_MIDPOINT_ERROR = 2.0**-50


class Bounds(NamedTuple):
    """Lower and upper bounds of each element of a tensor, in float64."""

    low: Tensor
    high: Tensor

    def widened(self, relative: float) -> Self:
        """Widened by a relative error."""
        return type(self)(self.low - relative * self.low.abs(), self.high + relative * self.high.abs())

    def rounded(self, dtype: torch.dtype) -> Self:
        """Rounded to float32, then to the dtype, to the nearest, ties to even."""
        return type(self)(*(end.float().to(dtype).double() for end in self))

    def times(self, factor: Tensor) -> Self:
        """Multiplied by exact factors of any sign."""
        ends = self.low * factor, self.high * factor
        return type(self)(torch.minimum(*ends), torch.maximum(*ends))

    def magnitude(self) -> Self:
        """Bounds of the absolute values."""
        low, high = self.low.abs(), self.high.abs()
        least = torch.minimum(low, high).masked_fill_((self.low < 0) & (self.high > 0), 0.0)
        return type(self)(least, torch.maximum(low, high))

    def expected(self) -> Expected:
        """The midpoint, with half the width as the tolerance."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return Expected(middle, half + torch.where(half > 0, _MIDPOINT_ERROR * middle.abs(), 0.0))


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """Fresh inputs of a problem on `device`; arguments as in `rms_norm.reference.inputs`.

    They are RMSNorm's, a residual, and a scale at which some values saturate.
    """
    tensors = of_rms_norm.inputs(problem, generator, device, hostile)
    if Residual.of(problem) is not Residual.NONE:
        residual = torch.randn(tensors["x"].shape, generator=generator, device=device)
        tensors["residual"] = residual.to(tensors["x"].dtype)
    if scaling_of(problem) == "static":
        largest = QuantizedDtype.of(problem).largest
        tensors["scale"] = torch.tensor([1.7 / largest], dtype=torch.float32, device=device)
    if Amax.of(problem) is Amax.IN_PLACE:  # beyond the norms of some problems and below those of others
        tensors["amax"] = torch.full((1,), 4.0, device=device)
    return tensors


def reference(
    problem: Problem, tensors: Mapping[str, Tensor], eps: float, offset: float, least_amax: float = 0.0
) -> dict[str, Expected]:
    """Outputs of a problem in float64; arguments as in `rms_norm.reference.reference`.

    Returns:
        `q`, and those of `scale`, `amax`, `y`, `sum`, `rstd` and `q_t` that are outputs of the operator and variant.
    """
    x, dtype, fp8 = tensors["x"].double(), tensors["x"].dtype, QuantizedDtype.of(problem)
    names = {buffer.name for buffer in operator(problem.operator).buffers(problem)}
    expected = {}
    if "residual" in names:  # one float32 sum of two numbers of the dtype, rounded again when stored
        total = tensors["x"].float() + tensors["residual"].float()
        rounded = total.to(dtype).double()
        expected["sum"] = Expected(rounded, torch.zeros_like(rounded))
        x = rounded if Residual.of(problem) is Residual.ROUNDED else total.double()
    rstd = torch.rsqrt(x.square().mean(dim=1) + eps)
    norm = _norm(problem, x * rstd[:, None], tensors["weight"].double() + offset, dtype)
    if "rstd" in names:
        expected["rstd"] = Expected(rstd, RSTD_UNITS * unit_in_last_place(rstd, torch.float32))
    if "y" in names:
        expected["y"] = norm.rounded(dtype).expected()
    magnitude = norm.magnitude()
    if "amax" in names:
        before = tensors["amax"].double() if Amax.of(problem) is Amax.IN_PLACE else 0.0
        expected["amax"] = Bounds(*(end.amax().reshape(1).clamp(min=before) for end in magnitude)).expected()
    scaling = scaling_of(problem)
    if scaling == "static":
        wide = Bounds(*(2 * [tensors["scale"].double()]))
    else:
        groups = [_groups(end, scaling) for end in magnitude]
        amax = Bounds(*(end.amax(2).clamp(min=least_amax) / fp8.largest for end in groups))
        scale = amax.widened(2 * _ROUNDING)
        if ScaleFormat.of(problem) is not ScaleFormat.FLOAT32:
            scale = Bounds(*map(_power_of_two, scale))
        expected["scale"] = Bounds(*(stored(problem, end).double() for end in scale)).expected()
        columns = min(groups[0].shape[2], problem.hidden)
        wide = Bounds(*(end.repeat_interleave(columns, dim=1)[:, : problem.hidden] for end in scale))
    expected["q"] = _quantized(fp8, norm, wide)
    if "q_t" in names:
        expected["q_t"] = Expected(*(part.t().contiguous() for part in expected["q"]))
    return expected


def _norm(problem: Problem, product: Tensor, weight: Tensor, dtype: torch.dtype) -> Bounds:
    norm = Bounds(product, product).widened(_NORM_ERROR)
    if Product.of(problem) is Product.ROUNDED:
        norm = norm.rounded(dtype)
    norm = norm.times(weight)
    if Product.of(problem) is Product.ROUNDED:  # the weight, and one product
        norm = norm.widened(2 * _ROUNDING)
    return norm.rounded(dtype) if Norm.of(problem) is Norm.ROUNDED else norm


def _groups(magnitude: Tensor, scaling: str) -> Tensor:
    """(rows or 1, groups, columns): the elements that share a scale are a group."""
    if scaling == "block":
        return in_blocks(magnitude)
    return magnitude.view(1, 1, -1) if scaling == "tensor" else magnitude.unsqueeze(1)


def _power_of_two(scale: Tensor) -> Tensor:
    """The least power of two that is not smaller, from 2^-126 to 2^127; infinite ones and NaN become 2^127."""
    fraction, exponent = torch.frexp(scale)
    exponent = (exponent - (fraction == 0.5).int()).masked_fill(scale == 0, -126).masked_fill(~scale.isfinite(), 127)
    return torch.ldexp(torch.ones_like(scale), exponent.clamp(-126, 127))


def _quantized(fp8: QuantizedDtype, norm: Bounds, scale: Bounds) -> Expected:
    """`q` from the norm and positive scales: a float32 reciprocal and product, a clamp, and the rounding to FP8."""
    magnitudes = norm.magnitude()
    least, most = magnitudes.low / scale.high, magnitudes.high / scale.low
    sign = torch.where(norm.low + norm.high < 0, -1.0, 1.0)
    least = torch.where((norm.low < 0) & (norm.high > 0), -most, least)
    scaled = Bounds(least, most).times(sign).widened(3 * _ROUNDING)
    clamped = Bounds(*(end.clamp(-fp8.largest, fp8.largest) for end in scaled))
    return clamped.rounded(getattr(torch, fp8.dtype)).expected()
