"""Specs of the two operators of fused_add_rms_norm: s = x + residual and y = rms_norm(s), and the gradients.

In: nothing. Out: registered `OperatorSpec`s. The kernels are RMSNorm's, which read a residual and the gradient of s
where there are any; so are the spaces.
"""

from functools import partial

from normtune.kernels.operator import Flag, OperatorSpec, register
from normtune.kernels.problem import ITEMSIZE, Buffer, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.rms_norm.launch import MAX_BACKWARD_ELEMENTS_PER_THREAD, resolve_backward, resolve_forward
from normtune.kernels.rms_norm.space import backward_default, backward_space, forward_default, forward_space
from normtune.kernels.rms_norm.spec import MAX_HIDDEN, ROUNDING, rms_norm_backward, rms_norm_forward
from normtune.kernels.tiles.trial import trial

# The sum is held in float32 beside the tile that is added to it.
_resolve_forward = partial(resolve_forward, max_elements=MAX_BACKWARD_ELEMENTS_PER_THREAD, read=2)
_resolve_backward = partial(resolve_backward, read=3)


def _forward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    shape = (problem.rows, problem.hidden)
    buffers = (
        Buffer("x", shape, problem.dtype, "input"),
        Buffer("residual", shape, problem.dtype, "input"),
        Buffer("weight", (problem.hidden,), problem.dtype, "weight"),
        Buffer("y", shape, problem.dtype, "output"),
        Buffer("s", shape, problem.dtype, "output"),
    )
    if problem.lacks("no_rstd"):
        return buffers
    return (*buffers, Buffer("rstd", (problem.rows,), "float32", "output"))


def _backward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    shape = (problem.rows, problem.hidden)
    buffers = (
        Buffer("dy", shape, problem.dtype, "input"),
        Buffer("ds", shape, problem.dtype, "input"),
        Buffer("s", shape, problem.dtype, "input"),
        Buffer("weight", (problem.hidden,), problem.dtype, "weight"),
        Buffer("rstd", (problem.rows,), "float32", "input"),
        Buffer("dx", shape, problem.dtype, "output"),
    )
    dweight = Buffer("dweight", (problem.hidden,), problem.dtype, "output")
    return buffers if problem.lacks("no_dweight") else (*buffers, dweight)


fused_add_rms_norm_forward = register(
    OperatorSpec(
        name="fused_add_rms_norm_forward",
        flags=(
            Flag("store_rstd", "no_rstd"),
            Flag("sum_in_float32", "rounded_sum"),
            ROUNDING[0],
        ),
        config=RMSNormConfig,
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_forward_buffers,
        space=forward_space,
        resolve=_resolve_forward,
        trial=partial(trial, _resolve_forward),
        default_config=partial(forward_default, max_elements=MAX_BACKWARD_ELEMENTS_PER_THREAD),
        kernel_module=rms_norm_forward.kernel_module,
        reference_module="normtune.kernels.fused_add_rms_norm.reference",
        sources=rms_norm_forward.sources,
        wide_buffers=("weight", "dweight"),
        scalars=rms_norm_forward.scalars,
        is_default=False,
    )
)

fused_add_rms_norm_backward = register(
    OperatorSpec(
        name="fused_add_rms_norm_backward",
        flags=(Flag("needs_dweight", "no_dweight"), ROUNDING[0]),
        config=RMSNormConfig,
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_backward_buffers,
        space=backward_space,
        resolve=_resolve_backward,
        trial=partial(trial, _resolve_backward),
        default_config=backward_default,
        kernel_module=rms_norm_backward.kernel_module,
        reference_module="normtune.kernels.fused_add_rms_norm.reference",
        sources=rms_norm_backward.sources,
        wide_buffers=("weight", "dweight"),
        scalars=rms_norm_backward.scalars,
        is_default=False,
    )
)
