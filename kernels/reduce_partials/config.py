"""The knobs of `reduce_partials`.

In: nothing. Out: `ReduceConfig`.
"""

from typing import Annotated

from normtune.kernels.config import Config


class ReduceConfig(Config):
    """A config of the sum of partial sums."""

    block_row: Annotated[int, "rows of partial sums a program adds at a time."]
    block_col: Annotated[int, "columns a program."]
    num_warps: Annotated[int, "warps a program."] = 4
