"""The float64 reference of the fused_add_rms_norm operators, and inputs for their checks.

In: a problem, a generator and tensors. Out: inputs, and for each output the exact value and its tolerance.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from normtune.kernels.key import Key
from normtune.kernels.mode import Sum
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm import reference as rms_norm
from normtune.kernels.rounding import FLOAT32_EPSILON, Expected, unit_in_last_place

# A tolerance below the distance of any two numbers.
_NOTHING = 1e-300
_OF_RMS_NORM = {
    "fused_add_rms_norm_forward": "rms_norm_forward",
    "fused_add_rms_norm_backward": "rms_norm_backward",
}


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """Fresh inputs of a problem on `device`; arguments as in `rms_norm.reference.inputs`.

    Returns:
        `x`, `residual` (rows, hidden) and `weight` (hidden,); for the backward `dy`, `ds`, `s` (rows, hidden), `weight`
        (hidden,) and `rstd` (rows,).
    """
    tensors = rms_norm.inputs(_as_rms_norm(problem), generator, device, hostile)
    shape, dtype = tensors["x"].shape, tensors["x"].dtype
    other = torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
    if problem.operator == "fused_add_rms_norm_forward":
        return {**tensors, "residual": other}
    tensors["s"] = tensors.pop("x")
    return {**tensors, "ds": other}


def reference(problem: Problem, tensors: Mapping[str, Tensor], eps: float, offset: float) -> dict[str, Expected]:
    """Exact outputs of a problem in float64; arguments as in `rms_norm.reference.reference`.

    The sum is exact, since it is added in float32 and rounded once.

    Returns:
        Forward `y`, `s` and `rstd`, backward `dx` and `dweight`.
    """
    if problem.operator == "fused_add_rms_norm_backward":
        expected = rms_norm.reference(_as_rms_norm(problem), {**tensors, "x": tensors["s"]}, eps, offset)
        ds, (dx, tolerance) = tensors["ds"].double(), expected["dx"]
        total = dx + ds
        # Of the formula as before, of one more addition, and of the rounding of the sum in the place of dx.
        unrounded = tolerance - unit_in_last_place(dx, tensors["s"].dtype)
        tolerance = unrounded + 2 * FLOAT32_EPSILON * (dx.abs() + ds.abs())
        return {**expected, "dx": Expected(total, tolerance + unit_in_last_place(total, tensors["s"].dtype))}
    dtype = tensors["x"].dtype
    wide = tensors["x"].float() + tensors["residual"].float()
    s = wide.to(dtype).double()
    x = s if Sum.of(problem) is Sum.ROUNDED else wide.double()
    expected = rms_norm.normalized(problem, x, tensors["weight"], eps, offset, dtype)
    return {**expected, "s": Expected(s, torch.full_like(s, _NOTHING))}


def _as_rms_norm(problem: Problem) -> Problem:
    variant = "" if problem.operator == "fused_add_rms_norm_forward" else problem.variant
    return problem._replace(key=Key.of(_OF_RMS_NORM[problem.operator], variant, problem.dtype))
