"""The sum of partial sums: the kernel that ends RMSNorm's backward, with a tile of one's choice.

In: a `ReduceLaunch` and tensors. Out: the kernel calls.

Traffic of a perfect kernel: read rows x hidden float32, write hidden.
"""

from collections.abc import Mapping
from typing import Any

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.reduce_partials.launch import ReduceLaunch
from normtune.kernels.tiles.partial_sums import sum_call


def calls(launch: ReduceLaunch, problem: Problem, tensors: Mapping[str, Any], workspace: Any) -> tuple[KernelCall]:
    """The kernel call of one sum.

    Args:
        launch: from `resolve`.
        problem: number and length of the rows.
        tensors: `partials` (rows, hidden) float32, contiguous, and `total` (hidden,).
        workspace: unused.
    """
    tile = launch.block_row, launch.block_col, launch.num_warps
    partials, total = tensors["partials"], tensors["total"]
    return (sum_call(partials, total, problem.rows, problem.hidden, tile, launch.alignment),)
