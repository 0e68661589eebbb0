"""The knobs of the transposition.

In: nothing. Out: `TransposeConfig`.
"""

from typing import Annotated

from normtune.kernels.config import Config


class TransposeConfig(Config):
    """A config of the transposition."""

    block_row: Annotated[int, "rows of the tile that a program transposes."]
    block_col: Annotated[int, "columns of that tile."]
    num_warps: Annotated[int, "warps a program."] = 4
