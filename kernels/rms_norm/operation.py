"""RMSNorm as operations: its operators, its formula, and what is its own in a call.

In: nothing. Out: `RMS_NORM`, and `OPERATIONS` with other orders of rounding.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.dispatch import target_of
from normtune.kernels.calling.launcher import Prepared
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.wide import machine_epsilon
from normtune.kernels.rms_norm import dweight
from normtune.kernels.rms_norm.composed import Formula
from normtune.kernels.rms_norm.spec import rms_norm_backward, rms_norm_forward

# Triton's reciprocal square root flushes subnormal numbers to zero by default.
_LEAST_NORMAL = torch.finfo(torch.float32).tiny
_SUBNORMAL = {"enable_reflect_ftz": False}


def without_offset(tensors: Sequence[Tensor | None], scalars: tuple[float, ...]) -> tuple[float, ...]:
    """Eps and offset: without a weight, the last input, no offset is added to the ones that stand in for it."""
    eps, _ = scalars
    return scalars if tensors[-1] is not None else (eps, 0.0)


def compiler_options(scalars: Mapping[str, float]) -> Mapping[str, Any] | None:
    """Of binaries for an eps that is subnormal."""
    return _SUBNORMAL if scalars["eps"] < _LEAST_NORMAL and not torch.version.hip else None


def columns_alone(tensors: dict[str, Tensor | None], rows: str = "x", rounds_product: bool = False) -> Prepared:
    """The launch of the weight gradient alone; its table would have one line, so there is none.

    Args:
        tensors: of the backward, by name.
        rows: name of those that were normalized.
        rounds_product: round the terms to the dtype.
    """
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    x = there["x"] = there[rows]
    parts = dweight.parts_of(x.shape[0], x.shape[1], target_of(x).sms)
    workspace = x.new_empty(parts * x.shape[1], dtype=torch.float32)
    calls = dweight.calls(parts, there, workspace, rounds_product)
    return Prepared(calls, [*tensors.values(), workspace], workspace.numel(), x.device.index if x.is_cuda else None)


_operation = partial(
    Operation,
    forward=rms_norm_forward,
    backward=rms_norm_backward,
    defaults={"eps": 1e-6, "offset": 0.0},
    optional=("weight",),
    derived={"eps": machine_epsilon},
    scalars_of=without_offset,
    compiler_options=compiler_options,
    columns_alone=columns_alone,
)
RMS_NORM = _operation(name="rms_norm", formula=Formula())
# By the name of Liger-Kernel's casting mode.
OPERATIONS = {
    "gemma": RMS_NORM,
    "llama": _operation(
        name="rms_norm_llama",
        variant="rounded_product",
        backward_variant="rounded_product",
        formula=Formula(rounds_product=True),
        columns_alone=partial(columns_alone, rounds_product=True),
    ),
    "none": _operation(name="rms_norm_none", variant="rounded_statistics", formula=Formula(rounds_statistics=True)),
}
