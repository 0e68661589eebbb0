"""Kernels of the tuner: the read that evicts the cache, the reference copy, and comparisons of tensors.

The read fills the L2 and writes nothing, because dirty lines would be written back later, inside the next timing. It
reads with `evict_last`: lines that a kernel read so outlive any read without it, and the next timing would find its
data in the L2 (1.9 instead of 2.2 us at 21 x 784). The copy is a kernel, not a memcpy node: for some sizes a graph
gives a memcpy to the copy engine, which takes up to 1.5 times as long (seen at 16384 x 4096).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from normtune.kernels.call import KernelCall, run

READ_WORDS = 8192  # words of 4 bytes per step of a program of the read
_COPY_WORDS = 2048
_DIFFER_BYTES = 8192
_EXCESS_ITEMS = 2048


@triton.jit
def _read_kernel(source_ptr, sink_ptr, length, BLOCK: tl.constexpr):
    b_sum = tl.zeros([BLOCK], dtype=tl.int32)
    for i_block in range(tl.program_id(0), length // BLOCK, tl.num_programs(0)):
        o_word = i_block * BLOCK + tl.arange(0, BLOCK)
        b_sum += tl.load(source_ptr + o_word, eviction_policy="evict_last")
    total = tl.sum(b_sum, axis=0)
    # The buffer holds zeros: the store never happens, but the compiler cannot drop the loads.
    tl.store(sink_ptr, total, mask=total != 0)


@triton.jit
def _copy_kernel(source_ptr, target_ptr, length, BLOCK: tl.constexpr):
    o_word = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o_word < length
    tl.store(target_ptr + o_word, tl.load(source_ptr + o_word, mask=mask, other=0), mask=mask)


@triton.jit
def _differ_kernel(first_ptr, second_ptr, mark_ptr, length, BLOCK: tl.constexpr):
    o_byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o_byte < length
    first = tl.load(first_ptr + o_byte, mask=mask, other=0)
    second = tl.load(second_ptr + o_byte, mask=mask, other=0)
    different = tl.max((first != second).to(tl.int32), axis=0)
    tl.store(mark_ptr, different, mask=different != 0)


@triton.jit
def _excess_kernel(output_ptr, value_ptr, allowed_ptr, mark_ptr, length, BLOCK: tl.constexpr):
    o_item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o_item < length
    output = tl.load(output_ptr + o_item, mask=mask, other=0).to(tl.float64)
    value = tl.load(value_ptr + o_item, mask=mask, other=0)
    allowed = tl.load(allowed_ptr + o_item, mask=mask, other=0)
    # Comparisons with NaN are false, so a NaN counts as outside.
    outside = tl.max((~(tl.abs(output - value) <= allowed)).to(tl.int32), axis=0)
    tl.store(mark_ptr, outside, mask=outside != 0)


def read_call(source: Tensor, sink: Tensor, programs: int) -> KernelCall:
    """The call that reads `source` (int32, zeros, a multiple of `READ_WORDS` long); `sink` is one int32."""
    return KernelCall(_read_kernel, (programs,), (source, sink, source.numel()), {"BLOCK": READ_WORDS, "num_warps": 8})


def copy(source: Tensor, target: Tensor) -> None:
    """Copy `source` to `target`, float32 of equal length, contiguous."""
    run([copy_call(source, target)])


def copy_call(source: Tensor, target: Tensor) -> KernelCall:
    """The call that copies `source` to `target`, float32 of equal length, contiguous."""
    words = source.numel()
    grid, options = (triton.cdiv(words, _COPY_WORDS),), {"BLOCK": _COPY_WORDS, "num_warps": 4}
    return KernelCall(_copy_kernel, grid, (source, target, words), options)


def mark_difference(first: Tensor, second: Tensor, mark: Tensor) -> None:
    """Set `mark` (one int32) to 1 if two contiguous tensors of equal size differ in a bit; else leave it."""
    first, second = first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8)
    length = first.numel()
    _differ_kernel[(triton.cdiv(length, _DIFFER_BYTES),)](first, second, mark, length, BLOCK=_DIFFER_BYTES, num_warps=8)


def mark_excess(output: Tensor, value: Tensor, allowed: Tensor, mark: Tensor) -> None:
    """Set `mark` (one int32) to 1 if `output` differs from `value` by more than `allowed`; else leave it.

    All tensors are contiguous and on one device: `output` of any dtype, `value` and `allowed` float64 of its size.
    """
    if output.element_size() == 1:  # Triton has no conversion from FP8 to float64
        output = output.float()
    length = output.numel()
    grid = (triton.cdiv(length, _EXCESS_ITEMS),)
    _excess_kernel[grid](output, value, allowed, mark, length, BLOCK=_EXCESS_ITEMS, num_warps=8)
