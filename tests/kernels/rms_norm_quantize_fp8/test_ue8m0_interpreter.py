"""Scales that are powers of two: their values and those quantized with them, bit by bit, and how they lie in memory."""

import math

import pytest
import torch

import normtune
from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm_quantize_fp8.launch import LARGEST, ScaleFormat, operator_name
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import calls_of, nan_outputs
from normtune.tests.kernels.rms_norm_quantize_fp8.test_quantize_exact_interpreter import VARIANTS
from normtune.tuner.plan.plan import candidates

pytestmark = pytest.mark.interpreter

# Few multiprocessors for a fixed grid, many for parts of few columns.
TARGET = TARGETS["gfx942"]._replace(sms=60)
FORMATS = [member.value for member in ScaleFormat if member is not ScaleFormat.FLOAT32]
INFINITY, NAN = float("inf"), float("nan")


def exponent_of(amax, largest, least_amax):
    """The e of the scale 2^e of a float32 maximum, by the definition: no bits are read."""
    quotient = (torch.tensor(max(amax, least_amax), dtype=torch.float32) / largest).item()
    if not quotient < INFINITY:  # NaN, too
        return 127
    fraction, exponent = math.frexp(quotient)  # 0.5 <= fraction < 1, or both 0
    return max(-126, exponent - (fraction == 0.5)) if quotient else -126


def quantized(norm, exponents, name):
    """The norm (blocks, columns) in FP8, divided by 2^e in float64, in which that is exact."""
    scaled = torch.ldexp(norm.double(), -torch.tensor(exponents)[:, None]).clamp(-LARGEST[name], LARGEST[name])
    return scaled.float().to(getattr(torch, name))


def maxima(name):
    """At, above and below powers of two after the division; the extremes; and what is no number."""
    largest = torch.tensor(LARGEST[name])
    at = torch.cat([largest * 2.0**exponent for exponent in (torch.arange(-140.0, 111.0, 25.0), torch.tensor([0.0]))])
    around = [torch.nextafter(at, torch.tensor(limit)) for limit in (0.0, INFINITY)]
    rest = [0.0, 1e-45, 2.0**-126, 1e-10, 1.0, 1.5, 3.4028234663852886e38, INFINITY, NAN]
    return torch.cat([at, *around, torch.tensor(rest)])


def launches(spec, problem):
    """A launch of each kind, and all widths of parts and chunks."""
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    kinds = {(one.config.schedule, one.launch.part_col, one.launch.block_col): one.launch for one in kept}
    return kinds.values()


def outputs_of(spec, problem, launch, inputs, **scalars):
    """What a launch writes over bytes that differ from what it should write."""
    outputs = nan_outputs(spec, problem)
    outputs["scale"].view(torch.uint8).fill_(0xA5)
    run(calls_of(spec, problem, launch, {**inputs, **outputs}, **scalars))
    return outputs


