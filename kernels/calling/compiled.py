"""What `torch.compile` sees of a call: the formula, which Inductor fuses with its neighbours, or an opaque operator.

In: `use`, and what `Operation.compiled` says of sizes. Out: `way_of`, which is read while a call is traced; a change of
the setting, or the first use of the batch-invariant mode, compiles again. Exported programs have the operators.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from normtune.kernels.calling.arguments import check_choice
from normtune.kernels.calling.batch_invariant import was_on
from normtune.kernels.calling.operation import Operation, Way

Compiled = Literal["auto", "formula", "backward", "kernel"]
_setting: Compiled = "auto"


def use(*, compiled: Compiled = "auto") -> None:
    """Choose what `torch.compile` sees of a norm, for all later calls of this process; functions compile again.

    It concerns `rms_norm`, `fused_add_rms_norm`, `rms_norm_gated` and their modules. `rms_norm_quantize_fp8` and
    `qk_norm` are always launched as kernels, and so are norms in the batch-invariant mode and in exported programs.

    Args:
        compiled: `formula`, torch's operations both ways, which Inductor fuses with what is around them; `backward`,
            the same with the kernels of the backward; `kernel`, kernels both ways, with the bits of eager calls;
            `auto`, the initial state, what was fastest on an H200 for the hidden size, with and without gradients.

    Raises:
        TypeError: `compiled` is no string.
        ValueError: it is another one; the setting before is kept.
    """
    global _setting
    check_choice("compiled", compiled, get_args(Compiled))
    _setting = compiled


def _is_exporting() -> bool:
    return torch.compiler.is_exporting()


# It is called while a compiler traces: torch 2.11 would trace it as True in `torch.compile`, too.
_is_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def way_of(operation: Operation, x: Tensor, needs_gradients: bool, batch_invariant: bool | None) -> Way:
    """What a compiler sees of a call: `formula`; `backward`, the formula with the backward's kernels; or `kernel`."""
    if not torch.compiler.is_dynamo_compiling() or _is_exporting():
        return "kernel"
    if batch_invariant or (batch_invariant is None and was_on()):
        return "kernel"
    way = operation.compiled(x.shape[-1], needs_gradients) if _setting == "auto" else _setting
    return "formula" if way == "backward" and not needs_gradients else way


class FusedForward(torch.autograd.Function):
    """The formula of an operation whose backward launches kernels; compilers trace it."""

    @staticmethod
    def forward(ctx: Any, op: Any, scalars: tuple[float, ...], *tensors: Tensor | None) -> Any:
        """The results of an `Op`, as of its `call`, from checked arguments."""
        operation = op.operation
        # Of a result that is also an intermediate, as after `to` the same dtype, torch 2.11 drops the gradient.
        outputs = tuple(output.clone() for output in operation.formula.forward(*tensors, *scalars))
        named = dict(zip((*operation.inputs, *operation.outputs), (*tensors, *outputs), strict=True))
        ctx.op, ctx.scalars = op, scalars
        ctx.save_for_backward(*[named[name] for name in operation.saved])
        return outputs[op.picked]

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        """The gradients of the inputs."""
        of_inputs = ctx.op.ops.gradients(incoming, ctx.saved_tensors, (*ctx.scalars, False), ctx.needs_input_grad[2:])
        return (None, None, *of_inputs)
