"""The transposed result beside the row-major one, bit for bit, of all launches; the kernels run by the interpreter."""

import random

import pytest
import torch

import normtune
from normtune.kernels.call import run
from normtune.kernels.calling import eager
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8.function import ROUNDINGS
from normtune.kernels.rms_norm_quantize_fp8.launch import TRANSPOSE, operator_name
from normtune.kernels.rms_norm_quantize_fp8.operator import TransposingConfig
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import assert_within, calls_of, nan_outputs, outputs_of
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing import gate as timing_gate
from normtune.tuner.timing import trial as timing_trial
from normtune.tuner.timing.gate import WrongResultError, compare, gate

pytestmark = pytest.mark.interpreter

TARGET = TARGETS["sm_89"]._replace(sms=3)
SPEC = operator(operator_name(TRANSPOSE))
MIXED = (
    "e5m2+fnuz",
    "e5m2+rounded_norm+with_y+with_residual",
    "rounded_norm+rounded_product+with_residual+rounded_sum+no_amax",
)
# Whole tiles, no whole one, one row, one column, tiles cut on both sides.
SHAPES = [(64, 128), (1, 1), (33, 129), (31, 300), (96, 40)]
OF_ROWS = TransposingConfig("block_row", 2, 4)
IN_CHUNKS = TransposingConfig("split", 1, 4, block_col=128, transpose_row=32, transpose_col=64, transpose_warps=4)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def case(rows, hidden, variant="", dtype="float32", target=TARGET):
    problem = SPEC.problem(rows, hidden, dtype, variant)
    inputs = SPEC.references().inputs(problem, torch.Generator().manual_seed(rows), torch.device("cpu"), True)
    kept, _ = candidates(SPEC, SPEC.space("full", problem, target), problem, target)
    return problem, inputs, kept


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
@pytest.mark.parametrize("variant", [*SPEC.variants, *MIXED])
def test_both_layouts_are_within_rounding_and_one_matrix(variant, rows, hidden):
    target = TARGET._replace(name="gfx942") if "fnuz" in variant else TARGET
    dtype = random.Random(f"{variant}{rows}").choice(SPEC.dtypes)
    problem, inputs, kept = case(rows, hidden, variant, dtype, target)
    expected = SPEC.references().reference(problem, inputs, **SPEC.scalars)
    for config, launch in random.Random(hidden).sample(kept, 2):
        outputs = outputs_of(SPEC, problem, launch, inputs)
        assert outputs.keys() == expected.keys() and outputs["q_t"].shape == (hidden, rows)
        assert torch.equal(bits(outputs["q_t"]), bits(outputs["q"].view(torch.uint8).t())), config
        assert_within(outputs, expected, f"{config} {dtype}")


@pytest.mark.slow
@pytest.mark.parametrize("config", [OF_ROWS, IN_CHUNKS], ids=["rows", "chunks"])
def test_each_way_writes_every_element_and_no_other(config):
    for rows, hidden in SHAPES:
        problem, inputs, _ = case(rows, hidden, "with_y+with_residual")
        launch = SPEC.launch(config, problem, TARGET)
        around = torch.full((hidden * rows + 64,), 0x35, dtype=torch.uint8)
        outputs = nan_outputs(SPEC, problem)
        outputs["q_t"] = around[32:-32].view(torch.float8_e4m3fn).view(hidden, rows)
        run(calls_of(SPEC, problem, launch, inputs | outputs))
        compare(outputs, SPEC.references().reference(problem, inputs, **SPEC.scalars))
        assert (around[:32] == 0x35).all() and (around[-32:] == 0x35).all()
        assert torch.equal(bits(outputs["q_t"]), bits(outputs["q"].view(torch.uint8).t()))


@pytest.mark.parametrize("config", [OF_ROWS, IN_CHUNKS], ids=["rows", "chunks"])
def test_a_transposition_that_is_wrong_in_one_element_is_outside(config):
    problem, inputs, _ = case(40, 100)
    outputs = outputs_of(SPEC, problem, SPEC.launch(config, problem, TARGET), inputs)
    expected = SPEC.references().reference(problem, inputs, **SPEC.scalars)
    compare(outputs, expected)
    exact = (expected["q_t"].tolerance[7] == 0).nonzero()[3].item()
    outputs["q_t"].view(torch.uint8)[7, exact] ^= 1
    with pytest.raises(WrongResultError, match="q_t:"):
        compare(outputs, {"q_t": expected["q_t"]})


