"""The order in which the compiler sums a row for sm_90: the same in parts and in whole rows, where bits must be."""

import re

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import TARGETS

TARGET = TARGETS["sm_90"]
NAMES = ("rms_norm_forward", "fused_add_rms_norm_forward", "rms_norm_gated_forward")
TYPES = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}


class Shaped:
    """A contiguous tensor that has no memory."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype

    def stride(self, axis=None):
        strides = (*self.shape[1:], 1)
        return strides if axis is None else strides[axis]


def layouts(spec, schedule, problem, warps, wide):
    """Of each sum over a row the operand's type with its layout, in the compiler's text."""
    launch = spec.launch(RMSNormConfig(schedule, 1, warps, 1, 1), problem, TARGET)
    tensors = {
        buffer.name: Shaped(buffer.shape, "float32" if buffer.name in wide else buffer.dtype)
        for buffer in spec.buffers(problem)
    }
    (call,) = spec.kernels().calls(launch, problem, tensors, None, **spec.scalars)
    names = call.kernel.arg_names
    values = dict(zip(names, call.args, strict=False)) | {
        name: value for name, value in call.options.items() if name in names
    }
    signature, constants, aligned = {}, {}, {}
    for place, name in enumerate(names):
        value = values[name]
        if call.kernel.params[place].is_constexpr or value is None:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, Shaped):
            signature[name], aligned[(place,)] = TYPES[value.dtype], [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(call.kernel, signature, constexprs=constants, attrs=aligned)
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ttgir"]
    known = dict(re.findall(r"(#\w+) = (#ttg\.[^\n]*)", text))
    found = re.findall(rf"(tensor<1x{launch.block_col}xf32, (#\w+)>)\) -> tensor<1xf32", text)
    assert bool(launch.slice_col) == (schedule == "parts")
    return [known[layout] for _, layout in found]


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("hidden", "warps"), [(4096, 8), (4096, 32), (5001, 8), (12288, 16), (32768, 32)])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_in_parts_is_summed_as_a_whole_one(name, hidden, warps, dtype):
    spec = operator(name)
    problem = spec.problem(1, hidden, dtype)
    for wide in ((), ("weight", "residual", "s")):
        whole, parts = (layouts(spec, schedule, problem, warps, wide) for schedule in ("row", "parts"))
        assert whole == parts and len(whole) == 1
