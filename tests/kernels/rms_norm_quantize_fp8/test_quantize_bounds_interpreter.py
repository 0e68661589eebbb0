"""The bounds of the reference: as tight as one rounding, so that what is wrong is outside of them. And the gate."""

import pytest
import torch

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8.launch import SCALINGS, operator_name
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import outputs_of
from normtune.tuner.timing import gate as timing_gate
from normtune.tuner.timing.gate import WrongResultError, compare, gate

pytestmark = pytest.mark.interpreter

TARGET = TARGETS["sm_89"]._replace(sms=3)
FP8 = torch.float8_e4m3fn


def case(scaling, variant="", rows=11, hidden=300):
    spec = operator(operator_name(scaling))
    problem = spec.problem(rows, hidden, "float32", variant)
    inputs = spec.references().inputs(problem, torch.Generator().manual_seed(5), torch.device("cpu"), True)
    launch = spec.launch(spec.default_config(problem, TARGET), problem, TARGET)
    outputs = outputs_of(spec, problem, launch, inputs)
    return problem, inputs, outputs, spec.references().reference(problem, inputs, **spec.scalars)


def scaled(problem, inputs, outputs):
    """The float32 norm over the scale, as the kernels have it before clamp and cast."""
    x, weight = inputs["x"], inputs["weight"] + 0.25
    norm = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * weight
    scale = inputs.get("scale", outputs.get("scale"))
    if "block" in problem.operator:
        scale = scale.view(problem.rows, -1).repeat_interleave(128, 1)[:, : problem.hidden]
    elif "row" in problem.operator:
        scale = scale[:, None]
    return norm * (1 / scale)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_few_values_may_be_either_of_two(scaling):
    expected = case(scaling)[3]["q"]
    assert (expected.tolerance > 0).double().mean() < 1e-3


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_another_rounding_is_outside(scaling):
    problem, inputs, outputs, expected = case(scaling)
    exact = scaled(problem, inputs, outputs)
    compare(outputs | {"q": exact.clamp(-448, 448).to(FP8)}, expected)
    towards_zero = (exact.clamp(-448, 448) * (1 - 2**-5)).to(FP8)
    wrong = [towards_zero, (exact * (1 + 2**-6)).clamp(-448, 448).to(FP8)]
    for q in wrong:
        with pytest.raises(WrongResultError, match="q:"):
            compare(outputs | {"q": q}, expected)


def test_no_clamp_is_outside():
    problem, inputs, outputs, expected = case("static", "e5m2")
    exact = scaled(problem, inputs, outputs)
    compare(outputs | {"q": exact.clamp(-57344, 57344).to(torch.float8_e5m2)}, expected)
    with pytest.raises(WrongResultError, match="q:"):
        compare(outputs | {"q": exact.to(torch.float8_e5m2)}, expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_single_step_in_a_single_value_is_outside(scaling):
    _, _, outputs, expected = case(scaling)
    index = (expected["q"].tolerance[0] == 0).nonzero()[7].item()
    q = outputs["q"].clone()
    q.view(torch.uint8)[0, index] ^= 1
    with pytest.raises(WrongResultError, match="q:"):
        compare(outputs | {"q": q}, expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("scaling", "name"), [("static", "amax"), ("row", "scale"), ("block", "scale")])
def test_an_amax_that_differs_by_more_than_rounding_is_outside(scaling, name):
    _, _, outputs, expected = case(scaling)
    for factor in (1 + 2**-18, 1 - 2**-18, float("nan")):
        with pytest.raises(WrongResultError, match=f"{name}:"):
            compare(outputs | {name: outputs[name] * factor}, expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "variants",
    [("", "rounded_norm"), ("", "rounded_product"), ("with_residual", "with_residual+rounded_sum")],
    ids=["norm", "product", "sum"],
)
def test_roundings_are_told_apart(variants):
    """In float16; of the same inputs the amax of one is no amax of the other."""
    spec = operator(operator_name("row"))
    problems = [spec.problem(8, 300, "float16", one) for one in variants]
    inputs = spec.references().inputs(problems[0], torch.Generator().manual_seed(5), torch.device("cpu"), False)
    launch = spec.launch(spec.default_config(problems[0], TARGET), problems[0], TARGET)
    for problem, other in (problems, problems[::-1]):
        outputs = outputs_of(spec, problem, launch, inputs)
        compare(outputs, spec.references().reference(problem, inputs, **spec.scalars))
        with pytest.raises(WrongResultError):
            compare(outputs, spec.references().reference(other, inputs, **spec.scalars))


@pytest.mark.slow
@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_gate_passes_blocks_of_rows(scaling, monkeypatch):
    monkeypatch.setattr(timing_gate, "CALLS", 2)
    spec = operator(operator_name(scaling))
    problem = spec.problem(8, 100, "float32")
    config = spec.default_config(problem, TARGET)
    config = config._replace(schedule="block_row", block_row=16)
    gate(spec, problem, (config, spec.launch(config, problem, TARGET)), TARGET, torch.device("cpu"))
