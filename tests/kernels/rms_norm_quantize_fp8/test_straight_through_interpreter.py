"""Gradients of launches that quantize, by the kernels of RMSNorm's backward, run by the interpreter."""

import pytest
import torch

import normtune
from normtune.kernels.calling import eager

pytestmark = pytest.mark.interpreter


def case(rows=7, hidden=300):
    generator = torch.Generator().manual_seed(rows)
    x, residual, dy, ds = (torch.randint(-4, 5, (rows, hidden), generator=generator).float() for _ in range(4))
    return x.requires_grad_(), torch.rand(hidden, generator=generator).requires_grad_(), residual, dy, ds


def test_rstd_is_that_of_the_norm_and_gradients_have_its_bits():
    """Sums of squares are exact here, whatever their order."""
    x, weight, residual, dy, ds = case()
    for added in (None, residual):
        found = normtune.rms_norm_quantize_fp8(
            x, weight, scaling="block", residual=added, return_y=True, return_rstd=True
        )
        if added is None:
            outputs, wanted, incoming = (found.y,), (normtune.rms_norm(x, weight),), (dy,)
        else:
            outputs, wanted = (found.y, found.sum), normtune.fused_add_rms_norm(x, added, weight)
            incoming = (dy, ds)
        read = x.detach() if added is None else found.sum.detach()
        exact = torch.rsqrt(read.double().square().mean(1) + 1e-6)
        torch.testing.assert_close(found.rstd.double(), exact, rtol=1e-6, atol=0)
        ours, theirs = (torch.autograd.grad(some, (x, weight), incoming) for some in (outputs, wanted))
        assert all(map(torch.equal, ours, theirs))
        assert not any(out._is_view() for out in outputs)  # of which autograd would refuse a change in place


def test_a_wider_gradient_is_not_rounded():
    x, weight, _, dy, _ = case()
    rounded = x.detach().half()
    found = normtune.rms_norm_quantize_fp8(rounded, weight, scaling="row", return_rstd=True)
    dy = dy * (1 + 2**-14)  # which float16 has not
    dx, dweight = normtune.rms_norm_backward(dy, rounded, weight, found.rstd)
    wide, of_weight = normtune.rms_norm_backward(dy, rounded.float(), weight, found.rstd)
    assert dx.dtype == torch.float16 and torch.equal(dx, wide.half())
    torch.testing.assert_close(dweight, of_weight, rtol=1e-6, atol=1e-6)
    near, _ = normtune.rms_norm_backward(dy.half(), rounded.float(), weight, found.rstd)
    assert not torch.equal(near, wide)


@pytest.mark.parametrize("has_sum", [False, True])
def test_a_norm_without_a_weight_has_dx_alone(has_sum):
    x, _, _, dy, ds = case()
    rstd = torch.rsqrt(x.detach().square().mean(1) + 1e-6)
    of_sum = {"ds": ds} if has_sum else {}
    dx, dweight = normtune.rms_norm_backward(dy, x.detach(), None, rstd, **of_sum)
    wanted, _ = normtune.rms_norm_backward(dy, x.detach(), torch.ones(300), rstd, **of_sum)
    assert dweight is None and torch.equal(dx, wanted)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scaling", ["row", "static"])
def test_gradients_of_a_row_have_the_same_bits_in_every_batch(scaling, monkeypatch):
    """By the rstd of the forward: it is not computed anew."""
    generator = torch.Generator().manual_seed(2)
    x, dy = (torch.randn(9, 300, generator=generator) for _ in range(2))
    weight, scale = torch.rand(300, generator=generator), torch.ones(1) if scaling == "static" else None
    found = []
    for part in (slice(None), slice(3, 5)):
        rows = x[part].clone().requires_grad_()
        options = {"scaling": scaling, "scale": scale, "batch_invariant": True}
        with monkeypatch.context() as patch:
            made = normtune.rms_norm_quantize_fp8(rows, weight, return_y=True, return_rstd=True, **options)
            patch.setattr(eager, "new_forward", None)
            (dx,) = torch.autograd.grad(made.y, rows, dy[part])
            by_hand, _ = normtune.rms_norm_backward(dy[part], rows.detach(), weight, made.rstd, batch_invariant=True)
        found.append((made.rstd, dx, by_hand))
    assert all(torch.equal(whole[3:5], part) for whole, part in zip(*found, strict=True))
    assert torch.equal(found[0][1], found[0][2])


def test_no_rows():
    x, weight = torch.ones(0, 16, requires_grad=True), torch.ones(16, requires_grad=True)
    found = normtune.rms_norm_quantize_fp8(x, weight, scaling="row", return_y=True)
    found.y.sum().backward()
    assert x.grad.shape == (0, 16) and torch.equal(weight.grad, torch.zeros(16))
