"""Shapes, tolerances and formulas of other people's tests, as references in torch's operations.

Transformer Engine's FP8 norms with delayed scaling, vLLM's `rms_norm_static_fp8_quant` with and without a residual,
`rms_norm_dynamic_per_token_quant` and `rms_norm_per_block_quant`, FlashInfer's `rmsnorm_quant` and
`fused_add_rmsnorm_quant`, DeepGEMM's `per_token_cast_to_fp8`.
"""

import pytest
import torch

import normtune

pytestmark = pytest.mark.interpreter

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def made(rows, hidden, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, hidden, generator=generator).to(dtype)
    return x, (1 + 0.1 * torch.randn(hidden, generator=generator)).to(dtype)


def steps(left, right):
    """Most steps between FP8 values, and the share of values that differ."""
    ordered = [torch.where(t < 0, -(t & 0x7F), t) for t in (one.view(torch.int8).int() for one in (left, right))]
    apart = (ordered[0] - ordered[1]).abs()
    return apart.max().item(), (apart > 0).float().mean().item()


def saturated(value, dtype):
    largest = torch.finfo(dtype).max
    return value.clamp(-largest, largest).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize(("rows", "hidden"), [(71, 229), (29, 541)])
def test_transformer_engine_with_delayed_scaling(rows, hidden, dtype, zero_centered):
    """Its scale multiplies before the cast; amax is of the float32 norm; outputs within one step."""
    x, gamma = made(rows, hidden, torch.bfloat16)
    gamma = gamma - 1 if zero_centered else gamma
    multiplier = torch.tensor([3.0])
    found = normtune.rms_norm_quantize_fp8(
        x, gamma, 1e-5, float(zero_centered), multiplier.reciprocal(), dtype=dtype, return_amax=True
    )
    wide = x.double()
    norm = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * (gamma.double() + zero_centered)
    apart, share = steps(found.q, saturated((norm * 3).float(), dtype))
    assert apart <= 1 and share < 1e-3
    torch.testing.assert_close(found.amax, norm.abs().max().float().reshape(1), rtol=1e-6, atol=0)


def vllm_norm(x, weight, eps):
    variance = x.float().pow(2).mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(variance + eps)).to(weight.dtype) * weight


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "hidden"), [(7, 8), (7, 768), (3, 5120)])
def test_vllm_static(tokens, hidden, dtype, with_residual):
    x, weight = made(tokens, hidden, dtype)
    residual = torch.randn(x.shape).to(dtype) if with_residual else None
    scale = torch.tensor(0.01)
    found = normtune.rms_norm_quantize_fp8(
        x, weight, scale=scale, residual=residual, round_sum=True, rounding="product"
    )
    source = x if residual is None else x + residual
    wanted = saturated(vllm_norm(source, weight, 1e-6).float() * (1 / scale), E4M3)
    torch.testing.assert_close(found.q.float(), wanted.float(), atol=1e-3, rtol=2**-3)
    assert steps(found.q, wanted)[1] < 2e-3
    if with_residual:
        assert torch.equal(found.sum, source)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 17), (7, 1024), (5, 5137)])
def test_vllm_dynamic_per_token(tokens, hidden, dtype):
    """Divided by max(amax / 448, 1 / (448 * 512)); its own test compares dequantized values."""
    x, weight = made(tokens, hidden, dtype)
    found = normtune.rms_norm_quantize_fp8(x, weight, 1e-6, scaling="row", rounding="product", least_amax=1 / 512)
    norm = vllm_norm(x, weight, 1e-6).float()
    scales = (norm.abs().amax(1, keepdim=True) / 448).clamp(min=1 / (448 * 512))
    torch.testing.assert_close(found.scale, scales, rtol=1e-6 if dtype == torch.float32 else 2**-7, atol=0)
    apart, share = steps(found.q, saturated(norm / scales, E4M3))
    assert apart <= 1 and share < 5e-3
    torch.testing.assert_close(found.q.float() * found.scale, norm, rtol=2**-3, atol=2e-2)


