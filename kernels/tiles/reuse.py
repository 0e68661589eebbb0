"""Whether a launch of a backward over rows may write the gradient dx into the memory of dy.

In: a `Launch` of RMSNorm's or gated RMSNorm's backward. Out: yes or no. Pure arithmetic, no torch, no triton.

It may where each element of dy is read by the program that overwrites it alone, and for the last time before that:

    row, block_row  a program holds its rows whole. An element of dx depends on the mean over its row, so all reads of
                    a row precede the first write to it. The same rows without a weight gradient: finish `none`.
    persistent      the same in a loop. What the pipeline reads ahead are later blocks, of rows that no other program
                    and no earlier step writes.
    split           the first pass over a row ends in its mean, which precedes the second. In the second pass an element
                    is read, if the row is not held, and then written by the program that read it.
    long            the first kernel reads and writes sums only. In the second an element is read and then written by
                    one program, which reads nothing else of dy.
    columns         no: programs of columns read dy for the weight gradient while programs of rows write dx.

The second kernel of a weight gradient, if any, reads partial sums, never dy. Of a tile with fewer elements than the
program has threads the compiler gives one element to several threads, and one may write it before another has read it.
"""

from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch


def may_reuse_dy(launch: Launch, target: Target) -> bool:
    """Whether dx may be dy's memory, of the same strides.

    Args:
        launch: of a backward.
        target: that it was resolved for.
    """
    return launch.finish != "columns" and launch.block_row * launch.block_col >= launch.num_warps * target.warp_size
