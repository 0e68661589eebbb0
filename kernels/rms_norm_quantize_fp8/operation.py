"""The quantizing operations, one for each scaling and variant, and straight-through gradients of their norm.

In: nothing. Out: `quantize`, all operations as one function, none of which has a backward, since FP8 values have no
gradient; `straight_through`, the same with a graph of the outputs `y` and `sum`, whose gradients are those of
`rms_norm_backward`. Autograd casts a gradient to the dtype of its output, so one that arrived at q would be rounded to
FP8 without a scale: q has no graph.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.family import OpFamily
from normtune.kernels.calling.operation import Operation
from normtune.kernels.fused_add_rms_norm.function import rms_norm_backward
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.rms_norm_quantize_fp8.decomposition import OUTPUTS, QuantizeDecomposition
from normtune.kernels.rms_norm_quantize_fp8.launch import check_target
from normtune.kernels.rms_norm_quantize_fp8.modes import FAMILY, QuantizeModes, modes_of
from normtune.kernels.rms_norm_quantize_fp8.spec import SPECS
from normtune.kernels.target import Target

INPUTS = ("x", "weight", "residual", "scale")
_DEFAULTS = {"eps": 1e-6, "offset": 0.0, "least_amax": 1e-10}


def _without_offset(tensors: Sequence[Tensor | None], scalars: tuple[float, ...]) -> tuple[float, ...]:
    """Without a weight the kernels read ones, to which no offset is added."""
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


_OPTIONS = {"scaling": "str", "variant": "str"}
QUANTIZE = OpFamily(FAMILY, INPUTS, _DEFAULTS, _OPTIONS, _operation)
# The operations that accumulate the amax.
ACCUMULATE = OpFamily(
    name=f"{FAMILY}_amax_in_place",
    inputs=(*INPUTS, "amax"),
    scalars=_DEFAULTS,
    options=_OPTIONS,
    operation_of=_operation,
    written="amax",
    outputs=OUTPUTS,
)


def quantize(
    choices: tuple[str, ...],
    inputs: Mapping[str, Tensor | None],
    scalars: Mapping[str, float],
    batch_invariant: bool | None,
) -> dict[str, Tensor]:
    """The outputs by name of the operation with this scaling and variant; arguments as in `OpFamily.call`."""
    family = QUANTIZE if inputs["amax"] is None else ACCUMULATE
    outputs = family.call(choices, inputs, scalars, batch_invariant)
    return dict(zip(family.outputs_of(*choices), outputs, strict=True))


_GRADED = ("y", "sum")


class _StraightThrough(torch.autograd.Function):
    """`quantize`, with each input as an argument."""

    @staticmethod
    def forward(ctx: Any, choices: Any, names: Any, scalars: Any, batch_invariant: Any, *inputs: Any) -> Any:
        """The outputs, in order."""
        by_name = dict(zip(names, inputs, strict=True))
        outputs = quantize(choices, by_name, scalars, batch_invariant)
        ctx.options = (scalars["eps"], 0.0 if by_name["weight"] is None else scalars["offset"], batch_invariant)
        ctx.names, ctx.outputs = names, tuple(outputs)
        ctx.save_for_backward(outputs.get("sum", by_name["x"]), by_name["weight"], outputs["rstd"])
        ctx.mark_non_differentiable(*(tensor for name, tensor in outputs.items() if name not in _GRADED))
        ctx.set_materialize_grads(False)
        return tuple(outputs.values())

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> Any:
        """The gradients of x, weight and residual."""
        arrived = dict(zip(ctx.outputs, incoming, strict=True))
        dy, ds = (arrived.get(name) for name in _GRADED)
        needs = dict(zip(ctx.names, ctx.needs_input_grad[4:], strict=True))
        needs_rows = needs["x"] or needs["residual"]
        rows, columns = ds, None
        if dy is not None:
            x, weight, rstd = ctx.saved_tensors
            rows, columns = rms_norm_backward(
                *(dy, x, weight, rstd.view(x.shape[:-1]), *ctx.options),
                ds=ds,
                needs_dx=needs_rows,
                needs_dweight=needs["weight"],
            )
        gradients = {"x": rows, "residual": rows, "weight": columns}
        return (None, None, None, None, *(gradients.get(name) if needs[name] else None for name in ctx.names))


def straight_through(
    choices: tuple[str, ...],
    inputs: Mapping[str, Tensor | None],
    scalars: Mapping[str, float],
    batch_invariant: bool | None,
) -> dict[str, Tensor]:
    """`quantize` with gradients of `y` and `sum`; the modes include the outputs `y` and `rstd`."""
    if batch_invariant is None and not torch.compiler.is_compiling():  # a copied rstd would lose the mark of the mode
        batch_invariant = is_batch_invariant()
    outputs = _StraightThrough.apply(  # type: ignore[no-untyped-call]
        choices, tuple(inputs), scalars, batch_invariant, *inputs.values()
    )
    return dict(zip(QUANTIZE.outputs_of(*choices), outputs, strict=True))


def needs_gradient(inputs: Mapping[str, Any]) -> bool:
    """Whether an input of a call needs a gradient."""
    return torch.is_grad_enabled() and any(
        getattr(inputs[name], "requires_grad", False) for name in ("x", "weight", "residual")
    )
