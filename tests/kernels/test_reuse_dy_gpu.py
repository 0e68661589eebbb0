"""The option `reuse_dy` on a GPU: a tensor less at the peak of a backward, and the same bits."""

import pytest
import torch

from normtune import fused_add_rms_norm, rms_norm, rms_norm_gated, use_table

pytestmark = pytest.mark.gpu
ROWS, HIDDEN = 8192, 4096
FUNCTIONS = {
    "rms_norm": (lambda x, weight, **options: rms_norm(x, weight, **options), 1),
    "fused": (lambda x, residual, weight, **options: fused_add_rms_norm(x, residual, weight, **options)[0], 2),
    "gated": (lambda x, z, weight, **options: rms_norm_gated(x, weight, z, **options), 2),
    "gate first": (lambda x, z, weight, **options: rms_norm_gated(x, weight, z, norm_before_gate=False, **options), 2),
}


def made(seed, *shape):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).bfloat16()


def backward(function, leaves, dy, **options):
    """Gradients, and the bytes that the backward allocated at its peak."""
    y = function(*leaves, **options)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = torch.autograd.grad(y, leaves, dy)
    torch.cuda.synchronize()
    return found, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_peak_of_a_backward_is_a_tensor_lower(name):
    use_table(None)
    function, count = FUNCTIONS[name]
    leaves = [*(made(seed, ROWS, HIDDEN).requires_grad_() for seed in range(count)), made(8, HIDDEN).requires_grad_()]
    dy = made(9, ROWS, HIDDEN)
    for _ in range(2):  # the first call allocates what is kept
        wanted, plain = backward(function, leaves, dy)
    given = dy.clone()
    for _ in range(2):
        given.copy_(dy)
        found, reusing = backward(function, leaves, given, reuse_dy=True)
    use_table()
    assert found[0].data_ptr() == given.data_ptr()
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert plain - reusing == dy.nbytes


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("rows", "hidden"), [(1, 4096), (64, 100), (333, 2880), (8192, 128), (2048, 8192), (77, 30000), (1000, 65536)]
)
@pytest.mark.parametrize("needs_weight", [True, False])
def test_launches_of_the_table_have_the_same_bits(name, rows, hidden, needs_weight):
    use_table()
    function, count = FUNCTIONS[name]
    leaves = [made(seed, rows, hidden).requires_grad_() for seed in range(count)]
    weight, dy = made(8, hidden).requires_grad_(needs_weight), made(9, rows, hidden)
    wanted_of = [*leaves, *([weight] if needs_weight else [])]
    wanted = torch.autograd.grad(function(*leaves, weight), wanted_of, dy)
    for _ in range(20):  # what depends on the order of programs differs from run to run
        given = dy.clone()
        found = torch.autograd.grad(function(*leaves, weight, reuse_dy=True), wanted_of, given)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        assert torch.equal(given, found[0]) or torch.equal(given, dy)
