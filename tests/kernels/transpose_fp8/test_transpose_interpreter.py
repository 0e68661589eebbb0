"""The transposition beside torch's own, bit for bit, by Triton's interpreter."""

import pytest
import torch

import normtune
from normtune.kernels.operator import operator
from normtune.kernels.target import TARGETS
from normtune.kernels.transpose_fp8.function import TRANSPOSE
from normtune.kernels.transpose_fp8.operator import TransposeConfig
from normtune.tuner.timing import gate as timing_gate
from normtune.tuner.timing.gate import gate

pytestmark = pytest.mark.interpreter

SPEC = operator("transpose_fp8")
TARGET = TARGETS["sm_80"]
DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.uint8, torch.int8]
SHAPES = [(1, 1), (32, 32), (64, 64), (65, 31), (16, 300), (300, 1), (1, 300), (200, 130)]


def matrix(rows, columns):
    return torch.randint(0, 256, (rows, columns), dtype=torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_are_those_of_torch(shape, dtype):
    x = matrix(*shape)
    found = normtune.transpose_fp8(x.view(dtype))
    assert found.dtype == dtype and found.is_contiguous() and found.shape == shape[::-1]
    assert torch.equal(found.view(torch.uint8), x.t())


@pytest.mark.parametrize(
    "config", [TransposeConfig(32, 32, 1), TransposeConfig(128, 32, 4), TransposeConfig(32, 256, 8)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_tile_writes_its_elements_and_no_others(shape, config):
    rows, columns = shape
    problem = SPEC.problem(rows, columns, "bfloat16")
    x = matrix(rows, columns + 16)[:, :columns].view(torch.float8_e5m2)
    around = torch.full((rows * columns + 64,), 0x35, dtype=torch.uint8)
    y = around[32:-32].view(torch.float8_e5m2).view(columns, rows)
    launch = SPEC.launch(config, problem, TARGET, 1)
    for call in SPEC.calls(launch, problem, {"x": x, "y": y}, None, {}):
        call.kernel[call.grid](*call.args, **call.options)
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8).t())
    assert (around[:32] == 0x35).all() and (around[-32:] == 0x35).all()


def test_other_strides_and_no_elements():
    x = matrix(40, 96)
    for view in (x.t(), x[::2], x[:, 3:50], x[:, ::3], x[1:2].expand(5, 96)):
        assert torch.equal(normtune.transpose_fp8(view), view.t())
    assert normtune.transpose_fp8(x[:0]).shape == (96, 0) and normtune.transpose_fp8(x[:, :0]).shape == (0, 40)


def test_launches_are_kept_and_any_batch_invariance_serves():
    member = TRANSPOSE._op_of(())
    normtune.use_table("auto")
    with normtune.batch_invariant():
        first = [normtune.transpose_fp8(matrix(33, 64)) for _ in range(3)]
    assert len(member.operation.plans) == 1 and first[0].data_ptr() != first[1].data_ptr()
    normtune.transpose_fp8(matrix(34, 64))
    assert len(member.operation.plans) == 2


@pytest.mark.slow
def test_the_gate_passes(monkeypatch):
    monkeypatch.setattr(timing_gate, "CALLS", 2)
    for rows in (48, 49):
        problem = SPEC.problem(rows, 100, "bfloat16")
        config = SPEC.default_config(problem, TARGET)
        gate(SPEC, problem, (config, SPEC.launch(config, problem, TARGET)), TARGET, torch.device("cpu"))


def test_the_operator_keeps_the_rules_of_the_dispatcher():
    x = matrix(30, 50).view(torch.float8_e5m2)
    torch.library.opcheck(
        torch.ops.normtune.transpose_fp8.default,
        (x, None),
        test_utils=("test_autograd_registration", "test_faketensor"),
    )
    compiled = torch.compile(normtune.transpose_fp8, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x).view(torch.uint8), x.view(torch.uint8).t())
