"""Quantizing RMSNorm on a GPU: values and scales beside float64, NaN, kept launches, and a replayed graph."""

import pytest
import torch

from normtune import fused_add_rms_norm, rms_norm, rms_norm_backward, rms_norm_quantize_fp8, transpose_fp8

pytestmark = pytest.mark.gpu
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def made(shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


def norm(x, weight, eps=1e-6):
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


def whole(quantized, scaling, hidden):
    """The scales for each element."""
    if scaling == "block":
        return quantized.scale.repeat_interleave(128, dim=-1)[..., :hidden]
    return quantized.scale


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("scaling", ["static", "row", "block", "tensor"])
@pytest.mark.parametrize("shape", [(1, 64), (77, 300), (5, 7, 2880), (4096, 4096), (9, 16384), (3, 65536)])
def test_values_times_scales_are_the_norm(shape, scaling, dtype):
    x, weight = made(shape), made(shape[-1:], seed=1)
    exact = norm(x, weight)
    scale = (exact.abs().max() / LARGEST[dtype]).float().reshape(1) if scaling == "static" else None
    found = rms_norm_quantize_fp8(x, weight, scaling=scaling, dtype=dtype, scale=scale, return_amax=scaling == "static")
    scales = whole(found, scaling, shape[-1])
    back = found.q.double() * scales.double()
    step = {torch.float8_e4m3fn: 2.0**-3, torch.float8_e5m2: 2.0**-2}[dtype]
    least = {torch.float8_e4m3fn: 2.0**-9, torch.float8_e5m2: 2.0**-16}[dtype]
    allowed = 0.5 * step * exact.abs() + 0.5 * least * scales.double() + 1e-5 * exact.abs()
    assert ((back - exact).abs() <= allowed).all()
    if scaling == "static":
        assert (found.amax.double() - exact.abs().max()).abs() <= 1e-5 * exact.abs().max()
    elif scaling in ("row", "tensor"):
        largest = (exact.abs().amax(-1, keepdim=True) if scaling == "row" else exact.abs().max()) / LARGEST[dtype]
        assert ((found.scale.double() - largest).abs() <= 1e-5 * largest).all()


@pytest.mark.parametrize("scaling", ["static", "row", "block", "tensor"])
def test_equal_calls_have_equal_bits_and_graphs_replay_them(scaling):
    x, weight = made((300, 4096)), made((4096,), seed=1)
    scale = torch.full((1,), 0.02, device="cuda") if scaling == "static" else None
    first = rms_norm_quantize_fp8(x, weight, scaling=scaling, scale=scale, return_amax=scaling == "static")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = rms_norm_quantize_fp8(x, weight, scaling=scaling, scale=scale, return_amax=scaling == "static")
    for _ in range(20):
        graph.replay()
        assert torch.equal(replayed.q.view(torch.uint8), first.q.view(torch.uint8))
        assert torch.equal(replayed.scale, first.scale)
        assert scaling != "static" or torch.equal(replayed.amax, first.amax)


@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize("shape", [(77, 384), (512, 4096), (9, 65536)])
def test_scales_are_those_of_the_sum_that_is_asked_for(shape, scaling):
    """Of bfloat16 sums the two orders differ by up to 2^-9, by which they are told apart."""
    x, weight, residual = made(shape), made(shape[-1:], seed=1), made(shape, seed=2)
    wide = x.float() + residual.float()
    scales = []
    for round_sum in (False, True):
        found = rms_norm_quantize_fp8(x, weight, scaling=scaling, residual=residual, round_sum=round_sum)
        assert torch.equal(found.sum, wide.bfloat16())
        exact = norm(found.sum if round_sum else wide, weight).abs()
        largest = exact.view(shape[0], -1, 128 if scaling == "block" else shape[-1]).amax(-1) / 448
        torch.testing.assert_close(found.scale.double(), largest, rtol=1e-5, atol=0)
        scales.append(found.scale)
    assert ((scales[0] / scales[1] - 1).abs() > 1e-4).double().mean() > 0.5


def packed(exponents):
    """Bytes of exponents (rows, blocks), four to an int32."""
    return torch.nn.functional.pad(exponents, (0, -exponents.shape[1] % 4)).view(torch.int32)


@pytest.mark.parametrize("shape", [(1, 128), (5, 300), (77, 640), (33, 7168), (4096, 4096), (3, 65536)])
@pytest.mark.parametrize("dtype", LARGEST)
def test_power_of_two_scales_are_those_of_the_formula(shape, dtype):
    """The norm as it is returned, in float32, quantized again by torch: q, scales, bytes and words, bit by bit."""
    x, weight = made(shape, torch.float32), made(shape[-1:], torch.float32, seed=1)
    weight[: min(128, shape[1] // 2)] = 0
    options = {"scaling": "block", "dtype": dtype, "return_y": True}
    found = rms_norm_quantize_fp8(x, weight, scale_format="ue8m0", **options)
    blocks = torch.nn.functional.pad(found.y, (0, -shape[1] % 128)).view(shape[0], -1, 128)
    quotient = blocks.abs().amax(2).clamp(min=1e-10) / torch.tensor(LARGEST[dtype], device="cuda")
    fraction, exponent = torch.frexp(quotient)
    exponent = exponent - (fraction == 0.5).int()
    scale = torch.ldexp(torch.ones_like(quotient), exponent)
    assert torch.equal(found.scale, scale)
    q = (blocks * (1 / scale[:, :, None])).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype).view(shape[0], -1)
    assert torch.equal(found.q.view(torch.uint8), q[:, : shape[1]].contiguous().view(torch.uint8))
    in_bytes = (exponent + 127).to(torch.uint8)
    for scale_layout, of_bytes, of_words in (("row_major", 1, 1), ("column_major", 16, 4)):
        options["scale_layout"] = scale_layout
        of_each = rms_norm_quantize_fp8(x, weight, scale_format="ue8m0_bytes", **options).scale
        assert torch.equal(of_each.view(torch.uint8), in_bytes)
        of_four = rms_norm_quantize_fp8(x, weight, scale_format="ue8m0_packed", **options).scale
        assert torch.equal(of_four, packed(in_bytes))
        if scale_layout == "column_major":
            strides = [-(-shape[0] // multiple) * multiple for multiple in (of_bytes, of_words)]
            assert [of_each.stride(1), of_four.stride(1)] == strides
            whole = of_four.as_strided((of_four.shape[1], strides[1]), (strides[1], 1))
            assert not whole[:, shape[0] :].any()


@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e-45])
def test_power_of_two_scales_are_finite(value, scaling):
    weight = torch.rand(1024, device="cuda")
    weight[128:256] = value
    found = rms_norm_quantize_fp8(torch.ones(3, 1024, device="cuda"), weight, scaling=scaling, scale_format="ue8m0")
    column = found.scale[:, 1 if scaling == "block" else 0]
    if value > 0 and value < 1:
        assert (found.q[:, 128:256].float() == 0).all() and (scaling == "row" or (column == 2.0**-42).all())
    else:
        assert (column == 2.0**127).all()
        q = found.q[:, 128:256].float()
        assert q.isnan().all() if value != value else (q == 448).all()


@pytest.mark.parametrize("scale_format", ["ue8m0", "ue8m0_bytes", "ue8m0_packed"])
def test_compiled_functions_return_the_scales_of_eager_ones(scale_format):
    x, weight = made((37, 1536)), made((1536,), seed=1)
    options = {"scaling": "block", "scale_format": scale_format, "scale_layout": "column_major"}
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, weight: rms_norm_quantize_fp8(x, weight, **options)[:2], fullgraph=True)
    for one, other in zip(compiled(x, weight), rms_norm_quantize_fp8(x, weight, **options), strict=False):
        kind = torch.uint8 if one.element_size() == 1 else torch.int32
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one.view(kind), other.view(kind))


