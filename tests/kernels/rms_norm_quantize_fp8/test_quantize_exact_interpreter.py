"""Cases in which float32 arithmetic is exact, so that every bit is known; and values that are no numbers."""

import math

import pytest
import torch

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8.launch import LARGEST, SCALINGS, operator_name
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import outputs_of
from normtune.tuner.plan.plan import candidates

pytestmark = pytest.mark.interpreter

VARIANTS = {"float8_e4m3fn": "", "float8_e5m2": "e5m2", "float8_e4m3fnuz": "fnuz", "float8_e5m2fnuz": "e5m2+fnuz"}
TARGET = TARGETS["gfx942"]._replace(sms=3)
NAN = float("nan")


def launches(problem):
    """Launches of each kind: a row, rows, a fixed grid, and chunks."""
    spec = operator(problem.operator)
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    kinds = {c.config.schedule: c.launch for c in kept}
    return spec, list(kinds.values())


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.element_size() == 1 else tensor.view(torch.int32)


def by_hand(value, name):
    """The FP8 value nearest to a float, ties to even, out of the format's definition: no cast of torch's is used."""
    mantissa = 3 if "e4m3" in name else 2
    bias = {"float8_e4m3fn": 7, "float8_e5m2": 15, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 16}[name]
    value = max(-LARGEST[name], min(LARGEST[name], value))
    if value == 0:
        return 0.0
    exponent = max(math.frexp(value)[1] - 1, 1 - bias)
    step = 2.0 ** (exponent - mantissa)
    return round(value / step) * step  # Python rounds ties to even


def case(scaling, name):
    """Inputs, problem and the quantized values.

    x is 1 or -1, so rstd is 1 with eps 0, and the norm is the weight: FP8 values, ties between them, and beyond.
    """
    largest, hidden = LARGEST[name], 1024
    values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).float()
    values = values[values.isfinite() & (values >= 0)].sort().values.unique()
    middles = (values[1:] + values[:-1]) / 2
    around = [middles, middles * (1 + 2**-22), middles * (1 - 2**-22), values]
    tested = torch.cat([*around, torch.tensor([largest * 1.04, largest * 2, 3e38])])[: hidden - 128]
    weight = torch.zeros(hidden)
    weight[: len(tested)] = tested
    if scaling != "static":  # amax is the largest value, so scales are 1 where a block or row has it
        weight = weight.clamp(max=largest)
        weight[127::128] = largest
    x = torch.ones(3, hidden)
    x[1] = -1
    inputs = {"x": x, "weight": weight, "scale": torch.ones(1)}
    problem = operator(operator_name(scaling)).problem(3, hidden, "float32", VARIANTS[name])
    wanted = torch.tensor([by_hand(value, name) for value in weight.tolist()]) * x
    return inputs, problem, wanted


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", VARIANTS)
def test_all_launches_round_as_the_format_says(scaling, name):
    inputs, problem, wanted = case(scaling, name)
    spec, kinds = launches(problem)
    for launch in kinds:
        found = outputs_of(spec, problem, launch, inputs, eps=0.0, offset=0.0)
        assert torch.equal(found["q"].float(), wanted)
        if scaling != "static":
            assert (found["scale"] == 1).all()
        else:
            assert found["amax"].item() == inputs["weight"].max().item()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("scaling", ["row", "block"])
def test_scales_are_the_rounded_quotient_of_amax_and_largest(scaling, name):
    hidden = 256
    x = torch.ones(6, hidden)
    weight = torch.linspace(-3, 0.7, hidden)
    inputs = {"x": x, "weight": weight}
    problem = operator(operator_name(scaling)).problem(6, hidden, "float32", VARIANTS[name])
    spec, kinds = launches(problem)
    parts = weight.view(1, -1) if scaling == "row" else weight.view(-1, 128)
    scale = parts.abs().amax(1) / torch.tensor(LARGEST[name])
    inverse = torch.tensor(1.0) / scale
    wanted = (parts * inverse[:, None]).clamp(-LARGEST[name], LARGEST[name]).to(getattr(torch, name)).view(1, -1)
    for launch in kinds:
        found = outputs_of(spec, problem, launch, inputs, eps=0.0, offset=0.0)
        assert torch.equal(bits(found["scale"]), bits(scale.repeat(6)))
        assert torch.equal(bits(found["q"]), bits(wanted.expand(6, -1)))


@pytest.mark.slow
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
def test_what_is_no_number_stays_none_and_stays_in_its_row(scaling, value):
    rows, hidden = 7, 300
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, hidden, generator=generator)
    clean = {"x": x.clone(), "weight": torch.ones(hidden), "scale": torch.full((1,), 0.01)}
    x[4, 200] = value
    inputs = {**clean, "x": x}
    problem = operator(operator_name(scaling)).problem(rows, hidden, "float32")
    spec, kinds = launches(problem)
    others = [0, 1, 2, 3, 5, 6]
    for launch in kinds:
        found, other = (outputs_of(spec, problem, launch, given) for given in (inputs, clean))
        if scaling == "tensor":  # it has one scale, and what is no number is in it
            assert all(found[name].isnan().all() and not other[name].isnan().any() for name in ("scale", "amax"))
            assert found["q"].float().isnan().all() and not other["q"].float().isnan().any()
            continue
        assert torch.equal(bits(found["q"])[others], bits(other["q"])[others])
        assert found["q"].float()[4, 200].isnan()
        if scaling == "static":
            assert found["amax"].isnan().all() and not other["amax"].isnan().any()
            continue
        scales = found["scale"].view(rows, -1)
        assert torch.equal(scales[others], other["scale"].view(rows, -1)[others])
        assert scales[4, 1 if scaling == "block" else 0].isnan()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rows_of_zeros_have_the_least_scale(scaling):
    problem = operator(operator_name(scaling)).problem(5, 129, "float16")
    spec, kinds = launches(problem)
    inputs = {
        "x": torch.zeros(5, 129, dtype=torch.float16),
        "weight": torch.ones(129, dtype=torch.float16),
        "scale": torch.full((1,), 0.01),
    }
    for launch in kinds:
        found = outputs_of(spec, problem, launch, inputs, **({} if scaling == "static" else {"least_amax": 0.5}))
        assert (found["q"].float() == 0).all()
        if scaling == "static":
            assert found["amax"].item() == 0
        else:
            assert (found["scale"] == torch.tensor(0.5) / 448).all()


def test_padding_of_column_major_scales_holds_zeros():
    for rows in (1, 2, 3, 4, 5, 9):
        problem = operator(operator_name("block")).problem(rows, 300, "float32", "column_major")
        spec, kinds = launches(problem)
        inputs = {"x": torch.randn(rows, 300), "weight": torch.ones(300)}
        for launch in kinds:
            scale = outputs_of(spec, problem, launch, inputs)["scale"].view(3, -1)
            assert scale.shape[1] % 4 == 0 and (scale[:, :rows] > 0).all() and (scale[:, rows:] == 0).all()
