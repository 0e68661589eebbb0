"""The operators at the door: taken by name, honest about bytes, with FP8 in their buffers and not in their problems."""

import pytest
import torch

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.fake_tensor import FakeTensor
from normtune.kernels.operator import OperatorSpec, operator, operators, read_config
from normtune.kernels.problem import BUFFER_ITEMSIZE, INTEGERS, ITEMSIZE, Buffer
from normtune.kernels.rms_norm_quantize_fp8.launch import (
    LARGEST,
    SCALINGS,
    NormOutput,
    QuantizedDtype,
    Residual,
    operator_name,
    resolve,
)
from normtune.kernels.rms_norm_quantize_fp8.operator import QuantizeConfig
from normtune.kernels.spec_faults import faults
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.plan import SPACES, candidates, plan, problems
from normtune.tuner.timing.arena import Arena

NAMES = [operator_name(scaling) for scaling in SCALINGS]
TARGET = TARGETS["sm_90"]


def test_commands_take_them_by_name_alone():
    assert set(NAMES) <= set(operators())
    assert not set(NAMES) & {problem.operator for problem in problems([], ["float32"], [(8, 64)])}
    wanted = problems([f"{NAMES[0]}:no_amax", *NAMES], ["bfloat16"], [(64, 256)])
    assert [problem.key.text for problem in wanted] == [f"{NAMES[0]}:no_amax", *NAMES]
    assert len(plan(wanted, "portfolio", TARGET).tasks) == 5
    with pytest.raises(UsageError, match="unknown operator 'rms_norm_quantize_fp8'"):
        operator("rms_norm_quantize_fp8")


@pytest.mark.parametrize("scaling", SCALINGS)
def test_variants_name_what_is_asked_for(scaling):
    spec = operator(operator_name(scaling))
    assert spec.variant(NormOutput.STORED, QuantizedDtype.E5M2) == "e5m2+with_y"
    assert spec.variant(Residual.ROUNDED) == "with_residual+rounded_sum"
    each = [spec.problem(8, 64, "bfloat16", spec.variant(dtype)) for dtype in QuantizedDtype]
    stored = [next(one.dtype for one in spec.buffers(problem) if one.name == "q") for problem in each]
    assert stored == list(LARGEST) and [QuantizedDtype.of(one).largest for one in each] == [*LARGEST.values()]


def test_bytes_are_those_of_a_perfect_kernel():
    moved = {name: operator(name).bytes_moved(operator(name).problem(10, 300, "bfloat16")) for name in NAMES}
    tensors = 10 * 300 * 3 + 300 * 2
    assert list(moved.values()) == [tensors + 4 + 4, tensors + 40, tensors + 10 * 3 * 4, tensors + 4 + 4]
    column_major = operator(NAMES[2]).problem(10, 300, "bfloat16", "column_major+with_y+with_residual")
    assert operator(NAMES[2]).bytes_moved(column_major) == tensors + 12 * 3 * 4 + 3 * 2 * 10 * 300
    for name in NAMES:
        sums = [operator(name).problem(10, 300, "bfloat16", f"with_residual{one}") for one in ("", "+rounded_sum")]
        assert len({operator(name).bytes_moved(problem) for problem in sums}) == 1


def test_fp8_is_a_dtype_of_buffers_and_of_no_problem():
    assert set(ITEMSIZE) == {"bfloat16", "float16", "float32"}
    for name in set(BUFFER_ITEMSIZE) - set(ITEMSIZE) - set(INTEGERS):
        assert Buffer("q", (3, 5), name, "output").nbytes == 15
        assert getattr(torch, name).itemsize == FakeTensor(name, (3, 5)).element_size() == 1
    with pytest.raises(ValueError, match="unknown dtype 'float8_e4m3fn'"):
        operator(NAMES[0]).problem(8, 64, "float8_e4m3fn")
    good = operator(NAMES[0])
    assert not list(faults(good))
    bad = OperatorSpec(**{**vars(good), "dtypes": ("float8_e5m2",)})
    assert any("dtype 'float8_e5m2': expected some of bfloat16, float16, float32" in line for line in faults(bad))


def test_the_arena_fills_inputs_with_finite_values_and_indices_with_zeros():
    buffers = [Buffer(name, (64, 64), name, "input") for name in BUFFER_ITEMSIZE]
    for name, tensor in Arena(torch.device("cpu"), 1).slices(buffers, 1)[0].items():
        assert tensor.dtype == getattr(torch, name) and tensor.float().isfinite().all()
        assert tensor.float().any() == (name not in INTEGERS)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_spaces_grow_and_their_configs_are_stored_and_named(scaling):
    spec = operator(operator_name(scaling))
    for hidden in (64, 1000, 4096, 16384, 65536):
        problem = spec.problem(4096, hidden, "bfloat16")
        sizes = []
        for space in ("default", "full"):
            kept, _ = candidates(spec, spec.space(space, problem, TARGET), problem, TARGET)
            sizes.append(len(kept))
            assert space in SPACES and kept
        assert sizes == sorted(sizes)
        configs = spec.space("default", problem, TARGET)
        assert len({config.constant_name() for config in configs}) == len(configs)
        assert all(type(read_config(spec.name, config.to_json())) is QuantizeConfig for config in configs)


def test_what_cannot_run_is_refused():
    spec = operator(NAMES[0])
    config = QuantizeConfig("block_row", 4, 4)
    assert resolve(config, spec.problem(1 << 30, 256, "float32"), TARGET).workspace == 0
    assert spec.is_legal(config, spec.problem(4, 256, "float32", "no_amax"), TARGET)
    assert not spec.is_legal(Config.from_json('{"block_row":4}'), spec.problem(4, 256, "float32"), TARGET)
    blocks = operator(NAMES[2])
    cut = QuantizeConfig("split", 1, 1, block_col=64)
    assert not blocks.is_legal(cut, blocks.problem(4, 256, "float32"), TARGET)
