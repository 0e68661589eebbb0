"""One computed scale for all rows: the launches, their order, and the function."""

import pytest
import torch

import normtune
from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8.launch import operator_name
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import calls_of, nan_outputs, outputs_of
from normtune.tuner.plan.plan import candidates

pytestmark = pytest.mark.interpreter

TARGET = TARGETS["sm_89"]._replace(sms=3)
STATIC, TENSOR = operator(operator_name("static")), operator(operator_name("tensor"))
ALL = "with_y+with_residual+with_rstd"


def case(rows=9, hidden=1100):
    generator = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(rows, hidden, generator=generator) for _ in range(2))
    x[rows - 1] *= 0.01
    return {"x": x, "weight": torch.rand(hidden, generator=generator), "residual": residual}


def kinds(problem):
    kept, _ = candidates(TENSOR, TENSOR.space("full", problem, TARGET), problem, TARGET)
    return {one.config.schedule: one for one in kept}


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.slow
def test_outputs_are_those_of_the_scale_if_it_were_given():
    problem = TENSOR.problem(9, 1100, "float32", ALL)
    assert kinds(problem).keys() == {"row", "block_row", "persistent", "split"}
    for config, launch in kinds(problem).values():
        inputs = case()
        found = outputs_of(TENSOR, problem, launch, inputs)
        assert torch.equal(found["scale"], found["amax"] / torch.tensor(448.0))
        given = STATIC.problem(9, 1100, "float32", ALL)
        wanted = outputs_of(STATIC, given, STATIC.launch(config, given, TARGET), inputs | {"scale": found["scale"]})
        assert all(torch.equal(bits(found[name]), bits(wanted[name])) for name in wanted), config


def test_it_takes_one_launch_more_and_the_first_writes_the_amax_alone():
    problem = TENSOR.problem(9, 1100, "float32", ALL)
    for config, launch in kinds(problem).values():
        outputs = {name: one.float().fill_(7).to(one.dtype) for name, one in nan_outputs(TENSOR, problem).items()}
        calls = calls_of(TENSOR, problem, launch, case() | outputs)
        given = STATIC.problem(9, 1100, "float32", ALL)
        tensors = {one.name: torch.empty(one.shape) for one in STATIC.buffers(given)}
        fixed = STATIC.calls(STATIC.launch(config, given, TARGET), given, tensors, tensors["amax"], STATIC.scalars)
        assert len(calls) == len(fixed) + 1 == 3
        run(calls[:-1])
        untouched = {name for name, tensor in outputs.items() if (tensor.float() == 7).all()}
        assert untouched == {"q", "y", "sum", "rstd", "scale"}


def test_rows_have_the_same_bits_in_batches_of_one_amax():
    inputs = case()
    largest = normtune.rms_norm(inputs["x"], inputs["weight"]).abs().amax(1).argmax().item()
    options = {"scaling": "tensor", "batch_invariant": True}
    whole = normtune.rms_norm_quantize_fp8(inputs["x"], inputs["weight"], **options)
    part = normtune.rms_norm_quantize_fp8(inputs["x"][largest:], inputs["weight"], **options)
    assert torch.equal(whole.scale, part.scale) and torch.equal(bits(whole.q)[largest:], bits(part.q))


@pytest.mark.parametrize("mode", [False, True])
def test_no_rows_have_the_scale_of_the_least_amax(mode):
    found = normtune.rms_norm_quantize_fp8(
        torch.ones(0, 8), torch.ones(8), scaling="tensor", least_amax=7.0, return_rstd=True, batch_invariant=mode
    )
    assert found.scale.item() == 7 / 448 and found.amax.item() == 0
    assert found.q.shape == (0, 8) and found.rstd.shape == (0,)


def test_the_transpose_is_that_of_q_in_leading_dimensions():
    inputs = case(8)
    x = inputs["x"].view(2, 4, 1100)
    found = normtune.rms_norm_quantize_fp8(x, inputs["weight"], scaling="tensor", return_transpose=True)
    assert found.q.shape == x.shape and found.scale.shape == found.amax.shape == (1,)
    assert found.q_t.is_contiguous() and torch.equal(bits(found.q_t), bits(found.q).view(8, 1100).t())


def test_rounding_as_a_quantization_after_the_norm():
    """Transformer Engine's current scaling, torchao's tensorwise: an amax of the rounded norm, and a scale of that."""
    inputs = case()
    x, weight = inputs["x"].half(), inputs["weight"].half()
    y = normtune.rms_norm(x, weight)
    found = normtune.rms_norm_quantize_fp8(
        x, weight, scaling="tensor", rounding="norm", least_amax=1e-12, return_y=True
    )
    assert torch.equal(found.y, y) and torch.equal(found.amax, y.abs().amax().float().view(1))
    factor = (448 / y.abs().amax().double()).float()
    theirs = (y.float() * factor).clamp(-448, 448).to(torch.float8_e4m3fn)
    steps = (bits(found.q).int() - bits(theirs).int()).abs()
    assert steps.max() <= 1 and (steps > 0).float().mean() < 0.01


@pytest.mark.slow
def test_a_compiled_function_holds_one_operator_and_trains():
    inputs = case()
    x, weight = inputs["x"].requires_grad_(), inputs["weight"]

    def call(x):
        found = normtune.rms_norm_quantize_fp8(x, weight, scaling="tensor", return_y=True)
        return found.y, found.q.float(), found.scale

    torch._dynamo.reset()
    found, wanted = torch.compile(call, backend="aot_eager", fullgraph=True)(x), call(x)
    assert all(map(torch.equal, found, wanted))
    assert torch.equal(*(torch.autograd.grad(one[0].square().sum(), x)[0] for one in (found, wanted)))
