"""The layout of scales of blocks. No torch, no triton. Part of the kernels' fingerprint."""

# Columns that share a scale in `block`; the last block of a row may be shorter.
BLOCK = 128
# Rows of a column-major scale are padded to 16 bytes, as NVIDIA's tensor memory accelerator reads them.
PADDING = 4


def blocks_of(hidden: int) -> int:
    """Scales of a row in `block`."""
    return -(-hidden // BLOCK)


def padded_rows(rows: int) -> int:
    """Rows of a column-major scale with its padding, which holds zeros."""
    return -(-rows // PADDING) * PADDING
