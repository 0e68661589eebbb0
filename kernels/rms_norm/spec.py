"""Specs of the two RMSNorm operators: buffers and where the rest is.

In: nothing. Out: registered `OperatorSpec`s. Spaces are in `space`, configs are resolved in `launch`, the
kernels are in `forward` and `backward`, the reference is in `reference`.
"""

from functools import partial

from normtune.kernels.mode import Dweight, Rstd
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import INPUT, ITEMSIZE, OUTPUT, WEIGHT, Buffer, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.rms_norm.launch import resolve_backward, resolve_forward
from normtune.kernels.rms_norm.long_rows import MAX_HIDDEN
from normtune.kernels.rms_norm.modes import Product, Statistics
from normtune.kernels.rms_norm.space import backward_default, backward_space, forward_default, forward_space
from normtune.kernels.tiles.reuse import may_reuse_dy
from normtune.kernels.tiles.trial import trial

_SCALARS = {"eps": 1e-6, "offset": 0.25}


def _forward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    buffers = (
        problem.buffer("x", "rows,hidden", INPUT),
        problem.buffer("weight", "hidden", WEIGHT),
        problem.buffer("y", "rows,hidden", OUTPUT),
    )
    rstd = problem.buffer("rstd", "rows", OUTPUT, "float32")
    return (*buffers, rstd) if Rstd.of(problem) is Rstd.STORED else buffers


def _backward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    buffers = (
        problem.buffer("dy", "rows,hidden", INPUT),
        problem.buffer("x", "rows,hidden", INPUT),
        problem.buffer("weight", "hidden", WEIGHT),
        problem.buffer("rstd", "rows", INPUT, "float32"),
        problem.buffer("dx", "rows,hidden", OUTPUT),
    )
    dweight = problem.buffer("dweight", "hidden", OUTPUT)
    return (*buffers, dweight) if Dweight.of(problem) is Dweight.COMPUTED else buffers


rms_norm_forward = register(
    OperatorSpec(
        name="rms_norm_forward",
        modes=(Rstd, Product, Statistics),
        limiting=(),
        config=RMSNormConfig,
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_forward_buffers,
        space=forward_space,
        resolve=resolve_forward,
        trial=partial(trial, resolve_forward),
        default_config=forward_default,
        kernel_module="normtune.kernels.rms_norm.forward",
        reference_module="normtune.kernels.rms_norm.reference",
        sources=(
            "normtune.kernels.rms_norm.forward",
            "normtune.kernels.rms_norm.forward_long",
            "normtune.kernels.rms_norm.forward_parts",
            "normtune.kernels.rms_norm.forward_tile",
            "normtune.kernels.rms_norm.launch",
            "normtune.kernels.rms_norm.long_rows",
            "normtune.kernels.rms_norm.modes",
            "normtune.kernels.tiles.launch",
            "normtune.kernels.tiles.tile",
        ),
        wide_buffers=("weight", "dweight"),
        scalars=_SCALARS,
    )
)

rms_norm_backward = register(
    OperatorSpec(
        name="rms_norm_backward",
        modes=(Dweight, Product),
        limiting=(Dweight.NONE,),
        config=RMSNormConfig,
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_backward_buffers,
        space=backward_space,
        resolve=resolve_backward,
        trial=partial(trial, resolve_backward),
        default_config=backward_default,
        kernel_module="normtune.kernels.rms_norm.backward",
        reference_module="normtune.kernels.rms_norm.reference",
        sources=(
            "normtune.kernels.rms_norm.backward",
            "normtune.kernels.rms_norm.backward_cluster",
            "normtune.kernels.rms_norm.backward_columns",
            "normtune.kernels.rms_norm.backward_long",
            "normtune.kernels.rms_norm.backward_split",
            "normtune.kernels.rms_norm.launch",
            "normtune.kernels.rms_norm.long_rows",
            "normtune.kernels.rms_norm.modes",
            "normtune.kernels.tiles.launch",
            "normtune.kernels.tiles.partial_sums",
            "normtune.kernels.tiles.tile",
        ),
        wide_buffers=("weight", "dweight"),
        scalars=_SCALARS,
        may_reuse_dy=may_reuse_dy,
    )
)
