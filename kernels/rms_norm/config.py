"""The knobs of the RMSNorm operators, and Liger-Kernel's launches as configs, which every space includes."""

from typing import Annotated

from normtune.kernels.config import Config, identifier

SCHEDULES = ("row", "block_row", "parts", "persistent", "split", "split_8", "cluster_2", "cluster_4", "cluster_8")
FINISHES = ("none", "reduce", "dependent", "columns")
LIGER_MAX_HIDDEN = 65536


class RMSNormConfig(Config):
    """A config of RMSNorm."""

    schedule: Annotated[
        str,
        "row, block_row (block_row rows a program), parts (several programs a row, each writes a part), persistent (a "
        "fixed grid strides over the rows), split, split_8 (eight parts; with finish columns a row over a cluster), or "
        "cluster_2 to cluster_8 (a row over so many blocks of a cluster).",
    ]
    block_row: Annotated[int, "rows a program holds at once."] = 1
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[
        int, "depth of the software pipeline of the row loop; in split, 2 fetches the next row into the L2."
    ] = 1
    programs_per_sm: Annotated[
        int,
        "size of the fixed grid, or of that of parts, programs a multiprocessor; 0 where the grid follows the rows.",
    ] = 0
    finish: Annotated[
        str, "how sums over rows end, none, reduce, dependent (reduce, brought early) or columns (own programs)."
    ] = "none"
    block_col: Annotated[
        int,
        "columns a chunk in split and in parts that sum as split does, of eight chunks in split_8; columns a program "
        "with finish columns, else the least columns of held chunks.",
    ] = 0

    def constant_name(self) -> str:
        """`BLOCK_ROW_16_WARPS_4`, `PERSISTENT_ROWS_2_WARPS_8_STAGES_3_REDUCE`.

        The columns of a chunk or slice follow the word that they belong to: `SPLIT_4096_WARPS_16`,
        `ROW_WARPS_4_COLUMNS_32`, `ROW_WARPS_4_CHUNKS_16`.
        """
        of_chunks = self.schedule in ("split", "split_8") and self.finish != "columns"
        parts = [identifier(self.schedule)]
        if of_chunks and self.block_col:
            parts.append(str(self.block_col))
        if self.schedule == "block_row":
            parts.append(str(self.block_row))
        elif self.block_row != 1:
            parts.append(f"rows_{self.block_row}")
        parts.append(f"warps_{self.num_warps}")
        if self.num_stages != 1:
            parts.append(f"stages_{self.num_stages}")
        if self.programs_per_sm:
            parts.append(f"per_sm_{self.programs_per_sm}")
        if self.finish != "none":
            parts.append(identifier(self.finish))
        if self.block_col and not of_chunks:
            parts.append(str(self.block_col) if self.finish == "columns" else f"chunks_{self.block_col}")
        return "_".join(parts).upper()


def liger_launches(operator: str, hidden: int) -> tuple[RMSNormConfig, ...]:
    """Liger-Kernel 0.8.5's launches: a row per program, and a block of 16 rows; empty for rows that it does not take.

    Source: `ops/rms_norm.py` and `ops/utils.py` (`calculate_settings`). Versions and proposals (Liger-Kernel #1238)
    differ in the threshold between the two.
    """
    block_col = 1 << (hidden - 1).bit_length()
    warps = 32 if block_col >= 32768 else 16 if block_col >= 8192 else 8 if block_col >= 2048 else 4
    if operator == "rms_norm_forward" and hidden <= LIGER_MAX_HIDDEN:
        return RMSNormConfig("row", 1, warps), RMSNormConfig("block_row", 16, 4)
    if operator == "rms_norm_backward" and hidden <= LIGER_MAX_HIDDEN:
        return RMSNormConfig("persistent", 1, warps, 1, 1, "reduce"), RMSNormConfig("persistent", 16, 4, 1, 1, "reduce")
    return ()
