"""Whether a launch of a backward may write dx into the memory of dy (in-place dx).

In: a `Launch` of RMSNorm's or gated RMSNorm's backward. Pure arithmetic, no torch, no triton.

It may if each element of dy is read only by the program that overwrites it, and only before that. By schedule or
finish:

    row, block_row  yes: without a weight gradient, finish `none`. A program holds its rows whole, and dx depends on the
                    mean over a row, so all reads of a row precede the first write to it.
    persistent      yes: the same in a loop. The pipeline prefetches later blocks, whose rows are written by no other
                    program and no earlier step.
    split           yes: the first pass over a row ends in its mean, which precedes the second pass. There an element is
                    read, if the row is not held, and then written by the same program.
    long            yes: the first kernel writes sums only. In the second, each element is read and then written by one
                    program, which reads nothing else of dy.
    columns         no: programs of columns read dy for the weight gradient while programs of rows write dx.

The second kernel of a weight gradient reads partial sums, never dy. If a tile has fewer elements than its program has
threads, several threads hold the same element, and one may write it before another one has read it.
"""

from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch


def may_reuse_dy(launch: Launch, target: Target) -> bool:
    """Whether dx may be dy's memory, with the same strides.

    Args:
        launch: of a backward.
        target: limits of the GPU for which the launch was resolved.
    """
    return launch.finish != "columns" and launch.block_row * launch.block_col >= launch.num_warps * target.warp_size
