"""The function and the module, with gradients, run by Triton's interpreter."""

import pytest
import torch

import normtune
from normtune.kernels.calling import fallback

pytestmark = pytest.mark.interpreter


def plain(x, weight, eps, offset):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight + offset, eps)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 64), (2, 3, 40), (5,), (0, 16), (3, 0, 16), (17, 1)])
def test_values_and_gradients_are_those_of_torch(shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, requires_grad=True)
    weight = torch.randn(shape[-1], generator=generator, requires_grad=True)
    dy = torch.randn(shape, generator=generator)
    y = normtune.rms_norm(x, weight, 1e-5, 1.0)
    expected = plain(x, weight, 1e-5, 1.0)
    torch.testing.assert_close(y, expected)
    for found, wanted in zip(
        torch.autograd.grad(y, (x, weight), dy), torch.autograd.grad(expected, (x, weight), dy), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_without_gradients_nothing_is_kept():
    x, weight = torch.randn(4, 32), torch.randn(32, requires_grad=True)
    with torch.no_grad():
        assert not normtune.rms_norm(x, weight).requires_grad
    assert normtune.rms_norm(x, weight).requires_grad


def test_frozen_weight_and_frozen_input():
    x, weight = torch.randn(4, 32, requires_grad=True), torch.randn(32)
    normtune.rms_norm(x, weight).sum().backward()
    wanted = torch.autograd.grad(plain(x, weight, 1e-6, 0.0).sum(), x)[0]
    torch.testing.assert_close(x.grad, wanted, rtol=1e-4, atol=1e-5)
    x, weight = torch.randn(4, 32), torch.randn(32, requires_grad=True)
    normtune.rms_norm(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, torch.autograd.grad(plain(x, weight, 1e-6, 0.0).sum(), weight)[0])


def test_strided_input_and_expanded_gradient():
    wide = torch.randn(6, 80)
    x = wide[:, :33].requires_grad_()
    weight = torch.randn(33, requires_grad=True)
    y = normtune.rms_norm(x, weight)
    torch.testing.assert_close(y, plain(x, weight, 1e-6, 0.0))
    dx = torch.autograd.grad(y, x, torch.ones(1, 1).expand(6, 33))[0]
    torch.testing.assert_close(dx, torch.autograd.grad(plain(x, weight, 1e-6, 0.0).sum(), x)[0], rtol=1e-4, atol=1e-5)


def test_second_and_third_derivatives_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    x, weight, dy = (torch.randn(size, generator=generator).requires_grad_() for size in ((4, 32), (32,), (4, 32)))
    found = []
    for function in (normtune.rms_norm, lambda x, weight: plain(x, weight, 1e-6, 0.0)):
        leaves = [x, weight, dy]
        first = torch.autograd.grad(function(x, weight), leaves[:2], dy, create_graph=True)
        second = torch.autograd.grad(sum(one.square().sum() for one in first), leaves, create_graph=True)
        third = torch.autograd.grad(sum(one.square().sum() for one in second), leaves)
        found.append((*first, *second, *third))
    for one, wanted in zip(*found, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item())


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_module_starts_as_plain_rms_norm(offset):
    module = normtune.RMSNorm(48, eps=1e-5, offset=offset)
    x = torch.randn(3, 5, 48)
    torch.testing.assert_close(module(x), torch.nn.functional.rms_norm(x, (48,), eps=1e-5))
    module(x).sum().backward()
    assert module.weight.grad.shape == (48,) and module.weight.grad.abs().sum() > 0
    shown = ", offset=1.0" if offset else ""
    assert repr(module) == f"RMSNorm((48,), eps=1e-05, elementwise_affine=True{shown})"


@pytest.mark.slow
@pytest.mark.usefixtures("counted_loops")
def test_rows_beyond_the_kernels_are_composed(monkeypatch):
    composed = []
    plain_forward = fallback.forward
    monkeypatch.setattr(fallback, "forward", lambda *arguments: composed.append(1) or plain_forward(*arguments))
    for hidden, count in ((65536, 0), (65537, 1)):
        x, weight = torch.randn(2, hidden, requires_grad=True), torch.randn(hidden, requires_grad=True)
        y = normtune.rms_norm(x, weight)
        wanted = plain(x, weight, 1e-6, 0.0)
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
        dy = torch.randn_like(y)
        for found, expected in zip(*(torch.autograd.grad(one, (x, weight), dy) for one in (y, wanted)), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        assert len(composed) == count


def test_the_sum_of_longer_rows_takes_the_memory_of_the_residual():
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(2, 70000, generator=generator) for _ in range(2))
    weight = torch.randn(70000, generator=generator)
    expected = normtune.fused_add_rms_norm(x, residual, weight)
    found = normtune.fused_add_rms_norm(x, residual, weight, in_place=True)
    assert found[0].data_ptr() == x.data_ptr() and found[1].data_ptr() == residual.data_ptr()
    assert all(map(torch.equal, found, expected))