def in_memory(exponents, layout, scale_format):
    """Scales (rows, blocks) in the order of their bytes, one row and block after the other."""
    rows, blocks = len(exponents), len(exponents[0])
    values = {(row, block): exponents[row][block] for row in range(rows) for block in range(blocks)}
    width, multiple = {"ue8m0": (1, 4), "ue8m0_bytes": (1, 16), "ue8m0_packed": (4, 4)}[scale_format]
    words, padded = -(-blocks // width), rows if layout == "" else -(-rows // multiple) * multiple
    order = [(row, word) for row in range(padded) for word in range(words)]
    if layout:
        order = [(row, word) for word in range(words) for row in range(padded)]
    places = [(row, width * word + byte) for row, word in order for byte in range(width)]
    if scale_format == "ue8m0":
        return torch.tensor([2.0 ** values[place] if place in values else 0.0 for place in places])
    return torch.tensor([values[place] + 127 if place in values else 0 for place in places], dtype=torch.uint8)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("scale_format", FORMATS)
@pytest.mark.parametrize("layout", ["", "column_major"])
@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_have_the_scales_of_the_definition_in_every_launch(name, layout, scale_format):
    """With x of 1 or -1 and eps 0, rstd is 1 and the norm is the weight."""
    largest, least_amax = maxima(name), 2.0**-126
    weight = torch.rand(len(largest), 128, generator=torch.Generator().manual_seed(3))
    weight *= torch.where(largest.isinf(), 1e30, largest)[:, None]
    weight[:, 7] = largest
    hidden = weight.numel() - 60  # the last block is a shorter one
    x = torch.ones(3, hidden)
    x[1] = -1
    exponents = [exponent_of(amax, LARGEST[name], least_amax) for amax in largest.tolist()]
    spec = operator(operator_name("block"))
    variant = "+".join(filter(None, (VARIANTS[name], layout, scale_format)))
    problem = spec.problem(3, hidden, "float32", variant)
    inputs = {"x": x, "weight": weight.view(-1)[:hidden]}
    expected = torch.stack([quantized(sign * weight, exponents, name).view(-1)[:hidden] for sign in (1, -1, 1)])
    is_nan = inputs["weight"].isnan()
    for launch in launches(spec, problem):
        found = outputs_of(spec, problem, launch, inputs, eps=0.0, offset=0.0, least_amax=least_amax)
        assert torch.equal(found["scale"], in_memory(3 * [exponents], layout, scale_format)), launch
        q = found["q"]
        assert torch.equal(q.view(torch.uint8)[:, ~is_nan], expected.view(torch.uint8)[:, ~is_nan]), launch
        assert q[:, is_nan].float().isnan().all()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("scale_format", FORMATS)
@pytest.mark.parametrize("name", VARIANTS)
def test_rows_have_the_scales_of_the_definition_in_every_launch(name, scale_format):
    spec = operator(operator_name("row"))
    hidden, least_amax = 1100, 2.0**-126
    problem = spec.problem(3, hidden, "float32", "+".join(filter(None, (VARIANTS[name], scale_format))))
    every = launches(spec, problem)
    assert any(launch.chunks for launch in every) and any(launch.part_col for launch in every)
    for launch in every:
        for amax in maxima(name).tolist():
            weight = torch.full((hidden,), 1e30 if math.isinf(amax) else amax / 3)
            weight[7] = amax
            exponent = exponent_of(amax, LARGEST[name], least_amax)
            found = outputs_of(
                spec,
                problem,
                launch,
                {"x": torch.ones(3, hidden), "weight": weight},
                eps=0.0,
                offset=0.0,
                least_amax=least_amax,
            )
            assert torch.equal(found["scale"], in_memory(3 * [[exponent]], "", scale_format)), (launch, amax)
            expected = quantized(weight[None, :], [exponent], name).expand(3, hidden)
            if math.isnan(amax):
                assert found["q"].float().isnan().all()
            else:
                assert torch.equal(found["q"].view(torch.uint8), expected.view(torch.uint8)), (launch, amax)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("hidden", [100, 200, 513, 1000])
@pytest.mark.parametrize("layout", ["", "column_major"])
@pytest.mark.parametrize("rows", [1, 4, 5, 17])
def test_all_formats_hold_the_same_scales_and_zeros_elsewhere(rows, layout, hidden):
    spec = operator(operator_name("block"))
    x = torch.randn(rows, hidden) * torch.logspace(-8, 8, hidden)
    inputs = {"x": x, "weight": torch.ones(hidden)}
    plain = spec.problem(rows, hidden, "float32", "ue8m0")
    for launch in launches(spec, plain):
        wide = outputs_of(spec, plain, launch, inputs)
        exponents = wide["scale"].log2().int().view(rows, -1).tolist()
        for scale_format in FORMATS:
            problem = spec.problem(rows, hidden, "float32", "+".join(filter(None, (layout, scale_format))))
            found = outputs_of(spec, problem, launch, inputs)
            assert torch.equal(found["scale"], in_memory(exponents, layout, scale_format)), (launch, scale_format)
            assert torch.equal(found["q"].view(torch.uint8), wide["q"].view(torch.uint8))


@pytest.mark.parametrize("shape", [(5, 700), (2, 3, 700), (700,), (0, 700)])
def test_a_user_sees_powers_of_two_or_their_bytes_or_words(shape):
    """Of bytes and words the strides are in elements; both are 16 bytes or a multiple from column to column."""
    x, leading = torch.randn(shape), shape[:-1]
    for layout in ("row_major", "column_major"):
        options = {"scaling": "block", "scale_layout": layout}
        wide, of_bytes, packed = (
            normtune.rms_norm_quantize_fp8(x, scale_format=one, **options)
            for one in ("ue8m0", "ue8m0_bytes", "ue8m0_packed")
        )
        assert wide.scale.dtype == torch.float32 and wide.scale.shape == (*leading, 6)
        assert of_bytes.scale.dtype == torch.float8_e8m0fnu and of_bytes.scale.shape == (*leading, 6)
        assert packed.scale.dtype == torch.int32 and packed.scale.shape == (*leading, 2)
        assert torch.equal(of_bytes.scale.float(), wide.scale)
        words = packed.scale.long() & 0xFFFFFFFF
        unpacked = torch.stack([words >> 8 * byte & 255 for byte in range(4)], -1).flatten(-2)
        expected = torch.nn.functional.pad(wide.scale.log2().int() + 127, (0, 2))
        assert torch.equal(unpacked, expected.long())
        if layout == "column_major" and len(shape) == 2:
            assert [one.scale.stride() for one in (wide, of_bytes, packed)] == [
                (1, -(-shape[0] // multiple) * multiple) for multiple in (4, 16, 4)
            ]
        elif layout == "row_major":
            assert all(one.scale.is_contiguous() for one in (wide, of_bytes, packed))


def test_the_scale_of_a_row_is_the_low_byte_of_its_word():
    x = torch.randn(2, 3, 300)
    wide, of_bytes, packed = (
        normtune.rms_norm_quantize_fp8(x, scaling="row", scale_format=one)
        for one in ("ue8m0", "ue8m0_bytes", "ue8m0_packed")
    )
    assert torch.equal(of_bytes.scale.float(), wide.scale) and wide.scale.shape == (2, 3, 1)
    assert packed.scale.dtype == torch.int32 and torch.equal(packed.scale, wide.scale.log2().int() + 127)


def test_values_times_scales_are_nearer_than_with_a_scale_that_is_rounded_later():
    """Q is the quotient by the rounded scale. By the unrounded one its error would be several times as large."""
    x = torch.randn(64, 1024)
    norm = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
    fine, coarse = (
        normtune.rms_norm_quantize_fp8(x, scaling="block", scale_format=one) for one in ("float32", "ue8m0")
    )
    scales = coarse.scale.repeat_interleave(128, 1)
    error, error_later = ((one.q.float() * scales - norm).square().mean().sqrt() for one in (coarse, fine))
    assert error_later > 8 * error


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scaling", ["row", "block"])
def test_gradients_do_not_depend_on_the_format(scaling):
    x, weight = torch.randn(3, 130), torch.rand(130)
    gradients = []
    for scale_format in ("float32", "ue8m0_packed"):
        inputs = [tensor.clone().requires_grad_() for tensor in (x, weight)]
        found = normtune.rms_norm_quantize_fp8(
            *inputs, scaling=scaling, scale_format=scale_format, residual=x.flip(0), return_y=True
        )
        assert not found.q.requires_grad and not found.scale.requires_grad
        gradients.append(torch.autograd.grad([found.y, found.sum], inputs, [x, x.cos()]))
    assert all(map(torch.equal, *gradients))


def test_rows_have_the_same_words_in_every_batch():
    x = torch.randn(9, 300)
    options = {"scaling": "block", "scale_format": "ue8m0_packed", "batch_invariant": True}
    whole, part = (normtune.rms_norm_quantize_fp8(one, **options) for one in (x, x[3:5]))
    assert torch.equal(whole.scale[3:5], part.scale)
    assert torch.equal(whole.q.view(torch.uint8)[3:5], part.q.view(torch.uint8))
