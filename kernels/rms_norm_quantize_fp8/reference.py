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

from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm import reference as of_rms_norm
from normtune.kernels.rms_norm_quantize_fp8.function import stored
from normtune.kernels.rms_norm_quantize_fp8.launch import BLOCK, QuantizeModes, blocks_of, modes_of
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

    def largest(self) -> Self:
        """Bounds of the maximum over the last dimension."""
        return type(self)(self.low.amax(-1), self.high.amax(-1))

    def expected(self) -> Expected:
        """The midpoint, with half the width as the tolerance."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return Expected(middle, half + torch.where(half > 0, _MIDPOINT_ERROR * middle.abs(), 0.0))


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """Fresh inputs of a problem on `device`; arguments as in `rms_norm.reference.inputs`.

    They are RMSNorm's, a residual, and a scale at which some values saturate.
    """
    modes = modes_of(problem)
    tensors = of_rms_norm.inputs(problem, generator, device, hostile)
    if modes.has_residual:
        residual = torch.randn(tensors["x"].shape, generator=generator, device=device)
        tensors["residual"] = residual.to(tensors["x"].dtype)
    if modes.scaling == "static":
        tensors["scale"] = torch.tensor([1.7 / modes.largest], dtype=torch.float32, device=device)
    if modes.has_amax and modes.accumulates:  # beyond the norms of some problems and below those of others
        tensors["amax"] = torch.full((1,), 4.0, device=device)
    return tensors


def reference(
    problem: Problem, tensors: Mapping[str, Tensor], eps: float, offset: float, least_amax: float = 0.0
) -> dict[str, Expected]:
    """Outputs of a problem in float64; arguments as in `rms_norm.reference.reference`.

    Returns:
        `q`, and those of `scale`, `amax`, `y`, `sum`, `rstd` and `q_t` that are outputs of the operator and variant.
    """
    modes = modes_of(problem)
    x, dtype = tensors["x"].double(), tensors["x"].dtype
    expected = {}
    if modes.has_residual:  # one float32 sum of two numbers of the dtype, rounded again when stored
        total = tensors["x"].float() + tensors["residual"].float()
        rounded = total.to(dtype).double()
        expected["sum"] = Expected(rounded, torch.zeros_like(rounded))
        x = rounded if modes.rounds_sum else total.double()
    rstd = torch.rsqrt(x.square().mean(dim=1) + eps)
    norm = _norm(modes, x * rstd[:, None], tensors["weight"].double() + offset, dtype)
    if modes.has_rstd:
        expected["rstd"] = Expected(rstd, RSTD_UNITS * unit_in_last_place(rstd, torch.float32))
    if modes.has_y:
        expected["y"] = norm.rounded(dtype).expected()
    magnitude = norm.magnitude()
    if modes.has_amax:
        before = tensors["amax"].double() if modes.accumulates else 0.0
        expected["amax"] = Bounds(*(end.amax().reshape(1).clamp(min=before) for end in magnitude)).expected()
    if modes.scaling == "static":
        scale = Bounds(*(2 * [tensors["scale"].double()]))
        expected["q"] = _quantized(modes, norm, scale)
        if modes.has_transpose:
            expected["q_t"] = Expected(*(part.t().contiguous() for part in expected["q"]))
        return expected
    if modes.scaling == "tensor":
        scale = _scale(modes, Bounds(*(end.amax().reshape(1) for end in magnitude)), least_amax)
        return expected | {"scale": scale.expected(), "q": _quantized(modes, norm, scale)}
    if modes.scaling == "row":
        scale = _scale(modes, magnitude.largest(), least_amax)
        wide = Bounds(*(end[:, None] for end in scale))
        return expected | {"scale": scale.expected(), "q": _quantized(modes, norm, wide)}
    scale = _scale(modes, Bounds(*map(_in_blocks, magnitude)).largest(), least_amax)
    wide = Bounds(*(end.repeat_interleave(BLOCK, dim=1)[:, : problem.hidden] for end in scale))
    in_memory = Bounds(*(stored(modes, end) for end in scale))
    return expected | {"scale": in_memory.expected(), "q": _quantized(modes, norm, wide)}


def _norm(modes: QuantizeModes, product: Tensor, weight: Tensor, dtype: torch.dtype) -> Bounds:
    norm = Bounds(product, product).widened(_NORM_ERROR)
    if modes.rounds_product:
        norm = norm.rounded(dtype)
    norm = norm.times(weight)
    if modes.rounds_product:  # the weight, and one product
        norm = norm.widened(2 * _ROUNDING)
    return norm.rounded(dtype) if modes.rounds_norm else norm


def _in_blocks(magnitude: Tensor) -> Tensor:
    """(rows, blocks, 128), padded with zeros after the last column."""
    rows, hidden = magnitude.shape
    return torch.nn.functional.pad(magnitude, (0, -hidden % BLOCK)).view(rows, blocks_of(hidden), BLOCK)


def _scale(modes: QuantizeModes, amax: Bounds, least_amax: float) -> Bounds:
    return Bounds(*(end.clamp(min=least_amax) / modes.largest for end in amax)).widened(2 * _ROUNDING)


def _quantized(modes: QuantizeModes, norm: Bounds, scale: Bounds) -> Expected:
    """`q` from the norm and positive scales: a float32 reciprocal and product, a clamp, and the rounding to FP8."""
    magnitudes = norm.magnitude()
    least, most = magnitudes.low / scale.high, magnitudes.high / scale.low
    sign = torch.where(norm.low + norm.high < 0, -1.0, 1.0)
    least = torch.where((norm.low < 0) & (norm.high > 0), -most, least)
    scaled = Bounds(least, most).times(sign).widened(3 * _ROUNDING)
    clamped = Bounds(*(end.clamp(-modes.largest, modes.largest) for end in scaled))
    return clamped.rounded(getattr(torch, modes.q_dtype)).expected()
