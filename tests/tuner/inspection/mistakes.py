"""Operators with one mistake each, as people make them, and one without; each doubles its input or sums its rows."""

from typing import Annotated

import torch
import triton
import triton.language as tl

from normtune import Config, kernel_operator


class TileConfig(Config):
    """How the kernels are launched."""

    block: Annotated[int, "elements a program."] = 64
    num_warps: Annotated[int, "warps a program."] = 4


@triton.jit
def _double(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


@triton.jit
def _scaled(x_ptr, y_ptr, count, factor, BLOCK: tl.constexpr):
    """Its factor is fp64 where Inductor launches it."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


@triton.jit
def _scaled_in_fp32(x_ptr, y_ptr, count, factor, unused, BLOCK: tl.constexpr):
    """A cast at the first use, and a float that no arithmetic reads."""
    factor = factor.to(tl.float32)
    _scaled(x_ptr, y_ptr, count, factor, BLOCK)


@triton.jit
def _scaled_by_turns(x_ptr, y_ptr, count, factor, BLOCK: tl.constexpr):
    """Its sum is float32 before the loop."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(x_ptr + offsets, mask=offsets < count).to(tl.float32)
    b_sum = tl.zeros((BLOCK,), tl.float32)
    for _ in range(1):
        b_sum += b_x * factor
    tl.store(y_ptr + offsets, b_sum, mask=offsets < count)


@triton.jit
def _scaled_in_a_tuple(x_ptr, y_ptr, count, factor, BLOCK: tl.constexpr):
    """The same, where Triton compares no types before it verifies the whole kernel."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(x_ptr + offsets, mask=offsets < count).to(tl.float32)
    t_sum = (tl.zeros((BLOCK,), tl.float32),)
    for _ in range(1):
        t_sum = (t_sum[0] + b_x * factor,)
    tl.store(y_ptr + offsets, t_sum[0], mask=offsets < count)


@triton.jit
def _unmasked_store(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < count) * 2)


@triton.jit
def _unmasked_load(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets) * 2, mask=offsets < count)


@triton.jit
def _row_sums(x_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
    """Each program adds its part of a row to what is there, without an atomic."""
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * hidden + offsets, mask=offsets < hidden, other=0.0)
    before = tl.load(y_ptr + tl.program_id(0), mask=tl.program_id(1) > 0, other=0.0)
    tl.store(y_ptr + tl.program_id(0), before + tl.sum(x.to(tl.float32), axis=0))


@triton.jit
def _racing_rows(x_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
    """All rows go to the first."""
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * hidden + offsets, mask=offsets < hidden)
    tl.store(y_ptr + offsets, x * 2, mask=offsets < hidden)


@triton.jit
def _rows_in_turn(x_ptr, y_ptr, rows, hidden, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Each program takes the row a step behind that of the last one, which is all rows if they share no factor."""
    row = tl.program_id(0) * STEP % rows
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * hidden + offsets, mask=offsets < hidden)
    tl.store(y_ptr + row * hidden + offsets, x * 2, mask=offsets < hidden)


@triton.jit
def _rounded_norm(x_ptr, w_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
    """Rounds the normalized row to its dtype before it is multiplied by the weight, as Liger's RMSNorm does."""
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * hidden + offsets, mask=offsets < hidden, other=0.0)
    wide = x.to(tl.float32)
    norm = (wide * tl.rsqrt(tl.sum(wide * wide) / hidden + 1e-6)).to(x.dtype)
    tl.store(
        y_ptr + tl.program_id(0) * hidden + offsets,
        norm * tl.load(w_ptr + offsets, mask=offsets < hidden),
        mask=offsets < hidden,
    )


@triton.jit
def _in_place(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask) * 2
    tl.store(x_ptr + offsets, x, mask=mask)
    tl.store(y_ptr + offsets, x, mask=mask)


def operator(name, function, **changes):
    """Register a function as the operator `name`, of a sound declaration with some of it changed."""
    arguments = {
        "config": TileConfig,
        "space": {"block": (64, 128), "num_warps": (1, 4)},
        "buffers": {"x": "input", "y": "output"},
        "reference": lambda x: 2 * x,
        "name": name,
    }
    return kernel_operator(**(arguments | changes))(function)


def launching(kernel, block="block", warps="num_warps", rounds_down=False, swapped=False):
    """A function that launches a kernel over all elements, the block from this knob."""

    def function(x, y, config):
        width = getattr(config, block)
        programs = x.numel() // width if rounds_down else triton.cdiv(x.numel(), width)
        first, second = (y, x) if swapped else (x, y)
        kernel[(programs,)](first, second, x.numel(), BLOCK=width, num_warps=getattr(config, warps))

    return function


def without_warps(x, y, config):
    """Does not pass a knob on."""
    _double[(triton.cdiv(x.numel(), config.block),)](x, y, x.numel(), BLOCK=config.block)


def reading(x, y, config):
    """Reads a value of the device."""
    count = int((x > 0).sum().item())
    _double[(1,)](x, y, count, BLOCK=config.block, num_warps=config.num_warps)


def never_returned(x, y, config):
    """Writes to a tensor of its own."""
    launching(_double)(x, torch.empty_like(x), config)


def returning_nothing(x, config):
    """Allocates its output and forgets to return it."""
    launching(_double)(x, torch.empty_like(x), config)


def twice(x, y, config):
    """Two kernels write one output."""
    launching(_double)(x, y, config)
    launching(_double)(x, y, config)