def test_a_nan_is_seen_in_amax():
    x = made((4096, 256))
    x[1234, 56] = float("nan")
    scale = torch.ones(1, device="cuda")
    found = rms_norm_quantize_fp8(x, made((256,), seed=1), scaling="static", scale=scale, return_amax=True)
    assert found.amax.isnan().all()


def test_values_beyond_the_largest_are_clamped():
    scale = torch.full((1,), 1e-6, device="cuda")
    found = rms_norm_quantize_fp8(made((77, 512)), made((512,), seed=1), scaling="static", scale=scale)
    values = found.q.float()
    assert values.isfinite().all() and values.abs().max() == 448.0


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("shape", [(1, 64), (77, 300), (5, 7, 2880), (4096, 4096), (4095, 4096), (96, 16384)])
def test_the_transpose_is_that_of_the_result(shape, dtype):
    x, weight, scale = made(shape), made(shape[-1:], seed=1), torch.full((1,), 0.02, device="cuda")
    found = rms_norm_quantize_fp8(x, weight, scale=scale, dtype=dtype, return_amax=True, return_transpose=True)
    plain = rms_norm_quantize_fp8(x, weight, scale=scale, dtype=dtype, return_amax=True)
    as_matrix = found.q.view(torch.uint8).view(-1, shape[-1])
    assert torch.equal(found.q_t.view(torch.uint8), as_matrix.t())
    assert torch.equal(transpose_fp8(found.q.view(-1, shape[-1])).view(torch.uint8), as_matrix.t())
    # Another order of summing a row moves few values to a neighbour.
    assert (as_matrix == plain.q.view(torch.uint8).view_as(as_matrix)).double().mean() > 0.999
    torch.testing.assert_close(found.amax, plain.amax, rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(1, 64), (77, 300), (4096, 4096), (3, 65536)])
