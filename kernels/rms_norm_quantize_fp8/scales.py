"""The layout of block scales. No torch, no triton. Part of the kernels' fingerprint."""

# Columns that share a scale in `block`; the last block of a row may be shorter.
BLOCK = 128
# Rows of column-major scales are padded to a multiple of 16 bytes for NVIDIA's tensor memory accelerator.
PADDING = 4


def blocks_of(hidden: int) -> int:
    """Number of blocks, and scales, in a row."""
    return -(-hidden // BLOCK)


def padded_rows(rows: int) -> int:
    """Rows of column-major scales including the padding, which holds zeros."""
    return -(-rows // PADDING) * PADDING
