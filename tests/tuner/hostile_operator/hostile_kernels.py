"""The kernel of `hostile_spec`."""

import os
import signal
from functools import cache

import torch
import triton
import triton.language as tl
from hostile_spec import FAULTS, ROWS

from normtune.kernels.call import KernelCall

NUMBER = {fault: tl.constexpr(number) for number, fault in enumerate(FAULTS)}
HANG, OUT_OF_BOUNDS, WRONG, NOW_AND_THEN, COMPILER, WRONG_SIZE, HANG_SIZE, BOUNDS_SIZE = (
    NUMBER[fault]
    for fault in (
        *("hang", "out_of_bounds", "wrong", "wrong_now_and_then", "hang_in_compiler"),
        *("wrong_at_one_size", "hang_at_one_size", "out_of_bounds_at_one_size"),
    )
)
SIZE = tl.constexpr(ROWS)


@triton.jit
def _hostile_kernel(
    x_ptr, y_ptr, counter_ptr, rows, hidden, FAULT: tl.constexpr, BLOCK_ROW: tl.constexpr, BLOCK_COL: tl.constexpr
):
    o_row = tl.program_id(0) * BLOCK_ROW + tl.arange(0, BLOCK_ROW)
    o_col = tl.arange(0, BLOCK_COL)
    offsets = o_row[:, None].to(tl.int64) * hidden + o_col[None, :]
    mask = (o_row < rows)[:, None] & (o_col < hidden)[None, :]
    y = 2 * tl.load(x_ptr + offsets, mask=mask, other=0.0)
    if FAULT == HANG or (FAULT == HANG_SIZE and rows == SIZE):
        while tl.load(counter_ptr + 1, volatile=True) == 0:
            y += 1
    if FAULT == OUT_OF_BOUNDS or (FAULT == BOUNDS_SIZE and rows == SIZE):
        offsets += 1 << 44
    if FAULT == WRONG or (FAULT == WRONG_SIZE and rows == SIZE):
        y *= 1.001
    if FAULT == NOW_AND_THEN:
        is_first = tl.program_id(0) == 0
        count = tl.atomic_add(counter_ptr, is_first.to(tl.int32))
        y += (is_first & (count % 50 == 49)).to(tl.float32)
    if FAULT == COMPILER:
        for _ in tl.static_range(1 << 30):
            y += 1
    tl.store(y_ptr + offsets, y, mask=mask)


@cache
def _counter(device):
    return torch.zeros(2, dtype=torch.int32, device=device)


class _Refusing:
    """A kernel that cannot be launched."""

    def __getitem__(self, grid):
        raise ValueError("rows of two and more are beyond me")


def calls(launch, problem, tensors, workspace, eps, offset):
    fault = FAULTS[launch.num_stages - 1]
    compiling = not isinstance(tensors["x"], torch.Tensor)
    if fault == "kill_compiler" and compiling:
        os._exit(9)
    counter = workspace if compiling else _counter(tensors["x"].device)
    if compiling:
        counter.dtype = tl.int32
    elif fault == "out_of_memory":
        torch.empty(1 << 46, dtype=torch.uint8, device=tensors["x"].device)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "raise":
        return (KernelCall(_Refusing(), (launch.grid,), (), {}),)
    options = {"FAULT": launch.num_stages - 1, "BLOCK_ROW": launch.block_row, "BLOCK_COL": launch.block_col}
    args = (tensors["x"], tensors["y"], counter, problem.rows, problem.hidden)
    return (KernelCall(_hostile_kernel, (launch.grid,), args, options | {"num_warps": launch.num_warps}),)