def forgetful(x, y, config):
    """Gives its kernel too few arguments."""
    _double[(triton.cdiv(x.numel(), config.block),)](x, y, BLOCK=config.block, num_warps=config.num_warps)


def odd_block(x, y, config):
    """A block that is no power of two."""
    _double[(triton.cdiv(x.numel(), 96),)](x, y, x.numel(), BLOCK=96 + 0 * config.block, num_warps=config.num_warps)


def on_the_cpu(x, config):
    """Allocates without a device."""
    y = torch.empty(x.shape, dtype=x.dtype)
    launching(_double)(x, y, config)
    return y


def of_another_dtype(x, config):
    """Returns float32 whatever its input is."""
    y = torch.empty_like(x, dtype=torch.float32)
    launching(_double)(x, y, config)
    return y


def summing(x, y, config):
    """Sums rows in parts, in programs that do not wait for each other."""
    _row_sums[(x.shape[0], triton.cdiv(x.shape[1], 16))](x, y, x.shape[1], BLOCK=16, num_warps=config.num_warps)


def racing(x, y, config):
    """Each program writes the same row."""
    block = triton.next_power_of_2(x.shape[1])
    _racing_rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=block, num_warps=config.num_warps)


def in_turn(step, more):
    """Some programs more than there are rows take every few rows in turn."""

    def function(x, y, config):
        block = triton.next_power_of_2(x.shape[1])
        _rows_in_turn[(x.shape[0] + more,)](
            x, y, x.shape[0], x.shape[1], STEP=step, BLOCK=block, num_warps=config.num_warps
        )

    return function


def rounded_norm(x, w, y, config):
    """One rounding more than the tolerance allows, by a little."""
    block = triton.next_power_of_2(x.shape[1])
    _rounded_norm[(x.shape[0],)](x, w, y, x.shape[1], BLOCK=block, num_warps=config.num_warps)


def unknown_option(x, y, config):
    """Passes what neither kernel nor compiler takes."""
    _double[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64, BLOCKS=1, num_warps=config.num_warps)


def without_import(x, y, config):
    """Uses a module that it does not import."""
    math.ceil(x.numel() / config.block)  # noqa: F821 - the mistake


def scaling(kernel, *floats):
    """A function that launches a kernel with floats in place of factors that are written in it."""

    def function(x, y, config):
        programs = triton.cdiv(x.numel(), config.block)
        kernel[(programs,)](x, y, x.numel(), *floats, BLOCK=config.block, num_warps=config.num_warps)

    return function


def of_two(x, bias, y, config):
    """Does not pass an input on."""
    launching(_double)(x, y, config)


right = launching(_double)
operator("right", right, implementations={"torch": lambda x: 2 * x})
operator("knob_misspelt", launching(_double, block="blok"))
operator("knob_not_passed_on", without_warps)
operator("host_read", reading)
operator("never_returned", never_returned)
operator("returning_nothing", returning_nothing)
operator("two_kernels", twice)
operator("argument_forgotten", forgetful)
operator("odd_block", odd_block, space={"block": (64,), "num_warps": (1, 4)})
operator("swapped", launching(_double, swapped=True))
operator("input_written", launching(_in_place))
operator("low_reference", right, reference=lambda x: 2 * x.half())
operator("other_shape", right, reference=lambda x: 2 * x[:, :-1])
operator("reference_of_none", right, reference=lambda x: None)
operator("import_missing", right, reference=lambda x: numpy.add(x, x))  # noqa: F821 - the mistake
operator("function_without_import", without_import)
operator("unmasked_store", launching(_unmasked_store))
operator("unmasked_load", launching(_unmasked_load))
operator("rounds_down", launching(_double, rounds_down=True))
operator("racing_rows", racing, space={"block": (64,), "num_warps": (1, 4)})
operator(
    "racing_sums",
    summing,
    space={"block": (64,), "num_warps": (1, 4)},
    buffers={"x": "input", "y": "output rows float32"},
    reference=lambda x: x.sum(1),
)
operator("rows_in_turn", in_turn(4, 0), space={"block": (64,), "num_warps": (1, 4)})
operator("rows_repeated", in_turn(1, 2), space={"block": (64,), "num_warps": (1, 4)})
operator(
    "rounded_on_the_way",
    rounded_norm,
    space={"block": (64,), "num_warps": (1, 4)},
    buffers={"x": "input", "w": "weight", "y": "output"},
    reference=lambda x, w: x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * w,
)
operator("cpu_tensor", on_the_cpu)
operator("other_dtype", of_another_dtype)
operator("unknown_option", unknown_option, space={"block": (64,), "num_warps": (1, 4)})
operator(
    "input_forgotten", of_two, buffers={"x": "input", "bias": "weight", "y": "output"}, reference=lambda x, bias: 2 * x
)
operator("never_legal", right, legal=lambda config, problem, target: False)
operator("wrong_factor", right, reference=lambda x: 3 * x)
operator("infinite_reference", right, reference=lambda x: 2 * x / (x - x))
operator("nothing_launched", lambda x, y, config: None)
operator("float_promoted", scaling(_scaled, 2.0))
operator("float_in_a_loop", scaling(_scaled_by_turns, 2.0))
operator("float_in_a_tuple", scaling(_scaled_in_a_tuple, 2.0))
operator("float_cast", scaling(_scaled_in_fp32, 2.0, 3.0))
