"""The float64 reference of `reduce_partials`, and inputs for its checks.

In: a problem, a generator and tensors. Out: inputs, and the exact sums with their tolerance.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from normtune.kernels.problem import Problem
from normtune.kernels.rounding import FLOAT32_EPSILON, Expected, unit_in_last_place


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """Fresh partial sums of a problem on `device`: `partials` (rows, hidden) float32.

    `hostile`: columns of zeros, tiny, huge and cancelling values, in turn from column 1 on.
    """
    partials = torch.randn((problem.rows, problem.hidden), generator=generator, device=device, dtype=torch.float32)
    if hostile:
        partials[:, 1::5] = 0.0
        partials[:, 2::5] *= 1e-3
        partials[:, 3::5] *= 1e2
        half = problem.rows // 2
        partials[:half, 4::5] = 1e4 * partials[half : 2 * half, 4::5]
        partials[half : 2 * half, 4::5] *= -1e4
    return {"partials": partials}


def reference(problem: Problem, tensors: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The exact sums in float64. Their tolerance is the rounding of the result and that of a sum in float32."""
    partials = tensors["partials"].double()
    total = partials.sum(dim=0)
    # As for the weight gradient that ends with these sums: a tree's depth and a margin for the steps of a program.
    depth = 8 + max(problem.rows - 1, 0).bit_length()
    tolerance = FLOAT32_EPSILON * depth * partials.abs().sum(dim=0)
    return {"total": Expected(total, unit_in_last_place(total, getattr(torch, problem.dtype)) + tolerance)}
