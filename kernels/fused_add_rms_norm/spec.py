"""Specs of the two operators of fused_add_rms_norm: s = x + residual and y = rms_norm(s), and the gradients.

In: nothing. Out: registered `OperatorSpec`s. The kernels are RMSNorm's, which read a residual and the gradient of s
where there are any; so are the spaces.
"""

from dataclasses import replace
from functools import partial

from normtune.kernels.mode import Dweight, Rstd
from normtune.kernels.operator import register
from normtune.kernels.problem import INPUT, OUTPUT, WEIGHT, Buffer, Problem
from normtune.kernels.rms_norm.launch import MAX_BACKWARD_ELEMENTS_PER_THREAD, resolve_backward, resolve_forward
from normtune.kernels.rms_norm.modes import Product, Sum
from normtune.kernels.rms_norm.space import forward_default
from normtune.kernels.rms_norm.spec import rms_norm_backward, rms_norm_forward
from normtune.kernels.tiles.trial import trial

# The sum is held in float32 beside the tile that is added to it.
_resolve_forward = partial(resolve_forward, max_elements=MAX_BACKWARD_ELEMENTS_PER_THREAD, read=2)
_resolve_backward = partial(resolve_backward, read=3)


def _forward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    buffers = (
        problem.buffer("x", "rows,hidden", INPUT),
        problem.buffer("residual", "rows,hidden", INPUT),
        problem.buffer("weight", "hidden", WEIGHT),
        problem.buffer("y", "rows,hidden", OUTPUT),
        problem.buffer("s", "rows,hidden", OUTPUT),
    )
    rstd = problem.buffer("rstd", "rows", OUTPUT, "float32")
    return (*buffers, rstd) if Rstd.of(problem) is Rstd.STORED else buffers


def _backward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    buffers = (
        problem.buffer("dy", "rows,hidden", INPUT),
        problem.buffer("ds", "rows,hidden", INPUT),
        problem.buffer("s", "rows,hidden", INPUT),
        problem.buffer("weight", "hidden", WEIGHT),
        problem.buffer("rstd", "rows", INPUT, "float32"),
        problem.buffer("dx", "rows,hidden", OUTPUT),
    )
    dweight = problem.buffer("dweight", "hidden", OUTPUT)
    return (*buffers, dweight) if Dweight.of(problem) is Dweight.COMPUTED else buffers


# RMSNorm's specs but for what a sum adds.
fused_add_rms_norm_forward = register(
    replace(
        rms_norm_forward,
        name="fused_add_rms_norm_forward",
        modes=(Rstd, Sum, Product),
        buffers=_forward_buffers,
        resolve=_resolve_forward,
        trial=partial(trial, _resolve_forward),
        default_config=partial(forward_default, max_elements=MAX_BACKWARD_ELEMENTS_PER_THREAD),
        reference_module="normtune.kernels.fused_add_rms_norm.reference",
        is_default=False,
    )
)

fused_add_rms_norm_backward = register(
    replace(
        rms_norm_backward,
        name="fused_add_rms_norm_backward",
        buffers=_backward_buffers,
        resolve=_resolve_backward,
        trial=partial(trial, _resolve_backward),
        reference_module="normtune.kernels.fused_add_rms_norm.reference",
        is_default=False,
    )
)
