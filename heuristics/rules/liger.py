"""The launch rule that Liger-Kernel ships for RMSNorm, on normtune's kernels.

In: operator, rows, hidden. Out: the config that does here what Liger does there. Read in Liger-Kernel 0.8.5,
`ops/rms_norm.py` (`_rms_norm_forward_kernel`, `_block_rms_norm_forward_kernel` and their backwards) and
`ops/utils.py` (`calculate_settings`). The rule knows neither dtype nor GPU nor pass.
"""

from normtune.kernels.config import Config

NAME = "liger"
TITLE = "Liger-Kernel 0.8.5"
MAX_HIDDEN = 65536

_FORWARD = "rms_norm_forward"
_BACKWARD = "rms_norm_backward"
_BLOCK_ROW = 16
_BLOCK_WARPS = 4


def choose(operator: str, rows: int, hidden: int) -> Config | None:
    """The config of Liger's rule; None where it has none.

    Args:
        operator: plain name; the rule is about `rms_norm_forward` and `rms_norm_backward`.
        rows: number of rows.
        hidden: length of a row.
    """
    if operator not in (_FORWARD, _BACKWARD) or hidden > MAX_HIDDEN:
        return None
    block_col = 1 << (hidden - 1).bit_length()
    one_row = block_col > 256 or rows < 4096 * 8
    if operator == _FORWARD:
        return Config("row", 1, _warps(block_col)) if one_row else Config("block_row", _BLOCK_ROW, _BLOCK_WARPS)
    if one_row:
        return Config("persistent", 1, _warps(block_col), 1, 1, "reduce")
    return Config("persistent", _BLOCK_ROW, _BLOCK_WARPS, 1, 1, "reduce")


def _warps(block_col: int) -> int:
    if block_col >= 32768:
        return 32
    if block_col >= 8192:
        return 16
    return 8 if block_col >= 2048 else 4
