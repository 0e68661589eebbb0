"""Tensors saved by autograd may come back changed: the backward is launched for the tensors that it gets."""

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import normtune

HIDDEN = 24


@pytest.fixture(
    params=[pytest.param("cpu", marks=pytest.mark.interpreter), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request):
    return request.param


def unaligned(tensor):
    """A copy that begins at no multiple of 16 bytes."""
    place = tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape)
    return place.copy_(tensor)


def spread(tensor):
    """A copy whose rows lie further apart."""
    if tensor.dim() < 2:
        return tensor.new_empty(3 * len(tensor))[::3].copy_(tensor)
    return tensor.new_empty(*tensor.shape[:-1], tensor.shape[-1] + 3)[..., : tensor.shape[-1]].copy_(tensor)


def turned(tensor):
    """A copy in the order of a transposed tensor."""
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


HOOKS = {
    "nothing": lambda: saved_tensors_hooks(lambda one: one, lambda one: one),
    "on the CPU": save_on_cpu,
    "contiguous": lambda: saved_tensors_hooks(lambda one: one.clone().contiguous(), lambda one: one),
    "unaligned": lambda: saved_tensors_hooks(unaligned, lambda one: one),
    "rows further apart": lambda: saved_tensors_hooks(spread, lambda one: one),
    "turned": lambda: saved_tensors_hooks(turned, lambda one: one),
}
INPUTS = {
    "contiguous": lambda x: x[:, :HIDDEN].contiguous(),
    "a slice": lambda x: x[:, HIDDEN : 2 * HIDDEN],
    "unaligned": lambda x: unaligned(x[:, :HIDDEN]),
    "every other row": lambda x: x[::2, :HIDDEN],
    "turned": lambda x: turned(x[:, :HIDDEN].contiguous()),
}


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.one_in(11)
def test_gradients_of_whatever_comes_back(device, hooks, inputs, batch_invariant):
    generator = torch.Generator(device).manual_seed(0)
    whole, weight, dy = (
        torch.randn(size, generator=generator, device=device) for size in ((8, 3 * HIDDEN), (HIDDEN,), (8, HIDDEN))
    )
    x = INPUTS[inputs](whole).detach().requires_grad_()
    leaves, dy = (x, weight.requires_grad_()), dy[: len(x)]
    wanted = torch.autograd.grad(torch.nn.functional.rms_norm(x, (HIDDEN,), weight, 1e-6), leaves, dy)
    first = None
    for _ in range(2):
        with HOOKS[hooks]():
            y = normtune.rms_norm(*leaves, batch_invariant=batch_invariant)
        found = torch.autograd.grad(y, leaves, dy)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        first = first or found
        assert all(torch.equal(one, other) for one, other in zip(found, first, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_inside_of_the_batch_invariant_mode(device, reentrant):
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (torch.randn(size, generator=generator, device=device) for size in ((70, 3 * HIDDEN), (HIDDEN,)))

    def gradients(rows):
        leaf = x[:rows].clone().requires_grad_()
        with normtune.batch_invariant():
            # The call that is computed anew has another operation before it, whose backward asks for it.
            y = checkpoint(
                lambda one: normtune.rms_norm((2 * one)[:, HIDDEN : 2 * HIDDEN], weight).sin(),
                leaf,
                use_reentrant=reentrant,
            )
        y.sum().backward()
        return leaf.grad

    exact = x.double().requires_grad_()
    torch.nn.functional.rms_norm(
        2 * exact[:, HIDDEN : 2 * HIDDEN], (HIDDEN,), weight.double(), 1e-6
    ).sin().sum().backward()
    whole = gradients(70)
    torch.testing.assert_close(whole.double(), exact.grad, rtol=1e-4, atol=1e-4)
    if not reentrant:  # which computes anew as a call of its own, outside of the mode
        assert all(torch.equal(gradients(rows), whole[:rows]) for rows in (1, 3, 33))


@pytest.mark.parametrize(
    ("unpack", "message"),
    [
        (lambda one: one.double(), "x was saved with shape .* gave back torch.float64"),
        (lambda one: one[:1], "x was saved with shape .* gave back .* shape .1, 24."),
        (lambda one: one.to("meta"), "x was saved with shape .* gave back .* on meta"),
    ],
)
def test_hooks_that_give_back_something_else_are_named(device, unpack, message):
    x, weight = torch.randn(4, HIDDEN, device=device, requires_grad=True), torch.randn(HIDDEN, device=device)
    with saved_tensors_hooks(lambda one: one, unpack):
        y = normtune.rms_norm(x, weight)
    with pytest.raises(ValueError, match=message):
        y.sum().backward()
    normtune.rms_norm(x, weight).sum().backward()


def test_memory_that_is_gone_is_named(device):
    x, weight = torch.randn(4, HIDDEN, device=device, requires_grad=True), torch.randn(HIDDEN, device=device)
    gone = weight.clone()
    gone.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="weight has no memory"):
        normtune.rms_norm(x, gone)
    y = normtune.rms_norm(x, weight)
    weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="weight has no memory"):
        y.sum().backward()


