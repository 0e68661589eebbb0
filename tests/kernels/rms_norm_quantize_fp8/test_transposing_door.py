"""The operator that also transposes, at the door: bytes, legality, spaces, and arguments that it refuses."""

import pytest
import torch

import normtune
from normtune.kernels.calling import dispatch
from normtune.kernels.operator import IllegalConfigError, operator, operators
from normtune.kernels.rms_norm_quantize_fp8.launch import TRANSPOSE, operator_name, scaling_of
from normtune.kernels.rms_norm_quantize_fp8.operator import TransposingConfig
from normtune.kernels.spec_faults import faults
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.plan import candidates, problems

SPEC = operator(operator_name(TRANSPOSE))
TARGET = TARGETS["sm_90"]
CONFIG = TransposingConfig("row", 1, 8)


def test_it_is_taken_by_name_alone_and_without_fault():
    assert SPEC.name in operators() and not SPEC.is_default and not list(faults(SPEC))
    assert [problem.operator for problem in problems([SPEC.name], ["bfloat16"], [(64, 256)])] == [SPEC.name]
    problem = SPEC.problem(8, 64, "bfloat16", "e5m2+with_y+no_amax")
    assert scaling_of(problem) == "static" and SPEC.buffers(problem)[-1].name == "q_t"


def test_bytes_are_those_of_a_perfect_kernel():
    static = operator(operator_name("static"))
    for variant in ("", "with_y+with_residual", "no_amax"):
        moved = [spec.bytes_moved(spec.problem(10, 300, "bfloat16", variant)) for spec in (static, SPEC)]
        assert moved[1] - moved[0] == 10 * 300
    assert next(one for one in SPEC.buffers(SPEC.problem(10, 300, "float32")) if one.name == "q_t").shape == (300, 10)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (CONFIG._replace(transpose_row=16), "block_row is 16: expected a power of two of at least 32"),
        (CONFIG._replace(transpose_col=0), "block_col is 0: expected a power of two of at least 32"),
        (CONFIG._replace(transpose_col=96), "block_col is 96"),
        (CONFIG._replace(transpose_row=512, transpose_col=1024, transpose_warps=32), "elements a thread exceed"),
        (CONFIG._replace(transpose_warps=64), "2048 threads exceed 1024"),
        (CONFIG._replace(num_warps=64), "2048 threads exceed 1024"),
        (CONFIG._replace(schedule="tile"), "schedule 'tile'"),
        (CONFIG._replace(schedule="columns"), "schedule 'columns'"),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason(config, reason):
    with pytest.raises(IllegalConfigError, match=reason):
        SPEC.launch(config, SPEC.problem(4096, 4096, "bfloat16"), TARGET)


def test_a_dtype_without_instructions_is_refused():
    with pytest.raises(IllegalConfigError, match="needs sm_89 or newer, this is sm_80"):
        SPEC.launch(CONFIG, SPEC.problem(8, 64, "bfloat16"), TARGETS["sm_80"])


def test_legality_never_returns():
    for config in SPEC.space("default", SPEC.problem(4096, 4096, "float32"), TARGET):
        legal = [
            SPEC.is_legal(config, SPEC.problem(rows, hidden, "float32"), TARGET)
            for rows, hidden in ((1, 1), (100, 100), (4096, 4096), (1 << 20, 16384), (1 << 30, 65536))
        ]
        assert legal == sorted(legal, reverse=True), config


def test_binaries_differ_by_whether_16_divides_the_rows_and_rows_are_worked_on_alike():
    launches = [SPEC.launch(CONFIG, SPEC.problem(rows, 512, "bfloat16"), TARGET) for rows in (64, 4096, 65, 8)]
    assert launches[0].binary == launches[1].binary != launches[2].binary == launches[3].binary
    assert len({launch.row_sum for launch in launches}) == 1


def test_the_number_of_rows_narrows_no_access_to_rows():
    """The transposed result, whose stride it is, is no tensor of rows; the strides of rows count in both launches."""
    problem = SPEC.problem(33, 512, "bfloat16")
    tensors = {
        one.name: torch.empty(one.shape, dtype=getattr(torch, one.dtype), device="meta")
        for one in SPEC.buffers(problem)
    }
    assert dispatch.alignment_in(SPEC, problem, tensors) == 16
    launch = dispatch.resolved(SPEC, problem, tensors["x"], 16)
    assert (launch.norm.alignment, launch.transpose.alignment, launch.transpose.row_alignment) == (16, 16, 1)
    tensors["x"] = torch.empty(33, 520, dtype=torch.bfloat16, device="meta")[:, :512]
    assert dispatch.alignment_in(SPEC, problem, tensors) == 8
    launch = dispatch.resolved(SPEC, problem, tensors["x"], 8)
    assert (launch.norm.alignment, launch.transpose.alignment) == (8, 8)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [1, 100, 4096, 65536])
def test_spaces_grow_and_hold_the_default_config(hidden):
    for target in (TARGET, TARGETS["gfx942"]):
        problem = SPEC.problem(4096, hidden, "bfloat16")
        sizes = []
        for space in ("default", "full"):
            configs = SPEC.space(space, problem, target)
            kept, _ = candidates(SPEC, configs, problem, target)
            assert SPEC.default_config(problem, target) in configs
            assert len({config.constant_name() for config in configs}) == len(configs)
            sizes.append(len(kept))
        assert sizes == sorted(sizes)
    largest = SPEC.problem(1 << 30, hidden, "float32")
    assert SPEC.is_legal(SPEC.default_config(largest, TARGET), largest, TARGET)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"return_transpose": 1}, TypeError, "return_transpose is 1: expected True or False"),
        (
            {"scaling": "row", "scale": None},
            ValueError,
            "return_transpose is True with scaling 'row': expected 'static' or 'tensor'",
        ),
        ({"scaling": "block", "scale": None}, ValueError, "return_transpose is True with scaling 'block'"),
    ],
)
def test_bad_arguments_are_named(given, error, text):
    arguments = {"x": torch.ones(2, 8), "scale": torch.ones(1), "return_transpose": True} | given
    with pytest.raises(error) as caught:
        normtune.rms_norm_quantize_fp8(**arguments)
    assert text in str(caught.value)


def test_tensors_without_memory_have_shapes():
    x = torch.empty(4, 6, 300, device="meta")
    found = normtune.rms_norm_quantize_fp8(x, scale=torch.empty(1, device="meta"), return_transpose=True)
    assert found.q_t.shape == (300, 24) and found.q_t.is_meta
