"""The quantizing operations, one for each scaling and variant.

In: nothing. Out: `QUANTIZE`, their family. None has a backward: FP8 values have no gradient.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.op import ForwardOnlyOp
from normtune.kernels.calling.operation import Operation
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.rms_norm_quantize_fp8.decomposition import OUTPUTS, QuantizeDecomposition
from normtune.kernels.rms_norm_quantize_fp8.launch import check_target
from normtune.kernels.rms_norm_quantize_fp8.modes import FAMILY, QuantizeModes, modes_of
from normtune.kernels.rms_norm_quantize_fp8.spec import SPECS
from normtune.kernels.target import Target

INPUTS = ("x", "weight", "residual", "scale")
_DEFAULTS = {"eps": 1e-6, "offset": 0.0, "least_amax": 1e-10}


def _without_offset(tensors: Sequence[Tensor | None], scalars: tuple[float, ...]) -> tuple[float, ...]:
    """Set the offset to 0 where there is no weight, as ones replace it."""
    eps, offset, *rest = scalars
    return (eps, 0.0 if tensors[1] is None else offset, *rest)


def _checks(has_residual: bool, tensors: Sequence[Any]) -> None:
    x = tensors[0]
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"x is {x.dtype}: expected bfloat16, float16 or float32")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (..., hidden), hidden at least 1")
    residual = tensors[2] if has_residual else None
    if isinstance(residual, Tensor) and residual.dtype != x.dtype:
        raise ValueError(f"residual is {residual.dtype}: expected {x.dtype}, as x")


def _is_for_target(modes: QuantizeModes, target: Target) -> bool:
    try:
        check_target(modes, target)
    except IllegalConfigError:
        return False
    return True


def _operation(scaling: str, variant: str) -> Operation:
    spec = SPECS[scaling]
    problem = spec.problem(1, 1, "float32", variant)
    modes = modes_of(problem)
    return Operation(
        name=FAMILY,
        forward=spec,
        formula=QuantizeDecomposition(modes),
        defaults={name: _DEFAULTS[name] for name in spec.scalars},
        optional=("weight",),
        scalars_of=_without_offset,
        modes=tuple(mode.of(problem) for mode in spec.modes),
        checks=partial(_checks, modes.has_residual),
        is_for_target=partial(_is_for_target, modes),
        marked=("rstd",) if modes.has_rstd else (),
    )


QUANTIZE = ForwardOnlyOp(FAMILY, INPUTS, _DEFAULTS, ("scaling", "variant"), _operation, "amax", OUTPUTS)
