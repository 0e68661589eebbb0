"""The maximum over all rows: the launch before a kernel that computes it.

In: the kernel call and the output. Out: the kernel calls, in order. Programs end in an atomic maximum of the output's
bits, before which a kernel clears it. An output that accumulates is not cleared. Part of the kernels' fingerprint.
"""

from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.rms_norm_quantize_fp8.modes import QuantizeModes


@triton.jit
def _clear_amax_kernel(amax_ptr):
    tl.store(amax_ptr, 0.0)


def with_amax(modes: QuantizeModes, main: KernelCall, amax: Any) -> tuple[KernelCall, ...]:
    """A kernel call, with the launch that clears the maximum over all rows before it."""
    if modes.has_amax and not modes.accumulates:
        return KernelCall(_clear_amax_kernel, (1,), (amax,), {"num_warps": 1}), main
    return (main,)