@pytest.mark.slow
def test_negated_views_are_read_as_their_values(device):
    x, weight, dy = (torch.randn(size, device=device) for size in ((3, 16), (16,), (3, 16)))
    leaves = x.requires_grad_(), weight.requires_grad_()
    for _ in range(2):
        wanted = normtune.rms_norm(-x, weight)
        assert torch.equal(normtune.rms_norm(torch._neg_view(x), weight), wanted)
        assert torch.equal(normtune.rms_norm(x, torch._neg_view(weight)), wanted)
        wanted = torch.autograd.grad(normtune.rms_norm(*leaves), leaves, -dy)
        found = torch.autograd.grad(normtune.rms_norm(*leaves), leaves, torch._neg_view(dy))
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.slow
def test_hooks_that_compress_get_what_they_gave(device):
    x, weight, dy = (torch.randn(size, device=device, dtype=torch.float16) for size in ((8, 16), (16,), (8, 16)))
    leaves = x.requires_grad_(), weight.requires_grad_()
    for hooks in (lambda: saved_tensors_hooks(lambda given: given.half(), lambda given: given), HOOKS["nothing"]) * 2:
        wanted = torch.autograd.grad(torch.nn.functional.rms_norm(x, (16,), weight, 1e-6), leaves, dy)
        with hooks():
            y = normtune.rms_norm(*leaves)
        for one, other in zip(torch.autograd.grad(y, leaves, dy), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("warm", [False, True])
def test_an_rstd_of_another_mode_is_computed_anew(device, warm):
    x, weight, dy = (torch.randn(size, device=device) for size in ((4, HIDDEN), (HIDDEN,), (4, HIDDEN)))
    leaves = x.requires_grad_(), weight.requires_grad_()
    wanted = torch.autograd.grad(normtune.rms_norm(*leaves, batch_invariant=True), leaves, dy) if warm else None

    def other(tensor):
        return 1.5 * tensor if tensor.shape == (4,) else tensor

    with saved_tensors_hooks(other, lambda one: one):
        y = normtune.rms_norm(*leaves, batch_invariant=True)
    found = torch.autograd.grad(y, leaves, dy)
    wanted = wanted or torch.autograd.grad(normtune.rms_norm(*leaves, batch_invariant=True), leaves, dy)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_batched_gradients_keep_their_graph(device):
    x = torch.randn(3, 8, device=device, requires_grad=True)
    weight, dy = torch.randn(8, device=device), torch.randn(2, 3, 8, device=device)
    found = []
    for function in (normtune.rms_norm, lambda x, weight: torch.nn.functional.rms_norm(x, (8,), weight, 1e-6)):
        (dx,) = torch.autograd.grad(function(x, weight), x, dy, is_grads_batched=True, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), x)[0])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
