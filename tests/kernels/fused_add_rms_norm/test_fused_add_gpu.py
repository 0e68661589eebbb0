"""The fused addition on a GPU: bits of other libraries, gates of every variant, gradients, graphs, and memory."""

import pytest
import torch

from normtune import fused_add_rms_norm
from normtune.kernels.fused_add_rms_norm.function import CALLS

pytestmark = pytest.mark.gpu
ORDERS = ("float32", "sum", "llama")


@pytest.mark.parametrize("rounding", ORDERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("hidden", [1, 64, 100, 2880, 4096, 5376, 16384, 65536])
def test_bits_are_those_of_others(agree, rounding, dtype, hidden):
    agree(fused_add_rms_norm, rounding, dtype, hidden, "cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("residual_dtype", [torch.float32, None])
@pytest.mark.parametrize(
    ("rows", "hidden"), [(1, 64), (77, 4096), (4096, 2880), (300, 16384), (9, 65536), (20000, 128)]
)
def test_gradients_are_those_of_float64(rows, hidden, dtype, residual_dtype):
    generator = torch.Generator("cuda").manual_seed(rows)
    x, residual, dy, ds = (torch.randn(rows, hidden, device="cuda", generator=generator).to(dtype) for _ in range(4))
    residual = residual.to(residual_dtype or dtype)
    weight = torch.randn(hidden, device="cuda", generator=generator).to(dtype)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, residual, weight)]
    y, s = fused_add_rms_norm(*leaves, 1e-6, 0.5)
    torch.autograd.backward((y, s), (dy, ds.to(s.dtype)))
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, residual, weight)]
    total = exact[0] + exact[1] + (s.double() - x.double() - residual.double()).detach()
    normalized = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * (exact[2] + 0.5)
    torch.autograd.backward((normalized, total), (dy.double(), ds.double()))
    bound = {torch.float32: 4e-6, torch.bfloat16: 2e-2}[dtype]
    for leaf, reference in zip(leaves, exact, strict=True):
        assert (leaf.grad - reference.grad).abs().max() <= bound * reference.grad.abs().max()


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("hidden", [1024, 4096, 5120, 7168, 8192, 16384, 32768])
def test_few_rows_in_place_have_the_bits_of_new_ones(hidden, batch_invariant):
    generator = torch.Generator("cuda").manual_seed(hidden)
    weight = torch.randn(hidden, device="cuda", generator=generator).bfloat16()
    for rows in (1, 2, 7, 16, 33, 66, 130):
        x, residual = (torch.randn(rows, hidden, device="cuda", generator=generator).bfloat16() for _ in range(2))
        wanted = fused_add_rms_norm(x, residual, weight, batch_invariant=batch_invariant)
        for _ in range(50):
            written = x.clone(), residual.clone()
            fused_add_rms_norm(*written, weight, in_place=True, batch_invariant=batch_invariant)
            assert all(torch.equal(one, other) for one, other in zip(written, wanted, strict=True))


def test_a_graph_replays_a_call_in_place():
    x, residual, weight = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((64, 4096), (64, 4096), 4096)
    )
    kept = x.clone(), residual.clone()
    fused_add_rms_norm(x.clone(), residual.clone(), weight, in_place=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused_add_rms_norm(x, residual, weight, in_place=True)
    x.copy_(kept[0])
    residual.copy_(kept[1])
    graph.replay()
    expected = fused_add_rms_norm(*kept, weight)
    assert torch.equal(x, expected[0]) and torch.equal(residual, expected[1])


def test_calls_of_known_arguments_launch_what_is_kept():
    x, residual, weight = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((64, 4096), (64, 4096), 4096)
    )
    for _ in range(3):
        fused_add_rms_norm(x, residual, weight)
    assert all(plan.launch.is_fast for plan in CALLS["float32"].operation.plans.values())
