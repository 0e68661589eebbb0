"""The knobs of the operators that normalize heads.

In: nothing. Out: `QKNormConfig`.
"""

from typing import Annotated

from normtune.kernels.config import Config


class QKNormConfig(Config):
    """A config of RMSNorm of heads."""

    block_row: Annotated[int, "heads a program holds at once, each whole."] = 1
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[int, "depth of the software pipeline of a fixed grid."] = 1
    programs_per_sm: Annotated[
        int, "size of the fixed grid, programs a multiprocessor; 0 where the grid follows the heads."
    ] = 0