@pytest.mark.slow
@pytest.mark.parametrize("rows", [pytest.param(64, marks=pytest.mark.slow), 63])
@pytest.mark.parametrize("config", [OF_ROWS, IN_CHUNKS], ids=["rows", "chunks"])
def test_the_gate_passes_each_way(config, rows, monkeypatch):
    monkeypatch.setattr(timing_gate, "CALLS", 2)
    monkeypatch.setattr(timing_trial, "TRIAL_ROWS", (61, 48, 1))
    problem = SPEC.problem(rows, 100, "float32")
    gate(SPEC, problem, (config, SPEC.launch(config, problem, TARGET)), TARGET, torch.device("cpu"))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_function_returns_the_transpose_of_its_result(dtype, rounding):
    x, weight, scale = torch.randn(3, 11, 130).half(), torch.rand(130).half(), torch.tensor(0.02)
    options = {"dtype": dtype, "rounding": rounding, "residual": torch.randn_like(x), "return_amax": True}
    found = normtune.rms_norm_quantize_fp8(x, weight, scale=scale, return_transpose=True, **options)
    plain = normtune.rms_norm_quantize_fp8(x, weight, scale=scale, **options)
    assert found.q_t.shape == (130, 33) and found.q_t.dtype == dtype and found.q_t.is_contiguous()
    assert torch.equal(bits(found.q_t), bits(found.q.view(33, 130).view(torch.uint8).t()))
    assert torch.equal(bits(found.q), bits(plain.q)) and torch.equal(found.amax, plain.amax)
    assert torch.equal(found.sum, plain.sum) and plain.q_t is None


def test_the_composition_computes_what_the_kernels_do(monkeypatch):
    x = torch.randint(-4, 5, (5, 256)).to(torch.bfloat16)
    options = {"scale": torch.tensor([0.013]), "return_transpose": True, "return_amax": True}
    launched = normtune.rms_norm_quantize_fp8(x, None, 0.0, **options)
    monkeypatch.setattr(eager, "takes_kernels", lambda *_: False)
    normtune.use_table("auto")
    composed = normtune.rms_norm_quantize_fp8(x, None, 0.0, **options)
    assert torch.equal(bits(launched.q_t), bits(composed.q_t)) and torch.equal(bits(launched.q), bits(composed.q))


def test_rows_have_the_same_bits_in_every_batch():
    x, weight, options = torch.randn(48, 300), torch.rand(300), {"scale": torch.ones(1), "return_transpose": True}
    whole = normtune.rms_norm_quantize_fp8(x, weight, batch_invariant=True, **options)
    part = normtune.rms_norm_quantize_fp8(x[3:8], weight, batch_invariant=True, **options)
    assert torch.equal(bits(whole.q_t[:, 3:8]), bits(part.q_t))


def test_no_rows_and_other_strides():
    scale = torch.ones(1)
    found = normtune.rms_norm_quantize_fp8(torch.ones(0, 16), None, scale=scale, return_transpose=True)
    assert found.q_t.shape == (16, 0)
    x = torch.randn(40, 96)[:, 3:70]
    found = normtune.rms_norm_quantize_fp8(x, None, scale=scale, return_transpose=True)
    same = normtune.rms_norm_quantize_fp8(x.contiguous(), None, scale=scale, return_transpose=True)
    assert torch.equal(bits(found.q_t), bits(same.q_t))


@pytest.mark.slow
def test_the_operator_of_the_dispatcher_gives_it_too():
    arguments = (torch.randn(3, 160), None, None, torch.ones(1), 1e-6, 0.0, 1e-10, TRANSPOSE, "", None)
    torch.library.opcheck(torch.ops.normtune.rms_norm_quantize_fp8.default, arguments)
    q, _, q_t = torch.ops.normtune.rms_norm_quantize_fp8(*arguments)
    assert torch.equal(bits(q_t), bits(q.view(torch.uint8).t()))
