"""The formulas of other libraries for a fused addition, written in torch's operations, and rows on which they agree."""

import pytest
import torch


def flashinfer(x, residual, weight, eps, offset):
    """The reference of FlashInfer's tests (tests/utils/test_norm.py), also for its Gemma variant."""
    wide = x.float() + residual.float()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * (weight.float() + offset)
    return y.to(x.dtype), wide.to(x.dtype)


def liger_gemma(x, residual, weight, eps, offset):
    """Liger-Kernel's fused_add_rms_norm in the mode gemma: the sum in x's dtype, then all in float32."""
    s = x + residual
    wide = s.float()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * (weight.float() + offset)
    return y.to(x.dtype), s


def hugging_face(x, residual, weight, eps, offset):
    """A decoder layer and LlamaRMSNorm of Hugging Face; vLLM's CUDA kernel rounds at the same places."""
    s = residual + x
    wide = s.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(s.dtype), s


OTHERS = {"float32": flashinfer, "sum": liger_gemma, "llama": hugging_face}


def exact_rows(rows, hidden, dtype):
    """Two tensors whose sum has rows of mean square 1, 4 or 1/4: with eps 0 the order of summing changes nothing."""
    generator = torch.Generator().manual_seed(hidden)
    signs = torch.randint(0, 2, (rows, hidden), generator=generator) * 2.0 - 1
    scale = torch.tensor([1.0, 2.0, 0.5]).repeat(rows)[:rows, None]
    x = signs * scale * 0.75
    return x.to(dtype), (signs * scale * 0.25).to(dtype)


@pytest.fixture
def others():
    """By the order of rounding, the formula of a library that has it."""
    return OTHERS


@pytest.fixture
def agree():
    """Compare normtune with the formula of another library, bit for bit, on rows of exact sums, then on random ones."""

    def compare(function, rounding, dtype, hidden, device):
        offset = 0.0 if rounding == "llama" else 1.0
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(hidden, generator=generator).to(device, dtype)
        x, residual = (tensor.to(device) for tensor in exact_rows(7, hidden, dtype))
        found = function(x, residual, weight, 0.0, offset, rounding=rounding)
        assert all(map(torch.equal, found, OTHERS[rounding](x, residual, weight, 0.0, offset)))
        x, residual = (torch.randn(65, hidden, generator=generator).to(device, dtype) for _ in range(2))
        y, s = function(x, residual, weight, 1e-6, offset, rounding=rounding)
        expected_y, expected_s = OTHERS[rounding](x, residual, weight, 1e-6, offset)
        assert torch.equal(s, expected_s)
        # Another order of the sum of squares moves a result at a rounding boundary.
        assert (y != expected_y).float().mean() < (1e-3 if dtype != torch.float32 else 0.5)

    return compare
