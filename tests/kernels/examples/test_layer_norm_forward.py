"""LayerNorm's forward, an operator outside of normtune: its spec, its kernel, its function and its file for --load."""

import random
from importlib import import_module
from pathlib import Path

import pytest
import torch

from normtune.kernels import operator
from normtune.kernels.calling import dispatch
from normtune.kernels.spec_faults import faults
from normtune.kernels.target import TARGETS
from normtune.tests.commands import main
from normtune.tests.kernels.launching import assert_within, outputs_of, referenced
from normtune.tests.kernels.registry import registered
from normtune.tuner.plan.plan import candidates

FOLDER = Path(__file__).parents[3] / "examples" / "layer_norm_forward"
TARGET = TARGETS["sm_80"]._replace(sms=3)  # few, so that a fixed grid loops over few rows
X, WEIGHT, BIAS = torch.randn(4, 32), torch.randn(32), torch.randn(32)


@pytest.fixture
def spec(monkeypatch, operators_forgotten):
    monkeypatch.syspath_prepend(FOLDER.parent)
    registered(monkeypatch, import_module("layer_norm_forward.operator").layer_norm_forward)
    return operator.operator("layer_norm_forward")


@pytest.fixture
def layer_norm(spec):
    return import_module("layer_norm_forward.function").layer_norm


def exact(x, weight, bias, eps=1e-5):
    x = x.double()
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight.double(), bias.double(), eps)
    return y, x.mean(-1), torch.rsqrt((x - x.mean(-1, keepdim=True)).square().mean(-1) + eps)


def test_the_declaration_has_no_fault(spec):
    problem = spec.problem(10, 300, "bfloat16")
    assert not [*faults(spec)] and spec.bytes_moved(problem) == 2 * 10 * 300 * 2 + 2 * 300 * 2 + 2 * 10 * 4
    with pytest.raises(
        operator.IllegalConfigError, match="schedule is 'parts': expected one of row, block_row, persistent"
    ):
        spec.launch(spec.config("parts", 1, 4, 1, 1), problem, TARGET)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_every_shape_has_configs_and_legality_never_returns_as_shapes_grow(spec, target):
    draw = random.Random(0)
    for _ in range(40):
        rows, hidden = (sorted(int(2 ** draw.uniform(0, most)) for _ in range(2)) for most in (30, 16))
        dtype, space = draw.choice(spec.dtypes), draw.choice(("default", "full"))
        small, large = (spec.problem(*shape, dtype) for shape in zip(rows, hidden, strict=True))
        assert candidates(spec, spec.space(space, large, target), large, target)[0]
        assert spec.is_legal(spec.default_config(large, target), large, target)
        for config in spec.space(space, small, target):
            assert spec.is_legal(config, small, target) or not spec.is_legal(config, large, target), config


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(8, 64), (2, 3, 37), (5,), (0, 16)])
def test_a_cpu_has_the_values_of_torch(layer_norm, shape, dtype):
    x, weight, bias = (torch.randn(size).to(dtype).requires_grad_() for size in (shape, shape[-1:], shape[-1:]))
    for output, value in zip(layer_norm(x, weight, bias, 1e-3), exact(x, weight, bias, 1e-3), strict=True):
        assert output.dtype == (dtype if output.shape == shape else torch.float32) and not output.requires_grad
        torch.testing.assert_close(output, value.to(output.dtype))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([[1.0]], WEIGHT, BIAS), TypeError, r"x is \[\[1.0\]\]: expected a tensor"),
        ((X.int(), WEIGHT, BIAS), ValueError, "x is torch.int32: expected bfloat16, float16, float32 or float64"),
        ((X, None, BIAS), TypeError, "weight is None: expected a tensor"),
        ((X, WEIGHT, BIAS[:3]), ValueError, r"bias has shape \(3,\): expected \(32,\), the last dimension of x"),
        ((X, WEIGHT, BIAS, 32), ValueError, "eps is 32: expected less than 1"),
    ],
)
def test_bad_arguments_are_named(layer_norm, arguments, error, text):
    with pytest.raises(error, match=text):
        layer_norm(*arguments)


@pytest.mark.long
def test_a_file_of_a_package_is_loaded(spec, monkeypatch):
    monkeypatch.delitem(operator._OPERATORS, spec.name)
    done = main("sweep", "--load", FOLDER / "operator.py", "--operator", spec.name, "--shapes", "8x64", "--dry-run")
    assert done.exit_code == 0 and "1 problems, " in done.output, done.output


@pytest.mark.interpreter
@pytest.mark.usefixtures("counted_loops")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("rows", "hidden"), [(7, 64), (33, 100), (1, 1), (19, 1), (130, 5), (1, 77), (11, 1000)])
def test_interpreted_outputs_are_within_rounding(spec, rows, hidden, dtype):
    problem = spec.problem(rows, hidden, dtype)
    launches, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    inputs, expected = referenced(spec, problem, rows * hidden)
    for config, launch in random.Random(hidden).choices(launches, k=8):
        assert_within(outputs_of(spec, problem, launch, inputs), expected, f"{config}")


@pytest.mark.slow
@pytest.mark.interpreter
def test_the_interpreted_function_reads_strided_rows_and_has_an_operator_of_torch(layer_norm):
    x, weight, bias = torch.randn(6, 80)[:, 3:36], torch.randn(33), torch.randn(33).double()
    for output, value in zip(layer_norm(x, weight, bias), exact(x, weight, bias), strict=True):
        torch.testing.assert_close(output, value.float())
    compiled = torch.compile(layer_norm, backend="eager", fullgraph=True)
    assert all(map(torch.equal, compiled(x, weight, bias), layer_norm(x, weight, bias)))
    torch.library.opcheck(torch.ops.normtune.layer_norm.default, (x, weight, bias, 1e-5, None))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 4096), (4099, 64), (1000, 1000), (513, 8192), (70, 65536)])
def test_the_function_is_right_with_every_config(spec, layer_norm, target, monkeypatch, rows, hidden, dtype):
    problem = spec.problem(rows, hidden, dtype)
    inputs, expected = referenced(spec, problem, device="cuda")
    for config, _ in candidates(spec, spec.space("default", problem, target), problem, target)[0]:
        monkeypatch.setattr(dispatch, "config_for", lambda *_, config=config: config)
        dispatch.forget_launches()
        assert_within(dict(zip(expected, layer_norm(**inputs), strict=True)), expected, f"{config}")
