"""Straight-through gradients of a quantizing call: those of its norm.

In: the arguments of `QUANTIZE.call`. Out: its outputs; `y` and `sum` have a graph, of which the gradients are
`rms_norm_backward`'s. Autograd casts a gradient to the dtype of the output that it belongs to, so one that arrived at q
would be rounded to FP8, without a scale: q has no graph.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.fused_add_rms_norm.gradients import rms_norm_backward
from normtune.kernels.rms_norm_quantize_fp8.operation import QUANTIZE

_GRADED = ("y", "sum")


class _StraightThrough(torch.autograd.Function):
    """`QUANTIZE.call` with `y` and `rstd`, of its inputs one by one."""

    @staticmethod
    def forward(ctx: Any, choices: Any, names: Any, scalars: Any, batch_invariant: Any, *inputs: Any) -> Any:
        """The outputs, in order."""
        given = dict(zip(names, inputs, strict=True))
        found = QUANTIZE.call(choices, given, scalars, batch_invariant)
        ctx.options = (scalars["eps"], 0.0 if given["weight"] is None else scalars["offset"], batch_invariant)
        ctx.names, ctx.outputs = names, tuple(found)
        ctx.save_for_backward(found.get("sum", given["x"]), given["weight"], found["rstd"])
        ctx.mark_non_differentiable(*(tensor for name, tensor in found.items() if name not in _GRADED))
        ctx.set_materialize_grads(False)
        return tuple(found.values())

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
        found = {"x": rows, "residual": rows, "weight": columns}
        return (None, None, None, None, *(found.get(name) if needs[name] else None for name in ctx.names))


def call(
    choices: tuple[str, ...],
    given: Mapping[str, Tensor | None],
    scalars: Mapping[str, float],
    batch_invariant: bool | None,
) -> dict[str, Tensor]:
    """`QUANTIZE.call` of an operation with `y` and `rstd`, differentiable in `y` and `sum`."""
    if batch_invariant is None and not torch.compiler.is_compiling():  # a saved rstd may lose its mark of the mode
        batch_invariant = is_batch_invariant()
    made = _StraightThrough.apply(  # type: ignore[no-untyped-call]
        choices, tuple(given), scalars, batch_invariant, *given.values()
    )
    return dict(zip(QUANTIZE.outputs_of(*choices), made, strict=True))


def is_needed(given: Mapping[str, Any]) -> bool:
    """Whether the tensors of a call need gradients."""
    return torch.is_grad_enabled() and any(
        getattr(given[name], "requires_grad", False) for name in ("x", "weight", "residual")
    )
