"""The maximum over all rows: the launches before and after a kernel that computes it.

In: the kernel call, the launch, the output and the workspace. Out: the kernel calls, in order. Programs end in an
atomic maximum of the output's bits, before which a kernel clears it; or each writes its own to the workspace, of which
a second kernel takes the maximum. An output that accumulates is not cleared. Part of the kernels' fingerprint.
"""

from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.rms_norm_quantize_fp8.modes import QuantizeModes
from normtune.kernels.tiles.launch import Launch

_PARTIALS_AT_ONCE = 1024


@triton.jit
def _clear_amax_kernel(amax_ptr):
    tl.store(amax_ptr, 0.0)


@triton.jit(do_not_specialize=["partials"])
def _reduce_amax_kernel(partial_ptr, amax_ptr, partials, BLOCK: tl.constexpr, ACCUMULATES: tl.constexpr):
    b_most = tl.zeros([BLOCK], dtype=tl.int32)
    for i_partial in range(0, partials, BLOCK):
        o_partial = i_partial + tl.arange(0, BLOCK)
        b_partial = tl.load(partial_ptr + o_partial, mask=o_partial < partials, other=0.0)
        b_most = tl.maximum(b_most, b_partial.to(tl.int32, bitcast=True))
    b_amax = tl.max(b_most, axis=0)
    if ACCUMULATES:
        b_amax = tl.maximum(b_amax, tl.load(amax_ptr).to(tl.int32, bitcast=True))
    tl.store(amax_ptr, b_amax.to(tl.float32, bitcast=True))


def with_amax(
    launch: Launch, modes: QuantizeModes, main: KernelCall, amax: Any, workspace: Any
) -> tuple[KernelCall, ...]:
    """A kernel call with the launch that clears the maximum over all rows before it, or computes it after it."""
    if launch.finish == "atomic" and not modes.accumulates:
        return KernelCall(_clear_amax_kernel, (1,), (amax,), {"num_warps": 1}), main
    if launch.finish == "reduce":
        reduction = {"BLOCK": _PARTIALS_AT_ONCE, "ACCUMULATES": modes.accumulates, "num_warps": 4}
        return main, KernelCall(_reduce_amax_kernel, (1,), (workspace, amax, launch.grid), reduction)
    return (main,)
