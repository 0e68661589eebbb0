"""Loads every binary that RMSNorm may launch at one hidden size, ahead of the first call.

In: hidden size, dtype, GPU. Out: the binaries, compiled and loaded.
"""

import torch

from normtune.kernels.calling.warmup import load
from normtune.kernels.rms_norm.operation import RMS_NORM


def warmup(
    hidden: int,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | int = "cuda",
    *,
    weight_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    gradients: bool = True,
) -> int:
    """Compile and load all that `rms_norm` and its gradients may launch at one hidden size, for any number of rows.

    Later calls on contiguous tensors of this hidden size and these dtypes compile and load nothing, so they may come
    first in a CUDA graph capture or in a server's first request. Call it again after `normtune.use_table`.

    Args:
        hidden: length of a row, 1 to 1048576.
        dtype: of x: bfloat16, float16 or float32.
        device: a CUDA GPU.
        weight_dtype: of the weight; by default x's.
        batch_invariant: as in `rms_norm`.
        gradients: include the backward.

    Returns:
        Number of distinct kernel calls that are ready.

    Raises:
        ValueError: an argument is wrong.
    """
    return load(RMS_NORM, hidden, dtype, device, weight_dtype, batch_invariant, gradients)
