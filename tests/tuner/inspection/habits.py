"""Operators of which each does what a library does before, in or around its launches, and is right."""

import importlib.util
from typing import Annotated

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from normtune import Config, IllegalConfigError, kernel_operator

STAGES = 2 if torch.cuda.get_device_capability()[0] < 8 else 3  # as attorch asks when it is imported
# xFormers' copy of a module.
LIBDEVICE = importlib.util.find_spec("triton.language.extra.libdevice")
COPY = importlib.util.module_from_spec(LIBDEVICE)
LIBDEVICE.loader.exec_module(COPY)
rsqrt = COPY.rsqrt


class TileConfig(Config):
    """How the kernels are launched."""

    BLOCK: Annotated[int, "elements a program."] = 64
    num_warps: Annotated[int, "warps a program."] = 4


@triton.jit
def _scale_kernel(x_ptr, y_ptr, count, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    scaled = tl.load(x_ptr + offsets, mask=mask) * factor.to(tl.float32)
    tl.store(y_ptr + offsets, scaled.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _descriptor_kernel(x, y, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    y.store([row, tl.program_id(1) * WIDTH], x.load([row, tl.program_id(1) * WIDTH]) * 2)


@triton.jit
def _length_kernel(x_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * hidden + offsets, mask=offsets < hidden, other=0.0).to(tl.float32)
    tl.store(y_ptr + tl.program_id(0), rsqrt(tl.sum(x * x) + 1e-6))


def right(function, reference, **changes):
    """Declare a function with the reference of its output y."""
    arguments = {
        "config": TileConfig,
        "space": {"BLOCK": (64, 128), "num_warps": (1, 4)},
        "buffers": {"x": "input", "y": "output"},
        "reference": reference,
    }
    kernel_operator(**(arguments | changes))(function)


def programs_of(x):
    """The grid of the kernel that scales."""
    return lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)


def by_position(x):
    y = torch.empty_like(x)
    _scale_kernel[programs_of(x)](x, y, x.numel(), 2.0, 1024)
    return y


def asks_for_the_gpu(x):
    """As batch_invariant_ops, which also prints."""
    print("a GPU" if x.is_cuda and torch.accelerator.current_accelerator().type == "cuda" else "no GPU")
    assert x.device.type == "cuda"
    y = torch.empty(x.shape, dtype=x.dtype, device="cuda")
    with torch.cuda.device(x.device.index):
        _scale_kernel[programs_of(x)](x, y, x.numel(), 2.0, BLOCK=64, num_stages=STAGES)
    return y


def asks_in_many_ways(x):
    """As vLLM's gated norm makes the GPU current, and others ask for its streams, memory and properties."""
    properties = torch.cuda.get_device_properties(x.device)
    assert properties.major == 9 and properties.shared_memory_per_block_optin > properties.shared_memory_per_block
    assert torch.cuda.mem_get_info()[0] <= properties.total_memory and torch.cuda.is_bf16_supported()
    assert torch.accelerator.is_available() and torch.accelerator.current_device_index() == torch.cuda.current_device()
    assert triton.runtime.driver.active.get_active_torch_device() == x.device
    assert triton.runtime.driver.active.get_device_interface().get_device_capability() == (9, 0)
    y = torch.empty_like(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.accelerator.device_index(x.device.index), torch.cuda.stream(side), torch.cuda.nvtx.range("scale"):
        _scale_kernel[programs_of(x)](x, y, x.numel(), 2.0, BLOCK=64)
    x.record_stream(side)
    torch.accelerator.current_stream().wait_stream(side)
    torch.accelerator.synchronize()
    return y


def by_descriptor(x, y, config):
    """Both tensors as descriptors that the host makes, of rows of a multiple of 16 bytes."""
    if x.shape[1] % 16:
        raise IllegalConfigError("rows of other lengths have no descriptor")
    blocks = [1, 16]
    _descriptor_kernel[(x.shape[0], triton.cdiv(x.shape[1], 16))](
        TensorDescriptor.from_tensor(x, blocks),
        TensorDescriptor.from_tensor(y, blocks),
        WIDTH=16,
        num_warps=config.num_warps,
    )


def by_a_list(x):
    y = torch.empty_like(x)
    _scale_kernel[[triton.cdiv(x.numel(), 64)]](x, y, x.numel(), 2.0, BLOCK=64)
    return y


def by_a_listed_function(x, y, config):
    def grid(meta):
        return [triton.cdiv(x.numel(), meta["BLOCK"])]

    _scale_kernel[grid](x, y, x.numel(), 2.0, BLOCK=config.BLOCK, num_warps=config.num_warps)


def saturates(x):
    y = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    _scale_kernel[programs_of(x)](x, y, x.numel(), 100.0, BLOCK=64)
    return y


def length(x):
    y = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    _length_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@torch.library.custom_op("normtune_habits::double_into", mutates_args={"y"})
def double_into(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.is_cuda
    _scale_kernel[programs_of(x)](x, y, x.numel(), 2.0, BLOCK=64)


def by_custom_op(x):
    y = torch.empty_like(x)
    double_into(x, y)
    return y


@torch.library.triton_op("normtune_habits::doubled", mutates_args={})
def by_triton_op(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.library.wrap_triton(_scale_kernel)[programs_of(x)](x, y, x.numel(), 2.0, BLOCK=64)
    return y


def by_wrapped_kernel(x):
    y = torch.empty_like(x)
    torch.library.wrap_triton(_scale_kernel)[programs_of(x)](x, y, x.numel(), 2.0, BLOCK=64)
    return y


right(by_position, lambda x: 2 * x, space=(TileConfig(64, 1), TileConfig(128, 4)))  # warps are never alone
right(asks_for_the_gpu, lambda x: 2 * x)
right(asks_in_many_ways, lambda x: 2 * x)
right(by_descriptor, lambda x: 2 * x, space=(TileConfig(64, 1), TileConfig(64, 4)))
right(by_a_list, lambda x: 2 * x)
right(by_a_listed_function, lambda x: 2 * x)
right(saturates, lambda x: (100 * x).clamp(-448, 448), buffers={"x": "input", "y": "output float8_e4m3fn"})
right(
    length,
    lambda x: torch.rsqrt(x.square().sum(1) + 1e-6),
    buffers={"x": "input", "y": "output rows float32"},
    space=(TileConfig(128, 1), TileConfig(128, 4)),
    max_hidden=128,
)
right(by_custom_op, lambda x: 2 * x)
right(lambda x: by_triton_op(x), lambda x: 2 * x, name="by_triton_op")
right(by_wrapped_kernel, lambda x: 2 * x)
