"""RMSNorm as operations: its operators, its formula, and what is its own in a call.

In: nothing. Out: `RMS_NORM`, and `OPERATIONS` with other orders of rounding.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from normtune.kernels.call import KernelCall
from normtune.kernels.calling.dispatch import target_of
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.wide import keeps_subnormal, machine_epsilon
from normtune.kernels.rms_norm import dweight
from normtune.kernels.rms_norm.composed import Formula
from normtune.kernels.rms_norm.spec import rms_norm_backward, rms_norm_forward


def without_offset(tensors: Sequence[Tensor | None], scalars: tuple[float, ...]) -> tuple[float, ...]:
    """Eps and offset: without a weight, the last input, no offset is added to the ones that stand in for it."""
    eps, _ = scalars
    return scalars if tensors[-1] is not None else (eps, 0.0)


def columns_alone(
    tensors: Mapping[str, Tensor], count: int | None, rows: str = "x", rounds_product: bool = False
) -> tuple[Sequence[KernelCall], Tensor]:
    """The kernel calls of the weight gradient alone, and their workspace; its table would have one line: there is none.

    Args:
        tensors: of the backward, by name.
        count: number of rows for which the calls are chosen; None for that of the tensors.
        rows: name of those that were normalized.
        rounds_product: round the terms to the dtype.
    """
    x = tensors[rows]
    parts = dweight.parts_of(count or x.shape[0], x.shape[1], target_of(x).sms)
    workspace = x.new_empty(parts * x.shape[1], dtype=torch.float32)
    return dweight.calls(parts, {**tensors, "x": x}, workspace, rounds_product), workspace


# What an operation has that normalizes: its scalars, and a weight that may be missing.
normalizing = partial(
    Operation,
    defaults={"eps": 1e-6, "offset": 0.0},
    optional=("weight",),
    derived={"eps": machine_epsilon},
    scalars_of=without_offset,
    compiler_options=keeps_subnormal,
    columns_alone=columns_alone,
)
_operation = partial(normalizing, forward=rms_norm_forward, backward=rms_norm_backward)
RMS_NORM = _operation(name="rms_norm", formula=Formula())
# By the name of Liger-Kernel's casting mode.
OPERATIONS = {
    "gemma": RMS_NORM,
    "llama": _operation(
        name="rms_norm_llama",
        flags={"product_in_float32": False},
        formula=Formula(rounds_product=True),
        columns_alone=partial(columns_alone, rounds_product=True),
    ),
    "none": _operation(
        name="rms_norm_none", flags={"statistics_in_float32": False}, formula=Formula(rounds_statistics=True)
    ),
}
