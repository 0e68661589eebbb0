"""The two RMSNorm operators: buffers, and in which modules the rest is.

Out: registered `OperatorSpec`s.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from normtune.kernels.mode import Dweight, Rstd
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import INPUT, ITEMSIZE, OUTPUT, WEIGHT, Buffer, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.rms_norm.launch import resolve_backward, resolve_forward
from normtune.kernels.rms_norm.modes import Product, Statistics
from normtune.kernels.rms_norm.space import backward_default, backward_space, forward_default, forward_space
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.trial import trial

# As Liger-Kernel takes; longer rows are composed of torch's operations.
MAX_HIDDEN = 65536


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


def with_buffers(spec: OperatorSpec, names: Mapping[str, Sequence[str]], problem: Problem) -> tuple[Buffer, ...]:
    """The buffers of an operator, of which those that are keys of `names` are replaced by some of other names."""
    buffers = spec.buffers(problem)
    return tuple(buffer._replace(name=name) for buffer in buffers for name in names.get(buffer.name, (buffer.name,)))


def may_reuse_dy(launch: Launch, target: Target) -> bool:
    """Whether a launch of a backward may write dx into the memory of dy, with the same strides (in-place dx).

    It may if each element of dy is read only by the program that overwrites it, and only before that. By schedule or
    finish of RMSNorm's and gated RMSNorm's backward:

        row, block_row  yes: without a weight gradient, finish `none`. A program holds its rows whole, and dx depends on
                        the mean over a row, so all reads of a row precede the first write to it.
        persistent      yes: the same in a loop. The pipeline prefetches later blocks, whose rows are written by no
                        other program and no earlier step.
        split           yes: the first pass over a row ends in its mean, which precedes the second pass. There an
                        element is read, if the row is not held, and then written by the same program.
        columns         no: programs of columns read dy for the weight gradient while programs of rows write dx.

    The second kernel of a weight gradient reads partial sums, never dy. If a tile has fewer elements than its program
    has threads, several threads hold the same element, and one may write it before another one has read it.
    """
    return launch.finish != "columns" and launch.block_row * launch.block_col >= launch.num_warps * target.warp_size


# What both operators share.
_spec = partial(
    OperatorSpec,
    config=RMSNormConfig,
    dtypes=tuple(ITEMSIZE),
    max_hidden=MAX_HIDDEN,
    reference_module="normtune.kernels.rms_norm.reference",
    wide_buffers=("weight", "dweight"),
    scalars={"eps": 1e-6, "offset": 0.25},
)

rms_norm_forward = register(
    _spec(
        name="rms_norm_forward",
        modes=(Rstd, Product, Statistics),
        limiting=(),
        buffers=_forward_buffers,
        space=forward_space,
        resolve=resolve_forward,
        trial=partial(trial, resolve_forward),
        default_config=forward_default,
        kernel_calls="normtune.kernels.rms_norm.forward:calls",
    )
)

rms_norm_backward = register(
    _spec(
        name="rms_norm_backward",
        modes=(Dweight, Product),
        limiting=(Dweight.NONE,),
        buffers=_backward_buffers,
        space=backward_space,
        resolve=resolve_backward,
        trial=partial(trial, resolve_backward),
        default_config=backward_default,
        kernel_calls="normtune.kernels.rms_norm.backward:calls",
        may_reuse_dy=may_reuse_dy,
    )
)
