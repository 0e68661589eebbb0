"""The reference of the transposition, and inputs for its checks.

In: a problem, a generator and tensors. Out: inputs, and the exact output.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from normtune.kernels.problem import Problem
from normtune.kernels.rounding import Expected
from normtune.kernels.transpose_fp8.operator import DTYPE


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """A fresh matrix on `device` of random finite FP8 values.

    Args:
        problem: rows and hidden.
        generator: of that device.
        device: of the tensor.
        hostile: ignored, as a copy has no hostile values.
    """
    shape = (problem.rows, problem.hidden)
    values = torch.randint(0, 256, shape, generator=generator, device=device, dtype=torch.uint8)
    values[(values & 0x7C) == 0x7C] = 0  # neither inf nor NaN
    return {"x": values.view(getattr(torch, DTYPE))}


def reference(problem: Problem, tensors: Mapping[str, Tensor]) -> dict[str, Expected]:
    """`y`, exact, in float64."""
    value = tensors["x"].double().t().contiguous()
    return {"y": Expected(value, torch.zeros_like(value))}
