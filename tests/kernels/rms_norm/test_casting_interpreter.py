"""Casting modes: bits of Liger-Kernel's formulas, and gradients with their roundings, by Triton's interpreter."""

import pytest
import torch

import normtune
from normtune import rms_norm

pytestmark = pytest.mark.interpreter


def liger(x, weight, eps, offset, casting):
    """Liger-Kernel's _rms_norm_forward_kernel (ops/rms_norm.py), with sums in float32 in all modes."""
    wide = x.float()
    if casting == "none":
        square = (x * x).float().mean(-1, keepdim=True)
        rstd = torch.rsqrt(square + torch.tensor(eps).to(x.dtype).float())
        return (wide * rstd * (torch.tensor(offset).to(x.dtype) + weight).float()).to(x.dtype)
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if casting == "llama":
        return ((wide * rstd).to(x.dtype) * (offset + weight.float())).to(x.dtype)
    return (wide * rstd * (weight.float() + offset)).to(x.dtype)


def rows(dtype, shape=(66, 300)):
    generator = torch.Generator().manual_seed(7)
    return (torch.randn(shape, generator=generator).to(dtype), torch.randn(shape[-1], generator=generator).to(dtype))


@pytest.mark.parametrize("casting", ["gemma", "llama", "none"])
@pytest.mark.parametrize("offset", [0.0, 1.0, 0.1])
def test_bits_are_ligers_but_for_rounding_boundaries_of_the_sum(casting, offset):
    x, weight = rows(torch.float16)
    found, expected = rms_norm(x, weight, 1e-6, offset, casting=casting), liger(x, weight, 1e-6, offset, casting)
    assert (found != expected).float().mean() < 1e-3
    others = [liger(x, weight, 1e-6, offset, other) for other in {"gemma", "llama", "none"} - {casting}]
    assert all((found != other).float().mean() > 0.01 for other in others)


@pytest.mark.slow
def test_the_weight_gradient_of_llama_rounds_its_terms_and_that_of_others_does_not():
    x, weight = rows(torch.float16)
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(8)).half()
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    expected = {
        "llama": (dy * (x.float() * rstd).half()).double().sum(0),
        "gemma": (dy.double() * x.double() * rstd.double()).sum(0),
        "none": (dy.double() * x.double() * rstd.half().double()).sum(0),
    }
    for casting, value in expected.items():
        leaf = weight.float().requires_grad_()
        rms_norm(x, leaf, casting=casting).backward(dy)
        alone = leaf.grad
        distance = {other: (alone.double() - exact).abs().max() for other, exact in expected.items()}
        assert min(distance, key=distance.get) == casting and distance[casting] < 1e-4 * value.abs().max()
        both = x.clone().requires_grad_(), weight.float().requires_grad_()
        rms_norm(*both, casting=casting).backward(dy)
        torch.testing.assert_close(both[1].grad, alone, rtol=1e-5, atol=1e-5)


def test_forms_of_a_call_take_a_mode():
    x, weight = rows(torch.float16, (4, 6, 20))
    expected = rms_norm(x, weight, casting="llama")
    module = normtune.RMSNorm(20, eps=1e-6, dtype=torch.float16, casting="llama")
    module.load_state_dict({"weight": weight})
    assert torch.equal(module(x), expected) and "casting='llama'" in repr(module)
    assert torch.equal(rms_norm(x, (20,), weight, 1e-6, casting="llama"), expected)
    assert not torch.equal(rms_norm(x, weight), expected)
    over_two = rms_norm(x, (6, 20), weight.repeat(6).view(6, 20), 1e-6, casting="none")
    assert torch.equal(over_two.flatten(1), rms_norm(x.flatten(1), weight.repeat(6), 1e-6, casting="none"))
