"""Casting modes without kernels: gradients of any order, compilers, a wrong mode."""

import pytest
import torch

import normtune
from normtune import rms_norm


@pytest.mark.parametrize("casting", ["llama", "none"])
def test_gradients_of_first_and_second_order(casting):
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *tensors: rms_norm(*tensors, casting=casting), (x, weight))
    assert torch.autograd.gradgradcheck(lambda *tensors: rms_norm(*tensors, casting=casting), (x, weight))


@pytest.mark.parametrize("casting", ["llama", "none"])
def test_a_compiled_call_rounds_as_an_eager_one(casting):
    torch.manual_seed(0)  # few of the elements of `none` are rounded to another value
    x, weight = torch.randn(256, 64).bfloat16(), torch.randn(64).bfloat16()
    compiled = torch.compile(lambda x: rms_norm(x, weight, casting=casting), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), rms_norm(x, weight, casting=casting))
    assert not torch.equal(compiled(x), rms_norm(x, weight))


def test_hugging_faces_llama_norm_has_the_bits_of_its_mode():
    x, weight = torch.randn(9, 128).bfloat16(), torch.randn(128).bfloat16()
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(rms_norm(x, weight, casting="llama"), weight * wide.to(x.dtype))


@pytest.mark.parametrize(
    "make", [lambda: rms_norm(torch.ones(2, 3), casting="qwen"), lambda: normtune.RMSNorm(3, casting="qwen")]
)
def test_an_unknown_mode_is_refused(make):
    with pytest.raises(ValueError, match="casting is 'qwen': expected one of gemma, llama, none"):
        make()
