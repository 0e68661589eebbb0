"""Numbers, masks, strides and bits of the kernels, run by Triton's interpreter with torch's casts."""

import random

import pytest
import torch

from normtune.kernels.alignment import alignment_of
from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8.launch import SCALINGS, operator_name
from normtune.kernels.rms_norm_quantize_fp8.operator import QuantizeConfig
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import assert_within, calls_of, nan_outputs, outputs_of, referenced
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare

pytestmark = pytest.mark.interpreter

# Three multiprocessors, so that a fixed grid loops over few rows.
TARGET = TARGETS["sm_89"]._replace(sms=3)
MIXED = (
    "e5m2+fnuz",
    "rounded_norm+rounded_product",
    "e5m2+rounded_norm+with_y+with_residual",
    "rounded_norm+rounded_product+with_residual+rounded_sum",
)
VARIANTS = [
    (scaling, variant) for scaling in SCALINGS for variant in (*operator(operator_name(scaling)).variants, *MIXED)
]
SHAPES = [(1, 1), (9, 300), (5, 129)]


@pytest.mark.one_in(11)
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
@pytest.mark.parametrize(("scaling", "variant"), VARIANTS)
def test_outputs_are_within_rounding(scaling, variant, rows, hidden):
    spec = operator(operator_name(scaling))
    target = TARGET._replace(name="gfx942") if "fnuz" in variant else TARGET
    dtype = random.Random(f"{scaling}{variant}{rows}").choice(spec.dtypes)
    problem = spec.problem(rows, hidden, dtype, variant)
    kept, _ = candidates(spec, spec.space("full", problem, target), problem, target)
    inputs, expected = referenced(spec, problem, rows * hidden)
    for config, launch in random.Random(hidden).sample(kept, min(2, len(kept))):
        outputs = outputs_of(spec, problem, launch, inputs)
        assert outputs.keys() == expected.keys()
        assert_within(outputs, expected, f"{config} {dtype}")


@pytest.mark.parametrize("variant", ["", "with_residual", "with_residual+rounded_sum"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_rows_that_do_not_fit_into_registers_are_loaded_again(scaling, variant):
    spec = operator(operator_name(scaling))
    problem = spec.problem(2, 45000, "bfloat16", variant)
    inputs, expected = referenced(spec, problem, 3)
    launch = spec.launch(QuantizeConfig("split", 1, 32, block_col=8192), problem, TARGET)
    assert_within(outputs_of(spec, problem, launch, inputs), expected, variant)


@pytest.mark.slow
@pytest.mark.parametrize(("scaling", "variant"), VARIANTS)
def test_parts_have_the_values_of_whole_rows(scaling, variant):
    spec = operator(operator_name(scaling))
    target = TARGET._replace(name="gfx942" if "fnuz" in variant else "sm_89", sms=60)
    for rows, hidden, dtype in ((1, 1500, "float32"), (5, 2051, "float16")):
        problem = spec.problem(rows, hidden, dtype, variant)
        inputs = spec.references().inputs(problem, torch.Generator().manual_seed(hidden), torch.device("cpu"), True)
        found = []
        for schedule in ("row", "parts"):
            config = QuantizeConfig(schedule, 1, 4, 1, 1)
            launch = spec.launch(config, problem, target)
            found.append(outputs_of(spec, problem, launch, inputs))
        assert launch.part_col == 512 < launch.block_col
        # On a GPU the order of sums is another one.
        assert launch.row_sum != launch.in_place.row_sum._replace(held=False)
        for name, tensor in found[0].items():
            assert torch.equal(tensor.view(torch.uint8), found[1][name].view(torch.uint8)), name


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("hidden", "stride"), [(64, 80), (64, 67), (129, 144)])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_row_strides_are_free(scaling, hidden, stride):
    """Of every matrix, and whatever lies between rows stays as it was."""
    spec = operator(operator_name(scaling))
    problem = spec.problem(6, hidden, "float32", "with_y+with_residual")
    inputs, expected = referenced(spec, problem, 1)
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    kinds = {one.config.schedule: one.config for one in kept}
    for config in kinds.values():
        launch = spec.launch(config, problem, TARGET, alignment_of(hidden, stride))
        tensors = inputs | nan_outputs(spec, problem)
        wide = {}
        for name, tensor in tensors.items():
            if tensor.dim() == 2:
                wide[name] = torch.full((6, stride), 7.0).to(tensor.dtype)
                wide[name][:, :hidden] = tensor
                tensors[name] = wide[name][:, :hidden]
        run(calls_of(spec, problem, launch, tensors))
        compare({name: tensors[name].contiguous() for name in expected}, expected)
        assert all((tensor[:, hidden:].float() == 7).all() for tensor in wide.values())