@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 128), (20, 1024), (3, 5120)])
def test_vllm_dynamic_with_a_residual(tokens, hidden, scaling):
    """The float32 sum is normalized and the rounded one stored, within the tolerances of its own tests and tighter."""
    x, weight = made(tokens, hidden, torch.bfloat16)
    residual = made(tokens, hidden, torch.bfloat16, seed=1)[0]
    options = {"residual": residual, "scaling": scaling, "rounding": "product", "least_amax": 1 / 512}
    found = normtune.rms_norm_quantize_fp8(x, weight, 1e-6, **options)
    wide = x.float() + residual.float()
    parts = vllm_norm(wide, weight, 1e-6).float().view(tokens, -1, 128 if scaling == "block" else hidden)
    scales = (parts.abs().amax(2, keepdim=True) / 448).clamp(min=1 / (448 * 512))
    assert torch.equal(found.sum, wide.to(torch.bfloat16))
    torch.testing.assert_close(found.scale, scales.squeeze(2), rtol=2**-7, atol=0)
    assert (found.scale == scales.squeeze(2)).float().mean() > 0.9
    apart, share = steps(found.q, saturated(parts / scales, E4M3).view(tokens, hidden))
    assert apart <= 1 and share < 5e-3


@pytest.mark.parametrize("quant_scale", [0.01, 1.0, 10.0])
@pytest.mark.parametrize(("batch", "hidden"), [(1, 111), (19, 500), (2, 3072)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_flashinfer_rmsnorm_quant(batch, hidden, quant_scale, with_residual):
    x, weight = made(batch, hidden, torch.float16)
    residual = made(batch, hidden, torch.float16, seed=1)[0] if with_residual else None
    found = normtune.rms_norm_quantize_fp8(x, weight, 1e-6, scale=torch.tensor(quant_scale), residual=residual)
    wide = x.float() if residual is None else x.float() + residual.float()
    norm = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()
    wanted = (norm / quant_scale).clamp(-448, 448).to(E4M3)
    torch.testing.assert_close(found.q.float(), wanted.float(), rtol=1, atol=1)
    apart, share = steps(found.q, wanted)
    assert apart <= 1 and share < 1e-3


@pytest.mark.parametrize(("rows", "hidden"), [(1, 128), (7, 576), (13, 1000), (4, 7168)])
def test_deepgemm_per_token_cast_of_a_norm(rows, hidden):
    """1x128 with scales column-major, of a leading dimension that 4 divides; a norm in bfloat16 is cast."""
    x, weight = made(rows, hidden, torch.bfloat16)
    options = {"scaling": "block", "rounding": "norm", "least_amax": 1e-4, "return_y": True}
    found = normtune.rms_norm_quantize_fp8(x, weight, scale_layout="column_major", **options)
    padded = torch.nn.functional.pad(found.y, (0, -hidden % 128)).view(rows, -1, 128)
    amax = padded.abs().float().amax(dim=2).clamp(1e-4)
    wanted = (padded * (448.0 / amax.unsqueeze(2))).to(E4M3).view(rows, -1)[:, :hidden]
    assert torch.equal(found.scale, amax / 448)
    assert found.scale.stride(0) == 1 and found.scale.stride(1) % 4 == 0
    apart, share = steps(found.q, wanted)
    assert apart <= 1 and share < 5e-3  # it multiplies by 448 / amax


@pytest.mark.parametrize(("rows", "hidden"), [(1, 128), (7, 576), (13, 1000), (4, 7168)])
def test_deepgemm_per_token_cast_with_ue8m0(rows, hidden):
    """The same bits; packed as its kernels for sm_100 read them, with a missing block and row as 0."""
    x, weight = made(rows, hidden, torch.bfloat16)
    options = {"scaling": "block", "rounding": "norm", "least_amax": 1e-4, "return_y": True}
    wide = normtune.rms_norm_quantize_fp8(x, weight, scale_format="ue8m0", **options)
    padded = torch.nn.functional.pad(wide.y, (0, -hidden % 128)).view(rows, -1, 128)
    scale = (padded.abs().float().amax(dim=2).clamp(1e-4) / 448).log2().ceil().exp2()
    wanted = (padded * (1 / scale.unsqueeze(2))).to(E4M3).view(rows, -1)[:, :hidden]
    assert torch.equal(wide.scale, scale)
    assert torch.equal(wide.q.view(torch.uint8), wanted.view(torch.uint8))
    packed = normtune.rms_norm_quantize_fp8(
        x, weight, scale_format="ue8m0_packed", scale_layout="column_major", **options
    )
    aligned, words = -(-rows // 4) * 4, -(-scale.shape[1] // 4)
    in_words = torch.zeros(aligned, 4 * words, dtype=torch.uint8)
    in_words[:rows, : scale.shape[1]] = (scale.log2() + 127).to(torch.uint8)
    in_words = in_words.view(torch.int32)
    assert torch.equal(packed.scale, in_words[:rows]) and packed.scale.stride() == (1, aligned)
    assert torch.equal(packed.scale.as_strided((aligned, words), (1, aligned)), in_words)
    assert torch.equal(packed.q.view(torch.uint8), wanted.view(torch.uint8))
