"""The batch-invariant mode without kernels: of all functions on a CPU, whose bits depend on threads and on places."""

import pytest
import torch

import normtune

# Not a multiple of the elements of a vector; and a row that torch divides among threads if it is the only one.
SHORT, LONG = 100, 100_003
HEAD = torch.linspace(0.5, 1.5, 20)


def drawn(rows, hidden, seed=0):
    return torch.randn(rows, hidden, generator=torch.Generator().manual_seed(seed))


def gated(x, z, weight):
    return normtune.rms_norm_gated(x, weight, z)


def gated_groups(x, z, weight):
    size = x.shape[-1] // (10 if x.shape[-1] == SHORT else 1)
    return normtune.rms_norm_gated(x, weight, z, group_size=size, norm_before_gate=False)


def in_place(x, residual, weight):
    return torch.cat(normtune.fused_add_rms_norm(x.clone(), residual.clone(), weight, in_place=True), -1)


def heads(x, other, weight):
    return normtune.qk_norm(x, HEAD, HEAD, 2, 1)


def quantized(x, other, weight):
    found = normtune.rms_norm_quantize_fp8(x, weight, scaling="row", residual=other, return_y=True)
    return torch.cat([found.q.float(), found.scale, found.y], -1)


# Of rows, other rows and a weight; whether gradients of rows are compared, too.
CALLS = {
    "rms_norm": (lambda x, _, weight: normtune.rms_norm(x, weight), True),
    "rms_norm none": (lambda x, _, weight: normtune.rms_norm(x, weight, casting="none"), True),
    "fused_add_rms_norm": (lambda *tensors: torch.cat(normtune.fused_add_rms_norm(*tensors), -1), True),
    "in place": (in_place, False),
    "rms_norm_gated": (gated, True),
    "rms_norm_gated groups": (gated_groups, True),
    "qk_norm": (heads, True),
    "quantize": (quantized, False),
}


@pytest.fixture(autouse=True)
def mode():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with normtune.batch_invariant():
        yield
    torch.set_num_threads(threads)


def results(name, x, other, weight, dy):
    call, has_gradients = CALLS[name]
    if not has_gradients:
        return [call(x, other, weight)]
    leaves = [x.clone().requires_grad_(), other.clone().requires_grad_()]
    y = call(*leaves, weight)
    grown = torch.autograd.grad(y, leaves, dy[:, : y.shape[-1]], allow_unused=True)
    return [y, *(gradient for gradient in grown if gradient is not None)]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [SHORT, LONG])
@pytest.mark.parametrize("name", CALLS)
def test_a_row_has_the_same_bits_in_every_batch(name, hidden):
    if name == "qk_norm" and hidden == LONG:
        hidden = 40 * HEAD.numel()
    x, other, weight, dy = drawn(7, hidden), drawn(7, hidden, 1), drawn(1, hidden, 2)[0], drawn(7, 2 * hidden, 3)
    whole = results(name, x, other, weight, dy)
    transposed = results(name, x.t().contiguous().t(), other, weight, dy)
    for first, last in ((0, 1), (3, 4), (6, 7), (2, 5)):
        part = results(name, *(tensor[first:last] for tensor in (x, other)), weight, dy[first:last])
        for of_part, of_whole, of_columns in zip(part, whole, transposed, strict=True):
            assert torch.equal(of_part, of_whole[first:last]) and torch.equal(of_part, of_columns[first:last])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_values_are_those_without_the_mode(dtype):
    x, other, weight = (drawn(5, SHORT, seed).to(dtype).requires_grad_() for seed in range(3))
    for call in (gated, gated_groups, lambda *tensors: normtune.fused_add_rms_norm(*tensors)[0]):
        found = []
        for enabled in (True, False):
            with normtune.batch_invariant(enabled):
                y = call(x, other, weight[0])
                found.append((y, *torch.autograd.grad(y.sum(), (x, other, weight))))
        torch.testing.assert_close(*found)


@pytest.mark.long
def test_factors_of_another_mode_are_computed_again():
    """As activation checkpointing recomputes them, in a thread of its own."""
    x, weight, dy = drawn(7, LONG, 1).requires_grad_(), drawn(1, LONG, 2)[0], drawn(7, LONG, 3)
    wanted = torch.autograd.grad(normtune.rms_norm(x, weight), x, dy)[0]
    with normtune.batch_invariant(False):
        *_, other = torch.ops.normtune.rms_norm_forward(x.detach(), weight, 1e-6, 0.0, False, True)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: other if one.numel() == 7 else one):
        y = normtune.rms_norm(x, weight)
        assert torch.equal(torch.autograd.grad(y, x, dy)[0], wanted)
