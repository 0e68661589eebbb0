"""Both orders of a sum, bit for bit those of a formula in torch, of all launches, the function and its composition.

The sums of x and residual are 1 - 2^-8, 1 or 1 + 2^-8, of which bfloat16 has no 1 + 2^-8; sums of their squares are
exact in float32 in any order.
"""

import pytest
import torch

import normtune
from normtune.kernels.calling import eager
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8 import kernels
from normtune.kernels.rms_norm_quantize_fp8.function import ROUNDINGS
from normtune.kernels.rms_norm_quantize_fp8.launch import SCALINGS, TRANSPOSE, operator_name
from normtune.kernels.rms_norm_quantize_fp8.operator import QuantizeConfig, TransposingConfig
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import outputs_of

pytestmark = pytest.mark.interpreter

TARGET = TARGETS["sm_89"]._replace(sms=3)
ROWS, HIDDEN = 40, 200
SCALE = 0.013
CONFIGS = (
    QuantizeConfig("row"),
    QuantizeConfig("block_row", 8),
    QuantizeConfig("persistent", 4, programs_per_sm=2),
    QuantizeConfig("split", block_col=128),
)
OFF = {"float32": "", "norm": "rounded_norm+", "product": "rounded_norm+rounded_product+"}


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def case():
    generator = torch.Generator().manual_seed(7)
    x = (1 - 2 * torch.randint(0, 2, (ROWS, HIDDEN), generator=generator)).bfloat16()
    residual = (torch.randint(-1, 2, (ROWS, HIDDEN), generator=generator) / 256).bfloat16() * x
    weight = torch.rand(HIDDEN, generator=generator).bfloat16()
    return {"x": x, "residual": residual, "weight": weight, "scale": torch.tensor([SCALE])}


def wanted(x, residual, weight, scale, scaling, rounding, round_sum):
    """The outputs as a user would write them."""
    total = x.float() + residual.float()
    found = {"sum": total.bfloat16()}
    total = found["sum"].float() if round_sum else total
    norm = total * torch.rsqrt(total.pow(2).mean(1, keepdim=True))
    if rounding == "product":
        norm = norm.bfloat16().float()
    norm = norm * weight.float()
    if rounding != "float32":
        norm = norm.bfloat16().float()
    found["y"] = norm.bfloat16()
    if scaling == "row":
        scale = norm.abs().amax(1, keepdim=True).clamp(min=1e-10) / 448
    elif scaling == "block":
        maxima = [part.abs().amax(1, keepdim=True) for part in norm.split(128, dim=1)]
        found["scale"] = torch.cat(maxima, dim=1).clamp(min=1e-10) / 448
        scale = found["scale"].repeat_interleave(128, 1)[:, :HIDDEN]
    elif scaling == "tensor":
        scale = norm.abs().amax().view(1) / 448
    found.setdefault("scale", scale)
    found["q"] = (norm * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return found


def assert_equal(found, expected):
    for name in ("sum", "y", "scale", "q"):
        assert torch.equal(bits(found[name]).view(-1), bits(expected[name]).view(-1)), name


@pytest.mark.slow
@pytest.mark.parametrize("round_sum", [False, True])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("kind", [*SCALINGS, TRANSPOSE])
@pytest.mark.parametrize("held", [True, False], ids=["held", "read-again"])
def test_all_launches_normalize_the_sum_that_is_asked_for(kind, rounding, round_sum, held, monkeypatch):
    if not held:
        monkeypatch.setattr(kernels, "MAX_SUM_BYTES", 0)
    spec = operator(operator_name(kind))
    variant = f"{OFF[rounding]}with_y+with_residual{'+rounded_sum' if round_sum else ''}"
    problem = spec.problem(ROWS, HIDDEN, "bfloat16", variant)
    inputs = case()
    expected = wanted(**inputs, scaling="static" if kind == TRANSPOSE else kind, rounding=rounding, round_sum=round_sum)
    for config in CONFIGS:
        if kind == TRANSPOSE:
            config = TransposingConfig(*config, 32, 64, 4)
        launch = spec.launch(config, problem, TARGET)
        found = outputs_of(spec, problem, launch, inputs, eps=0.0, offset=0.0)
        assert_equal(inputs | found, expected)
        if kind == TRANSPOSE:
            assert torch.equal(bits(found["q_t"]), bits(found["q"].view(torch.uint8).t()))


@pytest.mark.slow
@pytest.mark.parametrize("round_sum", [False, True])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_function_and_its_composition_do_too(scaling, rounding, round_sum, monkeypatch):
    inputs = case()
    expected = wanted(**inputs, scaling=scaling, rounding=rounding, round_sum=round_sum)
    options = {"scaling": scaling, "rounding": rounding, "round_sum": round_sum, "return_y": True}
    options |= {"residual": inputs["residual"], "scale": inputs["scale"] if scaling == "static" else None}
    launched = normtune.rms_norm_quantize_fp8(inputs["x"], inputs["weight"], 0.0, **options)
    monkeypatch.setattr(eager, "takes_kernels", lambda *_: False)
    normtune.use_table("auto")
    composed = normtune.rms_norm_quantize_fp8(inputs["x"], inputs["weight"], 0.0, **options)
    for found in (launched, composed):
        assert_equal(found._asdict(), expected)


@pytest.mark.slow
def test_the_default_is_that_of_the_sum_and_norm_without_a_quantization():
    inputs = case()
    x, residual, weight = inputs["x"], inputs["residual"], inputs["weight"]
    for rounding, options in (("float32", {}), ("sum", {"round_sum": True})):
        y, total = normtune.fused_add_rms_norm(x, residual, weight, 0.0, rounding=rounding)
        found = normtune.rms_norm_quantize_fp8(
            x, weight, 0.0, scaling="row", residual=residual, return_y=True, rounding="norm", **options
        )
        assert torch.equal(found.y, y) and torch.equal(found.sum, total)
