"""RMSNorm as an operation: its operators, its formula, and what is its own in a call.

In: nothing. Out: `RMS_NORM`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from normtune.kernels.calling.dispatch import target_of
from normtune.kernels.calling.launcher import Prepared
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.wide import keeps_subnormal, machine_epsilon
from normtune.kernels.rms_norm import composed, dweight
from normtune.kernels.rms_norm.spec import rms_norm_backward, rms_norm_forward


def _scalars(tensors: Sequence[Tensor | None], scalars: tuple[float, ...]) -> tuple[float, ...]:
    """Without a weight, no offset is added to the ones that stand in for it."""
    eps, _ = scalars
    return scalars if tensors[1] is not None else (eps, 0.0)


def _dweight_alone(tensors: dict[str, Tensor | None]) -> Prepared:
    """The launch of the weight gradient alone; its table would have one line, so there is none."""
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    x = there["x"]
    parts = dweight.parts_of(x.shape[0], x.shape[1], target_of(x).sms)
    workspace = x.new_empty(parts * x.shape[1], dtype=torch.float32)
    calls = dweight.calls(parts, there, workspace)
    return Prepared(calls, [*tensors.values(), workspace], workspace.numel(), x.device.index if x.is_cuda else None)


RMS_NORM = Operation(
    name="rms_norm",
    forward=rms_norm_forward,
    backward=rms_norm_backward,
    formula=composed,
    defaults={"eps": 1e-6, "offset": 0.0},
    optional=("weight",),
    derived={"eps": machine_epsilon},
    scalars_of=_scalars,
    compiler_options=keeps_subnormal,
    columns_alone=_dweight_alone,
)
