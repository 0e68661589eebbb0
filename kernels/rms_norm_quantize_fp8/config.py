"""The knobs of the operators that normalize and quantize.

In: nothing. Out: `QuantizeConfig` and `TransposingConfig`. The finishes of RMSNorm's own configs sum over rows; here a
maximum ends.
"""

from typing import Annotated

from normtune.kernels.config import Config

SCHEDULES = ("row", "block_row", "parts", "persistent", "split")
# Ends of the maximum over all rows, where a static scale asks for it.
FINISHES = ("none", "atomic", "reduce")


class QuantizeConfig(Config):
    """A config of RMSNorm with a quantized result."""

    schedule: Annotated[
        str,
        "row, block_row (block_row rows a program), parts (several programs a row, each writes a part), persistent (a "
        "fixed grid strides over the rows) or split.",
    ]
    block_row: Annotated[int, "rows a program holds at once."] = 1
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[int, "depth of the software pipeline of the row loop."] = 1
    programs_per_sm: Annotated[
        int,
        "size of the fixed grid, or of that of parts, programs a multiprocessor; 0 where the grid follows the rows.",
    ] = 0
    block_col: Annotated[int, "columns a chunk in split."] = 0
    amax: Annotated[
        str, "how the maximum over all rows ends, none, atomic (one address) or reduce (a value a program)."
    ] = "none"


class TransposingConfig(Config):
    """A config of RMSNorm with a quantized result and its transpose."""

    schedule: Annotated[
        str,
        "tile (a program writes the tiles of its rows in both layouts), or row, block_row, parts, persistent or split, "
        "each with the transposition as a launch after it.",
    ]
    block_row: Annotated[int, "rows a program holds at once."] = 1
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[int, "depth of the software pipeline of the row loop, or of the loop over columns."] = 1
    programs_per_sm: Annotated[
        int,
        "size of the fixed grid, or of that of parts, programs a multiprocessor; 0 where the grid follows the rows.",
    ] = 0
    block_col: Annotated[int, "columns a tile in tile, a chunk in split."] = 0
    amax: Annotated[
        str, "how the maximum over all rows ends, none, atomic (one address) or reduce (a value a program)."
    ] = "none"
    transpose_row: Annotated[int, "rows of a tile of the launch that transposes; 0 where there is none."] = 0
    transpose_col: Annotated[int, "columns of that tile."] = 0
    transpose_warps: Annotated[int, "warps of its programs."] = 0