def test_one_scale_for_all_rows_gives_what_it_gives_if_given(shape):
    x, weight = made(shape), made(shape[-1:], seed=1)
    options = {"residual": made(shape, seed=2), "return_transpose": True, "return_rstd": True}
    found = rms_norm_quantize_fp8(x, weight, scaling="tensor", **options)
    given = rms_norm_quantize_fp8(x, weight, scale=found.scale, return_amax=True, **options)
    assert torch.equal(found.scale, found.amax / torch.tensor(448.0, device="cuda")) and torch.equal(
        found.sum, given.sum
    )
    torch.testing.assert_close(found.amax, given.amax, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.rstd, given.rstd, rtol=1e-6, atol=0)
    # Another order of summing a row moves few values to a neighbour.
    assert (found.q.view(torch.uint8) == given.q.view(torch.uint8)).double().mean() > 0.999
    assert torch.equal(found.q_t.view(torch.uint8), found.q.view(torch.uint8).t())


def test_an_amax_accumulates_over_calls_and_in_graphs():
    weight, scale, amax = made((4096,), seed=1), torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
    x = made((300, 4096))
    wanted = rms_norm_quantize_fp8(x, weight, scale=scale, return_amax=True).amax
    rms_norm_quantize_fp8(x, weight, scale=scale, amax=amax)
    torch.testing.assert_close(amax, wanted, rtol=1e-5, atol=0)
    first = amax.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rms_norm_quantize_fp8(x, weight, scale=scale, amax=amax)
    for before in (0.0, 1e6, float("nan")):
        amax.fill_(before)
        graph.replay()
        wanted = torch.maximum(first, amax.new_full((1,), before))
        torch.testing.assert_close(amax, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(1, 64), (77, 300), (4096, 4096), (3, 65536)])
@pytest.mark.parametrize("has_residual", [False, True])
def test_gradients_are_those_of_the_norm(shape, has_residual):
    x, weight, dy, ds = (made(one, seed=seed) for seed, one in enumerate((shape, shape[-1:], shape, shape)))
    inputs = [tensor.requires_grad_() for tensor in (x, weight, *([made(shape, seed=9)] if has_residual else []))]
    residual = inputs[2] if has_residual else None
    found = rms_norm_quantize_fp8(x, weight, scaling="row", residual=residual, return_y=True, return_rstd=True)
    plain = fused_add_rms_norm(x, residual, weight) if has_residual else (rms_norm(x, weight),)
    outputs = (found.y, found.sum) if has_residual else (found.y,)
    incoming = (dy, ds)[: len(outputs)]
    ours, theirs = (torch.autograd.grad(some, inputs, incoming) for some in (outputs, plain))
    for one, other in zip(ours, theirs, strict=True):  # rstd is summed in another order
        torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-2)
    read = found.sum.detach() if has_residual else x.detach()
    by_hand = rms_norm_backward(dy, read, weight, found.rstd, ds=ds if has_residual else None)
    assert all(map(torch.equal, by_hand, ours))
